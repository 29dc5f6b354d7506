"""The pages by name: where HTTP and system requests find them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.server.monitoring.pages import accounts, connz, healthz, jsz, remote_servers, subsz
from penstock.server.monitoring.pages import varz as general
from penstock.server.monitoring.pages.page_options import Page, PageOptions, Steps

if TYPE_CHECKING:
    from penstock.server.server import Server


class PageEntry(NamedTuple):
    """A page: its options, and the function that makes it (or begins to)."""

    options: type[PageOptions]
    make: Callable[[Server, Any], Page | Steps]


PAGES: dict[str, PageEntry] = {
    "connz": PageEntry(connz.ConnzOptions, connz.connz),
    "subsz": PageEntry(subsz.SubszOptions, subsz.subsz),
    "accountz": PageEntry(accounts.AccountzOptions, accounts.accountz),
    "accstatz": PageEntry(accounts.AccountStatzOptions, accounts.accstatz),
    "jsz": PageEntry(jsz.JszOptions, jsz.jsz),
    "healthz": PageEntry(healthz.HealthzOptions, healthz.healthz),
    "leafz": PageEntry(remote_servers.RemotesOptions, remote_servers.leafz),
    "routez": PageEntry(remote_servers.RemotesOptions, remote_servers.routez),
    "gatewayz": PageEntry(remote_servers.RemotesOptions, remote_servers.gatewayz),
}


def varz(server: Server, requests: Mapping[str, int]) -> Page:
    """varz, which has no options but shows how often pages were asked for."""
    return general.varz(server, general.VarzOptions(), requests)


def statsz(server: Server) -> Page:
    """The numbers that servers tell each other and the system account."""
    return general.statsz(server)
