"""`pinned_certs`: accepts only client certificates with listed keys.

A pin is the SHA-256 of a certificate's public key (SubjectPublicKeyInfo, DER) in hex, as printed by
`openssl x509 -noout -pubkey | openssl pkey -pubin -outform DER | sha256sum`. It stays valid when a
certificate is renewed with the same key. Pins are checked in addition to `verify`, without which clients
present no certificate.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection

NOT_PINNED = "certificate not pinned"


def pin_of(certificate: bytes) -> str:
    """The pin of a certificate (DER)."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key = x509.load_der_x509_certificate(certificate).public_key()
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def refusal_of(pinned: Collection[str]) -> Callable[[bytes], str]:
    """A check that returns why a client certificate (DER, b"" = none) is refused; "" = accepted."""

    def refusal(certificate: bytes) -> str:
        return "" if certificate and pin_of(certificate) in pinned else NOT_PINNED

    return refusal
