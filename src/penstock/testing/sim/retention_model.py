"""Which messages interest and work-queue retention may remove: those that all consumers, or one, have acked.

A mirror or source has acked what it has written; its consumer in the origin names it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.jetstream.consumer.consumer_config import filters_of
from penstock.jetstream.consumer.consumer_replica import ConsumerReplica
from penstock.protocol.api import RetentionPolicy
from penstock.protocol.subjects import matches
from penstock.testing.sim import Violation
from penstock.testing.sim.source_model import TARGETS
from penstock.testing.sim.stream_checks import Held, StreamRecord

if TYPE_CHECKING:
    from penstock.jetstream.stream.source_state import SourceState
    from penstock.testing.sim.copy_checks import Copies
    from penstock.testing.sim.simulator import Simulator


def note_settled(sim: Simulator, record: StreamRecord, in_flight: set[tuple[str, str]]) -> None:
    """Records which messages retention may remove now. Those acked at the end of the last tick may be
    removed, even where a request deletes the consumer that acked them."""
    if any(stream == record.name for stream, _ in in_flight):
        record.settled = set(record.live)  # its consumers change in this tick
    else:
        record.settled = record.settled_before | _settled(sim, record)


def _settled(sim: Simulator, record: StreamRecord) -> set[int]:
    present = sim.engine.streams[record.name].consumers
    known = [one for key, one in sim.consumers.items() if key[0] == record.name and key[1] in present]
    driven = [one for one in present.values() if one.is_driven]
    if record.config.retention is RetentionPolicy.WORKQUEUE:
        return {
            seq for seq, held in record.live.items()
            if any(one.may_let_go(held) for one in known)
            or any(_has_kept(sim, one, held, unwanted=False) for one in driven)
        }  # fmt: skip
    return {
        seq for seq, held in record.live.items()
        if all(one.is_done_with(held) for one in known)
        and all(_has_kept(sim, one, held, unwanted=True) for one in driven)
    }  # fmt: skip


def note_kept(sim: Simulator, *, is_over: bool) -> None:
    """Records which messages may be copied, which copies were made, and which messages those ack, as far as
    durable.

    is_over: a tick ended; of what was acked before, only what is already removed counts. Else the next one
    started, with requests that were processed before it, or background work completed in it: acked messages
    may still be removed.
    """
    sim.origins.follow(sim)
    for name in TARGETS:
        record, stream = sim.streams.get(name), sim.engine.streams.get(name)
        if record is None or stream is None or record.copies is None:
            continue
        if stream.durability.failure is None and not (sim.always and stream.durability.is_syncing):
            record.copies.lasts()
    for name, record in sim.streams.items():
        if name in sim.engine.streams and record.config.retention is not RetentionPolicy.LIMITS:
            log, before = sim.engine.streams[name].log, record.settled | record.settled_before
            if is_over:
                before = {seq for seq in before if log.next_seq(seq) != seq}
            record.settled_before = before | _settled(sim, record)


def check_driven(sim: Simulator) -> None:
    """Checks that every consumer of a mirror or source has its target. Where a damaged disk left the target
    offline, the origin retains what it has yet to take."""
    for stream in sim.engine.streams.values():
        for consumer in stream.consumers.values():
            if not consumer.is_driven or _target_of(consumer) in sim.engine.offline:
                continue
            if _inflow_of(sim, consumer) is None:
                raise Violation("orphans", f"{stream.name} > {consumer.name} has no target")


def _has_kept(sim: Simulator, consumer: ConsumerReplica, held: Held, *, unwanted: bool) -> bool:
    """Whether the target of a consumer has written a copy. unwanted: the result for a message that it does
    not take."""
    found = _inflow_of(sim, consumer)
    if found is None:
        if _target_of(consumer) not in sim.engine.offline:
            return False
        # An offline target, whose removal failed for example, has written what its consumer acked before.
        filters = filters_of(consumer.config)
        if filters and not any(matches(one, held.subject) for one in filters):
            return unwanted
        return held.seq <= consumer.state.ack_floor_stream
    copies, source_state = found
    if held.seq < consumer.meta.start_seq:
        # Messages before its start stay, unless a power failure lost them: their sequences then are new
        # messages.
        return unwanted or copies.holds(held)
    return copies.has_kept(source_state, held) if copies.may_take(source_state, held) else unwanted


def _inflow_of(sim: Simulator, consumer: ConsumerReplica) -> tuple[Copies, SourceState] | None:
    name = _target_of(consumer)
    record, stream = sim.streams.get(name), sim.engine.streams.get(name)
    if record is None or record.copies is None or stream is None:
        return None
    for source_state in stream.sources.states:
        filters = [one.decode() for one in source_state.filters]
        if source_state.source.name == consumer.stream.name and filters == filters_of(consumer.config):
            return record.copies, source_state
    return None


def _target_of(consumer: ConsumerReplica) -> str:
    """The stream that a consumer of its origin reads for."""
    metadata = consumer.config.metadata or {}
    return metadata.get("_nats.mirror.stream") or metadata.get("_nats.src.stream") or ""
