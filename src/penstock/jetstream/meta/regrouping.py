"""Other servers for a stream that exists: where it is to go, and how its assignment says so.

A change sets the desired group. The leader of the stream's group carries it out (membership_steps.py) and
reports that it has (settled). Until then the stream has the servers of both, and those of targets that were
given up meanwhile: the group may have added them.

Invariants: a server that loses the stream is in `leaving` until it has confirmed that its files are gone; the
target is never empty; what was in progress is not forgotten by another change.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import structs

from penstock.errors import JetStreamApiError
from penstock.jetstream.meta.assignments import DesiredGroup, GroupOrigin, StreamAssignment, merged
from penstock.jetstream.meta.meta_commands import PlacementRules
from penstock.jetstream.meta.meta_tables import MetaTables
from penstock.jetstream.meta.placement import EXCLUDED_TAG, PlacementWish, place, suits_tag
from penstock.protocol.api import ApiStreamConfig
from penstock.protocol.ids import short_hash


def wish_for(
    tables: MetaTables,
    config: ApiStreamConfig,
    rules: PlacementRules,
    salt: str,
    *,
    keep: Sequence[str] = (),
    avoid: Collection[str] = (),
    tags: Sequence[str] = (),
) -> PlacementWish:
    """What a stream needs. Servers that are evacuated or removed are avoided as well. A cluster in the
    configuration's placement replaces those of the rules."""
    placement = config.placement
    clusters: Sequence[str] = rules.clusters
    wanted: list[str] = []
    if placement is not None:
        wanted = list(placement.tags)
        if placement.cluster:
            clusters = (placement.cluster,)
    return PlacementWish(
        replicas=max(1, config.num_replicas),
        clusters=clusters,
        tags=[*wanted, *tags],
        max_bytes=config.max_bytes,
        unique_tag=rules.unique_tag,
        ha_streams_max=rules.ha_streams_max,
        keep=keep,
        avoid=tables.retired_peers().union(avoid),
        salt=salt,
    )


def _salt(tables: MetaTables, stream: StreamAssignment) -> str:
    return short_hash(f"{stream.account}/{stream.name}:{tables.applied}")


def _cluster(stream: StreamAssignment) -> str:
    return stream.group.cluster if stream.desired is None else stream.desired.cluster


def placed_again(
    tables: MetaTables, stream: StreamAssignment, rules: PlacementRules
) -> tuple[tuple[str, ...], str]:
    """The servers for a stream with another placement, and their cluster: of those that it has, the ones that
    suit stay. Raises JetStreamApiError 10005."""
    placement = stream.config.placement
    tags = placement.tags if placement is not None else []
    wanted = placement.cluster if placement is not None else ""
    cluster = wanted or next(iter(rules.clusters), _cluster(stream))
    retired = tables.retired_peers()

    def suits(peer: str) -> bool:
        record = tables.peers.get(peer)
        if record is None or record.cluster != cluster or peer in retired or EXCLUDED_TAG in record.tags:
            return False
        return all(suits_tag(record.tags, tag) for tag in tags)

    keep = tuple(peer for peer in stream.target if suits(peer))
    offers = tables.offers(stream.config.storage)
    wish = wish_for(tables, stream.config, rules, _salt(tables, stream), keep=keep)
    try:
        placed = place(structs.replace(wish, clusters=[cluster]), offers)
    except JetStreamApiError:
        # in another cluster, where the rules name one, and nothing stays
        placed = place(structs.replace(wish, keep=()), offers)
    return placed.peers, placed.cluster


