"""The block `cluster` of nats.conf."""

from __future__ import annotations

from typing import Any

from penstock.cluster.mesh_ports import address_of
from penstock.errors import ConfigError
from penstock.routing.permissions import Permissions
from penstock.server.config import access_directives
from penstock.server.config.block_fields import fields
from penstock.server.config.cluster_options import PING_INTERVAL_MAX_NS, ClusterOptions
from penstock.server.config.conf_parser import ConfMap, ConfNode
from penstock.server.config.link_directives import CREDENTIALS, link_fields
from penstock.server.config.values import (
    Reader,
    block,
    boolean,
    integer,
    interval,
    shown,
    text,
)

NO_PORT = "needs cluster.port or cluster.listen, at which other servers reach this one; -1 is any free port"


def cluster(node: ConfNode, name: str) -> dict[str, Any]:
    """Reads the block.

    Returns:
        The options it sets: `cluster_name` and `cluster`. A block without port and routes opens nothing, and
        sets at most the name, as on the official server.

    Raises:
        ConfigError: unknown field or invalid value.
    """
    found = link_fields(node, name, _CLUSTER)
    made: dict[str, Any] = {}
    if "name" in found:
        made["cluster_name"] = found.pop("name")
    if not found.get("port"):
        if found.get("routes"):
            raise node.where.error(f"cluster.routes {NO_PORT}")
        return made
    try:
        return made | {"cluster": ClusterOptions(**found)}
    except ConfigError as error:
        raise node.where.error(error.message) from error


def _routes(node: ConfNode, name: str) -> tuple[str, ...]:
    if not isinstance(node.value, list):
        raise node.where.error(f"{name} is {shown(node)}; it must be an array of URLs")
    found: dict[str, None] = {}
    for entry in node.value:
        url = text(entry, name)
        try:
            address_of(url)
        except ConfigError as error:
            raise entry.where.error(error.message) from error
        if url in found:
            entry.warn(f"Duplicate route entry detected: {url}")
        found[url] = None
    return tuple(found)


def _authorization(node: ConfNode, name: str) -> dict[str, Any]:
    for key, where, _ in block(node, name):
        refusal = _REFUSED.get(key.lower())
        if refusal is not None:
            raise where.error(f"Cluster authorization does not {refusal}")
    return fields(block(node, name), _AUTHORIZATION, frozenset())


_REFUSED = {
    "users": "allow multiple users",
    "token": "support tokens",
    **dict.fromkeys(("auth_callout", "auth_hook"), "support callouts"),
}


def _permissions(node: ConfNode, name: str) -> Permissions:
    """`import` and `export`, or `publish` and `subscribe`."""
    renamed = {"import": "publish", "export": "subscribe"}
    items = ConfMap()
    for key, where, entry in block(node, name):
        word = key.lower()
        if word in ("allow_responses", "allow_response"):
            raise where.error("Cluster permissions do not support dynamic responses")
        items.put(renamed.get(word, key), where, entry)
    return access_directives.permissions(ConfNode(items, node.where), name)


def _ping_interval(node: ConfNode, name: str) -> int:
    given = interval(node, name)
    if given > PING_INTERVAL_MAX_NS:
        node.warn(
            "Cluster 'ping_interval' will reset to "
            f"{PING_INTERVAL_MAX_NS // 10**9}s which is the max for routes"
        )
    return given


def _accounts(node: ConfNode, name: str) -> tuple[str, ...]:
    entries = node.value if isinstance(node.value, list) else [node]
    return tuple(text(entry, name) for entry in entries)


_AUTHORIZATION: dict[str, tuple[str, Reader]] = {
    **CREDENTIALS,
    **dict.fromkeys(("permissions", "default_permissions"), ("permissions", _permissions)),
}
_CLUSTER: dict[str, tuple[str, Reader]] = {
    "name": ("name", text),
    "authorization": ("authorization", _authorization),
    "routes": ("routes", _routes),
    "cluster_advertise": ("advertise", text),
    "connect_retries": ("connect_retries", integer),
    "connect_backoff": ("connect_backoff", boolean),
    "permissions": ("permissions", _permissions),
    "pool_size": ("pool_size", integer),
    "accounts": ("accounts", _accounts),
    "ping_interval": ("ping_interval_ns", _ping_interval),
    "ping_max": ("ping_max", integer),
}
