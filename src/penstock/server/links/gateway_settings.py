"""The options of gateway links, from those of the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.cluster.mesh_ports import address_of
from penstock.cluster.peer_link import Address

if TYPE_CHECKING:
    from penstock.server.config.server_options import ServerOptions


@dataclass(frozen=True)
class GatewayRemoteSetting:
    """See `penstock.cluster.gateways.GatewayRemoteSettings`."""

    name: str
    addresses: tuple[Address, ...]


@dataclass(frozen=True)
class GatewayLinkSettings:
    """See `penstock.cluster.gateways.GatewaySettings`."""

    name: str
    user: str
    password: str
    reject_unknown: bool
    connect_retries: int
    connect_backoff: bool
    headers: bool
    remotes: tuple[GatewayRemoteSetting, ...]


def settings_of(options: ServerOptions) -> GatewayLinkSettings:
    """The settings for options that have gateways."""
    gateway = options.gateway
    assert gateway is not None
    return GatewayLinkSettings(
        name=gateway.name,
        user=gateway.user,
        password=gateway.password,
        reject_unknown=gateway.reject_unknown,
        connect_retries=gateway.connect_retries,
        connect_backoff=gateway.connect_backoff,
        headers=options.header_support,
        remotes=tuple(
            GatewayRemoteSetting(one.name, tuple(address_of(url, "gateway") for url in one.urls))
            for one in gateway.gateways
        ),
    )
