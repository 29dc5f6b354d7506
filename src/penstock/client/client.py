"""The public client API. `client_session`, `connection` and `subscription` implement it.

    async with penstock.client.connect("nats://127.0.0.1:4222") as client:
        await client.publish("greet.joe", b"hello")
        answer = await client.request("time", timeout=1)
        async for msg in await client.subscribe("greet.*"): ...

Coroutines do not wait for the server unless documented: publishing costs about as much as a function call.
"""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import AsyncIterator, Generator, Iterable, Mapping
from itertools import islice
from types import TracebackType
from typing import Any, ClassVar, Never, Self, Unpack

from penstock.client import keywords
from penstock.client.client_session import FLUSH_BYTES, ClientSession, ClientState, ClientStats
from penstock.client.info import ServerInfo
from penstock.client.jetstream import JetStream
from penstock.client.message import HeadersLike, Msg, Payload, encode_headers, encode_payload
from penstock.client.options import DEFAULT_SERVER, ConnectOptions, Options
from penstock.client.request_many import Sentinel, gather, is_empty
from penstock.client.service_endpoints import Service, StatsHandler
from penstock.client.service_records import DEFAULT_PREFIX, DEFAULT_QUEUE
from penstock.client.services import Services
from penstock.client.subscription import MessageCallback, Subscription
from penstock.errors import (
    DisconnectedError,
    InvalidSubjectError,
    MisuseError,
    RequestTimeoutError,
)
from penstock.kernels.wire.output import encode_known_pub, encode_pubs

CHUNK_PAYLOADS = 1024  # that publish_many takes from an iterable at once


