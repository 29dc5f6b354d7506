"""One connection to another server for replicated groups: greeting, features, then frames and mail.

    GREETING   the peer is unknown           its greeting, or why it refuses
    OPEN       frames and mail flow          messages, mail
    CLOSED     nothing is read

Both sides send their greeting at once. A greeting names the features that the server has, and those that it
requires of the other one: a server that does not have a required feature refuses, and says which. Servers of
different versions thereby work together as long as the newer one requires nothing that the older one lacks,
and fail with a text that names the cause otherwise.

Invariant: nothing of a peer reaches the node before its greeting is accepted.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Annotated, NamedTuple, TypeAlias

import msgspec

from penstock.errors import ProtocolError
from penstock.raft.disk_identity import DiskIdentity
from penstock.raft.raft_host import Frame
from penstock.raft.raft_messages import ReplicaId
from penstock.replication.replication_frames import (
    ReplicationKind,
    ReplicationParser,
    frame_bytes,
    frame_head,
)
from penstock.replication.replication_messages import (
    NAME_BYTES_MAX,
    GroupMail,
    decode_frame,
    decode_mail,
    encode_frames,
    encode_mail,
)

FEATURES = ("mail",)
"""What this version has beyond the messages of consensus."""
REQUIRED: tuple[str, ...] = ()
"""What it requires of other servers."""

JOINED_BYTES_MAX = 64 << 10
"""A payload of up to so many bytes is sent with its head: a head by itself costs a call to the system, and
wakes the peer, which then waits for the rest. Copying a larger one costs more."""

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_BYTES_MAX)]


class Greeting(msgspec.Struct, frozen=True, kw_only=True):
    """Who a server is, and what it has. Later versions may add fields. replica_id: as a member of groups."""

    cluster: _Name
    server: _Name
    replica_id: _Name
    boot: Annotated[int, msgspec.Meta(ge=1, le=1 << 62)]
    version: str = ""
    features: tuple[str, ...] = ()
    required: tuple[str, ...] = ()


class _Refusal(msgspec.Struct, frozen=True):
    """Why a server closes the link."""

    text: str


_GREETINGS = msgspec.json.Decoder(Greeting)
_REFUSALS = msgspec.json.Decoder(_Refusal)


def greeting_of(identity: DiskIdentity, version: str) -> Greeting:
    """The greeting of this server."""
    return Greeting(
        cluster=identity.cluster_name,
        server=identity.server_name,
        replica_id=identity.replica_id,
        boot=identity.boot,
        version=version,
        features=FEATURES,
        required=REQUIRED,
    )


class LinkPhase(Enum):
    """See the module."""

    GREETING = "greeting"
    OPEN = "open"
    CLOSED = "closed"


class LinkOpened(NamedTuple):
    """The peer is known."""

    greeting: Greeting


class LinkRefused(NamedTuple):
    """The link must be closed, after `close_frame` was sent. by_peer: the other server refused."""

    text: str
    close_frame: bytes
    by_peer: bool


LinkEvent: TypeAlias = LinkOpened | LinkRefused | Frame | GroupMail


class ReplicationLink:
    """See the module. own: this server's greeting. expected: the server that was dialled; "" = any."""

    def __init__(self, own: Greeting, expected: str = "") -> None:
        self._own = own
        self._expected = expected
        self._parser = ReplicationParser()
        self.phase = LinkPhase.GREETING
        self.peer: Greeting | None = None

    @property
    def is_closed(self) -> bool:
        return self.phase is LinkPhase.CLOSED

    @property
    def replica_id(self) -> ReplicaId:
        """The peer's; "" before its greeting."""
        return self.peer.replica_id if self.peer is not None else ""

    def opening(self) -> bytes:
        """What this side sends first."""
        return frame_bytes(ReplicationKind.GREETING, msgspec.json.encode(self._own))

    def receive(self, data: bytes | memoryview) -> Iterator[LinkEvent]:
        """Takes bytes of the peer. After a LinkRefused nothing follows."""
        if self.is_closed:
            return
        self._parser.feed(data)
        while not self.is_closed:
            try:
                frame = self._parser.read()
                event = self._event(frame.kind, frame.payload) if frame is not None else None
            except ProtocolError as error:
                event = self._refused(str(error))
            if event is None:
                return
            yield event

    def _event(self, kind: ReplicationKind, payload: memoryview) -> LinkEvent:
        if kind is ReplicationKind.REFUSAL:
            self.phase = LinkPhase.CLOSED
            return LinkRefused(_decoded_refusal(payload), b"", by_peer=True)
        if self.phase is LinkPhase.GREETING:
            if kind is not ReplicationKind.GREETING:
                raise ProtocolError(f"a replication frame of kind {kind.name} before the greeting")
            return self._greeted(payload)
        if kind is ReplicationKind.MESSAGES:
            return decode_frame(payload, self.replica_id, self._own.replica_id)
        if kind is ReplicationKind.MAIL:
            return decode_mail(payload)
        raise ProtocolError("a second greeting")

    def _greeted(self, payload: memoryview) -> LinkEvent:
        try:
            peer = _GREETINGS.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError(f"unreadable greeting of a replication link: {error}") from error
        problem = self._problem(peer)
        if problem:
            return self._refused(problem)
        self.peer, self.phase = peer, LinkPhase.OPEN
        self._parser.widen()
        return LinkOpened(peer)

    def _problem(self, peer: Greeting) -> str:
        own = self._own
        if peer.cluster != own.cluster:
            return f"server {peer.server!r} is of cluster {peer.cluster!r}, and this is {own.cluster!r}"
        if peer.server == own.server:
            return f"both servers have the name {own.server!r}; server_name must differ"
        if self._expected and peer.server != self._expected:
            return f"dialled server {self._expected!r} and reached {peer.server!r}"
        if not peer.replica_id.startswith(f"{peer.server}."):
            return f"the member {peer.replica_id!r} is not one of server {peer.server!r}"
        missing = [one for one in peer.required if one not in own.features]
        if missing:
            return (
                f"server {peer.server!r} ({peer.version}) requires {', '.join(missing)}, which server "
                f"{own.server!r} ({own.version}) does not have; upgrade it"
            )
        return ""

    def _refused(self, text: str) -> LinkRefused:
        self.phase = LinkPhase.CLOSED
        close_frame = frame_bytes(ReplicationKind.REFUSAL, msgspec.json.encode(_Refusal(text[:1000])))
        return LinkRefused(text, close_frame, by_peer=False)

    def frame_parts(self, frame: Frame) -> Iterator[bytes]:
        """What to send for a frame of the node, in this order; one write for each."""
        for part in encode_frames(frame):
            head = frame_head(ReplicationKind.MESSAGES, part)
            if len(part) <= JOINED_BYTES_MAX:
                yield head + part
            else:
                yield head
                yield part

    def mail_bytes(self, group: str, payload: bytes) -> bytes:
        """What to send for mail; b"" for a peer that takes none."""
        if self.peer is None or "mail" not in self.peer.features:
            return b""
        return frame_bytes(ReplicationKind.MAIL, encode_mail(group, payload))


def _decoded_refusal(payload: memoryview) -> str:
    try:
        return _REFUSALS.decode(payload).text[:1000]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return f"the peer refuses with an unreadable text: {error}"
