"""jsz: JetStream totals, and details of accounts, streams and consumers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.errors import MisuseError
from penstock.jetstream.limits import CONSUMERS_PER_STREAM
from penstock.protocol.durations import format_time
from penstock.server.monitoring.pages.page_options import (
    Page,
    PageOptions,
    Query,
    RefusedQuery,
    SkippedQuery,
    Steps,
    flag,
    header,
    number,
    paging,
    pieces,
)
from penstock.server.server_identity import API_LEVEL

if TYPE_CHECKING:
    from penstock.jetstream.consumer.consumer_replica import ConsumerReplica
    from penstock.jetstream.engine import JetStreamEngine
    from penstock.jetstream.stream.stream_replica import StreamReplica
    from penstock.server.monitoring.monitored_server import MonitoredServer
    from penstock.server.replicated.cluster_jetstream import ClusterJetStream


class JszOptions(PageOptions, frozen=True, kw_only=True):
    """Options of jsz. leader_only: only the meta leader answers. stream_leader_only: streams that this server
    leads. raft: names of groups. All three have no effect without clustering."""

    account: str = ""
    accounts: bool = False
    streams: bool = False
    consumer: bool = False
    direct_consumer: bool = False
    config: bool = False
    leader_only: bool = False
    stream_leader_only: bool = False
    offset: int = 0
    limit: int = 0
    raft: bool = False

    @classmethod
    def from_query(cls, query: Query) -> JszOptions:
        return cls(
            account=query.get("acc", ""),
            accounts=flag(query, "accounts"),
            streams=flag(query, "streams"),
            consumer=flag(query, "consumers"),
            direct_consumer=flag(query, "direct-consumers"),
            config=flag(query, "config"),
            leader_only=flag(query, "leader-only"),
            stream_leader_only=flag(query, "stream-leader-only"),
            offset=number(query, "offset"),
            limit=number(query, "limit"),
            raft=flag(query, "raft"),
        )

    @property
    def with_streams(self) -> bool:
        return self.streams or self.consumer or self.direct_consumer


def jsz(server: MonitoredServer, options: JszOptions) -> Steps:
    """JetStream totals; with accounts, streams, consumers or config also these details."""
    service = server.jetstream
    page = jetstream_stats(server) | header(server)
    totals = dict.fromkeys(("streams", "consumers", "messages", "bytes"), 0)
    if service is None:
        return page | {"disabled": True, "config": {"max_memory": 0, "max_storage": 0}, **totals, "total": 0}
    page |= {"config": jetstream_config(server), "limits": jetstream_limits(server)}
    engines = sorted(service.engines.items())
    if service.cluster is not None:
        from penstock.server.replicated.cluster_monitoring import meta_cluster  # few servers have one

        if options.leader_only and not service.cluster.meta.is_serving:
            raise SkippedQuery("this server is not the meta leader: ask another one", 400)
        page["meta_cluster"] = meta_cluster(service.cluster)
    for _, engine in engines:
        for piece in pieces(engine.streams.values()):
            for stream in piece:
                totals["streams"] += 1
                totals["consumers"] += len(stream.consumers)
                totals["messages"] += stream.log.messages
                totals["bytes"] += stream.log.bytes
            yield
    page |= totals
    details: list[Page] = []
    if options.account:
        shown = [pair for pair in engines if pair[0] == options.account]
    else:
        offset, limit = paging(options.offset, options.limit)
        shown = engines[offset : offset + limit] if options.accounts or options.with_streams else []
    for name, engine in shown:
        details.append((yield from account_detail(server, name, engine, options)))
    if details:
        page["account_details"] = details
    page["total"] = len(engines)
    return page


def account_jsz(server: MonitoredServer, options: JszOptions) -> Steps:
    """JetStream of one account. Raises MisuseError when it has no JetStream."""
    engine = server.jetstream.engines.get(options.account) if server.jetstream is not None else None
    if engine is None:
        known = server.jetstream is None or options.account in server.accounts
        why = "jetstream not enabled for account {}" if known else "account {} not found"
        raise MisuseError(why.format(f'"{options.account}"'))
    return account_detail(server, options.account, engine, options)


def account_detail(server: MonitoredServer, name: str, engine: JetStreamEngine, options: JszOptions) -> Steps:
    info = engine.capacity.info()
    limits = info.limits
    detail: Page = {
        "name": server.accounts.shown_name(name),
        "id": name,
        "memory": info.memory,
        "storage": info.storage,
        # Reserved bytes; without a limit the largest number, as in the official server.
        "reserved_memory": limits.max_memory % 2**64,
        "reserved_storage": limits.max_storage % 2**64,
        "accounts": 0,
        "ha_assets": 0,
        "api": {"level": info.api.level, "total": info.api.total, "errors": info.api.errors},
    }
    if not options.with_streams:
        return detail
    streams: list[Page] = []
    for piece in pieces(engine.streams.values(), 16):
        for stream in piece:
            if options.stream_leader_only and stream.group is not None and not stream.group.is_leading:
                continue
            streams.append((yield from _stream_detail(server, engine, stream, options)))
        yield
    if streams:
        detail["stream_detail"] = streams
    return detail


def _stream_detail(
    server: MonitoredServer, engine: JetStreamEngine, stream: StreamReplica, options: JszOptions
) -> Steps:
    cluster = engine.cluster_of(stream.name)
    detail: Page = {
        "name": stream.name,
        "created": format_time(stream.created),
        "cluster": cluster or {"leader": server.context.server_name},
    }
    if options.raft and cluster is not None and cluster.raft_group:
        detail["stream_raft_group"] = cluster.raft_group
    if options.config:
        detail["config"] = stream.config
    detail["state"] = stream.state()
    mirror, sources = engine.sourcing.infos(stream, server.context.clock())
    if mirror is not None:
        detail["mirror"] = mirror
    if sources:
        detail["sources"] = sources
    if not options.consumer:
        return detail
    consumers: list[object] = []
    for piece in pieces(stream.consumers.values(), 16):
        now = server.context.clock()
        consumers += [_consumer_detail(one, now, options) for one in piece]
        yield
    if consumers:
        detail["consumer_detail"] = consumers
    return detail


def _consumer_detail(consumer: ConsumerReplica, now: int, options: JszOptions) -> object:
    """A consumer's info with the stored configuration, without the metadata that API responses add."""
    info = msgspec.structs.replace(consumer.info(now), config=consumer.config)
    if options.config:
        return info
    page: Page = msgspec.to_builtins(info)
    del page["config"]
    return page


