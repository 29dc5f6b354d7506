"""The INFO and CONNECT messages of leaf node links.

Unknown fields are ignored: servers of other versions send more of them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.cluster.peer_info import LinkInfo, reader


class LeafInfo(LinkInfo, omit_defaults=True, kw_only=True):
    """INFO of a leaf node link.

    The hub greets with one, and repeats it, compressed, if both sides compress. The answer to CONNECT is an
    INFO with `connect_info`. Later ones are updates. The leaf node sends one only to agree on compression.
    """

    client_id: int = 0
    """Number of the connection on the hub. Together with `leafnode_urls` or `info_on_connect` it tells the
    port of leaf nodes from others."""
    leafnode_urls: list[str] | None = None
    """host:port of the hub's servers for leaf nodes."""
    ws_connect_urls: list[str] | None = None
    compression: str = ""
    info_on_connect: bool = False
    """Another INFO answers CONNECT."""
    connect_info: bool = False
    """This is that INFO."""
    remote_account: str = ""
    acc_is_sys: bool = False
    import_: Any = msgspec.field(default=None, name="import")
    """What the leaf node may receive: {allow, deny}."""
    export: Any = None
    """What it may send."""
    api_lvl: int = 0


class LeafConnect(msgspec.Struct, omit_defaults=True, kw_only=True):
    """CONNECT of a leaf node link, from the server that dialled."""

    version: str = ""
    nkey: str = ""
    jwt: str = ""
    sig: str = ""
    user: str = ""
    password: str = msgspec.field(default="", name="pass")
    auth_token: str = ""
    server_id: str = ""
    domain: str = ""
    name: str = ""
    """Name of the server."""
    is_hub: bool = False
    """The dialling server is the hub."""
    cluster: str = ""
    headers: bool = False
    jetstream: bool = False
    deny_pub: list[str] | None = None
    """What the dialling server does not want to receive."""
    isolate: bool = False
    compress_mode: str = ""
    gateway: str = ""
    remote_account: str = ""
    protocol: int = 0
    proxy_sig: str = ""
    lang: str = ""
    """Only clients send it."""

    def line(self) -> bytes:
        """The protocol line."""
        return b"CONNECT " + msgspec.json.encode(self) + b"\r\n"


parse_info = reader(LeafInfo, "INFO of a leaf node")
parse_connect = reader(LeafConnect, "CONNECT of a leaf node")
