"""Services (ADR-32): named, versioned sets of endpoints that answer requests and can be discovered.

    async with await client.add_service("orders", "1.0.0") as orders:

        @orders.endpoint()
        async def total(request: ServiceMsg) -> bytes:
            return b"17"

Theory of operation: an endpoint is a subscription, usually in a queue group, and one task or several that
call its handler for one request after the other. PING, INFO and STATS have three subscriptions each (all
services, those of this name, this instance) and are answered without a task.

Invariants: a request is counted once, when its handler has ended; it gets at most one error answer, and none
after the handler has responded. A stopped service has processed every request that its server had sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.client.connection_listener import ConnectionListener
from penstock.client.message import (
    HeadersLike,
    Msg,
    Payload,
    RawMessage,
    encode_headers,
    encode_payload,
    merge_headers,
)
from penstock.client.requests import new_nuid
from penstock.client.service_records import (
    EndpointInfo,
    EndpointSchema,
    EndpointStats,
    ServiceInfo,
    ServicePing,
    ServiceStats,
    check_group,
    check_queue,
    check_service_name,
    check_version,
    control_subject,
    encode_record,
    text_map,
)
from penstock.client.tracing import traced
from penstock.errors import ClientError, MisuseError, PenstockError, RequestTimeoutError, ServiceError

if TYPE_CHECKING:
    from penstock.client.client_session import ClientSession
    from penstock.client.subscription import Subscription

INTERNAL_ERROR = 500
DESCRIPTION_MAX = 500  # characters of an exception's text in the header of an answer

ServiceHandler = Callable[["ServiceMsg"], "Payload | Awaitable[Payload | None] | None"]
StatsHandler = Callable[[EndpointStats], Any]


class ServiceMsg(Msg):
    """A request to an endpoint of a service."""

    has_responded: bool = False
    error: ServiceError | None = None
    """The error it was answered with."""

    async def respond(self, payload: Payload = b"", *, headers: HeadersLike | None = None) -> None:
        """Answer the request. Raises MisuseError if it expects no response, and what `publish` raises."""
        await super().respond(payload, headers=headers)
        self.has_responded = True

    async def respond_error(
        self, code: int, description: str, payload: Payload = b"", *, headers: HeadersLike | None = None
    ) -> None:
        """Answer the request with an error, which is counted and which `Services.request` raises.

        description: one line for the user. Raises what `respond` raises.
        """
        error = ServiceError(code, description, data=encode_payload(payload))
        await self.respond(error.data, headers=merge_headers(headers, error.headers()))
        self.error = error


class ServiceEndpoint:
    """An endpoint of a service: its subscription, handler and counts. Made by `add_endpoint`."""

    def __init__(
        self,
        session: ClientSession,
        info: EndpointInfo,
        handler: ServiceHandler,
        *,
        concurrency: int,
        on_failed: Callable[[Exception], None],
    ) -> None:
        self._session = session
        self._handler = traced(session.tracing, handler)
        self._on_failed = on_failed
        self._num_requests = 0
        self._num_errors = 0
        self._last_error = ""
        self._processing_ns = 0
        self.info = info
        self.subscription = session.subscribe(info.subject, queue=info.queue_group, internal=True)
        self.workers = [
            session.spawn(self._serve(), f"endpoint {info.name} {number}") for number in range(concurrency)
        ]

    def stats(self) -> EndpointStats:
        """The counts so far."""
        average_ns = self._processing_ns // self._num_requests if self._num_requests else 0
        return EndpointStats(
            name=self.info.name,
            subject=self.info.subject,
            queue_group=self.info.queue_group,
            num_requests=self._num_requests,
            num_errors=self._num_errors,
            last_error=self._last_error,
            processing_time_ns=self._processing_ns,
            average_processing_time_ns=average_ns,
        )

    def reset(self) -> None:
        """Start the counts again."""
        self._num_requests = self._num_errors = self._processing_ns = 0
        self._last_error = ""

    async def _serve(self) -> None:
        subscription, session = self.subscription, self._session
        try:
            async for msg in subscription:
                await self._handle(ServiceMsg(session, msg.raw))
        except ClientError as error:  # the subscription ended: denied by the server, or the client closed
            self._on_failed(error)

    async def _handle(self, request: ServiceMsg) -> None:
        started_ns = time.perf_counter_ns()
        try:
            result = self._handler(request)
            if inspect.isawaitable(result):
                result = await result
            if result is not None and not request.has_responded and request.raw[2]:
                await request.respond(result)
            error = request.error
        except ServiceError as raised:
            error = raised
            await self._answer(request, raised)
        except Exception as raised:  # noqa: BLE001 - user code; on_error reports it
            self._session.report_callback(raised, request)
            text = " ".join(f"{type(raised).__name__}: {raised}".split())
            error = ServiceError(INTERNAL_ERROR, text[:DESCRIPTION_MAX])
            await self._answer(request, error)
        self._processing_ns += time.perf_counter_ns() - started_ns
        self._num_requests += 1
        if error is not None:
            self._num_errors += 1
            self._last_error = f"{error.code}:{error.description}"

    async def _answer(self, request: ServiceMsg, error: ServiceError) -> None:
        if request.has_responded or not request.raw[2]:
            return
        try:
            await request.respond(error.data, headers=error.headers())
        except PenstockError as failed:
            self._session.report(failed)


class EndpointAdder:
    """Adds endpoints and groups below a prefix: the common part of services and groups."""

    def __init__(self, service: Service, prefix: str, queue: str) -> None:
        self._service = service
        self._prefix = prefix
        self._queue = queue

    async def add_endpoint(
        self,
        name: str,
        handler: ServiceHandler,
        *,
        subject: str | None = None,
        queue: str | None = None,
        metadata: Mapping[str, str] | None = None,
        schema: EndpointSchema | None = None,
        concurrency: int = 1,
    ) -> ServiceEndpoint:
        """Add an endpoint; requests arrive once the server knows it (`client.flush` waits for that).

        handler: function or coroutine function. What it returns is the answer, unless it is None or the
        handler has responded. What it raises is answered as an error: a ServiceError with its code, anything
        else with code 500.
        subject: default the name; wildcards are allowed. The prefix of the group comes before it.
        queue: queue group, default that of the group or service; "" delivers each request to every instance.
        metadata, schema: shown by INFO. concurrency: number of requests handled at a time.

        Raises InvalidSubjectError, MisuseError, ConnectionClosedError, ConnectionDrainingError.
        """
        return self._add(
            name,
            handler,
            subject=subject,
            queue=queue,
            metadata=metadata,
            schema=schema,
            concurrency=concurrency,
        )

    def endpoint(self, name: str | None = None, **options: Any) -> Callable[[ServiceHandler], ServiceHandler]:
        """Decorator that adds an endpoint: `add_endpoint` with the function as its handler.

        name: default the function's. options: as for `add_endpoint`.
        """

        def add(handler: ServiceHandler) -> ServiceHandler:
            self._add(name or handler.__name__, handler, **options)
            return handler

        return add

    def group(self, name: str, *, queue: str | None = None) -> ServiceGroup:
        """A group of endpoints whose subjects begin with its name. queue: default of its endpoints.

        Raises InvalidSubjectError.
        """
        below = ".".join(part for part in (self._prefix, check_group(name)) if part)
        return ServiceGroup(self._service, below, self._queue if queue is None else check_queue(queue))

    def _add(
        self,
        name: str,
        handler: ServiceHandler,
        *,
        subject: str | None = None,
        queue: str | None = None,
        metadata: Mapping[str, str] | None = None,
        schema: EndpointSchema | None = None,
        concurrency: int = 1,
    ) -> ServiceEndpoint:
        if concurrency < 1:
            raise MisuseError(f"concurrency is {concurrency}; it must be at least 1")
        check_service_name(name, "endpoint")
        info = EndpointInfo(
            name=name,
            subject=".".join(part for part in (self._prefix, subject or name) if part),
            queue_group=self._queue if queue is None else check_queue(queue),
            metadata=text_map(metadata),
            schema=schema or msgspec.UNSET,
        )
        return self._service.attach(info, handler, concurrency)


class ServiceGroup(EndpointAdder):
    """A prefix for the subjects of endpoints. Made by `group`."""


class Service(EndpointAdder, ConnectionListener):
    """A running service, made by `Client.add_service`. Use it in `async with`, or end it with `stop`."""

    def __init__(
        self,
        session: ClientSession,
        name: str,
        version: str,
        *,
        description: str = "",
        metadata: Mapping[str, str] | None = None,
        queue: str,
        stats_handler: StatsHandler | None = None,
        prefix: str,
    ) -> None:
        super().__init__(self, "", check_queue(queue))
        self.name = check_service_name(name, "service")
        self.version = check_version(version)
        self.id = new_nuid()
        self.description = description
        self._metadata = text_map(metadata)
        self._session = session
        self._stats_handler = stats_handler
        self._endpoints: list[ServiceEndpoint] = []
        self._started = datetime.now(UTC)
        self._is_stopping = False
        self._stopped = asyncio.Event()
        self._error: Exception | None = None
        self._control: list[Subscription] = []
        session.check_open()
        session.listen(self)
        for verb, answer in (("PING", self.ping), ("INFO", self.info), ("STATS", self.stats)):
            for place in ((), (name,), (name, self.id)):
                subject = control_subject(prefix, verb, *place)
                self._control.append(session.subscribe(subject, receive=self._receiver(answer)))

    def __repr__(self) -> str:
        return f"<Service {self.name} {self.version} {self.id}>"

    def attach(self, info: EndpointInfo, handler: ServiceHandler, concurrency: int) -> ServiceEndpoint:
        """Start an endpoint; internal."""
        if self._is_stopping:
            raise MisuseError(f"service {self.name!r} is stopped; it takes no further endpoints")
        endpoint = ServiceEndpoint(
            self._session, info, handler, concurrency=concurrency, on_failed=self._on_failed
        )
        self._endpoints.append(endpoint)
        return endpoint

    # --- what it says of itself ------------------------------------------------------------------

    def ping(self) -> ServicePing:
        """Name, id, version and metadata."""
        return ServicePing(name=self.name, id=self.id, version=self.version, metadata=self._metadata)

    def info(self) -> ServiceInfo:
        """`ping` with the description and the endpoints."""
        return ServiceInfo(
            name=self.name,
            id=self.id,
            version=self.version,
            metadata=self._metadata,
            description=self.description,
            endpoints=[endpoint.info for endpoint in self._endpoints],
        )

    def stats(self) -> ServiceStats:
        """`ping` with the counts of the endpoints, and what stats_handler returns for each."""
        found = [endpoint.stats() for endpoint in self._endpoints]
        if self._stats_handler is not None:
            found = [msgspec.structs.replace(one, data=self._stats_handler(one)) for one in found]
        # Milliseconds: nats-py can not read the nanoseconds of other clients.
        started = self._started.replace(microsecond=self._started.microsecond // 1000 * 1000)
        return ServiceStats(
            name=self.name,
            id=self.id,
            version=self.version,
            metadata=self._metadata,
            endpoints=found,
            started=started,
        )

    def reset(self) -> None:
        """Start the counts of all endpoints again."""
        for endpoint in self._endpoints:
            endpoint.reset()
        self._started = datetime.now(UTC)

    def _receiver(
        self, answer: Callable[[], ServicePing | ServiceInfo | ServiceStats]
    ) -> Callable[[RawMessage], None]:
        def receive(raw: RawMessage) -> None:
            reply = raw[2]
            if not reply:
                return
            try:
                self._session.send(reply, None, None, encode_record(answer()))
            except Exception as error:  # noqa: BLE001 - stats_handler is user code; on_error reports it
                self._session.report(error)
                failed = ServiceError(INTERNAL_ERROR, f"{type(error).__name__} in the stats handler")
                with contextlib.suppress(PenstockError):
                    self._session.send(reply, None, encode_headers(failed.headers()), b"")

        return receive

    # --- ending ----------------------------------------------------------------------------------

    @property
    def is_stopped(self) -> bool:
        """Whether it has ended."""
        return self._stopped.is_set()

    async def done(self) -> Exception | None:
        """Wait until the service has ended; returns the error it ended with, None if there was none."""
        await self._stopped.wait()
        return self._error

    async def stop(self, error: Exception | None = None) -> None:
        """End the service: requests that have arrived are handled, further ones go to other instances.

        error: result of `done`. Handlers get `drain_timeout` seconds; on_error gets a RequestTimeoutError if
        they take longer, and they are cancelled. Idempotent.
        """
        if self._is_stopping:
            if asyncio.current_task() not in self._tasks():
                await self._stopped.wait()
            return
        self._is_stopping = True
        self._error = error
        session, limit = self._session, self._session.options.drain_timeout
        subscriptions = [*self._control, *(endpoint.subscription for endpoint in self._endpoints)]
        for subscription in subscriptions:
            session.send_unsub(subscription.sid, 0)
        if session.is_connected:
            with contextlib.suppress(ClientError):
                await session.flush(limit)  # then every request that was sent to this instance is here
        for subscription in subscriptions:
            session.forget(subscription)
            subscription.end()
        rest = {task for task in self._tasks() if task is not asyncio.current_task()}
        late = (await asyncio.wait(rest, timeout=limit))[1] if rest else set()
        for task in late:
            task.cancel()
        if late:
            text = f"service {self.name!r}: {len(late)} handlers did not end within {limit:g} s"
            session.report(RequestTimeoutError(text, timeout_s=limit))
        session.unlisten(self)
        self._stopped.set()

    def _tasks(self) -> set[asyncio.Task[None]]:
        return {task for endpoint in self._endpoints for task in endpoint.workers if not task.done()}

    def _on_failed(self, error: Exception) -> None:
        if not self._is_stopping:
            self._session.spawn(self.stop(error), f"stop service {self.name}")

    async def on_draining(self) -> None:
        """The client drains: end like `stop`."""
        await self.stop()

    def on_client_closed(self, error: Exception | None) -> None:
        """The client is closed, and with it the service."""
        self._is_stopping = True
        if not self._stopped.is_set():
            self._error = self._error or error
            self._stopped.set()

    async def __aenter__(self) -> Service:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
