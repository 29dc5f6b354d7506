"""Overview, accounts, connections and the cluster: slices of the monitoring pages."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from penstock.errors import MisuseError
from penstock.web.request_checks import natural_number
from penstock.web.visitor import Visitor
from penstock.web.web_ports import Slice

ROWS = 50
ROWS_MAX = 200
_OVERVIEW = (
    "server_id", "server_name", "version", "penstock_version", "uptime", "now", "start", "mem", "cpu",
    "cores",    "connections", "total_connections", "max_connections", "routes", "leafnodes", "subscriptions",
    "slow_consumers", "in_msgs", "out_msgs", "in_bytes", "out_bytes", "max_payload", "host", "port",
)  # fmt: skip
_JETSTREAM = ("memory", "storage", "reserved_memory", "reserved_storage", "accounts", "streams", "consumers",
              "messages", "bytes", "api", "config", "disabled")  # fmt: skip
_CONNECTION = (
    "cid", "ip", "port", "type", "start", "last_activity", "uptime", "idle", "rtt", "pending_bytes",
    "in_msgs", "out_msgs", "in_bytes", "out_bytes", "subscriptions", "name", "lang", "version", "account",
    "authorized_user", "stop", "reason", "stalls", "tls_version",
)  # fmt: skip
_SORTS = frozenset("""bytes_from bytes_to cid idle last msgs_from msgs_to pending rtt subs uptime""".split())


async def overview(visitor: Visitor, query: Mapping[str, str]) -> Slice:
    """Counters of the server, JetStream's usage, health, and the visitor's account."""
    ports = visitor.ports
    varz, jsz, health, accounts = await asyncio.gather(
        ports.page("varz", {}),
        ports.page("jsz", {}),
        ports.page("healthz", {"details": "true"}),
        ports.account_names(),
    )
    return {
        **{name: varz[name] for name in _OVERVIEW if name in varz},
        "jetstream": {name: jsz[name] for name in _JETSTREAM if name in jsz},
        "health": health,
        "accounts": len(accounts),
        "account": visitor.account,
    }


async def accounts(visitor: Visitor, query: Mapping[str, str]) -> Slice:
    """A slice of the accounts whose names contain `filter`, with their traffic."""
    wanted = query.get("filter", "").lower()
    names = [name for name in await visitor.ports.account_names() if wanted in name.lower()]
    offset, limit = window(query)
    shown = names[offset : offset + limit]
    return {
        "total": len(names),
        "offset": offset,
        "limit": limit,
        "rows": await visitor.ports.account_stats(shown),
        "own": visitor.account,
    }


async def connections(visitor: Visitor, query: Mapping[str, str]) -> Slice:
    """A slice of the connections, by default those with the most pending bytes first."""
    sort = query.get("sort", "pending")
    if sort not in _SORTS:
        raise MisuseError(f"sort is {sort[:40]!r}; it may be {', '.join(sorted(_SORTS))}")
    offset, limit = window(query)
    asked = {"sort": sort, "offset": str(offset), "limit": str(limit), "auth": "true"}
    if query.get("account"):
        asked["acc"] = query["account"]
    varz, found = await asyncio.gather(visitor.ports.page("varz", {}), visitor.ports.page("connz", asked))
    return {
        "total": found["total"],
        "offset": offset,
        "limit": limit,
        "rows": [pick(one, _CONNECTION) for one in found["connections"]],
        "slow_consumers": varz["slow_consumers"],
        "stalled_clients": varz.get("stalled_clients", 0),
        "max_pending": varz.get("max_pending", 0),
        "now": found["now"],
    }


async def cluster(visitor: Visitor, query: Mapping[str, str]) -> Slice:
    """Routes, gateways, leaf nodes, the meta group and a slice of the replicated groups."""
    ports = visitor.ports
    varz, jsz, routes, gateways, leafs, groups = await asyncio.gather(
        ports.page("varz", {}),
        ports.page("jsz", {}),
        ports.page("routez", {}),
        ports.page("gatewayz", {}),
        ports.page("leafz", {}),
        ports.page("raftz", {}),
    )
    offset, limit = window(query)
    wanted = query.get("filter", "").lower()
    rows = [
        {"account": account, "group": name, **group, "leader": _server_of(group.get("leader", ""))}
        for account, members in groups.items()
        if isinstance(members, dict)
        for name, group in members.items()
        if wanted in f"{account} {name}".lower()
    ]
    return {
        "server": varz["server_name"],
        "cluster": varz.get("cluster", {}),
        "meta": jsz.get("meta_cluster"),
        "routes": routes.get("routes", [])[:ROWS_MAX],
        "outbound_gateways": gateways.get("outbound_gateways", {}),
        "inbound_gateways": gateways.get("inbound_gateways", {}),
        "leafs": leafs.get("leafs", [])[:ROWS_MAX],
        "groups": rows[offset : offset + limit],
        "total": len(rows),
        "offset": offset,
        "limit": limit,
    }


def _server_of(member: str) -> str:
    """The server's name in that of a member of a group."""
    return member.rpartition(".")[0] or member


def window(query: Mapping[str, str]) -> tuple[int, int]:
    """Offset and limit of a slice. Raises MisuseError."""
    offset = natural_number(query, "offset", 0, 10**9)
    return offset, max(1, natural_number(query, "limit", ROWS, ROWS_MAX))


def pick(one: Mapping[str, Any], names: tuple[str, ...]) -> Slice:
    """These fields of an object, where it has them."""
    return {name: one[name] for name in names if name in one}
