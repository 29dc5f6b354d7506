"""routez, leafz: connections to other servers of the cluster, and to leaf nodes and hubs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.protocol.durations import format_duration, format_time
from penstock.server.links.route_settings import settings_of
from penstock.server.monitoring.pages.page_options import Page, PageOptions, Query, flag, header, uptime
from penstock.server.monitoring.server_counters import TrafficCounters

if TYPE_CHECKING:
    from penstock.server.links.leaf_session import LeafSession
    from penstock.server.links.route_session import RouteSession
    from penstock.server.monitoring.monitored_server import MonitoredServer


class RemotesOptions(PageOptions, frozen=True, kw_only=True):
    """Options of routez, leafz and gatewayz."""

    subscriptions: bool = False
    subscriptions_detail: bool = False
    accounts: bool = False
    account: str = ""
    name: str = ""

    @classmethod
    def from_query(cls, query: Query) -> RemotesOptions:
        detail = query.get("subs", "").lower() == "detail"
        return cls(
            subscriptions=not detail and flag(query, "subs"),
            subscriptions_detail=detail,
            accounts=flag(query, "accs"),
            account=query.get("acc", "") or query.get("acc_name", ""),
            name=query.get("gw_name", ""),
        )


def routez(server: MonitoredServer, options: RemotesOptions) -> Page:
    """Connections to the other servers of the cluster."""
    context, routes = server.context, server.links.routes
    now = context.clock()
    sessions = routes.sessions if routes is not None else []
    page: Page = {
        "server_id": context.server_id,
        "server_name": context.server_name,
        "now": format_time(now),
        "num_routes": len(sessions),
        "routes": [_route(session, options, now) for session in sessions],
    }
    if routes is not None:
        imports, exports = settings_of(context.options).permissions_shown
        page |= {
            name: value for name, value in (("import", imports), ("export", exports)) if value is not None
        }
        page["dropped_msgs"] = routes.dropped_msgs + sum(one["dropped_msgs"] for one in page["routes"])
    return page


def _route(session: RouteSession, options: RemotesOptions, now: int) -> Page:
    link, traffic = session.link, TrafficCounters.of(session.sink)
    assert link.remote is not None
    host, port = session.peer
    active_ns = session.keep_alive.last_activity_ns
    page: Page = {
        "rid": session.cid,
        "remote_id": link.remote_id,
        "remote_name": link.remote.server_name,
        "did_solicit": link.did_solicit,
        "is_configured": link.is_explicit,
        "ip": host,
        "port": port,
        "start": format_time(session.started_ns),
        "last_activity": format_time(active_ns),
        "rtt": format_duration(link.rtt_ns),
        "uptime": uptime(now - session.started_ns),
        "idle": uptime(max(0, now - active_ns)),
        "import": link.remote.import_,
        "export": link.remote.export,
        "pending_size": session.connection.pending_bytes(),
        "in_msgs": traffic.in_msgs,
        "out_msgs": traffic.out_msgs,
        "in_bytes": traffic.in_bytes,
        "out_bytes": traffic.out_bytes,
        "subscriptions": session.sink.num_interest,
        "dropped_msgs": session.sink.dropped_msgs,
        "account": link.account or None,
        "compression": link.compression or None,
    }
    if options.subscriptions_detail:
        page["subscriptions_list_detail"] = _subscriptions_detail(session)
    elif options.subscriptions:
        page["subscriptions_list"] = [
            subject.decode("utf-8", "replace") for _, subject, *_ in session.sink.interest()
        ]
    return {name: value for name, value in page.items() if value is not None}


def _subscriptions_detail(session: RouteSession) -> list[Page]:
    found = []
    for account, subject, queue, _, delivered in session.sink.interest():
        detail = {
            "account": account.decode("utf-8", "replace"),
            "subject": subject.decode("utf-8", "replace"),
            "sid": subject.decode("utf-8", "replace"),
            "msgs": delivered,
            "cid": session.cid,
        }
        if queue:
            detail["qgroup"] = queue.decode("utf-8", "replace")
        found.append(detail)
    return found


def leafz(server: MonitoredServer, options: RemotesOptions) -> Page:
    """Leaf node links, accepted and dialled."""
    leafs = server.links.leafs
    sessions = leafs.sessions if leafs is not None else []
    if options.account:
        sessions = [one for one in sessions if _account_of(one) == options.account]
    page = header(server) | {"leafnodes": len(sessions), "leafs": [_leaf(one, options) for one in sessions]}
    if leafs is not None:
        page["dropped_msgs"] = leafs.dropped_msgs + sum(one["dropped_msgs"] for one in page["leafs"])
    return page


def _account_of(session: LeafSession) -> str:
    return session.link.account.name if session.link.account is not None else ""


def _leaf(session: LeafSession, options: RemotesOptions) -> Page:
    link, traffic = session.link, TrafficCounters.of(session.sink)
    host, port = session.peer
    page: Page = {
        "id": session.cid,
        "name": link.name,
        "is_spoke": link.is_spoke,
        "is_isolated": link.is_isolated or None,
        "account": _account_of(session),
        "ip": host,
        "port": port,
        "rtt": format_duration(session.rtt_ns),
        "in_msgs": traffic.in_msgs,
        "out_msgs": traffic.out_msgs,
        "in_bytes": traffic.in_bytes,
        "out_bytes": traffic.out_bytes,
        "subscriptions": session.sink.num_interest,
        "dropped_msgs": session.sink.dropped_msgs,
        "compression": link.compression or None,
        "websocket": session.is_websocket or None,
        "proxy": {"key": session.proxy_key} if session.proxy_key else None,
    }
    if options.subscriptions or options.subscriptions_detail:
        page["subscriptions_list"] = [
            subject.decode("utf-8", "replace") for _, subject, *_ in session.sink.interest()
        ]
    return {name: value for name, value in page.items() if value is not None}
