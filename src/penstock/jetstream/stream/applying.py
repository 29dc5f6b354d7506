"""What each command but a batch of publishes does to a stream: the table behind StreamReplica.apply().

Checks that refuse a request run here, when the command is applied, so that two requests in flight take effect
in the order of the commands; what they raise is the command's result, the same on every replica.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.jetstream import commands
from penstock.jetstream.stream.dedupe import first_in_window, note_last
from penstock.kernels.ingest import ingest
from penstock.kernels.ingest.publish_headers import MessageIds
from penstock.kernels.ingest.storing import SettledRuns
from penstock.protocol import error_codes as codes

if TYPE_CHECKING:
    from penstock.jetstream.stream.stream_replica import StreamReplica


def resume(stream: StreamReplica, command: commands.Resume, now: int) -> None:
    """Stores what is left of a batch."""
    stream.store_rest(now)


def admit(stream: StreamReplica, command: commands.Admit, now: int) -> None:
    """Changes what the account admits."""
    stream.limit_admission(command.refuse_all, command.bytes_end)


def expire(stream: StreamReplica, command: commands.Expire, now: int) -> int:
    """Does what is due; returns the work done."""
    return stream.timers.run(now, command.work)


def delete_message(stream: StreamReplica, command: commands.DeleteMessage, now: int) -> None:
    """Removes one message. Raises JetStreamApiError 10109, 10057, 10043."""
    check_delete(stream)
    if not stream.log.remove(command.seq, command.erase):
        raise codes.SEQUENCE_NOT_FOUND.exception(seq=command.seq)


def check_delete(stream: StreamReplica) -> None:
    """Raises JetStreamApiError 10109 when sealed, 10057 when deleting is denied."""
    if stream.config.sealed:
        raise codes.STREAM_SEALED.exception()
    if stream.config.deny_delete:
        raise codes.STREAM_MSG_DELETE_FAILED.exception(err="message delete not permitted")


def purge(stream: StreamReplica, command: commands.Purge, now: int) -> int:
    """Removes all messages below a sequence; returns how many. Raises JetStreamApiError 10109, 10110."""
    stream.check_purge()
    return stream.log.purge(None, command.upto_seq)


def purge_slice(stream: StreamReplica, command: commands.PurgeSlice, now: int) -> tuple[int, int]:
    """Returns how many messages it removed, and where to continue (0: nowhere).

    Raises JetStreamApiError 10109, 10110.
    """
    stream.check_purge()
    return stream.log.purge_part(command.filter, command.seq, command.end_seq, command.looks, command.most)


def update(stream: StreamReplica, command: commands.Update, now: int) -> None:
    """Changes the configuration."""
    positions = {name: (seq, ident) for name, seq, ident in command.positions}
    stream.configure(command.config, now, positions, stream.next_ids.pop(command.ids, None))


def recover_ids(stream: StreamReplica, command: commands.RecoverIds, now: int) -> tuple[int, int]:
    """Returns the number of the ids, and the sequence at which to continue; 0: they are complete."""
    number = command.number
    if not number:
        number = max(stream.next_ids, default=0) + 1
        ids = stream.next_ids[number] = MessageIds(command.window_ns)
        seq = first_in_window(ids, stream.log, now)
    elif number not in stream.next_ids or not command.seq:
        stream.next_ids.pop(number, None)
        return number, 0
    else:
        ids = stream.next_ids[number]
        seq = ingest.recover_ids(stream.log, ids, command.seq, command.looks)
    if not seq:
        note_last(ids, stream.log)
    return number, seq


def enforce_limits(stream: StreamReplica, command: commands.EnforceLimits, now: int) -> tuple[int, int]:
    """Returns the work done, and the place at which to continue (0: nowhere)."""
    return stream.enforce_limits(command.at, command.work)


def limit_batches(stream: StreamReplica, command: commands.LimitBatches, now: int) -> None:
    """Changes the limits of open batches."""
    stream.limit_batches(command)


def limit_rollups(stream: StreamReplica, command: commands.LimitRollups, now: int) -> None:
    """Changes what roll-ups may remove at once."""
    stream.rollups.limit(command.messages)


def roll_up(stream: StreamReplica, command: commands.RollUp, now: int) -> int:
    """Continues an unfinished roll-up; returns the work done."""
    return stream.rollups.run_slice(command.looks, command.work)


def move_source(stream: StreamReplica, command: commands.MoveSource, now: int) -> None:
    """Sets the position in an origin. A source that an update removed meanwhile has none."""
    for one in stream.sources.states:
        if one.index_name == command.source:
            one.place(command.seq, command.ident)


def copies(stream: StreamReplica, command: commands.StoreCopies, now: int) -> None:
    """Stores copies."""
    for one in stream.sources.states:
        if one.index_name == command.source:
            one.store(command.batch, now)


def remove_settled(stream: StreamReplica, runs: SettledRuns, now: int) -> int:
    """Removes messages that no consumer needs any more; returns how many."""
    return runs.remove_from(stream.log)


def retain_messages(stream: StreamReplica, command: commands.RetainMessages, now: int) -> None:
    """Begins or ends the storing of every message."""
    stream.retain_messages(command.retained)


def set_consumer(stream: StreamReplica, command: commands.SetConsumer, now: int) -> None:
    """Creates or changes a standby state. The owner's consumers have changed already, here and below."""
    if stream.standby is not None:
        filters = stream.standby.set_consumer(command.name, command.meta)
        if stream.interest_state is not None:
            stream.interest_state.expect(command.name, filters)


def drop_consumer(stream: StreamReplica, command: commands.DropConsumer, now: int) -> None:
    """Removes a standby state."""
    if stream.standby is not None:
        stream.standby.drop_consumer(command.name)
        if stream.interest_state is not None:
            stream.interest_state.forget(command.name)


def pin_consumer(stream: StreamReplica, command: commands.PinConsumer, now: int) -> int:
    """Begins or ends the pin of a standby state; returns since when (ns) it counts."""
    if stream.standby is not None:
        stream.standby.pin_consumer(command.name, command.pin, now)
    return now


def progress_consumer(stream: StreamReplica, command: commands.ProgressConsumer, now: int) -> None:
    """Advances a standby state."""
    if stream.standby is not None:
        stream.standby.progress_consumer(command.name, command.entry)


def check_state(stream: StreamReplica, command: commands.CheckState, now: int) -> None:
    """Changes nothing: its replica compares the hash."""


APPLIERS: dict[type[Any], Callable[[StreamReplica, Any, int], Any]] = {
    commands.Resume: resume,
    commands.Admit: admit,
    commands.Expire: expire,
    commands.DeleteMessage: delete_message,
    commands.Purge: purge,
    commands.PurgeSlice: purge_slice,
    commands.Update: update,
    commands.RecoverIds: recover_ids,
    commands.EnforceLimits: enforce_limits,
    commands.LimitBatches: limit_batches,
    commands.LimitRollups: limit_rollups,
    commands.RollUp: roll_up,
    commands.MoveSource: move_source,
    commands.StoreCopies: copies,
    commands.RetainMessages: retain_messages,
    SettledRuns: remove_settled,
    commands.SetConsumer: set_consumer,
    commands.DropConsumer: drop_consumer,
    commands.PinConsumer: pin_consumer,
    commands.ProgressConsumer: progress_consumer,
    commands.CheckState: check_state,
}
