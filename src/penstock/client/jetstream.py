"""The JetStream context: acknowledged publishes, streams, and shortcuts to consumers (ADR-37).

    js = client.jetstream()
    stream = await js.create_stream("ORDERS", subjects=["orders.>"])
    ack = await js.publish("orders.new", b"...", msg_id="4711")

It holds no state besides its API prefix (and a few subjects it looked up): any number may be made, on one
connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

from penstock.client.atomic import AtomicBatch
from penstock.client.config import (
    ConsumerConfig,
    StreamConfig,
    StreamInfo,
    make_config,
    stream_info,
    to_wire,
)
from penstock.client.fastingest import FLOW, OUTSTANDING_ACKS, FastIngest
from penstock.client.fastpublisher import FastPublisher
from penstock.client.message import Payload, encode_payload
from penstock.client.publisher import Publisher
from penstock.client.publishing import (
    NO_STREAM_RETRIES,
    NO_STREAM_RETRY_WAIT_S,
    PublishOptions,
    encode_publish_headers,
    read_ack,
)
from penstock.client.schedules import for_later
from penstock.client.stream import Stream
from penstock.errors import (
    ClientError,
    DisconnectedError,
    JetStreamApiError,
    JetStreamNotEnabledError,
    MisuseError,
    NoRespondersError,
    NoStreamError,
    PublishNotAckedError,
    RequestTimeoutError,
    StreamNotFoundError,
)
from penstock.protocol.api import (
    AccountInfo,
    AccountInfoResponse,
    PubAck,
    StreamCreateResponse,
    StreamInfoResponse,
    StreamListResponse,
    StreamNamesRequest,
    StreamNamesResponse,
    StreamUpdateResponse,
    SuccessResponse,
    decode_response,
    encode,
)
from penstock.protocol.subjects import check_name

if TYPE_CHECKING:
    from penstock.client.client_session import ClientSession
    from penstock.client.consumer import Consumer

T = TypeVar("T")


class JetStream:
    """Made by `Client.jetstream`.

    prefix: of the API subjects. timeout: seconds, for every request that names no other.
    """

    def __init__(self, session: ClientSession, *, prefix: str, timeout: float) -> None:
        self.session = session
        self.prefix = prefix.rstrip(".")
        self.timeout = timeout
        self._areas: dict[str, str] = {}  # where messages for later wait, by target

    def __repr__(self) -> str:
        return f"<JetStream {self.prefix!r}>"

    async def call(
        self, kind: type[T], endpoint: str, request: object = None, *, timeout: float | None = None
    ) -> T:
        """One API request: `call(StreamInfoResponse, "STREAM.INFO.ORDERS")`; the way to endpoints that have
        no method here.

        Raises the JetStreamApiError that the server answers, JetStreamNotEnabledError when nobody answers,
        RequestTimeoutError, DisconnectedError.
        """
        subject = f"{self.prefix}.{endpoint}"
        limit = self.timeout if timeout is None else timeout
        body = b"" if request is None else encode(request)
        try:
            raw = await self.session.request(subject.encode(), b"", body, limit)
        except NoRespondersError as error:
            text = "nobody answers JetStream requests: the server or this account has JetStream disabled"
            raise JetStreamNotEnabledError(503, 10039, text, request=subject) from error
        return decode_response(kind, raw[4], request=subject)

    # --- publishing ----------------------------------------------------------------------------

    async def publish(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        timeout: float | None = None,
        delay: timedelta | float | None = None,
        at: datetime | None = None,
        **options: Unpack[PublishOptions],
    ) -> PubAck:
        """Publishes to the stream that takes `subject` and returns its ack: the message is stored.

        options: msg_id, expected_*, ttl, headers; see `PublishOptions`. Without a stream it tries twice more,
        a quarter second apart (ADR-22).

        delay, at: the stream stores the message under `subject` that much later (seconds), or then; a time
        that passed is now. The ack is that of the message in waiting, which `Stream.schedules` lists and
        `Stream.cancel_schedule` takes back. The stream must have allow_msg_schedules, and a subject for what
        waits: `_schedules.>` or the like, or a `>` that takes `subject`. ttl counts from then on.

        Raises NoStreamError, JetStreamNotEnabledError, the JetStreamApiError that the stream answers
        (WrongLastSequenceError, ...), and PublishNotAckedError when no ack came: the message may be stored or
        not, and with a msg_id it can be published again safely.
        """
        if delay is not None or at is not None:
            try:
                waiting, later = await for_later(self, self._areas, subject, options, delay, at)
                return await self.publish(waiting, payload, timeout=timeout, **later)
            except NoStreamError as error:
                self._areas.pop(subject, None)
                raise NoStreamError(subject) from error
        session = self.session
        limit = self.timeout if timeout is None else timeout
        encoded = session.encode_subject(subject)
        header = encode_publish_headers(options)
        body = encode_payload(payload)
        tries_left = NO_STREAM_RETRIES
        while True:
            try:
                raw = await session.request(encoded, header, body, limit)
            except NoRespondersError as error:
                if not tries_left:
                    await self._check_enabled()
                    raise NoStreamError(subject) from error
                tries_left -= 1
                await asyncio.sleep(NO_STREAM_RETRY_WAIT_S)
            except (RequestTimeoutError, DisconnectedError) as error:
                text = f"no ack for the publish on {subject!r}: {error}; it may be stored nevertheless"
                raise PublishNotAckedError(text) from error
            else:
                return read_ack(raw, subject)

    @overload
    def publisher(
        self, window: int = 4000, *, timeout: float | None = None, fast: Literal[False] = False
    ) -> Publisher: ...

    @overload
    def publisher(
        self, window: int = 4000, *, timeout: float | None = None, fast: Literal[True]
    ) -> FastPublisher: ...

    def publisher(
        self, window: int = 4000, *, timeout: float | None = None, fast: bool = False
    ) -> Publisher | FastPublisher:
        """A windowed publisher, for rates beyond one round trip per message; see `Publisher`.

        window: publishes that may wait for their ack. timeout: seconds for each ack, or without an answer.
        fast: publish through fast ingest (the stream has `allow_batched`), which costs the server less, and
        whose acks name no stream sequence; see `FastPublisher`.
        """
        seconds = self.timeout if timeout is None else timeout
        kind = FastPublisher if fast else Publisher
        return kind(self.session, window=window, timeout=seconds)

    def atomic_batch(
        self,
        *,
        ack_first: bool = True,
        ack_every: int = 0,
        timeout: float | None = None,
        batch_id: str | None = None,
    ) -> AtomicBatch:
        """A batch that is stored as a whole or not at all (the stream has `allow_atomic`); see `AtomicBatch`.

        ack_first, ack_every: which messages wait for the server. timeout: seconds for each answer.
        batch_id: at most 64 characters; an unused one by default.
        """
        return AtomicBatch(
            self.session,
            ack_first=ack_first,
            ack_every=ack_every,
            timeout=self.timeout if timeout is None else timeout,
            batch_id=batch_id,
        )

    def fast_ingest(
        self,
        subject: str | None = None,
        *,
        gap: Literal["fail", "ok"] = "fail",
        flow: int = FLOW,
        outstanding_acks: int = OUTSTANDING_ACKS,
        timeout: float | None = None,
        batch_id: str | None = None,
        on_gap: Callable[[int, int], object] | None = None,
        on_error: Callable[[int, JetStreamApiError], object] | None = None,
    ) -> FastIngest:
        """A batch of any size with flow control by the server (the stream has `allow_batched`); see
        `FastIngest`.

        subject: of messages that name none. gap: does a lost or refused message end the batch? flow: the most
        messages per ack. outstanding_acks: 1 to 3 acks that may be missing. timeout: seconds without an
        answer. on_gap(last_seq, seq), on_error(batch sequence, error): what was lost or refused, with
        gap="ok".
        """
        return FastIngest(
            self.session,
            subject,
            gap=gap,
            flow=flow,
            outstanding_acks=outstanding_acks,
            timeout=self.timeout if timeout is None else timeout,
            batch_id=batch_id,
            on_gap=on_gap,
            on_error=on_error,
        )

    # --- streams -------------------------------------------------------------------------------

    async def create_stream(self, config: StreamConfig | str | None = None, /, **settings: Any) -> Stream:
        """Creates a stream, or returns the one there is with the same configuration.

        config: a StreamConfig, or the name. settings: fields of StreamConfig. Unless set, `allow_direct` is
        on, as with the official clients: messages can be read without a consumer, from any replica.

        Raises AlreadyExistsError when the name is taken with another configuration.
        """
        made = _stream_config(config, settings)
        endpoint = f"STREAM.CREATE.{check_name(made.name, 'stream')}"
        return Stream(self, stream_info(await self.call(StreamCreateResponse, endpoint, to_wire(made))))

    async def update_stream(self, config: StreamConfig | str | None = None, /, **settings: Any) -> Stream:
        """Changes a stream. With a name, the settings go over its present configuration; a StreamConfig
        replaces it as a whole. Raises StreamNotFoundError, JetStreamApiError for what may not be changed.
        """
        if isinstance(config, str):
            info = await self.stream_info(config)
            made = make_config(StreamConfig, settings, info.config)
        else:
            made = _stream_config(config, settings)
        endpoint = f"STREAM.UPDATE.{check_name(made.name, 'stream')}"
        return Stream(self, stream_info(await self.call(StreamUpdateResponse, endpoint, to_wire(made))))

    async def create_or_update_stream(
        self, config: StreamConfig | str | None = None, /, **settings: Any
    ) -> Stream:
        """Updates the stream when it exists, else creates it."""
        try:
            return await self.update_stream(config, **settings)
        except StreamNotFoundError:
            return await self.create_stream(config, **settings)

    async def stream(self, name: str) -> Stream:
        """A handle of a stream, its info fetched. Raises StreamNotFoundError."""
        return Stream(self, await self.stream_info(name))

    async def stream_info(self, name: str) -> StreamInfo:
        """Configuration and state of a stream. Raises StreamNotFoundError."""
        endpoint = f"STREAM.INFO.{check_name(name, 'stream')}"
        return stream_info(await self.call(StreamInfoResponse, endpoint))

    async def delete_stream(self, name: str) -> None:
        """Deletes a stream with its messages and consumers. Raises StreamNotFoundError."""
        await self.call(SuccessResponse, f"STREAM.DELETE.{check_name(name, 'stream')}")

    async def streams(self, subject: str = "") -> AsyncIterator[StreamInfo]:
        """Every stream's info, page by page. subject: only streams whose subjects overlap it."""
        offset = 0
        while True:
            request = StreamNamesRequest(offset=offset, subject=subject)
            page = await self.call(StreamListResponse, "STREAM.LIST", request)
            for info in page.streams:
                yield stream_info(info)
            offset += len(page.streams)
            if not page.streams or offset >= page.total:
                return

    async def stream_names(self, subject: str = "") -> list[str]:
        """Names of all streams. subject: only of those whose subjects overlap it."""
        names: list[str] = []
        while True:
            request = StreamNamesRequest(offset=len(names), subject=subject)
            page = await self.call(StreamNamesResponse, "STREAM.NAMES", request)
            names += page.streams
            if not page.streams or len(names) >= page.total:
                return names

    async def _check_enabled(self) -> None:
        """Raises JetStreamNotEnabledError when no server answers for JetStream.

        A publish that nobody took has the same 503 whether a stream or all of JetStream is missing. What a
        client may not ask, or what is not answered in time, says nothing about it.
        """
        try:
            await self.account_info()
        except JetStreamNotEnabledError:
            raise
        except (JetStreamApiError, ClientError):
            return

    async def account_info(self) -> AccountInfo:
        """What the account uses of JetStream, and what it may use."""
        return await self.call(AccountInfoResponse, "INFO")

    # --- consumers, without asking for the stream first -------------------------------------------

    def _bare_stream(self, name: str) -> Stream:
        return Stream(self, None, name=check_name(name, "stream"))

    async def create_consumer(
        self, stream: str, config: ConsumerConfig | str | None = None, /, **settings: Any
    ) -> Consumer:
        """`Stream.create_consumer` of the named stream."""
        return await self._bare_stream(stream).create_consumer(config, **settings)

    async def update_consumer(
        self, stream: str, config: ConsumerConfig | str | None = None, /, **settings: Any
    ) -> Consumer:
        """`Stream.update_consumer` of the named stream."""
        return await self._bare_stream(stream).update_consumer(config, **settings)

    async def create_or_update_consumer(
        self, stream: str, config: ConsumerConfig | str | None = None, /, **settings: Any
    ) -> Consumer:
        """`Stream.create_or_update_consumer` of the named stream."""
        return await self._bare_stream(stream).create_or_update_consumer(config, **settings)

    async def consumer(self, stream: str, name: str) -> Consumer:
        """`Stream.consumer` of the named stream."""
        return await self._bare_stream(stream).consumer(name)

    async def delete_consumer(self, stream: str, name: str) -> None:
        """`Stream.delete_consumer` of the named stream."""
        await self._bare_stream(stream).delete_consumer(name)


def _stream_config(config: StreamConfig | str | None, settings: dict[str, Any]) -> StreamConfig:
    if isinstance(config, str):
        settings = {"name": config, **settings}
        config = None
    if config is not None and not settings:
        return config
    made = make_config(StreamConfig, settings, config)
    if not made.name:
        raise MisuseError('a stream needs a name: create_stream("ORDERS", subjects=["orders.>"])')
    return made
