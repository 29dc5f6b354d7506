"""The PROXY header before a connection's own bytes, both versions, split at every byte."""

from __future__ import annotations

import pytest

from penstock.errors import ProtocolError
from penstock.protocol.proxy_protocol import V2_SIGNATURE, ProxyHeader, read_header

pytestmark = pytest.mark.feature("connectivity.proxy-protocol")

ADDRESSES_4 = bytes([192, 0, 2, 1, 198, 51, 100, 7]) + (40000).to_bytes(2, "big") + (4222).to_bytes(2, "big")
MAPPED = bytes(10) + b"\xff\xff" + bytes([192, 0, 2, 1])
ADDRESSES_6 = b"\x20\x01\x0d\xb8" + bytes(11) + b"\x01" + bytes(16) + b"\x9c\x40\x10\x7e"


def v2(version_and_command: int, family_and_transport: int, body: bytes = b"") -> bytes:
    return (
        V2_SIGNATURE
        + bytes([version_and_command, family_and_transport])
        + len(body).to_bytes(2, "big")
        + body
    )


def outcomes(data: bytes) -> list[object]:
    """What each beginning of the bytes is: None, a header, or the text of an error; without repeats."""
    found: list[object] = []
    for end in range(len(data) + 1):
        try:
            outcome: object = read_header(data[:end])
        except ProtocolError as error:
            outcome = str(error)
        if not found or found[-1] != outcome:
            found.append(outcome)
    return found


@pytest.mark.parametrize("rest", [b"", b"CONNECT {}\r\nPING\r\n", b"\r\n"])
@pytest.mark.parametrize(
    ("data", "source"),
    [
        (b"PROXY TCP4 192.0.2.1 198.51.100.7 40000 4222\r\n", ("192.0.2.1", 40000)),
        (b"PROXY TCP6 2001:DB8:0::1 ::1 40000 4222\r\n", ("2001:db8::1", 40000)),
        (b"PROXY TCP6 ::ffff:192.0.2.1 ::1 0 4222\r\n", ("192.0.2.1", 0)),
        (b"PROXY  TCP4\t192.0.2.1 198.51.100.7 007 65535 \r\n", ("192.0.2.1", 7)),
        (b"PROXY UNKNOWN\r\n", None),
        (b"PROXY UNKNOWN anything goes\r\n", None),
        (b"PROXY UNKNOWN " + b"x" * 91 + b"\r\n", None),
        (v2(0x21, 0x11, ADDRESSES_4), ("192.0.2.1", 40000)),
        (v2(0x21, 0x11, ADDRESSES_4 + b"\x03\x00\x04what"), ("192.0.2.1", 40000)),
        (v2(0x21, 0x21, ADDRESSES_6), ("2001:db8::1", 40000)),
        (v2(0x21, 0x21, MAPPED + ADDRESSES_6[16:]), ("192.0.2.1", 40000)),
        (v2(0x21, 0x01, b"abc"), None),
        (v2(0x20, 0x00), None),
        (v2(0x20, 0x11, ADDRESSES_4), None),
        (v2(0x20, 0x37, b"x" * 300), None),
    ],
)
def test_a_header_is_there_with_its_last_byte(
    data: bytes, source: tuple[str, int] | None, rest: bytes
) -> None:
    assert outcomes(data + rest) == [None, ProxyHeader(len(data), source)]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"PROXY \r\n", "invalid v1 format"),
        (b"PROXY TCP4 192.0.2.1\r\n", "invalid v1 format"),
        (b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2 3\r\n", "invalid v1 format"),
        (b"PROXY UDP4 192.0.2.1 192.0.2.2 1 2\r\n", "invalid protocol UDP4"),
        (b"PROXY TCP4 192.0.2.01 192.0.2.2 1 2\r\n", "invalid address"),
        (b"PROXY TCP4 localhost 192.0.2.2 1 2\r\n", "invalid address"),
        (b"PROXY TCP6 fe80::1%lo ::1 1 2\r\n", "invalid address"),
        (b"PROXY TCP6 ::1 192.0.2.2 1 2\r\n", "TCP6 with IPv4 address"),
        (b"PROXY TCP4 192.0.2.1 ::1 1 2\r\n", "TCP4 with IPv6 address"),
        (b"PROXY TCP4 192.0.2.1 192.0.2.2 65536 2\r\n", "source port"),
        (b"PROXY TCP4 192.0.2.1 192.0.2.2 1 +2\r\n", "dest port"),
        (b"PROXY TCP4 192.0.2.1 192.0.2.2 " + b"1" * 60 + b" 2\r\n", "source port"),
        (b"PROXY UNKNOWN " + b"x" * 92 + b"\r\n", "v1 line too long"),
        (b"PROXY TCP4 \xff\xfe 192.0.2.2 1 2\r\n", "invalid address"),
        (b"\r\n\r\n\0\rxxxxxxxxxx", "invalid signature"),
        (v2(0x11, 0x11, ADDRESSES_4), "invalid version 0x10"),
        (v2(0x22, 0x11, ADDRESSES_4), "unknown PROXY protocol command: 0x02"),
        (v2(0x21, 0x12, ADDRESSES_4), "only STREAM protocol"),
        (v2(0x21, 0x00), "only STREAM protocol"),
        (v2(0x21, 0x31, bytes(216)), "unsupported address family 0x30"),
        (v2(0x21, 0x11, ADDRESSES_4[:-1]), "IPv4 address data too short: 11 bytes"),
        (v2(0x21, 0x21, ADDRESSES_4), "IPv6 address data too short: 12 bytes"),
    ],
)
def test_a_bad_header_is_an_error_as_soon_as_that_shows(data: bytes, text: str) -> None:
    waiting, error = outcomes(data)
    assert waiting is None
    assert text in str(error)


@pytest.mark.parametrize("data", [b"PING\r\n", b"CONNECT {}\r\n", b"\x16\x03\x01\x00\x00\x00", b"proxy "])
def test_what_begins_otherwise_is_no_header(data: bytes) -> None:
    assert outcomes(data) == [None, ProxyHeader(0, None)]
