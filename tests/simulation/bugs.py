"""Bugs planted on purpose, by patching the product while a test runs: the simulation must find each, by the
checker whose business it is.

PLANTED says which rule that is, and a seed that found it: to be tried first, for what seeds do changes with
every new thing they do."""

from __future__ import annotations

import contextlib
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import StoreError
from penstock.jetstream.consumer.consumer_replica import ConsumerReplica
from penstock.jetstream.consumer.dead_letters import DeadLetters
from penstock.jetstream.consumer_registry import ConsumerRegistry
from penstock.jetstream.containment import Containment
from penstock.jetstream.durability import Durability
from penstock.jetstream.engine_tick import EngineTick
from penstock.jetstream.stream import counter
from penstock.jetstream.stream import stream_replica as stream
from penstock.jetstream.stream.fast_batches import FastIngestBatches
from penstock.jetstream.stream.message_schedules import MessageSchedules, ScheduledMessage
from penstock.jetstream.stream.rollups import Rollups
from penstock.jetstream.stream.stream_replica import StreamReplica
from penstock.jetstream.stream.stream_timers import StreamTimers
from penstock.jetstream.stream.subject_transforms import make_mapper
from penstock.kernels.log import records
from penstock.kernels.log.stream_log import StoredRecord, StreamLog
from penstock.kernels.wire.dispatch import SubjectMapper
from penstock.protocol import headers
from penstock.protocol.api import SubjectTransform
from penstock.protocol.transforms import Below
from penstock.store import recovery
from penstock.store.blocks import BlockFiles
from penstock.store.disk import Disk
from penstock.store.envelope import AppendedFile

KIND_FLOOR, KIND_BATCH = 2, 4  # of notes in a block


def ack_before_write(patch: pytest.MonkeyPatch) -> None:
    """Pub acks leave before what they promise is with the operating system."""
    write = EngineTick.write

    def early(tick: EngineTick) -> None:
        tick.acknowledge()
        write(tick)

    patch.setattr(EngineTick, "write", early)
    patch.setattr(Durability, "may_acknowledge", True)


class WithoutNotes:
    """A log that does not tell its store which messages are gone."""

    def __init__(self, log: StreamLog) -> None:
        self.log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self.log, name)

    def flush_tombstones(self) -> bool:
        return False

    def take_patches(self) -> list[tuple[int, int, bytes]]:
        self.log.take_patches()
        return []


def lost_tombstone(patch: pytest.MonkeyPatch) -> None:
    """Every other time, the notes that messages were removed are not written in the tick of their removal."""
    write = BlockFiles.write
    writes = iter(range(1 << 60))

    def forgetful(files: BlockFiles) -> None:
        log = files._log
        if next(writes) % 2:
            files._log = WithoutNotes(log)  # type: ignore[assignment]
        try:
            write(files)
        finally:
            files._log = log

    patch.setattr(BlockFiles, "write", forgetful)


def off_by_one_in_recovery(patch: pytest.MonkeyPatch) -> None:
    """Recovery reads all but the last byte of a block."""
    map_file = recovery.map_file

    def short(disk: Disk, path: Path) -> memoryview:
        return map_file(disk, path)[:-1]

    patch.setattr(recovery, "map_file", short)


def half_a_batch_in_recovery(patch: pytest.MonkeyPatch) -> None:
    """Recovery takes what is there of an atomic batch: the notes in front of batches mean nothing."""
    map_file = recovery.map_file

    def without_batch_notes(disk: Disk, path: Path) -> memoryview:
        data = bytearray(map_file(disk, path))
        nothing = records.encode(0, 0, b"", b"", bytes(8), KIND_FLOOR)
        at = 0
        while at + 12 <= len(data):
            size, tagged = struct.unpack_from("<IQ", data, at)
            if tagged >> 48 == KIND_BATCH and len(data) - at >= len(nothing):
                data[at : at + len(nothing)] = nothing
            at += max(size & 0x7FFFFFFF, 1)
        return memoryview(bytes(data))

    patch.setattr(recovery, "map_file", without_batch_notes)


def stored_past_a_gap(patch: pytest.MonkeyPatch) -> None:
    """A fast batch with gap mode `fail` tells of a gap, and goes on."""

    def in_order(fast: FastIngestBatches, batch: Any, reply: bytes, seq: int) -> bool:
        if seq != batch.seq + 1:
            fast._say_gap(reply, batch.seq, seq)
        return bool(seq > batch.seq)

    patch.setattr(FastIngestBatches, "_in_order", in_order)


