"""What this server tells the others of itself, on the system account."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.jetstream.meta.placement import plain_tag
from penstock.protocol.api import StorageType
from penstock.protocol.ids import short_hash
from penstock.server.replicated.founding import Presence

if TYPE_CHECKING:
    from penstock.replication.replication_node import ReplicationNode
    from penstock.server.jetstream_service import JetStreamService
    from penstock.server.replicated.meta_replica import MetaReplica
    from penstock.server.server_context import ServerContext


def own_presence(
    context: ServerContext,
    node: ReplicationNode,
    meta: MetaReplica,
    service: JetStreamService | None,
    peers: tuple[int, int],
    founders: tuple[str, ...],
) -> Presence:
    """Makes the server's presence.

    Args:
        service: its engines; None before they are there.
        peers: how many servers there are routes to, and how many of them have replicated groups.
        founders: see Presence.
    """
    options = context.options
    accounts: dict[str, tuple[int, int]] = {}
    led: dict[str, list[tuple[int, int, int]]] = {}
    now = context.clock()
    for name, engine in service.running.items() if service is not None else ():
        capacity = engine.capacity
        memory, storage = capacity.used(StorageType.MEMORY), capacity.used(StorageType.FILE)
        if memory or storage:
            accounts[name] = (memory, storage)
        rows = capacity.cluster_use.report(now)
        if rows:
            led[name] = rows
    return Presence(
        name=context.server_name,
        peer=short_hash(context.server_name),
        member=node.name,
        boot=node.identity.boot,
        server_id=context.server_id,
        cluster=options.cluster_name,
        tags=tuple(map(plain_tag, options.server_tags)),
        domain=options.jetstream.domain if options.jetstream is not None else "",
        routes=len(options.cluster.routes) if options.cluster is not None else 0,
        peers=peers[0],
        replicating=peers[1],
        has_meta=meta.group is not None,
        founders=founders,
        cluster_id=meta.tables.cluster_id,
        applied=meta.applied_index,
        max_memory=service.max_memory_bytes if service is not None else -1,
        max_storage=service.max_file_bytes if service is not None else -1,
        used_memory=sum(memory for memory, _ in accounts.values()),
        used_storage=sum(storage for _, storage in accounts.values()),
        accounts=accounts,
        led=led,
    )
