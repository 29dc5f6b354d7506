"""The INFO and CONNECT messages of routes.

Unknown fields are ignored: servers of other versions send more of them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.cluster.peer_info import LinkInfo, reader


class RouteInfo(LinkInfo, omit_defaults=True, kw_only=True):
    """INFO of a route. Also what a server tells about a third one (gossip), or about itself again (an
    update). `ip` is the URL to dial, `nats-route://host:port/`; "" = the address that the connection comes
    from."""

    cluster_dynamic: bool = False
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
    """Name of another cluster that the server tells about."""
    gateway_urls: list[str] | None = None
    gateway_cmd: int = 0
    gateway_url: str = ""
    """host:port of the server for other clusters."""
    leafnode_urls: list[str] | None = None
    replication: int = 0
    """Version of the framing of replicated groups; 0 = none. Only penstock sends it."""
    lesser_id_dials: bool = False
    """Of two links for one place, the server keeps the one that the lesser id dialled. Only penstock sends
    it."""


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
    replication: str = ""
    """Version of the framing that follows in place of the route protocol; "" = a route."""

    def line(self) -> bytes:
        """The protocol line."""
        fields = {k: v for k, v in msgspec.to_builtins(self).items() if v != "" or k in ("name", "cluster")}
        return b"CONNECT " + msgspec.json.encode(fields) + b"\r\n"


parse_info = reader(RouteInfo, "INFO of a route")
parse_connect = reader(RouteConnect, "CONNECT of a route")
