"""The state machine of the meta group: applies the commands of its log.

`apply` depends on the state, the command, its index and its time alone. A command is checked as a whole
before anything changes, so that one that is refused leaves the state as it was. Changes of many streams are
made one stream at a time, up to the `work` of the command; then an effect asks the meta leader for the next
command.

An unexpected exception refuses the one command, on all servers alike: they all come to the same place in the
same way. Running out of memory or stack differs between servers and is not contained.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection
from typing import Any

from msgspec import structs

from penstock import faults
from penstock.errors import JetStreamApiError
from penstock.jetstream.meta import consumer_assigning as of_consumers
from penstock.jetstream.meta import meta_commands as commands
from penstock.jetstream.meta import peer_assigning as of_peers
from penstock.jetstream.meta import stream_assigning as of_streams
from penstock.jetstream.meta.meta_commands import MetaCommand, decode_command
from penstock.jetstream.meta.meta_effects import Answered, MetaEffect, Refused, WorkLeft
from penstock.jetstream.meta.meta_tables import MetaTables, StreamKey
from penstock.protocol import error_codes as codes
from penstock.protocol.api import ApiError

_HANDLERS: dict[type[Any], Callable[[MetaTables, Any], of_streams.Outcome]] = {
    commands.FoundCluster: of_peers.found_cluster,
    commands.SetPeer: of_peers.set_peer,
    commands.ObservePeers: of_peers.observe_peers,
    commands.CreateStream: of_streams.create_stream,
    commands.AdoptStream: of_streams.adopt_stream,
    commands.UpdateStream: of_streams.update_stream,
    commands.MoveStream: of_streams.move_stream,
    commands.CancelMove: of_streams.cancel_move,
    commands.DeleteStream: of_streams.delete_stream,
    commands.ChoosePeers: of_streams.choose_peers,
    commands.SettleMembers: of_streams.settle_members,
    commands.RemoveFromStream: of_streams.remove_from_stream,
    commands.CreateConsumer: of_consumers.create_consumer,
    commands.DeleteConsumer: of_consumers.delete_consumer,
    commands.PauseConsumer: of_consumers.pause_consumer,
    commands.RemoveServer: of_peers.remove_server,
    commands.EvacuateServer: of_peers.evacuate_server,
    commands.PeerGone: of_peers.peer_gone,
    commands.ConfirmRemoved: of_peers.confirm_removed,
}


class MetaMachine:
    """The meta group's state on one server. `tables` is for reading."""

    def __init__(self, tables: MetaTables | None = None) -> None:
        self.tables = tables if tables is not None else MetaTables()

    def apply_entry(self, data: bytes, index: int) -> list[MetaEffect]:
        """Applies an entry of the log. Raises MalformedCommandError, and changes nothing then: an entry of a
        newer version must not be skipped."""
        command, now = decode_command(data)
        return self.apply(command, index, now)

    def apply(self, command: MetaCommand, index: int, now: int) -> list[MetaEffect]:
        """Applies a command at its index in the log and its time (ns); returns its effects in order. One
        that is applied already does nothing."""
        if index <= self.tables.applied:
            return []
        self.tables.begin(index, now)
        try:
            match command:
                case commands.Reassign() | commands.Heal():
                    return self._in_slices(command)
                case commands.PurgeAccount():
                    return self._purge(command)
            changes, effects = _HANDLERS[type(command)](self.tables, command)
        except JetStreamApiError as error:
            return _refusal(command, ApiError.from_exception(error))
        except (MemoryError, RecursionError):
            raise
        except Exception as error:  # noqa: BLE001  # costs this command, and nothing else
            text = faults.describe(faults.note(f"meta command {type(command).__name__}", error))
            return _refusal(command, codes.STREAM_GENERAL.format(err=text))
        self.tables.commit(changes)
        return effects

    def snapshot(self) -> bytes:
        """The encoded state: equal on all servers at the same index."""
        return self.tables.encode()

    @classmethod
    def restore(cls, data: bytes) -> MetaMachine:
        """The machine with the state of a snapshot. Raises MalformedCommandError."""
        return cls(MetaTables.decode(data))

    def _in_slices(self, command: commands.Reassign | commands.Heal) -> list[MetaEffect]:
        keys: Collection[StreamKey]
        if isinstance(command, commands.Heal):
            keys = self.tables.short
        else:
            keys = of_peers.keys_to_reassign(self.tables)
        after = command.after
        chosen = heapq.nsmallest(command.work, (key for key in keys if after is None or key > after))
        effects: list[MetaEffect] = []
        for key in chosen:
            if isinstance(command, commands.Heal):
                outcome = of_peers.heal_one(self.tables, key, command)
            else:
                outcome = of_peers.reassign_one(self.tables, key, command)
            if outcome is not None:
                self.tables.commit(outcome[0])
                effects += outcome[1]
        if len(chosen) == command.work:
            effects.append(WorkLeft(structs.replace(command, after=chosen[-1])))
        return effects

    def _purge(self, command: commands.PurgeAccount) -> list[MetaEffect]:
        names = heapq.nsmallest(command.work, self.tables.assets(command.account).streams)
        effects: list[MetaEffect] = []
        for name in names:
            changes, removed = of_peers.purge_one(self.tables, (command.account, name), command)
            self.tables.commit(changes)
            effects += removed
        if self.tables.assets(command.account).streams:
            return [*effects, WorkLeft(command)]
        return [*effects, Answered(command.ticket)]


def _refusal(command: MetaCommand, error: ApiError) -> list[MetaEffect]:
    """The answer to the request, where there is one."""
    ticket = getattr(command, "ticket", b"")
    return [Refused(ticket, error)] if ticket else []
