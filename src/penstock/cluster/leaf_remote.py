"""A hub that this server dials: its addresses, and when to dial which.

The configured addresses are tried in turn, after those of other servers of the hub's cluster, which the hub
tells. The order of the configured ones is random, unless the configuration says otherwise, so that many leaf
nodes spread over the hub's servers.

Invariant: a remote has one connection, or one attempt, or waits for the next attempt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.cluster.leaf_ports import LeafAddress, RemoteSettings
from penstock.errors import ConfigError
from penstock.protocol.hosts import announced_address

if TYPE_CHECKING:
    from penstock.cluster.leaf_info import LeafInfo
    from penstock.cluster.leaf_link import LeafLink


class LeafRemote:
    """One configured remote.

    Args:
        settings: its options.
        random: returns a number from [0, 1).
    """

    def __init__(self, settings: RemoteSettings, random: Callable[[], float]) -> None:
        self.settings = settings
        self.link: LeafLink | None = None
        self.attempts = 0  # failed ones since the last connection
        self.delay_s = 0.0  # before the next attempt, because of the reason of the last end
        self.needs_tls = False  # the hub said so
        self.is_gone = False  # removed from the configuration, or disabled
        self._configured = list(settings.addresses)
        if not settings.no_randomize:
            for i in range(len(self._configured) - 1, 0, -1):
                k = int(random() * (i + 1))
                self._configured[i], self._configured[k] = self._configured[k], self._configured[i]
        self._addresses = list(self._configured)
        self.address: LeafAddress | None = None

    @property
    def is_websocket(self) -> bool:
        """Whether the hub is dialled by WebSocket."""
        return self.settings.addresses[0].is_websocket

    def next_address(self) -> LeafAddress:
        """The address to dial now. One that was used before goes to the end of the list."""
        if self.address is not None and len(self._addresses) > 1 and self.address == self._addresses[0]:
            self._addresses.append(self._addresses.pop(0))
        self.address = self._addresses[0]
        return self.address

    def note_servers(self, info: LeafInfo) -> None:
        """Sets the addresses of the servers of the hub's cluster, as the hub sent them. They replace earlier
        ones."""
        urls = info.ws_connect_urls if self.is_websocket else info.leafnode_urls
        if self.settings.ignore_discovered_servers or not urls:
            return
        first = self.settings.addresses[0]
        found: list[LeafAddress] = []
        for url in urls:
            place = announced_address(url)
            if place is None:
                raise ConfigError(f'Error parsing url "{url}"')
            one = LeafAddress(first.scheme, *place, path=first.path)
            if not any(one.is_same(known) for known in self._configured):
                found.append(one)
        self._addresses = [*found, *self._configured]

    @property
    def user(self) -> tuple[str, str | None]:
        """User name and password: of the address, or of the first configured one that has them."""
        assert self.address is not None
        for one in (self.address, *self.settings.addresses):
            if one.user:
                return one.user, one.password
        return "", None

    @property
    def host_name(self) -> str:
        """The name that the hub's certificate must have. Addresses from the hub are seldom in it."""
        assert self.address is not None
        names = [one.host for one in self.settings.addresses if not _is_address(one.host)]
        return names[0] if _is_address(self.address.host) and names else self.address.host


def _is_address(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdigit()