def each_message_behind_the_end_answered(patch: pytest.MonkeyPatch) -> None:
    """What comes behind the end of a fast batch is refused message by message."""
    refuse_behind = FastIngestBatches._refuse_behind

    def each(fast: FastIngestBatches, batch: Any, reply: bytes) -> None:
        batch.refuse(False)
        refuse_behind(fast, batch, reply)

    patch.setattr(FastIngestBatches, "_refuse_behind", each)


def letter_stored_twice(patch: pytest.MonkeyPatch) -> None:
    """After a crash a dead letter is published without looking whether it was stored before."""
    patch.setattr(DeadLetters, "_drop_stored", lambda letters, now: letters._indeterminate.clear() or 0)


class EachTime(dict[int, int]):
    """Letters by sequence, each of them twice."""

    def items(self) -> Any:
        return [pair for pair in super().items() for _ in range(2)]


def letter_settled_each_time(patch: pytest.MonkeyPatch) -> None:
    """A dead letter that a restart finds stored settles its message twice."""
    stored_in = DeadLetters._stored_in

    def each_time(
        letters: DeadLetters, to: StreamReplica, subject: bytes, ids: dict[bytes, int]
    ) -> dict[int, int]:
        return EachTime(stored_in(letters, to, subject, ids))

    patch.setattr(DeadLetters, "_stored_in", each_time)


def key_never_busy(patch: pytest.MonkeyPatch) -> None:
    """A consumer's keys do not wait for one another."""
    patch.setattr("penstock.jetstream.consumer.consumer_config.key_token", lambda config: 0)


def transform_kept_past_an_update(patch: pytest.MonkeyPatch) -> None:
    """A stream goes on with its first subject transform when an update brings another one."""
    made: dict[str, SubjectMapper | None] = {}

    def first(config: SubjectTransform | None, below: Below) -> SubjectMapper | None:
        name = config.src.partition(".")[0] if config is not None else ""
        return made.setdefault(name, make_mapper(config, below))

    patch.setattr(stream, "make_mapper", first)


def _to_each_changed(tick: EngineTick, send: Callable[[StreamReplica], None]) -> None:
    with tick.routing:
        for changed in tick._changed.values():
            send(changed)


def republished_before_the_write(patch: pytest.MonkeyPatch) -> None:
    """What is stored goes out again at once."""
    write = EngineTick.write

    def early(tick: EngineTick) -> None:
        _to_each_changed(tick, lambda changed: changed.republisher.route(tick._index))
        write(tick)

    patch.setattr(EngineTick, "write", early)


def not_republished_after_a_failed_write(patch: pytest.MonkeyPatch) -> None:
    """What could not be written does not go out again when it is written at last."""
    write_failed = StreamReplica.write_failed

    def forgetful(stream: StreamReplica, reason: str) -> None:
        write_failed(stream, reason)
        stream.republisher.clear()

    patch.setattr(StreamReplica, "write_failed", forgetful)


def acked_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    """With `sync: always`, pub acks do not wait for the sync in flight."""
    acknowledge = EngineTick.acknowledge

    def early(tick: EngineTick) -> None:
        _to_each_changed(tick, lambda changed: changed.effects.release(tick._index))
        acknowledge(tick)

    patch.setattr(EngineTick, "acknowledge", early)
    patch.setattr(Durability, "may_acknowledge", True)


def frame_begun_again(patch: pytest.MonkeyPatch) -> None:
    """An encrypted frame that the disk took a part of is written another time behind that."""
    append = AppendedFile.append

    def again(file: AppendedFile, data: memoryview | bytes) -> int:
        if file._covers:
            file._covers, file._pending = 0, b""
        return append(file, data)

    patch.setattr(AppendedFile, "append", again)


def counted_from_what_was_written(patch: pytest.MonkeyPatch) -> None:
    """Of the increments of a subject in one tick, each adds to the sum that the tick began with."""
    last_of = counter.last_of

    def written(to: StreamReplica, subject: bytes) -> counter.LastCounter | None:
        found = to.log.load_last(subject)
        return last_of(to, subject) if found is None or found.seq <= to.durability.durable_seq else None

    patch.setattr(counter, "last_of", written)


def deleted_schedule_happens(patch: pytest.MonkeyPatch) -> None:
    """A schedule that was removed happens all the same."""
    add, seen = MessageSchedules.add, dict[tuple[bytes, int], StoredRecord | None]()

    def remembered(schedules: MessageSchedules, subject: bytes, seq: int, due: int) -> None:
        seen[subject, seq] = seen.get((subject, seq)) or schedules._log.load(seq)
        add(schedules, subject, seq, due)

    patch.setattr(MessageSchedules, "add", remembered)
    patch.setattr(MessageSchedules, "_alive", lambda schedules, subject, seq: seen.get((subject, seq)))


def schedules_forgotten_in_a_crash(patch: pytest.MonkeyPatch) -> None:
    """Recovery does not look for schedules."""
    patch.setattr(MessageSchedules, "recover", lambda schedules: iter(()))


