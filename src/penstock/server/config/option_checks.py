"""Checks that the options of all blocks share. A value they refuse is a ConfigError that names the option,
the value and the bounds."""

from __future__ import annotations

import re

from penstock.errors import ConfigError

NS = 1_000_000_000


def host_and_port(name: str, text: str) -> tuple[str, int]:
    """The parts of `host`, `host:port` or `[v6]:port`; port 0 when there is none. Raises ConfigError."""
    match = re.fullmatch(r"(\[[^\[\]]+\]|[^:\[\]]*)(?::(\d{1,5}))?", text)
    if match is None or int(match[2] or 0) > 65535:
        raise ConfigError(f'{name} is "{text}"; write it as "host:port" or "host"')
    return match[1].strip("[]"), int(match[2] or 0)


def between(name: str, value: int, low: int, high: int) -> None:
    """Raises ConfigError unless low <= value <= high."""
    if not low <= value <= high:
        raise ConfigError(f"{name} is {value}; it must be from {low} to {high}")


def at_least(name: str, value: int, low: int) -> None:
    """Raises ConfigError unless low <= value."""
    if value < low:
        raise ConfigError(f"{name} is {value}; it must be at least {low}")
