"""What the blocks `cluster`, `leafnodes` and `gateway` of nats.conf share: the listener, compression, write
deadlines.

Other spellings of some fields are accepted in one of the blocks only, as on the official server: they are in
the table of that block.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.cluster import compression
from penstock.errors import ConfigError
from penstock.server.config import tls_directives
from penstock.server.config.block_fields import fields
from penstock.server.config.conf_parser import ConfMap, ConfNode
from penstock.server.config.values import (
    Reader,
    address,
    block,
    boolean,
    duration,
    integer,
    interval,
    shown,
    text,
    write_timeout,
)


def link_fields(
    node: ConfNode, name: str, table: Mapping[str, tuple[str, Reader]], *, compresses: bool = True
) -> dict[str, Any]:
    """Reads a block with the directives of `table` and the shared ones. `compresses`: those about compression
    and client URLs are among them.

    Returns:
        The options it sets: host and port of `listen`, and the fields of `authorization` and `compression`,
        are options of their own.

    Raises:
        ConfigError: unknown field or invalid value.
    """
    found = fields(
        block(node, name), {**_LISTENER, **(_COMPRESSING if compresses else {}), **table}, frozenset()
    )
    host, port = found.pop("listen", (None, None))
    if port is not None:
        found["port"] = port
    if host is not None:
        found["host"] = host
    found.update(found.pop("authorization", {}))
    found.update(found.pop("compression", {}))
    return found


def compression_of(node: ConfNode, name: str) -> dict[str, Any]:
    """The options of `compression`: a boolean, a mode, or a map of `mode` and `rtt_thresholds`."""
    if isinstance(node.value, bool):
        return {"compression": compression.FAST if node.value else compression.OFF}
    if not isinstance(node.value, ConfMap):
        return {"compression": _mode(node, name)}
    return fields(node.value, _COMPRESSION, frozenset())


def _mode(node: ConfNode, name: str) -> str:
    try:
        return compression.mode_of(text(node, name))
    except ConfigError as error:
        raise node.where.error(error.message) from error


def _thresholds(node: ConfNode, name: str) -> tuple[int, ...]:
    if not isinstance(node.value, list):
        raise node.where.error(f"{name} is {shown(node)}; it must be an array of durations")
    return tuple(duration(entry, name) for entry in node.value)


_COMPRESSION: dict[str, tuple[str, Reader]] = {
    "mode": ("compression", _mode),
    **dict.fromkeys(("rtt_thresholds", "thresholds", "rtts", "rtt"), ("rtt_thresholds_ns", _thresholds)),
}
_LISTENER: dict[str, tuple[str, Reader]] = {
    "listen": ("listen", address),
    "port": ("port", integer),
    **dict.fromkeys(("host", "net"), ("host", text)),
    "tls": ("tls", tls_directives.tls),
    "advertise": ("advertise", text),
    "write_deadline": ("write_deadline_ns", interval),
    "write_timeout": ("write_timeout", write_timeout),
}
_COMPRESSING: dict[str, tuple[str, Reader]] = {
    "no_advertise": ("no_advertise", boolean),
    "compression": ("compression", compression_of),
}
CREDENTIALS: dict[str, tuple[str, Reader]] = {
    **dict.fromkeys(("user", "username"), ("user", text)),
    **dict.fromkeys(("pass", "password"), ("password", text)),
    "timeout": ("auth_timeout_ns", duration),
}
"""Fields of `authorization`."""
