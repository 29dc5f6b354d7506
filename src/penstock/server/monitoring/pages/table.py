"""The pages by name, for HTTP and system requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.server.monitoring.pages import accounts, connz, gatewayz, healthz, jsz, remote_servers, subsz
from penstock.server.monitoring.pages import varz as general
from penstock.server.monitoring.pages.page_options import Page, PageOptions, Steps

if TYPE_CHECKING:
    from penstock.server.monitoring.monitored_server import MonitoredServer


class PageEntry(NamedTuple):
    """A page: its options type, and the function that builds it or returns its generator."""

    options: type[PageOptions]
    make: Callable[[MonitoredServer, Any], Page | Steps]


PAGES: dict[str, PageEntry] = {
    "connz": PageEntry(connz.ConnzOptions, connz.connz),
    "subsz": PageEntry(subsz.SubszOptions, subsz.subsz),
    "accountz": PageEntry(accounts.AccountzOptions, accounts.accountz),
    "accstatz": PageEntry(accounts.AccountStatzOptions, accounts.accstatz),
    "jsz": PageEntry(jsz.JszOptions, jsz.jsz),
    "healthz": PageEntry(healthz.HealthzOptions, healthz.healthz),
    "leafz": PageEntry(remote_servers.RemotesOptions, remote_servers.leafz),
    "routez": PageEntry(remote_servers.RemotesOptions, remote_servers.routez),
    "gatewayz": PageEntry(remote_servers.RemotesOptions, gatewayz.gatewayz),
}


def varz(server: MonitoredServer, requests: Mapping[str, int]) -> Page:
    """varz, which has no options and shows the number of requests per page."""
    return general.varz(server, general.VarzOptions(), requests)


def statsz(server: MonitoredServer) -> Page:
    """The server statistics for system events."""
    return general.statsz(server)
