"""Messages as Arrow record batches, and tables as messages. Needs the extra `[arrow]`.

The columns are built by the kernel of the Spark source: subject, seq, time, headers and data, none of which
has nulls. A stream is read by an ordered consumer, which survives lost connections, and the kernel checks
that the deliveries follow each other. A read ends at the sequence that was the stream's last when it began.

Invariants: every message of the range that matches is in one batch, once, in order. Rejected: a connection of
its own whose bytes the kernel parses into columns, as in Spark: faster, but its logins, TLS, proxies and
reconnects would be a second client's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.client.consume import Consume
from penstock.client.consumer import Consumer
from penstock.client.message import Payload, RawMessage
from penstock.client.ordered import OrderedConsume, OrderedConsumer
from penstock.client.pull import StatusKind, classify_status, consume_options, status_in
from penstock.errors import MisuseError
from penstock.extras import need
from penstock.protocol import acks
from penstock.protocol.api import AckPolicy

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from penstock.client.client_session import ClientSession
    from penstock.client.jetstream import JetStream
    from penstock.client.stream import Stream
    from penstock.kernels.spark.columns import ColumnBuilder

COLUMNS = ("subject", "seq", "time", "headers", "data")
SEQ_MAX = 1 << 63
# What a read asks for in advance: enough messages to keep the server busy, within this many bytes.
AHEAD_MESSAGES = 20_000
AHEAD_BYTES = 32 * 1024 * 1024
# After so long without a message, a read asks whether messages that it waits for were removed.
QUIET_S = 2.0
BATCH_BYTES = 64 * 1024 * 1024
ROW_CHUNK = 4096


def check_columns(columns: Iterable[str] | None) -> tuple[str, ...]:
    """The columns, all of them by default. Raises MisuseError for an unknown one."""
    names = COLUMNS if columns is None else tuple(columns)
    unknown = [name for name in names if name not in COLUMNS]
    if unknown or not names:
        raise MisuseError(f"there is no column {unknown}; columns are any of {', '.join(COLUMNS)}")
    return names


def schema_of(columns: Iterable[str]) -> Any:
    """The Arrow schema of these columns."""
    need("Arrow columns", "arrow")
    import pyarrow as pa

    types = {
        "subject": pa.string(),
        "seq": pa.int64(),
        "time": pa.timestamp("us", tz="UTC"),
        "headers": pa.map_(pa.string(), pa.list_(pa.string())),
        "data": pa.binary(),
    }
    return pa.schema([pa.field(name, types[name], nullable=False) for name in columns])


class ColumnRead(OrderedConsume):
    """An ordered read into columns. Messages stay raw until the kernel takes them, many at a time."""

    __slots__ = ("_builder", "_end_seq", "_is_complete")

    def __init__(
        self,
        ordered: OrderedConsumer,
        session: ClientSession,
        stream: str,
        builder: ColumnBuilder,
        ahead: int,
    ) -> None:
        super().__init__(ordered, session, stream, consume_options(max_messages=ahead))
        self._builder = builder
        self._end_seq = builder.end_seq
        self._is_complete = False

    def _on_raw(self, raw: RawMessage) -> None:
        if raw[3] is not None and (status := status_in(raw)) is not None:
            self._monitor.heard(self._session.read_at)
            if classify_status(*status) is not StatusKind.HEARTBEAT:
                self._on_status(raw, *status)
            return
        self._items.append(raw)
        if self._getters:
            self._monitor.heard(self._session.read_at)
            self._wake()

    def _restart(self, wait_s: float = 0.0) -> None:
        # What the kernel has not taken is delivered again by the next consumer.
        self._items.clear()
        self._received_seq = self._builder.next_seq - 1
        super()._restart(wait_s)

    def _use(self, consumer: Consumer) -> None:
        self._builder.restart(max(self._builder.next_seq, 1), self._end_seq)
        super()._use(consumer)
        if not consumer.cached_info.num_pending:
            self._complete()

    def _complete(self) -> None:
        self._is_complete = True
        self._wake()

    async def fill(self) -> bool:
        """Take messages into the builder until its batch is full; False at the end of the range.

        Raises StreamNotFoundError, and what ends an ordered consumer.
        """
        from penstock.kernels.spark.columns import Event

        while not self._is_complete:
            if not self._items:
                if self._ended:
                    if self._error is not None:
                        raise self._error
                    return False
                await self._more()
                continue
            messages = list(self._items)
            self._items.clear()
            event, used = self._builder.extend(messages)
            self._items.extendleft(reversed(messages[used:]))
            self._budget.pending_messages -= used
            self._pull()
            if event == Event.EVENT_FULL:
                return True
            if event in (Event.EVENT_GAP, Event.EVENT_ERROR):
                self._restart()
            elif event == Event.EVENT_END or (self._builder.delivered and not self._builder.pending):
                self._is_complete = True
        return False

    async def _more(self) -> None:
        """Wait for messages; after a quiet time, find out whether there are any left."""
        try:
            async with asyncio.timeout(QUIET_S):
                await self._wait()
        except TimeoutError:
            if self._subscription is not None and self._session.is_connected:
                pending = await self._ordered.messages_left()
                if not pending and not self._items:
                    self._is_complete = True


async def read_stream(
    stream: Stream, settings: dict[str, Any], columns: tuple[str, ...], *, end_seq: int | None, max_rows: int
) -> AsyncIterator[RecordBatch]:
    """Yield the stream's messages as record batches; see `Stream.arrow_batches`."""
    schema = schema_of(columns)
    from penstock.kernels.spark.columns import ColumnBuilder
    from penstock.protocol.arrow_columns import record_batch

    info = await stream.info()
    last = info.state.last_seq if end_seq is None else min(end_seq - 1, info.state.last_seq)
    if not info.state.messages or last < info.state.first_seq:
        return
    builder = ColumnBuilder(columns, sid=b"", rows_max=max_rows, bytes_max=BATCH_BYTES)
    builder.restart(1, last + 1)
    size = max(info.state.bytes // info.state.messages, 1)
    ahead = max(min(AHEAD_MESSAGES, AHEAD_BYTES // size), 10)
    read = ColumnRead(OrderedConsumer(stream, settings), stream.session, stream.name, builder, ahead)
    async with read:
        read.start()
        is_more = True
        while is_more:
            is_more = await read.fill()
            if builder.rows:
                rows, buffers = builder.take()
                yield record_batch(schema, rows, buffers, stream=stream.name)


async def read_consumer(
    js: JetStream,
    consumer: Consumer,
    columns: tuple[str, ...],
    *,
    max_rows: int,
    max_wait: float,
    idle: float | None,
    ack: bool,
) -> AsyncIterator[RecordBatch]:
    """Yield a consumer's messages as record batches; see `Consumer.arrow_batches`."""
    schema = schema_of(columns)
    from penstock.kernels.spark.columns import ColumnBuilder
    from penstock.protocol.arrow_columns import record_batch

    session, config = js.session, consumer.cached_info.config
    policy = config.ack_policy
    if policy is not AckPolicy.NONE and config.max_ack_pending > 0:
        max_rows = min(max_rows, config.max_ack_pending)  # the server sends no more before acks
    async with consumer.consume(max_messages=max_rows) as consume:
        while messages := await _collect(consume, max_rows, max_wait, idle):
            builder = ColumnBuilder(columns, sid=b"", rows_max=max_rows, bytes_max=1 << 30)
            _, used = builder.extend(messages, 0, ordered=False)
            if used < len(messages):
                raise MisuseError(f"{len(messages)} messages are more than 1 GiB; lower max_rows")
            rows, buffers = builder.take()
            yield record_batch(schema, rows, buffers, stream=consumer.stream_name)
            if ack and policy is not AckPolicy.NONE:
                # With acks of all earlier ones, that of the last message says everything.
                for message in messages[-1:] if policy is AckPolicy.ALL else messages:
                    await session.publish(message[2] or b"", None, None, acks.ACK)


async def _collect(
    consume: Consume, max_rows: int, max_wait: float, idle: float | None
) -> list[tuple[int, bytes, bytes | None, bytes | None, bytes]]:
    """Up to max_rows raw messages: what comes within max_wait seconds after the first; [] at the end."""
    try:
        async with asyncio.timeout(idle):
            messages = [(await consume.__anext__()).raw]
    except (TimeoutError, StopAsyncIteration):
        return []
    try:
        async with asyncio.timeout(max_wait):
            while True:
                messages += [msg.raw for msg in consume.arrived(max_rows - len(messages))]
                if len(messages) >= max_rows:
                    break
                messages.append((await consume.__anext__()).raw)
    except (TimeoutError, StopAsyncIteration):
        pass
    return messages


# --- tables as messages -----------------------------------------------------------------------------


def rows_of(table: Any, subject: str | None) -> Iterable[tuple[str, Payload]]:
    """Yield subject and payload of each row; see `JetStream.publish_arrow`. Raises MisuseError."""
    names = table.schema.names
    if subject is None and "subject" not in names:
        raise MisuseError(
            f"publish_arrow needs a subject, or a column subject; columns are {', '.join(names)}"
        )
    kind = str(table.schema.field("data").type) if "data" in names else ""
    if kind and kind.removeprefix("large_") not in ("binary", "string"):
        raise MisuseError(f"column data is {kind}; payloads are binary or string")
    encoder = msgspec.json.Encoder()
    for batch in table.to_batches(max_chunksize=ROW_CHUNK):
        payloads = batch.column("data").to_pylist() if kind else None
        if payloads is None:
            fields = batch.drop_columns(["subject"]) if "subject" in names and subject is None else batch
            payloads = [encoder.encode(row) for row in fields.to_pylist()]
        if None in payloads:
            raise MisuseError("column data has nulls; a message has a payload, if an empty one")
        subjects = batch.column("subject").to_pylist() if subject is None else [subject] * len(payloads)
        yield from zip(subjects, payloads, strict=True)


async def publish_rows(js: JetStream, table: Any, subject: str | None, window: int) -> int:
    """Publish a message for each row and return their number; see `JetStream.publish_arrow`."""
    need("publish_arrow", "arrow")
    import pyarrow as pa

    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    elif not isinstance(table, pa.Table):
        table = pa.table(table)  # by the Arrow interface of other libraries' frames
    async with js.publisher(window) as publisher:
        for to, payload in rows_of(table, subject):
            await publisher.publish(to, payload)
    return publisher.acked