def schedule_happens_once(patch: pytest.MonkeyPatch) -> None:
    """A schedule that repeats happens for the first time only."""
    take_due = MessageSchedules.take_due

    def once(schedules: MessageSchedules, now: int, most: int) -> list[ScheduledMessage]:
        produced = take_due(schedules, now, most)
        for one in produced:
            schedules._due.pop(one.scheduler, None)
        return produced

    patch.setattr(MessageSchedules, "take_due", once)


def batch_taken_by_a_full_disk(patch: pytest.MonkeyPatch) -> None:
    """Messages of atomic batches are taken while every publish is refused."""
    apply_one = StreamReplica._apply_one

    def taken(to: StreamReplica, subject: bytes, reply: bytes, header: bytes, *rest: Any) -> None:
        refusal = to.refuse_all
        if headers.value_of(header, headers.BATCH_ID):
            to.refuse_all = None
        apply_one(to, subject, reply, header, *rest)
        to.refuse_all = refusal

    patch.setattr(StreamReplica, "_apply_one", taken)


def consumer_removed_without_a_sync(patch: pytest.MonkeyPatch) -> None:
    """With `sync: always`, the answer that a consumer is gone does not wait for the disk."""
    delete = ConsumerRegistry.delete

    def unsynced(consumers: ConsumerRegistry, consumer: ConsumerReplica, *, sync: bool) -> None:
        delete(consumers, consumer, sync=False)

    patch.setattr(ConsumerRegistry, "delete", unsynced)


def refused_removal_of_a_consumer_confirmed(patch: pytest.MonkeyPatch) -> None:
    """A request gets the answer that a consumer is gone also when the disk refused to remove its files."""
    delete = ConsumerRegistry.delete

    def deaf(consumers: ConsumerRegistry, consumer: ConsumerReplica, *, sync: bool) -> None:
        with contextlib.suppress(StoreError):
            delete(consumers, consumer, sync=sync)

    patch.setattr(ConsumerRegistry, "delete", deaf)


def refused_removal_of_a_stream_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A stream whose files the disk refused to remove is gone, and its files block the next one."""

    def forget(containment: Containment, stream: StreamReplica, why: str) -> None:
        containment.take_out(stream)
        stream.store._undeleted_streams.discard(stream.name)  # type: ignore[attr-defined]

    patch.setattr(Containment, "set_aside", forget)


def due_schedules_freed_on_a_full_disk(patch: pytest.MonkeyPatch) -> None:
    """A full disk gets room by blocks of schedules whose messages are not written."""
    store_scheduled = StreamTimers._store_scheduled

    def freed(to: Rollups, filter_subject: bytes, seq: int, end_seq: int, looks: int) -> tuple[int, int]:
        return to._stream.log.purge_part(filter_subject, seq, end_seq, looks, sys.maxsize)

    def unsaid(to: StreamTimers, produced: ScheduledMessage, ts: int) -> None:
        to._stream.log.end_storing()
        try:
            store_scheduled(to, produced, ts)
        finally:
            to._stream.log.begin_storing()

    patch.setattr(StreamTimers, "_store_scheduled", unsaid)
    patch.setattr(Rollups, "_remove", freed)


PLANTED: list[tuple[Callable[[pytest.MonkeyPatch], None], str, int]] = [
    (ack_before_write, "acked means kept", 10),
    (lost_tombstone, "no resurrection", 3),
    (off_by_one_in_recovery, "acked means kept", 1),
    (half_a_batch_in_recovery, "atomic", 5),
    (stored_past_a_gap, "past a gap", 3),
    (each_message_behind_the_end_answered, "fast", 14),
    (letter_stored_twice, "dead letters", 7),
    (letter_settled_each_time, "KeyError", 7),
    (key_never_busy, "one a key", 2),
    (transform_kept_past_an_update, "subjects", 14),
    (republished_before_the_write, "republish", 1),
    (not_republished_after_a_failed_write, "republish", 80001201),
    (counted_from_what_was_written, "sum", 2),
    (deleted_schedule_happens, "schedules", 9),
    (schedules_forgotten_in_a_crash, "schedules", 61),
    (acked_before_the_sync, "acked means kept", 76),
    (frame_begun_again, "acked means kept", 64),
    (schedule_happens_once, "schedules", 15),
    (consumer_removed_without_a_sync, "no resurrection", 14),
    (refused_removal_of_a_consumer_confirmed, "no resurrection", 3),
    (refused_removal_of_a_stream_forgotten, "answers", 80008686),
    (batch_taken_by_a_full_disk, "atomic", 8),
    (due_schedules_freed_on_a_full_disk, "schedules", 88),
]
