"""NKeys: Ed25519 keys as text, with a type and a checksum.

A public key is a prefix byte, 32 bytes and a CRC16 in base32: `U...` is a user, `A...` an account. A seed
begins with `S` and the letter of its type: `SU...`. Curve keys (`X...`, for encryption) have the same form.

The letters, their five-bit prefixes and the CRC (XMODEM, low byte first) are those of the NATS nkeys library.
The `cryptography` package signs and verifies. It is imported on first use, because most servers and clients
never need it.

Invariants: text that these functions return or accept has a valid checksum. No error text contains a seed.
"""

from __future__ import annotations

from base64 import b32decode, b32encode
from binascii import Error as Base32Error
from binascii import crc_hqx
from enum import IntEnum
from typing import TYPE_CHECKING

from penstock.errors import MisuseError
from penstock.extras import need

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

KEY_BYTES = 32
SIGNATURE_BYTES = 64
TEXT_MAX = 64  # characters; a seed, the longest, has 58. Bounds the decoding time.


class Prefix(IntEnum):
    """The type of a key: its prefix byte."""

    ACCOUNT = 0
    CLUSTER = 2 << 3
    SERVER = 13 << 3
    OPERATOR = 14 << 3
    PRIVATE = 15 << 3
    SEED = 18 << 3
    USER = 20 << 3
    CURVE = 23 << 3


PUBLIC = frozenset(
    {Prefix.ACCOUNT, Prefix.CLUSTER, Prefix.SERVER, Prefix.OPERATOR, Prefix.USER, Prefix.CURVE}
)


def encode_public(prefix: Prefix, key: bytes) -> str:
    """Encodes the 32 bytes of a public key."""
    return _encode(bytes([prefix]) + _checked(key))


def decode_public(text: str) -> tuple[Prefix, bytes]:
    """(type, 32 bytes) of a public key. Raises MisuseError, whose text contains the key."""
    try:
        raw = _decode(text)
        prefix = Prefix(raw[0])
    except (ValueError, IndexError) as error:
        raise MisuseError(f"{text[:TEXT_MAX]!r} is no public nkey: {error}") from None
    if prefix not in PUBLIC or len(raw) != 1 + KEY_BYTES:
        raise MisuseError(f"{text!r} is no public nkey")
    return prefix, raw[1:]


def is_public(text: str, *prefixes: Prefix) -> bool:
    """Whether the text is a public key, of one of these types if any are given."""
    try:
        prefix, _ = decode_public(text)
    except MisuseError:
        return False
    return not prefixes or prefix in prefixes


def encode_seed(prefix: Prefix, seed: bytes) -> str:
    """Encodes 32 secret bytes."""
    high, low = Prefix.SEED | prefix >> 5, (prefix & 31) << 3
    return _encode(bytes([high, low]) + _checked(seed))


def decode_seed(text: str) -> tuple[Prefix, bytes]:
    """(type, 32 bytes) of a seed. Raises MisuseError, whose text does not contain the seed."""
    try:
        raw = _decode(text.strip())
        prefix = Prefix((raw[0] & 7) << 5 | raw[1] >> 3)
        is_seed = raw[0] & 0xF8 == Prefix.SEED and prefix in PUBLIC and len(raw) == 2 + KEY_BYTES
    except (ValueError, IndexError) as error:
        raise MisuseError(f"this is no nkey seed: {_without_text(error)}") from None
    if not is_seed:
        raise MisuseError("this is no nkey seed: seeds begin with S and the letter of their kind, as SU...")
    return prefix, raw[2:]


class KeyPair:
    """A key pair for signing.

    Args:
        seed: seed text, `S...`; surrounding whitespace is ignored.

    Raises:
        MisuseError: not a seed, a wrong checksum, or the seed of a curve key.
    """

    __slots__ = ("_key", "_seed", "prefix", "public")

    def __init__(self, seed: str) -> None:
        need("signing with an nkey", "nkeys")
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        self.prefix, self._seed = decode_seed(seed)
        if self.prefix is Prefix.CURVE:
            raise MisuseError("this is the seed of a curve key (SX...), which encrypts and can't sign")
        self._key: Ed25519PrivateKey = Ed25519PrivateKey.from_private_bytes(self._seed)
        self.public: str = encode_public(self.prefix, self._key.public_key().public_bytes_raw())

    @classmethod
    def from_bytes(cls, prefix: Prefix, seed: bytes) -> KeyPair:
        """A key pair from 32 random bytes."""
        return cls(encode_seed(prefix, seed))

    @property
    def seed(self) -> str:
        """The seed text. Secret."""
        return encode_seed(self.prefix, self._seed)

    def sign(self, data: bytes) -> bytes:
        """The Ed25519 signature of `data`, 64 bytes."""
        return self._key.sign(data)

    def __repr__(self) -> str:
        return f"<KeyPair {self.public}>"


def verify(public: str, data: bytes, signature: bytes) -> bool:
    """Whether the owner of the public key signed this data. False when `public` is not a key."""
    need("checking the signature of an nkey", "nkeys")
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        prefix, raw = decode_public(public)
    except MisuseError:
        return False
    if prefix is Prefix.CURVE or len(signature) != SIGNATURE_BYTES:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(raw).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


def _checked(key: bytes) -> bytes:
    if len(key) != KEY_BYTES:
        raise MisuseError(f"a key of {len(key)} bytes; nkeys have {KEY_BYTES}")
    return key


def _encode(body: bytes) -> str:
    return b32encode(body + crc_hqx(body, 0).to_bytes(2, "little")).decode().rstrip("=")


def _decode(text: str) -> bytes:
    """Decodes and removes the CRC. Raises ValueError, whose text does not contain the input."""
    if len(text) > TEXT_MAX:
        raise ValueError("too long")
    try:
        raw = b32decode(text + "=" * (-len(text) % 8))
    except Base32Error as error:
        raise ValueError("not base32") from error
    if len(raw) < 4:
        raise ValueError("too short")
    if _encode(raw[:-2]) != text or crc_hqx(raw[:-2], 0) != int.from_bytes(raw[-2:], "little"):
        raise ValueError("the checksum is wrong: is it complete, and typed right?")
    return raw[:-2]


def _without_text(error: Exception) -> str:
    """Text of an error, without the value that an enum's ValueError quotes: it may be part of a secret."""
    text = str(error)
    return text if "Prefix" not in text else "its kind is not known"
