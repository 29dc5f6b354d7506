"""A follower: a second instance of a stream that applies the first one's commands and releases no effects.

The commands travel encoded. `compare` requires that both instances have the same state: everything that
decides what later commands do, and what a reader of the stream sees. Effects (acks, republished messages) are
compared too where both were collected by the same commands: a new leader must be able to release them.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from penstock.errors import JetStreamApiError
from penstock.jetstream.commands import decode
from penstock.jetstream.consumer.consumer_replica import ConsumerReplica
from penstock.jetstream.consumer.standby import StandbyConsumers
from penstock.jetstream.stream.stream_recovery import recover
from penstock.jetstream.stream.stream_replica import StreamReplica
from penstock.kernels.consumer.ack_state import AckState
from penstock.kernels.ingest.ingest import recover_ids
from penstock.kernels.ingest.publish_headers import MessageIds
from penstock.kernels.log.stream_log import StreamLog
from penstock.kernels.wire.sinks import DirtyList
from penstock.protocol import headers
from penstock.protocol.api import encode
from penstock.store.memory import MemoryStreamStore
from penstock.testing.sim import Violation


class FollowingReplica:
    """The instance that follows `leader`, which must not have applied a command yet.

    A stream that has messages was recovered from them at `now` (ns). commands: those that wait to be applied.
    """

    def __init__(self, leader: StreamReplica, now: int) -> None:
        self.commands: list[bytes] = []
        self._leader = leader
        self.standby = StandbyConsumers()
        self.stream = StreamReplica(
            leader.config,
            MemoryStreamStore({}, leader.name, b"", storage=leader.config.storage.value),
            created=leader.created,
            domain=leader.domain,
            api_level=leader.api_level,
            dirty=DirtyList(),
            standby=self.standby,
        )
        self._copy(now)

    def _copy(self, now: int) -> None:
        """Starts from the messages of the leader; the rest of its state follows from them."""
        log, target = self._leader.log, self.stream.log
        for seq, ts, subject, header, payload in messages_of(self._leader):
            if seq > target.last_seq + 1:
                target.skip_to(seq - 1, ts)
            target.append(subject, header, payload, ts)
        if log.last_seq > target.last_seq:
            target.skip_to(log.last_seq, log.last_ts)
        deque(recover(self.stream, now), maxlen=0)
        self._copy_remembered()
        for one, same in zip(self._leader.sources.states, self.stream.sources.states, strict=True):
            same.place(one.seq, one.ident)
        self.stream.retain_messages(self._leader.retains_all)
        for name, consumer in self._leader.consumers.items():
            assert not consumer.state.has_changes, f"consumer {name} changed before the first command"
            self._set_consumer(name, encode(consumer.meta))
            self.standby.by_name[name].state.restore(consumer.state.snapshot())

    def _copy_remembered(self) -> None:
        """Takes ids and times of messages that the leader recovered, and removed because they were acked."""
        leader, stream = self._leader, self.stream
        messages = StreamLog()
        for msg_id, seq, ts in leader.ids.items():
            messages.skip_to(seq - 1, ts)
            messages.append(b"s", headers.build([(headers.MSG_ID, msg_id.decode())]), b"", ts)
        ids = stream.ids = MessageIds(leader.ids.window_ns)
        recover_ids(messages, ids, 1, messages.messages)  # as from the log: an id may be there twice
        ids.note_last(leader.ids.last_id)
        stream.expiry.ttls.is_used = leader.expiry.ttls.is_used
        stream.expiry.ttls._queue = sorted(leader.expiry.ttls._queue)
        stream.expiry.ttls._never = set(leader.expiry.ttls._never)
        for subject, (due, seq) in leader.schedules._due.items():
            stream.schedules.add(subject, seq, due)

    def _set_consumer(self, name: str, meta: bytes) -> None:
        filters = self.standby.set_consumer(name, meta)
        if self.stream.interest_state is not None:
            self.stream.interest_state.expect(name, filters)

    def catch_up(self) -> None:
        """Applies the commands that wait, and drops their effects."""
        stream = self.stream
        waiting, self.commands = self.commands, []
        for data in waiting:
            command, now = decode(data)
            try:
                stream.apply(command, now)
            except JetStreamApiError:
                continue  # a refusal is the command's result
            except (KeyError, ValueError) as error:  # of a consumer's journal
                raise Violation("replicas are equal", f"{command!r} of {stream.name}: {error!r}") from error
        stream.effects.drop()

    def compare(self) -> None:
        """Raises Violation when the states differ."""
        self.catch_up()
        self._compare_consumers()
        expected, found = state_of(self._leader), state_of(self.stream)
        for name, value in expected.items():
            if found[name] != value:
                raise Violation(
                    "replicas are equal",
                    f"{name} of {self._leader.name}: {value!r} there, {found[name]!r} here",
                )

    def _compare_consumers(self) -> None:
        leader, standby = self._leader, self.standby.by_name
        expected = {
            name: (one.meta, acks_of(one.state), *pin_of(one))
            for name, one in leader.consumers.items()
            if not one.state.has_changes and not one.closed
        }
        found = {
            name: (one.meta, acks_of(one.state), *one.pin)
            for name, one in standby.items()
            if name in expected
        }
        left = standby.keys() - leader.consumers.keys() - leader.offline.keys()
        if expected != found or left:
            raise Violation(
                "replicas are equal",
                f"consumers of {leader.name}: {expected!r} there, {found!r} here, and {left} are left over",
            )


def acks_of(state: AckState) -> tuple[Any, ...]:
    """What a consumer delivered, and what is acked."""
    delivered, floor = state.delivered_stream, state.ack_floor_stream
    consumer = state.delivered_consumer, state.ack_floor_consumer
    resets = state.resets, state.since, state.start_seq
    return delivered, floor, consumer, resets, state.pending(), state.given_up(), state.num_redelivered


def pin_of(consumer: ConsumerReplica) -> tuple[str, int]:
    """The pinned client and the time of its pin."""
    pinning = consumer.delivery.pinning
    return pinning.pin.decode(), pinning.pinned_at


def state_of(stream: StreamReplica) -> dict[str, Any]:
    """The state of a stream as plain values, by what they are."""
    log = stream.log
    return {
        "now": stream.now,
        "config": stream.config,
        "sequences": (log.first_seq, log.last_seq, log.first_ts, log.last_ts),
        "counts": (log.messages, log.bytes, log.num_subjects, log.num_deleted),
        "deleted": log.deleted(),
        "messages": messages_of(stream),
        "ids": (stream.ids.window_ns, stream.ids.last_id, stream.ids.items()),
        "prepared ids": {number: ids.items() for number, ids in stream.next_ids.items()},
        "admitted": (stream.refuse_all, stream.bytes_end),
        "staged": [
            (batch.id, batch.seq, batch.heard_ns, batch.messages()) for batch in stream.atomic.staged.all()
        ],
        "batch limits": stream.batch_limits,
        "staged until": stream.atomic.staged.check_at,
        "fast": fast_of(stream),
        "fast until": stream.fast.next_deadline(),
        "schedules": dict(sorted(stream.schedules._due.items())),
        "expiry": ttls_of(stream),
        "roll-ups": (
            [*stream.rollups.unfinished],
            stream.rollups.is_limited,
            stream.rollups.left,
            stream.rollups.progress,
        ),
        "rest": stream.rest.encode() if stream.rest is not None else None,
        "behind": stream.timers.is_behind,
        "retains_all": stream.retains_all,
        "sources": [(one.index_name, one.ident, one.seq) for one in stream.sources.states],
    }


def messages_of(stream: StreamReplica) -> list[tuple[int, int, bytes, bytes, bytes]]:
    """Every live message; one that is damaged on disk is missing."""
    log = stream.log
    found = []
    seq = log.next_seq(0)
    while seq:
        one = log.load(seq)
        if one is not None:
            found.append((one.seq, one.ts, one.subject, one.header, one.payload))
        seq = log.next_seq(seq + 1)
    return found


def fast_of(stream: StreamReplica) -> list[tuple[Any, ...]]:
    """The open fast batches, and those that ended recently."""
    return [
        (one.id, one.flow, one.gap_ok, one.seq, one.stream_seq, one.acked, one.msgs, one.heard_ns, one.final)
        for one in stream.fast.batches.all()
    ]


def ttls_of(stream: StreamReplica) -> tuple[Any, ...]:
    """The times at which messages expire."""
    ttls = stream.expiry.ttls
    return (
        sorted(ttls._never | ttls._unswept_never),
        sorted([*ttls._queue, *ttls._unswept]),
        len(ttls._unswept),
        len(ttls._unswept_never),
    )
