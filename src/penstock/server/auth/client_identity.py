"""Credentials and log name of a session's client."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from penstock.server.auth.authenticator import Credentials

if TYPE_CHECKING:
    from penstock.server.config.leaf_options import LeafOptions
    from penstock.server.config.server_options import ServerOptions
    from penstock.server.config.websocket_options import WebsocketOptions
    from penstock.server.connect_message import ConnectMessage
    from penstock.server.links.leaf_session import LeafSession
    from penstock.server.session import Session

SHOWN_MAX = 1024
"""Characters of client text that log lines show."""


def credentials_of(session: Session | LeafSession, given: ConnectMessage) -> Credentials:
    """The credentials of a CONNECT, completed by the connection's."""
    connection, options = session.connection, session.context.options
    block: WebsocketOptions | LeafOptions | ServerOptions | None = options
    is_leaf = connection.kind == "leaf"
    if session.is_websocket:
        block = options.websocket
    elif is_leaf:
        block = options.leafnodes
    types = ("LEAFNODE", "LEAFNODE_WS") if is_leaf else ("STANDARD", "WEBSOCKET")
    tls = block.tls if block is not None else None
    return Credentials(
        user=given.user,
        password=given.password,
        token=given.auth_token,
        nkey=given.nkey,
        sig=given.sig,
        jwt=given.jwt,
        nonce=session.nonce,
        host=connection.peer[0],
        connection_type=types[session.is_websocket],
        certificate=connection.certificate() if tls is not None and tls.verify_and_map else None,
    )


def log_name(session: Session) -> str:
    """Address and number of the connection; after CONNECT also client library, name and user.

    A claimed address (X-Forwarded-For) comes before the socket's, as in the official server's log.
    """
    connection = session.connection
    host, port = connection.peer
    tag = "wid" if connection.kind == "websocket" else "cid"
    claimed = connection.forwarded_for
    if claimed:
        host = f"[{claimed}]/{host}" if ":" in claimed else f"{claimed}/{host}"
    found = f"{host}:{port} - {tag}:{session.cid}"
    options, identity = session.options, session.identity
    if options.lang or options.version or options.name:
        parts = [f"v{options.version}" if options.version else "", options.lang, options.name]
        found += f' - "{quoted_text(":".join(part for part in parts if part))}"'
    if identity is not None and identity.user:
        kinds = (("nkey:", options.nkey), ("user:", options.user), ("jwt:", options.jwt))
        kind = next((kind for kind, given in kinds if given), "")  # token authentication has no user name
        found += f' - "{quoted_text(f"{identity.account}/{kind}{identity.user}")}"'
    return found


def quoted_text(text: str) -> str:
    """Escapes client text for use between quotes in a log line, which shows its first SHOWN_MAX characters:
    each line of a connection has its name, and a name may have as many bytes as a CONNECT."""
    if len(text) > SHOWN_MAX:
        text = f"{text[:SHOWN_MAX]}..."
    if text.isprintable() and '"' not in text and "\\" not in text:
        return text
    from penstock.server.logging.protocol_trace import quoted  # rarely needed

    return quoted(text.encode("utf-8", "surrogatepass"))


def new_nonce() -> str:
    """A nonce: 15 unpredictable characters."""
    from base64 import urlsafe_b64encode

    return urlsafe_b64encode(os.urandom(11)).decode().rstrip("=")
