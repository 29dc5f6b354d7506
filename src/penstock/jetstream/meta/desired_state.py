"""What one server should have, and what it does about the difference to what it has.

`wanted` reads the meta state; `differences` compares it with the streams that a server stores.

Invariant: a server removes files only when the meta state says why: a tombstone of this very stream, or an
assignment of it without this server. A stream that the meta state does not know is quarantined: its files
stay, it is listed, and an operator adopts or removes it. (The official server removes such files: a cluster
that lost its meta state then loses its streams.) While a server does not know whether its meta state is
current, it does neither: the stream may have come back to it meanwhile. (Not so for deleted streams: an
incarnation never returns.)
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto

from msgspec import Struct

from penstock.jetstream.consumer.state import ConsumerMeta
from penstock.jetstream.meta.assignments import ConsumerAssignment, StreamAssignment, Tombstone
from penstock.jetstream.meta.meta_tables import MetaTables


class StoredStream(Struct, frozen=True, kw_only=True):
    """A stream that a server has on its disk. cluster_id: of the cluster that it belongs to, "" for one that
    was stored without a cluster. incarnation, group: as assigned when it was stored."""

    account: str
    name: str
    cluster_id: str
    incarnation: int
    group: str


class StartStream(Struct, frozen=True):
    """Start a replica. founders: the first members of its group, if this server is one of them; otherwise
    empty: it waits until the group's leader adds it."""

    stream: StreamAssignment
    founders: tuple[str, ...]


class RemoveStored(Struct, frozen=True):
    """Stop the replica, then ask for the differences again; if this is still among them with a current meta
    state, remove the files and propose ConfirmRemoved.

    The order matters where a stream comes back to a server: the replica might acknowledge entries to the
    group that has added it again, and then lose them. Once it has stopped it acknowledges nothing, and an
    assignment from before that shows in the second answer.
    """

    stored: StoredStream
    reason: str


class QuarantineStored(Struct, frozen=True):
    """Stop the replica and set its files aside."""

    stored: StoredStream
    reason: str


class RelabelStored(Struct, frozen=True):
    """The stored stream is the assigned one under another incarnation or group name: note them."""

    stored: StoredStream
    stream: StreamAssignment


class ConfirmMissing(Struct, frozen=True):
    """Propose ConfirmRemoved for these, as of the index of the meta state: the server has no files of
    them."""

    incarnations: tuple[int, ...]


class AwaitMeta(Struct, frozen=True):
    """Nothing is done about it until the meta state is current."""

    stored: StoredStream


Difference = StartStream | RemoveStored | QuarantineStored | RelabelStored | ConfirmMissing | AwaitMeta


def wanted(tables: MetaTables, peer: str) -> list[StreamAssignment]:
    """The streams that a server runs, in order of accounts and names."""
    return [tables.stream(*key) for key in sorted(tables.streams_on(peer))]


def differences(
    tables: MetaTables, peer: str, stored: Iterable[StoredStream], *, is_current: bool
) -> list[Difference]:
    """What the server has to do, in this order. is_current: whether its meta state has everything that was
    committed when it asked.

    A stream that is to be started may follow another one of its name that is removed or set aside.
    """
    found: list[Difference] = []
    present: set[tuple[str, str, int]] = set()
    for one in sorted(stored, key=lambda one: (one.account, one.name, one.incarnation)):
        difference = _about_stored(tables, peer, one, is_current=is_current)
        if difference is not None:
            found.append(difference)
        if isinstance(difference, RelabelStored):
            present.add(_key(difference.stream))
        elif one.cluster_id == tables.cluster_id:
            present.add((one.account, one.name, one.incarnation))
    record = tables.peers.get(peer)
    for stream in wanted(tables, peer):
        if _key(stream) not in present:
            is_founder = record is not None and record.member in stream.group.founders
            found.append(StartStream(stream, stream.group.founders if is_founder else ()))
    missing = sorted(incarnation for *_, incarnation in _to_confirm(tables, peer) - present)
    if missing and is_current:
        found.append(ConfirmMissing(tuple(missing)))
    return found


def _key(one: StreamAssignment | Tombstone) -> tuple[str, str, int]:
    """What identifies a stream of this cluster: also one of a cluster that began again, with the same
    indexes."""
    return one.account, one.name, one.incarnation


def _about_stored(
    tables: MetaTables, peer: str, stored: StoredStream, *, is_current: bool
) -> Difference | None:
    stream = tables.find_stream(stored.account, stored.name)
    if (
        stream is not None
        and peer in stream.hosts
        and stream.adopted == (stored.cluster_id, stored.incarnation)
    ):
        return RelabelStored(stored, stream)
    if stored.cluster_id == tables.cluster_id:
        tombstone = tables.tombstones.get(stored.incarnation)
        if tombstone is not None and _key(tombstone) == (stored.account, stored.name, stored.incarnation):
            return RemoveStored(stored, "the stream was deleted")
        if stream is not None and stream.incarnation == stored.incarnation:
            if peer not in stream.hosts:
                if not is_current:
                    return AwaitMeta(stored)
                return RemoveStored(stored, "the stream has moved to other servers")
            return RelabelStored(stored, stream) if stream.group.name != stored.group else None
    if not is_current:
        return AwaitMeta(stored)
    return QuarantineStored(stored, _quarantine_reason(tables, stored, stream))


def _quarantine_reason(tables: MetaTables, stored: StoredStream, stream: StreamAssignment | None) -> str:
    if not stored.cluster_id:
        return "the stream was stored without a cluster: adopt or remove it"
    if stored.cluster_id != tables.cluster_id:
        return f"the stream belongs to cluster {stored.cluster_id}: adopt or remove it"
    if stream is not None:
        return f"the cluster has another stream of this name, incarnation {stream.incarnation}"
    return "the cluster does not know the stream and did not delete it: adopt or remove it"


def _to_confirm(tables: MetaTables, peer: str) -> set[tuple[str, str, int]]:
    """The streams whose removal the cluster waits for this server to confirm."""
    left = {_key(tables.stream(*key)) for key in tables.streams_leaving(peer)}
    return left | {_key(one) for one in tables.tombstones.values() if peer in one.peers}


class ConsumerDifference(Enum):
    """What the leader of a stream's group does about a consumer. TO_SET: creates or changes it."""

    NONE = auto()
    TO_SET = auto()
    TO_DROP = auto()


def consumer_difference(
    assigned: ConsumerAssignment | None, stored: ConsumerMeta | None
) -> ConsumerDifference:
    """Compares a consumer with the one of its name in the state of its stream's group.

    One that was created again has another time of creation: it is dropped, then set. Unlike for streams, what
    the meta state does not have is dropped: the group's leader has applied all meta commands before it
    compares. Those that mirrors and sources made are no assets of the cluster.
    """
    if stored is not None and stored.is_for_copies:
        stored = None
    if assigned is None:
        return ConsumerDifference.NONE if stored is None else ConsumerDifference.TO_DROP
    if stored is None:
        return ConsumerDifference.TO_SET
    if stored.created != assigned.created:
        return ConsumerDifference.TO_DROP
    return ConsumerDifference.NONE if stored.config == assigned.config else ConsumerDifference.TO_SET
