"""What a server says of itself: versions, its generated id."""

from __future__ import annotations

import os
import sys
from base64 import b32encode
from binascii import crc_hqx
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.protocol.curvekeys import CurveKey
    from penstock.protocol.nkeys import KeyPair

VERSION = "2.15.2"
"""The NATS version whose features clients may expect; not the version of this package."""
API_LEVEL = 5
"""The JetStream API level of that version; INFO has it with and without JetStream."""
PROTOCOL = 1
RUNTIME = f"python{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"
_PREFIX_SERVER = 13 << 3


def new_server_key() -> KeyPair:
    """A fresh key whose public half is the server's id, for servers that must sign."""
    from penstock.protocol.nkeys import KeyPair, Prefix

    return KeyPair.from_bytes(Prefix.SERVER, os.urandom(32))


def new_curve_key() -> CurveKey:
    """A fresh key with which a server and services that it asks encrypt what they say."""
    from penstock.protocol.curvekeys import CurveKey

    return CurveKey.from_bytes(os.urandom(32))


def new_server_id() -> str:
    """A fresh id in the form of a server's public nkey: `N`, 55 more base32 characters, checksum included."""
    body = bytes([_PREFIX_SERVER]) + os.urandom(32)
    return b32encode(body + crc_hqx(body, 0).to_bytes(2, "little")).decode().rstrip("=")
