"""Certificates for TLS tests, made anew for each run."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import trustme

from penstock.server.options import TlsOptions


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
