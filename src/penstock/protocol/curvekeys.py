"""Curve keys: X25519 keys in nkey format, for encryption between two parties.

A sealed message is `xkv1`, a 24-byte nonce and a NaCl box (X25519, XSalsa20, Poly1305). Opening it also
authenticates the sender. PyNaCl implements the boxes; it is imported on first use.
"""

from __future__ import annotations

from penstock.errors import MisuseError
from penstock.protocol.nkeys import Prefix, decode_public, decode_seed, encode_public, encode_seed

VERSION = b"xkv1"
NONCE_BYTES = 24


class CurveKey:
    """A key pair that seals and opens messages.

    Args:
        seed: seed text, `SX...`.

    Raises:
        MisuseError: the text is not a seed of a curve key.
    """

    __slots__ = ("_secret", "public")

    def __init__(self, seed: str) -> None:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        prefix, self._secret = decode_seed(seed)
        if prefix is not Prefix.CURVE:
            raise MisuseError("this is no seed of a curve key (SX...)")
        public = X25519PrivateKey.from_private_bytes(self._secret).public_key().public_bytes_raw()
        self.public: str = encode_public(Prefix.CURVE, public)

    @classmethod
    def from_bytes(cls, secret: bytes) -> CurveKey:
        """A key from 32 random bytes."""
        return cls(encode_seed(Prefix.CURVE, secret))

    def seal(self, data: bytes, recipient: str, nonce: bytes) -> bytes:
        """Encrypts for the owner of a public curve key. `nonce`: 24 random bytes.

        Raises MisuseError when `recipient` is not a curve key, or a weak one.
        """
        from nacl.bindings import crypto_box
        from nacl.exceptions import CryptoError

        try:
            return VERSION + nonce + crypto_box(data, nonce, _raw(recipient), self._secret)
        except CryptoError as error:
            raise MisuseError(f"nothing can be sealed for {recipient!r}: {error}") from error

    def open(self, sealed: bytes, sender: str) -> bytes:
        """Decrypts what the owner of the public curve key `sender` sealed. Raises MisuseError."""
        from nacl.bindings import crypto_box_open
        from nacl.exceptions import CryptoError

        start = len(VERSION) + NONCE_BYTES
        if len(sealed) <= start or not sealed.startswith(VERSION):
            raise MisuseError("this is no sealed message: it doesn't begin with xkv1 and a nonce")
        nonce = sealed[len(VERSION) : start]
        try:
            return bytes(crypto_box_open(sealed[start:], nonce, _raw(sender), self._secret))
        except CryptoError as error:
            raise MisuseError(f"this was not sealed by {sender!r} for {self.public}") from error

    def __repr__(self) -> str:
        return f"<CurveKey {self.public}>"


def _raw(public: str) -> bytes:
    prefix, raw = decode_public(public)
    if prefix is not Prefix.CURVE:
        raise MisuseError(f"{public!r} is no public curve key (X...)")
    return raw
