"""The service on `$JS.API.>` (and `$JS.<domain>.API.>`): takes requests, sends responses and audit
advisories.

It is a ServiceSink, so publishes that precede a request are applied before it runs, and the response leaves
in the same tick, after what it reports was written.

A handler with long work is a generator; its response leaves after the last slice (jetstream/slices.py).

Invariant: every request with a reply subject gets exactly one response, from its handler or from here,
whatever the handler raises.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock import faults
from penstock.errors import JetStreamApiError, LeadershipLostError, StoreError
from penstock.jetstream.api import (
    account_requests,
    consumer_requests,
    direct_requests,
    stream_requests,
    transfer_requests,
)
from penstock.jetstream.api.api_table import ApiRequest, ApiTable, Endpoint, client_of, queue_of
from penstock.kernels.log.queries import DirectGets
from penstock.kernels.wire.dispatch import ServiceSink, publish
from penstock.kernels.wire.sinks import Sink, SinkSubscription
from penstock.protocol import error_codes as codes
from penstock.protocol import headers, status
from penstock.protocol.api import TYPE_PREFIX, ApiError, ErrorResponse, encode

if TYPE_CHECKING:
    from penstock.jetstream.engine import JetStreamEngine

log = logging.getLogger("penstock.jetstream")

PREFIX = "$JS.API."
# the exceptions that a handler may raise
REFUSALS = (JetStreamApiError, StoreError, UnicodeEncodeError, OverflowError)
NO_RESPONDERS = ("CONSUMER.MSG.NEXT", "DIRECT.GET")  # unknown subjects below these get a 503

EVERYWHERE = frozenset(["DIRECT.GET"])
"""Verbs that every replica of a stream serves."""

ENDPOINTS = {
    endpoint.verbs: endpoint
    for endpoint in (
        *account_requests.ENDPOINTS,
        *stream_requests.ENDPOINTS,
        *direct_requests.ENDPOINTS,
        *consumer_requests.ENDPOINTS,
        *transfer_requests.ENDPOINTS,
    )
}
TABLE = ApiTable(ENDPOINTS.values())


class ApiService:
    """Serves the API of one engine."""

    def __init__(self, engine: JetStreamEngine) -> None:
        self._engine = engine
        self._prefixes = [PREFIX]
        if engine.config.domain:
            self._prefixes.append(f"$JS.{engine.config.domain}.API.")
        self._sink = self._new_sink()
        self._subscriptions: list[SinkSubscription] = []

    def _new_sink(self) -> ServiceSink:
        """What takes the requests."""
        engine = self._engine
        return DirectGets(
            self.on_request, self._apply_pending, engine, engine.index, status.MESSAGE_NOT_FOUND.block()
        )

    def start(self) -> None:
        """Subscribes."""
        for prefix in self._prefixes:
            subscription = SinkSubscription(self._sink, f"{prefix}>".encode())
            self._engine.index.insert(subscription)
            self._subscriptions.append(subscription)

    def stop(self) -> None:
        """Unsubscribes."""
        for subscription in self._subscriptions:
            self._engine.index.remove(subscription)
        self._subscriptions.clear()

    def _apply_pending(self) -> None:
        tick = self._engine.tick
        if not tick.routing.is_active and tick.has_input:
            tick.apply(self._engine.clock())

    def on_request(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None
    ) -> None:
        """Processes one request."""
        text = subject.decode("utf-8", "surrogateescape")
        prefix = PREFIX if text.startswith(PREFIX) else self._prefixes[-1]
        endpoint, args = TABLE.find(text[len(prefix) :].split(".")) or (None, [])
        self._serve(endpoint, ApiRequest(text, args, reply, header, payload, origin))

    def _serve(self, endpoint: Endpoint | None, request: ApiRequest) -> None:
        """Runs the handler now, or later while a sync is in flight, messages are being routed, or an earlier
        request of the client is unfinished."""
        engine = self._engine
        if request.origin in engine.slices.owners:
            engine.slices.after(request.origin, lambda: self._serve(endpoint, request), queue_of(endpoint))
        elif engine.commit.in_flight:
            engine.deferrals.after(lambda: self._serve(endpoint, request), queue_of(endpoint))
        elif engine.tick.routing.is_active:
            engine.pending.defer(lambda: self._serve(endpoint, request))
        elif endpoint is None:
            self._meet_unknown(request)
        elif endpoint.verbs not in EVERYWHERE and self._is_elsewhere(request):
            return  # the stream's leader answers
        else:
            request.begin(engine.clock())
            try:
                self._answer(endpoint, request)
            except Exception as error:  # noqa: BLE001  # costs this request, and nothing else
                self._answer_fault(error, endpoint, request)

    def _is_elsewhere(self, request: ApiRequest) -> bool:
        """Whether the request is about a stream that another server leads."""
        replica = self._engine.replicated.find(request.args[0]) if request.args else None
        return replica is not None and not replica.is_serving

    def _meet_unknown(self, request: ApiRequest) -> None:
        """Handles a subject below the prefix without an endpoint.

        As on the official server, there is no response: another server behind a leaf node or in a cluster may
        have one, and a rejection would arrive before it. Pulls and direct gets are separate subscriptions
        there, so unknown ones have no responders.
        """
        if request.reply and request.subject.partition(".API.")[2].startswith(NO_RESPONDERS):
            block = status.no_responders_block(request.subject)
            publish(self._engine.index, request.reply, b"", block, b"")

    def _answer(self, endpoint: Endpoint, request: ApiRequest) -> None:
        engine = self._engine
        try:
            if endpoint.json_errors and not headers.api_level_suffices(
                request.header, engine.config.api_level
            ):
                raise codes.REQUIRED_API_LEVEL.exception()
            response = endpoint.handler(engine, request)
        except REFUSALS as error:
            self._conclude(endpoint, request, self._refusal(endpoint, request, error), failed=True)
            return
        if response is None:  # a pull: by far the most frequent request
            return
        if isinstance(response, Generator):
            finish = partial(self._finish, endpoint, request)
            engine.slices.begin(request.origin, response, finish, partial(self._refuse, endpoint, request))
        else:
            self._conclude(endpoint, request, response)

    def _finish(self, endpoint: Endpoint, request: ApiRequest, response: Any) -> None:
        """Responds to a request that was processed in slices."""
        faults.contain(self._conclude, self._answer_fault, endpoint, request, response)

    def _refuse(self, endpoint: Endpoint, request: ApiRequest, error: Exception) -> None:
        """Rejects a request whose slice raised."""
        if isinstance(error, LeadershipLostError):
            return  # whether it was done is unknown: its client asks the next leader
        if isinstance(error, REFUSALS):
            response = self._refusal(endpoint, request, error)
            self._conclude(endpoint, request, response, failed=True)
        else:
            self._answer_fault(error, endpoint, request)

    def _refusal(self, endpoint: Endpoint, request: ApiRequest, error: Exception) -> ErrorResponse:
        """The error response for an exception of a handler."""
        if isinstance(error, JetStreamApiError):
            api_error = ApiError.from_exception(error)
        elif isinstance(error, StoreError):
            log.error("request %s failed in the store: %s", request.subject, error)
            api_error = codes.STREAM_GENERAL.format(err=str(error))
        else:
            # Names that are not UTF-8 cannot be stored, and numbers that fit no field have no meaning.
            log.debug("request %s: %s", request.subject, error)
            api_error = codes.BAD_REQUEST
        return ErrorResponse(type=TYPE_PREFIX + endpoint.response, error=api_error)

    def _conclude(
        self, endpoint: Endpoint, request: ApiRequest, response: Any, *, failed: bool = False
    ) -> None:
        """Sends the response, if there is one, and reports the request."""
        if response is None:
            return
        replica = self._engine.replicated.find(request.args[0]) if request.args else None
        if replica is not None:
            # What it changed is committed, and what it read was the last state: another server may lead.
            replica.commands.when_confirmed(partial(self._report, endpoint, request, response, failed))
        else:
            self._report(endpoint, request, response, failed)

    def _report(self, endpoint: Endpoint, request: ApiRequest, response: Any, failed: bool) -> None:
        text = encode(response)
        # as on the official server, a response does not count itself
        self._engine.api_stats.count(failed=failed)
        self._respond(request.reply, text, request.answer_header)
        if endpoint.audited or failed:
            self._audit(request, text)

    def _answer_fault(self, error: Exception, endpoint: Endpoint, request: ApiRequest, *_: object) -> None:
        """Handles an unexpected exception: responds with an error in the format of the endpoint."""
        text = faults.describe(faults.note(f"request {request.subject!a}", error))
        if endpoint.json_errors:
            response = ErrorResponse(
                type=TYPE_PREFIX + endpoint.response, error=codes.STREAM_GENERAL.format(err=text)
            )
            self._engine.api_stats.count(failed=True)
            self._respond(request.reply, encode(response))
        else:
            self._respond(request.reply, b"", status.Status(500, text).block())

    def _respond(self, reply: bytes, text: bytes, header: bytes = b"") -> None:
        if reply:
            publish(self._engine.index, reply, b"", header, text)

    def _audit(self, request: ApiRequest, response: bytes) -> None:
        advisories = self._engine.advisories
        if not advisories.wanted("API"):
            return
        fields: dict[str, Any] = {"server": self._engine.config.server_name}
        fields |= client_of(self._engine, request.origin)
        fields["subject"] = request.subject.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        if request.payload:
            fields["request"] = request.payload.decode("utf-8", "replace")
        fields["response"] = response.decode("utf-8", "replace")
        advisories.publish("API", "api_audit", fields)
