"""The gateway links of a server: listener, dialling, reload.

`penstock.cluster.gateways` decides which links there are; this object has the sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from penstock.cluster.gateway_info import GatewayInfo
from penstock.cluster.gateways import GatewayRemote, Gateways, cluster_hash
from penstock.cluster.peer_link import Address
from penstock.net.backlog import Bounds
from penstock.protocol.hosts import host_checked
from penstock.server.config.option_checks import host_and_port
from penstock.server.links.gateway_session import GatewaySession
from penstock.server.links.gateway_settings import settings_of
from penstock.server.links.link_server import LinkServer, bounds_for, is_address
from penstock.server.links.local_addresses import reachable
from penstock.server.server_identity import RUNTIME, VERSION

if TYPE_CHECKING:
    import ssl

    from penstock.cluster.interests import AccountInterests
    from penstock.cluster.mesh import Mesh
    from penstock.cluster.route_info import RouteInfo
    from penstock.kernels.wire.route_links import RouteSink
    from penstock.routing.account import Account
    from penstock.server.accounts.account_registry import AccountRegistry
    from penstock.server.config.gateway_options import GatewayOptions
    from penstock.server.config.server_options import ServerOptions
    from penstock.server.config.tls_options import TlsOptions
    from penstock.server.server_context import ServerContext
    from penstock.server.tick import Tick

DIAL_TIMEOUT_S = 1.0
Contexts = tuple["ssl.SSLContext", "ssl.SSLContext"]


class GatewayServer(LinkServer[GatewaySession]):
    """The gateway links of one server.

    Args:
        context: options with gateways; log, clock, identity.
        accounts: the accounts of the server.
        interests: what they announce.
        tick: ends of ticks.
        mesh: callable() -> the routes of this server; None = it has none.
        changed: callable(names of clusters with a link): a link was registered, or is gone.
    """

    kind = "gateway"

    def __init__(
        self,
        context: ServerContext,
        accounts: AccountRegistry,
        interests: AccountInterests,
        tick: Tick,
        *,
        mesh: Callable[[], Mesh | None],
        changed: Callable[[set[str]], object],
    ) -> None:
        super().__init__(context, accounts, interests, tick, bounds_of(context.options))
        self._mesh = mesh
        self._on_change = changed
        self._reachable = ""  # the address of this machine for others, once it was needed
        self._contexts: dict[str, Contexts] = _contexts_of(context.options)
        self.gateways = Gateways(
            settings_of(context.options),
            self,
            interests,
            context.clock,
            server_id=context.server_id,
            server_name=context.server_name,
        )

    # -- for the server

    async def open(self) -> None:
        """Listens for servers of other clusters. Raises ServerError."""
        options = self._options
        for account in self._accounts.values():
            self.gateways.watch(account)
        self._accounts.when_created(self.gateways.watch)
        self._accounts.when_removed(self.gateways.forget)
        self._accounts.when_shared(self._expect_replies)
        await self._listen(lambda: self._connection(None), options.host, options.port)
        log = self._context.log
        log.info(f"Gateway name is {options.name}")
        log.info(f"Listening for gateways connections on {Address(options.host, self.port)}")
        log.info(f'Address for gateway "{options.name}" is {self.own_url}')

    def start(self) -> None:
        """Dials the configured clusters."""
        self.gateways.start()

    @property
    def _options(self) -> GatewayOptions:
        options = self._context.options.gateway
        assert options is not None
        return options

    @property
    def own_url(self) -> str:
        """host:port at which servers of other clusters reach this one."""
        return str(Address(*self._advertised()))

    def _advertised(self) -> tuple[str, int]:
        options = self._options
        if options.advertise:
            host, port = host_and_port("gateway.advertise", options.advertise)
            return host, port or self.port
        if not self._reachable:
            self._reachable = reachable(options.host)[0]
        return self._reachable, self.port

    def session_of(self, cid: int) -> GatewaySession | None:
        """The connection with this number."""
        return self._sessions.get(cid)

    def _stop_links(self) -> None:
        self.gateways.stop()

    def renew(self) -> None:
        """Applies the current options."""
        self._renew_bounds(bounds_of(self._context.options))
        self.gateways.renew(settings_of(self._context.options))

    def prepared_tls(self, options: ServerOptions) -> Callable[[], object]:
        """Reads the TLS files of these options; returns what uses them for new connections. Raises
        ConfigError."""
        made = _contexts_of(options)

        def commit() -> None:
            self._contexts = made

        return commit

    # -- for routes

    def lines_for_route(self) -> list[bytes]:
        """What a new server of the cluster must know about other clusters."""
        return self.gateways.lines_for_route()

    def heard_from_route(self, info: RouteInfo) -> None:
        """A server of the cluster tells about another cluster."""
        self.gateways.heard_of(info.gateway, info.gateway_urls or ())

    def peer_changed(self, server_id: str, is_here: bool) -> None:
        """A server of the cluster came or went."""
        mesh = self._mesh()
        link = mesh.peers.get(server_id) if mesh is not None and is_here else None
        if link is not None and link.remote is not None:
            self.gateways.peer_joined(server_id, link.remote.gateway_url)
        else:
            self.gateways.peer_left(server_id)

    # -- ports of the links

    def dial(self, remote: GatewayRemote) -> None:
        self._start_dial(self._connect(remote))

    def base_info(self) -> GatewayInfo:
        host, port = self._advertised()
        options = self._options
        return GatewayInfo(
            server_id=self._context.server_id,
            server_name=self._context.server_name,
            version=VERSION,
            go=RUNTIME,
            host=host,
            port=port,
            max_payload=self._context.options.max_payload,
            tls_required=options.tls is not None,
            tls_verify=options.tls is not None,
            gateway_url=str(Address(host, port)),
        )

    def accounts(self) -> Iterable[Account]:
        return tuple(self._accounts.values())

    def tell_routes(self, line: bytes) -> None:
        mesh = self._mesh()
        if mesh is not None:
            for link in mesh.peers.values():
                link.send(line)

    def route_of(self, account: bytes, server_hash: str) -> tuple[RouteSink, bytes] | None:
        mesh = self._mesh()
        if mesh is None:
            return None
        for link in mesh.carriers(account.decode("utf-8", "replace")):
            if cluster_hash(link.remote_id) == server_hash:
                return link.sink, b"" if link.account else account + b" "
        return None

    def has_server_named(self, name: str) -> bool:
        mesh = self._mesh()
        peers = mesh.peers.values() if mesh is not None else ()
        return any(link.remote is not None and link.remote.server_name == name for link in peers)

    def changed(self) -> None:
        self._on_change({link.cluster for link in self.gateways.links})

    # -- connections

    def _connection(self, remote: GatewayRemote | None) -> asyncio.BaseProtocol:
        """The protocol object of a new socket."""
        session = self._keep(
            GatewaySession(
                self._context,
                self.gateways,
                self._take_cid(),
                self._tick.dirty_sinks,
                self._watch,
                remote,
                self._on_ended,
            )
        )
        tls = self._tls_of(remote)
        contexts = self._contexts.get(remote.name if remote is not None else "") or self._contexts.get("")
        if tls is None or contexts is None:
            return session.connection
        accepting, connecting = contexts
        if remote is None:
            return self._encrypted(session, accepting, tls.timeout_ns, None)
        return self._encrypted(session, connecting, tls.timeout_ns, _tls_name(remote))

    def _tls_of(self, remote: GatewayRemote | None) -> TlsOptions | None:
        own = [one.tls for one in self._options.gateways if remote is not None and one.name == remote.name]
        return next((tls for tls in own if tls is not None), self._options.tls)

    async def _connect(self, remote: GatewayRemote) -> None:
        address = remote.address
        assert address is not None
        try:
            with host_checked(address.host):
                async with asyncio.timeout(DIAL_TIMEOUT_S):
                    await self._loop.create_connection(
                        lambda: self._connection(remote), address.host, address.port
                    )
        except OSError as error:  # TimeoutError is one
            self.gateways.dial_failed(remote, error.strerror or str(error) or "timeout")


def _tls_name(remote: GatewayRemote) -> str:
    """The name that a server's certificate must have. An address from gossip gets the first host name of the
    configuration, because certificates seldom name addresses."""
    assert remote.address is not None
    names = [one.host for one in remote.configured if not is_address(one.host)]
    return names[0] if is_address(remote.address.host) and names else remote.address.host


def _contexts_of(options: ServerOptions) -> dict[str, Contexts]:
    """TLS of this server ("") and of clusters with their own. Raises ConfigError."""
    gateway = options.gateway
    assert gateway is not None
    found = {"": gateway.tls, **{one.name: one.tls for one in gateway.gateways}}
    return {name: _contexts(tls) for name, tls in found.items() if tls is not None}


def _contexts(tls: TlsOptions) -> Contexts:
    from penstock.net.tls import peer_contexts

    return peer_contexts(
        cert_file=tls.cert_file,
        key_file=tls.key_file,
        ca_file=tls.ca_file,
        min_version=tls.min_version,
        cipher_suites=tls.cipher_suites,
        insecure=tls.insecure,
    )


def bounds_of(options: ServerOptions) -> Bounds:
    """Back pressure limits of gateways."""
    gateway = options.gateway
    assert gateway is not None
    return bounds_for(options, gateway.write_deadline_ns, gateway.write_timeout)
