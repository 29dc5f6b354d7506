"""What servers send each other for replicated groups, as bytes, and back.

MessagePack arrays with fixed fields. Sender and receiver are not in them: they are the two ends of the link.
The decoder is total: any bytes give a value or a ProtocolError, and a value has what the sender's own code
would have made of it (indexes in order, terms that do not fall, readable memberships), so that consensus need
not check again.

Rejected: encoding the values of `raft` directly (their classes would become a wire format, and a renamed
field a different one).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec

from penstock.errors import ProtocolError
from penstock.raft.membership import Membership
from penstock.raft.raft_host import Frame
from penstock.raft.raft_messages import (
    Append,
    AppendReply,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    Message,
    PreVote,
    PreVoteReply,
    RaftSnapshot,
    Recover,
    RecoverReply,
    ReplicaId,
    TimeoutNow,
    Vote,
    VoteReply,
)

PART_BYTES = 4 << 20
"""A frame with more bytes than that is sent in parts, between which other frames may pass."""
NAME_BYTES_MAX = 512

_Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_BYTES_MAX)]
_WireEntry = tuple[_Number, _Number, Annotated[int, msgspec.Meta(ge=0, le=2)], bytes]
_WireMembers = tuple[tuple[_Name, ...], tuple[_Name, ...]]


class _Wire(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=False):
    """Fields that every message has; later versions may add fields at the end."""

    group: _Name
    term: _Number


class _PreVote(_Wire, tag=1, frozen=True):
    last_index: _Number
    last_term: _Number


class _PreVoteReply(_Wire, tag=2, frozen=True):
    is_granted: bool


class _Vote(_Wire, tag=3, frozen=True):
    last_index: _Number
    last_term: _Number
    is_transfer: bool


class _VoteReply(_Wire, tag=4, frozen=True):
    is_granted: bool


class _Append(_Wire, tag=5, frozen=True):
    prev_index: _Number
    prev_term: _Number
    entries: tuple[_WireEntry, ...]
    commit: _Number


class _AppendReply(_Wire, tag=6, frozen=True):
    index: _Number
    is_rejected: bool
    hint_index: _Number
    hint_term: _Number
    boot: _Number


class _Heartbeat(_Wire, tag=7, frozen=True):
    commit: _Number
    round: _Number
    quiesce: bool


class _HeartbeatReply(_Wire, tag=8, frozen=True):
    round: _Number
    received: _Number
    match: _Number
    is_quiesced: bool
    is_installing: bool
    boot: _Number


class _InstallSnapshot(_Wire, tag=9, frozen=True):
    index: _Number
    snapshot_term: _Number
    members: _WireMembers
    data: bytes


class _TimeoutNow(_Wire, tag=10, frozen=True):
    pass


class _Recover(_Wire, tag=11, frozen=True):
    boot: _Number


class _RecoverReply(_Wire, tag=12, frozen=True):
    commit: _Number
    boot: _Number


_WireMessage: TypeAlias = (
    _PreVote | _PreVoteReply | _Vote | _VoteReply | _Append | _AppendReply | _Heartbeat | _HeartbeatReply
    | _InstallSnapshot | _TimeoutNow | _Recover | _RecoverReply
)  # fmt: skip


class _WireFrame(msgspec.Struct, array_like=True, frozen=True):
    boot: _Number
    refused_boot: _Number
    messages: tuple[_WireMessage, ...]


class GroupMail(msgspec.Struct, array_like=True, frozen=True):
    """Mail of an owner to the group's owner on another server."""

    group: _Name
    payload: bytes


_FRAMES = msgspec.msgpack.Decoder(_WireFrame)
_MAILS = msgspec.msgpack.Decoder(GroupMail)
_encode = msgspec.msgpack.Encoder().encode


class _Codec(NamedTuple):
    """One kind of message. pack: its fields after group and term; unpack: the inverse."""

    wire: type[_Wire]
    pack: Callable[[Any], tuple[Any, ...]]
    unpack: Callable[[Any, ReplicaId, ReplicaId], Message]


def _plain(wire: type[_Wire], kind: type[Any]) -> _Codec:
    """A kind whose fields are the same on the wire."""
    names = [one for one in wire.__struct_fields__ if one not in ("group", "term")]

    def pack(message: Any) -> tuple[Any, ...]:
        return tuple(getattr(message, name) for name in names)

    def unpack(one: Any, sender: ReplicaId, to: ReplicaId) -> Message:
        fields = {name: getattr(one, name) for name in names}
        message: Message = kind(sender=sender, to=to, term=one.term, **fields)
        return message

    return _Codec(wire, pack, unpack)


