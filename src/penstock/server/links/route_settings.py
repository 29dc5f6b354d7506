"""The options of a mesh, from those of the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.cluster.compression import RTT_THRESHOLDS_NS
from penstock.cluster.mesh_ports import address_of
from penstock.cluster.peer_link import Address
from penstock.server.config.cluster_options import POOL_SIZE

if TYPE_CHECKING:
    from penstock.routing.permissions import SubjectPermission
    from penstock.server.config.server_options import ServerOptions


@dataclass(frozen=True)
class RouteSettings:
    """See `penstock.cluster.mesh_ports.MeshSettings`."""

    routes: tuple[Address, ...]
    user: str
    password: str
    pool_size: int
    pinned_accounts: tuple[str, ...]
    no_advertise: bool
    connect_retries: int
    connect_backoff: bool
    compression: str
    rtt_thresholds_ns: tuple[int, ...]
    headers: bool
    permissions_shown: tuple[Any, Any]


def settings_of(options: ServerOptions) -> RouteSettings:
    """The settings for options that have a cluster. The system account always has links of its own: what
    servers tell each other must not wait behind the messages of clients."""
    cluster = options.cluster
    assert cluster is not None
    pinned = dict.fromkeys(cluster.accounts)
    if cluster.pool_size >= 0 and options.has_system_account:
        pinned[options.system_account] = None
    shown = cluster.permissions
    return RouteSettings(
        routes=tuple(address_of(url) for url in cluster.routes),
        user=cluster.user,
        password=cluster.password,
        pool_size=cluster.pool_size or POOL_SIZE,
        pinned_accounts=tuple(pinned),
        no_advertise=cluster.no_advertise,
        connect_retries=cluster.connect_retries,
        connect_backoff=cluster.connect_backoff,
        compression=cluster.compression,
        rtt_thresholds_ns=cluster.rtt_thresholds_ns or RTT_THRESHOLDS_NS,
        headers=options.header_support,
        permissions_shown=(None, None) if shown is None else (_shown(shown.publish), _shown(shown.subscribe)),
    )


def _shown(permission: SubjectPermission) -> dict[str, list[str]]:
    lists = {"allow": permission.allow, "deny": permission.deny}
    return {name: [str(entry) for entry in entries] for name, entries in lists.items() if entries}
