"""What monitoring shows: varz, connz, subsz, jsz, healthz, with the official server's field names.

Each page is a function from the server and the query to plain data. They run in the server's event loop,
between two ticks, so that they see one consistent state; they only look. Encoding is the caller's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from penstock.errors import MisuseError
from penstock.protocol.durations import format_time
from penstock.server.identity import PROTOCOL, RUNTIME, VERSION
from penstock.server.totals import ClosedSession

if TYPE_CHECKING:
    from penstock.jetstream.engine import JetStream
    from penstock.jetstream.stream.stream import Stream
    from penstock.server.server import Server
    from penstock.server.session import Session

Query = Mapping[str, str]
Page = dict[str, Any]
LIMIT_DEFAULT = 1024
_NS = 1_000_000_000
_TRUE = frozenset(("1", "t", "true"))
_FALSE = frozenset(("", "0", "f", "false"))


class NotFound(MisuseError):
    """The page is there, what the query names is not (404)."""


def varz(server: Server, query: Query, requests: Mapping[str, int]) -> Page:
    """General state. `requests`: how often each page was asked for."""
    options, now, totals = server.options, server.clock(), server.totals
    sinks = [session.sink for session in server.sessions.values()]
    in_msgs = totals.in_msgs + sum(sink.in_msgs for sink in sinks)
    in_bytes = totals.in_bytes + sum(sink.in_bytes for sink in sinks)
    out_msgs = totals.out_msgs + sum(sink.out_msgs for sink in sinks)
    out_bytes = totals.out_bytes + sum(sink.out_bytes for sink in sinks)
    page: Page = {
        "server_id": server.server_id,
        "server_name": server.server_name,
        "version": VERSION,
        "proto": PROTOCOL,
        "go": RUNTIME,
        "host": options.host,
        "port": server.port,
        "auth_required": server.authenticator.required,
        "connect_urls": [f"{server.host}:{server.port}"],
        "max_connections": options.max_connections,
        "max_subscriptions": options.max_subscriptions,
        "ping_interval": options.ping_interval_ns,
        "ping_max": options.ping_max,
        "http_host": options.http_host or options.host,
        "http_port": server.monitor.port if server.monitor is not None else 0,
        "http_base_path": "",
        "https_port": 0,
        "auth_timeout": options.auth_timeout_ns / _NS,
        "max_control_line": options.max_control_line,
        "max_payload": options.max_payload,
        "max_pending": options.max_pending,
        "cluster": {},
        "gateway": {},
        "leaf": {},
        "mqtt": {},
        "websocket": {},
        "jetstream": _jetstream_var(server),
        "tls_timeout": 2,
        "write_deadline": options.write_deadline_ns,
        "start": format_time(server.started_ns),
        "now": format_time(now),
        "uptime": uptime(now - server.started_ns),
        "mem": _resident_bytes(),
        "cores": os.cpu_count() or 1,
        "gomaxprocs": 1,
        "cpu": round(100 * time.process_time() * _NS / max(1, now - server.started_ns), 1),
        "connections": len(server.sessions),
        "total_connections": totals.connections,
        "routes": 0,
        "remotes": 0,
        "leafnodes": 0,
        "in_msgs": in_msgs,
        "in_bytes": in_bytes,
        "in_client_msgs": in_msgs,
        "in_client_bytes": in_bytes,
        "out_msgs": out_msgs,
        "out_bytes": out_bytes,
        "out_client_msgs": out_msgs,
        "out_client_bytes": out_bytes,
        "slow_consumers": totals.slow_consumers,
        "stale_connections": totals.stale_connections,
        "stalled_clients": server.stalled_clients,
        "subscriptions": sum(account.index.count for account in server.accounts.values()),
        "http_req_stats": dict(requests),
        "config_load_time": format_time(server.started_ns),
        "config_digest": "",
        "slow_consumer_stats": {"clients": totals.slow_consumers, "routes": 0, "gateways": 0, "leafs": 0},
        "stale_connection_stats": {
            "clients": totals.stale_connections,
            "routes": 0,
            "gateways": 0,
            "leafs": 0,
        },
    }
    return page


# -- connz

_SORTS: dict[str, Callable[[Page], Any]] = {
    "": lambda entry: entry["cid"],
    "cid": lambda entry: entry["cid"],
    "start": lambda entry: entry["cid"],
    "subs": lambda entry: -entry["subscriptions"],
    "pending": lambda entry: -entry["pending_bytes"],
    "msgs_to": lambda entry: -entry["out_msgs"],
    "msgs_from": lambda entry: -entry["in_msgs"],
    "bytes_to": lambda entry: -entry["out_bytes"],
    "bytes_from": lambda entry: -entry["in_bytes"],
    "last": lambda entry: entry["last_activity"],
    "idle": lambda entry: entry["last_activity"],
    "uptime": lambda entry: entry["start"],
    "stop": lambda entry: entry.get("stop", ""),
    "reason": lambda entry: entry.get("reason", ""),
    "rtt": lambda entry: entry["_rtt_ns"],
}
_STATES = {
    "": "open",
    "open": "open",
    "0": "open",
    "closed": "closed",
    "1": "closed",
    "any": "all",
    "all": "all",
}


def connz(server: Server, query: Query) -> Page:
    """Connections. Raises MisuseError for a bad query."""
    sort = query.get("sort", "")
    if sort not in _SORTS:
        raise MisuseError(f"invalid sorting option: {sort}")
    state = _STATES.get(query.get("state", "").lower())
    if state is None:
        raise MisuseError(f"Error decoding state for {query['state']}")
    if sort in ("stop", "reason") and state != "closed":
        raise MisuseError(f"sort by {sort} only valid on closed connections")
    now = server.clock()
    entries: list[Page] = []
    if state in ("open", "all"):
        entries += [_open_entry(session, query, now) for session in server.sessions.values()]
    if state in ("closed", "all"):
        entries += [_closed_entry(session, query) for session in server.closed_sessions]
    cid, user, account = _number(query, "cid", 0), query.get("user", ""), query.get("acc", "")
    if cid:
        entries = [entry for entry in entries if entry["cid"] == cid]
    if user:
        entries = [entry for entry in entries if entry["_user"] == user]
    if account:
        entries = [entry for entry in entries if entry["_account"] == account]
    entries.sort(key=_SORTS[sort])
    offset, limit = _number(query, "offset", 0), _number(query, "limit", LIMIT_DEFAULT) or LIMIT_DEFAULT
    shown = entries[offset : offset + limit]
    return {
        "server_id": server.server_id,
        "now": format_time(now),
        "num_connections": len(shown),
        "total": len(entries),
        "offset": offset,
        "limit": limit,
        "connections": [_without_private(entry) for entry in shown],
    }


def _open_entry(session: Session, query: Query, now: int) -> Page:
    sink, options, identity = session.sink, session.options, session.identity
    entry: Page = {
        "cid": session.cid,
        "kind": "Client",
        "type": "nats",
        "ip": session.connection.peer[0],
        "port": session.connection.peer[1],
        "start": format_time(session.started_ns),
        "last_activity": format_time(session.last_activity_ns),
        "rtt": _go_duration(session.rtt_ns),
        "uptime": uptime(now - session.started_ns),
        "idle": uptime(now - session.last_activity_ns),
        "pending_bytes": session.connection.pending_bytes(),
        "in_msgs": sink.in_msgs,
        "out_msgs": sink.out_msgs,
        "in_bytes": sink.in_bytes,
        "out_bytes": sink.out_bytes,
        "stalls": session.connection.stalls,
        "subscriptions": len(session.subscriptions),
        "name": options.name,
        "lang": options.lang,
        "version": options.version,
    }
    user = identity.user if identity is not None else ""
    account = identity.account if identity is not None else ""
    _add_auth(entry, query, user, account)
    _add_subscriptions(entry, query, session)
    entry["_rtt_ns"] = session.rtt_ns
    return entry


def _closed_entry(closed: ClosedSession, query: Query) -> Page:
    traffic = closed.traffic
    entry: Page = {
        "cid": closed.cid,
        "kind": "Client",
        "type": "nats",
        "ip": closed.peer[0],
        "port": closed.peer[1],
        "start": format_time(closed.started_ns),
        "last_activity": format_time(closed.last_activity_ns),
        "stop": format_time(closed.stopped_ns),
        "reason": str(closed.reason),
        "rtt": _go_duration(closed.rtt_ns),
        "uptime": uptime(closed.stopped_ns - closed.started_ns),
        "idle": "0s",
        "pending_bytes": 0,
        "in_msgs": traffic.in_msgs,
        "out_msgs": traffic.out_msgs,
        "in_bytes": traffic.in_bytes,
        "out_bytes": traffic.out_bytes,
        "subscriptions": closed.num_subscriptions,
        "name": closed.name,
        "lang": closed.lang,
        "version": closed.version,
    }
    _add_auth(entry, query, closed.user, closed.account)
    entry["_rtt_ns"] = closed.rtt_ns
    return entry


def _add_auth(entry: Page, query: Query, user: str, account: str) -> None:
    entry["_user"], entry["_account"] = user, account
    if _flag(query, "auth"):
        entry["account"] = account
        if user:
            entry["authorized_user"] = user


def _add_subscriptions(entry: Page, query: Query, session: Session) -> None:
    if query.get("subs", "").lower() == "detail":
        entry["subscriptions_list_detail"] = [
            {
                "account": session.identity.account if session.identity is not None else "",
                "subject": subscription.subject.decode("utf-8", "replace"),
                "qgroup": subscription.queue.decode("utf-8", "replace"),
                "sid": subscription.sid.decode("utf-8", "replace"),
                "msgs": subscription.delivered,
                "max": subscription.max_msgs,
                "cid": session.cid,
            }
            for subscription in session.subscriptions.values()
        ]
    elif _flag(query, "subs"):
        entry["subscriptions_list"] = [
            subscription.subject.decode("utf-8", "replace") for subscription in session.subscriptions.values()
        ]


def _without_private(entry: Page) -> Page:
    """Without the keys that only sort and filter, and without empty texts."""
    return {key: value for key, value in entry.items() if not key.startswith("_") and value != ""}


# -- subsz, jsz, healthz


def subsz(server: Server, query: Query) -> Page:
    """Subscriptions of all accounts."""
    offset, limit = _number(query, "offset", 0), _number(query, "limit", LIMIT_DEFAULT) or LIMIT_DEFAULT
    page: Page = {
        "server_id": server.server_id,
        "now": format_time(server.clock()),
        "num_subscriptions": sum(account.index.count for account in server.accounts.values()),
        "total": 0,
        "offset": offset,
        "limit": limit,
    }
    if _flag(query, "subs"):
        details = [
            detail
            for session in server.sessions.values()
            for detail in _open_entry(session, {"subs": "detail"}, 0)["subscriptions_list_detail"]
        ]
        page["total"] = len(details)
        page["subscriptions_list"] = details[offset : offset + limit]
    return page


def jsz(server: Server, query: Query) -> Page:
    """JetStream: totals, and with accounts, streams, consumers or config as much detail."""
    page: Page = {"server_id": server.server_id, "now": format_time(server.clock())}
    service = server.jetstream
    if service is None:
        return page | {"disabled": True}
    engines = list(service.engines.items())
    streams = [stream for _, engine in engines for stream in engine.streams.values()]
    page = _jetstream_stats(server) | page | {
        "config": _jetstream_config(server),
        "limits": {"default_max_consumers": engines[0][1].config.consumers_per_stream_max} if engines else {},
        "streams": len(streams),
        "consumers": sum(len(stream.consumers) for stream in streams),
        "messages": sum(stream.log.messages for stream in streams),
        "bytes": sum(stream.log.bytes for stream in streams),
        "total": len(engines),
    }  # fmt: skip
    wanted = query.get("acc", "")
    if wanted or any(_flag(query, word) for word in ("accounts", "streams", "consumers")):
        page["account_details"] = [
            _account_detail(server, name, engine, query) for name, engine in engines if wanted in ("", name)
        ]
    return page


def _account_detail(server: Server, name: str, engine: JetStream, query: Query) -> Page:
    info = engine.account_info()
    detail: Page = {
        "name": name,
        "id": name,
        "memory": info.memory,
        "storage": info.storage,
        "reserved_memory": info.reserved_memory,
        "reserved_storage": info.reserved_storage,
        "accounts": 0,
        "ha_assets": 0,
        "api": {"level": info.api.level, "total": info.api.total, "errors": info.api.errors},
    }
    if _flag(query, "streams") or _flag(query, "consumers"):
        detail["stream_detail"] = [_stream_detail(server, s, query) for s in engine.streams.values()]
    return detail


def _stream_detail(server: Server, stream: Stream, query: Query) -> Page:
    detail: Page = {
        "name": stream.name,
        "created": format_time(stream.created),
        "state": stream.state(),
    }
    if _flag(query, "config"):
        detail["config"] = stream.config
    if _flag(query, "consumers"):
        detail["consumer_detail"] = [c.info(server.clock()) for c in stream.consumers.values()]
    return detail


def healthz(server: Server, query: Query) -> Page:
    """ok, or NotFound when an account, stream or consumer that the query names is missing."""
    stream_name, consumer_name = query.get("stream", ""), query.get("consumer", "")
    if consumer_name and not stream_name:
        raise MisuseError("stream name is required for consumer health check")
    service = server.jetstream
    if _flag(query, "js-enabled-only") and service is None:
        raise NotFound("JetStream not enabled")
    if stream_name:
        engine = service.engines.get(query.get("account", "") or "$G") if service is not None else None
        stream = engine.streams.get(stream_name) if engine is not None else None
        if stream is None:
            raise NotFound(f"JetStream stream '{stream_name}' not found")
        if consumer_name and consumer_name not in stream.consumers:
            raise NotFound(f"JetStream consumer '{consumer_name}' not found")
    return {"status": "ok"}


def _jetstream_var(server: Server) -> Page:
    if server.jetstream is None:
        return {}
    return {"config": _jetstream_config(server), "stats": _jetstream_stats(server)}


def _jetstream_config(server: Server) -> Page:
    service = server.jetstream
    assert service is not None
    config: Page = {
        "max_memory": service.max_memory_bytes,
        "max_storage": service.max_file_bytes,
        "store_dir": service.store_dir,
        "sync_interval": service.options.sync_interval_ns,
        "strict": True,
    }
    if service.options.sync_always:
        config["sync_always"] = True
    if service.options.domain:
        config["domain"] = service.options.domain
    return config


def _jetstream_stats(server: Server) -> Page:
    service = server.jetstream
    assert service is not None
    infos = [engine.account_info() for engine in service.engines.values()]
    return {
        "memory": sum(info.memory for info in infos),
        "storage": sum(info.storage for info in infos),
        "reserved_memory": sum(info.reserved_memory for info in infos),
        "reserved_storage": sum(info.reserved_storage for info in infos),
        "accounts": len(infos),
        "ha_assets": 0,
        "api": {
            "level": service.api_level,
            "total": sum(info.api.total for info in infos),
            "errors": sum(info.api.errors for info in infos),
        },
    }


# -- queries and texts


def _flag(query: Query, name: str) -> bool:
    """Raises MisuseError for what is no boolean."""
    word = query.get(name, "").lower()
    if word in _TRUE:
        return True
    if word in _FALSE or (name == "subs" and word == "detail"):
        return False
    raise MisuseError(f"Error decoding boolean for '{name}': {query[name]}")


def _number(query: Query, name: str, default: int) -> int:
    """Raises MisuseError for what is no whole number."""
    word = query.get(name, "")
    if not word:
        return default
    try:
        return max(0, int(word))
    except ValueError:
        raise MisuseError(f"Error decoding integer for '{name}': {word}") from None


def uptime(ns: int) -> str:
    """As the official server writes spans: `1d2h3m4s`, without leading zero parts."""
    seconds = max(0, ns) // _NS
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (seconds, "s")]
    while len(parts) > 1 and parts[0][0] == 0:
        parts.pop(0)
    return "".join(f"{amount}{unit}" for amount, unit in parts)


def _go_duration(ns: int) -> str:
    from penstock.protocol.durations import format_duration

    return format_duration(ns) if ns else ""


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # no /proc on this system
        return 0
