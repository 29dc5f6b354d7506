"""How the servers of a new cluster agree on the first members of the meta group, as pure functions.

Every server with JetStream tells the others who it is (Presence). The one whose name sorts first begins the
group, with those that it sees and that have none; they begin it with the members that it tells. A server that
sees a group without being one of its founders waits until the group's leader adds it.

Invariant: two different groups cannot both decide. A group is begun with at least `needed(n)` of n expected
servers, so that its majority is one of all n, and each server begins one group in its life (of its disk).

Rejected: a majority of the expected servers as founders (two of five servers in each half would make two
groups of three); all of them (a server that is missing at the first start would block the cluster).
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

FOUNDERS_MIN = 2


class Presence(Struct, frozen=True, kw_only=True):
    """What a server tells the others about itself.

    member: its name in groups. routes: how many it has configured; peers: how many servers it has routes to;
    replicating: those among them with JetStream. founders: with whom it began the meta group; has_meta: it
    has one, begun or joined. max_*, used_*: bytes, -1 without a limit. accounts: bytes in memory and on disk
    by account. led: by account, of the streams that the server leads: replicas, and bytes of one replica in
    memory and on disk.
    """

    name: str
    peer: str
    member: str
    boot: int
    server_id: str = ""
    cluster: str = ""
    tags: tuple[str, ...] = ()
    domain: str = ""
    routes: int = 0
    peers: int = 0
    replicating: int = 0
    has_meta: bool = False
    founders: tuple[str, ...] = ()
    cluster_id: str = ""
    applied: int = 0
    max_memory: int = -1
    max_storage: int = -1
    used_memory: int = 0
    used_storage: int = 0
    accounts: dict[str, tuple[int, int]] = {}
    led: dict[str, list[tuple[int, int, int]]] = {}


class Begin(Struct, frozen=True):
    """Begin the meta group with these members; none: wait to be added to the one that there is."""

    founders: tuple[str, ...]


def expected(own: Presence, number: int) -> int:
    """How many servers with JetStream the cluster is to have, as far as is known. number: those that are
    seen, this one among them. A server that has reached all its routes counts only those with JetStream."""
    known = max(FOUNDERS_MIN, number, own.replicating + 1)
    return known if own.peers + 1 >= own.routes else max(known, own.routes)


def needed(count: int) -> int:
    """How many of the expected servers must be among the founders."""
    return max(FOUNDERS_MIN, count - 1 if count % 2 else count)


def decide(own: Presence, others: Iterable[Presence], *, is_settled: bool) -> Begin | None:
    """What a server without a meta group does; None: it waits for more servers. others: those that it has
    links to. is_settled: no server has come or gone for a while; until then it hopes for all of them."""
    seen = sorted(others, key=lambda one: one.name)
    begun = [one for one in seen if one.has_meta]
    for one in begun:
        if own.member in one.founders:
            return Begin(one.founders)
    if begun:
        return Begin(())
    founders = tuple(sorted((own.member, *(one.member for one in seen))))
    count = expected(own, len(founders))
    if any(one.name < own.name for one in seen):
        return None
    if len(founders) >= count or (is_settled and len(founders) >= needed(count)):
        return Begin(founders)
    return None
