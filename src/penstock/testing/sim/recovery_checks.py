"""Compares what a recovery found with what must have survived the crash, per stream and consumer, and adopts
it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.protocol.api import RetentionPolicy
from penstock.testing.sim import Violation, require
from penstock.testing.sim.dead_letter_checks import LETTERS
from penstock.testing.sim.retention_model import note_settled
from penstock.testing.sim.stream_checks import read_log

if TYPE_CHECKING:
    from penstock.testing.sim.simulator import Simulator


def note_holes(sim: Simulator) -> None:
    """Records a power failure: the next recovery may find lost messages while it reads."""
    for known in sim.streams.values():
        known.may_have_holes |= may_leave_holes(sim)


def may_leave_holes(sim: Simulator) -> bool:
    """Whether a power failure can lose a part of a block whose index it keeps."""
    return not sim.always or sim.lazy


def check_recovery(sim: Simulator, in_flight: set[tuple[str, str]], *, power: bool) -> None:
    """Checks the last recovery. in_flight: requests that the crash left without a response."""
    engine = sim.engine
    sim.damaged |= sim.flipped
    if engine.offline and not sim.damaged:
        raise Violation("recovers", f"offline: {engine.offline}")
    for name in list(sim.streams):
        record = sim.streams[name]
        if name not in engine.streams:
            gone = record.memory or name in sim.indeterminate or ("delete", name) in in_flight
            gone = gone or (power and not record.is_promised)
            if not gone and not sim.damaged:
                raise Violation("acked means kept", f"stream {name} is gone")
            sim.forget(name)
    for name, stream in engine.streams.items():
        known = sim.streams.get(name)
        is_new = known is None
        if known is None:
            # A removal without a response may have failed on the disk.
            made = bool({("create", name), ("delete", name)} & in_flight)
            made = made or name in sim.indeterminate or sim.damaged
            require(made, "no resurrection", f"stream {name} was deleted and is back")
            sim.streams[name] = known = sim.new_record(stream)
            known.damaged, known.is_promised = sim.damaged, False
            known.rolling = stream.durability.is_rolling_up
            known.adopt(stream, sim.opened[name])
            if known.copies is not None:
                known.copies.came_back()
        elif sim.damaged:
            known.damaged = True
            known.rolling = stream.durability.is_rolling_up
            known.adopt(stream, sim.opened[name])
        else:
            if ("update", name) in in_flight or name in sim.half_updated:
                known.limits_changed = True
            known.config = stream.config  # recovery enforces what an update left, with or without a response
            known.rolling = stream.durability.is_rolling_up  # schedules were due at the start
            if known.config.retention is not RetentionPolicy.LIMITS:
                note_settled(sim, known, in_flight)
            there = known.read(stream.log, 1)
            if known.copies is not None:
                known.copies.note_rollups(there)
            sim.batches.check_recovery(known, there, sim.now, power=power)
            opened = sim.opened[name]
            known.check_recovery(stream, sim.now, opened=opened, power=power, always=sim.always)
        for one in known.features:
            one.recovered(sim.now, power=power or is_new, damaged=sim.damaged)
        if power:
            known.survived_power_loss(sim.opened[name])
            known.may_have_holes |= may_leave_holes(sim)
    sim.batches.crashed(damaged=sim.damaged)
    _check_consumers(sim, in_flight, power=power)
    found = engine.streams.get(LETTERS)
    lossy = (power and not sim.always) or sim.flipped
    sim.dead_letters.crashed(found, sim.streams, sim.consumers, lossy=lossy)
    sim.indeterminate.clear()
    sim.half_updated.clear()
    sim.removals.crashed()
    sim.flipped = False


def _check_consumers(sim: Simulator, in_flight: set[tuple[str, str]], *, power: bool) -> None:
    for key, known in list(sim.consumers.items()):
        stream = sim.engine.streams.get(key[0])
        consumer = stream.consumers.get(key[1]) if stream is not None else None
        if consumer is None:
            excused = known.may_vanish or power or sim.damaged or known.config.get("mem_storage")
            excused = excused or ("delete", key[0]) in in_flight
            if not excused and key not in in_flight:
                raise Violation("acked means kept", f"consumer {key} is gone")
            lasting = not (known.may_vanish or known.config.get("mem_storage") or sim.damaged)
            lasting = lasting and key not in in_flight and ("delete", key[0]) not in in_flight
            if power and sim.always and known.confirmed and lasting and _is_kept(sim, key[0]):
                raise Violation("acks stay", f"consumer {key} is gone with its confirmed acks")
            del sim.consumers[key]
        elif sim.damaged:
            sim.configure(known)
            known.settled.clear()
            known.confirmed.clear()
            known.floor = known.written_floor = known.durable_floor = 0
            known.note_restored(consumer, sim.streams[key[0]])
            known.adopt(consumer)
        elif consumer.created != known.created:
            require(key in in_flight or power, "no resurrection", f"consumer {key} is another one")
            del sim.consumers[key]
        elif known.is_resetting:
            # It may have started over, or not.
            if not power:
                known.check_resets(consumer)
            sim.dead_letters.started_over(known)
            again = sim.removals.meet_again(sim, consumer)
            again.is_resetting = True
            again.came |= known.came  # and may have been acked: they are not parked
        else:
            if not power:
                known.check_resets(consumer)
            sim.configure(known)  # a request whose response was lost may have changed it
            known.check_recovery(consumer, sim.streams[key[0]], power=power, always=sim.always)
    _meet_consumers(sim, strict=not power and not in_flight and not sim.indeterminate and not sim.damaged)
    sim.bind_all()


def _is_kept(sim: Simulator, stream: str) -> bool:
    record = sim.streams.get(stream)
    return record is not None and not record.memory


def _meet_consumers(sim: Simulator, *, strict: bool) -> None:
    """Adopts existing consumers that were not known."""
    for name, stream in sim.engine.streams.items():
        for consumer in stream.consumers.values():
            if (name, consumer.name) not in sim.consumers and not consumer.is_driven:
                sim.removals.came_back(sim, consumer, strict=strict)


def dump(sim: Simulator) -> Any:
    """Everything that a recovery found."""
    found: dict[str, Any] = {}
    for name, stream in sorted(sim.engine.streams.items()):
        consumers = {
            consumer.name: (
                consumer.state.delivered_consumer, consumer.state.delivered_stream,
                consumer.state.ack_floor_consumer, consumer.state.ack_floor_stream,
                sorted(consumer.state.pending()), consumer.store.meta,
            )
            for consumer in stream.consumers.values()
        }  # fmt: skip
        state = stream.state(deleted=True)
        known = sim.streams.get(name)
        may_be_lost = sim.flipped or sim.damaged or known is None or known.may_have_holes
        messages = read_log(
            stream.log, 1, memory=stream.config.storage.value == "memory", damaged=may_be_lost
        )
        source_states = [(one.index_name, one.seq, one.ident) for one in stream.sources.states]
        found[name] = (stream.store.meta, state, messages, consumers, source_states)
    return found