def _ha_assets(cluster: ClusterJetStream | None) -> int:
    if cluster is None:
        return 0
    from penstock.server.replicated.cluster_monitoring import ha_assets

    return ha_assets(cluster)


def raftz(server: MonitoredServer) -> Page | Steps:
    """The replicated groups of this server by account; {} without any."""
    service = server.jetstream
    if service is None or service.cluster is None:
        return {}
    from penstock.server.replicated.cluster_monitoring import raftz as groups_of

    return groups_of(service.cluster)


class RaftzOptions(PageOptions, frozen=True, kw_only=True):
    """Options of `/raftz`. account: whose groups; "" = the system account's. group: only this one."""

    account: str = ""
    group: str = ""

    @classmethod
    def from_query(cls, query: Query) -> RaftzOptions:
        return cls(account=query.get("acc", ""), group=query.get("group", ""))


def raftz_of_account(server: MonitoredServer, options: RaftzOptions) -> Steps:
    """The groups of one account. Raises RefusedQuery, as the official server answers without a cluster."""
    service = server.jetstream
    if service is None or service.cluster is None:
        raise RefusedQuery("No Raft nodes registered", 404)
    from penstock.server.replicated.cluster_monitoring import SYSTEM_ACCOUNT
    from penstock.server.replicated.cluster_monitoring import raftz as groups_of

    found = yield from groups_of(service.cluster)
    account = options.account or SYSTEM_ACCOUNT
    groups = found.get(account, {})
    if options.group:
        groups = {name: one for name, one in groups.items() if name == options.group}
    return {account: groups} if groups else {}


def jetstream_config(server: MonitoredServer) -> Page:
    """Limits of the server's JetStream, which must be enabled."""
    service = server.jetstream
    assert service is not None
    config: Page = {
        "max_memory": service.max_memory_bytes,
        "max_storage": service.max_file_bytes,
        "store_dir": service.store_dir,
        "sync_interval": service.options.sync_interval_ns,
        "strict": True,
    }
    if service.options.sync_always:
        config["sync_always"] = True
    if service.options.domain:
        config["domain"] = service.options.domain
    if service.options.unique_tag:
        config["unique_tag"] = service.options.unique_tag
    return config


def jetstream_limits(server: MonitoredServer) -> Page:
    """Default limits of accounts; unset ones are omitted."""
    assert server.jetstream is not None
    options = server.jetstream.options
    limits = {
        "max_request_batch": options.request_batch_max,
        "max_ack_pending": options.ack_pending_max,
        "max_ha_assets": options.ha_assets_max,
        "max_duplicate_window": options.duplicate_window_max_ns,
        "default_max_consumers": options.consumers_per_stream_max or CONSUMERS_PER_STREAM,
    }
    return {name: limit for name, limit in limits.items() if limit}


def jetstream_stats(server: MonitoredServer) -> Page:
    """JetStream usage; zeros without JetStream."""
    service = server.jetstream
    infos = [engine.capacity.info() for engine in service.engines.values()] if service is not None else []
    return {
        "memory": sum(info.memory for info in infos),
        "storage": sum(info.storage for info in infos),
        "reserved_memory": sum(info.reserved_memory for info in infos),
        "reserved_storage": sum(info.reserved_storage for info in infos),
        "accounts": len(infos),
        "ha_assets": _ha_assets(service.cluster) if service is not None else 0,
        "api": {
            "level": API_LEVEL if service is not None else 0,
            "total": sum(info.api.total for info in infos),
            "errors": sum(info.api.errors for info in infos),
        },
    }
