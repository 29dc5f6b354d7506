"""Reads a block of nats.conf whose directives each set one option, by a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.server.config.conf_parser import ConfMap, ConfNode, SourceLocation
from penstock.server.config.values import Reader


def fields(
    items: ConfMap, table: Mapping[str, tuple[str, Reader]], unsupported: frozenset[str]
) -> dict[str, Any]:
    """Parses a block in which each directive sets one option. Raises ConfigError."""
    found: dict[str, Any] = {}
    for key, where, node in items:
        entry = table.get(key.lower())
        if entry is None:
            if not node.used:
                check_without_effect(key, where, node, unsupported)
            continue
        option, read = entry
        found[option] = read(node, key.lower())
    return found


def check_without_effect(
    key: str, where: SourceLocation, node: ConfNode, unsupported: frozenset[str]
) -> None:
    """Validates a directive that sets nothing. Raises ConfigError unless it has no effect without a
    cluster."""
    name = key.lower()
    if name not in unsupported:
        raise where.error(f'unknown field "{key}"')
    from penstock.server.config.ignored_directives import CHECKS  # most configurations have none of them

    check = CHECKS.get(name)
    if check is None:
        raise where.error(f'field "{key}" is not supported by this server yet; remove it to start without it')
    check(node, name)
