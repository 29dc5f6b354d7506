"""The options of leaf node links, from those of the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.cluster.compression import RTT_THRESHOLDS_NS

if TYPE_CHECKING:
    from penstock.server.config.leaf_options import LeafRemoteOptions
    from penstock.server.config.server_options import ServerOptions


@dataclass(frozen=True)
class LeafNodeSettings:
    """See `penstock.cluster.leaf_ports.LeafSettings`."""

    remotes: tuple[LeafRemoteOptions, ...]
    reconnect_ns: int
    compression: str
    rtt_thresholds_ns: tuple[int, ...]
    isolate: bool
    min_version: str
    headers: bool
    domain: str
    has_jetstream: bool
    extension_hint: str
    default_domains: Mapping[str, str]
    system_account: str


def settings_of(options: ServerOptions) -> LeafNodeSettings:
    """The settings for options that have leaf nodes."""
    leafs, jetstream = options.leafnodes, options.jetstream
    assert leafs is not None
    return LeafNodeSettings(
        remotes=leafs.remotes,
        reconnect_ns=leafs.reconnect_ns,
        compression=leafs.compression,
        rtt_thresholds_ns=leafs.rtt_thresholds_ns or RTT_THRESHOLDS_NS,
        isolate=leafs.isolate,
        min_version=leafs.min_version,
        headers=options.header_support,
        domain=jetstream.domain if jetstream is not None else "",
        has_jetstream=jetstream is not None,
        extension_hint=jetstream.extension_hint if jetstream is not None else "",
        default_domains=dict(options.default_js_domains),
        system_account=options.system_account if options.has_system_account else "",
    )
