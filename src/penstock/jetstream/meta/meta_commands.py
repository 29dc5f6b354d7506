"""Commands of the meta group: everything that changes what a cluster agrees on, with a binary encoding.

What a command does depends on the meta state, the command, its time and its index in the log alone. What
else a decision depends on is in the command: the limits of the account (AccountRules), the options of the
server that answers the request (PlacementRules), and for changes that touch many streams the number of them
(`work`): each such command is complete on its own, and an effect asks for the next one.

A `ticket` identifies the request that a command answers, in the words of the server that received it; effects
carry it back. It is not part of the state.

Encoding: kind (8 bits), version of the kind (8 bits), time (signed 64 bits, little-endian, ns), a MessagePack
array. A field is added at the end, with a default, under the same version; any other change takes a new
version. A command of an unknown kind or version is an error: a server that skipped it would differ from
then on.
"""

from __future__ import annotations

import struct
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from penstock.errors import MalformedCommandError
from penstock.jetstream.commands import NOW_MAX
from penstock.protocol.api import (
    AccountLimits,
    ApiConsumerConfig,
    ApiError,
    ApiStreamConfig,
    ConsumerAction,
)

PEERS_MAX = 1000  # of a command
TICKET_MAX = 16 * 1024  # bytes

Index = Annotated[int, Meta(ge=0, le=2**62)]
Size = Annotated[int, Meta(ge=-1, le=2**62)]
Work = Annotated[int, Meta(ge=1, le=10_000)]
Ticket = Annotated[bytes, Meta(max_length=TICKET_MAX)]
Peers = Annotated[tuple[str, ...], Meta(max_length=PEERS_MAX)]
Tags = Annotated[tuple[str, ...], Meta(max_length=1000)]


class AccountRules(Struct, frozen=True, array_like=True):
    """Limits of an account: of each tier of replicas ("R3"), or one set with the name "". consumers_max: of
    a stream without a limit of its own."""

    limits: dict[str, AccountLimits]
    consumers_max: int = -1


class PlacementRules(Struct, frozen=True, array_like=True):
    """Options of the server that took the request. clusters: to place in, best first. unique_tag: a prefix.
    ha_streams_max: replicated streams of a server; 0: no limit."""

    clusters: Tags
    unique_tag: str = ""
    ha_streams_max: int = 0


class FoundCluster(Struct, frozen=True, array_like=True):
    """The first command of a cluster. cluster_id: random. It marks what the cluster's servers store."""

    cluster_id: str


class SetPeer(Struct, frozen=True, array_like=True):
    """A server that started or changed its configuration. See PeerRecord."""

    peer: str
    name: str
    cluster: str
    tags: Tags = ()
    domain: str = ""
    disk: str = ""
    boot: Index = 0
    max_memory: Size = -1
    max_storage: Size = -1


class PeerSight(Struct, frozen=True, array_like=True):
    """How the meta leader sees a server."""

    peer: str
    online: bool
    current: bool
    used_memory: Size = 0
    used_storage: Size = 0


class ObservePeers(Struct, frozen=True, array_like=True):
    """What the meta leader sees of servers, where it has changed: proposed before a command that places."""

    sights: Annotated[tuple[PeerSight, ...], Meta(max_length=PEERS_MAX)]


class CreateStream(Struct, frozen=True, array_like=True):
    """config: checked and complete. on: the peer that must be among the servers, such as the one that gets
    the data of a restore; "" for any. is_restore: a present stream of that name is an error in any case."""

    account: str
    config: ApiStreamConfig
    rules: AccountRules
    placement: PlacementRules
    pedantic: bool = False
    is_restore: bool = False
    on: str = ""
    ticket: Ticket = b""


class UpdateStream(Struct, frozen=True, array_like=True):
    """Changes a stream's configuration; other replicas or another placement change its servers."""

    account: str
    config: ApiStreamConfig
    rules: AccountRules
    placement: PlacementRules
    pedantic: bool = False
    sealed: bool = False
    ticket: Ticket = b""


class MoveStream(Struct, frozen=True, array_like=True):
    """Moves a stream without changing its configuration. server: the peer to leave, "" for the first. tags:
    that the new server must have."""

    account: str
    stream: str
    placement: PlacementRules
    server: str = ""
    tags: Tags = ()
    ticket: Ticket = b""


class CancelMove(Struct, frozen=True, array_like=True):
    """Restores what the stream had before the change in progress."""

    account: str
    stream: str
    ticket: Ticket = b""


class DeleteStream(Struct, frozen=True, array_like=True):
    """Removes a stream with its consumers. incarnation: only this one; 0: any. failed: the error of a member
    that could not create it, which is the answer to the request that wanted it."""

    account: str
    stream: str
    incarnation: Index = 0
    failed: ApiError | None = None
    ticket: Ticket = b""


class ChoosePeers(Struct, frozen=True, array_like=True):
    """The leader of a group that is scaled down has chosen who stays."""

    account: str
    stream: str
    incarnation: Index
    peers: Peers


class SettleMembers(Struct, frozen=True, array_like=True):
    """The group of a stream has exactly the wanted members, says its leader, as of index `as_of` of the meta
    state."""

    account: str
    stream: str
    incarnation: Index
    peers: Peers
    as_of: Index


class RemoveFromStream(Struct, frozen=True, array_like=True):
    """Replaces one server of a stream. peer: its name or id. unique_tag, ha_streams_max: see
    PlacementRules."""

    account: str
    stream: str
    peer: str
    unique_tag: str = ""
    ticket: Ticket = b""


