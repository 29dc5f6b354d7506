"""The JetStream context: acknowledged publishes, streams, and shortcuts to consumers (ADR-37).

    js = client.jetstream()
    stream = await js.create_stream("ORDERS", subjects=["orders.>"])
    ack = await js.publish("orders.new", b"...", msg_id="4711")

It holds no state besides its API prefix and a cache of schedule subjects, so several may share a connection.
"""

from __future__ import annotations

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
from penstock.client.conflicts import explained
from penstock.client.fastingest import FLOW, OUTSTANDING_ACKS, FastIngest
from penstock.client.fastpublisher import FastPublisher
from penstock.client.keyvalue.key_value_manager import KeyValueManager
from penstock.client.message import Payload, encode_payload
from penstock.client.objectstore.object_store_manager import ObjectStoreManager
from penstock.client.publisher import Publisher
from penstock.client.publishing import (
    NO_STREAM_RETRIES,
    NO_STREAM_RETRY_WAIT_S,
    UNAVAILABLE_RETRY_WAIT_S,
    PublishOptions,
    encode_publish_headers,
    read_ack,
)
from penstock.client.push_manager import PushManager
from penstock.client.schedules import delayed_publish
from penstock.client.settings import ConsumerSettings, StreamSettings
from penstock.client.stream import Stream
from penstock.client.tracing import with_context
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
from penstock.protocol.error_codes import CLUSTER_NOT_AVAIL
from penstock.protocol.subjects import check_name

if TYPE_CHECKING:
    from penstock.client.client_session import ClientSession
    from penstock.client.consumer import Consumer

T = TypeVar("T")


