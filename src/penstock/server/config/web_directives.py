"""The directive `web` of nats.conf: `web: true`, or a block."""

from __future__ import annotations

from penstock.server.config.block_fields import fields
from penstock.server.config.conf_parser import ConfNode
from penstock.server.config.values import Reader, block, boolean
from penstock.server.config.web_options import WebOptions

_WEB: dict[str, tuple[str, Reader]] = {
    "allow_writes": ("allow_writes", boolean),
    "allow_anonymous": ("allow_anonymous", boolean),
}


def web(node: ConfNode, name: str) -> WebOptions | None:
    """Reads the directive; None = off. Raises ConfigError."""
    if isinstance(node.value, (bool, str)):
        return WebOptions() if boolean(node, name) else None
    return WebOptions(**fields(block(node, name), _WEB, frozenset()))
