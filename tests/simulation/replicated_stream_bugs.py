"""Bugs planted in replicated streams, each with a seed of the simulation that finds it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import msgspec
import pytest

from penstock.errors import JetStreamApiError, StoreError
from penstock.jetstream import containment, replicated_stream
from penstock.jetstream.consumer.late_sending import LateSending
from penstock.jetstream.consumer.standby import StandbyConsumer
from penstock.jetstream.consumer_registry import ConsumerRegistry
from penstock.jetstream.group_commands import GroupCommands
from penstock.jetstream.replicated_stream import ReplicatedStream
from penstock.jetstream.stream import replica_state
from penstock.jetstream.stream.atomic_batches import AtomicBatches
from penstock.jetstream.stream.effects import StreamEffects
from penstock.jetstream.stream.source_state import SourceState
from penstock.jetstream.stream.stream_replica import StreamReplica
from penstock.kernels.log.records import StreamedHash
from penstock.kernels.log.state_chunks import StateReader

Plant = Callable[[pytest.MonkeyPatch], None]


def confirms_acks_before_their_commit(patch: pytest.MonkeyPatch) -> None:
    """An ack is confirmed when its record is proposed."""
    when_committed = GroupCommands.when_committed

    def wrong(self: GroupCommands, call: Callable[[], object]) -> None:
        if isinstance(call, partial) and call.func.__name__ == "_committed":
            call()
        else:
            when_committed(self, call)

    patch.setattr(GroupCommands, "when_committed", wrong)


def answers_reads_without_asking_a_majority(patch: pytest.MonkeyPatch) -> None:
    """A leader that was deposed answers from what it has."""
    patch.setattr(GroupCommands, "when_confirmed", GroupCommands.when_committed)


def releases_effects_on_followers(patch: pytest.MonkeyPatch) -> None:
    """Followers send pub acks, too."""
    patch.setattr(StreamEffects, "drop", lambda self: None)


def forgets_what_consumers_delivered(patch: pytest.MonkeyPatch) -> None:
    """A new leader's consumers begin at their start."""
    take_over = ConsumerRegistry.take_over

    def wrong(self: ConsumerRegistry, stream: StreamReplica, standby: StandbyConsumer, now: int) -> Any:
        return take_over(self, stream, StandbyConsumer(standby.meta), now)

    patch.setattr(ConsumerRegistry, "take_over", wrong)


def records_no_progress_of_consumers(patch: pytest.MonkeyPatch) -> None:
    """What consumers deliver and what is acked stays on the leader."""
    patch.setattr(StreamReplica, "is_recorded", property(lambda self: False))


def keeps_consumers_when_it_steps_down(patch: pytest.MonkeyPatch) -> None:
    """A leader that leads again goes on with the consumers that it had before."""
    step_down = ReplicatedStream._step_down

    def wrong(self: ReplicatedStream) -> None:
        kept = dict(self.stream.consumers)
        self.stream.consumers.clear()
        step_down(self)
        self.stream.consumers.update(kept)

    patch.setattr(ReplicatedStream, "_step_down", wrong)


def leaves_ids_out_of_checkpoints(patch: pytest.MonkeyPatch) -> None:
    """A replica that is restored knows no message ids."""
    begin = replica_state._begin_state

    def wrong(*args: Any) -> replica_state.ReplicaState:
        return msgspec.structs.replace(begin(*args), ids_from=1 << 48)

    patch.setattr(replica_state, "_begin_state", wrong)


def leaves_open_batches_out_of_checkpoints(patch: pytest.MonkeyPatch) -> None:
    """A replica that is restored has no open atomic batches."""
    patch.setattr(AtomicBatches, "restore", lambda self, batches, check_at, bytes_max: None)


def leaves_a_message_out_of_chunks(patch: pytest.MonkeyPatch) -> None:
    """A chunk lacks its last message."""
    read_chunk = replica_state._read_chunk
    head = struct.Struct("<QqHII")

    def wrong(reader: StateReader, count: int) -> Generator[int, None, tuple[bytes, list[bytes]]]:
        name, parts = yield from read_chunk(reader, count)
        chunk = b"".join(parts)
        if not chunk:
            return name, parts
        at = last = 0
        while at < len(chunk):
            last = at
            at += head.size + sum(head.unpack_from(chunk, at)[2:])
        chunk = chunk[:last] or chunk
        checksum = StreamedHash()
        checksum.update(chunk)
        return name[:-8] + checksum.digest().to_bytes(8, "big"), [chunk]

    patch.setattr(replica_state, "_read_chunk", wrong)


def drops_what_the_group_does_not_take(patch: pytest.MonkeyPatch) -> None:
    """An entry that is refused because too much is not committed is forgotten."""
    flush = GroupCommands.flush

    def wrong(self: GroupCommands) -> bool:
        if not flush(self):
            self._drop_buffered()
        return True

    patch.setattr(GroupCommands, "flush", wrong)


