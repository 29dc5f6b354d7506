"""Streams and consumers of the visitor's account, in slices.

Names come from one request for a thousand of them; only the streams of the slice are asked for their state,
INFOS_AT_ONCE at a time. A stream that is removed in between is left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from penstock.client.config import ConsumerInfo, StreamInfo
from penstock.errors import NotFoundError
from penstock.web.request_checks import checked_name
from penstock.web.views.server_views import window
from penstock.web.visitor import Visitor
from penstock.web.web_ports import Slice

INFOS_AT_ONCE = 16
SUBJECTS_SHOWN = 20
T = TypeVar("T")
K = TypeVar("K")


async def streams(visitor: Visitor, query: Mapping[str, str]) -> Slice:
    """A slice of the streams whose names contain `filter`, by name."""
    wanted = query.get("filter", "").lower()
    names = sorted(name for name in await visitor.js.stream_names() if wanted in name.lower())
    offset, limit = window(query)
    found = await infos(visitor.js.stream_info, names[offset : offset + limit])
    return {
        "total": len(names),
        "offset": offset,
        "limit": limit,
        "rows": [stream_row(info) for info in found],
    }


async def stream(visitor: Visitor, query: Mapping[str, str]) -> Slice:
    """One stream with a slice of its consumers."""
    name = checked_name(query.get("stream", ""), "stream")
    found = await visitor.js.stream(name)
    names = sorted(await found.consumer_names())
    offset, limit = window(query)
    consumers = await infos(found.consumer_info, names[offset : offset + limit])
    return {
        "stream": stream_row(found.cached_info) | {"config": plain(found.cached_info.config)},
        "total": len(names),
        "offset": offset,
        "limit": limit,
        "rows": [consumer_row(info) for info in consumers],
    }


async def infos(ask: Callable[[K], Awaitable[T]], keys: Iterable[K]) -> list[T]:
    """The answers for these keys, in their order, without those of which nothing is left."""
    turns = asyncio.Semaphore(INFOS_AT_ONCE)

    async def one(key: K) -> T | None:
        async with turns:
            try:
                return await ask(key)
            except NotFoundError:
                return None

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(key)) for key in keys]
    return [found for task in tasks if (found := task.result()) is not None]


def stream_row(info: StreamInfo) -> Slice:
    config, state = info.config, info.state
    return {
        "name": config.name,
        "subjects": list(config.subjects)[:SUBJECTS_SHOWN],
        "subjects_total": len(config.subjects),
        "description": config.description or "",
        "storage": str(config.storage),
        "retention": str(config.retention),
        "replicas": config.num_replicas,
        "messages": state.messages,
        "bytes": state.bytes,
        "first_seq": state.first_seq,
        "last_seq": state.last_seq,
        "first_time": state.first_ts,
        "last_time": state.last_ts,
        "consumers": state.consumer_count,
        "num_subjects": state.num_subjects,
        "num_deleted": state.num_deleted,
        "sealed": config.sealed,
        "schedules": config.allow_msg_schedules,
        "created": info.created,
        "cluster": replicas(info),
        "mirror": info.mirror is not None,
        "sources": len(info.sources or []),
    }


def consumer_row(info: ConsumerInfo) -> Slice:
    config = info.config
    return {
        "name": info.name,
        "durable": bool(config.durable_name),
        "push": bool(config.deliver_subject),
        "filters": list(config.filter_subjects or ()) or [one for one in (config.filter_subject,) if one],
        "ack_policy": str(config.ack_policy),
        "max_deliver": config.max_deliver,
        "max_ack_pending": config.max_ack_pending,
        "pending": info.num_pending,
        "ack_pending": info.num_ack_pending,
        "redelivered": info.num_redelivered,
        "waiting": info.num_waiting,
        "delivered_seq": info.delivered.stream_seq,
        "ack_floor_seq": info.ack_floor.stream_seq,
        "paused": info.paused,
        "dead_letter": (config.metadata or {}).get("penstock.dead_letter", ""),
        "cluster": replicas(info),
    }  # fmt: skip


def replicas(info: StreamInfo | ConsumerInfo) -> Slice | None:
    """Leader and replicas; None for a server without a cluster."""
    found = info.cluster
    if found is None:
        return None
    return {
        "name": found.name,
        "leader": found.leader,
        "replicas": [
            {"name": one.name, "current": one.current, "lag": one.lag, "offline": one.offline}
            for one in found.replicas or []
        ],
    }


def plain(config: object) -> Slice:
    """A configuration as JSON shows it."""
    import msgspec

    found: Slice = msgspec.to_builtins(config, enc_hook=str)
    return {name: value for name, value in found.items() if value not in (None, "", [], {}, 0, False)}
