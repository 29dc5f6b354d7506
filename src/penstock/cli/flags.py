"""Flags of `penstock serve`: those of nats-server, in its notation.

Flags take one or two dashes, values follow a space or `=`, and switches accept `--debug=false`. One table
defines parsing and help text, so that they cannot differ.

Rejected: argparse (it reads `-DV` as `-D V`, abbreviates flags, needs values like `-1` escaped in places, and
its import takes a twentieth of the start-up time). A msgspec Struct or a dataclass for the rows of the table
(the module is imported before the port listens, and msgspec takes longer to import than everything else
needed until then).
"""

from __future__ import annotations

from penstock.errors import ConfigError

TYPE_CHECKING = False  # see serve.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

HELP_WIDTH = 70


class Flag:
    """One flag. names: without dashes. option: field of ServerOptions, or an action of `serve`. kind: int,
    str, or bool for a switch. shown: placeholder of the value in the help text."""

    __slots__ = ("help", "kind", "names", "option", "shown")

    def __init__(self, names: tuple[str, ...], option: str, kind: type, help: str, shown: str = "") -> None:
        self.names = names
        self.option = option
        self.kind = kind
        self.help = help
        self.shown = shown


GROUPS: dict[str, tuple[Flag, ...]] = {
    "Server options": (
        Flag(("a", "addr", "net"), "host", str, "Bind to host address (default: 0.0.0.0)", "<host>"),
        Flag(
            ("p", "port"), "port", int, "Use port for clients, -1 = any free port (default: 4222)", "<port>"
        ),
        Flag(("n", "name", "server_name"), "server_name", str, "Server name (default: its id)", "<name>"),
        Flag(("P", "pid"), "pid_file", str, "File to store the process id", "<file>"),
        Flag(("m", "http_port"), "http_port", int, "Use port for http monitoring", "<port>"),
        Flag(("ms", "https_port"), "https_port", int, "Use port for https monitoring", "<port>"),
        Flag(("web",), "web", bool, "Serve the web page under /ui/ of the monitoring port (127.0.0.1:8222)"),
        Flag(("c", "config"), "config", str, "Configuration file", "<file>"),
        Flag(("t",), "test", bool, "Test configuration and exit"),
        Flag(
            ("sl", "signal"),
            "signal",
            str,
            "Send a signal to a server: ldm, stop, quit, term, reopen, reload; <pid> is a process id, "
            "the path of a pid file, or the beginning of ids and *",
            "<signal>[=<pid>]",
        ),
        Flag(("client_advertise",), "client_advertise", str, "Client URL to advertise", "<host:port>"),
        Flag(
            ("ports_file_dir",),
            "ports_file_dir",
            str,
            "Create a ports file in this directory (nats-server_<pid>.ports)",
            "<dir>",
        ),
    ),
    "Logging options": (
        Flag(("l", "log"), "log_file", str, "File to append log lines to (default: stderr)", "<file>"),
        Flag(("T", "logtime"), "logtime", bool, "Timestamp log lines (default: true)"),
        Flag(("logtime_utc",), "logtime_utc", bool, "Timestamps in UTC (default: false)"),
        Flag(("s", "syslog"), "syslog", bool, "Log to this machine's syslog"),
        Flag(
            ("r", "remote_syslog"), "remote_syslog", str, "Log to a syslog (udp://localhost:514)", "<address>"
        ),
        Flag(("D", "debug"), "debug", bool, "Log debugging output"),
        Flag(("V", "trace"), "trace", bool, "Log the raw protocol"),
        Flag(("VV",), "verbose_trace", bool, "The same, and what the server says in the system account"),
        Flag(("DV",), "debug_and_trace", bool, "Debug and trace"),
        Flag(
            ("DVV",),
            "debug_and_verbose_trace",
            bool,
            "Debug, trace, and what the server says in the system account",
        ),
        Flag(
            ("log_size_limit",),
            "log_size_limit",
            int,
            "Bytes above which a new log file is begun (default: never)",
            "<limit>",
        ),
        Flag(
            ("max_traced_msg_len",),
            "max_traced_msg_len",
            int,
            "Most bytes of a traced message (default: all)",
            "<len>",
        ),
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
    "Cluster options": (
        Flag(
            ("cluster", "cluster_listen"),
            "cluster_listen",
            str,
            "Address for other servers; port -1 = any free port",
            "<url>",
        ),
        Flag(("routes",), "routes", str, "Other servers to connect to", "<url, ...>"),
        Flag(("cluster_name",), "cluster_name", str, "Cluster name (default: generated)", "<name>"),
        Flag(("no_advertise",), "no_advertise", bool, "Do not advertise client URLs to other servers"),
        Flag(
            ("cluster_advertise",),
            "cluster_advertise",
            str,
            "Address to advertise to other servers",
            "<host:port>",
        ),
        Flag(
            ("connect_retries",),
            "connect_retries",
            int,
            "Attempts to connect to servers that are not in routes",
            "<number>",
        ),
    ),
    "Profiling options": (
        Flag(("profile",), "profile", int, "Refused, unless 0: use py-spy on the process", "<port>"),
    ),
    "Common options": (
        Flag(("h", "help"), "help", bool, "Show this message"),
        Flag(("v", "version"), "version", bool, "Show version"),
        Flag(("help_tls",), "help_tls", bool, "TLS help"),
    ),
}
_BY_NAME = {name: flag for group in GROUPS.values() for flag in group for name in flag.names}
_BOOLEAN = {"1": True, "t": True, "true": True, "0": False, "f": False, "false": False}


class FlagError(ConfigError):
    """An unknown flag or an invalid value."""


def _meant(name: str) -> str:
    """The known flag that an unknown one resembles."""
    from penstock.cli.framework.suggestions import suggestion

    return suggestion(f"--{name}", [f"--{known}" for known in _BY_NAME])


def parse(arguments: list[str]) -> dict[str, Any]:
    """Parse arguments to values by option name. Raises FlagError; ConfigError for a word without a dash."""
    found: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word.lower() in ("version", "help"):  # accepted as words, as by the official server
            found[word.lower()] = True
            continue
        if not word.startswith("-") or word == "-":
            raise ConfigError(f"unrecognized command: {word!r}; see --help")
        name, equals, value = word.removeprefix("-").removeprefix("-").partition("=")
        flag = _BY_NAME.get(name)
        if flag is None:
            raise FlagError(f"flag provided but not defined: -{name}{_meant(name)}; see --help")
        if flag.kind is bool:
            value = value if equals else "true"
        elif not equals:
            if not rest:
                raise FlagError(f"flag needs an argument: -{name}")
            value = rest.pop(0)
        found[flag.option] = _converted(flag, name, value)
    return found


def _converted(flag: Flag, name: str, value: str) -> Any:
    if flag.kind is bool:
        known = _BOOLEAN.get(value.lower())
        if known is None:
            raise FlagError(f'invalid boolean value "{value}" for -{name}')
        return known
    if flag.kind is int:
        try:
            return int(value)
        except ValueError:
            raise FlagError(f'invalid value "{value}" for flag -{name}: not an integer') from None
    return value


def usage(program: str, style: Callable[[str, str], str] = lambda kind, text: text) -> str:
    """The help text.

    Args:
        program: the command name.
        style: formats a text; its kind is "title", "flag" or "value".
    """
    lines = ["", f"{style('title', 'Usage:')} {program} [options]", ""]
    for title, flags in GROUPS.items():
        lines.append(style("title", f"{title}:"))
        for flag in flags:
            names = ", ".join(("-" if len(name) <= 3 else "--") + name for name in flag.names)
            width = len(f"{names} {flag.shown}".rstrip())
            head = f"    {style('flag', names)} {style('value', flag.shown)}".rstrip()
            first, *more = _wrapped(flag.help)
            lines.append(f"{head}{' ' * max(1, 43 - width)}{first}")
            lines += [" " * 47 + line for line in more]
        lines.append("")
    return "\n".join(lines)


def _wrapped(text: str) -> list[str]:
    """Wrap to lines of at most HELP_WIDTH characters."""
    lines = [""]
    for word in text.split(" "):
        if len(lines[-1]) + len(word) >= HELP_WIDTH:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".lstrip()
    return lines


_COLOURS = {"title": "1", "flag": "36", "value": "2"}


def coloured(kind: str, text: str) -> str:
    """A style with ANSI colours."""
    return f"\x1b[{_COLOURS[kind]}m{text}\x1b[0m" if text else ""


TLS_HELP = """
TLS configuration is specified in the tls section of a configuration file:

e.g.

    tls {
        cert_file:      "./certs/server-cert.pem"
        key_file:       "./certs/server-key.pem"
        ca_file:        "./certs/ca.pem"
        verify:         true
        min_version:    "1.2"

        cipher_suites: [
            "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
            "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"
        ]
    }

Available cipher suites for TLS 1.2 (those of TLS 1.3 are always available):
"""


def tls_help() -> str:
    """Output of `--help_tls`."""
    from penstock.net.tls import SUITES

    return TLS_HELP + "".join(f"    {name}\n" for name in sorted(SUITES)) + "\n"