def placed_without(
    tables: MetaTables, stream: StreamAssignment, leave: str, rules: PlacementRules, tags: Sequence[str]
) -> tuple[tuple[str, ...], str]:
    """The servers after `leave` was replaced, by one with the tags; all of another cluster where this one has
    none. Raises JetStreamApiError 10005."""
    keep = tuple(peer for peer in stream.target if peer != leave)
    salt = _salt(tables, stream)
    offers = tables.offers(stream.config.storage)
    wish = wish_for(tables, stream.config, rules, salt, keep=keep, avoid=[leave], tags=tags)
    try:
        placed = place(structs.replace(wish, clusters=[_cluster(stream)]), offers)
    except JetStreamApiError:
        others = sorted({offer.cluster for offer in offers} - {_cluster(stream)})
        if not others:
            raise
        placed = place(structs.replace(wish, clusters=others, keep=()), offers)
    return placed.peers, placed.cluster


def without_peers(
    tables: MetaTables, stream: StreamAssignment, away: Collection[str], unique_tag: str
) -> StreamAssignment | None:
    """The stream with its servers in `away` replaced, as many as there are others for; with fewer servers
    where there are not. None when that changes nothing, or would leave none."""
    target = stream.target
    retain = tuple(peer for peer in target if peer not in away)
    rules = PlacementRules((_cluster(stream),), unique_tag)
    shrink_to = stream.desired.shrink_to if stream.desired is not None else 0
    full = len(target) if shrink_to else max(len(target), stream.config.num_replicas)
    peers = retain
    offers = tables.offers(stream.config.storage)
    wish = wish_for(tables, stream.config, rules, _salt(tables, stream), keep=retain, avoid=away)
    if not shrink_to or len(retain) < shrink_to:
        for replicas in range(shrink_to or full, len(retain), -1):
            try:
                placed = place(structs.replace(wish, replicas=replicas, clusters=[_cluster(stream)]), offers)
            except JetStreamApiError:
                continue
            peers = placed.peers
            break
    if not peers or peers == target:
        return None
    desired = desire(tables, stream, peers, _cluster(stream), cancellable=False, always=True)
    assert desired is not None
    if stream.desired is not None:
        shrink_to = shrink_to if len(peers) > shrink_to else 0
        desired = structs.replace(desired, is_move=stream.desired.is_move, shrink_to=shrink_to)
    return regrouped(stream, desired)


def desire(
    tables: MetaTables,
    stream: StreamAssignment,
    peers: tuple[str, ...],
    cluster: str,
    *,
    cancellable: bool,
    always: bool = False,
) -> DesiredGroup | None:
    """The desired group with these servers; None when the stream has exactly them and nothing is in progress
    (unless `always`). A change that began earlier keeps its origin."""
    before = stream.desired
    if before is None and set(peers) == set(stream.group.peers) and not always:
        return None
    origin = before.origin if before is not None else None
    if origin is None and cancellable:
        config = stream.config
        origin = GroupOrigin(config.num_replicas, config.placement, stream.group.peers, stream.group.cluster)
    created = before.created if before is not None else tables.now
    return DesiredGroup(created, cluster, peers, origin)


def regrouped(stream: StreamAssignment, desired: DesiredGroup | None) -> StreamAssignment:
    """The stream with another desired group. No server loses the stream by that: the group may have added it
    already."""
    if desired is not None:
        wanted = set(stream.group.peers).union(desired.peers)
        also = tuple(peer for peer in stream.hosts if peer not in wanted)
        desired = structs.replace(desired, also=also)
    changed = structs.replace(stream, desired=desired)
    leaving = tuple(peer for peer in stream.leaving if peer not in changed.hosts)
    return structs.replace(changed, leaving=leaving)


def settled(stream: StreamAssignment) -> StreamAssignment:
    """The stream whose group has become what was desired: only now other servers lose it."""
    desired = stream.desired
    assert desired is not None
    preferred = stream.group.preferred if stream.group.preferred in desired.peers else ""
    # A server that has lost the stream and gets it again must not begin its group a second time.
    founders = stream.group.founders if set(desired.peers) == set(stream.group.peers) else ()
    group = structs.replace(
        stream.group, peers=desired.peers, cluster=desired.cluster, preferred=preferred, founders=founders
    )
    left = set(merged(stream.leaving, stream.hosts)) - set(desired.peers)
    return structs.replace(stream, group=group, desired=None, leaving=tuple(sorted(left)))
