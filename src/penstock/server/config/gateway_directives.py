"""The block `gateway` of nats.conf."""

from __future__ import annotations

from typing import Any

from penstock.cluster.mesh_ports import address_of
from penstock.errors import ConfigError
from penstock.server.config import tls_directives
from penstock.server.config.block_fields import each, fields
from penstock.server.config.conf_parser import ConfNode
from penstock.server.config.gateway_options import GatewayOptions, GatewayRemoteOptions
from penstock.server.config.link_directives import CREDENTIALS, link_fields
from penstock.server.config.values import (
    Reader,
    block,
    boolean,
    integer,
    shown,
    text,
)


def gateway(node: ConfNode, name: str) -> dict[str, Any]:
    """Reads the block.

    Returns:
        The option it sets. A block without name, port and clusters opens nothing, and sets nothing, as on the
        official server.

    Raises:
        ConfigError: unknown field or invalid value.
    """
    found = link_fields(node, name, _GATEWAY, compresses=False)
    if not any(found.get(one) for one in ("name", "port", "gateways")):
        return {}
    try:
        return {"gateway": GatewayOptions(**found)}
    except ConfigError as error:
        raise node.where.error(error.message) from error


def _authorization(node: ConfNode, name: str) -> dict[str, Any]:
    for key, where, _ in block(node, name):
        refusal = _REFUSED.get(key.lower())
        if refusal is not None:
            raise where.error(f"Gateway authorization does not {refusal}")
    return fields(block(node, name), CREDENTIALS, frozenset())


_REFUSED = {
    "users": "allow multiple users",
    "token": "support tokens",
    **dict.fromkeys(("auth_callout", "auth_hook"), "support callouts"),
}


def _remotes(node: ConfNode, name: str) -> tuple[GatewayRemoteOptions, ...]:
    if not isinstance(node.value, list):
        raise node.where.error(f"{name} is {shown(node)}; it must be an array of maps")
    return each(node.value, lambda entry: _remote(entry, name))


def _remote(entry: ConfNode, name: str) -> GatewayRemoteOptions:
    found = fields(block(entry, name), _REMOTE, frozenset())
    try:
        return GatewayRemoteOptions(**found)
    except ConfigError as error:
        raise entry.where.error(error.message) from error


def _urls(node: ConfNode, name: str) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for entry in node.value if isinstance(node.value, list) else [node]:
        url = text(entry, name)
        try:
            address_of(url, "gateway")
        except ConfigError as error:
            raise entry.where.error(error.message) from error
        found[url] = None
    return tuple(found)


_REMOTE: dict[str, tuple[str, Reader]] = {
    "name": ("name", text),
    "tls": ("tls", tls_directives.tls),
    **dict.fromkeys(("url", "urls"), ("urls", _urls)),
}
_GATEWAY: dict[str, tuple[str, Reader]] = {
    "name": ("name", text),
    "authorization": ("authorization", _authorization),
    "connect_retries": ("connect_retries", integer),
    "connect_backoff": ("connect_backoff", boolean),
    **dict.fromkeys(("reject_unknown_cluster", "reject_unknown"), ("reject_unknown", boolean)),
    "gateways": ("gateways", _remotes),
}
