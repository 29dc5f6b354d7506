"""Cluster options: the `cluster` block."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from penstock.errors import ConfigError
from penstock.server.config.option_checks import NS, at_least, between, host_and_port

if TYPE_CHECKING:
    from penstock.routing.permissions import Permissions
    from penstock.server.config.tls_options import TlsOptions

POOL_SIZE = 3
PING_INTERVAL_MAX_NS = 30 * NS
"""Routes are pinged at least this often: their round trip time selects the level of `s2_auto`."""


class ClusterOptions(Struct, frozen=True, kw_only=True):
    """The `cluster` block, without the name (`ServerOptions.cluster_name`)."""

    host: str = "0.0.0.0"
    """Address to listen on for other servers. Default all addresses. `host`, `net` or in `listen`."""
    port: int = 0
    """Port for other servers, 1..65535; -1 = any free port. Required. `port` or in `listen`."""
    routes: tuple[str, ...] = ()
    """URLs of other servers, `nats://[user:password@]host:port`; the own one may be among them. Default none.
    `routes`."""
    user: str = ""
    """User name that other servers must give in their URLs of this one. Default none.
    `authorization.user`."""
    password: str = ""
    """Its password. `authorization.password`."""
    auth_timeout_ns: int = 2 * NS
    """Time limit for CONNECT of another server, > 0, in addition to that of a TLS handshake. Default 2 s.
    `authorization.timeout`."""
    tls: TlsOptions | None = None
    """TLS between servers; both sides always present a certificate. None (default) = off. `tls`."""
    advertise: str = ""
    """host[:port] at which other servers reach this one. Default: the address of its connections.
    `advertise`, `cluster_advertise`."""
    no_advertise: bool = False
    """Neither tell other servers this server's client URLs, nor clients those of other servers. Default off.
    `no_advertise`."""
    connect_retries: int = 0
    """How often a failed connection to a server that is not in `routes` is repeated. Default 0.
    `connect_retries`."""
    connect_backoff: bool = False
    """Double the time between attempts, from 1 s up to 30 s. Default off, 1 s. `connect_backoff`."""
    permissions: Permissions | None = None
    """Subjects whose interest is announced (publish) and accepted (subscribe). Default: all. `permissions`,
    with `import` and `export`."""
    pool_size: int = POOL_SIZE
    """Connections to each server that share the accounts; 0 = 3; negative = one connection for everything.
    Default 3. `pool_size`."""
    accounts: tuple[str, ...] = ()
    """Accounts with a connection of their own to each server, in addition to the system account. Default
    none. `accounts`."""
    compression: str = "accept"
    """`off`, `not supported`, `accept` (default: as the other server asks), `s2_auto`,
    `s2_fast`, `s2_better`, `s2_best`. `compression`."""
    rtt_thresholds_ns: tuple[int, ...] = ()
    """Largest round trip times of the levels of `s2_auto`, ns, ascending; 0 skips a level. Default 10, 50 and
    100 ms. `compression.rtt_thresholds`."""
    ping_interval_ns: int = 0
    """Idle time before a ping, ns; 0 (default) = the server's, at most 30 s. `ping_interval`."""
    ping_max: int = 0
    """Unanswered pings after which a route is stale; 0 (default) = the server's. `ping_max`."""
    write_deadline_ns: int = 0
    """Time in which a route must take pending bytes; 0 (default) = the server's. `write_deadline`."""
    write_timeout: str = "default"
    """Action on a missed write deadline: `close`, or `retry` (also `default`): a new deadline for a route
    that took some bytes. `write_timeout`."""

    def __post_init__(self) -> None:
        between("cluster.port", self.port, -1, 65535)
        if self.port == 0:
            raise ConfigError(
                "cluster.port is missing; give the port for other servers, or -1 for any free one"
            )
        at_least("cluster.authorization.timeout", self.auth_timeout_ns, 1)
        at_least("cluster.connect_retries", self.connect_retries, 0)
        at_least("cluster.ping_interval", self.ping_interval_ns, 0)
        at_least("cluster.ping_max", self.ping_max, 0)
        at_least("cluster.write_deadline", self.write_deadline_ns, 0)
        if self.advertise:
            host_and_port("cluster.advertise", self.advertise)
        for name in self.accounts:
            if self.accounts.count(name) > 1:
                shown = " ".join(self.accounts)
                raise ConfigError(f'found duplicate account name "{name}" in pinned accounts list [{shown}]')
        if self.pool_size < 0 and self.accounts:
            raise ConfigError("pool_size cannot be negative if pinned accounts are specified")
        self._check_links()

    def _check_links(self) -> None:
        from penstock.cluster.compression import check_thresholds
        from penstock.cluster.mesh_ports import address_of  # few servers are members of a cluster

        check_thresholds(self.rtt_thresholds_ns)
        for url in self.routes:
            address_of(url)
