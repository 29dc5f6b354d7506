"""Directives that say what a server is called beside its name: `server_tags` and `server_metadata`."""

from __future__ import annotations

from penstock.server.config.conf_parser import ConfMap, ConfNode
from penstock.server.config.directives import shown, text


def tags(node: ConfNode, name: str) -> tuple[str, ...]:
    """One tag or an array of them; kept as by the official server: in small letters, trimmed, each once."""
    entries = node.value if isinstance(node.value, list) else [node]
    found: dict[str, None] = {}
    for entry in entries:
        if not isinstance(entry.value, str):
            raise entry.where.error(f"error parsing tags: {shown(entry)}; a tag must be a string")
        found[entry.value.strip().lower()] = None
    found.pop("", None)
    return tuple(found)


def metadata(node: ConfNode, name: str) -> tuple[tuple[str, str], ...]:
    """A map of strings."""
    if not isinstance(node.value, ConfMap):
        raise node.where.error(f"error parsing metadata: {name} is {shown(node)}; it must be a map {{...}}")
    return tuple({key: text(entry, f"{name}.{key}") for key, _, entry in node.value}.items())
