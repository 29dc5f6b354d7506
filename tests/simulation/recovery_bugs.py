"""Bugs of recovery, of what the store does to its files and of updates, planted on purpose like those of
bugs.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.jetstream.consumer.consumer_replica import ConsumerReplica
from penstock.kernels.log.message_block import MessageBlock
from penstock.kernels.log.stream_log import StreamLog
from penstock.protocol.api import ApiConsumerConfig
from penstock.store import block_reading, blocks, recovery
from penstock.store.files import write_atomically
from penstock.testing.sim.sim_disk import SimDisk
from tests.simulation.stream_bugs import removals_before_what_they_rest_on


def tail_cut_in_two_steps(patch: pytest.MonkeyPatch) -> None:
    """Recovery truncates a block with a bad tail, and is killed before that is on the disk."""

    def in_place(disk: SimDisk, path: Path, offset: int, data: memoryview) -> None:
        write_atomically(
            disk, path.with_name(f"{path.name}.cut-{offset}"), bytes(data[offset:]), sync_name=False
        )
        fd = disk.open(path)
        disk._step("truncate")
        file = disk._fds[fd]
        file.pending.append((offset, None))
        file.apply(offset, None)
        disk.sync(fd)

    patch.setattr(recovery, "_cut", in_place)


def first_messages_of_other_filters(patch: pytest.MonkeyPatch) -> None:
    """An update of a consumer's filters leaves the list of the last messages of each subject as it was."""
    update = ConsumerReplica.update

    def listed_before(consumer: ConsumerReplica, config: ApiConsumerConfig, now: int) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(ConsumerReplica, "_start_last_per_subject", lambda one: None)
            update(consumer, config, now)

    patch.setattr(ConsumerReplica, "update", listed_before)


def index_of_a_file_with_a_hole_given_up(patch: pytest.MonkeyPatch) -> None:
    """The index of a block goes though its file tells without it only what is before a hole."""
    patch.setattr(blocks, "is_self_contained", lambda number, data: True)


def room_made_in_any_order(patch: pytest.MonkeyPatch) -> None:
    """A full disk gets room by all files that may go, though older ones stay whose removals they note."""

    def any_order(files: blocks.BlockFiles, log: StreamLog) -> bool:
        files._dropped_unwritten += log.take_dropped()
        dropped = sorted(files._dropped + files._dropped_unwritten)
        newest = max((number for number in dropped if number in files._known), default=0)
        stay = {newest, files._busy_number} | files._syncing | log.superseded_blocks()
        free = [number for number in dropped if number not in stay]
        files._dropped = [number for number in files._dropped if number in stay]
        files._dropped_unwritten = [number for number in files._dropped_unwritten if number in stay]
        for number in free:
            files._forget(number)
        files._unlink(free)
        return bool(free)

    patch.setattr(blocks.BlockFiles, "_free_space", any_order)


def rewrite_forgotten_while_written(patch: pytest.MonkeyPatch) -> None:
    """Making room forgets a rewritten block that left the log, though work in the background writes it."""
    next_rewrite = blocks.BlockFiles._next_rewrite

    def idle(files: blocks.BlockFiles, log: StreamLog) -> MessageBlock | None:
        busy, files._busy_number = files._busy_number, 0
        try:
            return next_rewrite(files, log)
        finally:
            files._busy_number = busy

    patch.setattr(blocks.BlockFiles, "_next_rewrite", idle)


def damaged_head_stops_the_reader(patch: pytest.MonkeyPatch) -> None:
    """A changed bit in the head of a closed block's file raises instead of losing the block's messages."""

    def load(files: block_reading.BlockReader, number: int, size: int) -> memoryview:
        data = files.read(number)
        return memoryview(bytes(data).ljust(size, b"\0"))

    patch.setattr(block_reading.BlockReader, "load", load)


RECOVERY_BUGS: list[tuple[Callable[[pytest.MonkeyPatch], None], str, int]] = [
    (first_messages_of_other_filters, "delivered", 93000392),
    (tail_cut_in_two_steps, "no resurrection", 94008677),
    (removals_before_what_they_rest_on, "prefix", 194),
    (index_of_a_file_with_a_hole_given_up, "acked means kept", 96011370),
    (room_made_in_any_order, "no resurrection", 96006911),
    (rewrite_forgotten_while_written, "IndexError", 98001302),
    (damaged_head_stops_the_reader, "StoreCorruptError", 98015210),
]
