"""Reload: applies a changed configuration to a running server.

All or nothing, as in the official server: if a changed option needs a restart, the server logs every such
option and keeps its configuration. `_APPLY` lists all options that can change; any other option needs a
restart, so that a new option is refused until someone adds it.

Invariant: `context.options` is the configuration in effect, before and after, never a mixture.

Clients that could not log in under the new authorization are closed at once. Limits apply from the next
message, subscription, ping or connection on; connections above a lower max_connections are closed, the
youngest first.

Rejected: applying some options and naming the rest. File and server would then differ, and only the log of
    that moment would show how.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, ServerError
from penstock.net.reasons import CloseReason
from penstock.server import ports_file
from penstock.server.logging import logs

if TYPE_CHECKING:
    from penstock.server.config.server_options import ServerOptions
    from penstock.server.server import Server

AUTHORIZATION = frozenset(
    {"user", "password", "token", "users", "no_auth_user", "accounts", "proxy_required", "trusted_proxies"}
)
FILES = frozenset(
    {"tls", "websocket", "cluster", "leafnodes", "gateway"}
)  # the files they name may have changed
LOG_FILE = frozenset(
    {
        "log_file",
        "log_format",
        "logtime",
        "logtime_utc",
        "log_size_limit",
        "logfile_max_num",
        "syslog",
        "remote_syslog",
    }
)
_NAMES = {"password": "authorization.password", "token": "authorization.token", "config_file": "config"}


async def apply_reload(
    server: Server, load: Callable[[], ServerOptions], served: logs.ServedLog | None = None
) -> None:
    """Reads the configuration and applies it. The result is in the log.

    A file of a megabyte takes a second to read, so a thread reads it and clients are served meanwhile.
    Concurrent reloads run one after the other.

    Args:
        server: a running server.
        load: returns the options from flags and file, in a thread; may raise ConfigError or OSError.
        served: the log outputs; None when the host program owns the log, and log file options have no effect.

    Raises:
        ConfigError: the configuration is refused and the previous one stays in effect.
    """
    async with server.reloading:
        try:
            fresh = await asyncio.to_thread(load)
        except (ConfigError, OSError) as error:
            raise _refused(server, error) from error
        apply_options(server, fresh, served)


def apply_options(server: Server, fresh: ServerOptions, served: logs.ServedLog | None = None) -> None:
    """Applies options. Raises ConfigError: see `apply_reload`."""
    try:
        changed = changes(server.context.options, fresh)
        _check(server, changed, fresh)
        prepared = _prepare(server, changed, fresh, served)
    except (ConfigError, ServerError, OSError) as error:
        raise _refused(server, error) from error
    server.context.use_options(fresh)
    for commit in prepared:
        commit()
    applied: list[Callable[[Server], None]] = []
    for name in changed:
        apply = _APPLY.get(name)
        if apply is not None and apply not in applied:
            applied.append(apply)
            apply(server)
        server.context.log.info(f"Reloaded: {_shown(name, getattr(fresh, name))}")
    server.renew_info(notify="client_advertise" in changed)
    server.context.log.info("Reloaded server configuration")


def _refused(server: Server, error: Exception) -> ConfigError:
    """Logs a refused reload and returns the exception to raise."""
    for line in str(error).splitlines():
        server.context.log.error(f"Failed to reload server configuration: {line}")
    return error if isinstance(error, ConfigError) else ConfigError(str(error))


def _check(server: Server, changed: list[str], fresh: ServerOptions) -> None:
    """Raises ConfigError, with a line per option, when a changed option needs a restart."""
    before = server.context.options
    refused = [
        f"config reload not supported for {_change(name, getattr(before, name), getattr(fresh, name))}"
        for name in changed
        if name not in _APPLY and name not in _PREPARE
    ]
    for name, check in _CHECK.items():
        if name in changed:
            refused += check(getattr(server.context.options, name), getattr(fresh, name))
    if refused:
        raise ConfigError("\n".join(refused))


def _prepare(
    server: Server, changed: list[str], fresh: ServerOptions, served: logs.ServedLog | None
) -> list[Callable[[], object]]:
    """Does everything that can fail, and undoes it on error. Returns the functions that commit it.

    Raises ConfigError or OSError.
    """
    commits: list[Callable[[], object]] = []
    undo: list[Callable[[], object]] = []
    try:
        wanted = {
            prepare: None
            for name, prepare in _PREPARE.items()
            if name in changed or (name in FILES and getattr(fresh, name) is not None)
        }
        for prepare in wanted:
            commit, take_back = prepare(server, fresh)
            commits.append(commit)
            undo.append(take_back)
        if served is not None and LOG_FILE & set(changed):
            commits.append(_log_file(served, fresh))
    except BaseException:
        for take_back in undo:
            take_back()
        raise
    return commits


def changes(before: ServerOptions, after: ServerOptions) -> list[str]:
    """Names of the options that differ."""
    return [name for name in before.__struct_fields__ if getattr(before, name) != getattr(after, name)]


def _shown(name: str, value: Any) -> str:
    """An option value for the log: without secrets, and lists by name only."""
    if name in AUTHORIZATION - {"no_auth_user"}:
        return f"authorization {name}"
    if isinstance(value, (bool, int, float, str)):
        return f"{_directive(name)} = {value}"
    return name


def _change(name: str, old: Any, new: Any) -> str:
    """Log text of a refused change."""
    plain = all(isinstance(value, (bool, int, float, str)) for value in (old, new))
    return f"{_directive(name)}: old={old}, new={new}" if plain else _directive(name)


def _directive(name: str) -> str:
    return _NAMES.get(name, name.removesuffix("_ns"))


# -- commits of changes that cannot fail


def _authorization(server: Server) -> None:
    server.accounts.renew()
    server.logins.renew()
    for session in tuple(server.sessions.values()):
        session.authenticate_again()
    if server.links.leafs is not None:
        server.links.leafs.renew_logins()
    server.accounts.close_excess()
    if server.jetstream is not None:
        server.jetstream.renew()
    server.accounts.remove_unconfigured()


def _logging(server: Server) -> None:
    options = server.context.options
    logs.set_levels(server.context.log, debug=options.debug, trace=options.trace)
    for session in server.sessions.values():
        session.trace_messages()


def _parsers(server: Server) -> None:
    for session in server.sessions.values():
        session.update_limits()


def _connections(server: Server) -> None:
    limit = server.context.options.max_connections
    if limit <= 0:
        return
    for session in tuple(server.sessions.values())[limit:]:
        session.refuse("maximum connections exceeded", CloseReason.MAX_CONNECTIONS)


def _bounds(server: Server) -> None:
    server.renew_bounds()


def _jetstream(server: Server) -> None:
    if server.jetstream is not None:
        server.jetstream.renew()


def _routes(server: Server) -> None:
    if server.links.routes is not None:
        server.links.routes.renew()


def _leafnodes(server: Server) -> None:
    if server.links.leafs is not None:
        server.logins.renew()
        server.links.leafs.renew()
        server.links.leafs.renew_logins()


def _gateway(server: Server) -> None:
    if server.links.gateways is not None:
        server.links.gateways.renew()


def _tokens(server: Server) -> None:
    if server.accounts.operators is not None:
        server.accounts.operators.reload()


# None: the option is read from the context on every use.
_APPLY: dict[str, Callable[[Server], None] | None] = {
    **dict.fromkeys(AUTHORIZATION, _authorization),
    "auth_timeout_ns": None,
    "max_payload": _parsers,
    "max_control_line": _parsers,
    "max_connections": _connections,
    "max_subscriptions": None,
    "max_sub_tokens": None,
    "write_timeout": _bounds,
    "disable_sublist_cache": None,
    "server_tags": None,
    "server_metadata": None,
    "ping_interval_ns": None,
    "ping_max": None,
    "write_deadline_ns": _bounds,
    "max_pending": _bounds,
    "fast_producer_stall": _bounds,
    "jetstream": _jetstream,
    "mappings": _authorization,
    "resolver_preload": _tokens,
    "default_sentinel": None,
    "client_advertise": None,
    "websocket": _authorization,  # its users; _prepare does the rest
    "cluster": _routes,
    "cluster_name": _routes,
    "leafnodes": _leafnodes,
    "gateway": _gateway,
    "debug": _logging,
    "trace": _logging,
    "trace_verbose": _logging,
    "trace_headers": _logging,
    "max_traced_msg_len": _logging,
    **dict.fromkeys(LOG_FILE, None),  # _prepare opened the new log file
    "lame_duck_duration_ns": None,
    "lame_duck_grace_period_ns": None,
}


# -- changes that can fail: each returns a commit and an undo function


Prepared = tuple[Callable[[], object], Callable[[], object]]


def _nothing() -> None:
    """Nothing to undo."""


def _tls(server: Server, fresh: ServerOptions) -> Prepared:
    return server.prepared_encryption(fresh), _nothing


def _websocket(server: Server, fresh: ServerOptions) -> Prepared:
    assert server.websockets is not None
    assert fresh.websocket is not None
    return server.websockets.prepared(fresh.websocket), _nothing


def _cluster(server: Server, fresh: ServerOptions) -> Prepared:
    if server.links.routes is None or fresh.cluster is None:
        return _nothing, _nothing
    return server.links.routes.prepared_tls(fresh), _nothing


def _leafs(server: Server, fresh: ServerOptions) -> Prepared:
    if server.links.leafs is None or fresh.leafnodes is None:
        return _nothing, _nothing
    return server.links.leafs.prepared_tls(fresh), _nothing


def _gateways(server: Server, fresh: ServerOptions) -> Prepared:
    if server.links.gateways is None or fresh.gateway is None:
        return _nothing, _nothing
    return server.links.gateways.prepared_tls(fresh), _nothing


def _pid_file(server: Server, fresh: ServerOptions) -> Prepared:
    before = server.context.options.pid_file
    ports_file.write_pid(fresh.pid_file)
    return lambda: ports_file.remove(before), lambda: ports_file.remove(fresh.pid_file)


def _ports_file(server: Server, fresh: ServerOptions) -> Prepared:
    before = server.context.options.ports_file_dir
    server.write_ports(fresh.ports_file_dir)
    return lambda: ports_file.remove_ports(before), lambda: ports_file.remove_ports(fresh.ports_file_dir)


def _log_file(served: logs.ServedLog, fresh: ServerOptions) -> Callable[[], object]:
    try:
        writer = logs.writer_of(fresh, wait=False)
    except OSError as error:
        where = fresh.log_file or error.filename or fresh.remote_syslog or "the syslog"
        raise ConfigError(f"can not open {where}: {error.strerror or error}") from error
    return lambda: served.use(writer, fresh)


_PREPARE: dict[str, Callable[[Server, ServerOptions], Prepared]] = {
    "tls": _tls,
    "allow_non_tls": _tls,
    "websocket": _websocket,
    "cluster": _cluster,
    "leafnodes": _leafs,
    "gateway": _gateways,
    "pid_file": _pid_file,
    "ports_file_dir": _ports_file,
}


# -- parts of a block that need a restart


def _fixed(block: str, *names: str) -> Callable[[Any, Any], list[str]]:
    """Refuses changes of these fields, and adding or removing the block."""

    def check(old: Any, new: Any) -> list[str]:
        if old is None or new is None:
            return [f"config reload not supported for {block}"]
        pairs = [(f"{block}.{name}", getattr(old, name), getattr(new, name)) for name in names]
        return [
            f"config reload not supported for {_change(name, before, after)}"
            for name, before, after in pairs
            if before != after
        ]

    return check


_CHECK: dict[str, Callable[[Any, Any], list[str]]] = {
    "websocket": _fixed("websocket", "host", "port", "no_tls"),
    "cluster": _fixed("cluster", "host", "port"),
    "leafnodes": _fixed("leafnodes", "host", "port", "advertise"),
    "gateway": _fixed("gateway", "name", "host", "port", "advertise"),
    "jetstream": _fixed(
        "jetstream",
        *("store_dir", "domain", "sync_always", "sync_interval_ns", "cipher", "key", "prev_key"),
        *("buffered_msgs_max", "buffered_bytes_max", "request_queue_limit", "info_queue_limit"),
    ),
}
