"""connz: connections, open and closed. Sorts, filters and pages before building entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from penstock.errors import MisuseError
from penstock.protocol.durations import format_time
from penstock.protocol.subjects import overlaps
from penstock.server.auth.authenticator import GLOBAL_ACCOUNT
from penstock.server.monitoring.pages.page_options import (
    Page,
    PageOptions,
    Query,
    Steps,
    duration,
    flag,
    header,
    natural,
    number,
    paging,
    pieces,
    text,
    uptime,
)  # fmt: skip
from penstock.server.monitoring.pages.users import token_of
from penstock.server.monitoring.server_counters import ClosedSession, TrafficCounters
from penstock.server.session import Session

if TYPE_CHECKING:
    from penstock.kernels.wire.sinks import SinkSubscription
    from penstock.server.monitoring.monitored_server import MonitoredServer

OPEN, CLOSED, ALL = 0, 1, 2
_STATES = {"": OPEN, "open": OPEN, "closed": CLOSED, "any": ALL, "all": ALL}
Some = Session | ClosedSession


class ConnzOptions(PageOptions, frozen=True, kw_only=True):
    """Options of connz; in a query `subs=detail` is `subscriptions_detail`."""

    sort: str = ""
    auth: bool = False
    subscriptions: bool = False
    subscriptions_detail: bool = False
    offset: int = 0
    limit: int = 0
    cid: Annotated[int, Meta(ge=0)] = 0
    mqtt_client: str = ""
    state: int = OPEN
    user: str = ""
    acc: str = ""
    filter_subject: str = ""

    @classmethod
    def from_query(cls, query: Query) -> ConnzOptions:
        state = _STATES.get(query.get("state", "").lower())
        if state is None:
            raise MisuseError(f"Error decoding state for {query['state']}")
        detail = query.get("subs", "").lower() == "detail"
        return cls(
            sort=query.get("sort", ""),
            auth=flag(query, "auth"),
            subscriptions=not detail and flag(query, "subs"),
            subscriptions_detail=detail,
            offset=number(query, "offset"),
            limit=number(query, "limit"),
            cid=natural(query, "cid"),
            mqtt_client=query.get("mqtt_client", ""),
            state=state,
            user=query.get("user", ""),
            acc=query.get("acc", ""),
        )


def connz(server: MonitoredServer, options: ConnzOptions) -> Steps:
    """Connections. Raises MisuseError for invalid options."""
    if options.sort not in _SORTS:
        raise MisuseError(f"invalid sorting option: {options.sort}")
    if options.sort in ("stop", "reason") and options.state != CLOSED:
        raise MisuseError(f"sort by {options.sort} only valid on closed connections")
    if options.filter_subject not in ("", ">") and not options.acc:
        raise MisuseError("filter by subject only valid with account filtering")
    return _connz(server, options)


def _connz(server: MonitoredServer, options: ConnzOptions) -> Steps:
    offset, limit = paging(options.offset, options.limit)
    if options.cid:
        limit = 1
    candidates: list[Some] = []
    if options.state in (OPEN, ALL):
        candidates += server.sessions.values()
    if options.state in (CLOSED, ALL):
        candidates += server.sessions.closed
    total, chosen, key = 0, [], _SORTS[options.sort]
    for piece in pieces(candidates, 1024):
        for one in piece:
            if options.acc in ("", account_of(one)):
                total += 1
                if _is_wanted(one, options):
                    chosen.append((key(one), one))
        yield
    chosen.sort(key=lambda pair: pair[0])
    entries: list[Page] = []
    for shown in pieces(chosen[offset : offset + limit]):
        entries += [_entry(one, options, server.context.clock()) for _, one in shown]
        yield
    return header(server) | {
        "num_connections": len(entries),
        "total": total,
        "offset": offset,
        "limit": limit,
        "connections": entries,
    }


def _is_wanted(one: Some, options: ConnzOptions) -> bool:
    if options.cid and one.cid != options.cid:
        return False
    if options.user and _user(one) != options.user:
        return False
    if options.mqtt_client:  # MQTT is not supported
        return False
    if options.filter_subject not in ("", ">") and isinstance(one, Session):
        # Subscriptions that overlap the filter; closed connections are included in any case.
        subscriptions = one.subscriptions.values()
        return any(overlaps(text(found.subject), options.filter_subject) for found in subscriptions)
    return True


def account_of(one: Some) -> str:
    """Account name of a connection; "" before authentication."""
    if isinstance(one, ClosedSession):
        return one.account
    return one.identity.account if one.identity is not None else ""


def _user(one: Some) -> str:
    if isinstance(one, ClosedSession):
        return one.user
    return one.identity.user if one.identity is not None else ""


def _traffic(one: Some) -> TrafficCounters:
    return one.traffic if isinstance(one, ClosedSession) else TrafficCounters.of(one.sink)


def _num_subscriptions(one: Some) -> int:
    return one.num_subscriptions if isinstance(one, ClosedSession) else len(one.subscriptions)


def _pending(one: Some) -> int:
    return 0 if isinstance(one, ClosedSession) else one.connection.pending_bytes()


def _uptime_order(one: Some) -> int:
    """Sort key for uptime, shortest first; open connections count from their start."""
    return one.stopped_ns - one.started_ns if isinstance(one, ClosedSession) else -one.started_ns


_SORTS: dict[str, Callable[[Some], Any]] = {
    "": lambda one: one.cid,
    "cid": lambda one: one.cid,
    "start": lambda one: (one.started_ns, one.cid),
    "subs": lambda one: -_num_subscriptions(one),
    "pending": lambda one: -_pending(one),
    "msgs_to": lambda one: -_traffic(one).out_msgs,
    "msgs_from": lambda one: -_traffic(one).in_msgs,
    "bytes_to": lambda one: -_traffic(one).out_bytes,
    "bytes_from": lambda one: -_traffic(one).in_bytes,
    "last": lambda one: -one.last_activity_ns,
    "idle": lambda one: one.last_activity_ns,
    "uptime": _uptime_order,
    "stop": lambda one: -one.stopped_ns if isinstance(one, ClosedSession) else 0,
    "reason": lambda one: str(one.reason) if isinstance(one, ClosedSession) else "",
    "rtt": lambda one: -one.rtt_ns,
}


def _entry(one: Some, options: ConnzOptions, now: int) -> Page:
    traffic = _traffic(one)
    peer = one.peer if isinstance(one, ClosedSession) else one.connection.peer
    end = one.stopped_ns if isinstance(one, ClosedSession) else now
    about = one if isinstance(one, ClosedSession) else one.options
    entry: Page = {
        "cid": one.cid,
        "kind": "Client",
        "type": one.kind if isinstance(one, ClosedSession) else one.connection.kind,
        "ip": peer[0],
        "port": peer[1],
        "start": format_time(one.started_ns),
        "last_activity": format_time(one.last_activity_ns),
        "stop": format_time(one.stopped_ns) if isinstance(one, ClosedSession) else "",
        "reason": str(one.reason) if isinstance(one, ClosedSession) else "",
        "rtt": duration(one.rtt_ns),
        "uptime": uptime(end - one.started_ns),
        "idle": uptime(end - one.last_activity_ns),
        "pending_bytes": _pending(one),
        "in_msgs": traffic.in_msgs,
        "out_msgs": traffic.out_msgs,
        "in_bytes": traffic.in_bytes,
        "out_bytes": traffic.out_bytes,
        "subscriptions": _num_subscriptions(one),
        "name": about.name,
        "lang": about.lang,
        "version": about.version,
    }
    if isinstance(one, Session):
        version, suite = one.connection.tls()
        entry |= {"tls_version": version, "tls_cipher_suite": suite}
    if one.proxy_key:
        entry["proxy"] = {"key": one.proxy_key}
    if isinstance(one, Session) and one.connection.stalls:
        entry["stalls"] = one.connection.stalls
    if options.auth:
        account = account_of(one)
        entry["authorized_user"] = _user(one)
        entry["account"] = account if account != GLOBAL_ACCOUNT else ""
        if isinstance(one, Session):
            entry |= token_of(one, for_strangers=True)
    if isinstance(one, Session):
        _add_subscriptions(entry, one, options)
    return {name: value for name, value in entry.items() if value not in ("", [])}


def _add_subscriptions(entry: Page, session: Session, options: ConnzOptions) -> None:
    subscriptions = session.subscriptions.values()
    if options.subscriptions_detail:
        entry["subscriptions_list_detail"] = [describe(one, session.cid) for one in subscriptions]
    elif options.subscriptions:
        entry["subscriptions_list"] = [text(one.subject) for one in subscriptions]


def describe(subscription: SinkSubscription, cid: int, account: str = "") -> Page:
    """Details of a subscription.

    Args:
        subscription: the subscription.
        cid: id of its connection.
        account: name for `account` and `account_tag`; "" omits both.
    """
    entry: Page = {"account": account, "account_tag": account} if account else {}
    entry["subject"] = text(subscription.subject)
    if subscription.queue:
        entry["qgroup"] = text(subscription.queue)
    entry["sid"] = text(subscription.sid)
    entry["msgs"] = subscription.delivered
    if subscription.max_msgs:
        entry["max"] = subscription.max_msgs
    entry["cid"] = cid
    return entry
