"""Validation shared by all option blocks. Errors are ConfigErrors with option name, value and bounds."""

from __future__ import annotations

import re

from penstock.errors import ConfigError

NS = 1_000_000_000
GLOBAL_ACCOUNT = "$G"
SYSTEM_ACCOUNT = "$SYS"


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


def syslog_address(url: str) -> tuple[str, str | tuple[str, int]]:
    """(scheme, address) of `udp://host:port`, `tcp://host:port` or `unix:///path`. Raises ConfigError."""
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    if parts.scheme == "unix":
        return "unix", parts.path
    if parts.scheme not in ("udp", "tcp"):
        raise ConfigError(
            f'remote_syslog is "{url}"; invalid network type "{parts.scheme}": use udp, tcp or unix'
        )
    try:
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f'remote_syslog is "{url}"; {error}') from error
    if not host or not port:
        raise ConfigError(f'remote_syslog is "{url}"; write it as {parts.scheme}://host:port')
    return parts.scheme, (host, port)
