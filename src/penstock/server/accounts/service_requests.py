"""Imports and exports of a running server: request info and latency of imported services.

`ServiceRequests` owns the server's ImportRouter and provides its callbacks. Requests to a service carry the
header `Nats-Request-Info`: the requesting account and the round trip time of its connection; with `share`,
all details of the connection. Requests to a service with `latency` are measured; measurements are published
in the exporting account, in the official server's format.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, cast

import msgspec

from penstock import faults
from penstock.errors import ConfigError, MisuseError
from penstock.kernels.routing.account_imports import ReplyEnd
from penstock.kernels.wire.sinks import Sink
from penstock.protocol import headers
from penstock.protocol.durations import format_time
from penstock.protocol.ids import NuidGenerator
from penstock.routing.import_router import ImportRouter, Measure
from penstock.routing.imports_exports import Latency, ServiceExport, ServiceImport, check
from penstock.server.monitoring.system_service import describe_client, describe_leaf

if TYPE_CHECKING:
    from penstock.server.accounts.account_registry import AccountRegistry
    from penstock.server.links.leaf_session import LeafSession
    from penstock.server.server_context import ServerContext
    from penstock.server.session import Session

LATENCY_TYPE = "io.nats.server.metric.v1.service_latency"
CHECKS_PER_THRESHOLD = 4
CHECK_MIN_S = 0.02
_FAILURES = {
    ReplyEnd.REPLY_UNDELIVERED: (503, "Service Unavailable"),
    ReplyEnd.REPLY_EXPIRED: (504, "Service Timeout"),
    ReplyEnd.REPLY_UNWANTED: (408, "Request Timeout"),
}


class ServiceRequests:
    """Imports and exports of a server's accounts.

    Args:
        context: clock, log and the server's name.
        accounts: the accounts of the server; this is their child.
    """

    def __init__(self, context: ServerContext, accounts: AccountRegistry) -> None:
        self._context = context
        self._accounts = accounts
        self._new_id = NuidGenerator(lambda n: int.from_bytes(os.urandom(16), "little") % n)
        self._timer: asyncio.TimerHandle | None = None
        self._is_looking_up = False
        self._unknown: set[str] = set()
        self.import_router = ImportRouter(
            clock=context.clock,
            seed=lambda: int.from_bytes(os.urandom(8), "little"),
            describe=self._describe,
            chain=self._chain,
            measure=self._measure,
            on_first=self._watch,
        )

    def set_up(self) -> None:
        """Sets up the imports of the current options; creates missing accounts."""
        accounts = self._accounts
        if self._is_looking_up:
            return  # called recursively while an imported account is resolved
        self._is_looking_up = True
        try:
            self._look_up_exporters()
        finally:
            self._is_looking_up = False
        sharing = {own.name: own for own in accounts.all_options()}
        wrong = {id(entry): text for entry, text in check(sharing)}
        for name, own in sharing.items():
            for entry in own.imports:
                if id(entry) in wrong:
                    self._context.log.debug(f"Account [{name}]: {wrong[id(entry)]}")
            sound = tuple(entry for entry in own.imports if id(entry) not in wrong)
            if len(sound) < len(own.imports):
                sharing[name] = msgspec.structs.replace(own, imports=sound)
        self.import_router.set_up({name: accounts.open(name) for name in sharing}, sharing)

    def _look_up_exporters(self) -> None:
        """Resolves the accounts from which known accounts import."""
        operators = self._accounts.operators
        if operators is None:
            return
        from penstock.server.auth.operators import Untrusted

        missing = {""}
        while missing:
            wanted = {entry.account for own in self._accounts.all_options() for entry in own.imports}
            missing = wanted - operators.known.keys() - self._unknown
            for name in missing:
                try:
                    operators.account(name)
                except (Untrusted, ConfigError, MisuseError) as error:
                    self._unknown.add(name)
                    self._context.log.debug(f"Account [{name}], which others import from: {error}")
        self._unknown.clear()

    def close(self) -> None:
        """Cancels the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- timeouts

    def _watch(self) -> None:
        if self._timer is None:
            interval_s = self.import_router.shortest_threshold_ns / 1e9 / CHECKS_PER_THRESHOLD
            self._timer = asyncio.get_running_loop().call_later(
                max(interval_s, CHECK_MIN_S), faults.contain, self._on_time, self._check_failed
            )

    def _on_time(self) -> None:
        self._timer = None
        if self.import_router.expire(self._context.clock()):
            self._watch()

    def _check_failed(self, error: Exception) -> None:
        """Sets the timer again: only the first of the pending requests would."""
        faults.note("end of requests to services", error)
        self._timer = None
        self._watch()

    # -- request info

    def request_info(self, origin: Sink | None, share: bool) -> dict[str, Any]:
        """Request info about a connection, for another account; {} when there is no connection."""
        session: Session | None = getattr(origin, "owner", None)
        if session is None or session.identity is None:
            return {}
        if session.connection.kind.startswith("leaf"):
            return describe_leaf(cast("LeafSession", session)) | {"server": self._context.server_name}
        if share:
            return describe_client(session) | {"server": self._context.server_name}
        brief: dict[str, Any] = {"acc": session.identity.account}
        if session.rtt_ns:
            brief["rtt"] = session.rtt_ns
        return brief

    def _describe(self, origin: Sink | None, share: bool) -> bytes:
        about = self.request_info(origin, share)
        return msgspec.json.encode(about) if about else b""

    def _chain(self, importer: str, header: bytes, origin: Sink | None, share: bool) -> bytes:
        """Request info for a request that reached `importer` by an import: the original client's, with the
        path."""
        try:
            info = headers.value_of(header, headers.REQUEST_INFO) or b""
            about = msgspec.json.decode(info, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self._describe(origin, share)
        about["svc"] = importer
        if share:
            about["server"] = self._context.server_name
        return msgspec.json.encode(about)

    # -- latency

    def _measure(self, exporter: str, export: ServiceExport, entry: ServiceImport) -> Measure:
        latency = export.latency
        assert latency is not None

        def measure(origin: Sink | None, header: bytes, has_reply: bool) -> ServiceRequest | None:
            from penstock.server.accounts.latency_sampling import sampled

            below = int.from_bytes(os.urandom(4), "little") % 100
            trace = sampled(latency.sampling, header, below)
            if trace is None:
                return None
            request = ServiceRequest(self, exporter, latency, origin, entry.share, trace)
            if has_reply:
                return request
            request.fail(400, "Bad Request")
            return None

        return measure

    def publish_measurement(self, account: str, latency: Latency, fields: dict[str, Any]) -> None:
        """Publishes a measurement in the exporting account."""
        page = {
            "type": LATENCY_TYPE,
            "id": self._new_id(),
            "timestamp": format_time(self._context.clock()),
            **fields,
        }
        self._accounts.open(account).publish(latency.subject.encode(), msgspec.json.encode(page))

    @property
    def now(self) -> int:
        return self._context.clock()


class ServiceRequest:
    """Measures one request."""

    def __init__(
        self,
        service_requests: ServiceRequests,
        exporter: str,
        latency: Latency,
        origin: Sink | None,
        share: bool,
        trace: dict[str, list[str]],
    ) -> None:
        self._service_requests = service_requests
        self._exporter = exporter
        self._latency = latency
        self._origin = origin
        self._share = share
        self._trace = trace
        self._since = service_requests.now
        self._rtt = _rtt(origin)

    def answered(self, origin: Sink | None) -> None:
        """The first reply came, from `origin`."""
        took = self._service_requests.now - self._since
        requestor_rtt, responder_rtt = _rtt(self._origin), _rtt(origin)
        fields: dict[str, Any] = {"status": 200}
        for name, who, share in (("requestor", self._origin, self._share), ("responder", origin, True)):
            about = self._service_requests.request_info(who, share)
            if about:
                fields[name] = about
        self._publish(fields, requestor_rtt, service=max(took - responder_rtt, 0), total=requestor_rtt + took)

    def ended(self, why: int) -> None:
        """The request ended without a reply."""
        if why in _FAILURES:
            self.fail(*_FAILURES[ReplyEnd(why)])

    def fail(self, status: int, text: str) -> None:
        """Publishes the measurement of a request without reply."""
        fields: dict[str, Any] = {"status": status, "description": text}
        about = self._service_requests.request_info(self._origin, self._share)
        if about:
            fields["requestor"] = about
        self._publish(fields, _rtt(self._origin), service=0, total=0)

    def _publish(self, fields: dict[str, Any], rtt: int, *, service: int, total: int) -> None:
        if self._trace:
            fields["header"] = self._trace
        fields |= {
            "start": format_time(self._since - rtt),
            "service": service,
            "system": 0,
            "total": total,
        }
        self._service_requests.publish_measurement(self._exporter, self._latency, fields)


def _rtt(sink: Sink | None) -> int:
    session: Session | None = getattr(sink, "owner", None)
    return session.rtt_ns if session is not None else 0
