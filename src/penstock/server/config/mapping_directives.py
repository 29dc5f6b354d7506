"""The block `mappings` of nats.conf."""

from __future__ import annotations

import re
from typing import Any

from penstock.errors import ConfigError
from penstock.protocol.subjects import is_valid_filter
from penstock.routing.mapping import WEIGHT_MAX, Destination, SubjectMapping
from penstock.server.config.conf_parser import ConfMap, ConfNode, SourceLocation
from penstock.server.config.values import Reader, block, shown, text


def mappings(node: ConfNode, name: str) -> tuple[SubjectMapping, ...]:
    """Parses the block `mappings`, of the top level or of an account, in order.

    A source maps to a destination, to a map of `destination`, `weight` and optional `cluster`, or to an array
    of such maps. Errors have the official server's texts.
    """
    return tuple(_mapping(source, where, entry) for source, where, entry in block(node, name))


def _mapping(source: str, where: SourceLocation, node: ConfNode) -> SubjectMapping:
    if not is_valid_filter(source):
        raise where.error(f'Subject "{source}" is not a valid subject')
    goal = ""
    if isinstance(node.value, str):
        destinations: tuple[Destination, ...] = (Destination(subject=node.value),)
        goal = f' to "{node.value}"'
    elif isinstance(node.value, list):
        destinations = tuple(_destination(source, entry) for entry in node.value)
    else:
        destinations = (_destination(source, node),)
    try:
        return SubjectMapping(source, destinations)
    except ConfigError as error:
        raise where.error(f'Error adding mapping for "{source}"{goal} : {error.message}') from error


def _destination(source: str, node: ConfNode) -> Destination:
    if not isinstance(node.value, ConfMap):
        raise node.where.error("Expected an entry for the mapping destination")
    found: dict[str, Any] = {}
    for key, where, entry in node.value:
        field = _DESTINATION.get(key.lower())
        if field is None:
            raise where.error(f'Unknown field "{key}" for mapping destination')
        option, read = field
        found[option] = read(entry, key.lower())
    if not found.get("subject"):
        raise node.where.error(
            f'Missing destination for the mapping of "{source}": give it `destination: ...`'
        )
    if "weight" not in found:
        raise node.where.error(f'Missing weight for mapping destination "{found["subject"]}"')
    return Destination(**found)


def _weight(node: ConfNode, name: str) -> int:
    """Parses a percentage: an integer, or a string with or without `%`."""
    value = node.value
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise node.where.error(f"Unknown entry type for weight of {shown(node)}")
    if isinstance(value, str):
        digits = value.removesuffix("%")
        if not re.fullmatch(r"[+-]?[0-9]{1,9}", digits):
            raise node.where.error(f'Invalid weight "{digits}" for mapping destination')
        value = int(digits)
    if not 0 <= value <= WEIGHT_MAX:
        raise node.where.error(f"Invalid weight {value} for mapping destination")
    return value


_DESTINATION: dict[str, tuple[str, Reader]] = {
    "dest": ("subject", text),
    "destination": ("subject", text),
    "weight": ("weight", _weight),
    "cluster": ("cluster", text),
}
