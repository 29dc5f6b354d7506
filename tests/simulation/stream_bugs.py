"""Bugs planted on purpose in what streams and consumers keep; see bugs.py."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.jetstream.consumer.ack_handler import AckHandler
from penstock.jetstream.consumer.consumer_replica import ConsumerReplica
from penstock.jetstream.consumer.dead_letters import DeadLetters
from penstock.jetstream.consumer.state import Recorder
from penstock.jetstream.engine_tick import EngineTick
from penstock.jetstream.pending_work import PendingWork
from penstock.jetstream.stream import publish_checks as ingest
from penstock.jetstream.stream import stream_recovery
from penstock.jetstream.stream import stream_replica as stream
from penstock.jetstream.stream.stream_timers import StreamTimers
from penstock.kernels.ingest import ingest as ingest_kernel
from penstock.kernels.ingest.publish_headers import MessageIds
from penstock.kernels.log import records
from penstock.kernels.log.message_block import MessageBlock
from penstock.kernels.log.stream_log import StreamLog
from penstock.protocol import headers
from penstock.protocol.api import ApiConsumerConfig
from penstock.store import block_jobs, files, recovery
from penstock.store.block_syncs import BlockSyncs
from penstock.store.block_writing import BlockWriter
from penstock.store.disk import Disk
from penstock.store.envelope import is_enveloped
from penstock.store.file import FileStore
from penstock.store.journal import FileConsumerStore
from tests.simulation.bugs import KIND_FLOOR, half_a_batch_in_recovery

KIND_MESSAGE, KIND_REMOVED = 0, 1


def index_of_unwritten_removals(patch: pytest.MonkeyPatch) -> None:
    """The index of a closed block is taken when the background gets to it, whatever was removed meanwhile."""
    live: dict[tuple[Path, int], MessageBlock] = {}
    finalize, write_index = block_jobs.BlockJobs._finalize_block, block_jobs.write_index

    def remembered(to: block_jobs.BlockJobs, block: MessageBlock) -> None:
        live[to._directory, block.number] = block
        finalize(to, block)

    def late(to: files.OpenFiles, directory: Path, number: int, index: bytearray, **options: Any) -> None:
        block = live.get((directory, number))
        is_there = block is not None and block.closed and block.resident
        write_index(to, directory, number, block.export_index() if block and is_there else index, **options)

    patch.setattr(block_jobs.BlockJobs, "_finalize_block", remembered)
    patch.setattr(block_jobs, "write_index", late)


def removals_before_what_they_rest_on(patch: pytest.MonkeyPatch) -> None:
    """Blocks are written back to front: notes of removals before what replaces the removed."""

    def backwards(to: BlockWriter, *, in_order: bool = False) -> None:
        for block in reversed(to._log.unwritten()):
            to._write_block(block)

    patch.setattr(BlockWriter, "write_new", backwards)


def half_a_batch_in_the_second_recovery(patch: pytest.MonkeyPatch) -> None:
    """A start that directly follows another one takes what is there of an atomic batch."""
    whole = recovery.map_file
    with patch.context() as inner:
        half_a_batch_in_recovery(inner)
        half = recovery.map_file
    has_run = True
    apply, begin = EngineTick.apply, FileStore.__init__

    def ticked(tick: EngineTick, now: int) -> None:
        nonlocal has_run
        has_run = True
        apply(tick, now)

    def started(store: FileStore, *args: Any, **options: Any) -> None:
        nonlocal has_run
        is_second, has_run = not has_run, False
        patch.setattr(recovery, "map_file", half if is_second else whole)
        begin(store, *args, **options)

    patch.setattr(EngineTick, "apply", ticked)
    patch.setattr(FileStore, "__init__", started)


def ack_of_a_lost_delivery_dropped(patch: pytest.MonkeyPatch) -> None:
    """An ack is confirmed and dropped when power loss took back the delivery that it answers."""
    settle = AckHandler._settle

    def strict(acks: AckHandler, stream_seq: int, consumer_seq: int) -> int:
        known = consumer_seq <= acks._state.delivered_consumer
        return settle(acks, stream_seq, consumer_seq) if known else 0

    patch.setattr(AckHandler, "_settle", strict)


def state_gone_before_the_removals(patch: pytest.MonkeyPatch) -> None:
    """A consumer ends before its stream has written which messages its acks removed."""
    patch.setattr(PendingWork, "write_removals", lambda pending, stream: None)


def _records_in(data: bytes | memoryview) -> Iterator[tuple[int, int, int, int, int]]:
    """Offset, size, kind, sequence and time of each record of a block."""
    at = 0
    while at + 20 <= len(data):
        length, tagged, ts = struct.unpack_from("<IQq", data, at)
        size = length & 0x7FFFFFFF
        yield at, size, tagged >> 48, tagged & (1 << 48) - 1, ts
        at += max(size, 1)


def number_of_a_removed_message_used_again(patch: pytest.MonkeyPatch) -> None:
    """Recovery goes on behind the last message, though notes say that later ones were removed."""
    map_file = recovery.map_file

    def without_numbers(disk: Disk, path: Path) -> memoryview:
        data = bytearray(map_file(disk, path))
        names = [name for name in disk.names(path.parent) if name.endswith(".blk")]
        files = [map_file(disk, path.parent / name) for name in names]
        if any(is_enveloped(one) for one in files):
            return memoryview(bytes(data))  # its messages can not be read here
        found = [one for file in files for one in _records_in(file)]
        last = max((seq for _, _, kind, seq, _ in found if kind == KIND_MESSAGE), default=0)
        for at, size, kind, seq, upto in _records_in(bytes(data)):
            if kind == KIND_REMOVED and seq > last and 30 <= size <= len(data) - at:
                data[at : at + size] = records.encode(0, 0, b"", b"", bytes(size - 30), KIND_FLOOR)
            elif kind == KIND_FLOOR and seq <= last < upto and size == 38 <= len(data) - at:
                data[at : at + size] = records.encode(
                    seq, last, b"", b"", bytes(data[at + 22 : at + 30]), kind
                )
        return memoryview(bytes(data))

    patch.setattr(recovery, "map_file", without_numbers)


def write_not_in_order(patch: pytest.MonkeyPatch) -> None:
    """The files of one write are synced in any order."""
    write_new = BlockWriter.write_new
    patch.setattr(BlockWriter, "write_new", lambda to, **_: write_new(to))


def work_overtakes_the_sync(patch: pytest.MonkeyPatch) -> None:
    """Blocks are rewritten, indexed and removed before what replaced their messages is on the disk."""
    patch.setattr(BlockSyncs, "paths_after", lambda *_: [])


def marker_past_the_limit(patch: pytest.MonkeyPatch) -> None:
    """A marker is stored though a stream that discards new messages has no room for it."""
    leave_marker = StreamTimers._leave_marker

    def unchecked(to: StreamTimers, subject: bytes) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(ingest, "check_room", lambda *_: None)
            leave_marker(to, subject)

    patch.setattr(StreamTimers, "_leave_marker", unchecked)


def repeated_ack_confirmed_unsynced(patch: pytest.MonkeyPatch) -> None:
    """An ack that repeats one is confirmed at once, though what the first one wrote is not synced."""
    write = Recorder.write

    def unsynced(recorder: Recorder, *, sync: bool = False) -> None:
        before = recorder._store.journal_bytes
        write(recorder)
        if sync and recorder._store.journal_bytes != before:
            recorder._store.sync()

    patch.setattr(Recorder, "write", unsynced)


def message_ids_forgotten_in_a_crash(patch: pytest.MonkeyPatch) -> None:
    """Recovery does not look for message ids."""
    patch.setattr(stream_recovery, "recover_ids", lambda *_: iter(()))


def ids_found_past_their_window(patch: pytest.MonkeyPatch) -> None:
    """Message ids count ten times as long as the stream's window."""
    patch.setattr(stream, "MessageIds", lambda window_ns: MessageIds(10 * window_ns))