def skips_large_entries_on_followers(patch: pytest.MonkeyPatch) -> None:
    """A follower does not apply entries of more than two commands."""
    apply = ReplicatedStream._apply

    def wrong(self: ReplicatedStream, index: int, entry: bytes, flight: Any) -> None:
        commands = list(replicated_stream.split(entry))
        if not self.is_serving and len(commands) > 2:
            return
        apply(self, index, entry, flight)

    patch.setattr(ReplicatedStream, "_apply", wrong)


def sets_the_stream_aside_when_the_leadership_ends(patch: pytest.MonkeyPatch) -> None:
    """A purge that loses its leader in the middle counts as an unexpected failure of the stream."""
    patch.setattr(containment, "FORESEEN", (JetStreamApiError, StoreError))


def delivers_without_acks_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    """A consumer without acks delivers at once."""
    patch.setattr(LateSending, "_wait", lambda self, release, *, is_late: release())


def forgets_late_deliveries_when_it_steps_down(patch: pytest.MonkeyPatch) -> None:
    """What a leader proposed, and what is committed when it leads no more, is never delivered."""
    patch.setattr(GroupCommands, "resolve", lambda self, *, is_own: [])


def reads_origins_from_the_start_after_a_change_of_leaders(patch: pytest.MonkeyPatch) -> None:
    """A new leader of a stream with a source begins behind nothing."""
    begin_leading = SourceState.begin_leading

    def wrong(self: SourceState) -> None:
        begin_leading(self)
        self._seq = 0

    patch.setattr(SourceState, "begin_leading", wrong)


def _replace_in_checkpoints(
    patch: pytest.MonkeyPatch, wrong: Callable[[replica_state.ReplicaState], dict[str, Any]]
) -> None:
    """Manifests have other values in the fields that wrong(manifest) names."""
    begin_state = replica_state._begin_state

    def begin(*args: Any) -> replica_state.ReplicaState:
        state = begin_state(*args)
        return msgspec.structs.replace(state, **wrong(state))

    patch.setattr(replica_state, "_begin_state", begin)


def leaves_positions_of_sources_out_of_checkpoints(patch: pytest.MonkeyPatch) -> None:
    """A restored replica does not know what it has of its origins."""
    _replace_in_checkpoints(patch, lambda state: {"sources": []})


def leaves_times_to_live_out_of_checkpoints(patch: pytest.MonkeyPatch) -> None:
    """A restored replica knows of no message that expires before others."""
    _replace_in_checkpoints(patch, lambda state: {"ttls": (state.ttls[0], [], [], [], [])})


def leaves_schedules_out_of_checkpoints(patch: pytest.MonkeyPatch) -> None:
    """A restored replica has the messages of schedules, and makes nothing of them."""
    _replace_in_checkpoints(patch, lambda state: {"schedules": []})


def looks_up_deadlines_while_an_expire_counts_as_in_flight(patch: pytest.MonkeyPatch) -> None:
    """After an Expire the timers of the stream stop until the next publish or ack."""
    proceed = ReplicatedStream._continue
    expired: list[GroupCommands] = []
    patch.setattr(GroupCommands, "_expired", expired.append)

    def wrong(self: ReplicatedStream) -> None:
        proceed(self)
        if self.commands in expired:
            expired.remove(self.commands)
            self.commands._is_expiring = False

    patch.setattr(ReplicatedStream, "_continue", wrong)


REPLICATED_STREAM_BUGS: tuple[tuple[Plant, int], ...] = (
    (confirms_acks_before_their_commit, 1),
    (answers_reads_without_asking_a_majority, 6),
    (releases_effects_on_followers, 1),
    (forgets_what_consumers_delivered, 1),
    (records_no_progress_of_consumers, 2),
    (keeps_consumers_when_it_steps_down, 1),
    (leaves_ids_out_of_checkpoints, 1),
    (leaves_open_batches_out_of_checkpoints, 1),
    (leaves_a_message_out_of_chunks, 1),
    (drops_what_the_group_does_not_take, 14),
    (skips_large_entries_on_followers, 1),
    (delivers_without_acks_before_the_commit, 2),
    (forgets_late_deliveries_when_it_steps_down, 1017),
    (reads_origins_from_the_start_after_a_change_of_leaders, 5),
    (leaves_positions_of_sources_out_of_checkpoints, 4),
    (sets_the_stream_aside_when_the_leadership_ends, 1795451021428),
    (leaves_times_to_live_out_of_checkpoints, 1),
    (leaves_schedules_out_of_checkpoints, 1),
    (looks_up_deadlines_while_an_expire_counts_as_in_flight, 1),
)
"""Each bug with the seed that is tried first."""
