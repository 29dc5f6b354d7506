"""The INFO and CONNECT messages of gateway links."""

from __future__ import annotations

import msgspec

from penstock.cluster.peer_info import LinkInfo, reader

COMMAND_GOSSIP = 1
"""INFO about another cluster."""
COMMAND_ALL_START = 2
"""The server announces its interest in an account from now on."""
COMMAND_ALL_COMPLETE = 3
"""It has done so."""


class GatewayInfo(LinkInfo, omit_defaults=True, kw_only=True):
    """INFO of a gateway link: of the server itself, about another cluster, or a command."""

    server_id: str = ""
    gateway: str = ""
    """Name of the cluster."""
    gateway_urls: list[str] | None = None
    """host:port of its servers for other clusters."""
    gateway_url: str = ""
    gateway_cmd: int = 0
    gateway_cmd_payload: bytes = b""
    """Account of a command; base64 in JSON."""
    gateway_nrp: bool = False
    """Routes replies by name."""
    gateway_iom: bool = False
    """Announces its interest in all accounts, from the start."""


class GatewayConnect(msgspec.Struct, kw_only=True):
    """CONNECT of a gateway link, from the server that dialled."""

    echo: bool = True
    verbose: bool = False
    pedantic: bool = False
    user: str = ""
    password: str = msgspec.field(default="", name="pass")
    tls_required: bool = False
    name: str = ""
    """The id of the server, not its name."""
    gateway: str = ""
    """Name of its cluster."""
    lang: str = ""
    """Only clients send it."""

    def line(self) -> bytes:
        """The protocol line."""
        fields = {k: v for k, v in msgspec.to_builtins(self).items() if v != ""}
        return b"CONNECT " + msgspec.json.encode(fields) + b"\r\n"


parse_info = reader(GatewayInfo, "INFO of a gateway")
parse_connect = reader(GatewayConnect, "CONNECT of a gateway")
