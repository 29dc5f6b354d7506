"""varz: the state of the server, with parts shared by other pages and statsz."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock import __version__
from penstock.protocol.durations import format_time
from penstock.server.config.option_checks import host_and_port
from penstock.server.monitoring.pages.jsz import jetstream_config, jetstream_limits, jetstream_stats
from penstock.server.monitoring.pages.page_options import Page, PageOptions, Query, uptime
from penstock.server.monitoring.server_counters import TrafficCounters
from penstock.server.server_identity import PROTOCOL, RUNTIME, VERSION

if TYPE_CHECKING:
    from penstock.server.config.leaf_options import LeafRemoteOptions
    from penstock.server.links.gateway_server import GatewayServer
    from penstock.server.links.route_session import RouteSession
    from penstock.server.monitoring.monitored_server import MonitoredServer

_NS = 1_000_000_000


class VarzOptions(PageOptions, frozen=True, kw_only=True):
    """varz has no options."""

    @classmethod
    def from_query(cls, query: Query) -> VarzOptions:
        return cls()


def traffic(server: MonitoredServer, account: str = "") -> TrafficCounters:
    """Total traffic of the server, or of one account, since the start."""
    totals = server.sessions.totals if not account else server.sessions.totals.of_account(account)
    sums = [totals.in_msgs, totals.in_bytes, totals.out_msgs, totals.out_bytes]
    for session in server.sessions.values():
        if not account or (session.identity is not None and session.identity.account == account):
            sink = session.sink
            sums[0] += sink.in_msgs
            sums[1] += sink.in_bytes
            sums[2] += sink.out_msgs
            sums[3] += sink.out_bytes
    return TrafficCounters(*sums)


def num_subscriptions(server: MonitoredServer) -> int:
    """Number of subscriptions in all accounts, including the server's own."""
    return sum(account.index.count for account in server.accounts.values())


def varz(server: MonitoredServer, options: VarzOptions, requests: Mapping[str, int]) -> Page:
    """General state. `requests`: number of requests per page."""
    context, totals, sums = server.context, server.sessions.totals, traffic(server)
    settings, links, now = context.options, server.links, context.clock()
    host, port = host_and_port("client_advertise", settings.client_advertise)
    page: Page = {
        "server_id": context.server_id,
        "server_name": context.server_name,
        "version": VERSION,
        "penstock_version": __version__,
        "proto": PROTOCOL,
        "go": RUNTIME,
        "host": host or settings.host,
        "port": port or server.port,
        "connect_urls": _connect_urls(server),
        "auth_required": server.logins.default.required or None,
        "max_connections": settings.max_connections,
        "max_subscriptions": settings.max_subscriptions or None,
        "ping_interval": settings.ping_interval_ns,
        "ping_max": settings.ping_max,
        "http_host": settings.http_host or settings.host,
        "http_port": server.monitor.port if server.monitor is not None and not settings.https_port else 0,
        "http_base_path": settings.http_base_path,
        "https_port": server.monitor.port if server.monitor is not None and settings.https_port else 0,
        "auth_timeout": settings.auth_timeout_ns / _NS,
        "max_control_line": settings.max_control_line,
        "max_payload": settings.max_payload,
        "max_pending": settings.max_pending,
        "cluster": _cluster(server),
        "gateway": _gateway(server),
        "leaf": _leafnodes(server),
        "mqtt": {},
        "websocket": server.websockets.shown() if server.websockets is not None else {},
        "jetstream": jetstream_var(server),
        "tls_required": (server.encryption is not None and server.encryption.required) or None,
        "tls_verify": (settings.tls is not None and settings.tls.verify) or None,
        "tls_timeout": settings.tls.timeout_ns / _NS if settings.tls is not None else 2,
        "write_deadline": settings.write_deadline_ns,
        "start": format_time(server.started_ns),
        "now": format_time(now),
        "uptime": uptime(now - server.started_ns),
        "mem": resident_bytes(),
        "cores": os.cpu_count() or 1,
        "gomaxprocs": 1,
        "cpu": cpu_percent(server),
        "connections": len(server.sessions),
        "total_connections": totals.connections,
        "routes": len(links.routes.mesh.links) if links.routes is not None else 0,
        "remotes": len(links.routes.mesh.peers) if links.routes is not None else 0,
        "leafnodes": len(links.leafs.sessions) if links.leafs is not None else 0,
        **_messages(sums, routed(server)),
        "slow_consumers": totals.slow_consumers
        + (links.routes.slow_peers if links.routes is not None else 0)
        + (links.gateways.slow_peers if links.gateways is not None else 0),
        "stale_connections": totals.stale_connections,
        "stalled_clients": server.stalled_clients,
        "subscriptions": num_subscriptions(server),
        "http_req_stats": dict(requests),
        "config_load_time": format_time(server.started_ns),
        "config_digest": "",
        "system_account": settings.system_account if settings.has_system_account else None,
        "tags": settings.server_tags or None,
        "proxies": _proxies(settings.trusted_proxies),
        "metadata": dict(settings.server_metadata) or None,
        "slow_consumer_stats": _by_kind(totals.slow_consumers)
        | ({"routes": links.routes.slow_peers} if links.routes is not None else {})
        | ({"gateways": links.gateways.slow_peers} if links.gateways is not None else {}),
        "stale_connection_stats": _by_kind(totals.stale_connections),
        # Disk access is not queued by a semaphore as in the official server.
        "disk_io_wait_stats": {"waiters": 0, "waits": 0, "wait_time": 0, "max_wait_time": 0},
    }
    return {name: value for name, value in page.items() if value is not None}


