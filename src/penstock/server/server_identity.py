"""Identity of a server: versions, id and keys."""

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
"""The JetStream API level of that version. INFO contains it with and without JetStream."""
PROTOCOL = 1
RUNTIME = f"python{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"
_PREFIX_SERVER = 13 << 3


def new_server_key() -> KeyPair:
    """A new key pair whose public key is the server's id, for servers that must sign."""
    from penstock.protocol.nkeys import KeyPair, Prefix

    return KeyPair.from_bytes(Prefix.SERVER, os.urandom(32))


def new_curve_key() -> CurveKey:
    """A new curve key for encrypted auth callout requests and replies."""
    from penstock.protocol.curvekeys import CurveKey

    return CurveKey.from_bytes(os.urandom(32))


def new_server_id() -> str:
    """A new id in the form of a public server nkey: `N` and 55 more base32 characters, with checksum."""
    body = bytes([_PREFIX_SERVER]) + os.urandom(32)
    return b32encode(body + crc_hqx(body, 0).to_bytes(2, "little")).decode().rstrip("=")
