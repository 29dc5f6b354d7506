"""Types of the messages that servers publish and answer, by their ids such as
`io.nats.jetstream.advisory.v1.nak`.

Answers of the API are the structs of `penstock.protocol.api`. Advisories and metrics are below as tables
of fields; a name that ends with `?` may be missing. From both msgspec makes JSON Schemas, and checks
documents.
"""

from __future__ import annotations

import functools
from typing import Any

import msgspec

from penstock.protocol import api
from penstock.protocol.api import TYPE_PREFIX

ADVISORY, METRIC = "io.nats.jetstream.advisory.v1.", "io.nats.jetstream.metric.v1."
SERVER_ADVISORY, SERVER_METRIC = "io.nats.server.advisory.v1.", "io.nats.server.metric.v1."

_ASSET = {"stream": str, "consumer": str}
_DELIVERY = {**_ASSET, "consumer_seq": int, "stream_seq": int, "deliveries": int}
_CLUSTERED = {"account?": str, "domain?": str}
_PEERS = {"leader": str, "replicas": list[dict[str, Any]]}
_TRANSFER = {"stream": str, "client": dict[str, Any]}
_SERVER = {"server": dict[str, Any]}

_EVENTS: dict[str, tuple[str, dict[str, Any]]] = {
    ADVISORY + "api_audit": (
        "A request to the JetStream API",
        {
            "server": str,
            "client": dict[str, Any],
            "subject": str,
            "request?": str,
            "response": str,
            "domain?": str,
        },
    ),
    ADVISORY + "api_limit_reached": (
        "Requests to the API were dropped, because too many waited",
        {"server": str, "domain?": str, "dropped": int},
    ),
    ADVISORY + "stream_action": (
        "A stream was created, updated or deleted",
        {"stream": str, "action": str, "domain?": str},
    ),
    ADVISORY + "consumer_action": (
        "A consumer was created or deleted",
        {**_ASSET, "action": str, "domain?": str},
    ),
    ADVISORY + "consumer_pause": (
        "The pause of a consumer began or ended",
        {**_ASSET, "paused": bool, "pause_until?": str, "domain?": str},
    ),
    ADVISORY + "consumer_group_pinned": (
        "A client was pinned in a priority group",
        {**_CLUSTERED, **_ASSET, "group": str, "pinned_id": str},
    ),
    ADVISORY + "consumer_group_unpinned": (
        "A client was unpinned in a priority group",
        {**_CLUSTERED, **_ASSET, "group": str, "reason": str},
    ),
    ADVISORY + "max_deliver": (
        "A message was delivered as often as its consumer allows, and not acked",
        {**_ASSET, "stream_seq": int, "deliveries": int, "domain?": str},
    ),
    ADVISORY + "nak": ("A receiver asked for a message again", {**_DELIVERY, "domain?": str}),
    ADVISORY + "terminated": (
        "A receiver terminated a message",
        {**_DELIVERY, "reason?": str, "domain?": str},
    ),
    ADVISORY + "snapshot_create": (
        "A backup of a stream began",
        {**_TRANSFER, "state": api.StreamState, "domain?": str},
    ),
    ADVISORY + "snapshot_complete": (
        "A backup of a stream ended",
        {**_TRANSFER, "start": str, "end": str, "error?": str, "domain?": str},
    ),
    ADVISORY + "restore_create": ("A restore of a stream began", {**_TRANSFER, "domain?": str}),
    ADVISORY + "restore_complete": (
        "A restore of a stream ended",
        {**_TRANSFER, "start": str, "end": str, "bytes": int, "error?": str, "domain?": str},
    ),
    ADVISORY + "domain_leader_elected": (
        "The meta group elected a leader",
        {**_PEERS, "cluster": str, "domain?": str},
    ),
    ADVISORY + "stream_leader_elected": (
        "A stream's group elected a leader",
        {**_CLUSTERED, "stream": str, **_PEERS},
    ),
    ADVISORY + "stream_quorum_lost": (
        "A stream's group has no majority",
        {**_CLUSTERED, "stream": str, "replicas": list[dict[str, Any]]},
    ),
    ADVISORY + "consumer_leader_elected": (
        "A consumer's group elected a leader",
        {**_CLUSTERED, **_ASSET, **_PEERS},
    ),
    ADVISORY + "consumer_quorum_lost": (
        "A consumer's group has no majority",
        {**_CLUSTERED, **_ASSET, "replicas": list[dict[str, Any]]},
    ),
    ADVISORY + "stream_batch_abandoned": (
        "A batch of publishes was abandoned",
        {**_CLUSTERED, "stream": str, "batch": str, "reason": str},
    ),
    ADVISORY + "server_out_of_space": (
        "A server has no storage left",
        {"server": str, "server_id": str, "stream?": str, "cluster?": str, "domain?": str},
    ),
    ADVISORY + "server_removed": (
        "A server was removed from the meta group",
        {"server": str, "server_id": str, "cluster?": str, "domain?": str},
    ),
    METRIC + "consumer_ack": (
        "A sampled ack; ack_time is in nanoseconds",
        {**_DELIVERY, "ack_time": int, "domain?": str},
    ),
    SERVER_ADVISORY + "client_connect": ("A client connected", {**_SERVER, "client": dict[str, Any]}),
    SERVER_ADVISORY + "client_disconnect": (
        "A client disconnected",
        {
            **_SERVER,
            "client": dict[str, Any],
            "sent": dict[str, Any],
            "received": dict[str, Any],
            "reason": str,
        },
    ),
    SERVER_METRIC + "service_latency": (
        "The latency of a request to an exported service, in nanoseconds",
        {
            "status": int,
            "error?": str,
            "requestor?": dict[str, Any],
            "responder?": dict[str, Any],
            "header?": dict[str, list[str]],
            "start": str,
            "service": int,
            "system": int,
            "total": int,
        },
    ),
}

