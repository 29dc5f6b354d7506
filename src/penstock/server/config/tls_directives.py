"""The block `tls` of nats.conf."""

from __future__ import annotations

import re
from typing import Any

from penstock.errors import ConfigError
from penstock.server.config.block_fields import fields
from penstock.server.config.conf_parser import ConfNode
from penstock.server.config.tls_options import RemoteTlsOptions, TlsOptions
from penstock.server.config.values import Reader, block, boolean, duration, text

_PIN = re.compile(r"[0-9a-f]{64}")
AUTO_WAIT_NS = 50_000_000
UNSUPPORTED = frozenset(
    """allow_insecure_cipher_suites ca_certs_match cert_match cert_match_by cert_match_skip_invalid cert_store
    certs connection_rate_limit curve_preferences ocsp_peer
    verify_cert_and_check_known_urls""".split()
)


def tls(node: ConfNode, name: str) -> TlsOptions:
    """Reads the block. Raises ConfigError."""
    found = fields(block(node, name), _TLS, UNSUPPORTED)
    found.update(found.pop("first", {}))
    if found.get("verify_and_map"):
        found["verify"] = True
    try:
        return TlsOptions(**found)
    except ConfigError as error:
        raise node.where.error(error.message) from error


def remote_tls(node: ConfNode, name: str) -> RemoteTlsOptions:
    """Reads the block of a connection that this server dials, in which only accepting sides need a
    certificate. Raises ConfigError."""
    found = fields(block(node, name), _TLS, UNSUPPORTED)
    found.update(found.pop("first", {}))
    for accepting in ("verify", "verify_and_map", "pinned_certs", "handshake_first_wait_ns"):
        found.pop(accepting, None)
    try:
        return RemoteTlsOptions(**found)
    except ConfigError as error:
        raise node.where.error(error.message) from error


def _handshake_first(node: ConfNode, name: str) -> dict[str, Any]:
    """Parses a boolean, `auto`, or the time to wait for a handshake before plain INFO is sent."""
    if isinstance(node.value, bool):
        return {"handshake_first": node.value}
    if isinstance(node.value, str) and node.value.lower() == "auto":
        return {"handshake_first": True, "handshake_first_wait_ns": AUTO_WAIT_NS}
    return {"handshake_first": True, "handshake_first_wait_ns": duration(node, name)}


def _suites(node: ConfNode, name: str) -> tuple[str, ...]:
    if not isinstance(node.value, list) or not node.value:
        raise node.where.error(f"{name} must be an array of names of cipher suites, and not empty")
    return tuple(text(entry, name) for entry in node.value)


def _pins(node: ConfNode, name: str) -> frozenset[str]:
    """Parses an array of SHA-256 pins of client keys; an empty array means no pinning."""
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


def _version(node: ConfNode, name: str) -> str:
    """Parses `"1.3"`, quoted or not."""
    return str(node.value) if isinstance(node.value, float) else text(node, name)


_TLS: dict[str, tuple[str, Reader]] = {
    "cert_file": ("cert_file", text),
    "key_file": ("key_file", text),
    "ca_file": ("ca_file", text),
    "verify": ("verify", boolean),
    "verify_and_map": ("verify_and_map", boolean),
    "timeout": ("timeout_ns", duration),
    "insecure": ("insecure", boolean),
    "pinned_certs": ("pinned_certs", _pins),
    "min_version": ("min_version", _version),
    "cipher_suites": ("cipher_suites", _suites),
    "handshake_first": ("first", _handshake_first),
    "first": ("first", _handshake_first),
    "immediate": ("first", _handshake_first),
}
