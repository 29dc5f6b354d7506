"""What monitoring reads of a server, and the three commands that the system account may give it.

Monitoring shows nearly all of a server, so its pages take one object. This protocol is the list of what they
reach; they know nothing of the class behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import socket

    from penstock.server.accounts.account_registry import AccountRegistry
    from penstock.server.auth.logins import Logins
    from penstock.server.client_info import ClientInfo
    from penstock.server.client_tls import Encryption
    from penstock.server.jetstream_service import JetStreamService
    from penstock.server.links.server_links import ServerLinks
    from penstock.server.monitoring.monitor import Monitor
    from penstock.server.server_context import ServerContext
    from penstock.server.session_registry import SessionRegistry
    from penstock.server.websocket_listener import Websockets


class MonitoredServer(Protocol):
    """A server as monitoring sees it. The parts that are None are off, or not yet open."""

    @property
    def context(self) -> ServerContext: ...
    @property
    def sessions(self) -> SessionRegistry: ...
    @property
    def accounts(self) -> AccountRegistry: ...
    @property
    def logins(self) -> Logins: ...
    @property
    def jetstream(self) -> JetStreamService | None: ...
    @property
    def monitor(self) -> Monitor | None: ...
    @property
    def websockets(self) -> Websockets | None: ...
    @property
    def info(self) -> ClientInfo: ...
    @property
    def links(self) -> ServerLinks: ...
    @property
    def encryption(self) -> Encryption | None: ...
    @property
    def port(self) -> int:
        """The client port. Raises ServerError before the server listens."""

    @property
    def started_ns(self) -> int:
        """Time of the start, ns since 1970."""

    @property
    def failed(self) -> bool:
        """Whether it stopped because the stored data is unreliable."""

    @property
    def stalled_clients(self) -> int:
        """How often publishers were paused because of a congested receiver."""

    async def connect_locally(self, peer: tuple[str, int]) -> socket.socket:
        """A socket on which a client in this process may log in; it acts for this address."""

    async def reload(self) -> str:
        """Reads and applies the configuration. Returns "" or why it was refused."""