_OTHERS: dict[str, tuple[str, type[msgspec.Struct]]] = {
    "stream_configuration": ("Configuration of a stream", api.ApiStreamConfig),
    "consumer_configuration": ("Configuration of a consumer", api.ApiConsumerConfig),
    "stream_info_request": ("Request of STREAM.INFO", api.StreamInfoRequest),
    "stream_purge_request": ("Request of STREAM.PURGE", api.StreamPurgeRequest),
    "stream_snapshot_request": ("Request of STREAM.SNAPSHOT", api.StreamSnapshotRequest),
    "stream_msg_get_request": ("Request of STREAM.MSG.GET", api.MsgGetRequest),
    "stream_msg_delete_request": ("Request of STREAM.MSG.DELETE", api.MsgDeleteRequest),
    "consumer_create_request": ("Request of CONSUMER.CREATE", api.ConsumerCreateRequest),
    "consumer_getnext_request": ("Request of CONSUMER.MSG.NEXT", api.PullRequest),
    "consumer_pause_request": ("Request of CONSUMER.PAUSE", api.ConsumerPauseRequest),
    "consumer_reset_request": ("Request of CONSUMER.RESET", api.ConsumerResetRequest),
    "consumer_unpin_request": ("Request of CONSUMER.UNPIN", api.ConsumerUnpinRequest),
}


@functools.cache
def schema_types() -> dict[str, tuple[str, type[msgspec.Struct]]]:
    """Description and struct of every type, by its id."""
    found: dict[str, tuple[str, type[msgspec.Struct]]] = {}
    for name in vars(api):
        struct = getattr(api, name)
        if isinstance(struct, type) and issubclass(struct, msgspec.Struct):
            default = _type_default(struct)
            if default.startswith(TYPE_PREFIX):
                words = default.removeprefix(TYPE_PREFIX).removesuffix("_response").replace("_", " ")
                found[default] = f"Answer of the API: {words}", struct
    for name, (text, struct) in _OTHERS.items():
        found[TYPE_PREFIX + name] = text, struct
    for name, (text, fields) in _EVENTS.items():
        found[name] = text, _event(name, fields)
    return dict(sorted(found.items()))


def _type_default(struct: type[msgspec.Struct]) -> str:
    """The id that an answer carries in its field `type`; empty if it has none."""
    for field in msgspec.structs.fields(struct):
        if field.name == "type":
            made = field.default_factory() if callable(field.default_factory) else field.default
            return made if isinstance(made, str) else ""
    return ""


def _event(kind: str, fields: dict[str, Any]) -> type[msgspec.Struct]:
    """A struct for an event: its own fields behind those that all have."""
    from typing import Literal

    made: list[Any] = [("type", Literal[kind]), ("id", str), ("timestamp", str)]
    for name, type_ in fields.items():
        made.append((name[:-1], type_ | None, None) if name.endswith("?") else (name, type_))
    return msgspec.defstruct(kind.rpartition(".")[2], made, kw_only=True, forbid_unknown_fields=True)


def schema_of(kind: str) -> dict[str, Any]:
    """The JSON Schema of a type. Raises KeyError for an unknown id."""
    text, struct = schema_types()[kind]
    (found,), definitions = msgspec.json.schema_components((struct,), ref_template="#/definitions/{name}")
    own = definitions.pop(found["$ref"].rpartition("/")[2]) if "$ref" in found else found
    made = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": f"https://nats.io/schemas/{kind.removeprefix('io.nats.').replace('.', '/')}.json",
        "description": text,
        **own,
        "title": kind,
    }
    return {**made, "definitions": definitions} if definitions else made


def check_document(kind: str, data: bytes) -> str:
    """Why a JSON document is not of a type; empty if it is. Raises KeyError for an unknown id."""
    try:
        msgspec.json.decode(data, type=schema_types()[kind][1])
    except msgspec.DecodeError as error:
        return str(error)
    return ""
