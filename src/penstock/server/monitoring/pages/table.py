"""The pages by name: where HTTP and system requests find them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.server.monitoring.pages import accounts, connz, healthz, jsz, remote_servers, subsz
from penstock.server.monitoring.pages import varz as general
from penstock.server.monitoring.pages.page_options import Options, Page, Steps

if TYPE_CHECKING:
    from penstock.server.server import Server


class Entry(NamedTuple):
    """A page: its options, and the function that makes it (or begins to)."""

    options: type[Options]
    make: Callable[[Server, Any], Page | Steps]


PAGES: dict[str, Entry] = {
    "connz": Entry(connz.ConnzOptions, connz.connz),
    "subsz": Entry(subsz.SubszOptions, subsz.subsz),
    "accountz": Entry(accounts.AccountzOptions, accounts.accountz),
    "accstatz": Entry(accounts.AccountStatzOptions, accounts.accstatz),
    "jsz": Entry(jsz.JszOptions, jsz.jsz),
    "healthz": Entry(healthz.HealthzOptions, healthz.healthz),
    "leafz": Entry(remote_servers.RemotesOptions, remote_servers.leafz),
    "routez": Entry(remote_servers.RemotesOptions, remote_servers.routez),
    "gatewayz": Entry(remote_servers.RemotesOptions, remote_servers.gatewayz),
}


def varz(server: Server, requests: Mapping[str, int]) -> Page:
    """varz, which has no options but shows how often pages were asked for."""
    return general.varz(server, general.VarzOptions(), requests)


def statsz(server: Server) -> Page:
    """The numbers that servers tell each other and the system account."""
    return general.statsz(server)
