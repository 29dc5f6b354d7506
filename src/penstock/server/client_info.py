"""INFO for clients: what this server tells about itself, and the addresses of its cluster's members."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from penstock.server.config.option_checks import host_and_port
from penstock.server.server_identity import API_LEVEL, PROTOCOL, RUNTIME, VERSION

if TYPE_CHECKING:
    from penstock.server.auth.logins import Logins
    from penstock.server.client_tls import Encryption
    from penstock.server.jetstream_service import JetStreamService
    from penstock.server.links.server_links import ServerLinks
    from penstock.server.server_context import ServerContext
    from penstock.server.session import Session
    from penstock.server.websocket_listener import Websockets


class InfoSources(Protocol):
    """The parts that INFO tells about, as they are now; None = the server has none, or none yet."""

    @property
    def context(self) -> ServerContext: ...
    @property
    def logins(self) -> Logins: ...
    @property
    def links(self) -> ServerLinks: ...
    @property
    def encryption(self) -> Encryption | None: ...
    @property
    def jetstream(self) -> JetStreamService | None: ...
    @property
    def websockets(self) -> Websockets | None: ...


class ClientInfo:
    """The INFO lines of one server.

    The fields for all clients are built by rebuild(), and again when an option or another server's
    addresses change. A client's own line adds its id and account.
    """

    def __init__(self, sources: InfoSources) -> None:
        self._sources = sources
        self._fields: dict[str, Any] = {}
        self._port = 0
        self._is_lame_duck = False
        self._advertises = False  # other servers have or had URLs for clients

    def rebuild(self, port: int | None = None) -> None:
        """Builds the fields for all clients. `port`: the new client port; None = unchanged."""
        if port is not None:
            self._port = port
        self._fields = self._current()
        if self._is_lame_duck:
            self._fields["ldm"] = True

    def lame_duck(self) -> None:
        """From now on INFO tells clients to reconnect elsewhere, and no address of this server."""
        self._is_lame_duck = True
        self.rebuild()

    def line(self, session: Session, *, connect_info: bool = False, leaving: bool = False) -> bytes:
        """INFO for one client. `connect_info`: add the account, after CONNECT. `leaving`: add `ldm`, so that
        the client reconnects elsewhere."""
        host, _ = session.connection.peer
        info = self._fields
        if self._sources.websockets is not None and session.connection.kind == "websocket":
            info = self._sources.websockets.info(info)
            if others := self._other_urls("websocket"):
                info = info | {"connect_urls": [*self._advertised("websocket"), *others]}
            else:
                info.pop("connect_urls", None)
        info = {**info, "client_id": session.cid}
        if session.is_peer_known:
            info["client_ip"] = host
        if session.is_local:
            from penstock.server.local_clients import local_info  # few servers have a web page

            info = local_info(info)
        if leaving:
            info["ldm"] = True
        if session.nonce and session.identity is None:
            info["nonce"] = session.nonce
        if connect_info and session.identity is not None:
            account = session.identity.account
            info |= {"connect_info": True, "remote_account": account}
            info["max_payload"] = session.max_payload
            if account == self._sources.context.options.system_account:
                info["acc_is_sys"] = True
        return b"INFO " + msgspec.json.encode(info) + b" \r\n"

    def own_urls(self, kind: str) -> list[str]:
        """This server's addresses for clients of a kind, "nats" or "websocket", as other servers advertise
        them."""
        from penstock.server.links.local_addresses import reachable  # only members of a cluster need it

        options, websockets = self._sources.context.options, self._sources.websockets
        if kind == "websocket":
            return websockets.advertised(reachable) if websockets is not None else []
        if options.client_advertise:
            host, advertised = host_and_port("client_advertise", options.client_advertise)
            return [host_port(host, advertised or self._port)]
        return [host_port(host, self._port) for host in reachable(options.host)]

    def all_websocket_urls(self) -> list[str]:
        """The WebSocket addresses of this server and of the other members of its cluster."""
        return [*self.own_urls("websocket"), *self._other_urls("websocket")]

    def _advertised(self, kind: str) -> list[str]:
        return [] if self._is_lame_duck else self.own_urls(kind)

    def _other_urls(self, kind: str) -> list[str]:
        routes = self._sources.links.routes
        return routes.mesh.client_urls(kind) if routes is not None else []

    def _current(self) -> dict[str, Any]:
        sources = self._sources
        context, options, routes = sources.context, sources.context.options, sources.links.routes
        info: dict[str, Any] = {
            "server_id": context.server_id,
            "server_name": context.server_name,
            "version": VERSION,
            "proto": PROTOCOL,
            "go": RUNTIME,
            "host": options.host,
            "port": self._port,
            "headers": options.header_support,
            "max_payload": options.max_payload,
            "api_lvl": API_LEVEL,
        }
        if context.curve_key is not None:
            info["xkey"] = context.curve_key.public
        if sources.logins.default.required:
            info["auth_required"] = True
        if sources.encryption is not None:
            info |= sources.encryption.info()
        if sources.jetstream is not None:
            info["jetstream"] = True
            if options.jetstream is not None and options.jetstream.domain:
                info["domain"] = options.jetstream.domain
        if options.client_advertise:
            host, advertised = host_and_port("client_advertise", options.client_advertise)
            info |= {"host": host, "port": advertised or self._port}
            info["connect_urls"] = [host_port(host, advertised or self._port)]
        if routes is not None:
            info["cluster"] = routes.mesh.cluster_name
            others = self._other_urls("nats")
            self._advertises |= bool(others)
            if self._advertises:
                # The own URLs stay when the others are gone: without any, clients would keep the old list.
                info["connect_urls"] = list(dict.fromkeys((*self._advertised("nats"), *others)))
        elif options.gateway is not None:
            info["cluster"] = options.gateway.name
        return info


def host_port(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
