"""Flags of `penstock serve`: those of nats-server, in its notation.

One dash or two, the value after a space or `=`; a switch may be given as `--debug=false`. One table holds
every flag, so that the help text can't differ from what is accepted.

Rejected: argparse. It reads `-DV` as `-D V`, abbreviates flags, wants values like `-1` escaped in places,
and its import alone takes a twentieth of the time this process has to be ready.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Flag:
    """names: without dashes. option: the field of Options it sets, or an action of `serve`.
    kind: int, str, or bool for a switch. shown: placeholder of the value in the help text."""

    names: tuple[str, ...]
    option: str
    kind: type
    help: str
    shown: str = ""


GROUPS: dict[str, tuple[Flag, ...]] = {
    "Server options": (
        Flag(("a", "addr", "net"), "host", str, "Bind to host address (default: 0.0.0.0)", "<host>"),
        Flag(
            ("p", "port"), "port", int, "Use port for clients, -1 = any free port (default: 4222)", "<port>"
        ),
        Flag(("n", "name", "server_name"), "server_name", str, "Server name (default: its id)", "<name>"),
        Flag(("P", "pid"), "pid_file", str, "File to store the process id", "<file>"),
        Flag(("m", "http_port"), "http_port", int, "Use port for http monitoring", "<port>"),
        Flag(("c", "config"), "config", str, "Configuration file", "<file>"),
        Flag(
            ("sl", "signal"),
            "signal",
            str,
            "Send a signal to a server (ldm, stop, quit, term, reopen, reload)",
            "<signal>=<pid>",
        ),
        Flag(("t",), "test", bool, "Test configuration and exit"),
        Flag(("client_advertise",), "client_advertise", str, "Client URL to advertise", "<host:port>"),
        Flag(("ports_file_dir",), "ports_file_dir", str, "Create a ports file in this directory", "<dir>"),
    ),
    "Logging options": (
        Flag(("l", "log"), "log_file", str, "File to append log lines to (default: stderr)", "<file>"),
        Flag(("T", "logtime"), "logtime", bool, "Timestamp log lines (default: true)"),
        Flag(("logtime_utc",), "logtime_utc", bool, "Timestamps in UTC (default: false)"),
        Flag(("D", "debug"), "debug", bool, "Log debugging output"),
        Flag(("V", "trace"), "trace", bool, "Log the raw protocol"),
        Flag(("VV",), "trace", bool, "Same as -V"),
        Flag(("DV", "DVV"), "debug_and_trace", bool, "Debug and trace"),
    ),
    "JetStream options": (
        Flag(("js", "jetstream"), "jetstream", bool, "Enable JetStream"),
        Flag(("sd", "store_dir"), "store_dir", str, "Set the storage directory", "<dir>"),
    ),
    "Authorization options": (
        Flag(("user",), "user", str, "User required for connections", "<user>"),
        Flag(("pass",), "password", str, "Password required for connections", "<password>"),
        Flag(("auth",), "token", str, "Token required for connections", "<token>"),
    ),
    "TLS options": (
        Flag(("tls",), "tls_on", bool, "Enable TLS, do not verify clients (default: false)"),
        Flag(("tlscert",), "cert_file", str, "Server certificate file", "<file>"),
        Flag(("tlskey",), "key_file", str, "Private key for server certificate", "<file>"),
        Flag(("tlsverify",), "tls_verify", bool, "Enable TLS, verify client certificates"),
        Flag(("tlscacert",), "ca_file", str, "Client certificate CA for verification", "<file>"),
    ),
    "Common options": (
        Flag(("h", "help"), "help", bool, "Show this message"),
        Flag(("v", "version"), "version", bool, "Show version"),
    ),
}
_BY_NAME = {name: flag for group in GROUPS.values() for flag in group for name in flag.names}
_BOOLEAN = {"1": True, "t": True, "true": True, "0": False, "f": False, "false": False}


def parse(arguments: list[str]) -> dict[str, Any]:
    """What the arguments set, by option name. Raises ConfigError."""
    found: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word == "-":
            raise ConfigError(f"unrecognized command: {word!r}; see --help")
        name, equals, value = word.removeprefix("-").removeprefix("-").partition("=")
        flag = _BY_NAME.get(name)
        if flag is None:
            raise ConfigError(f"flag provided but not defined: -{name}; see --help")
        if flag.kind is bool:
            value = value if equals else "true"
        elif not equals:
            if not rest:
                raise ConfigError(f"flag needs an argument: -{name}")
            value = rest.pop(0)
        found[flag.option] = _converted(flag, name, value)
    return found


def _converted(flag: Flag, name: str, value: str) -> Any:
    if flag.kind is bool:
        known = _BOOLEAN.get(value.lower())
        if known is None:
            raise ConfigError(f'invalid boolean value "{value}" for -{name}')
        return known
    if flag.kind is int:
        try:
            return int(value)
        except ValueError:
            raise ConfigError(f'invalid value "{value}" for flag -{name}: not an integer') from None
    return value


def usage(program: str) -> str:
    """The help text."""
    lines = ["", f"Usage: {program} [options]", ""]
    for title, flags in GROUPS.items():
        lines.append(f"{title}:")
        for flag in flags:
            names = ", ".join(("-" if len(name) <= 3 else "--") + name for name in flag.names)
            lines.append(f"    {f'{names} {flag.shown}'.rstrip():<42} {flag.help}")
        lines.append("")
    return "\n".join(lines)
