"""Maps `$JS.API.` subjects to their handlers.

An Endpoint has the verbs of its subject (`STREAM.MSG.GET`), the number of tokens that follow, the response
type and the handler. A handler returns the response struct, or None when it has responded itself or needs no
response. It rejects a request by raising JetStreamApiError, which becomes the `error` of the response. A
handler whose work grows with the stored data is a generator of slices (jetstream/slices.py). Requests to
unknown subjects get no response (api/service.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Struct

from penstock.jetstream.waiting import Queue
from penstock.kernels.wire.sinks import Sink
from penstock.protocol import error_codes as codes
from penstock.protocol import headers
from penstock.protocol.api import DecodeError, decode, unknown_field
from penstock.protocol.json_names import with_declared_names

if TYPE_CHECKING:
    from penstock.jetstream.engine import JetStreamEngine

T = TypeVar("T")
OBJECTS_MAX = 20_000  # in a request; the largest valid one, with 1,000 sources, has a quarter of that
COLONS_MAX = 40_000  # in a request: at least one per member; 128 KiB of metadata have half of that


class ApiRequest(Struct):
    """One request. `args` are the tokens after the endpoint's verbs: ["ORDERS"] for STREAM.INFO.ORDERS."""

    subject: str
    args: list[str]
    reply: bytes
    header: bytes
    payload: bytes
    origin: Sink | None
    now: int = 0  # ns; when it is processed
    answer_header: bytes = b""

    def begin(self, now: int) -> None:
        """Begins to process the request. It may have waited, so its time differs from that of its arrival."""
        self.now = now

    def answer_with_identity(self, identity: str) -> None:
        """Names the identity of the stream in the header of the response: a server that sources from it
        checks it."""
        self.answer_header = headers.build([(headers.STREAM_IDENTITY, identity)])

    def body(self, kind: type[T], *, is_strict: bool = True) -> T:
        """Decodes the payload as a `kind`. Raises JetStreamApiError 10025 for invalid JSON or (strict)
        unknown fields.

        A megabyte can hold 300,000 empty objects, which take a quarter of a second to construct, or 80,000
        members of metadata: their number is limited before decoding. `{{` starts a function of a destination,
        not an object.
        """
        objects = self.payload.count(b"{") - 2 * self.payload.count(b"{{")
        if objects > OBJECTS_MAX:
            raise codes.INVALID_JSON.exception(err=f"{objects} objects; the most is {OBJECTS_MAX}")
        colons = self.payload.count(b":")
        if colons > COLONS_MAX:
            raise codes.INVALID_JSON.exception(err=f"{colons} colons; the most is {COLONS_MAX}")
        payload = with_declared_names(kind, self.payload)
        try:
            value = decode(kind, payload)
        except DecodeError as error:
            raise codes.INVALID_JSON.exception(err=str(error)) from None
        unknown = unknown_field(value, payload) if is_strict else None
        if unknown is not None:
            raise codes.INVALID_JSON.exception(err=f'json: unknown field "{unknown}"')
        return value

    def optional_body(self, kind: type[T], *, is_json: bool = False) -> T:
        """Decodes an optional body: a payload that does not start like an object or array counts as absent.

        The official server (2.15) does so for lists, names, info, purge and pause. is_json: rejects text that
        is not JSON at all, like `body`.
        """
        if self.payload.lstrip()[:1] in (b"{", b"["):
            return self.body(kind)
        if is_json and self.payload:
            try:
                msgspec.json.decode(self.payload)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise codes.INVALID_JSON.exception(err=str(error)) from None
        return kind()

    @property
    def is_empty(self) -> bool:
        """Whether the payload is absent or an empty JSON object, for endpoints that reject or require a
        body."""
        text = self.payload.strip()
        return not self.payload or (text[:1] == b"{" and text[-1:] == b"}" and not text[1:-1].strip())


ApiHandler = Callable[["JetStreamEngine", ApiRequest], Any]


class Endpoint(Struct, frozen=True):
    """verbs: "STREAM.MSG.GET"; args_min, args_max: tokens that follow (args_max None: any number).

    response: the type without its common prefix, "stream_msg_get_response". audited: whether successful
    requests are reported in api_audit advisories; rejected ones always are. json_errors: False when
    rejections are status messages that the handler sends itself (pull, direct get).
    """

    verbs: str
    args_min: int
    args_max: int | None
    response: str
    handler: ApiHandler
    audited: bool = True
    json_errors: bool = True


INFO_VERBS = frozenset(
    ("INFO", "STREAM.NAMES", "STREAM.LIST", "STREAM.INFO", "CONSUMER.NAMES", "CONSUMER.LIST", "CONSUMER.INFO")
)


def queue_of(endpoint: Endpoint | None) -> Queue:
    """The queue of an endpoint, if any. Pull requests and direct gets have limits of their own."""
    if endpoint is None or not endpoint.json_errors:
        return Queue.NONE
    return Queue.INFO if endpoint.verbs in INFO_VERBS else Queue.API


def client_of(engine: JetStreamEngine, origin: Sink | None) -> dict[str, Any]:
    """The `client` of an advisory: who sent the request, if known."""
    client = engine.describe_client(origin) if origin is not None else None
    return {"client": client} if client else {}


class ApiTable:
    """The endpoints by their verbs."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self._by_verbs = {tuple(endpoint.verbs.split(".")): endpoint for endpoint in endpoints}
        self._longest = max(len(verbs) for verbs in self._by_verbs)

    def verbs(self) -> set[str]:
        """The verbs of all endpoints."""
        return {".".join(verbs) for verbs in self._by_verbs}

    def find(self, tokens: list[str]) -> tuple[Endpoint, list[str]] | None:
        """Finds the endpoint with the longest matching verbs; returns it with the remaining tokens, or
        None."""
        for length in range(min(self._longest, len(tokens)), 0, -1):
            endpoint = self._by_verbs.get(tuple(tokens[:length]))
            if endpoint is None:
                continue
            args = tokens[length:]
            if endpoint.args_min <= len(args) and (
                endpoint.args_max is None or len(args) <= endpoint.args_max
            ):
                return endpoint, args
        return None
