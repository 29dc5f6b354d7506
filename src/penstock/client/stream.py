"""Stream handle: info, messages, schedules and consumers of a stream (ADR-37; ADR-31 for direct gets).

Its only state is the latest known info (`cached_info`), so a stream may have several handles.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Unpack, cast

from penstock.client.config import (
    ConsumerConfig,
    ConsumerInfo,
    ConsumerPause,
    StreamConfig,
    StreamInfo,
    consumer_info,
    consumer_pause,
    make_config,
    plain_value,
    stream_info,
    to_wire,
)
from penstock.client.consumer import Consumer
from penstock.client.direct import DIRECT_BATCH, StoredMessage, direct_batch, direct_get
from penstock.client.ordered import OrderedConsumer
from penstock.client.requests import new_nuid
from penstock.client.schedules import Schedule, schedules_of
from penstock.client.settings import ConsumerSettings, OrderedConsumerSettings
from penstock.errors import (
    ClientError,
    JetStreamError,
    MessageNotFoundError,
    MisuseError,
)
from penstock.protocol import headers as names
from penstock.protocol.api import (
    AckPolicy,
    ConsumerAction,
    ConsumerCreateRequest,
    ConsumerCreateResponse,
    ConsumerInfoResponse,
    ConsumerListResponse,
    ConsumerNamesResponse,
    ConsumerPauseRequest,
    ConsumerPauseResponse,
    MsgDeleteRequest,
    MsgGetRequest,
    MsgGetResponse,
    PagedRequest,
    PubAck,
    StreamInfoRequest,
    StreamInfoResponse,
    StreamPurgeRequest,
    StreamPurgeResponse,
    SuccessResponse,
)
from penstock.protocol.durations import parse_time
from penstock.protocol.headers import Headers
from penstock.protocol.subjects import check_name

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Table

    from penstock.client.client_session import ClientSession
    from penstock.client.jetstream import JetStream


class Stream:
    """A stream, returned by `JetStream.stream`, `create_stream` and similar methods."""

    def __init__(self, js: JetStream, info: StreamInfo | None, *, name: str = "") -> None:
        self._js = js
        self._info = info
        self.name = info.config.name if info is not None else name

    def __repr__(self) -> str:
        return f"<Stream {self.name!r}>"

    @property
    def session(self) -> ClientSession:
        """The client's session; internal."""
        return self._js.session

    # --- the stream ------------------------------------------------------------------------------

    @property
    def cached_info(self) -> StreamInfo:
        """The latest known info, without a request. Raises MisuseError if there is none yet."""
        if self._info is None:
            raise MisuseError(f"the info of stream {self.name!r} was not fetched yet: await info()")
        return self._info

    @property
    def config(self) -> StreamConfig:
        """The latest known configuration."""
        return self.cached_info.config

    async def info(self, *, subjects_filter: str = "", deleted_details: bool = False) -> StreamInfo:
        """Request configuration and state.

        subjects_filter: fill `state.subjects` with the message counts of all matching subjects.
        deleted_details: fill `state.deleted`. Raises StreamNotFoundError.
        """
        subjects: dict[str, int] = {}
        while True:
            request = StreamInfoRequest(
                offset=len(subjects), deleted_details=deleted_details, subjects_filter=subjects_filter
            )
            plain = not subjects_filter and not deleted_details
            page = await self._js.call(
                StreamInfoResponse, f"STREAM.INFO.{self.name}", None if plain else request
            )
            subjects.update(page.state.subjects)
            if not page.state.subjects or len(subjects) >= page.total:
                break
        page.state.subjects = subjects
        self._info = stream_info(page)
        return self._info

    async def purge(self, subject: str = "", *, seq: int = 0, keep: int = 0) -> int:
        """Purge messages and return how many were removed.

        subject: only matching subjects. seq: only messages below this sequence. keep: number of newest
        messages to keep. Raises MisuseError for both seq and keep.
        """
        if seq and keep:
            raise MisuseError("purge takes seq or keep, not both")
        request = StreamPurgeRequest(filter=subject, seq=seq, keep=keep)
        return (await self._js.call(StreamPurgeResponse, f"STREAM.PURGE.{self.name}", request)).purged

    async def delete(self) -> None:
        """Delete the stream with its messages and consumers. Raises StreamNotFoundError."""
        await self._js.delete_stream(self.name)

    # --- messages ----------------------------------------------------------------------------------

    async def get_message(
        self, seq: int = 0, *, next_by_subject: str = "", direct: bool | None = None
    ) -> StoredMessage:
        """Get the message with a sequence; with next_by_subject, the first matching one from `seq` on.

        direct: True reads from any replica (needs allow_direct), False from the leader, None decides by the
        latest known configuration. Raises MessageNotFoundError.
        """
        if seq < 1 and not next_by_subject:
            raise MisuseError(f"seq is {seq}; sequences start at 1")
        return await self._get(MsgGetRequest(seq=seq, next_by_subj=next_by_subject), direct)

    async def get_last_message(self, subject: str, *, direct: bool | None = None) -> StoredMessage:
        """Get the newest message whose subject matches. direct: as in `get_message`.

        Raises MessageNotFoundError.
        """
        return await self._get(MsgGetRequest(last_by_subj=subject), direct)

    async def _get(self, request: MsgGetRequest, direct: bool | None) -> StoredMessage:
        if direct is None:
            direct = self._info is not None and self._info.config.allow_direct
        if direct:
            return await direct_get(self._js, self.name, request)
        answer = await self._js.call(MsgGetResponse, f"STREAM.MSG.GET.{self.name}", request)
        message = answer.message
        if message is None:
            raise MessageNotFoundError(404, 10037, "no message found", stream=self.name)
        return StoredMessage(
            self.name,
            message.subject,
            message.seq,
            parse_time(message.time),
            names.parse(message.hdrs).headers if message.hdrs else Headers(),
            message.data,
        )

    async def get_messages(
        self, seq: int = 1, *, subject: str = "", max_messages: int | None = None
    ) -> AsyncIterator[StoredMessage]:
        """Yield messages from sequence `seq` to the stream's end, without a consumer (ADR-31).

        subject: only matching ones. max_messages: limit. The stream needs allow_direct. Reads in batches, and
        may include messages stored meanwhile. Raises StreamNotFoundError, DirectGetNotAllowedError.
        """
        left = max_messages
        while left is None or left > 0:
            size = DIRECT_BATCH if left is None else min(left, DIRECT_BATCH)
            request = MsgGetRequest(seq=seq, next_by_subj=subject, batch=size)
            got, pending = 0, 0
            async for message, pending in direct_batch(self._js, self.name, request):  # noqa: B007
                yield message
                got += 1
                seq = message.seq + 1
            if not got or not pending:
                return
            left = None if left is None else left - got

    async def get_last_messages(
        self, subjects: list[str], *, up_to_seq: int = 0
    ) -> AsyncIterator[StoredMessage]:
        """Yield the newest message of each subject that matches one of `subjects`, in stream order (ADR-31).

        up_to_seq: only messages up to this sequence. The stream needs allow_direct. Raises JetStreamApiError
        (413) if more than 1024 subjects match, StreamNotFoundError.
        """
        request = MsgGetRequest(multi_last=subjects, up_to_seq=up_to_seq)
        async for message, _ in direct_batch(self._js, self.name, request):
            yield message

    # --- Arrow ---------------------------------------------------------------------------------------

    def arrow_batches(
        self,
        *,
        columns: Iterable[str] | None = None,
        end_seq: int | None = None,
        max_rows: int = 65_536,
        **settings: Unpack[OrderedConsumerSettings],
    ) -> AsyncIterator[RecordBatch]:
        """Yield the stream's messages as Arrow record batches, up to its last one of now (extra `[arrow]`).

        columns: any of subject, seq, time, headers, data (default all). end_seq: the first sequence that is
        left out. max_rows: most rows of a batch. settings: as for `ordered_consumer`, which reads the stream:
        filter_subject, opt_start_seq with deliver_policy, and so on.

        Raises MisuseError for an unknown column or setting, MissingExtraError, StreamNotFoundError.
        """
        from penstock.client.arrow import check_columns, read_stream

        return read_stream(self, dict(settings), check_columns(columns), end_seq=end_seq, max_rows=max_rows)

    async def to_arrow(
        self,
        *,
        columns: Iterable[str] | None = None,
        end_seq: int | None = None,
        **settings: Unpack[OrderedConsumerSettings],
    ) -> Table:
        """The stream's messages as an Arrow table. Arguments and errors as for `arrow_batches`."""
        from penstock.client.arrow import check_columns, schema_of

        schema = schema_of(check_columns(columns))
        import pyarrow as pa

        batches = self.arrow_batches(columns=columns, end_seq=end_seq, **settings)
        return pa.Table.from_batches([batch async for batch in batches], schema)

    async def delete_message(self, seq: int, *, erase: bool = False) -> None:
        """Delete one message. erase: also overwrite its bytes, which is slower.

        Raises JetStreamApiError if the stream denies deletes, MessageNotFoundError.
        """
        request = MsgDeleteRequest(seq=seq, no_erase=not erase)
        await self._js.call(SuccessResponse, f"STREAM.MSG.DELETE.{self.name}", request)

    # --- schedules ---------------------------------------------------------------------------------

    async def schedules(self, subject: str = "") -> AsyncIterator[Schedule]:
        """Yield the scheduled messages in this stream (ADR-51).

        subject: filter of schedule subjects; "" selects those of `JetStream.publish` with delay or at, `>`
        all (reads the last message of every subject).
        """
        async for schedule in schedules_of(self, subject):
            yield schedule

    async def cancel_schedule(self, schedule: Schedule | PubAck) -> None:
        """Cancel a schedule, given as one of `schedules` or by the pub ack of its publish.

        Raises JetStreamApiError if it has already fired.
        """
        await self.delete_message(schedule.seq)

    # --- consumers ---------------------------------------------------------------------------------

    async def create_consumer(
        self, config: ConsumerConfig | str | None = None, /, **settings: Unpack[ConsumerSettings]
    ) -> Consumer:
        """Create a consumer, or return an existing one with the same configuration.

        config: a ConsumerConfig or a durable name; without either, an ephemeral consumer with a generated
        name. settings: fields of ConsumerConfig, durations as seconds or timedelta; ack_policy defaults to
        "explicit". Raises AlreadyExistsError if the consumer exists with another configuration.
        """
        return await self._put_consumer(_consumer_config(config, dict(settings)), ConsumerAction.CREATE)

    async def update_consumer(
        self, config: ConsumerConfig | str | None = None, /, **settings: Unpack[ConsumerSettings]
    ) -> Consumer:
        """Update a consumer. With a name, `settings` change single fields; a ConsumerConfig replaces all.

        Raises JetStreamApiError if it does not exist or a field cannot be changed.
        """
        if isinstance(config, str):
            made = make_config(ConsumerConfig, dict(settings), (await self.consumer_info(config)).config)
        else:
            made = _consumer_config(config, dict(settings))
        return await self._put_consumer(made, ConsumerAction.UPDATE)

    async def create_or_update_consumer(
        self, config: ConsumerConfig | str | None = None, /, **settings: Unpack[ConsumerSettings]
    ) -> Consumer:
        """Create the consumer, or update the existing one to this configuration."""
        return await self._put_consumer(
            _consumer_config(config, dict(settings)), ConsumerAction.CREATE_OR_UPDATE
        )

    async def _put_consumer(self, config: ConsumerConfig, action: ConsumerAction) -> Consumer:
        name = config.name or config.durable_name or new_nuid()
        endpoint = f"CONSUMER.CREATE.{self.name}.{check_name(name, 'consumer')}"
        if config.filter_subject and not config.filter_subjects:
            endpoint += f".{config.filter_subject}"
        request = ConsumerCreateRequest(stream_name=self.name, config=to_wire(config), action=action)
        answer = await self._js.call(ConsumerCreateResponse, endpoint, request)
        return Consumer(self._js, consumer_info(answer))

    async def consumer(self, name: str) -> Consumer:
        """Return a handle for a consumer, with its info. Raises ConsumerNotFoundError."""
        return Consumer(self._js, await self.consumer_info(name))

    async def consumer_info(self, name: str) -> ConsumerInfo:
        """Request configuration and state of a consumer. Raises ConsumerNotFoundError."""
        endpoint = f"CONSUMER.INFO.{self.name}.{check_name(name, 'consumer')}"
        return consumer_info(await self._js.call(ConsumerInfoResponse, endpoint))

    async def delete_consumer(self, name: str) -> None:
        """Delete a consumer and its state. Raises ConsumerNotFoundError."""
        endpoint = f"CONSUMER.DELETE.{self.name}.{check_name(name, 'consumer')}"
        await self._js.call(SuccessResponse, endpoint)

    async def drop_consumer(self, name: str) -> None:
        """Internal: delete a consumer that the server would delete after its inactive threshold: ask once,
        whatever the answer."""
        endpoint = f"CONSUMER.DELETE.{self.name}.{name}"
        with contextlib.suppress(JetStreamError, ClientError):
            await self._js.call_once(SuccessResponse, endpoint, None, self._js.timeout)

    async def consumers(self) -> AsyncIterator[ConsumerInfo]:
        """Yield the info of every consumer."""
        offset = 0
        while True:
            endpoint = f"CONSUMER.LIST.{self.name}"
            page = await self._js.call(ConsumerListResponse, endpoint, PagedRequest(offset=offset))
            for info in page.consumers:
                yield consumer_info(info)
            offset += len(page.consumers)
            if not page.consumers or offset >= page.total:
                return

    async def consumer_names(self) -> list[str]:
        """Names of all consumers."""
        found: list[str] = []
        while True:
            endpoint = f"CONSUMER.NAMES.{self.name}"
            page = await self._js.call(ConsumerNamesResponse, endpoint, PagedRequest(offset=len(found)))
            found += page.consumers
            if not page.consumers or len(found) >= page.total:
                return found

    async def pause_consumer(self, name: str, until: datetime) -> ConsumerPause:
        """Pause deliveries until a time (with a time zone)."""
        request = ConsumerPauseRequest(pause_until=cast(str, plain_value(until)))
        endpoint = f"CONSUMER.PAUSE.{self.name}.{check_name(name, 'consumer')}"
        return consumer_pause(await self._js.call(ConsumerPauseResponse, endpoint, request))

    async def resume_consumer(self, name: str) -> ConsumerPause:
        """Ends a pause."""
        endpoint = f"CONSUMER.PAUSE.{self.name}.{check_name(name, 'consumer')}"
        return consumer_pause(await self._js.call(ConsumerPauseResponse, endpoint, ConsumerPauseRequest()))

    def ordered_consumer(self, **settings: Unpack[OrderedConsumerSettings]) -> OrderedConsumer:
        """Create an ordered consumer: reads the stream in order without gaps and leaves no state behind.

        settings: filter_subject or filter_subjects, deliver_policy (default "all"), opt_start_seq,
        opt_start_time, replay_policy, headers_only, inactive_threshold, metadata. Nothing is sent before
        the first read. See `OrderedConsumer`.
        """
        return OrderedConsumer(self, dict(settings))


def _consumer_config(config: ConsumerConfig | str | None, settings: dict[str, Any]) -> ConsumerConfig:
    if isinstance(config, ConsumerConfig):
        return make_config(ConsumerConfig, settings, config) if settings else config
    if isinstance(config, str):
        settings = {"durable_name": config, "name": config, **settings}
    return make_config(ConsumerConfig, {"ack_policy": AckPolicy.EXPLICIT, **settings})
