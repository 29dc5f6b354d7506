"""Reads values of nats.conf: a node to a string, number, duration, size or address.

Every reader takes the node and the name of its directive, and raises ConfigError with the node's location.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from penstock.errors import MisuseError
from penstock.protocol.durations import parse_duration
from penstock.server.config.conf_parser import ConfMap, ConfNode
from penstock.server.config.option_checks import NS

Reader = Callable[[ConfNode, str], Any]

_STORAGE_SIZE = re.compile(r"(-?[0-9]{1,19})([KMGT])")


def text(node: ConfNode, name: str) -> str:
    if not isinstance(node.value, str):
        raise node.where.error(f"{name} is {shown(node)}; it must be a string")
    return node.value


def integer(node: ConfNode, name: str) -> int:
    if isinstance(node.value, bool) or not isinstance(node.value, int):
        raise node.where.error(f"{name} is {shown(node)}; it must be an integer")
    return node.value


def boolean(node: ConfNode, name: str) -> bool:
    if not isinstance(node.value, bool):
        raise node.where.error(f"{name} is {shown(node)}; it must be true or false")
    return node.value


def duration(node: ConfNode, name: str) -> int:
    """Parses a duration such as `"1h2m3s"` to ns; a bare number is seconds."""
    if isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        return int(node.value * NS)
    try:
        return parse_duration(text(node, name))
    except MisuseError as error:
        raise node.where.error(f"error parsing {name}: {error}") from error


def interval(node: ConfNode, name: str) -> int:
    """Parses a duration. The deprecated form, a number of seconds, is accepted but is an error of a
    configuration test."""
    if not isinstance(node.value, str):
        node.warn(f'invalid use of field "{name}": {name} should be converted to a duration')
    return duration(node, name)


def write_timeout(node: ConfNode, name: str) -> str:
    """What a missed write deadline leads to."""
    policy = text(node, name)
    if policy not in ("default", "close", "retry"):
        raise node.where.error("write_timeout must be 'default', 'close' or 'retry'")
    return policy


def duration_text(node: ConfNode, name: str) -> int:
    """Parses a duration that must be a string."""
    return duration(ConfNode(text(node, name), node.where), name)


def storage_size(node: ConfNode, name: str) -> int:
    """Parses bytes: an integer, or a string with suffix K, M, G or T (powers of 1024); "" is 0."""
    if not isinstance(node.value, str):
        return integer(node, name)
    if not node.value:
        return 0
    match = _STORAGE_SIZE.fullmatch(node.value)
    if match is None:
        wanted = "an integer, or a string that ends in K, M, G or T"
        raise node.where.error(f'{name} is "{node.value}"; it must be {wanted}')
    return int(match[1]) << 10 * " KMGT".index(match[2])


def address(node: ConfNode, name: str) -> tuple[str | None, int]:
    """Parses `4222`, `"host:port"`, `"[v6]:port"` or `":port"` to (host or None, port)."""
    if isinstance(node.value, int) and not isinstance(node.value, bool):
        return None, node.value
    word = text(node, name)
    match = re.fullmatch(r"(\[[^\]]*\]|[^:]*):([^:]*)", word)
    if match is None:
        raise node.where.error(f'could not parse address string "{word}"; write it as "host:port"')
    if not re.fullmatch(r"[+-]?[0-9]{1,9}", match[2]):
        raise node.where.error(f'could not parse port "{match[2]}"')
    return match[1].strip("[]") or None, int(match[2])


def block(node: ConfNode, name: str) -> ConfMap:
    if not isinstance(node.value, ConfMap):
        raise node.where.error(f"{name} is {shown(node)}; it must be a map {{...}}")
    return node.value


def shown(node: ConfNode) -> str:
    if isinstance(node.value, ConfMap):
        return "a map"
    return "an array" if isinstance(node.value, list) else repr(node.value)
