"""routez, leafz, gatewayz: other servers. A server alone has none; the pages say so in the official form."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.protocol.durations import format_time
from penstock.server.monitoring.pages.page_options import Page, PageOptions, Query, flag, header

if TYPE_CHECKING:
    from penstock.server.server import Server


class RemotesOptions(PageOptions, frozen=True, kw_only=True):
    """All three pages' options: they choose among what isn't there."""

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


def routez(server: Server, options: RemotesOptions) -> Page:
    """Servers of the cluster."""
    return {
        "server_id": server.server_id,
        "server_name": server.server_name,
        "now": format_time(server.clock()),
        "num_routes": 0,
        "routes": [],
    }


def leafz(server: Server, options: RemotesOptions) -> Page:
    """Leaf nodes."""
    return header(server) | {"leafnodes": 0, "leafs": []}


def gatewayz(server: Server, options: RemotesOptions) -> Page:
    """Other clusters."""
    return header(server) | {"outbound_gateways": {}, "inbound_gateways": {}}
