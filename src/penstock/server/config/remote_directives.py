"""Blocks of nats.conf for other servers and protocols: `cluster`, `gateway`, `leafnodes`, `mqtt`.

The server does not support them. The blocks are parsed and validated, with line and column. A block that
would need a listener or a connection is then refused: a server that silently is not a member of its
configured cluster would accept writes that the other members never see. A block that opens nothing (empty, or
only a name, timeouts and the like) has no effect, as in the official server.
"""

from __future__ import annotations

from typing import Any

from penstock.server.config.conf_parser import ConfMap, ConfNode, SourceLocation
from penstock.server.config.values import Reader, address, block, boolean, duration, integer, shown, text

UNSUPPORTED_TEXT = "which this server does not support; remove it to start without it"
_OPENING = {
    "cluster": frozenset({"listen", "port", "routes"}),
    "gateway": frozenset({"listen", "port", "gateways"}),
    "leafnodes": frozenset({"listen", "port", "remotes"}),
    "mqtt": frozenset({"listen", "port"}),
}
_WHAT = {"cluster": "clusters", "gateway": "gateways", "leafnodes": "leaf nodes", "mqtt": "MQTT"}


def checked(node: ConfNode, name: str, where: SourceLocation) -> dict[str, Any]:
    """Validates one of the blocks.

    Returns:
        The options it sets: at most the cluster name.

    Raises:
        ConfigError: an unknown field, an invalid value, or a block that needs an unsupported feature.
    """
    name = {"leaf": "leafnodes"}.get(name, name)
    items = block(node, name)
    _check(items, _TABLES[name])
    for key, at, value in items:
        if key.lower() in _OPENING[name] and value.value not in (0, []):
            raise at.error(f'field "{key}" of "{name}" needs {_WHAT[name]}, {UNSUPPORTED_TEXT}')
    found = {key.lower(): value.value for key, _, value in items}
    return {"cluster_name": found["name"]} if name == "cluster" and "name" in found else {}


def _check(items: ConfMap, table: dict[str, Reader]) -> None:
    for key, where, node in items:
        read = table.get(key.lower())
        if read is None:
            if node.used:
                continue
            raise where.error(f'unknown field "{key}"')
        read(node, key.lower())


# -- values


def _any(node: ConfNode, name: str) -> None:
    """Accepts any value: meaningful only with other servers."""


def _tls(node: ConfNode, name: str) -> None:
    from penstock.server.config.tls_directives import tls

    tls(node, name)


def _permissions(node: ConfNode, name: str) -> None:
    from penstock.server.config.access_directives import permissions

    permissions(node, name)


def _texts(node: ConfNode, name: str) -> None:
    for entry in node.value if isinstance(node.value, list) else [node]:
        text(entry, name)


def _url(node: ConfNode, name: str) -> None:
    from urllib.parse import urlsplit

    for entry in node.value if isinstance(node.value, list) else [node]:
        url = text(entry, name)
        try:
            good = bool(urlsplit(url).hostname)
        except ValueError:
            good = False
        if not good:
            raise entry.where.error(f'error parsing {name} url [{url!r}]: write it as "nats://host:port"')


def _maps_of(table: dict[str, Reader]) -> Reader:
    """A parser for an array of maps with these fields."""

    def read(node: ConfNode, name: str) -> None:
        if not isinstance(node.value, list):
            raise node.where.error(f"{name} is {shown(node)}; it must be an array of maps")
        for entry in node.value:
            _check(block(entry, name), table)

    return read


def _map_of(table: dict[str, Reader]) -> Reader:
    def read(node: ConfNode, name: str) -> None:
        _check(block(node, name), table)

    return read


def _routes(node: ConfNode, name: str) -> None:
    if not isinstance(node.value, list):
        raise node.where.error(f"{name} is {shown(node)}; it must be an array of URLs")
    _url(node, name)


def _compression(node: ConfNode, name: str) -> None:
    """Validates a boolean, a mode, or a map of `mode` and `rtt_thresholds`."""
    if isinstance(node.value, bool):
        return
    if isinstance(node.value, ConfMap):
        _check(node.value, {"mode": text, "rtt_thresholds": _texts, "thresholds": _texts, "rtts": _texts})
        return
    if text(node, name).lower() not in _MODES:
        raise node.where.error(f'unsupported compression mode "{node.value}"')


