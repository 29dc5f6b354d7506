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


def note_holes(world: Simulator) -> None:
    """Records a power failure: the next recovery may find lost messages while it reads."""
    for known in world.streams.values():
        known.may_have_holes |= may_leave_holes(world)


def may_leave_holes(world: Simulator) -> bool:
    """Whether a power failure can lose a part of a block whose index it keeps."""
    return not world.always or world.lazy


def judge(world: Simulator, in_flight: set[tuple[str, str]], *, power: bool) -> None:
    """Checks the last recovery. in_flight: requests that the crash left without a response."""
    engine = world.engine
    world.damaged |= world.flipped
    if engine.offline and not world.damaged:
        raise Violation("recovers", f"offline: {engine.offline}")
    for name in list(world.streams):
        record = world.streams[name]
        if name not in engine.streams:
            gone = record.memory or name in world.indeterminate or ("delete", name) in in_flight
            gone = gone or (power and not record.is_promised)
            if not gone and not world.damaged:
                raise Violation("acked means kept", f"stream {name} is gone")
            world.forget(name)
    for name, stream in engine.streams.items():
        known = world.streams.get(name)
        is_new = known is None
        if known is None:
            # A removal without a response may have failed on the disk.
            made = bool({("create", name), ("delete", name)} & in_flight)
            made = made or name in world.indeterminate or world.damaged
            require(made, "no resurrection", f"stream {name} was deleted and is back")
            world.streams[name] = known = world.new_record(stream)
            known.damaged, known.is_promised = world.damaged, False
            known.adopt(stream, world.opened[name])
        elif world.damaged:
            known.damaged = True
            known.adopt(stream, world.opened[name])
        else:
            if ("update", name) in in_flight or name in world.half_updated:
                known.limits_changed = True
            known.config = stream.config  # recovery enforces what an update left, with or without a response
            known.rolling = stream.rolling  # schedules were due at the start
            if known.config.retention is not RetentionPolicy.LIMITS:
                note_settled(world, known, in_flight)
            there = known.read(stream.log, 1)
            if known.copies is not None:
                known.copies.note_rollups(there)
            world.batches.judge(known, there, world.now, power=power)
            opened = world.opened[name]
            known.judge(stream, world.now, opened=opened, power=power, always=world.always)
        for one in known.features:
            one.recovered(world.now, power=power or is_new, damaged=world.damaged)
        if power:
            known.survived_power_loss(world.opened[name])
            known.may_have_holes |= may_leave_holes(world)
    world.batches.crashed(damaged=world.damaged)
    _judge_consumers(world, in_flight, power=power)
    found = engine.streams.get(LETTERS)
    lossy = (power and not world.always) or world.flipped
    world.dead_letters.crashed(found, world.streams, world.consumers, lossy=lossy)
    world.indeterminate.clear()
    world.half_updated.clear()
    world.removals.crashed()
    world.flipped = False


def _judge_consumers(world: Simulator, in_flight: set[tuple[str, str]], *, power: bool) -> None:
    for key, known in list(world.consumers.items()):
        stream = world.engine.streams.get(key[0])
        consumer = stream.consumers.get(key[1]) if stream is not None else None
        if consumer is None:
            excused = known.may_vanish or power or world.damaged or known.config.get("mem_storage")
            excused = excused or ("delete", key[0]) in in_flight
            if not excused and key not in in_flight:
                raise Violation("acked means kept", f"consumer {key} is gone")
            lasting = not (known.may_vanish or known.config.get("mem_storage") or world.damaged)
            lasting = lasting and key not in in_flight and ("delete", key[0]) not in in_flight
            if power and world.always and known.confirmed and lasting and _is_kept(world, key[0]):
                raise Violation("acks stay", f"consumer {key} is gone with its confirmed acks")
            del world.consumers[key]
        elif world.damaged:
            world.configure(known)
            known.settled.clear()
            known.confirmed.clear()
            known.floor = known.kept_floor = 0
            known.note_restored(consumer, world.streams[key[0]])
            known.adopt(consumer)
        elif consumer.created != known.created:
            require(key in in_flight or power, "no resurrection", f"consumer {key} is another one")
            del world.consumers[key]
        else:
            world.configure(known)  # a request whose response was lost may have changed it
            known.judge(consumer, world.streams[key[0]], power=power, always=world.always)
    _meet_consumers(
        world, strict=not power and not in_flight and not world.indeterminate and not world.damaged
    )
    world.bind_all()


def _is_kept(world: Simulator, stream: str) -> bool:
    record = world.streams.get(stream)
    return record is not None and not record.memory


def _meet_consumers(world: Simulator, *, strict: bool) -> None:
    """Adopts existing consumers that were not known."""
    for name, stream in world.engine.streams.items():
        for consumer in stream.consumers.values():
            if (name, consumer.name) not in world.consumers and not consumer.is_driven:
                world.removals.came_back(world, consumer, strict=strict)


def dump(world: Simulator) -> Any:
    """Everything that a recovery found."""
    found: dict[str, Any] = {}
    for name, stream in sorted(world.engine.streams.items()):
        consumers = {
            consumer.name: (
                consumer.state.delivered_consumer, consumer.state.delivered_stream,
                consumer.state.ack_floor_consumer, consumer.state.ack_floor_stream,
                sorted(consumer.state.pending()), consumer.store.meta,
            )
            for consumer in stream.consumers.values()
        }  # fmt: skip
        state = stream.state(deleted=True)
        known = world.streams.get(name)
        may_be_lost = world.flipped or world.damaged or known is None or known.may_have_holes
        messages = read_log(
            stream.log, 1, memory=stream.config.storage.value == "memory", damaged=may_be_lost
        )
        source_states = [(one.index_name, one.seq, one.ident) for one in stream.source_states]
        found[name] = (stream.store.meta, state, messages, consumers, source_states)
    return found
