"""Reload: a running server takes over what its configuration says now.

All or nothing, as in the official server: when anything changed that needs a restart, each such option is
named in the log and the server goes on with what it had. `_APPLY` is the whole list of what can change;
an option that is not in it needs a restart, so a new option is refused until somebody thought about it.

Invariant: `server.options` is what the server works by, before and after, never a mixture.

Clients are held against the new authorization at once: who could not log in now is closed. Limits bind from
the next message, subscription, ping or connection on; connections above a lower max_connections are closed,
the youngest first.

Rejected: applying what can be applied and naming the rest. The file and the server would then differ in a
way that only the log of that moment tells.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError
from penstock.net.reasons import CloseReason
from penstock.server import logs

if TYPE_CHECKING:
    from penstock.server.options import Options
    from penstock.server.server import Server

AUTHORIZATION = frozenset({"user", "password", "token", "users", "no_auth_user"})
_NAMES = {"password": "authorization.password", "token": "authorization.token", "config_file": "config"}


def reload(server: Server, load: Callable[[], Options], writer: logs.LineWriter | None = None) -> bool:
    """Reads the configuration anew and applies it; what happened is in the log.

    Args:
        server: a server that runs.
        load: gives the options as flags and file now say them; may raise ConfigError or OSError.
        writer: where the log lines go; None when the host program keeps the log, whose file and time
            options then mean nothing.

    Returns:
        Whether the new options are in force.
    """
    log = server.log
    try:
        fresh = load()
    except (ConfigError, OSError) as error:
        log.error(f"Failed to reload server configuration: {error}")
        return False
    changed = changes(server.options, fresh)
    refused = [name for name in changed if name not in _APPLY]
    if refused:
        for name in refused:
            told = _told(name, getattr(server.options, name), getattr(fresh, name))
            log.error(f"Failed to reload server configuration: config reload not supported for {told}")
        return False
    if writer is not None:
        try:
            writer.configure(fresh.log_file, logtime=fresh.logtime, utc=fresh.logtime_utc)
        except OSError as error:
            log.error(
                f"Failed to reload server configuration: can not open {fresh.log_file}: {error.strerror}"
            )
            return False
    server.options = fresh
    applied: list[Callable[[Server], None]] = []
    for name in changed:
        apply = _APPLY[name]
        if apply is not None and apply not in applied:
            applied.append(apply)
            apply(server)
        log.info(f"Reloaded: {_shown(name, getattr(fresh, name))}")
    server.renew_info(tell=any(name == "client_advertise" for name in changed))
    log.info("Reloaded server configuration")
    return True


def changes(before: Options, after: Options) -> list[str]:
    """Names of the options that differ."""
    return [
        field.name for field in fields(before) if getattr(before, field.name) != getattr(after, field.name)
    ]


def _shown(name: str, value: Any) -> str:
    """An option for the log: without secrets, and lists only by name."""
    if name in AUTHORIZATION - {"no_auth_user"}:
        return f"authorization {name}"
    if isinstance(value, (bool, int, float, str)):
        return f"{_directive(name)} = {value}"
    return name


def _told(name: str, old: Any, new: Any) -> str:
    """A refused change for the log."""
    plain = all(isinstance(value, (bool, int, float, str)) for value in (old, new))
    return f"{_directive(name)}: old={old}, new={new}" if plain else _directive(name)


def _directive(name: str) -> str:
    return _NAMES.get(name, name.removesuffix("_ns"))


# -- what can change


def _authorization(server: Server) -> None:
    server.authenticator = server.new_authenticator()
    for session in tuple(server.sessions.values()):
        session.authenticate_again()


def _logging(server: Server) -> None:
    logs.set_levels(server.log, debug=server.options.debug, trace=server.options.trace)


def _parsers(server: Server) -> None:
    for session in server.sessions.values():
        parser = session.inlet.parser
        parser.max_control_line = server.options.max_control_line
        parser.max_payload = server.options.max_payload


def _connections(server: Server) -> None:
    limit = server.options.max_connections
    if limit <= 0:
        return
    for session in tuple(server.sessions.values())[limit:]:
        session.refuse("maximum connections exceeded", CloseReason.MAX_CONNECTIONS)


def _write_deadline(server: Server) -> None:
    server.set_write_deadline(server.options.write_deadline_ns)


def _mappings(server: Server) -> None:
    server.renew_mappings()


# None: whoever uses the option reads it from server.options each time.
_APPLY: dict[str, Callable[[Server], None] | None] = {
    **dict.fromkeys(AUTHORIZATION, _authorization),
    "auth_timeout_ns": None,
    "max_payload": _parsers,
    "max_control_line": _parsers,
    "max_connections": _connections,
    "max_subscriptions": None,
    "ping_interval_ns": None,
    "ping_max": None,
    "write_deadline_ns": _write_deadline,
    "mappings": _mappings,
    "client_advertise": None,
    "debug": _logging,
    "trace": _logging,
    "log_file": None,  # done by LineWriter.configure
    "logtime": None,
    "logtime_utc": None,
    "lame_duck_duration_ns": None,
    "lame_duck_grace_period_ns": None,
}
