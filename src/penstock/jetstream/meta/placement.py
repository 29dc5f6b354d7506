"""Placement: which servers get a stream, as a pure function of what is known about them.

`place` chooses as the official server does (2.15, `selectPeerGroup`), with the same reasons when it cannot:

1. Servers of another cluster, with tag `!jetstream`, without a wanted tag, with an unwanted one, without the
   bytes that the stream reserves, with too many replicated streams, or with a unique tag that is taken, are
   left out.
2. The others are sorted: online before offline, current before lagging; replicated streams then by the number
   of replicated streams on the server, all by free storage and by the number of streams.
3. Enough of the chosen must be online for a quorum.

Differences, on purpose. What is left equal is decided by a checksum of the server and the stream's salt and
not by chance, so that every server that applies the same command chooses the same. Free storage counts in
sixteenths of the most free: the official server compares bytes, so that a burst of small streams goes
to the one server that has a few bytes more. Consumers are in the group of their stream and are no assets of
their own.

Invariants: no server is chosen twice; the servers in `keep` stay, in their order; the result depends on the
arguments alone, and not on the order of `offers`.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Container, Iterable, Sequence
from enum import StrEnum

from msgspec import Struct

from penstock.errors import JetStreamApiError
from penstock.protocol import error_codes as codes

EXCLUDED_TAG = "!jetstream"  # a server with this tag takes no streams
FREE_STEPS = 16  # free storage is compared in this many steps


class Reason(StrEnum):
    """Why servers were left out, in the order of the official texts."""

    OFFLINE = "peer offline"
    EXCLUDED = "exclude tag set"
    STORAGE = "insufficient storage"
    UNIQUE_TAG = "server tag not unique"
    OTHER = "miscellaneous issue"
    NO_SERVERS = "jetstream not enabled in cluster"


class PeerOffer(Struct, frozen=True, kw_only=True):
    """What a server could take.

    peer: its id. online: it answers. current: it has applied what the meta leader has committed. free: bytes
    of the wanted storage that are neither used nor reserved. streams, ha_streams: assigned to it, and those
    among them with more than one replica. known: whether it was ever heard of; others are never chosen.
    """

    peer: str
    name: str = ""
    cluster: str = ""
    tags: Sequence[str] = ()
    online: bool = True
    current: bool = True
    known: bool = True
    free: int = 0
    streams: int = 0
    ha_streams: int = 0


class PlacementWish(Struct, frozen=True, kw_only=True):
    """What a stream needs.

    clusters: to be tried in this order. tags: all must be on the server, those with "!" must not. max_bytes:
    bytes to reserve, 0 or less for none. unique_tag: prefix of the tag that no two servers of the stream may
    share, "" for none. ha_streams_max: of a server; 0 or less: no limit. keep: servers that the stream has
    and that stay. avoid: never chosen. salt: decides between equal servers.
    """

    replicas: int
    clusters: Sequence[str]
    tags: Sequence[str] = ()
    max_bytes: int = 0
    unique_tag: str = ""
    ha_streams_max: int = 0
    keep: Sequence[str] = ()
    avoid: Collection[str] = ()
    salt: str = ""


class Placed(Struct, frozen=True):
    """peers: those kept first, then the new ones, best first."""

    peers: tuple[str, ...]
    cluster: str


class PlacementRefusal:
    """Collects why servers were left out. The official server lists tags in random order."""

    def __init__(self) -> None:
        self._reasons: set[Reason] = set()
        self._missing: set[str] = set()
        self._unwanted: set[str] = set()

    def add(self, reason: Reason) -> None:
        self._reasons.add(reason)

    def add_tag(self, tag: str) -> None:
        """A wanted tag that a server does not have, or one with "!" that it has."""
        if tag.startswith("!"):
            self._unwanted.add(tag.removeprefix("!"))
        else:
            self._missing.add(tag)

    def error(self) -> JetStreamApiError:
        """Error 10005."""
        parts = ["no suitable peers for placement", *(one for one in Reason if one in self._reasons)]
        for what, tags in (("tags not matched", self._missing), ("tags excluded", self._unwanted)):
            if tags:
                listed = ", ".join(f"'{tag}'" for tag in sorted(tags))
                parts.append(f"{what} [{listed}]")
        return codes.CLUSTER_NO_PEERS.exception(err=", ".join(parts))


def place(wish: PlacementWish, offers: Iterable[PeerOffer]) -> Placed:
    """Chooses servers in the first cluster of the wish that has enough.

    Raises JetStreamApiError 10005 with the reasons of all clusters tried.
    """
    known = sorted(offers, key=lambda offer: offer.peer)
    refusal = PlacementRefusal()
    for cluster in wish.clusters:
        peers = _place_in(cluster, wish, known, refusal)
        if peers is not None:
            return Placed(peers, cluster)
    if not wish.clusters or not all(wish.clusters):
        refusal.add(Reason.OTHER)
    raise refusal.error()


def _place_in(
    cluster: str, wish: PlacementWish, known: list[PeerOffer], refusal: PlacementRefusal
) -> tuple[str, ...] | None:
    """The servers in this cluster; None when there are not enough, with the reasons added to `refusal`."""
    keep = tuple(wish.keep)
    missing = wish.replicas - len(keep)
    if missing <= 0:
        return keep[: wish.replicas]
    unique_tag = wish.unique_tag
    if any(plain_tag(tag.removeprefix("!")).startswith(unique_tag) for tag in wish.tags):
        unique_tag = ""  # the wish says itself which of these tags it wants
    taken = {tag for offer in known if offer.peer in keep and (tag := _tag_of(offer, unique_tag)) is not None}
    suitable: list[PeerOffer] = []
    for offer in known:
        if offer.cluster != cluster:
            if not offer.known:
                refusal.add(Reason.OTHER)
        elif not offer.known:
            refusal.add(Reason.OFFLINE)
        elif offer.peer not in keep and offer.peer not in wish.avoid and _suits(offer, wish, refusal):
            suitable.append(offer)
    largest = max((offer.free for offer in suitable), default=0)
    suitable.sort(key=lambda offer: _rank(offer, wish, largest))
    if unique_tag:
        suitable = _without_taken(suitable, unique_tag, taken, refusal)
    online = sum(offer.online for offer in suitable)
    if len(suitable) < missing:
        if not known:
            refusal.add(Reason.NO_SERVERS)
        return None
    if online + len(keep) < wish.replicas // 2 + 1:
        refusal.add(Reason.OFFLINE)
        return None
    return keep + tuple(offer.peer for offer in suitable[:missing])


def plain_tag(tag: str) -> str:
    """A tag as servers have theirs: the official server compares without case and outer spaces, too."""
    return tag.strip().lower()


def suits_tag(tags: Container[str], wanted: str) -> bool:
    """Whether a server with these tags has the wanted one; for one with "!", whether it has not."""
    return (plain_tag(wanted.removeprefix("!")) in tags) != wanted.startswith("!")


def _suits(offer: PeerOffer, wish: PlacementWish, refusal: PlacementRefusal) -> bool:
    """Whether the server may be chosen; if not, why. The unique tag is checked later."""
    if EXCLUDED_TAG in offer.tags:
        refusal.add(Reason.EXCLUDED)
        return False
    for tag in wish.tags:
        if not suits_tag(offer.tags, tag):
            refusal.add_tag(tag)
            return False
    if wish.max_bytes > 0 and offer.free < wish.max_bytes:
        refusal.add(Reason.STORAGE)
        return False
    if wish.replicas > 1 and 0 < wish.ha_streams_max <= offer.ha_streams:
        refusal.add(Reason.OTHER)
        return False
    return True


def _without_taken(
    suitable: list[PeerOffer], prefix: str, taken: set[str], refusal: PlacementRefusal
) -> list[PeerOffer]:
    """One server per unique tag, the best of each. The official server takes the first of a random order."""
    chosen = []
    for offer in suitable:
        tag = _tag_of(offer, prefix)
        if tag is None or tag in taken:
            refusal.add(Reason.UNIQUE_TAG)
        else:
            taken.add(tag)
            chosen.append(offer)
    return chosen


def _tag_of(offer: PeerOffer, prefix: str) -> str | None:
    """The first tag with the prefix of unique tags."""
    if not prefix:
        return None
    return next((tag for tag in offer.tags if tag.startswith(prefix)), None)


def _rank(offer: PeerOffer, wish: PlacementWish, largest: int) -> tuple[int, int, int, int, int, str]:
    """The sort key: the lowest is the best."""
    availability = 2 if not offer.online else 0 if offer.current else 1
    replicated = offer.ha_streams if wish.replicas > 1 else 0
    steps = offer.free * FREE_STEPS // largest if largest > 0 else 0
    tie = tie_break(wish.salt, offer.peer)
    return availability, replicated, -min(steps, FREE_STEPS - 1), offer.streams, tie, offer.peer


def tie_break(salt: str, peer: str) -> int:
    """A number that is the same on every server, and for each salt another order of the peers."""
    return zlib.crc32(f"{salt}/{peer}".encode("utf-8", "surrogateescape"))


def preferred_leader(peers: Sequence[str], offers: Iterable[PeerOffer], leads: dict[str, int]) -> str:
    """The member that should stand for election first: online, with the fewest such streams.

    leads: how often each peer is preferred already. The official server takes a random online one.
    """
    online = {offer.peer for offer in offers if offer.online}
    candidates = [peer for peer in peers if peer in online] or list(peers)
    return min(candidates, key=lambda peer: (leads.get(peer, 0), peers.index(peer)), default="")


def peers_to_keep(
    leader: str, members: Iterable[str], lags: dict[str, int], online: Collection[str], replicas: int
) -> tuple[str, ...]:
    """The members that stay when a stream is scaled down: its leader, then online ones with the least lag.

    lags: operations that each member is behind; one without an entry is behind all others.
    """
    unknown = 1 + max(lags.values(), default=0)

    def rank(peer: str) -> tuple[bool, bool, int, str]:
        return peer != leader, peer not in online, lags.get(peer, unknown), peer

    return tuple(sorted(members, key=rank)[:replicas])


def step_down_target(
    placement_preferred: str, cluster: str, tags: Sequence[str], leader: str, members: Iterable[PeerOffer]
) -> str | None:
    """The peer that a step-down request names, or None for any. `leader`: the id of the present one.

    placement_preferred is a server's name. Without a name, cluster or tags the group chooses.

    Raises JetStreamApiError 10005 with the official texts: the named server leads already or is no member, or
    no online member has the cluster and tags.
    """
    if placement_preferred:
        found = next((one.peer for one in members if one.name == placement_preferred), None)
        if found == leader:
            raise codes.CLUSTER_NO_PEERS.exception(
                err=f'preferred server "{placement_preferred}" is already leader'
            )
        if found is None:
            raise codes.CLUSTER_NO_PEERS.exception(err=f'preferred server "{placement_preferred}" not known')
        return found
    possible = [one for one in members if one.online and one.peer != leader]
    if cluster:
        possible = [one for one in possible if one.cluster == cluster]
    possible = [one for one in possible if all(plain_tag(tag) in one.tags for tag in tags)]
    if not possible:
        raise codes.CLUSTER_NO_PEERS.exception(err="no replacement peer connected")
    possible.sort(key=lambda one: (not one.current, one.peer))
    return possible[0].peer if cluster or tags else None
