"""Clients behind a proxy that sends a PROXY header (`proxy_protocol`).

INFO leaves before the header arrives, without `client_ip`: only the proxy's address is known. After the
header, logs, monitoring, events and user networks see the client's own address. A client without a header
continues unproxied. A malformed header, or an incomplete one after five seconds, closes the connection
without -ERR.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.net.proxy_layer import ProxyLayer
from penstock.net.reasons import CloseReason
from penstock.protocol.proxy_protocol import ProxyHeader

if TYPE_CHECKING:
    from penstock.net.server_connection import ServerConnection
    from penstock.net.tls import TlsLayer
    from penstock.server.session import Session


def behind_proxy(inner: ServerConnection | TlsLayer, session: Session) -> ProxyLayer:
    """The protocol object of a new socket; `inner` is the one that would serve it without a proxy."""
    connection = session.connection

    def known(header: ProxyHeader) -> None:
        session.on_proxy_header(header.source)

    def refused(text: str) -> None:
        host, port = connection.peer
        session.context.log.warning(f"Error reading PROXY protocol header from {host}:{port}: {text}")
        session.close(CloseReason.PROTOCOL_VIOLATION)

    return ProxyLayer(inner, connection, known=known, refused=refused)