def routed(server: MonitoredServer) -> TrafficCounters:
    """Traffic with other servers since the start."""
    links = server.links
    found = [part.traffic() for part in (links.routes, links.leafs, links.gateways) if part is not None]
    return TrafficCounters(*(sum(parts) for parts in zip(TrafficCounters(0, 0, 0, 0), *found, strict=True)))


def _connect_urls(server: MonitoredServer) -> list[str] | None:
    own = server.context.options.client_advertise
    others = server.links.routes.mesh.client_urls() if server.links.routes is not None else []
    return [*([own] if own else []), *others] or None


def _cluster(server: MonitoredServer) -> Page:
    """Options and state of the cluster; {} for a server without one."""
    options, routes = server.context.options.cluster, server.links.routes
    if options is None or routes is None:
        return {}
    page: Page = {
        "name": routes.mesh.cluster_name,
        "addr": options.host,
        "cluster_port": routes.port,
        "auth_timeout": options.auth_timeout_ns / _NS,
        "urls": [str(address) for address in routes.mesh.settings.routes] or None,
        "tls_timeout": options.tls.timeout_ns / _NS if options.tls is not None else 2,
        "tls_required": options.tls is not None or None,
        "tls_verify": options.tls is not None or None,
        "pool_size": routes.mesh.settings.pool_size,
        "write_deadline": options.write_deadline_ns or None,
        "write_timeout": options.write_timeout if options.write_timeout != "default" else None,
    }
    return {name: value for name, value in page.items() if value is not None}


def _gateway(server: MonitoredServer) -> Page:
    """Options of gateways, and the clusters that are known; {} without them."""
    options = server.context.options.gateway
    if options is None or server.links.gateways is None:
        return {}
    remotes = server.links.gateways.gateways.remotes.values()
    page: Page = {
        "name": options.name,
        "host": options.host,
        "port": server.links.gateways.port,
        "auth_timeout": options.auth_timeout_ns / _NS,
        "tls_timeout": options.tls.timeout_ns / _NS if options.tls is not None else 2,
        "tls_required": options.tls is not None or None,
        "tls_verify": options.tls is not None or None,
        "advertise": options.advertise or None,
        "connect_retries": options.connect_retries or None,
        "gateways": [{"name": one.name, "urls": [str(url) for url in one.addresses]} for one in remotes]
        or None,
        "reject_unknown": options.reject_unknown,
        "write_deadline": options.write_deadline_ns or None,
        "write_timeout": options.write_timeout if options.write_timeout != "default" else None,
    }
    return {name: value for name, value in page.items() if value is not None}


def _leafnodes(server: MonitoredServer) -> Page:
    """Options of leaf nodes; {} without them."""
    options = server.context.options.leafnodes
    if options is None or server.links.leafs is None:
        return {}
    page: Page = {
        "host": options.host if options.port else None,
        "port": server.links.leafs.port or None,
        "auth_timeout": options.auth_timeout_ns / _NS,
        "tls_timeout": options.tls.timeout_ns / _NS if options.tls is not None else 2,
        "tls_required": options.tls is not None or None,
        "tls_verify": (options.tls is not None and options.tls.verify) or None,
        "remotes": [_remote(remote) for remote in options.remotes] or None,
        "write_deadline": options.write_deadline_ns or None,
        "write_timeout": options.write_timeout if options.write_timeout != "default" else None,
    }
    return {name: value for name, value in page.items() if value is not None}


def _remote(remote: LeafRemoteOptions) -> Page:
    deny = {"exports": list(remote.deny_exports), "imports": list(remote.deny_imports)}
    page: Page = {
        "local_account": remote.account,
        "tls_timeout": remote.tls.timeout_ns / _NS if remote.tls is not None else None,
        "urls": [str(address) for address in remote.addresses],
        "deny": {name: subjects for name, subjects in deny.items() if subjects} or None,
    }
    return {name: value for name, value in page.items() if value is not None}


