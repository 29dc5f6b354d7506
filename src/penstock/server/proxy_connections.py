"""Clients that come through a proxy which says who they are (`proxy_protocol`).

INFO leaves before the proxy's header comes, without `client_ip`: the address it could show is the proxy's.
From the header on, the client's own address is the one that logs, monitoring, events and networks of users
know. A client without a header goes on as it is; one with a bad header, or none within five seconds that
tells, is closed without a word.
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


def behind_proxy(
    inner: ServerConnection | TlsLayer, connection: ServerConnection, session: Session
) -> ProxyLayer:
    """The protocol object of a new socket; `inner` is the one without a proxy."""
    session.is_peer_known = False

    def known(header: ProxyHeader) -> None:
        session.is_peer_known = True
        if header.source is not None:
            session.comes_from(header.source)

    def refused(text: str) -> None:
        host, port = connection.peer
        session.server.log.warning(f"Error reading PROXY protocol header from {host}:{port}: {text}")
        session.close(CloseReason.PROTOCOL_VIOLATION)

    return ProxyLayer(inner, connection, known=known, refused=refused)
