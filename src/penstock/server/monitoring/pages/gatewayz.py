"""gatewayz: connections to other clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.kernels.wire.gateway_links import InterestMode
from penstock.protocol.durations import format_duration, format_time
from penstock.server.monitoring.pages.page_options import Page, header, uptime

if TYPE_CHECKING:
    from penstock.cluster.gateway_link import GatewayLink
    from penstock.server.links.gateway_server import GatewayServer
    from penstock.server.monitoring.monitored_server import MonitoredServer
    from penstock.server.monitoring.pages.remote_servers import RemotesOptions

_MODES = {
    InterestMode.MODE_OPTIMISTIC: "Optimistic",
    InterestMode.MODE_TRANSITIONING: "Transitioning",
    InterestMode.MODE_INTEREST_ONLY: "Interest-Only",
}
NO_INTEREST_MAX = 1000
"""After so many refused subjects a cluster announces its interest instead, on the official server."""


def gatewayz(server: MonitoredServer, options: RemotesOptions) -> Page:
    """Connections to other clusters, by their names: the one that this server dialled, and theirs."""
    page = header(server)
    gateways, settings = server.links.gateways, server.context.options.gateway
    if gateways is None or settings is None:
        return page | {"outbound_gateways": {}, "inbound_gateways": {}}
    now = server.context.clock()
    outbound: Page = {}
    inbound: dict[str, list[Page]] = {}
    for link in gateways.gateways.links:
        if options.name not in ("", link.cluster):
            continue
        if link.remote is not None:
            outbound[link.cluster] = _gateway(gateways, link, options, now)
        else:
            inbound.setdefault(link.cluster, []).append(_gateway(gateways, link, options, now))
    return page | {
        "name": settings.name,
        "host": settings.host,
        "port": gateways.port,
        "outbound_gateways": outbound,
        "inbound_gateways": inbound,
    }


def _gateway(gateways: GatewayServer, link: GatewayLink, options: RemotesOptions, now: int) -> Page:
    page: Page = {
        "configured": link.remote is not None and not link.remote.is_implicit,
        "connection": _connection(gateways, link, now),
    }
    if options.accounts or options.account:
        page["accounts"] = [one for one in _accounts(link, options) if options.account in ("", one["name"])]
    return page


def _connection(gateways: GatewayServer, link: GatewayLink, now: int) -> Page:
    session = gateways.session_of(link.cid)
    if session is None:
        return {"cid": link.cid}
    host, port = session.peer
    sink, active_ns = link.sink, session.keep_alive.last_activity_ns
    return {
        "cid": link.cid,
        "name": link.remote_id,
        "ip": host,
        "port": port,
        "start": format_time(link.started_ns),
        "last_activity": format_time(active_ns),
        "rtt": format_duration(link.rtt_ns),
        "uptime": uptime(now - link.started_ns),
        "idle": uptime(max(0, now - active_ns)),
        "pending_bytes": session.connection.pending_bytes(),
        "in_msgs": sink.in_msgs,
        "out_msgs": sink.out_msgs,
        "in_bytes": sink.in_bytes,
        "out_bytes": sink.out_bytes,
        "subscriptions": sink.num_interest,
        "dropped_msgs": sink.dropped_msgs,
    }


def _accounts(link: GatewayLink, options: RemotesOptions) -> list[Page]:
    """What the cluster told about its interest in each account."""
    interest: dict[bytes, list[tuple[bytes, bytes]]] = {}
    for account, subject, queue, *_ in link.sink.interest():
        interest.setdefault(account, []).append((subject, queue))
    found: list[Page] = []
    for account, (mode, refused) in link.sink.modes().items():
        entries = interest.get(account, [])
        plain = [subject.decode("utf-8", "replace") for subject, queue in entries if not queue]
        queues = [subject.decode("utf-8", "replace") for subject, queue in entries if queue]
        page: Page = {
            "name": account.decode("utf-8", "replace"),
            "interest_mode": _MODES[InterestMode(mode)],
            "no_interest_count": refused,
            "interest_only_threshold": NO_INTEREST_MAX,
            "num_subs": len(plain),
            "num_queue_subs": len(queues),
        }
        if options.subscriptions or options.subscriptions_detail:
            page |= {"subs": plain, "queue_subs": queues}
        found.append(page)
    return found