class Client(keywords.NatsPyNames):
    """A NATS client, created by `penstock.client.connect`. It belongs to the event loop it was created in."""

    nats_py_names = keywords.CLIENT
    _session_type: ClassVar[type[ClientSession]] = ClientSession

    def __init__(self, servers: str | Iterable[str], options: Options) -> None:
        self._session = self._session_type(self, servers, options)

    @classmethod
    async def open(cls, servers: str | Iterable[str], options: Options) -> Self:
        """Connect and return the client; internal. Users call `connect`."""
        client = cls(servers, options)
        await client._connect()
        return client

    async def _connect(self) -> None:
        try:
            await self._session.connect()
        except BaseException as error:
            # Cancelled, or an error of the program: what the caller never got needs no close().
            self._session.finish(error if isinstance(error, Exception) else None)
            raise

    def __del__(self) -> None:
        session = getattr(self, "_session", None)  # absent when __init__ raised
        if session is not None and session.state is not ClientState.CLOSED:
            warnings.warn(
                f"unclosed {self!r}: await client.close(), or use `async with connect(...)`",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )

    def __repr__(self) -> str:
        return f"<Client {self.state.value} {self.connected_url or ''}>"

    @property
    def options(self) -> Options:
        """The options it was created with."""
        return self._session.options

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop it belongs to."""
        return self._session.loop

    @property
    def state(self) -> ClientState:
        """The client's life-cycle state."""
        return self._session.state

    @property
    def is_connected(self) -> bool:
        """Whether a connection is currently established."""
        return self._session.is_connected

    @property
    def is_closed(self) -> bool:
        """Whether the client is closed, by `close` or because reconnecting failed."""
        return self._session.state is ClientState.CLOSED

    @property
    def last_error(self) -> Exception | None:
        """The latest asynchronous error: why a connection was lost, a slow consumer, ..."""
        return self._session.last_error

    @property
    def server_info(self) -> ServerInfo:
        """INFO of the connected server. Raises DisconnectedError while disconnected."""
        if self._session.connection is None:
            raise DisconnectedError("there is no connection, so there is no server to tell about")
        return self._session.connection.info

    @property
    def connected_url(self) -> str | None:
        """URL of the connected server, without credentials; None while disconnected."""
        connection = self._session.connection
        return str(connection.url) if connection is not None else None

    @property
    def servers(self) -> list[str]:
        """URLs of all servers in the pool, in the order they are tried, without credentials."""
        return [str(server.url) for server in self._session.connector.pool.servers]

    @property
    def discovered_servers(self) -> list[str]:
        """Those of `servers` that the cluster announced."""
        return [str(server.url) for server in self._session.connector.pool.servers if server.discovered]

    def add_servers(self, *servers: str) -> None:
        """Add servers to the pool. Raises MisuseError for an invalid URL, ConnectionClosedError."""
        self._session.check_open()
        self._session.connector.pool.add(servers)

    def set_servers(self, servers: str | Iterable[str]) -> None:
        """Replace the pool, discovered servers included. The current connection stays; the next one is to one
        of these servers.

        Raises MisuseError for an invalid URL or an empty list, ConnectionClosedError.
        """
        self._session.check_open()
        self._session.connector.pool.replace(servers)

    @property
    def stats(self) -> ClientStats:
        """Messages and bytes in both directions, reconnects and errors, up to now."""
        return self._session.stats()

    @property
    def pending_bytes(self) -> int:
        """Bytes in the out buffer: published and not yet written to the socket."""
        return self._session.out.size

    @property
    def max_payload(self) -> int:
        """Largest message the server accepts, headers plus payload, in bytes."""
        return self._session.max_payload

    # --- publishing ----------------------------------------------------------------------------

    async def publish(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        reply: str = "",
        headers: HeadersLike | None = None,
    ) -> None:
        """Publish a message to the current subscribers of `subject`.

        Returns once the message is in the out buffer, and waits only if the socket is slow. While
        disconnected, messages are buffered up to `reconnect_buffer_bytes`. Use `flush` to wait until the
        server has received them.

        Raises InvalidSubjectError, MaxPayloadError, ConnectionClosedError, and DisconnectedError if the
        reconnect buffer is full.
        """
        session = self._session
        buffered = -1
        if not reply and not headers:
            # What the rest does, in one call: the kernel leaves to it what is rare.
            buffered = encode_known_pub(session.out, session.subjects, subject, payload, session.max_buffered)
        if buffered < 0:
            if session.tracing is not None:
                headers = session.tracing.inject(headers)
            encoded = session.encode_subject(subject)
            reply_bytes = _encode_reply(reply) if reply else None
            header = encode_headers(headers) if headers else None
            is_large = session.send(encoded, reply_bytes, header, encode_payload(payload))
            buffered = FLUSH_BYTES if is_large else session.out.size
        elif not session.flush_scheduled:
            session.schedule_flush()
        if buffered >= FLUSH_BYTES:
            await session.flush_output()

    async def publish_many(
        self,
        subject: str,
        payloads: Iterable[Payload],
        *,
        reply: str = "",
        headers: HeadersLike | None = None,
    ) -> int:
        """Publish a message for each of `payloads`, and return how many there were.

        Does what `publish` does for each, with the same reply subject and headers, at a fraction of its cost:
        many payloads (bytes) are encoded by one call of compiled code. payloads may be a generator; it is
        read as the socket takes what came before.

        Raises what `publish` raises; payloads before the one concerned are published then. When `payloads`
        itself raises, up to 1,024 that it gave last are not published. Raises MisuseError for a single
        payload.
        """
        if isinstance(payloads, str | bytes | bytearray | memoryview):
            kind = type(payloads).__name__
            raise MisuseError(f"publish_many takes an iterable of payloads, not one {kind}; use publish")
        session = self._session
        if session.tracing is not None:
            headers = session.tracing.inject(headers)
        encoded = session.encode_subject(subject)
        reply_bytes = _encode_reply(reply) if reply else None
        header = encode_headers(headers) if headers else None
        out = session.out
        published = 0
        remaining = iter(payloads)
        while chunk := list(islice(remaining, CHUNK_PAYLOADS)):
            at = 0
            while at < len(chunk):
                if session.connection is not None:
                    at = encode_pubs(
                        out, encoded, reply_bytes, header, chunk, at, session.max_payload, FLUSH_BYTES
                    )
                    if not session.flush_scheduled:
                        session.schedule_flush()
                if at < len(chunk) and (out.size < FLUSH_BYTES or session.connection is None):
                    # Text, what is too large, and all without a connection: `send` says what is wrong.
                    session.send(encoded, reply_bytes, header, encode_payload(chunk[at]))
                    at += 1
                if out.size >= FLUSH_BYTES:
                    await session.flush_output()
            published += len(chunk)
        return published

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until the server has received everything published before, or for a connection first.

        timeout: seconds, default request_timeout. Raises RequestTimeoutError, ConnectionClosedError, and
        DisconnectedError if the connection breaks meanwhile (messages in flight may be lost).
        """
        await self._session.flush(self.options.request_timeout if timeout is None else timeout)

    async def rtt(self, timeout: float | None = None) -> float:
        """Round-trip time to the server in seconds, queued after everything published before.

        timeout: as for `flush`, which says what it raises.
        """
        started = time.perf_counter()  # uvloop's own clock has milliseconds
        await self.flush(timeout)
        return time.perf_counter() - started

    # --- the connection ------------------------------------------------------------------------

    async def wait_connected(self, timeout: float | None = None) -> None:
        """Wait until a connection is established, at once if there is one. timeout: seconds; None waits
        indefinitely. Raises RequestTimeoutError, ConnectionClosedError."""
        try:
            async with asyncio.timeout(timeout):
                await self._session.until_connected()
        except TimeoutError:
            text = f"no connection within {timeout:g} s; the latest error: {self.last_error}"
            raise RequestTimeoutError(text, timeout_s=timeout) from None

    async def force_reconnect(self) -> None:
        """Leave the current server and connect to the next one, for example after credentials changed.

        Sends what was published before, then proceeds as after a lost connection: requests in flight fail,
        subscriptions and consumers continue on the new one. Returns at once; `wait_connected` waits. While
        disconnected, ends the pause before the next attempt.

        Raises ConnectionClosedError, ConnectionDrainingError, MisuseError if `reconnect` is False.
        """
        self._session.force_reconnect()

    # --- requests ------------------------------------------------------------------------------

    def new_inbox(self) -> str:
        """A unique subject for replies."""
        return self._session.new_inbox()

    async def request(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        timeout: float | None = None,
        headers: HeadersLike | None = None,
    ) -> Msg:
        """Publish a request and return the first answer. timeout: seconds, default request_timeout.

        Raises NoRespondersError at once if the subject has no subscriber, RequestTimeoutError,
        DisconnectedError if the connection breaks while waiting, PermissionsError if the server denies the
        subject, and what `publish` raises.
        """
        session = self._session
        if session.tracing is not None:
            headers = session.tracing.inject(headers)
        raw = await session.request(
            session.encode_subject(subject), encode_headers(headers), encode_payload(payload), timeout
        )
        return Msg(session, raw)

    def request_many(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        max_messages: int | None = None,
        timeout: float | None = None,
        stall: float | None = None,
        sentinel: Sentinel | bool = False,
        headers: HeadersLike | None = None,
    ) -> AsyncIterator[Msg]:
        """Publish one request and yield every answer (scatter-gather, ADR-47).

        Ends after max_messages answers, after `timeout` seconds in total (default request_timeout), `stall`
        seconds after the latest answer, or with the sentinel, whichever is first. The first answer may take
        the whole timeout; a stall of 0, or not below the timeout, is none.
        sentinel: function that says whether an answer is the sentinel, which is not yielded; True: the first
        answer without a payload.

        Raises NoRespondersError if the subject has no subscriber, DisconnectedError if the connection breaks
        meanwhile, PermissionsError, and what `publish` raises.
        """
        session = self._session
        session.check_open()
        if session.tracing is not None:
            headers = session.tracing.inject(headers)
        limit = self.options.request_timeout if timeout is None else timeout
        return gather(
            session,
            subject,
            encode_headers(headers),
            encode_payload(payload),
            max_messages=max_messages,
            timeout_s=limit,
            stall_s=stall if stall is not None and 0 < stall < limit else None,
            sentinel=is_empty if sentinel is True else sentinel or None,
        )

    # --- services ------------------------------------------------------------------------------

    async def add_service(
        self,
        name: str,
        version: str,
        *,
        description: str = "",
        metadata: Mapping[str, str] | None = None,
        queue: str = DEFAULT_QUEUE,
        stats_handler: StatsHandler | None = None,
        prefix: str = DEFAULT_PREFIX,
    ) -> Service:
        """Start a service (ADR-32), to which endpoints are added: see `Service`.

            async with await client.add_service("orders", "1.0.0") as orders: ...

        name: shared by all instances; letters, digits, dash, underscore. version: a semantic version.
        description, metadata: shown by INFO. queue: queue group of its endpoints, "" for none.
        stats_handler: gets an EndpointStats, returns its `data` (anything that JSON can hold).
        prefix: of the subjects of PING, INFO and STATS.

        It can be discovered once the server knows it, as with `subscribe`. Raises InvalidSubjectError,
        MisuseError, ConnectionClosedError, ConnectionDrainingError.
        """
        return Service(
            self._session,
            name,
            version,
            description=description,
            metadata=metadata,
            queue=queue,
            stats_handler=stats_handler,
            prefix=prefix,
        )

    def services(self, *, prefix: str = DEFAULT_PREFIX) -> Services:
        """Discover services and send requests to them: see `Services`."""
        return Services(self, prefix)

    # --- subscriptions -------------------------------------------------------------------------

    async def subscribe(
        self,
        subject: str,
        *,
        queue: str = "",
        callback: MessageCallback | None = None,
        max_pending_messages: int | None = None,
        max_pending_bytes: int | None = None,
        **unknown: Never,
    ) -> Subscription:
        """Subscribe to a subject; wildcards `*` and `>` are allowed.

        queue: queue group; each message goes to one member. callback: function or coroutine function, called
        for one message at a time; without it, iterate the subscription or use `next`.
        max_pending_*: limits of the queue of unread messages, default the client's options.

        Raises InvalidSubjectError, ConnectionClosedError, ConnectionDrainingError, TypeError for an unknown
        keyword.
        """
        if unknown:
            known = ("queue", "callback", "max_pending_messages", "max_pending_bytes")
            raise keywords.unknown_keyword("subscribe", unknown, known, keywords.SUBSCRIBE)
        subscription = self._session.subscribe(
            subject,
            queue=queue,
            max_pending_messages=max_pending_messages,
            max_pending_bytes=max_pending_bytes,
        )
        if callback is not None:
            subscription.start_callback(callback)
        return subscription

    # --- JetStream -----------------------------------------------------------------------------

    def jetstream(
        self, *, domain: str | None = None, prefix: str | None = None, timeout: float = 5.0
    ) -> JetStream:
        """The JetStream context: streams, consumers and acknowledged publishes.

        domain: JetStream domain. prefix: API subject prefix, if the account imports the API under another
        one. At most one of them. timeout: seconds, default for every JetStream request. Raises MisuseError.
        """
        if domain is not None and prefix is not None:
            raise MisuseError("jetstream() takes domain or prefix, not both: a domain is a prefix")
        api_prefix = prefix or (f"$JS.{domain}.API" if domain else "$JS.API")
        return JetStream(self._session, prefix=api_prefix, timeout=timeout)

    # --- ending --------------------------------------------------------------------------------

    async def drain(self, timeout: float | None = None) -> None:
        """Close gracefully: unsubscribe, let received messages be processed, flush and close.

        timeout: seconds for that, default `drain_timeout`; on_error gets a RequestTimeoutError after it.
        Iterated subscriptions must be read by another task meanwhile. No effect on a closed client.
        """
        await self._session.drain(timeout)

    async def close(self) -> None:
        """Flush published messages and close. Iterators end; waiting calls raise ConnectionClosedError.
        Idempotent."""
        await self._session.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


def _encode_reply(reply: str) -> bytes:
    # Reply subjects are unique inboxes, so caching is useless. Check only what would break the frame.
    if " " in reply or "\r" in reply or "\n" in reply or "\t" in reply:
        raise InvalidSubjectError(f"reply subject {reply!r} contains whitespace")
    return reply.encode("utf-8", "surrogateescape")


class Connecting:
    """Result of `connect`: await it to get a client, or use it in `async with`, which closes the client."""

    def __init__(self, servers: str | Iterable[str], options: Options) -> None:
        self._servers = servers
        self._options = options
        self._client: Client | None = None
        self._is_used = False

    def __getattr__(self, name: str) -> Never:
        if hasattr(Client, name):
            text = f"connect() was not awaited, so there is no {name!r} yet: client = await connect(...)"
        else:
            text = f"{type(self).__name__!r} object has no attribute {name!r}"
        raise AttributeError(text)

    def __del__(self) -> None:
        if not self.__dict__.get("_is_used", True):
            text = "connect() was never awaited: client = await connect(...), or async with connect(...)"
            warnings.warn(text, RuntimeWarning, stacklevel=2)

    async def _open(self) -> Client:
        return await Client.open(self._servers, self._options)

    def __await__(self) -> Generator[Any, None, Client]:
        self._is_used = True
        return self._open().__await__()

    async def __aenter__(self) -> Client:
        self._is_used = True
        self._client = await self._open()
        return self._client

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._client is not None:
            await self._client.close()


def connect(servers: str | Iterable[str] = DEFAULT_SERVER, **options: Unpack[ConnectOptions]) -> Connecting:
    """Connect to NATS.

        client = await penstock.client.connect("nats://127.0.0.1:4222")
        async with penstock.client.connect(["nats://a:4222", "nats://b:4222"], name="orders") as client: ...

    servers: a URL, several separated by commas, or a list. options: see `Options`.

    Raises MisuseError for an invalid URL or option, TypeError for an unknown option. When awaited, raises
    NoServersError if no server is reachable (not with `retry_on_failed_connect`) and AuthorizationError if
    all reject the credentials.
    """
    known = ConnectOptions.__annotations__
    unknown = [name for name in options if name not in known]
    if unknown:
        raise keywords.unknown_keyword("connect", unknown, known, keywords.CONNECT)
    return Connecting(servers, Options(**options))
