"""Bugs of recovery, of what the store does to its files and of updates, planted on purpose like those of
bugs.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from penstock.errors import StoreWriteError
from penstock.jetstream.consumer.consumer_delivery import ConsumerDelivery
from penstock.jetstream.consumer.consumer_replica import ConsumerReplica
from penstock.jetstream.stream import shrinking
from penstock.jetstream.stream.rollups import Rollups
from penstock.kernels.log.message_block import MessageBlock
from penstock.kernels.log.stream_log import StreamLog
from penstock.protocol.api import ApiConsumerConfig
from penstock.store import block_erasing, block_reading, block_writing, erasures, recovery
from penstock.store.block_jobs import BlockJobs
from penstock.store.block_reading import block_path
from penstock.store.block_syncs import BlockSyncs
from penstock.store.blocks import BlockFiles
from penstock.store.files import sync_file, write_atomically
from penstock.store.journal import FileConsumerStore
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
            inner.setattr(ConsumerDelivery, "_start_last_per_subject", lambda *_: None)
            update(consumer, config, now)

    patch.setattr(ConsumerReplica, "update", listed_before)


def index_of_a_file_with_a_hole_given_up(patch: pytest.MonkeyPatch) -> None:
    """The index of a block goes though its file tells without it only what is before a hole."""
    patch.setattr(block_erasing, "is_self_contained", lambda number, data, indexed: True)


def room_made_up_to_an_empty_file(patch: pytest.MonkeyPatch) -> None:
    """A full disk gets room by all files before the newest, though that one is empty after a recovery."""
    patch.setattr(BlockJobs, "_has_records", lambda jobs, number: number in jobs._writer.known)


def room_made_in_any_order(patch: pytest.MonkeyPatch) -> None:
    """A full disk gets room by all files that may go, though older ones stay whose removals they note."""

    def any_order(jobs: BlockJobs) -> bool:
        jobs._dropped_unwritten += jobs._log.take_dropped()
        dropped = sorted(jobs._dropped + jobs._dropped_unwritten)
        newest = max((number for number in dropped if number in jobs._writer.known), default=0)
        stay = {newest} | jobs._busy | jobs._syncs.syncing | jobs._log.superseded_blocks()
        free = [number for number in dropped if number not in stay]
        jobs._dropped = [number for number in jobs._dropped if number in stay]
        jobs._dropped_unwritten = [number for number in jobs._dropped_unwritten if number in stay]
        jobs._forget(free)
        jobs._writer.unlink(free, jobs._permit)
        return bool(free)

    patch.setattr(BlockJobs, "free_space", any_order)


def rewrite_forgotten_while_written(patch: pytest.MonkeyPatch) -> None:
    """Making room forgets a rewritten block that left the log, though work in the background writes it."""
    next_rewrite = BlockJobs._next_rewrite

    def idle(jobs: BlockJobs) -> MessageBlock | None:
        busy, jobs._busy = jobs._busy, set()
        try:
            return next_rewrite(jobs)
        finally:
            jobs._busy = busy

    patch.setattr(BlockJobs, "_next_rewrite", idle)


def damaged_head_stops_the_reader(patch: pytest.MonkeyPatch) -> None:
    """A changed bit in the head of a closed block's file raises instead of losing the block's messages."""

    def load(files: block_reading.BlockReader, number: int, size: int) -> memoryview:
        data = files.read(number)
        return memoryview(bytes(data).ljust(size, b"\0"))

    patch.setattr(block_reading.BlockReader, "load", load)


def finished_roll_ups_recorded_no_more(patch: pytest.MonkeyPatch) -> None:
    """The record of the next roll-up replaces those whose removals are not on disk yet."""
    patch.setattr(Rollups, "finished", lambda rollups, one: None)


def limits_before_earlier_removals(patch: pytest.MonkeyPatch) -> None:
    """An update stores its limits before the removals that came before it are on the disk."""
    patch.setattr(shrinking, "enforced", lambda config: ())


def failed_sync_believed_when_repeated(patch: pytest.MonkeyPatch) -> None:
    """What a failed sync covered counts as on the disk when the next one succeeds."""

    def trusting(syncs: BlockSyncs, paths: Iterable[Path]) -> None:
        for path in paths:
            sync_file(syncs._disk, path)

    patch.setattr(BlockSyncs, "sync_files", trusting)


def sync_of_a_job_believed_after_a_failed_one(patch: pytest.MonkeyPatch) -> None:
    """A background job believes its own sync of a file after another sync of it failed."""

    def trusting(syncs: BlockSyncs, paths: Iterable[Path]) -> None:
        for path in paths:
            try:
                sync_file(syncs._disk, path)
            except StoreWriteError:
                syncs.distrusted.add(path)
                raise

    patch.setattr(BlockSyncs, "sync_files", trusting)


def failed_sync_of_a_journal_believed_when_repeated(patch: pytest.MonkeyPatch) -> None:
    """What a failed sync of a consumer's journal covered counts as on the disk when the next one succeeds."""
    patch.setattr(FileConsumerStore, "_write_again", lambda store: store._distrusted.clear())