def _messages(clients: TrafficCounters, routes: TrafficCounters) -> Page:
    """Message counts of all connections, and of clients alone."""
    sums = TrafficCounters(*(sum(parts) for parts in zip(clients, routes, strict=True)))
    return {
        "in_msgs": sums.in_msgs,
        "in_bytes": sums.in_bytes,
        "in_client_msgs": clients.in_msgs,
        "in_client_bytes": clients.in_bytes,
        "out_msgs": sums.out_msgs,
        "out_bytes": sums.out_bytes,
        "out_client_msgs": clients.out_msgs,
        "out_client_bytes": clients.out_bytes,
    }


def _proxies(keys: tuple[str, ...]) -> Page | None:
    return {"trusted": [{"key": key} for key in keys]} if keys else None


def statsz(server: MonitoredServer) -> Page:
    """The server statistics for the system account."""
    totals, sums = server.sessions.totals, traffic(server)
    to_clients = {"msgs": sums.out_msgs, "bytes": sums.out_bytes}
    from_clients = {"msgs": sums.in_msgs, "bytes": sums.in_bytes}
    others = routed(server)
    active = {one.identity.account for one in server.sessions.values() if one.identity is not None}
    page: Page = {
        "start": format_time(server.started_ns),
        "mem": resident_bytes(),
        "cores": os.cpu_count() or 1,
        "cpu": cpu_percent(server),
        "connections": len(server.sessions),
        "total_connections": totals.connections,
        "active_accounts": len(active),
        "subscriptions": num_subscriptions(server),
        "sent": {"msgs": sums.out_msgs + others.out_msgs, "bytes": sums.out_bytes + others.out_bytes},
        "sent_to_clients": to_clients,
        "received": {"msgs": sums.in_msgs + others.in_msgs, "bytes": sums.in_bytes + others.in_bytes},
        "received_from_clients": from_clients,
        "slow_consumers": totals.slow_consumers,
        "active_servers": 1,
        "gomaxprocs": 1,
    }
    if server.links.routes is not None:
        page["active_servers"] = 1 + len(server.links.routes.mesh.peers)
        page["routes"] = [_route_stat(session) for session in server.links.routes.sessions]
    if server.links.gateways is not None:
        page["gateways"] = _gateway_stats(server.links.gateways)
    if server.jetstream is not None:
        page["jetstream"] = jetstream_var(server)
    return page


def _gateway_stats(gateways: GatewayServer) -> list[Page]:
    """One entry for each cluster that this server has dialled."""
    found: list[Page] = []
    for link in gateways.gateways.outbound:
        inbound = [one.sink for one in gateways.gateways.inbound if one.cluster == link.cluster]
        found.append(
            {
                "gwid": link.cid,
                "name": link.cluster,
                "sent": {"msgs": link.sink.out_msgs, "bytes": link.sink.out_bytes},
                "received": {
                    "msgs": sum(one.in_msgs for one in inbound),
                    "bytes": sum(one.in_bytes for one in inbound),
                },
                "inbound_connections": len(inbound),
            }
        )
    return found


def _route_stat(session: RouteSession) -> Page:
    sink = session.sink
    return {
        "rid": session.cid,
        "name": session.link.name,
        "sent": {"msgs": sink.out_msgs, "bytes": sink.out_bytes},
        "received": {"msgs": sink.in_msgs, "bytes": sink.in_bytes},
        "pending": session.connection.pending_bytes(),
    }


def _by_kind(clients: int) -> Page:
    return {"clients": clients, "routes": 0, "gateways": 0, "leafs": 0}


def jetstream_var(server: MonitoredServer) -> Page:
    """JetStream configuration, limits and usage; {} without JetStream."""
    if server.jetstream is None:
        return {}
    page: Page = {
        "config": jetstream_config(server),
        "stats": jetstream_stats(server),
        "limits": jetstream_limits(server),
    }
    if server.jetstream.cluster is not None:
        from penstock.server.replicated.cluster_monitoring import meta_cluster  # few servers have one

        page["meta"] = meta_cluster(server.jetstream.cluster)
    return page


def cpu_percent(server: MonitoredServer) -> float:
    """CPU usage in percent of one core, averaged since the start."""
    return round(100 * time.process_time() * _NS / max(1, server.context.clock() - server.started_ns), 1)


def resident_bytes() -> int:
    """Resident memory of the process, bytes; 0 if unknown."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # no /proc on this system
        return 0