def recovered_ids_of_the_next_message(patch: pytest.MonkeyPatch) -> None:
    """Recovery gives the id of a message to the one that follows it."""

    def shifted(ids: MessageIds, log: StreamLog, now: int) -> Iterator[int]:
        for seq, ts, value in ingest_kernel.scan_headers(log, headers.MSG_ID.encode(), 0, 1 << 30)[0]:
            if ts > now - ids.window_ns:
                ids.add(value, seq + 1, ts)
        return iter(())

    patch.setattr(stream_recovery, "recover_ids", shifted)


def pending_dropped_by_an_update(patch: pytest.MonkeyPatch) -> None:
    """An update of a consumer gives up what came as often as it allows, not waiting for the acks."""
    update = ConsumerReplica.update

    def hasty(consumer: ConsumerReplica, config: ApiConsumerConfig, now: int) -> None:
        update(consumer, config, now)
        for seq, _, _, times in consumer.state.pending():
            if 0 < consumer.config.max_deliver <= times + 1:
                consumer.state.drop(seq)

    patch.setattr(ConsumerReplica, "update", hasty)


def forgotten_deliveries_come_back(patch: pytest.MonkeyPatch) -> None:
    """That a consumer was ahead of its stream, which power loss took messages from, is not synced."""
    reconcile = Recorder._reconcile

    def unsynced(recorder: Recorder, *args: int) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(FileConsumerStore, "sync", lambda store: None)
            reconcile(recorder, *args)

    patch.setattr(Recorder, "_reconcile", unsynced)


def dead_letters_kept_by_a_reset(patch: pytest.MonkeyPatch) -> None:
    """The pub ack of a dead letter settles its message, which a reset has delivered again."""
    patch.setattr(DeadLetters, "start_over", lambda letters, seq: None)


STREAM_BUGS: list[tuple[Callable[[pytest.MonkeyPatch], None], str, int]] = [
    (index_of_unwritten_removals, "acked means kept", 7000659),
    (removals_before_what_they_rest_on, "acked means kept", 7001237),
    (half_a_batch_in_the_second_recovery, "atomic", 61),
    (state_gone_before_the_removals, "idempotent recovery", 30002706),
    (repeated_ack_confirmed_unsynced, "acks stay", 30011826),
    (forgotten_deliveries_come_back, "delivered", 91004618),
    (ack_of_a_lost_delivery_dropped, "acks stay", 7001436),
    (number_of_a_removed_message_used_again, "sequence", 20),
    (write_not_in_order, "shown means kept", 20014071),
    (work_overtakes_the_sync, "sequence", 94000171),
    (marker_past_the_limit, "limits", 20006861),
    (message_ids_forgotten_in_a_crash, "no duplicate", 1),
    (ids_found_past_their_window, "duplicates", 30),
    (recovered_ids_of_the_next_message, "duplicates", 1),
    (pending_dropped_by_an_update, "until acked", 42),
    (dead_letters_kept_by_a_reset, "until acked", 99085878),
]
