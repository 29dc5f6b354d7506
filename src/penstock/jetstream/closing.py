"""Closes the streams of an engine that stops. What fails for one stream is logged, and the others close."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial

from penstock import faults
from penstock.errors import StoreError, StoreWriteError
from penstock.jetstream.stream.stream_replica import StreamReplica

log = logging.getLogger("penstock.jetstream")


def finish_syncs(
    streams: Mapping[str, StreamReplica], failed: Callable[[Exception, StreamReplica], object]
) -> None:
    """Waits for the syncs in flight, so that what they cover can be acked. failed: gets unexpected errors."""
    for stream in list(streams.values()):
        faults.contain(_finish_sync, failed, stream)


def close_all(streams: dict[str, StreamReplica]) -> None:
    """Syncs what is left, closes every store and consumer, and removes the streams."""
    _sync_together(streams)
    for stream in streams.values():
        stream.atomic.drop()
        for close in (*(consumer.close for consumer in stream.consumers.values()), stream.store.close):
            faults.contain(close, partial(_failed, stream, "closing"))
    streams.clear()


def _finish_sync(stream: StreamReplica) -> None:
    if stream.durability.is_syncing:
        try:
            stream.store.sync()
        except StoreError as error:
            log.error("stream %s: syncing it failed: %s", stream.name, error)


def _sync_together(streams: Mapping[str, StreamReplica]) -> None:
    """Syncs all streams and their consumers at once: each syncs what is left when it closes, and ten thousand
    new consumers took half a minute one by one. What fails here is written and synced once more then."""
    failures: list[StoreWriteError | None] = []
    for stream in streams.values():
        faults.contain(stream.store.start_sync, partial(_failed, stream, "syncing"), failures.append)
    for stream in streams.values():
        faults.contain(stream.store.sync, partial(_failed, stream, "syncing"))


def _failed(stream: StreamReplica, doing: str, error: Exception, *_: object) -> None:
    if not isinstance(error, StoreError):
        faults.note(f"{doing} stream {stream.name}", error)
    log.error("stream %s: %s it failed: %s", stream.name, doing, error)
