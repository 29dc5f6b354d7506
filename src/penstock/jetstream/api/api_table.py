"""From a `$JS.API.` subject to the function that answers it.

An Endpoint names the verbs of its subject (`STREAM.MSG.GET`), how many tokens follow them, the response
type and the handler. A handler returns the response struct, or None when it has answered by itself or
nothing is to be said; it refuses by raising JetStreamApiError, which becomes the `error` of the endpoint's
response type. One whose work grows with what is stored is a generator of slices
(jetstream/slices.py). Requests to subjects of no endpoint are met with silence (api/service.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Struct

from penstock.kernels.wire.sinks import Sink
from penstock.protocol import error_codes as codes
from penstock.protocol.api import DecodeError, decode, unknown_field, with_declared_names

if TYPE_CHECKING:
    from penstock.jetstream.engine import JetStreamEngine

T = TypeVar("T")
OBJECTS_MAX = 20_000  # in a request; the largest that is served, with 1,000 sources, has a quarter of that
COLONS_MAX = 40_000  # in a request: at least as many as members; 128 KiB of metadata have half of them


class ApiRequest(Struct):
    """One request. `args` are the tokens after the endpoint's verbs: ["ORDERS"] of STREAM.INFO.ORDERS."""

    subject: str
    args: list[str]
    reply: bytes
    header: bytes
    payload: bytes
    origin: Sink | None
    now: int = 0  # ns; when it is served
    answer_header: bytes = b""  # a handler may set it

    def body(self, kind: type[T], *, is_strict: bool = True) -> T:
        """The payload as a `kind`; refuses with 10025 what is no such JSON, or (strict) has a field too many.

        A megabyte holds 300,000 empty objects, which take a quarter of a second to make, or 80,000 members of
        metadata: how many there may be is bounded before they are made. `{{` begins no object but a function
        of a destination.
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
        """The same where a body is optional: what does not begin like an object or array counts as absent.

        The official server (2.15) does this for lists, names, info, purge and pause. is_json: text that is no
        JSON at all is refused like in `body`.
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
        """Has it no payload, or an empty JSON object? For endpoints that refuse a body, or demand one."""
        text = self.payload.strip()
        return not self.payload or (text[:1] == b"{" and text[-1:] == b"}" and not text[1:-1].strip())


ApiHandler = Callable[["JetStreamEngine", ApiRequest], Any]


class Endpoint(Struct, frozen=True):
    """verbs: "STREAM.MSG.GET"; args_min, args_max: tokens that follow (args_max None: any number).

    response: the type without its common prefix, "stream_msg_get_response".
    audited: successful requests are reported as api_audit advisories; refused ones always are.
    json_errors: False when refusals are status messages, which the handler sends itself (pull, direct get).
    """

    verbs: str
    args_min: int
    args_max: int | None
    response: str
    handler: ApiHandler
    audited: bool = True
    json_errors: bool = True


class ApiTable:
    """The endpoints by their verbs."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self._by_verbs = {tuple(endpoint.verbs.split(".")): endpoint for endpoint in endpoints}
        self._longest = max(len(verbs) for verbs in self._by_verbs)

    def find(self, tokens: list[str]) -> tuple[Endpoint, list[str]] | None:
        """The endpoint with the longest matching verbs and the tokens left over, or None."""
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
