"""`$JS.API.STREAM.SNAPSHOT` and `.RESTORE`: exports and imports streams as archives.

The responses name the subject of the chunks, which jetstream/snapshot.py and restore.py send and take at the
end of ticks. The first such request imports these modules with the archive and compression code: few servers
ever get one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.jetstream import stream_config
from penstock.jetstream.api.api_table import ApiRequest, Endpoint, client_of
from penstock.protocol import error_codes as codes
from penstock.protocol import subjects
from penstock.protocol.api import (
    StreamConfigRequest,
    StreamRestoreRequest,
    StreamRestoreResponse,
    StreamSnapshotRequest,
    StreamSnapshotResponse,
)

if TYPE_CHECKING:
    from penstock.jetstream.engine import JetStreamEngine
    from penstock.jetstream.restore import TakeIn


class StrictRestoreRequest(StreamRestoreRequest, kw_only=True, forbid_unknown_fields=True):
    """Unknown fields are an error: a snapshot without its limits is not the same stream."""

    config: stream_config.StrictStreamConfigRequest = stream_config.StrictStreamConfigRequest()


def snapshot(engine: JetStreamEngine, request: ApiRequest) -> StreamSnapshotResponse:
    """STREAM.SNAPSHOT: chunks follow the response, on the deliver subject."""
    from penstock.jetstream.snapshot import Snapshot

    if request.is_empty:
        raise codes.BAD_REQUEST.exception()
    stream = engine.table.find(request.args[0])
    body = request.body(StreamSnapshotRequest)
    if not subjects.is_valid_subject(body.deliver_subject):
        raise codes.SNAPSHOT_DELIVER_SUBJECT_INVALID.exception()
    fields = client_of(engine, request.origin)
    begun = Snapshot(
        engine.transfers.ports,
        stream,
        body.deliver_subject,
        consumers=not body.no_consumers,
        chunk_size=body.chunk_size,
        window_size=body.window_size,
        fields=fields,
        now=request.now,
    )
    engine.transfers.add_snapshot(begun)
    state = stream.state()
    engine.advisories.publish(
        f"STREAM.SNAPSHOT_CREATE.{stream.name}",
        "snapshot_create",
        {"stream": stream.name, "state": state, **fields},
    )
    return StreamSnapshotResponse(config=stream.config, state=state)


def restore(engine: JetStreamEngine, request: ApiRequest) -> StreamRestoreResponse:
    """STREAM.RESTORE: the response names the subject for the chunks."""
    return begin_restore(engine, request, restore_request(request))


def restore_request(request: ApiRequest) -> StreamConfigRequest:
    """The configuration that a STREAM.RESTORE request asks for. Raises JetStreamApiError."""
    if request.is_empty:
        raise codes.BAD_REQUEST.exception()
    name = request.args[0]
    wanted: StreamConfigRequest = request.body(StrictRestoreRequest).config
    if not wanted.name:
        wanted = stream_config.renamed(wanted, name)
    if wanted.name != name:
        raise codes.STREAM_MISMATCH.exception()
    return wanted


def begin_restore(
    engine: JetStreamEngine,
    request: ApiRequest,
    wanted: StreamConfigRequest,
    take_in: TakeIn | None = None,
) -> StreamRestoreResponse:
    """Begins a restore. take_in: see Restore. Raises JetStreamApiError."""
    from penstock.jetstream.restore import Restore

    name = wanted.name
    config = engine.registry.check_restore(wanted)
    if not engine.transfers.has_room():
        raise codes.INSUFFICIENT_RESOURCES.exception()
    fields = client_of(engine, request.origin)
    begun = Restore(
        engine.transfers.ports,
        config,
        fields=fields,
        resume=engine.transfers.resume,
        now=request.now,
        take_in=take_in,
    )
    engine.transfers.add_restore(begun)
    engine.advisories.publish(f"STREAM.RESTORE_CREATE.{name}", "restore_create", {"stream": name, **fields})
    return StreamRestoreResponse(deliver_subject=begun.deliver_subject)


ENDPOINTS = (
    Endpoint("STREAM.SNAPSHOT", 1, 1, "stream_snapshot_response", snapshot),
    Endpoint("STREAM.RESTORE", 1, 1, "stream_restore_response", restore),
)
