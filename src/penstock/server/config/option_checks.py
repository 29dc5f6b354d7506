"""Validation shared by all option blocks. Errors are ConfigErrors with option name, value and bounds."""

from __future__ import annotations

import re

from penstock.errors import ConfigError

NS = 1_000_000_000


def host_and_port(name: str, text: str) -> tuple[str, int]:
    """Parses `host`, `host:port` or `[v6]:port`; port 0 when absent. Raises ConfigError."""
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
