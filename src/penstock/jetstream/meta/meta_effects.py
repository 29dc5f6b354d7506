"""What a command of the meta group causes outside of the meta state, as values.

Every server gets the same effects. The meta leader acts on Refused, Answered and WorkLeft and ignores those
of its time as a follower; the servers of a stream act on StreamEffect and ConsumerEffect, by which they
start, change and remove it; its leader answers the request.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from penstock.jetstream.meta.meta_commands import MetaCommand
from penstock.protocol.api import ApiError


class AssetAction(StrEnum):
    """What happened to a stream or consumer. PRESENT: it exists already, as requested. MOVED: its servers
    change or have changed."""

    CREATED = "created"
    PRESENT = "present"
    UPDATED = "updated"
    MOVED = "moved"
    REMOVED = "removed"


class PeerAction(StrEnum):
    """What happened to a server. LEAVES: the meta leader must remove it from the meta group."""

    JOINED = "joined"
    CHANGED = "changed"
    EVACUATED = "evacuated"
    LEAVES = "leaves"
    GONE = "gone"


class Refused(Struct, frozen=True):
    """The request of the ticket is answered with an error, by the meta leader."""

    ticket: bytes
    error: ApiError


class Answered(Struct, frozen=True):
    """The request of the ticket is answered with success, by the meta leader."""

    ticket: bytes


class StreamEffect(Struct, frozen=True):
    """A stream changed. The leader of its group answers the ticket, if there is one; REMOVED: the meta
    leader."""

    action: AssetAction
    account: str
    stream: str
    incarnation: int
    ticket: bytes = b""


class ConsumerEffect(Struct, frozen=True):
    """A consumer changed. The leader of its stream answers the ticket, if there is one, also when it is
    removed."""

    action: AssetAction
    account: str
    stream: str
    consumer: str
    incarnation: int
    ticket: bytes = b""


class PeerEffect(Struct, frozen=True):
    """A server changed. GONE: the meta leader answers the ticket."""

    action: PeerAction
    peer: str
    ticket: bytes = b""


class WorkLeft(Struct, frozen=True):
    """The meta leader proposes this command next: work was left."""

    command: MetaCommand


MetaEffect = Refused | Answered | StreamEffect | ConsumerEffect | PeerEffect | WorkLeft
