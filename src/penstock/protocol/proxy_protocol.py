"""PROXY protocol, versions 1 and 2: the header that a proxy sends before the client's bytes.

    PROXY TCP4 192.0.2.1 198.51.100.7 40000 4222\r\n                 version 1, 107 bytes at most
    signature(12) version|command family|transport length(2) ...     version 2, 16 + 65535 bytes at most

Reading has three outcomes: a header, "need more", an error. Input that begins like neither version has no
header, which the first six bytes decide. The official server accepts such clients as unproxied.
"""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

from penstock.errors import ProtocolError

PREFIX_SIZE = 6  # bytes that decide whether there is a header
V1_PREFIX = b"PROXY "
V1_LINE_MAX = 107
V2_SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
V2_FIXED_SIZE = 16
VERSION_2 = 0x2
LOCAL, PROXY = 0x0, 0x1
STREAM = 0x1
UNSPECIFIED, IPV4, IPV6 = 0x0, 0x1, 0x2
_ADDRESS_SIZES = {IPV4: 4, IPV6: 16}


class ProxyHeader(NamedTuple):
    """size: bytes of the header, 0 = no header. source: (address, port) of the client; None for LOCAL and
    UNKNOWN headers and unspecified addresses."""

    size: int
    source: tuple[str, int] | None


def read_header(data: bytes | bytearray) -> ProxyHeader | None:
    """Reads the header at the start of the input; None = more input is needed.

    Raises:
        ProtocolError: the input begins like a header and is malformed.
    """
    if len(data) < PREFIX_SIZE:
        return None
    if data.startswith(V1_PREFIX):
        return _read_v1(data)
    if data.startswith(V2_SIGNATURE[:PREFIX_SIZE]):
        return _read_v2(data)
    return ProxyHeader(0, None)


# -- version 1


def _read_v1(data: bytes | bytearray) -> ProxyHeader | None:
    end = data.find(b"\r\n", PREFIX_SIZE, V1_LINE_MAX)
    if end < 0:
        if len(data) >= V1_LINE_MAX:
            raise ProtocolError("invalid PROXY protocol header: v1 line too long")
        return None
    size = end + 2
    words = data[PREFIX_SIZE:end].decode("utf-8", "replace").split()
    if words and words[0] == "UNKNOWN":
        return ProxyHeader(size, None)
    if len(words) != 5:
        raise ProtocolError("invalid PROXY protocol header: invalid v1 format")
    transport, source, target, source_port, target_port = words
    host, _ = _address(source), _address(target)
    port, _ = _port("source", source_port), _port("dest", target_port)
    if transport not in ("TCP4", "TCP6"):
        raise ProtocolError(f"invalid PROXY protocol header: invalid protocol {transport}")
    for text in (source, target):
        if (":" in text) is not (transport == "TCP6"):
            other = "IPv4" if transport == "TCP6" else "IPv6"
            raise ProtocolError(f"invalid PROXY protocol header: {transport} with {other} address")
    return ProxyHeader(size, (host, port))


def _address(text: str) -> str:
    try:
        if "%" in text:
            raise ValueError("a zone means nothing to others")
        return _shown(ipaddress.ip_address(text))
    except ValueError as error:
        raise ProtocolError("invalid PROXY protocol header: invalid address") from error


def _port(which: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 20 or int(text) > 0xFFFF:
        raise ProtocolError(f"invalid {which} port: {text[:20]!r}")
    return int(text)


def _shown(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """Text of an address; IPv4-mapped IPv6 addresses as IPv4."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


# -- version 2


def _read_v2(data: bytes | bytearray) -> ProxyHeader | None:
    if not data.startswith(V2_SIGNATURE[: len(data)]):
        raise ProtocolError("invalid PROXY protocol header: invalid signature")
    if len(data) < V2_FIXED_SIZE:
        return None
    version, command = data[12] >> 4, data[12] & 0xF
    family, transport = data[13] >> 4, data[13] & 0xF
    length = int.from_bytes(data[14:16], "big")
    size = V2_FIXED_SIZE + length
    if version != VERSION_2:
        raise ProtocolError(f"invalid PROXY protocol header: invalid version 0x{data[12] & 0xF0:02x}")
    if command not in (LOCAL, PROXY):
        raise ProtocolError(f"unknown PROXY protocol command: 0x{command:02x}")
    width = 0
    if command == PROXY:
        if transport != STREAM:
            raise ProtocolError("unsupported PROXY protocol feature: only STREAM protocol supported")
        if family not in (UNSPECIFIED, IPV4, IPV6):
            raise ProtocolError(
                f"unsupported PROXY protocol feature: unsupported address family 0x{data[13] & 0xF0:02x}"
            )
        width = _ADDRESS_SIZES.get(family, 0)
        if length < (2 * width + 4 if width else 0):
            raise ProtocolError(f"{'IPv4' if width == 4 else 'IPv6'} address data too short: {length} bytes")
    if len(data) < size:
        return None
    if not width:
        return ProxyHeader(size, None)
    at = V2_FIXED_SIZE
    host = _shown(ipaddress.ip_address(bytes(data[at : at + width])))
    at += 2 * width
    return ProxyHeader(size, (host, int.from_bytes(data[at : at + 2], "big")))
