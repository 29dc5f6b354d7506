"""Consumer handle (ADR-37): `fetch` and `next` pull once, `consume` and `messages` continuously."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING

from penstock.client.config import ConsumerInfo, consumer_info
from penstock.client.consume import Consume, JsMessageCallback, WarningCallback
from penstock.client.fetch import Fetch
from penstock.client.jsmsg import JsMsg
from penstock.client.pull import (
    FETCH_HEARTBEAT_ABOVE_S,
    NO_PRIORITY,
    UNBOUNDED_BATCH,
    PriorityOptions,
    consume_options,
)
from penstock.errors import MisuseError, RequestTimeoutError
from penstock.protocol.api import (
    ConsumerInfoResponse,
    ConsumerResetRequest,
    ConsumerResetResponse,
    ConsumerUnpinRequest,
    ConsumerUnpinResponse,
    PullRequest,
    SuccessResponse,
)
from penstock.protocol.durations import NS_PER_S

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from penstock.client.jetstream import JetStream

DEFAULT_FETCH_EXPIRES_S = 5.0


class Consumer:
    """A consumer of a stream, returned by `Stream.consumer`, `create_consumer` and similar methods."""

    def __init__(self, js: JetStream, info: ConsumerInfo) -> None:
        self._js = js
        self._info = info
        self.name = info.name
        self.stream_name = info.stream_name
        self._pins: dict[str, str] = {}  # priority group -> pin id for fetches of this handle
        self.pull_subject = f"{js.prefix}.CONSUMER.MSG.NEXT.{self.stream_name}.{self.name}".encode()

    def __repr__(self) -> str:
        return f"<Consumer {self.name!r} of stream {self.stream_name!r}>"

    @property
    def cached_info(self) -> ConsumerInfo:
        """The latest known info, without a request."""
        return self._info

    async def info(self) -> ConsumerInfo:
        """Request configuration and state. Raises ConsumerNotFoundError."""
        endpoint = f"CONSUMER.INFO.{self.stream_name}.{self.name}"
        self._info = consumer_info(await self._js.call(ConsumerInfoResponse, endpoint))
        return self._info

    async def delete(self) -> None:
        """Delete the consumer and its state. Raises ConsumerNotFoundError."""
        await self._js.call(SuccessResponse, f"CONSUMER.DELETE.{self.stream_name}.{self.name}")

    async def reset(self, seq: int = 0) -> int:
        """Reset delivery to stream sequence `seq`, or after the ack floor if 0. Clears pending acks.

        Returns the next sequence to deliver. Raises ConsumerNotFoundError, and JetStreamApiError (10204) for
        a sequence that the consumer's deliver policy excludes.
        """
        endpoint = f"CONSUMER.RESET.{self.stream_name}.{self.name}"
        try:
            answer = await self._js.call(ConsumerResetResponse, endpoint, ConsumerResetRequest(seq=seq))
        except RequestTimeoutError:
            await self.info()  # a missing consumer does not answer; this raises
            raise
        return answer.reset_seq

    async def unpin(self, group: str) -> None:
        """Unpin the client of a priority group (policy pinned_client); the next pull gets the pin (ADR-42).

        Raises ConsumerNotFoundError, and JetStreamApiError (10160) for an unknown group.
        """
        endpoint = f"CONSUMER.UNPIN.{self.stream_name}.{self.name}"
        await self._js.call(ConsumerUnpinResponse, endpoint, ConsumerUnpinRequest(group=group))

    # --- one pull --------------------------------------------------------------------------------

    def fetch(
        self,
        max_messages: int | None = None,
        *,
        max_bytes: int | None = None,
        expires: float = DEFAULT_FETCH_EXPIRES_S,
        heartbeat: float | None = None,
        no_wait: bool = False,
        priority: PriorityOptions = NO_PRIORITY,
    ) -> Fetch:
        """Pull up to max_messages messages, or up to max_bytes, within `expires` seconds.

        Await the result for a list, or iterate it. heartbeat: interval of idle heartbeats in seconds
        (default: a quarter of `expires` if that is above 30 s, else none). no_wait: only messages available
        now. priority: for consumers with priority groups; this handle keeps the pin id and sends it again.

        Raises MisuseError for contradictory options. Awaiting or iterating raises PullError if the server
        rejects the pull, ConsumerGoneError, DisconnectedError.
        """
        if (max_messages is None) == (max_bytes is None):
            raise MisuseError("fetch takes max_messages or max_bytes: one of them, not both")
        if (max_messages or max_bytes or 0) < 1:
            raise MisuseError("fetch needs max_messages (or max_bytes) of at least 1")
        if expires <= 0:
            raise MisuseError(f"expires is {expires:g} s; it must be above 0")
        if heartbeat is None:
            heartbeat = expires / 4 if expires > FETCH_HEARTBEAT_ABOVE_S and not no_wait else 0.0
        if heartbeat < 0 or heartbeat * 2 > expires:
            raise MisuseError(f"heartbeat is {heartbeat:g} s; at most half of expires ({expires:g} s)")
        request = PullRequest(
            batch=max_messages or UNBOUNDED_BATCH,
            max_bytes=max_bytes or 0,
            expires=0 if no_wait else int(expires * NS_PER_S),
            no_wait=no_wait,
            idle_heartbeat=int(heartbeat * NS_PER_S),
            group=priority.group,
            min_pending=priority.min_pending,
            min_ack_pending=priority.min_ack_pending,
            priority=priority.priority,
        )
        return Fetch(self._js.session, self.pull_subject, request, self.name, self._pins)

    def fetch_bytes(
        self, max_bytes: int, *, expires: float = DEFAULT_FETCH_EXPIRES_S, heartbeat: float | None = None
    ) -> Fetch:
        """`fetch` bounded by size in bytes: subjects, ack subjects, headers and payloads count."""
        return self.fetch(max_bytes=max_bytes, expires=expires, heartbeat=heartbeat)

    async def next(
        self,
        *,
        expires: float = DEFAULT_FETCH_EXPIRES_S,
        heartbeat: float | None = None,
        priority: PriorityOptions = NO_PRIORITY,
    ) -> JsMsg:
        """Pull one message. Raises RequestTimeoutError if none arrives within `expires` seconds, and what
        `fetch` raises."""
        msgs = await self.fetch(1, expires=expires, heartbeat=heartbeat, priority=priority)
        if not msgs:
            text = f"consumer {self.name!r} had no message within {expires:g} s"
            raise RequestTimeoutError(text, timeout_s=expires)
        return msgs[0]

    # --- continuous pull -------------------------------------------------------------------------

    def consume(
        self,
        callback: JsMessageCallback | None = None,
        *,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        expires: float | None = None,
        heartbeat: float | None = None,
        threshold_messages: int | None = None,
        threshold_bytes: int | None = None,
        priority: PriorityOptions = NO_PRIORITY,
        on_warning: WarningCallback | None = None,
    ) -> Consume:
        """Consume messages continuously through a prefetch buffer.

        Iterate the result, or pass a callback (function or coroutine function), which is called for one
        message at a time. Use it in `async with`, or end it with `stop` or `drain`.

        max_messages: buffer size (default 500), or max_bytes. threshold_*: pull again when so much is left
        (default half). expires: seconds a pull stays open (default 30, at least 1). heartbeat: seconds
        (default half of expires). on_warning: called with rejected pulls and missed heartbeats; default the
        client's on_error.

        Raises MisuseError for options out of range. Iterating raises ConsumerGoneError if the consumer is
        deleted and PullError if pulling cannot succeed. A lost connection only pauses it.
        """
        options = consume_options(
            max_messages=max_messages,
            max_bytes=max_bytes,
            expires=expires,
            heartbeat=heartbeat,
            threshold_messages=threshold_messages,
            threshold_bytes=threshold_bytes,
            priority=priority,
        )
        consume = Consume(self._js.session, self.pull_subject, self.name, options, on_warning=on_warning)
        consume.start(callback)
        return consume

    def arrow_batches(
        self,
        *,
        columns: Iterable[str] | None = None,
        max_rows: int = 10_000,
        max_wait: float = 1.0,
        idle: float | None = None,
        ack: bool = True,
    ) -> AsyncIterator[RecordBatch]:
        """Yield the consumer's messages as Arrow record batches (extra `[arrow]`).

        columns: any of subject, seq, time, headers, data (default all). A batch has max_rows rows, or what
        came within max_wait seconds after its first message; never more than the consumer's max_ack_pending.
        idle: end after so many seconds without a message; None goes on. ack: ack a batch's messages when the
        next one is asked for, so that a batch whose processing failed is delivered again.

        Raises MisuseError for an unknown column, MissingExtraError, and what iterating `consume` raises.
        """
        from penstock.client.arrow import check_columns, read_consumer

        return read_consumer(
            self._js,
            self,
            check_columns(columns),
            max_rows=max_rows,
            max_wait=max_wait,
            idle=idle,
            ack=ack,
        )

    async def messages(
        self,
        *,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        expires: float | None = None,
        heartbeat: float | None = None,
        priority: PriorityOptions = NO_PRIORITY,
    ) -> AsyncIterator[JsMsg]:
        """`consume` as an async generator: `async for msg in consumer.messages(): ...`"""
        consume = self.consume(
            max_messages=max_messages,
            max_bytes=max_bytes,
            expires=expires,
            heartbeat=heartbeat,
            priority=priority,
        )
        try:
            async for msg in consume:
                yield msg
        finally:
            consume.stop()
