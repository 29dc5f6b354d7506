"""The public client API. `client_session`, `connection` and `subscription` implement it.

    async with penstock.client.connect("nats://127.0.0.1:4222") as client:
        await client.publish("greet.joe", b"hello")
        answer = await client.request("time", timeout=1)
        async for msg in await client.subscribe("greet.*"): ...

Coroutines do not wait for the server unless documented: publishing costs about as much as a function call.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Generator, Iterable
from types import TracebackType
from typing import Any, Never, Unpack

from penstock.client import keywords
from penstock.client.client_session import FLUSH_BYTES, ClientSession, ClientState
from penstock.client.info import ServerInfo
from penstock.client.jetstream import JetStream
from penstock.client.message import HeadersLike, Msg, Payload, encode_headers, encode_payload
from penstock.client.options import DEFAULT_SERVER, ConnectOptions, Options
from penstock.client.requests import is_no_responders
from penstock.client.subscription import MessageCallback, Subscription
from penstock.errors import (
    DisconnectedError,
    InvalidSubjectError,
    MisuseError,
    NoRespondersError,
    RequestTimeoutError,
)


class Client:
    """A NATS client, created by `penstock.client.connect`. It belongs to the event loop it was created in."""

    def __init__(self, servers: str | Iterable[str], options: Options) -> None:
        self._session = ClientSession(self, servers, options)

    @classmethod
    async def open(cls, servers: str | Iterable[str], options: Options) -> Client:
        """Connect and return the client. Users call `connect`."""
        client = cls(servers, options)
        await client._session.connect()
        return client

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
        session.send(
            session.subjects.get(subject) or session.encode_subject(subject),
            _encode_reply(reply) if reply else None,
            encode_headers(headers) if headers else None,
            payload if type(payload) is bytes else encode_payload(payload),
        )
        if session.out.size >= FLUSH_BYTES:
            await session.flush_output()

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until the server has received everything published before, or for a connection first.

        timeout: seconds, default request_timeout. Raises RequestTimeoutError, ConnectionClosedError, and
        DisconnectedError if the connection breaks meanwhile (messages in flight may be lost).
        """
        await self._session.flush(self.options.request_timeout if timeout is None else timeout)

    async def rtt(self) -> float:
        """Round-trip time to the server in seconds, queued after everything published before."""
        started = self.loop.time()
        await self.flush()
        return self.loop.time() - started

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
        raw = await session.request(
            session.encode_subject(subject), encode_headers(headers), encode_payload(payload), timeout
        )
        return Msg(session, raw)

    async def request_many(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        max_messages: int | None = None,
        timeout: float | None = None,
        stall: float | None = None,
        headers: HeadersLike | None = None,
    ) -> AsyncIterator[Msg]:
        """Publish one request and yield every answer (scatter-gather).

        Ends after max_messages answers, after `timeout` seconds in total (default request_timeout), or
        `stall` seconds after the latest answer. Raises NoRespondersError if the subject has no subscriber.
        """
        end = self.loop.time() + (self.options.request_timeout if timeout is None else timeout)
        inbox = self.new_inbox()
        subscription = await self.subscribe(inbox)
        try:
            await self.publish(subject, payload, reply=inbox, headers=headers)
            count = 0
            while max_messages is None or count < max_messages:
                wait = end - self.loop.time()
                if count and stall is not None:
                    wait = min(wait, stall)
                try:
                    msg = await subscription.next(max(wait, 0))
                except RequestTimeoutError:
                    return
                if not count and is_no_responders(msg.raw):
                    raise NoRespondersError(subject)
                count += 1
                yield msg
        finally:
            await subscription.unsubscribe()

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

    async def drain(self) -> None:
        """Close gracefully: unsubscribe, let received messages be processed (up to `drain_timeout`), flush
        and close.

        Iterated subscriptions must be read by another task meanwhile. No effect on a closed client.
        """
        await self._session.drain()

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
    NoServersError if no server is reachable and AuthorizationError if all reject the credentials.
    """
    known = ConnectOptions.__annotations__
    unknown = [name for name in options if name not in known]
    if unknown:
        raise keywords.unknown_keyword("connect", unknown, known, keywords.CONNECT)
    return Connecting(servers, Options(**options))
