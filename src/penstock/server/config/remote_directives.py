"""Blocks of nats.conf for protocols that this server does not support: `mqtt`.

The blocks are parsed and validated, with line and column. A block that would need a listener or a connection
is then refused: a server that silently lacks a configured link would accept writes that the other side never
sees. A block that opens nothing (empty, or only a name, timeouts and the like) has no effect, as in the
official server.
"""

from __future__ import annotations

from penstock.server.config.block_fields import unknown_field
from penstock.server.config.conf_parser import ConfMap, ConfNode
from penstock.server.config.values import Reader, address, block, boolean, duration, integer, text

UNSUPPORTED_TEXT = "which this server does not support; remove it to start without it"
_OPENING = {
    "mqtt": frozenset({"listen", "port"}),
}
_WHAT = {"mqtt": "MQTT"}


def check(node: ConfNode, name: str) -> None:
    """Validates one of the blocks.

    Raises:
        ConfigError: an unknown field, an invalid value, or a block that needs an unsupported feature.
    """
    items = block(node, name)
    _check(items, _TABLES[name])
    for key, at, value in items:
        if key.lower() in _OPENING[name] and value.value not in (0, []):
            raise at.error(f'field "{key}" of "{name}" needs {_WHAT[name]}, {UNSUPPORTED_TEXT}')


def _check(items: ConfMap, table: dict[str, Reader]) -> None:
    for key, where, node in items:
        read = table.get(key.lower())
        if read is None:
            if node.used:
                continue
            raise unknown_field(key, where, table)
        read(node, key.lower())


# -- values


def _tls(node: ConfNode, name: str) -> None:
    from penstock.server.config.tls_directives import tls

    tls(node, name)


def _map_of(table: dict[str, Reader]) -> Reader:
    def read(node: ConfNode, name: str) -> None:
        _check(block(node, name), table)

    return read


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
_TABLES = {"mqtt": _MQTT}
