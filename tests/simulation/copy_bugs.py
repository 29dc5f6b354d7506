"""Bugs of mirrors and sources, planted on purpose like those of bugs.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.jetstream import source_consumer, sourcing
from penstock.jetstream.consumer.consumer_replica import ConsumerReplica
from penstock.jetstream.durability import Durability
from penstock.jetstream.engine_tick import EngineTick
from penstock.jetstream.stream.source_positions import SourcePositions
from penstock.jetstream.stream.source_state import SourceState
from penstock.jetstream.stream.stream_replica import StreamReplica
from penstock.kernels.ingest.copying import settle_upto
from penstock.kernels.log.stream_log import StreamLog
from penstock.store.journal import FileConsumerStore


def _read_on_from(off: int, patch: pytest.MonkeyPatch) -> None:
    resume_at = SourceState.resume_at

    def shifted(source_state: SourceState, seq: int, ident: str) -> None:
        resume_at(source_state, max(seq + off, 1), ident)

    patch.setattr(SourceState, "resume_at", shifted)


def source_one_too_early(patch: pytest.MonkeyPatch) -> None:
    """After a restart a source is read on from the message that was taken last."""
    _read_on_from(-1, patch)


def source_one_too_late(patch: pytest.MonkeyPatch) -> None:
    """After a restart a source is read on from the second message that was not taken."""
    _read_on_from(1, patch)


def source_two_too_late(patch: pytest.MonkeyPatch) -> None:
    """The same, two messages further on."""
    _read_on_from(2, patch)


def positions_not_noted(patch: pytest.MonkeyPatch) -> None:
    """How far a stream got with its sources is what its messages say, as long as they are there."""
    patch.setattr(SourcePositions, "note", lambda positions, source_states, log: None)


def void_notes_come_back(patch: pytest.MonkeyPatch) -> None:
    """That power loss made a note of a source's position void is not synced."""
    read = SourcePositions._read

    def unsynced(positions: SourcePositions, log: StreamLog) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(FileConsumerStore, "sync", lambda store: None)
            read(positions, log)

    patch.setattr(SourcePositions, "_read", unsynced)


def mirrored_before_the_write(patch: pytest.MonkeyPatch) -> None:
    """Mirrors and sources take what their origins applied in the same tick, before it is written."""
    apply = EngineTick.apply

    def ahead(tick: EngineTick, now: int) -> None:
        apply(tick, now)
        tick._parts.sourcing.advance(list(tick._changed), now)
        apply(tick, now)

    patch.setattr(EngineTick, "apply", ahead)
    patch.setattr(Durability, "is_durable", True)


def copied_when_another_sync_ends(patch: pytest.MonkeyPatch) -> None:
    """When a sync ends, origins are read that applied publishes for a request and did not write them."""
    patch.setattr(Durability, "is_durable", Durability.may_deliver)


def origin_let_go_before_the_write(patch: pytest.MonkeyPatch) -> None:
    """An origin that keeps what is needed lets go what its readers have read, before that is written."""
    read = sourcing.LocalReader.read

    def settled(reader: sourcing.LocalReader, now: int, enough: int) -> int:
        size = read(reader, now, enough)
        consumer: ConsumerReplica | None = reader._consumer
        if consumer is not None and not consumer.closed and reader._looked > consumer.state.delivered_stream:
            settle_upto(consumer.state, consumer.stream.log, reader.source_state.filters, reader._looked, now)
            consumer._ports.activate(consumer)
        return size

    patch.setattr(sourcing.LocalReader, "read", settled)


def consumer_outlives_its_stream(patch: pytest.MonkeyPatch) -> None:
    """A restart leaves the consumers of streams that are gone."""
    patch.setattr(source_consumer, "retire_orphans", lambda ports: None)


def unwritten_is_mirrored(patch: pytest.MonkeyPatch) -> None:
    """An origin is read though its last write failed."""
    is_durable = Durability.is_durable.fget
    patch.setattr(Durability, "is_durable", property(lambda one: one.failure is not None or is_durable(one)))


def consumers_not_set_back(patch: pytest.MonkeyPatch) -> None:
    """After a power failure the consumer of a source stays ahead of what its stream still has."""
    patch.setattr(source_consumer, "set_back", lambda ports: None)


def removed_sources_not_noted(patch: pytest.MonkeyPatch) -> None:
    """How far a source got in the tick of the update that removes it is not noted."""
    patch.setattr(SourcePositions, "leave", lambda positions, source_states: None)


def work_queue_held_by_the_gone(patch: pytest.MonkeyPatch) -> None:
    """A work queue keeps what the consumer of a lost source held back, until the next restart."""
    is_to_be_reviewed = StreamReplica.is_to_be_reviewed
    patch.setattr(
        StreamReplica, "is_to_be_reviewed", lambda stream, **_: is_to_be_reviewed(stream, held_back=False)
    )


def consumer_forgotten_before_it_is_used(patch: pytest.MonkeyPatch) -> None:
    """A stream that is deleted before it read anything leaves its consumer in the origin."""

    def stop(reader: sourcing.LocalReader, *, for_good: bool) -> None:
        consumer, reader._consumer = reader._consumer, None
        if consumer is not None and for_good and not consumer.closed:
            reader._ports.consumers.retire(consumer)

    patch.setattr(sourcing.LocalReader, "stop", stop)


COPY_BUGS: list[tuple[Callable[[pytest.MonkeyPatch], None], str, int]] = [
    (source_one_too_early, "exactly once", 3),
    (source_one_too_late, "gap", 62),
    (source_two_too_late, "gap", 62),
    (positions_not_noted, "exactly once", 53),
    (void_notes_come_back, "exactly once", 20006690),
    (removed_sources_not_noted, "exactly once", 30010722),
    (consumers_not_set_back, "kept", 1796014976448),
    (work_queue_held_by_the_gone, "idempotent recovery", 30011653),
    (mirrored_before_the_write, "ahead", 1),
    (copied_when_another_sync_ends, "ahead", 20001814),
    (origin_let_go_before_the_write, "kept", 24),
    (consumer_outlives_its_stream, "orphans", 124),
    (consumer_forgotten_before_it_is_used, "orphans", 98601400),
    (unwritten_is_mirrored, "ahead", 43),
]
