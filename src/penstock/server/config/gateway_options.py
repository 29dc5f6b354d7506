"""Gateway options: the `gateway` block, links to other clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from penstock.errors import ConfigError
from penstock.server.config.option_checks import NS, at_least, between, host_and_port

if TYPE_CHECKING:
    from penstock.server.config.tls_options import TlsOptions

PING_INTERVAL_MAX_NS = 15 * NS
"""Gateways are pinged at least this often: their round trip time decides which cluster is nearest."""


class GatewayRemoteOptions(Struct, frozen=True, kw_only=True):
    """An entry of `gateway.gateways`: another cluster."""

    name: str = ""
    """Name of the cluster: that of its own `gateway` block. Required. The own name is ignored. `name`."""
    urls: tuple[str, ...] = ()
    """Addresses of its servers, `nats://[user:password@]host:port`; one of them is enough. Required. `url`,
    `urls`."""
    tls: TlsOptions | None = None
    """TLS to this cluster. Default: that of the `gateway` block. `tls`."""

    def __post_init__(self) -> None:
        from penstock.cluster.mesh_ports import address_of  # few servers have gateways

        for url in self.urls:
            address_of(url, "gateway")


class GatewayOptions(Struct, frozen=True, kw_only=True):
    """The `gateway` block."""

    name: str = ""
    """Name of this cluster, unique among all; also the name of `cluster`, which may be left out. Required.
    `name`."""
    host: str = "0.0.0.0"
    """Address to listen on for servers of other clusters. Default all addresses. `host`, `net` or in
    `listen`."""
    port: int = 0
    """Port for servers of other clusters, 1..65535; -1 = any free port. Required. `port` or in `listen`."""
    user: str = ""
    """User name that servers of other clusters must give, and that this server gives to them, unless their
    URL has one. Default none. `authorization.user`."""
    password: str = ""
    """Its password. `authorization.password`."""
    auth_timeout_ns: int = 2 * NS
    """Time limit for CONNECT of another server, > 0, in addition to that of a TLS handshake. Default 2 s.
    `authorization.timeout`."""
    tls: TlsOptions | None = None
    """TLS between clusters; both sides always present a certificate. None (default) = off. `tls`."""
    advertise: str = ""
    """host[:port] at which servers of other clusters reach this one. Default: the address of `host`, or the
    first one of the machine. `advertise`."""
    connect_retries: int = 0
    """How often a failed connection to a cluster that is not in `gateways` is repeated. Default 0.
    `connect_retries`."""
    connect_backoff: bool = False
    """Double the time between attempts, from 1 s up to 30 s. Default off, 1 s. `connect_backoff`."""
    reject_unknown: bool = False
    """Refuse clusters that are not in `gateways`. Default off. `reject_unknown_cluster`, `reject_unknown`."""
    gateways: tuple[GatewayRemoteOptions, ...] = ()
    """Other clusters that this server connects to. Others are found by gossip. Default none. `gateways`."""
    write_deadline_ns: int = 0
    """Time in which a gateway must take pending bytes; 0 (default) = the server's. `write_deadline`."""
    write_timeout: str = "default"
    """Action on a missed write deadline: `close`, or `retry` (also `default`): a new deadline for a gateway
    that took some bytes. `write_timeout`."""

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("gateway has no name; give the name of this cluster")
        if " " in self.name:
            raise ConfigError(f"gateway.name is {self.name!r}: gateway name cannot contain spaces")
        between("gateway.port", self.port, -1, 65535)
        if self.port == 0:
            raise ConfigError(f'gateway "{self.name}" has no port specified (select -1 for random port)')
        at_least("gateway.authorization.timeout", self.auth_timeout_ns, 1)
        at_least("gateway.connect_retries", self.connect_retries, 0)
        at_least("gateway.write_deadline", self.write_deadline_ns, 0)
        if self.advertise:
            host_and_port("gateway.advertise", self.advertise)
        for number, remote in enumerate(self.gateways):
            if not remote.name:
                raise ConfigError(f"gateway in the list {number} has no name")
            if not remote.urls:
                raise ConfigError(f'gateway "{remote.name}" has no URL')