def torn_overwriting_left(patch: pytest.MonkeyPatch) -> None:
    """Recovery does not overwrite again a record of which power loss tore the overwriting."""
    patch.setattr(erasures, "_is_torn", lambda data, patch: False)


def erasures_before_their_tombstones(patch: pytest.MonkeyPatch) -> None:
    """A file whose sync failed is written again with records overwritten whose tombstones are not on disk."""
    patch.setattr(erasures.Erasures, "waiting", lambda self, number: [])


def files_left_open_whose_write_failed(patch: pytest.MonkeyPatch) -> None:
    """A removed stream leaves a file open whose first write failed, and the next one of its name uses it."""

    def close(writer: block_writing.BlockWriter) -> None:
        for number in writer.known:
            writer._files.forget(block_path(writer._directory, number))

    patch.setattr(block_writing.BlockWriter, "close", close)


def erased_messages_kept_in_memory(patch: pytest.MonkeyPatch) -> None:
    """Recovery overwrites an erased message in the file of the open block, which is written from memory."""
    patch.setattr(BlockFiles, "_overwrite_in_memory", lambda files, patches: None)


def removals_that_an_index_knows_alone_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A block loses its index when a record in it is overwritten, though a power loss took the tombstones of
    what the index omits."""
    patch.setattr(BlockFiles, "adopt", lambda files, number, indexed: files._writer.adopt(number))


def torn_messages_of_batches_skipped_alone(patch: pytest.MonkeyPatch) -> None:
    """Recovery skips a message of an atomic batch that a power loss tore, and keeps the others."""

    class Log(StreamLog):
        def restore(self, blocks: list[MessageBlock]) -> list[tuple[int, str]]:
            for block in blocks:
                block.torn_batches.clear()
            return super().restore(blocks)

    patch.setattr(recovery, "StreamLog", Log)


RECOVERY_BUGS: list[tuple[Callable[[pytest.MonkeyPatch], None], str, int]] = [
    (first_messages_of_other_filters, "delivered", 93000392),
    (tail_cut_in_two_steps, "no resurrection", 421),
    (removals_before_what_they_rest_on, "prefix", 194),
    (index_of_a_file_with_a_hole_given_up, "acked means kept", 96011370),
    (room_made_up_to_an_empty_file, "sequence", 98322241),
    (room_made_in_any_order, "no resurrection", 96006911),
    (rewrite_forgotten_while_written, "IndexError", 98001302),
    (finished_roll_ups_recorded_no_more, "idempotent recovery", 98072463),
    (limits_before_earlier_removals, "acked means kept", 98091137),
    (failed_sync_believed_when_repeated, "acked means kept", 2013),
    (sync_of_a_job_believed_after_a_failed_one, "sequence", 99137015),
    (failed_sync_of_a_journal_believed_when_repeated, "acks stay", 94008380),
    (torn_overwriting_left, "erased", 98325493),
    (erasures_before_their_tombstones, "sequence", 98900694),
    (files_left_open_whose_write_failed, "StoreCorruptError", 99030694),
    (erased_messages_kept_in_memory, "erased", 1796054003804),
    (removals_that_an_index_knows_alone_forgotten, "no resurrection", 1796053253134),
    (torn_messages_of_batches_skipped_alone, "atomic", 99052396),
    (damaged_head_stops_the_reader, "StoreCorruptError", 98015210),
]