def _pack_append(message: Append) -> tuple[Any, ...]:
    entries = tuple((one.index, one.term, int(one.kind), one.data) for one in message.entries)
    return message.prev_index, message.prev_term, entries, message.commit


def _unpack_append(one: _Append, sender: ReplicaId, to: ReplicaId) -> Message:
    entries = tuple(Entry(index, term, EntryKind(kind), data) for index, term, kind, data in one.entries)
    index, term = one.prev_index, one.prev_term
    for entry in entries:
        if entry.index != index + 1 or not term <= entry.term <= one.term:
            raise ProtocolError(
                f"entry {entry.index} of term {entry.term} follows entry {index} of term {term} in an append "
                f"of term {one.term}"
            )
        index, term = entry.index, entry.term
        if entry.kind is EntryKind.MEMBERSHIP:
            _check_members(Membership.decode(entry.data))
    if one.prev_term > one.term:
        raise ProtocolError(f"an append of term {one.term} follows an entry of term {one.prev_term}")
    return Append(sender, to, one.term, one.prev_index, one.prev_term, entries, one.commit)


def _check_members(membership: Membership) -> None:
    if not membership.voters or len(set(membership.members)) != len(membership.members):
        raise ProtocolError(f"no members, or one twice: {membership}")


def _pack_snapshot(message: InstallSnapshot) -> tuple[Any, ...]:
    snapshot = message.snapshot
    return snapshot.index, snapshot.term, tuple(snapshot.membership), snapshot.data


def _unpack_snapshot(one: _InstallSnapshot, sender: ReplicaId, to: ReplicaId) -> Message:
    membership = Membership(*one.members)
    _check_members(membership)
    if one.snapshot_term > one.term:
        raise ProtocolError(f"a state of term {one.snapshot_term} is sent in term {one.term}")
    snapshot = RaftSnapshot(one.index, one.snapshot_term, membership, one.data)
    return InstallSnapshot(sender, to, one.term, snapshot)


_BY_MESSAGE: dict[type[Message], _Codec] = {
    PreVote: _plain(_PreVote, PreVote),
    PreVoteReply: _plain(_PreVoteReply, PreVoteReply),
    Vote: _plain(_Vote, Vote),
    VoteReply: _plain(_VoteReply, VoteReply),
    Append: _Codec(_Append, _pack_append, _unpack_append),
    AppendReply: _plain(_AppendReply, AppendReply),
    Heartbeat: _plain(_Heartbeat, Heartbeat),
    HeartbeatReply: _plain(_HeartbeatReply, HeartbeatReply),
    InstallSnapshot: _Codec(_InstallSnapshot, _pack_snapshot, _unpack_snapshot),
    TimeoutNow: _plain(_TimeoutNow, TimeoutNow),
    Recover: _plain(_Recover, Recover),
    RecoverReply: _plain(_RecoverReply, RecoverReply),
}
_BY_WIRE = {codec.wire: codec for codec in _BY_MESSAGE.values()}


def encode_frames(frame: Frame, part_bytes: int = PART_BYTES) -> Iterator[bytes]:
    """The bytes of a frame, in parts of about so many bytes; each part is a frame by itself."""
    part: list[_Wire] = []
    size = 0
    for group, message in frame.messages:
        codec = _BY_MESSAGE[type(message)]
        one = codec.wire(group, message.term, *codec.pack(message))
        more = _size_of(message)
        if part and size + more > part_bytes:
            yield _encode((frame.boot, frame.refused_boot, part))
            part, size = [], 0
        part.append(one)
        size += more
    yield _encode((frame.boot, frame.refused_boot, part))


def _size_of(message: Message) -> int:
    if isinstance(message, Append):
        return 64 + sum(len(one.data) + 32 for one in message.entries)
    return 64 + len(message.snapshot.data) if isinstance(message, InstallSnapshot) else 64


def decode_frame(data: bytes | memoryview, sender: ReplicaId, to: ReplicaId) -> Frame:
    """The inverse of a part, between these two servers. Raises ProtocolError."""
    try:
        wire = _FRAMES.decode(data)
        messages = tuple((one.group, _BY_WIRE[type(one)].unpack(one, sender, to)) for one in wire.messages)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"unreadable replication frame: {error}") from error
    return Frame(sender, to, wire.boot, messages, wire.refused_boot)


def encode_mail(group: str, payload: bytes) -> bytes:
    """The bytes of mail."""
    return _encode(GroupMail(group, payload))


def decode_mail(data: bytes | memoryview) -> GroupMail:
    """The inverse. Raises ProtocolError."""
    try:
        return _MAILS.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(f"unreadable mail of a replicated group: {error}") from error
