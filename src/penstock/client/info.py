"""The two JSON messages of the handshake: the server's INFO and the client's CONNECT."""

import msgspec

from penstock.errors import ProtocolError


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """INFO of a server. Missing fields have their zero value."""

    server_id: str = ""
    server_name: str = ""
    version: str = ""
    proto: int = 0
    host: str = ""
    port: int = 0
    headers: bool = False
    auth_required: bool = False
    tls_required: bool = False
    tls_available: bool = False
    max_payload: int = 1024 * 1024
    jetstream: bool = False
    client_id: int = 0
    client_ip: str = ""
    nonce: str = ""
    cluster: str = ""
    domain: str = ""
    connect_urls: tuple[str, ...] = ()
    ldm: bool = False
    api_lvl: int = 0


class ConnectRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """CONNECT of the client. Unused credentials are empty strings, which servers ignore."""

    verbose: bool = False
    pedantic: bool = False
    echo: bool = True
    tls_required: bool = False
    user: str = ""
    # "pass" is a Python keyword.
    password: str = msgspec.field(default="", name="pass")
    auth_token: str = ""
    nkey: str = ""
    jwt: str = ""
    sig: str = ""
    name: str = ""
    lang: str = "python-penstock"
    version: str = "0.1.0"
    protocol: int = 1
    headers: bool = True
    no_responders: bool = True


_info_decoder = msgspec.json.Decoder(ServerInfo)
_connect_encoder = msgspec.json.Encoder()


def decode_info(body: bytes) -> ServerInfo:
    """Decode an INFO body. Raises ProtocolError if it is malformed."""
    try:
        return _info_decoder.decode(body)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"the server's INFO can not be read: {error}") from error


def encode_connect(request: ConnectRequest) -> bytes:
    """Encode the CONNECT line."""
    return b"CONNECT " + _connect_encoder.encode(request) + b"\r\n"
