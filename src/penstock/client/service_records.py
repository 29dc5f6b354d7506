"""What services say of themselves (ADR-32): answers to PING, INFO and STATS, and the rules for their names.

The structs decode the answers of every client's services: missing fields have their zero value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from penstock.errors import InvalidSubjectError, MisuseError, ProtocolError
from penstock.protocol.durations import NS_PER_S
from penstock.protocol.subjects import is_valid_filter, is_valid_queue

DEFAULT_PREFIX = "$SRV"
DEFAULT_QUEUE = "q"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAME = re.compile(r"[A-Za-z0-9_-]+")
# The expression that semver.org recommends, without its names.
_VERSION = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(-((0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*))?"
    r"(\+([0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*))?"
)


class EndpointSchema(msgspec.Struct, frozen=True):
    """Formats of an endpoint's requests and responses, such as JSON schemas; any text."""

    request: str = ""
    response: str = ""


class EndpointInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint as INFO shows it. queue_group: "" if every instance gets each request. schema: UNSET, which
    is false, if there is none."""

    name: str
    subject: str
    queue_group: str = ""
    metadata: dict[str, str] | None = {}
    schema: EndpointSchema | msgspec.UnsetType = msgspec.UNSET


class EndpointStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of an endpoint since the service started or was reset.

    num_errors: requests answered with an error. last_error: "" or the latest one, "code:description".
    data: what the service's stats_handler returned.
    """

    name: str
    subject: str
    queue_group: str = ""
    num_requests: int = 0
    num_errors: int = 0
    last_error: str | None = ""
    data: Any = None
    processing_time_ns: int = msgspec.field(default=0, name="processing_time")
    average_processing_time_ns: int = msgspec.field(default=0, name="average_processing_time")

    @property
    def processing_time(self) -> float:
        """Seconds in handlers, of all requests together."""
        return self.processing_time_ns / NS_PER_S

    @property
    def average_processing_time(self) -> float:
        """Seconds per request."""
        return self.average_processing_time_ns / NS_PER_S


class ServicePing(msgspec.Struct, frozen=True, kw_only=True):
    """One instance of a service: its answer to PING."""

    type: str = "io.nats.micro.v1.ping_response"
    name: str = ""
    id: str = ""
    version: str = ""
    metadata: dict[str, str] | None = {}


class ServiceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One instance with its endpoints: its answer to INFO."""

    type: str = "io.nats.micro.v1.info_response"
    name: str = ""
    id: str = ""
    version: str = ""
    metadata: dict[str, str] | None = {}
    description: str | None = ""
    endpoints: list[EndpointInfo] | None = []


class ServiceStats(msgspec.Struct, frozen=True, kw_only=True):
    """One instance with the counts of its endpoints: its answer to STATS."""

    type: str = "io.nats.micro.v1.stats_response"
    name: str = ""
    id: str = ""
    version: str = ""
    metadata: dict[str, str] | None = {}
    endpoints: list[EndpointStats] | None = []
    started: datetime = _EPOCH


Record = TypeVar("Record", ServicePing, ServiceInfo, ServiceStats)
_encoder = msgspec.json.Encoder()


def encode_record(record: ServicePing | ServiceInfo | ServiceStats) -> bytes:
    """The JSON of an answer. Raises TypeError for `data` that JSON can not hold."""
    return _encoder.encode(record)


def decode_record(kind: type[Record], body: bytes) -> Record:
    """An answer from its JSON. Raises ProtocolError."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"a service's {kind.__name__} can not be read: {error}: {body[:80]!r}") from error


def control_subject(prefix: str, verb: str, name: str = "", instance: str = "") -> str:
    """The subject of a verb: of all services, of those with a name, or of one instance."""
    return ".".join(part for part in (prefix, verb, name, instance) if part)


def check_service_name(name: str, what: str) -> str:
    """Raises InvalidSubjectError, unless the name consists of letters, digits, dashes and underscores."""
    if not _NAME.fullmatch(name):
        text = "it must consist of A-Z, a-z, 0-9, dash and underscore"
        raise InvalidSubjectError(f"{what} name {name!r}: {text}")
    return name


def check_version(version: str) -> str:
    """Raises MisuseError, unless it is a semantic version."""
    if not _VERSION.fullmatch(version):
        raise MisuseError(f"version {version!r} is not a semantic version such as 1.0.0")
    return version


def check_queue(queue: str) -> str:
    """Raises InvalidSubjectError for a name with whitespace; "" is no queue group."""
    if queue and not is_valid_queue(queue):
        raise InvalidSubjectError(f"queue group {queue!r} contains whitespace")
    return queue


def check_group(name: str) -> str:
    """Raises InvalidSubjectError, unless the name can begin a subject."""
    if name and (not is_valid_filter(name) or ">" in name.split(".")):
        raise InvalidSubjectError(f"group {name!r} is not a valid beginning of a subject")
    return name


def text_map(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """A copy of the metadata. Raises TypeError for values that are not str."""
    found = dict(metadata or {})
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"metadata {name!r}: {value!r}: names and values are str")
    return found