class CreateConsumer(Struct, frozen=True, array_like=True):
    """Creates or updates a consumer. config: checked and complete. name: "" for one that the state chooses.
    from_default: its inactive threshold is the server's, not the request's."""

    account: str
    stream: str
    name: str
    config: ApiConsumerConfig
    rules: AccountRules
    action: ConsumerAction = ConsumerAction.CREATE_OR_UPDATE
    from_default: bool = False
    ticket: Ticket = b""


class DeleteConsumer(Struct, frozen=True, array_like=True):
    """incarnation: only this one, such as one that expired; 0: any."""

    account: str
    stream: str
    name: str
    incarnation: Index = 0
    failed: ApiError | None = None
    ticket: Ticket = b""


class PauseConsumer(Struct, frozen=True, array_like=True):
    """pause_until: RFC 3339 text; None resumes."""

    account: str
    stream: str
    name: str
    pause_until: str | None
    ticket: Ticket = b""


class RemoveServer(Struct, frozen=True, array_like=True):
    """A server leaves the cluster. peer: its id."""

    peer: str
    ticket: Ticket = b""


class EvacuateServer(Struct, frozen=True, array_like=True):
    """The streams of a server move to others. peer: its id."""

    peer: str
    ticket: Ticket = b""


class Reassign(Struct, frozen=True, array_like=True):
    """Moves up to `work` streams away from servers that are evacuated or removed. after: (account, name) of
    the last one that was looked at."""

    work: Work
    unique_tag: str = ""
    after: tuple[str, str] | None = None


class Heal(Struct, frozen=True, array_like=True):
    """Gives up to `work` streams that have too few servers others, where there are some now. after: as for
    Reassign."""

    work: Work
    unique_tag: str = ""
    after: tuple[str, str] | None = None


class PeerGone(Struct, frozen=True, array_like=True):
    """A removed server has left the meta group."""

    peer: str


class PurgeAccount(Struct, frozen=True, array_like=True):
    """Removes up to `work` streams of an account."""

    account: str
    work: Work
    ticket: Ticket = b""


class ConfirmRemoved(Struct, frozen=True, array_like=True):
    """A server has no files of these streams, as of index `as_of` of the meta state. It does not say so about
    a stream that has come back to it since."""

    peer: str
    incarnations: Annotated[tuple[Index, ...], Meta(max_length=10_000)]
    as_of: Index


class AdoptStream(Struct, frozen=True, array_like=True):
    """Takes a stream that a server has stored into the cluster, such as one from before there was a cluster.
    peer: its only server. cluster_id, incarnation: as it stored them; without a cluster "" and the time of
    creation. consumers: name, configuration, time of creation (ns)."""

    account: str
    config: ApiStreamConfig
    created: Index
    peer: str
    cluster_id: str
    incarnation: Index
    ticket: Ticket = b""
    consumers: Annotated[tuple[tuple[str, ApiConsumerConfig, Index], ...], Meta(max_length=100_000)] = ()


MetaCommand = (
    FoundCluster
    | SetPeer
    | ObservePeers
    | CreateStream
    | UpdateStream
    | MoveStream
    | CancelMove
    | DeleteStream
    | ChoosePeers
    | SettleMembers
    | RemoveFromStream
    | CreateConsumer
    | DeleteConsumer
    | PauseConsumer
    | RemoveServer
    | EvacuateServer
    | Reassign
    | Heal
    | PeerGone
    | PurgeAccount
    | ConfirmRemoved
    | AdoptStream
)

# kind -> (version, type). A number is never used again for anything else.
META_KINDS: dict[int, tuple[int, type[Any]]] = {
    1: (1, FoundCluster),
    2: (1, SetPeer),
    3: (1, ObservePeers),
    4: (1, CreateStream),
    5: (1, UpdateStream),
    6: (1, MoveStream),
    7: (1, CancelMove),
    8: (1, DeleteStream),
    9: (1, ChoosePeers),
    10: (1, SettleMembers),
    11: (1, RemoveFromStream),
    12: (1, CreateConsumer),
    13: (1, DeleteConsumer),
    14: (1, PauseConsumer),
    15: (1, RemoveServer),
    16: (1, EvacuateServer),
    17: (1, Reassign),
    18: (1, Heal),
    19: (1, PeerGone),
    20: (1, PurgeAccount),
    21: (1, ConfirmRemoved),
    22: (1, AdoptStream),
}

_HEAD = struct.Struct("<BBq")
_heads = {known: (kind, version) for kind, (version, known) in META_KINDS.items()}
_encoder = msgspec.msgpack.Encoder()
_decoders = {(kind, version): msgspec.msgpack.Decoder(known) for kind, (version, known) in META_KINDS.items()}


def encode_command(command: MetaCommand, now: int) -> bytes:
    """The encoded command, to be applied at `now` (ns)."""
    kind, version = _heads[type(command)]
    return _HEAD.pack(kind, version, now) + _encoder.encode(command)


def decode_command(data: bytes) -> tuple[MetaCommand, int]:
    """The command, and the time (ns) at which to apply it. Raises MalformedCommandError."""
    if len(data) < _HEAD.size:
        raise MalformedCommandError(f"a meta command of {len(data)} bytes; its head alone has {_HEAD.size}")
    kind, version, now = _HEAD.unpack_from(data)
    if not 0 <= now < NOW_MAX:
        raise MalformedCommandError(f"a meta command of kind {kind} at {now}, no time from 1970 to 2116")
    decoder = _decoders.get((kind, version))
    if decoder is None:
        raise MalformedCommandError(
            f"a meta command of kind {kind}, version {version}: unknown here, a newer server may know it"
        )
    try:
        command: MetaCommand = decoder.decode(memoryview(data)[_HEAD.size :])
    except (ValueError, msgspec.DecodeError, RecursionError) as error:
        raise MalformedCommandError(f"a malformed meta command of kind {kind}: {error}") from error
    return command, now
