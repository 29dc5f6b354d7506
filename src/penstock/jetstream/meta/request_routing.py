"""Who answers a JetStream API request: every server of a cluster gets it, and decides by this table alone.

The table is the official server's behaviour (2.15), so that silence and error mean to clients what they mean
there. A decision depends on what the server knows: who leads the meta group, whether the stream or consumer
is assigned, who leads its group.

At most one server processes a request, except the broadcasts: reads that all members of a group without a
leader answer, direct gets (which a queue group gives to one), and META.RESCUE. Errors may come from several
servers: they are the same, and the account import of the API takes one response. Successful creations and
updates are answered by the leader of the new group (meta_effects.py).
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from penstock.protocol import error_codes as codes
from penstock.protocol.api import ApiError

ERROR_DELAY_NS = 500_000_000  # a leader that is about to answer does so first
LEADERLESS_NS = 10_000_000_000  # a meta group counts as without a leader after this time


class Responder(StrEnum):
    """Who answers.

    META: the meta leader. STREAM, CONSUMER: the leader of the group, and the meta leader for names that are
    not assigned. STREAM_INFO, CONSUMER_INFO: the same, with delayed errors. STREAM_ONLY, CONSUMER_ONLY: the
    leader, and else silence. READERS: all replicas that are current. META_SYSTEM: the meta leader, to the
    system account. META_ACCOUNT: also to the account that the subject names. EVERY_SERVER: to the system
    account.
    """

    META = "meta leader"
    STREAM_INFO = "stream leader, delayed errors"
    CONSUMER_INFO = "consumer leader, delayed errors"
    STREAM = "stream leader"
    CONSUMER = "consumer leader"
    STREAM_ONLY = "stream leader or silence"
    CONSUMER_ONLY = "consumer leader or silence"
    READERS = "current replicas"
    META_SYSTEM = "meta leader, system account"
    META_ACCOUNT = "meta leader, system account or the named one"
    EVERY_SERVER = "every server, system account"


RESPONDERS: dict[str, Responder] = {
    "INFO": Responder.META,
    "STREAM.CREATE": Responder.META,
    "STREAM.UPDATE": Responder.META,
    "STREAM.DELETE": Responder.META,
    "STREAM.NAMES": Responder.META,
    "STREAM.LIST": Responder.META,
    "STREAM.RESTORE": Responder.META,
    "STREAM.PEER.REMOVE": Responder.META,
    "STREAM.PEER.EVACUATE": Responder.META,
    "STREAM.CANCEL_MOVE": Responder.META,
    "STREAM.INFO": Responder.STREAM_INFO,
    "STREAM.PURGE": Responder.STREAM,
    "STREAM.MSG.GET": Responder.STREAM,
    "STREAM.MSG.DELETE": Responder.STREAM,
    "STREAM.LEADER.STEPDOWN": Responder.STREAM,
    "STREAM.SNAPSHOT": Responder.STREAM_ONLY,
    "CONSUMER.CREATE": Responder.META,
    "CONSUMER.DURABLE.CREATE": Responder.META,
    "CONSUMER.DELETE": Responder.META,
    "CONSUMER.NAMES": Responder.META,
    "CONSUMER.LIST": Responder.META,
    "CONSUMER.PAUSE": Responder.META,
    "CONSUMER.PEER.REMOVE": Responder.META,
    "CONSUMER.PEER.EVACUATE": Responder.META,
    "CONSUMER.INFO": Responder.CONSUMER_INFO,
    "CONSUMER.LEADER.STEPDOWN": Responder.CONSUMER,
    "CONSUMER.RESET": Responder.CONSUMER_ONLY,
    "CONSUMER.UNPIN": Responder.CONSUMER_ONLY,
    "CONSUMER.MSG.NEXT": Responder.CONSUMER_ONLY,
    "DIRECT.GET": Responder.READERS,
    "META.LEADER.STEPDOWN": Responder.META_SYSTEM,
    "SERVER.REMOVE": Responder.META_SYSTEM,
    "SERVER.EVACUATE": Responder.META_SYSTEM,
    "ACCOUNT.PURGE": Responder.META_SYSTEM,
    "ACCOUNT.STREAM.MOVE": Responder.META_ACCOUNT,
    "ACCOUNT.STREAM.CANCEL_MOVE": Responder.META_ACCOUNT,
    "META.RESCUE": Responder.EVERY_SERVER,
}


class AssetView(Struct, frozen=True, kw_only=True):
    """An assigned stream or consumer as one server knows it.

    is_member: the server runs it. is_leader: it leads its group. has_leader: as far as it knows, for members.
    has_state: it knows what the group had committed at some time; one that has just started may not yet.
    is_current: it may serve reads. is_offline: no member is online. unsupported: why this server cannot run
    it, or "".
    """

    is_member: bool = False
    is_leader: bool = False
    has_leader: bool = True
    has_state: bool = True
    is_current: bool = False
    is_offline: bool = False
    unsupported: str = ""


class RequestView(Struct, frozen=True, kw_only=True):
    """What one server knows about a request. leaderless: it has known no meta leader for LEADERLESS_NS.
    is_system: the request is of the system account. is_named: of the account that the subject names. stream,
    consumer: None for one that is not assigned. reads_directly: the request creates a consumer with
    direct:true, without sourcing."""

    is_meta_leader: bool = False
    leaderless: bool = False
    is_system: bool = False
    is_named: bool = False
    stream: AssetView | None = None
    consumer: AssetView | None = None
    reads_directly: bool = False


class Serve(Struct, frozen=True):
    """Process the request and answer."""


class Silence(Struct, frozen=True):
    """Do not answer: another server does, or none."""


class Fail(Struct, frozen=True):
    """Answer with an error, after some time (ns)."""

    error: ApiError
    after_ns: int = 0


Decision = Serve | Silence | Fail
SERVE, SILENCE = Serve(), Silence()
UNAVAILABLE = Fail(codes.CLUSTER_NOT_AVAIL)
UNAVAILABLE_LATER = Fail(codes.CLUSTER_NOT_AVAIL, ERROR_DELAY_NS)


def decide(verbs: str, view: RequestView) -> Decision:
    """What this server does with a request. Unknown verbs are met with silence."""
    responder = RESPONDERS.get(verbs)
    if verbs == "CONSUMER.CREATE" and view.reads_directly:
        responder = Responder.STREAM_ONLY
    match responder:
        case Responder.META:
            return SERVE if view.is_meta_leader else UNAVAILABLE if view.leaderless else SILENCE
        case Responder.META_SYSTEM:
            return SERVE if view.is_meta_leader and view.is_system else SILENCE
        case Responder.META_ACCOUNT:
            return SERVE if view.is_meta_leader and (view.is_system or view.is_named) else SILENCE
        case Responder.EVERY_SERVER:
            return SERVE if view.is_system else SILENCE
        case Responder.STREAM_INFO:
            return _info(view, view.stream, codes.STREAM_OFFLINE, codes.STREAM_OFFLINE_REASON, orphan=SERVE)
        case Responder.CONSUMER_INFO:
            # A stream's member shows its own state; what it knows of a consumer may be too old to be of use.
            offline, reason = codes.CONSUMER_OFFLINE, codes.CONSUMER_OFFLINE_REASON
            return _info(view, view.consumer, offline, reason, orphan=UNAVAILABLE)
        case Responder.STREAM:
            return _change(view, view.stream)
        case Responder.CONSUMER:
            return _change(view, view.consumer)
        case Responder.STREAM_ONLY:
            return SERVE if view.stream is not None and view.stream.is_leader else SILENCE
        case Responder.CONSUMER_ONLY:
            return SERVE if view.consumer is not None and view.consumer.is_leader else SILENCE
        case Responder.READERS:
            return SERVE if view.stream is not None and view.stream.is_current else SILENCE
        case _:
            return SILENCE


def _missing(view: RequestView) -> Decision:
    """The meta leader's answer about a name that is not assigned."""
    return Fail(codes.STREAM_NOT_FOUND if view.stream is None else codes.CONSUMER_NOT_FOUND)


def _info(
    view: RequestView, asset: AssetView | None, offline: ApiError, reason: ApiError, *, orphan: Decision
) -> Decision:
    """orphan: what a member does while the group has no leader."""
    if asset is None:
        if view.is_meta_leader:
            return _missing(view)
        return UNAVAILABLE_LATER if view.leaderless else SILENCE
    if asset.unsupported and asset.is_member:
        return Fail(reason.format(err=asset.unsupported), ERROR_DELAY_NS)
    if asset.is_leader:
        return SERVE
    if view.is_meta_leader and asset.is_offline:
        return Fail(offline, ERROR_DELAY_NS)
    if asset.is_member and not asset.has_leader:
        return orphan if asset.has_state else UNAVAILABLE_LATER
    return UNAVAILABLE_LATER if view.leaderless else SILENCE


def _change(view: RequestView, asset: AssetView | None) -> Decision:
    if view.leaderless:
        return UNAVAILABLE
    if asset is None:
        return _missing(view) if view.is_meta_leader else SILENCE
    if asset.is_leader:
        return SERVE
    return UNAVAILABLE if asset.is_member and not asset.has_leader else SILENCE
