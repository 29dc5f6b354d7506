"""Certificates for TLS tests, made for each run."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from penstock.server.config.server_options import TlsOptions


@dataclass(frozen=True)
class Certificates:
    """An authority's files: of a server on this machine, and of one client."""

    ca: str
    cert: str
    key: str
    client_cert: str
    client_key: str

    def options(self, **settings: object) -> TlsOptions:
        """TLS of a server with these."""
        return TlsOptions(cert_file=self.cert, key_file=self.key, ca_file=self.ca, **settings)  # type: ignore[arg-type]

    def client_context(self, *, certificate: bool = False) -> ssl.SSLContext:
        """What a client trusts; with its own certificate, too, when asked."""
        context = ssl.create_default_context(cafile=self.ca)
        if certificate:
            context.load_cert_chain(self.client_cert, self.client_key)
        return context


def make_certificates(directory: Path) -> Certificates:
    """Writes a new authority with one certificate for a server and one for a client."""
    authority = trustme.CA()
    server = authority.issue_cert("localhost", "127.0.0.1", "::1")
    client = authority.issue_cert("client@example.com")
    found: dict[str, str] = {}
    for name, blob in (
        ("ca", authority.cert_pem),
        ("cert", server.cert_chain_pems[0]),
        ("key", server.private_key_pem),
        ("client_cert", client.cert_chain_pems[0]),
        ("client_key", client.private_key_pem),
    ):
        path = directory / f"{name}.pem"
        blob.write_to_path(path)
        found[name] = str(path)
    return Certificates(**found)


@dataclass(frozen=True)
class ClientCertificate:
    """A certificate and its key, PEM; and the certificate as DER."""

    cert: bytes
    key: bytes
    der: bytes


def client_certificate(
    subject: Sequence[tuple[str, str]],
    *,
    emails: Sequence[str] = (),
    dns: Sequence[str] = (),
    uris: Sequence[str] = (),
    authority: trustme.CA | None = None,
) -> ClientCertificate:
    """A certificate with this subject, its most general part first: [("O", "acme"), ("CN", "joe")]."""
    key = ec.generate_private_key(ec.SECP256R1())
    authority = authority or trustme.CA()
    issuer = x509.load_pem_x509_certificate(authority.cert_pem.bytes())
    issuer_key = serialization.load_pem_private_key(authority.private_key_pem.bytes(), None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    name = x509.Name([x509.NameAttribute(_OIDS[kind], value) for kind, value in subject])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
    )
    names = [
        *map(x509.RFC822Name, emails),
        *map(x509.DNSName, dns),
        *map(x509.UniformResourceIdentifier, uris),
    ]
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    made = builder.sign(issuer_key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    key_pem = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return ClientCertificate(made.public_bytes(pem), key_pem, made.public_bytes(serialization.Encoding.DER))


_OIDS = {
    "CN": NameOID.COMMON_NAME,
    "O": NameOID.ORGANIZATION_NAME,
    "OU": NameOID.ORGANIZATIONAL_UNIT_NAME,
    "C": NameOID.COUNTRY_NAME,
    "DC": NameOID.DOMAIN_COMPONENT,
}
