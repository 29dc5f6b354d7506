"""routez, leafz, gatewayz: connections to other servers, always empty, in the official format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.protocol.durations import format_time
from penstock.server.monitoring.pages.page_options import Page, PageOptions, Query, flag, header

if TYPE_CHECKING:
    from penstock.server.monitoring.monitored_server import MonitoredServer


class RemotesOptions(PageOptions, frozen=True, kw_only=True):
    """Options of the three pages; without effect."""

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
    """Routes to servers of the cluster: none."""
    return {
        "server_id": server.context.server_id,
        "server_name": server.context.server_name,
        "now": format_time(server.context.clock()),
        "num_routes": 0,
        "routes": [],
    }


def leafz(server: MonitoredServer, options: RemotesOptions) -> Page:
    """Leaf node connections: none."""
    return header(server) | {"leafnodes": 0, "leafs": []}


def gatewayz(server: MonitoredServer, options: RemotesOptions) -> Page:
    """Gateways to other clusters: none."""
    return header(server) | {"outbound_gateways": {}, "inbound_gateways": {}}
