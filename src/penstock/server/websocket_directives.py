"""The block `websocket` of nats.conf."""

from __future__ import annotations

from penstock.errors import ConfigError
from penstock.server import tls_directives
from penstock.server.conf import Node
from penstock.server.directives import Reader, address, block, boolean, duration, fields, integer, text
from penstock.server.options import WebsocketOptions

UNSUPPORTED = frozenset(
    """advertise authorization headers jwt_cookie no_auth_user pass_cookie ping_interval token_cookie
    user_cookie""".split()
)


def websocket(node: Node, name: str) -> WebsocketOptions:
    """Reads the block. Raises ConfigError."""
    found = fields(block(node, name), _WEBSOCKET, UNSUPPORTED)
    host, port = found.pop("listen", (None, None))
    if port is not None:
        found["port"] = port
    if host is not None:
        found["host"] = host
    try:
        return WebsocketOptions(**found)
    except ConfigError as error:
        raise node.where.error(error.message) from error


def _origins(node: Node, name: str) -> tuple[str, ...]:
    if isinstance(node.value, list):
        return tuple(text(entry, name) for entry in node.value)
    return (text(node, name),)


_WEBSOCKET: dict[str, tuple[str, Reader]] = {
    "listen": ("listen", address),
    "host": ("host", text),
    "net": ("host", text),
    "port": ("port", integer),
    "no_tls": ("no_tls", boolean),
    "tls": ("tls", tls_directives.tls),
    "compression": ("compression", boolean),
    "same_origin": ("same_origin", boolean),
    "allowed_origins": ("allowed_origins", _origins),
    "allowed_origin": ("allowed_origins", _origins),
    "allow_origins": ("allowed_origins", _origins),
    "allow_origin": ("allowed_origins", _origins),
    "origins": ("allowed_origins", _origins),
    "origin": ("allowed_origins", _origins),
    "handshake_timeout": ("handshake_timeout_ns", duration),
}
