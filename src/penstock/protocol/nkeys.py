"""NKeys: Ed25519 keys as text that says what it is for, and finds its own typing errors.

A public key is a prefix byte, 32 bytes and a CRC16, in base32: `U...` is a user, `A...` an account. A seed
begins with `S` and the letter of its kind: `SU...`. Curve keys (`X...`, for encryption) have the same form.

The letters, the five bits each begins with, and the CRC (XMODEM, low byte first) are those of the NATS nkeys
library. Whoever has a seed can prove it by signing; the `cryptography` package does that, imported when the
first signature is made or checked, for most servers and clients never do either.

Invariant: text that these functions return or accept has a right checksum. A seed is in no message.
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
TEXT_MAX = 64  # characters; a seed, the longest, has 58. What is longer is not decoded: that takes long.


class Prefix(IntEnum):
    """What a key is for: the byte before it."""

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
    """32 bytes of a public key as text."""
    return _encode(bytes([prefix]) + _checked(key))


def decode_public(text: str) -> tuple[Prefix, bytes]:
    """What a public key is for, and its 32 bytes. Raises MisuseError, which shows the text."""
    try:
        raw = _decode(text)
        prefix = Prefix(raw[0])
    except (ValueError, IndexError) as error:
        raise MisuseError(f"{text[:TEXT_MAX]!r} is no public nkey: {error}") from None
    if prefix not in PUBLIC or len(raw) != 1 + KEY_BYTES:
        raise MisuseError(f"{text!r} is no public nkey")
    return prefix, raw[1:]


def is_public(text: str, *prefixes: Prefix) -> bool:
    """Is the text a public key, of one of these kinds if any are given?"""
    try:
        prefix, _ = decode_public(text)
    except MisuseError:
        return False
    return not prefixes or prefix in prefixes


def encode_seed(prefix: Prefix, seed: bytes) -> str:
    """32 secret bytes as text."""
    high, low = Prefix.SEED | prefix >> 5, (prefix & 31) << 3
    return _encode(bytes([high, low]) + _checked(seed))


def decode_seed(text: str) -> tuple[Prefix, bytes]:
    """What a seed is for, and its 32 bytes. Raises MisuseError, which does not show the text."""
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
    """A key that can sign.

    Args:
        seed: text that begins with `S`; space around it doesn't matter.

    Raises:
        MisuseError: no seed, a wrong checksum, or the seed of a curve key.
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
        """A key made of 32 random bytes."""
        return cls(encode_seed(prefix, seed))

    @property
    def seed(self) -> str:
        """The secret, as text."""
        return encode_seed(self.prefix, self._seed)

    def sign(self, data: bytes) -> bytes:
        """An Ed25519 signature, 64 bytes."""
        return self._key.sign(data)

    def __repr__(self) -> str:
        return f"<KeyPair {self.public}>"


def verify(public: str, data: bytes, signature: bytes) -> bool:
    """Did the owner of a public key sign this data? False when the text is no key, too."""
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
    """Without the CRC. Raises ValueError, whose text shows nothing of the input."""
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
    """An enum's ValueError shows the value that it refused; of a secret not even that is shown."""
    text = str(error)
    return text if "Prefix" not in text else "its kind is not known"
