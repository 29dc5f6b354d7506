"""The INFO and CONNECT messages of routes.

Unknown fields are ignored: servers of other versions send more of them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.errors import ProtocolError

NAMELESS = "_"
"""In place of a cluster name, it stands for leaf nodes without one, so no cluster may have it."""


class RouteInfo(msgspec.Struct, omit_defaults=True, kw_only=True):
    """INFO of a route. Also what a server tells about a third one (gossip), or about itself again (an
    update)."""

    server_id: str
    server_name: str = ""
    version: str = ""
    proto: int = 0
    git_commit: str = ""
    go: str = ""
    host: str = ""
    port: int = 0
    headers: bool = False
    auth_required: bool = False
    tls_required: bool = False
    tls_verify: bool = False
    max_payload: int = 0
    jetstream: bool = False
    ip: str = ""
    """URL to dial, `nats-route://host:port/`; "" = the address that the connection comes from."""
    nonce: str = ""
    cluster: str = ""
    cluster_dynamic: bool = False
    domain: str = ""
    connect_urls: list[str] | None = None
    ws_connect_urls: list[str] | None = None
    ldm: bool = False
    compression: str = ""
    import_: Any = msgspec.field(default=None, name="import")
    export: Any = None
    lnoc: bool = False
    lnocu: bool = False
    ln: bool = False
    route_pool_size: int = 0
    route_pool_idx: int = 0
    route_account: str = ""
    route_acc_add_reqid: str = ""
    gossip_mode: int = 0
    gateway: str = ""
    gateway_url: str = ""
    leafnode_urls: list[str] | None = None

    def line(self) -> bytes:
        """The protocol line, with the blank that the official server puts before its end."""
        return b"INFO " + msgspec.json.encode(self) + b" \r\n"


class RouteConnect(msgspec.Struct, kw_only=True):
    """CONNECT of a route, from the server that dialled."""

    echo: bool = True
    verbose: bool = False
    pedantic: bool = False
    user: str = ""
    password: str = msgspec.field(default="", name="pass")
    tls_required: bool = False
    headers: bool = False
    name: str = ""
    """The id of the server, not its name."""
    cluster: str = ""
    cluster_dynamic: bool = False
    lnoc: bool = False
    lnocu: bool = False
    ln: bool = False
    gateway: str = ""
    lang: str = ""
    """Only clients send it."""

    def line(self) -> bytes:
        """The protocol line."""
        fields = {k: v for k, v in msgspec.to_builtins(self).items() if v != "" or k in ("name", "cluster")}
        return b"CONNECT " + msgspec.json.encode(fields) + b"\r\n"


_INFO = msgspec.json.Decoder(RouteInfo, strict=False)
_CONNECT = msgspec.json.Decoder(RouteConnect, strict=False)


def parse_info(body: bytes) -> RouteInfo:
    """Raises ProtocolError."""
    try:
        return _INFO.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"INFO of a route is not readable: {error}") from error


def parse_connect(body: bytes) -> RouteConnect:
    """Raises ProtocolError."""
    try:
        return _CONNECT.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"CONNECT of a route is not readable: {error}") from error
