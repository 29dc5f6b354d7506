"""The listener for WebSocket clients: policy, TLS and users from the `websocket` block."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, ServerError
from penstock.net.listener import Listener
from penstock.net.websocket import READ_BYTES, AcceptedWebsocket, WebsocketPolicy, origin_of
from penstock.server.config.option_checks import NS, host_and_port
from penstock.server.config.server_options import WebsocketOptions

if TYPE_CHECKING:
    from penstock.net.server_connection import ServerConnection
    from penstock.server.auth.logins import Logins
    from penstock.server.server_context import ServerContext

_TLS_FIELDS = ("tls_required", "tls_available", "tls_verify")


class Websockets:
    """Accepts WebSocket clients of a server.

    Args:
        context: options and log of the server.
        logins: its users and those of the block.
        options: the block `websocket`.
        accept: called with the fields of CONNECT that cookies give, and the claimed client address; returns
            the connection of a new session.
        accept_leaf: returns the connection of a new leaf node, or None if the server accepts none.

    Raises:
        ConfigError: an invalid allowed origin.
    """

    def __init__(
        self,
        context: ServerContext,
        logins: Logins,
        options: WebsocketOptions,
        accept: Callable[[dict[str, str], str], ServerConnection],
        accept_leaf: Callable[[], ServerConnection | None],
    ) -> None:
        self._context = context
        self._logins = logins
        self._new_connection = accept
        self._new_leaf = accept_leaf
        self._options = options
        self._listener = Listener(self._accept)
        self._scratch = bytearray(READ_BYTES)
        self._policy = _policy(options)
        self._renewal: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        return self._listener.port

    @property
    def url(self) -> str:
        """URL for clients on this machine: `ws://host:port`, or `wss://host:port` with TLS."""
        host = self._options.host
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return (
            f"{self.scheme}://[{host}]:{self.port}" if ":" in host else f"{self.scheme}://{host}:{self.port}"
        )

    def advertised(self, reachable: Callable[[str], list[str]]) -> list[str]:
        """host:port of this listener for clients elsewhere. reachable: the addresses of a listening host."""
        options = self._options
        if options.advertise:
            host, port = host_and_port("websocket.advertise", options.advertise)
            hosts, port = [host], port or self.port
        else:
            hosts, port = reachable(options.host), self.port
        return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host in hosts]

    @property
    def scheme(self) -> str:
        return "ws" if self._options.tls is None else "wss"

    async def open(self) -> None:
        """Binds and listens. Raises ServerError, or ConfigError for unreadable TLS files."""
        options, context = self._options, None
        if options.tls is not None:
            from penstock.server.client_tls import context_of

            context = context_of(options.tls)
        try:
            await self._listener.open(options.host, max(0, options.port), context)
        except OSError as error:
            raise ServerError(
                f"can not listen on {options.host}:{options.port} for websocket clients: "
                f"{error.strerror or error}; is it in use?"
            ) from error
        log, host = self._context.log, f"[{options.host}]" if ":" in options.host else options.host
        log.info(f"Listening for websocket clients on {self.scheme}://{host}:{self.port}")
        if context is None:
            log.warning("Websocket not configured with TLS. DO NOT USE IN PRODUCTION!")

    def prepared(self, options: WebsocketOptions) -> Callable[[], None]:
        """Returns a function that applies other options to new clients. Reads TLS files now. Raises
        ConfigError."""
        policy, context = _policy(options), None
        if options.tls is not None:
            from penstock.server.client_tls import context_of

            context = context_of(options.tls)

        def commit() -> None:
            self._options, self._policy = options, policy
            if context is not None:
                self._renewal = asyncio.get_running_loop().create_task(self._listener.renew(context))

        return commit

    def close(self) -> None:
        """Stops listening; accepted connections stay open."""
        self._listener.close()

    def info(self, info: dict[str, Any]) -> dict[str, Any]:
        """INFO for these clients: with this listener's address, and without TLS, which is below the
        WebSocket."""
        own = {name: value for name, value in info.items() if name not in _TLS_FIELDS}
        authenticator = self._logins.websocket
        if authenticator is not None and authenticator.required:
            own["auth_required"] = True
        return own | {"host": self._options.host, "port": self.port}

    def shown(self) -> dict[str, Any]:
        """The `websocket` object of varz."""
        options = self._options
        shown = {
            "host": options.host,
            "port": self.port,
            "advertise": options.advertise,
            "no_tls": options.no_tls,
            "compression": options.compression,
            "same_origin": options.same_origin,
            "allowed_origins": list(options.allowed_origins),
        }
        return {name: value for name, value in shown.items() if value}

    def _accept(self) -> AcceptedWebsocket:
        return AcceptedWebsocket(
            self._connection, self._policy, self._scratch, self._context.log.error, self._new_leaf
        )

    def _connection(self, cookies: dict[str, str], forwarded_for: str) -> ServerConnection:
        """The connection after the handshake. Cookies provide credentials unless CONNECT does."""
        options = self._options
        names = {
            "jwt": options.jwt_cookie,
            "user": options.user_cookie,
            "password": options.pass_cookie,
            "auth_token": options.token_cookie,
        }
        given = {field: cookies[name] for field, name in names.items() if name and name in cookies}
        return self._new_connection(given, forwarded_for)


def _policy(options: WebsocketOptions) -> WebsocketPolicy:
    refusal = None
    if options.tls is not None:
        from penstock.server.client_tls import certificate_refusal

        refusal = certificate_refusal(options.tls)
    return WebsocketPolicy(
        handshake_timeout_s=options.handshake_timeout_ns / NS,
        compression=options.compression,
        same_origin=options.same_origin,
        allowed_origins=_origins(options),
        encrypted=options.tls is not None,
        headers=options.headers,
        refusal=refusal,
    )


def _origins(options: WebsocketOptions) -> frozenset[tuple[str, str, int]]:
    try:
        return frozenset(origin_of(origin) for origin in options.allowed_origins)
    except ValueError as error:
        raise ConfigError(f"websocket.allowed_origins: {error}") from error