_MODES = frozenset(
    """accept not_supported disabled off false enabled on true s2_auto s2_uncompressed s2_fast s2_better
    s2_best auto uncompressed fast better best""".split()
)
_CREDENTIALS: dict[str, Reader] = {
    "user": text,
    "username": text,
    "pass": text,
    "password": text,
    "token": text,
    "timeout": duration,
}
_LISTENER: dict[str, Reader] = {
    "listen": address,
    "port": integer,
    "host": text,
    "net": text,
    "tls": _tls,
    "advertise": text,
    "write_deadline": duration,
    "write_timeout": text,
}
_CLUSTER: dict[str, Reader] = {
    **_LISTENER,
    "name": text,
    "authorization": _map_of({**_CREDENTIALS, "permissions": _permissions}),
    "routes": _routes,
    "cluster_advertise": text,
    "no_advertise": boolean,
    "connect_retries": integer,
    "connect_backoff": boolean,
    "permissions": _permissions,
    "pool_size": integer,
    "accounts": _texts,
    "compression": _compression,
    "ping_interval": duration,
    "ping_max": integer,
}
_GATEWAY: dict[str, Reader] = {
    **_LISTENER,
    "name": text,
    "authorization": _map_of(_CREDENTIALS),
    "connect_retries": integer,
    "connect_backoff": boolean,
    "reject_unknown": boolean,
    "reject_unknown_cluster": boolean,
    "gateways": _maps_of({"name": text, "tls": _tls, "url": _url, "urls": _url}),
}
_REMOTE: dict[str, Reader] = {
    **dict.fromkeys(("no_randomize", "dont_randomize", "hub", "disabled", "request_isolation"), boolean),
    **dict.fromkeys(("isolate_leafnode_interest", "isolate", "ignore_discovered_servers"), boolean),
    **dict.fromkeys(("ws_compress", "ws_compression", "websocket_compress"), boolean),
    **dict.fromkeys(("websocket_compression", "ws_no_masking", "websocket_no_masking"), boolean),
    **dict.fromkeys(("url", "urls"), _url),
    **dict.fromkeys(("account", "local", "creds", "credentials", "nkey", "seed"), text),
    **dict.fromkeys(("deny_imports", "deny_import", "deny_exports", "deny_export"), _texts),
    **dict.fromkeys(("jetstream_cluster_migrate", "js_cluster_migrate"), _any),
    **dict.fromkeys(("first_info_timeout", "dial_timeout"), duration),
    "compression": _compression,
    "tls": _tls,
    "proxy": _map_of({"url": text, "username": text, "password": text, "timeout": duration}),
}
_LEAF_USER: dict[str, Reader] = {**_CREDENTIALS, "nkey": text, "account": text, "proxy_required": boolean}
_LEAFNODES: dict[str, Reader] = {
    **_LISTENER,
    "authorization": _map_of({**_LEAF_USER, "users": _maps_of(_LEAF_USER)}),
    "remotes": _maps_of(_REMOTE),
    **dict.fromkeys(("reconnect", "reconnect_delay", "reconnect_interval", "dial_timeout"), duration),
    "leafnode_advertise": text,
    "no_advertise": boolean,
    "min_version": text,
    "minimum_version": text,
    "compression": _compression,
    "isolate_leafnode_interest": boolean,
    "isolate": boolean,
}
_MQTT: dict[str, Reader] = {
    **_LISTENER,
    **dict.fromkeys(("authorization", "authentication"), _map_of(_CREDENTIALS)),
    "no_auth_user": text,
    **dict.fromkeys(("ack_wait", "ackwait", "js_api_timeout", "api_timeout"), duration),
    **dict.fromkeys(("max_ack_pending", "max_pending", "max_inflight"), integer),
    **dict.fromkeys(("stream_replicas", "consumer_replicas"), integer),
    **dict.fromkeys(("consumer_inactive_threshold", "consumer_auto_cleanup"), duration),
    **dict.fromkeys(("consumer_memory_storage", "reject_qos2_publish"), boolean),
    "downgrade_qos2_subscribe": boolean,
    "js_domain": text,
}
_TABLES = {"cluster": _CLUSTER, "gateway": _GATEWAY, "leafnodes": _LEAFNODES, "mqtt": _MQTT}
