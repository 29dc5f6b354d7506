"""The client: what users see. The work is done in `session`, `connection` and `subscription`.

    async with penstock.client.connect("nats://127.0.0.1:4222") as client:
        await client.publish("greet.joe", b"hello")
        answer = await client.request("time", timeout=1)
        async for msg in await client.subscribe("greet.*"): ...

Coroutines here never wait for the server unless they say so: publishing is as cheap as a function call.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Generator, Iterable
from types import TracebackType
from typing import Any, Never, Unpack

from penstock.client import keywords
from penstock.client.client_session import RELIEF_BYTES, ClientSession, ClientState
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
    """A connection to NATS; made by `penstock.client.connect`. Belongs to the event loop it was made in."""

    def __init__(self, servers: str | Iterable[str], options: Options) -> None:
        self._session = ClientSession(self, servers, options)

    @classmethod
    async def open(cls, servers: str | Iterable[str], options: Options) -> Client:
        """A connected client; `connect` is the way to call it."""
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
        """What it was made with."""
        return self._session.options

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop it belongs to."""
        return self._session.loop

    @property
    def state(self) -> ClientState:
        """Where the client is in its life."""
        return self._session.state

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection just now."""
        return self._session.is_connected

    @property
    def is_closed(self) -> bool:
        """Whether the client is closed, by `close` or because no server could be reached any more."""
        return self._session.state is ClientState.CLOSED

    @property
    def last_error(self) -> Exception | None:
        """The latest error that belonged to no call: why a connection was lost, a slow consumer, ..."""
        return self._session.last_error

    @property
    def server_info(self) -> ServerInfo:
        """INFO of the server connected to. Raises DisconnectedError when there is none."""
        if self._session.connection is None:
            raise DisconnectedError("there is no connection, so there is no server to tell about")
        return self._session.connection.info

    @property
    def connected_url(self) -> str | None:
        """URL of the server connected to, without credentials; None when there is none."""
        connection = self._session.connection
        return str(connection.url) if connection is not None else None

    @property
    def max_payload(self) -> int:
        """Largest message the server takes, headers and payload together, in bytes."""
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
        """Sends a message to whoever listens on `subject` just now.

        Returns once the message is in the out buffer; it waits only when the socket is slow. While
        disconnected, messages are kept up to `reconnect_buffer_bytes`. `flush` says when the server has it.

        Raises InvalidSubjectError, MaxPayloadError, ConnectionClosedError, and DisconnectedError when the
        reconnect buffer is full.
        """
        session = self._session
        session.send(
            session.subjects.get(subject) or session.encode_subject(subject),
            _encode_reply(reply) if reply else None,
            encode_headers(headers) if headers else None,
            payload if type(payload) is bytes else encode_payload(payload),
        )
        if session.out.size >= RELIEF_BYTES:
            await session.relieve()

    async def flush(self, timeout: float | None = None) -> None:
        """Returns when the server has taken everything published before; waits for a connection if need be.

        timeout: seconds, default request_timeout. Raises RequestTimeoutError, ConnectionClosedError, and
        DisconnectedError when the connection breaks meanwhile (what was under way may be lost).
        """
        await self._session.flush(self.options.request_timeout if timeout is None else timeout)

    async def rtt(self) -> float:
        """Seconds that a round trip to the server takes just now, behind everything published before."""
        started = self.loop.time()
        await self.flush()
        return self.loop.time() - started

    # --- requests ------------------------------------------------------------------------------

    def new_inbox(self) -> str:
        """A subject nobody else uses, for replies."""
        return self._session.new_inbox()

    async def request(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        timeout: float | None = None,
        headers: HeadersLike | None = None,
    ) -> Msg:
        """Publishes a request and returns the first answer. timeout: seconds, default request_timeout.

        Raises NoRespondersError at once when nobody listens on the subject, RequestTimeoutError,
        DisconnectedError when the connection breaks while waiting, PermissionsError when the server refuses
        the subject, and what `publish` raises.
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
        """Publishes one request and yields every answer: scatter and gather.

        It ends after max_messages answers, `timeout` seconds in all (default request_timeout), or `stall`
        seconds without a further answer once there was one. Raises NoRespondersError when nobody listens.
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
        """Listens on a subject; wildcards `*` and `>` are allowed.

        queue: name of a queue group, each message goes to one of its members. callback: called (or awaited)
        per message, one after the other; without it, iterate the subscription or use `next`.
        max_pending_*: bounds of the queue of messages not yet read, default the client's options.

        Raises InvalidSubjectError, ConnectionClosedError, ConnectionDrainingError, TypeError for a keyword
        that it does not have.
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

        domain: of a leaf node or hub. prefix: of the API subjects, when an account imports them under
        another one; not both. timeout: seconds, default of every JetStream request.
        """
        if domain is not None and prefix is not None:
            raise MisuseError("jetstream() takes domain or prefix, not both: a domain is a prefix")
        api_prefix = prefix or (f"$JS.{domain}.API" if domain else "$JS.API")
        return JetStream(self._session, prefix=api_prefix, timeout=timeout)

    # --- ending --------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Closes without losing anything: ends the subscriptions, lets what arrived be worked off (up to
        `drain_timeout`), sends what is still to be sent, and closes.

        Subscriptions that are iterated must be read by another task meanwhile. Closed clients stay closed.
        """
        await self._session.drain()

    async def close(self) -> None:
        """Sends what is published so far and closes. Iterators run out, waiting calls raise
        ConnectionClosedError. Closing twice does nothing."""
        await self._session.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


def _encode_reply(reply: str) -> bytes:
    # Replies are inboxes, different each time: checked for what would break the frame, not cached.
    if " " in reply or "\r" in reply or "\n" in reply or "\t" in reply:
        raise InvalidSubjectError(f"reply subject {reply!r} contains whitespace")
    return reply.encode("utf-8", "surrogateescape")


class Connecting:
    """What `connect` returns: await it for a client to be closed by hand, or use it in `async with`."""

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
    """Connects to NATS.

        client = await penstock.client.connect("nats://127.0.0.1:4222")
        async with penstock.client.connect(["nats://a:4222", "nats://b:4222"], name="orders") as client: ...

    servers: one URL, several in one text separated by commas, or a list. options: see `Options`.

    Raises MisuseError for a bad URL or option, TypeError for an unknown option; when awaited, NoServersError
    when no server can be reached and AuthorizationError when they all refuse the credentials.
    """
    known = ConnectOptions.__annotations__
    unknown = [name for name in options if name not in known]
    if unknown:
        raise keywords.unknown_keyword("connect", unknown, known, keywords.CONNECT)
    return Connecting(servers, Options(**options))
