"""Fuzzes the reader of PROXY headers: `python fuzz/fuzz_proxied.py -runs=100000 -max_total_time=60`.

Of every input, each beginning must have the outcome that fits that of the whole: more bytes never turn a
header or an error into something else, and what follows a header changes nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris
from seeded import fuzz

sys.path[:0] = [str(Path(__file__).parents[1] / "src")]

with atheris.instrument_imports(include=["penstock.protocol.proxy_protocol"]):
    from penstock.errors import ProtocolError
    from penstock.protocol.proxy_protocol import V2_SIGNATURE, ProxyHeader, read_header

SEEDS = [
    b"PROXY TCP4 192.0.2.1 198.51.100.7 40000 4222\r\nCONNECT {}\r\n",
    b"PROXY TCP6 2001:db8::1 ::ffff:192.0.2.1 40000 4222\r\n",
    b"PROXY UNKNOWN ffff:: 1\r\nPING\r\n",
    b"PROXY TCP4 1.2.3.4 fe80::1%lo 1 65536\r\n",
    b"PROXY " + b"x" * 110,
    V2_SIGNATURE + b"\x21\x11\x00\x0c" + b"\xc0\x00\x02\x01\xc6\x33\x64\x07\x9c\x40\x10\x7e" + b"PING\r\n",
    V2_SIGNATURE + b"\x21\x21\x00\x24" + bytes(36),
    V2_SIGNATURE + b"\x20\x00\x00\x05" + b"xxxxxPING\r\n",
    V2_SIGNATURE + b"\x21\x01\x00\x00",
    V2_SIGNATURE + b"\x21\x12\x00\x0c" + bytes(12),
    b"\r\n\r\n\x00\rquit",
    b"PING\r\n",
]


def outcome(data: bytes) -> ProxyHeader | str | None:
    try:
        return read_header(data)
    except ProtocolError:
        return "refused"


def test_one_input(data: bytes) -> None:
    decided = None
    for end in range(min(len(data), 200) + 1):
        found = outcome(data[:end])
        if decided is not None and found != decided:
            raise AssertionError(f"{decided} with fewer bytes, {found} with {end}")
        decided = found
        if isinstance(found, ProxyHeader) and found.size > end:
            raise AssertionError(f"a header of {found.size} bytes in {end}")
    if decided is not None and outcome(data) != decided:
        raise AssertionError(f"{decided} with fewer bytes, {outcome(data)} with all")


if __name__ == "__main__":
    fuzz(SEEDS, test_one_input)
