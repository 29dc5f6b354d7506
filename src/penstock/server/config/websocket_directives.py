"""The block `websocket` of nats.conf."""

from __future__ import annotations

from typing import Any

from penstock.errors import ConfigError
from penstock.server.config import tls_directives
from penstock.server.config.block_fields import fields
from penstock.server.config.conf_parser import ConfNode
from penstock.server.config.server_options import WebsocketOptions
from penstock.server.config.values import Reader, address, block, boolean, duration, integer, interval, text

UNSUPPORTED_AUTHORIZATION = frozenset(
    {"users", "permissions", "default_permissions", "auth_callout", "proxy_required"}
)


def websocket(node: ConfNode, name: str) -> WebsocketOptions:
    """Reads the block. Raises ConfigError."""
    found = fields(block(node, name), _WEBSOCKET, frozenset())
    found.update(found.pop("authorization", {}))
    host, port = found.pop("listen", (None, None))
    if port is not None:
        found["port"] = port
    if host is not None:
        found["host"] = host
    try:
        return WebsocketOptions(**found)
    except ConfigError as error:
        raise node.where.error(error.message) from error


def _origins(node: ConfNode, name: str) -> tuple[str, ...]:
    if isinstance(node.value, list):
        return tuple(text(entry, name) for entry in node.value)
    return (text(node, name),)


def _authorization(node: ConfNode, name: str) -> dict[str, Any]:
    return fields(block(node, name), _AUTHORIZATION, UNSUPPORTED_AUTHORIZATION)


def _headers(node: ConfNode, name: str) -> tuple[tuple[str, str], ...]:
    return tuple((key, text(entry, key)) for key, _, entry in block(node, name))


_AUTHORIZATION: dict[str, tuple[str, Reader]] = {
    "user": ("user", text),
    "username": ("user", text),
    "pass": ("password", text),
    "password": ("password", text),
    "token": ("token", text),
    "timeout": ("auth_timeout_ns", duration),
}
_WEBSOCKET: dict[str, tuple[str, Reader]] = {
    "listen": ("listen", address),
    "host": ("host", text),
    "net": ("host", text),
    "port": ("port", integer),
    "no_tls": ("no_tls", boolean),
    "tls": ("tls", tls_directives.tls),
    "compression": ("compression", boolean),
    "compress": ("compression", boolean),
    "advertise": ("advertise", text),
    "ping_interval": ("ping_interval_ns", interval),
    "same_origin": ("same_origin", boolean),
    "allowed_origins": ("allowed_origins", _origins),
    "allowed_origin": ("allowed_origins", _origins),
    "allow_origins": ("allowed_origins", _origins),
    "allow_origin": ("allowed_origins", _origins),
    "origins": ("allowed_origins", _origins),
    "origin": ("allowed_origins", _origins),
    "handshake_timeout": ("handshake_timeout_ns", duration),
    "authorization": ("authorization", _authorization),
    "authentication": ("authorization", _authorization),
    "no_auth_user": ("no_auth_user", text),
    "jwt_cookie": ("jwt_cookie", text),
    "user_cookie": ("user_cookie", text),
    "pass_cookie": ("pass_cookie", text),
    "token_cookie": ("token_cookie", text),
    "headers": ("headers", _headers),
}