class JetStream(KeyValueManager, ObjectStoreManager, PushManager):
    """Created by `Client.jetstream`.

    prefix: API subject prefix. timeout: default for requests, seconds.
    """

    def __init__(self, session: ClientSession, *, prefix: str, timeout: float) -> None:
        self.session = session
        self.prefix = prefix.rstrip(".")
        self.timeout = timeout
        self._areas: dict[str, str] = {}  # subject -> prefix of the subjects that hold its scheduled messages

    def __repr__(self) -> str:
        return f"<JetStream {self.prefix!r}>"

    def _context(self) -> JetStream:
        return self

    async def call(
        self, kind: type[T], endpoint: str, request: object = None, *, timeout: float | None = None
    ) -> T:
        """Send an API request, such as `call(StreamInfoResponse, "STREAM.INFO.ORDERS")`.

        Use it for endpoints without a method. Returns the answer decoded as `kind`. timeout: seconds. Raises
        the JetStreamApiError in the answer, JetStreamNotEnabledError if there is no responder,
        RequestTimeoutError, DisconnectedError.

        A cluster that is electing a leader answers 10008 (503, "temporarily unavailable") and has done
        nothing: the request is sent again, a quarter of a second apart, until the timeout.
        """
        limit = self.timeout if timeout is None else timeout
        until = self.session.loop.time() + limit
        while True:
            left = max(until - self.session.loop.time(), 0.0)
            try:
                return await self.call_once(kind, endpoint, request, left)
            except JetStreamApiError as error:
                if error.err_code != CLUSTER_NOT_AVAIL.err_code or left <= UNAVAILABLE_RETRY_WAIT_S:
                    raise
            await self.session.pause(UNAVAILABLE_RETRY_WAIT_S)

    async def call_once(self, kind: type[T], endpoint: str, request: object, timeout: float) -> T:
        """Internal: like `call`, but the first answer counts."""
        subject = f"{self.prefix}.{endpoint}"
        body = b"" if request is None else encode(request)
        try:
            raw = await self.session.request(subject.encode(), b"", body, timeout)
        except NoRespondersError as error:
            text = "no response to JetStream requests: the server or this account has JetStream disabled"
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
        """Publish to the stream that captures `subject` and return its pub ack: the message is stored.

        options: msg_id, expected_*, ttl, headers; see `PublishOptions`. Without a responder it retries twice,
        a quarter of a second apart (ADR-22), and then until the timeout if there is a stream for the subject:
        the cluster is about to elect its leader.

        delay (seconds or timedelta), at: the stream stores the message under `subject` after that delay or at
        that time; a past time means now (ADR-51). The ack is that of the scheduled message, which
        `Stream.schedules` lists and `Stream.cancel_schedule` deletes. The stream needs allow_msg_schedules
        and a subject for schedules: `_schedules.>` or similar, or a `>` filter that matches `subject`. ttl
        counts from the delivery time.

        Raises NoStreamError, JetStreamNotEnabledError, the JetStreamApiError in the answer
        (WrongLastSequenceError, ...), and PublishNotAckedError without an ack: the message may be stored or
        not. With a msg_id it can safely be published again.
        """
        if delay is not None or at is not None:
            try:
                waiting, later = await delayed_publish(self, self._areas, subject, options, delay, at)
                return await self.publish(waiting, payload, timeout=timeout, **later)
            except NoStreamError as error:
                self._areas.pop(subject, None)
                raise NoStreamError(subject) from error
        session = self.session
        if session.tracing is not None:
            options = with_context(session.tracing, options)
        limit = self.timeout if timeout is None else timeout
        encoded = session.encode_subject(subject)
        header = encode_publish_headers(options)
        body = encode_payload(payload)
        tries_left = NO_STREAM_RETRIES
        until = session.loop.time() + limit
        while True:
            try:
                raw = await session.request(encoded, header, body, limit)
            except NoRespondersError as error:
                if tries_left:
                    tries_left -= 1
                elif not (why := await self.why_leaderless(subject)):
                    raise NoStreamError(subject) from error
                elif session.loop.time() >= until:
                    text = f"no ack for the publish on {subject!r}: {why}; it is not stored"
                    raise PublishNotAckedError(text) from error
                await session.pause(NO_STREAM_RETRY_WAIT_S)
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
        """Create a windowed publisher, for high rates; see `Publisher`.

        window: most publishes in flight. timeout: seconds to wait for each ack (fast: without any answer).
        fast: publish by fast ingest (the stream needs `allow_batched`), which costs the server less but whose
        acks have no stream sequence; see `FastPublisher`.
        """
        seconds = self.timeout if timeout is None else timeout
        if fast:
            return FastPublisher(self.session, window=window, timeout=seconds)
        return Publisher(self.session, window=window, timeout=seconds, why_leaderless=self.why_leaderless)

    async def publish_arrow(self, table: Any, subject: str | None = None, *, window: int = 4000) -> int:
        """Publish a message for each row of a table and return their number (extra `[arrow]`).

        table: an Arrow table or record batch, or what pyarrow makes one of (pandas and Polars frames, DuckDB
        results). Column `data`, binary or text, is the payload; without it, the row as a JSON object.
        subject: of all messages; None: those of column `subject`. window: most publishes in flight.

        Raises MisuseError, MissingExtraError, and PublishFailedError with the messages that were not stored.
        """
        from penstock.client.arrow import publish_rows

        return await publish_rows(self, table, subject, window)

    def atomic_batch(
        self,
        *,
        ack_first: bool = True,
        ack_every: int = 0,
        timeout: float | None = None,
        batch_id: str | None = None,
    ) -> AtomicBatch:
        """Create an atomic batch (the stream needs `allow_atomic`); see `AtomicBatch`.

        ack_first, ack_every: which messages wait for an ack. timeout: seconds per answer. batch_id: at most
        64 characters; default a unique id.
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
        """Create a fast batch of any size (the stream needs `allow_batched`); see `FastIngest`.

        subject: default subject of messages. gap: "fail" ends the batch at a lost or rejected message, "ok"
        continues. flow: most messages per ack. outstanding_acks: 1 to 3 acks that may be outstanding.
        timeout: seconds without an answer. on_gap(last_seq, seq), on_error(batch_seq, error): called for lost
        and rejected messages with gap="ok".
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

    async def create_stream(
        self, config: StreamConfig | str | None = None, /, **settings: Unpack[StreamSettings]
    ) -> Stream:
        """Create a stream, or return an existing one with the same configuration.

        config: a StreamConfig or the name. settings: fields of StreamConfig. `allow_direct` defaults to true,
        as in the official clients: messages can be read without a consumer, from any replica.

        Raises AlreadyExistsError if the stream exists with another configuration (its text lists what
        differs), SubjectsOverlapError if other streams have some of its subjects.
        """
        made = _stream_config(config, dict(settings))
        endpoint = f"STREAM.CREATE.{check_name(made.name, 'stream')}"
        answer = self.call(StreamCreateResponse, endpoint, to_wire(made))
        return Stream(self, stream_info(await explained(self, made, answer)))

    async def update_stream(
        self, config: StreamConfig | str | None = None, /, **settings: Unpack[StreamSettings]
    ) -> Stream:
        """Update a stream. With a name, `settings` change single fields; a StreamConfig replaces all of them.

        Raises StreamNotFoundError, and JetStreamApiError for fields that cannot be changed.
        """
        if isinstance(config, str):
            info = await self.stream_info(config)
            made = make_config(StreamConfig, dict(settings), info.config)
        else:
            made = _stream_config(config, dict(settings))
        endpoint = f"STREAM.UPDATE.{check_name(made.name, 'stream')}"
        answer = self.call(StreamUpdateResponse, endpoint, to_wire(made))
        return Stream(self, stream_info(await explained(self, made, answer)))

    async def create_or_update_stream(
        self, config: StreamConfig | str | None = None, /, **settings: Unpack[StreamSettings]
    ) -> Stream:
        """Update the stream if it exists, else create it."""
        try:
            return await self.update_stream(config, **settings)
        except StreamNotFoundError:
            return await self.create_stream(config, **settings)

    async def stream(self, name: str) -> Stream:
        """Return a handle for a stream, with its info. Raises StreamNotFoundError."""
        return Stream(self, await self.stream_info(name))

    async def stream_info(self, name: str) -> StreamInfo:
        """Request configuration and state of a stream. Raises StreamNotFoundError."""
        endpoint = f"STREAM.INFO.{check_name(name, 'stream')}"
        return stream_info(await self.call(StreamInfoResponse, endpoint))

    async def delete_stream(self, name: str) -> None:
        """Delete a stream with its messages and consumers. Raises StreamNotFoundError."""
        await self.call(SuccessResponse, f"STREAM.DELETE.{check_name(name, 'stream')}")

    async def streams(self, subject: str = "") -> AsyncIterator[StreamInfo]:
        """Yield the info of every stream. subject: only streams whose subjects overlap it."""
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
        """Names of all streams. subject: only streams whose subjects overlap it."""
        names: list[str] = []
        while True:
            request = StreamNamesRequest(offset=len(names), subject=subject)
            page = await self.call(StreamNamesResponse, "STREAM.NAMES", request)
            names += page.streams
            if not page.streams or len(names) >= page.total:
                return names

    async def why_leaderless(self, subject: str) -> str:
        """Internal: why a publish without a responder may be tried again: a stream takes its subject, and has
        no leader at present. "" = none does, or it is not known: permission errors and timeouts.

        Raises JetStreamNotEnabledError if no server answers JetStream requests: a publish gets the same 503
        whether the stream or all of JetStream is missing.
        """
        request = StreamNamesRequest(subject=subject)
        try:
            names = (await self.call_once(StreamNamesResponse, "STREAM.NAMES", request, self.timeout)).streams
        except JetStreamNotEnabledError:
            raise
        except JetStreamApiError as error:
            return str(error) if error.code == CLUSTER_NOT_AVAIL.code else ""
        except ClientError:
            return ""
        return f"stream {names[0]!r} has no leader at present" if names else ""

    async def account_info(self) -> AccountInfo:
        """JetStream usage and limits of the account."""
        return await self.call(AccountInfoResponse, "INFO")

    # --- consumers, without requesting the stream's info first --------------------------------------

    def _bare_stream(self, name: str) -> Stream:
        return Stream(self, None, name=check_name(name, "stream"))

    async def create_consumer(
        self, stream: str, config: ConsumerConfig | str | None = None, /, **settings: Unpack[ConsumerSettings]
    ) -> Consumer:
        """`Stream.create_consumer` of the named stream."""
        return await self._bare_stream(stream).create_consumer(config, **settings)

    async def update_consumer(
        self, stream: str, config: ConsumerConfig | str | None = None, /, **settings: Unpack[ConsumerSettings]
    ) -> Consumer:
        """`Stream.update_consumer` of the named stream."""
        return await self._bare_stream(stream).update_consumer(config, **settings)

    async def create_or_update_consumer(
        self, stream: str, config: ConsumerConfig | str | None = None, /, **settings: Unpack[ConsumerSettings]
    ) -> Consumer:
        """`Stream.create_or_update_consumer` of the named stream."""
        return await self._bare_stream(stream).create_or_update_consumer(config, **settings)

    async def consumer(self, stream: str, name: str) -> Consumer:
        """`Stream.consumer` of the named stream."""
        return await self._bare_stream(stream).consumer(name)

    async def delete_consumer(self, stream: str, name: str) -> None:
        """`Stream.delete_consumer` of the named stream."""
        await self._bare_stream(stream).delete_consumer(name)

    async def drop_consumer(self, stream: str, name: str) -> None:
        """Internal: `Stream.drop_consumer` of the named stream."""
        await self._bare_stream(stream).drop_consumer(name)


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
