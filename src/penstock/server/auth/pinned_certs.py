"""`pinned_certs`: accepts only client certificates with listed keys.

A pin is the SHA-256 of a certificate's public key (SubjectPublicKeyInfo, DER) in hex, as printed by
`openssl x509 -noout -pubkey | openssl pkey -pubin -outform DER | sha256sum`. It stays valid when a
certificate is renewed with the same key. Pins are checked in addition to `verify`, without which clients
present no certificate.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection

from penstock.server.config.conf_parser import ConfNode
from penstock.server.config.directives import text

_PIN = re.compile(r"[0-9a-f]{64}")
NOT_PINNED = "certificate not pinned"


def pins(node: ConfNode, name: str) -> frozenset[str]:
    """Parses an array of pins; an empty array means no pinning."""
    if not isinstance(node.value, list):
        raise node.where.error(
            f"error parsing tls config, expected '{name}' to be a list of hex-encoded sha256 of DER encoded"
            " SubjectPublicKeyInfo"
        )
    found = set()
    for entry in node.value:
        pin = text(entry, name).lower()
        if _PIN.fullmatch(pin) is None:
            raise entry.where.error(
                f"error parsing tls config, '{name}' key {pin} does not look like hex-encoded sha256 of DER"
                " encoded SubjectPublicKeyInfo"
            )
        found.add(pin)
    return frozenset(found)


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
