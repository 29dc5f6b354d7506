"""Directives without effect in a server without clustering that is not written in Go.

Directives that only matter in clusters are validated and ignored, as in the official server. Directives whose
effect would be missing are refused with a reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.server.config.conf_parser import ConfMap, ConfNode
from penstock.server.config.values import Reader, block, boolean, integer, shown, storage_size

CONCURRENT_IO = (4, 8192)
NO_STAPLING = (
    "this server can't staple OCSP responses to its certificate, because Python's ssl has no way to; leave it"
    " out, or put a proxy that staples in front (`proxy_protocol`)"
)
NO_PEER_CHECKS = "this server checks no certificates by OCSP, and has no responses to keep; leave it out"
NO_TPM = "this server takes no keys from a TPM; give the key itself: `key: $VARIABLE`"
ACKS_V2 = "js_ack_fc_v2"
NO_ACKS_V2 = f"{ACKS_V2} is on; this server has ack subjects of the first form alone"


def _not_negative(read: Reader) -> Reader:
    def checked(node: ConfNode, name: str) -> None:
        if read(node, name) < 0:
            raise node.where.error(f'Expected an absolute size for "{name}", got {shown(node)}')

    return checked


def _concurrent_io(node: ConfNode, name: str) -> None:
    low, high = CONCURRENT_IO
    if not low <= integer(node, name) <= high:
        raise node.where.error(
            f'Expected an absolute size for "{name}" between {low} and {high}, got {shown(node)}'
        )


def _feature_flags(node: ConfNode, name: str) -> None:
    for key, where, entry in block(node, name):
        if not isinstance(entry.value, bool):
            raise where.error(f'error parsing feature flag "{key}": expected bool, got {shown(entry)}')
        if key == ACKS_V2 and entry.value:
            raise where.error(NO_ACKS_V2)


def _ocsp(node: ConfNode, name: str) -> None:
    """Accepts only `false` and `mode: never`, which request nothing."""
    if isinstance(node.value, ConfMap):
        modes = [entry.value for key, _, entry in node.value if key == "mode"]
        if modes and isinstance(modes[-1], str) and modes[-1].lower() == "never":
            return
    elif not boolean(node, name):
        return
    raise node.where.error(f"{name}: {NO_STAPLING}")


def _ocsp_cache(node: ConfNode, name: str) -> None:
    if isinstance(node.value, ConfMap) or boolean(node, name):
        raise node.where.error(f"{name}: {NO_PEER_CHECKS}")


def _refused(reason: str) -> Reader:
    def refuse(node: ConfNode, name: str) -> Any:
        raise node.where.error(f"{name}: {reason}")

    return refuse


CHECKS: Mapping[str, Reader] = {
    "connect_error_reports": integer,
    "reconnect_error_reports": integer,
    "prof_block_rate": integer,
    "feature_flags": _feature_flags,
    "ocsp": _ocsp,
    "ocsp_cache": _ocsp_cache,
    "max_concurrent_io": _concurrent_io,
    "max_outstanding_catchup": storage_size,
    "meta_compact": _not_negative(integer),
    "meta_compact_size": _not_negative(storage_size),
    "meta_compact_sync": boolean,
    "tpm": _refused(NO_TPM),
}
