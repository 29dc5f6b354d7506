"""A stream on its way in: chunks of an archive, from the subject a STREAM.RESTORE request is answered with.

The stream's store is made when the archive's state has been read, marked as unfinished
(`StreamMeta.restoring`). The mark goes, with one atomic write, after everything is on the disk; until then
nobody sees the stream, and a start of the server removes it. So a restore is there as a whole or not at all.

A chunk is answered (with an empty message) when it was taken; an empty chunk ends the archive and is answered
with the stream, or with error 10062, as is the chunk at which it fails.

Invariants: no more than a chunk's worth is decompressed in one tick; what waits to be taken is bounded.
Rejected: collecting the archive in a file first (it needs the room twice).
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.errors import JetStreamApiError, ProtocolError, StoreError, StoreWriteError
from penstock.jetstream import config as stream_config
from penstock.jetstream.consumer import config as rules
from penstock.jetstream.consumer.start import start_of
from penstock.jetstream.consumer.state import ConsumerMeta
from penstock.jetstream.limits import SECOND_NS, SEQ_MAX
from penstock.jetstream.stream.stream import StreamMeta
from penstock.kernels.acksnapshot import make_snapshot
from penstock.kernels.ackstate import AckPolicy as KernelPolicy
from penstock.kernels.ackstate import AckState
from penstock.kernels.archive import unpack_messages
from penstock.kernels.dispatch import ServiceSink, publish
from penstock.kernels.sinks import Sink, Subscription
from penstock.protocol import archive
from penstock.protocol import error_codes as codes
from penstock.protocol.api import (
    TYPE_PREFIX,
    AckPolicy,
    ConsumerConfig,
    ErrorResponse,
    StorageType,
    StreamConfig,
    StreamCreateResponse,
    StreamState,
    decode,
    encode,
)
from penstock.protocol.durations import format_time
from penstock.protocol.s2 import S2Reader
from penstock.store.interface import StreamStore

if TYPE_CHECKING:
    from penstock.jetstream.engine import JetStream

log = logging.getLogger("penstock.jetstream")

STALLED_NS = 5 * SECOND_NS
SLICE_BYTES = 256 * 1024  # of the plain archive, after which others get their turn
WAITING_MAX = 64 * 1024 * 1024  # bytes of chunks that were sent without waiting for the answers
UINT32_MAX = 2**32 - 1
RESPONSE_TYPE = TYPE_PREFIX + "stream_create_response"

_KERNEL_POLICY = {
    AckPolicy.NONE: KernelPolicy.ACK_NONE,
    AckPolicy.ALL: KernelPolicy.ACK_ALL,
    AckPolicy.EXPLICIT: KernelPolicy.ACK_EXPLICIT,
}


class Restore:
    """One restore. fields: what its advisories say besides stream and times (`client`)."""

    def __init__(self, engine: JetStream, config: StreamConfig, *, fields: dict[str, Any], now: int) -> None:
        self.config = config
        self.deliver_subject = f"$JS.SNAPSHOT.RESTORE.{config.name}.{engine.new_id()}"
        self.is_done = False
        self.deadline = now + STALLED_NS
        self._engine = engine
        self._fields = fields
        self._started = now
        self._received = 0
        self._chunks: deque[tuple[bytes, bytes]] = deque()  # (bytes, reply) to be taken
        self._waiting = 0  # bytes of those
        self._end_reply: bytes | None = None  # the sender is done and waits for the result
        self._answer_to = b""  # whose bytes are being taken
        self._s2 = S2Reader()
        self._plain = b""
        self._marked = False
        self._state: StreamState | None = None
        self._consumers: list[archive.ArchivedConsumer] = []
        self._names: list[str] = []
        self._whole = False
        self._syncing = False
        self._store: StreamStore | None = None
        self._subscription = Subscription(ServiceSink(self._on_chunk), self.deliver_subject.encode())
        engine.index.insert(self._subscription)

    @property
    def name(self) -> str:
        """Of the stream."""
        return self.config.name

    @property
    def stored_bytes(self) -> int:
        """That the stream holds so far."""
        return self._store.log.bytes if self._store is not None else 0

    # --- chunks --------------------------------------------------------------------------------

    def _on_chunk(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None
    ) -> None:
        if self.is_done or self._end_reply is not None:
            return
        if not reply:
            self._engine.defer(lambda: self._fail("requires reply subject for each chunk", b""))
            return
        self.deadline = self._engine.clock() + STALLED_NS
        self._engine.wake()
        if not payload:
            self._end_reply = reply
            return
        self._received += len(payload)
        self._waiting += len(payload)
        self._chunks.append((payload, reply))

    def advance(self, now: int) -> bool:
        """Takes a slice of what came; is there more to take at once?"""
        if self.is_done or self._syncing:
            return False
        if self._waiting > WAITING_MAX:
            self._fail(f"more than {WAITING_MAX} bytes were sent without waiting for answers", b"")
            return False
        try:
            more = self._take(SLICE_BYTES)
            if self._store is not None:
                self._store.write()
        except (ProtocolError, StoreError, ValueError) as error:
            self._fail(str(error), self._answer_to)
            return False
        except JetStreamApiError as error:
            self._fail(error.description, self._answer_to)
            return False
        if more:
            self.deadline = now + STALLED_NS
        elif self._end_reply is not None:
            self._complete()
        return more

    def _take(self, enough: int) -> bool:
        """Decompresses and stores; returns whether it stopped because it was enough."""
        taken = 0
        while taken < enough:
            plain = self._s2.read()
            if plain is not None:
                taken += len(plain) + 1
                self._plain += plain
                self._store_plain()
                continue
            if self._answer_to:
                self._answer(self._answer_to, b"")
                self._answer_to = b""
            if not self._chunks:
                return False
            chunk, self._answer_to = self._chunks.popleft()
            self._waiting -= len(chunk)
            self._s2.feed(chunk)
        return True

    def _answer(self, reply: bytes, payload: bytes) -> None:
        publish(self._engine.index, reply, b"", b"", payload)

    # --- what is in them -----------------------------------------------------------------------

    def _store_plain(self) -> None:
        at = 0
        if not self._marked:
            if len(self._plain) < len(archive.MARK):
                return
            if not self._plain.startswith(archive.MARK):
                raise ProtocolError(
                    "not an archive of a server from 2.15 on: back the stream up with such a server"
                )
            self._marked = True
            at = len(archive.MARK)
        while self._state is None or len(self._consumers) < self._state.consumer_count:
            taken = archive.take_entry(self._plain, at)
            if taken is None:
                self._plain = self._plain[at:]
                return
            entry, at = taken
            self._take_head(entry)
        if self._whole and len(self._plain) > at:
            raise ProtocolError("archive: bytes behind its end")
        if self._store is not None and not self._whole:
            at, self._whole = unpack_messages(self._store.log, self._plain, at, self._size_max())
            self._check_room(0)
        self._plain = self._plain[at:]

    def _take_head(self, entry: archive.Entry) -> None:
        """The state, then the consumers."""
        if self._state is None:
            if entry.name != archive.STATE_NAME:
                raise ProtocolError(f"expected {archive.STATE_NAME} first")
            self._begin(decode(StreamState, entry.payload))
            return
        name = entry.name.removeprefix(archive.CONSUMER_PREFIX)
        if name == entry.name:
            raise ProtocolError(f"expected consumer, found {entry.name!r}")
        self._consumers.append(decode(archive.ArchivedConsumer, entry.payload))
        self._names.append(name)

    def _begin(self, state: StreamState) -> None:
        """Makes the unfinished stream."""
        check_state(state)
        self._state = state
        self._check_room(state.bytes)
        meta = msgspec.json.encode(StreamMeta(self.config, self._engine.clock(), restoring=True))
        self._store = self._engine.stores.create_stream(self.name, meta, self.config.storage.value)
        if state.first_seq > 1:
            self._store.log.set_first_seq(state.first_seq)

    def _size_max(self) -> int:
        size = self._engine.config.max_payload
        return min(size, self.config.max_msg_size) if self.config.max_msg_size >= 0 else size

    def _check_room(self, size: int) -> None:
        if not self._engine.capacity.has_room(self.config.storage, size):
            if self.config.storage is StorageType.MEMORY:
                raise codes.MEMORY_RESOURCES_EXCEEDED.exception()
            raise codes.STORAGE_RESOURCES_EXCEEDED.exception()

    # --- the end -------------------------------------------------------------------------------

    def _complete(self) -> None:
        """Everything came: to the disk with it, then it becomes a stream."""
        store, state = self._store, self._state
        if store is None or state is None or not self._whole or not self._s2.is_empty:
            self._fail("backup was truncated", self._end_reply or b"")
            return
        if state.last_seq > store.log.last_seq:
            store.log.skip_to(state.last_seq, store.log.last_ts)
        self._syncing = True
        try:
            for name, consumer in zip(self._names, self._consumers, strict=True):
                if consumer.config.ack_policy is not AckPolicy.FLOW_CONTROL:  # a mirror's: it makes it anew
                    self._create_consumer(store, name, consumer)
            store.write()
            store.start_sync(self._synced)
        except (JetStreamApiError, StoreError, OverflowError, ValueError) as error:
            self._fail(getattr(error, "description", "") or str(error), self._end_reply or b"")

    def _create_consumer(self, store: StreamStore, name: str, archived: archive.ArchivedConsumer) -> None:
        config = msgspec.structs.replace(archived.config, name=name)
        config = rules.checked(config, self.config, self._engine.config)
        state = archived.state
        fresh = state.delivered == archive.SequencePair()
        one_per_subject = self.config.max_msgs_per_subject == 1
        start = start_of(config, store.log, one_per_subject=one_per_subject) if fresh else None
        meta = ConsumerMeta(
            config,
            name,
            self._engine.clock(),
            start.seq if start is not None else 1,
            start.resume_seq if start is not None else 0,
        )
        kept = store.create_consumer(name, encode(meta), config.mem_storage)
        if not fresh:
            kept.snapshot(consumer_snapshot(config, state, store.log.last_seq))

    def _synced(self, error: StoreWriteError | None) -> None:
        if self.is_done:
            return
        if error is not None:
            self._fail(str(error), self._end_reply or b"")
            return
        self._engine.defer(self._finish)

    def _finish(self) -> None:
        if self.is_done or self._store is None:
            return
        try:
            self._store.save_meta(msgspec.json.encode(StreamMeta(self.config, self._engine.clock())))
            stream = self._engine.adopt(self._store)
        except StoreError as error:
            self._fail(str(error), self._end_reply or b"")
            return
        self._store = None  # it is the stream's now
        self.stop()
        now = self._engine.clock()
        self._tell(now)
        response = StreamCreateResponse(
            config=stream_config.with_versions(stream.config, self._engine.config),
            created=format_time(stream.created),
            state=stream.state(),
            domain=self._engine.config.domain,
            ts=format_time(now),
        )
        self._answer(self._end_reply or b"", encode(response))

    def _fail(self, why: str, reply: bytes) -> None:
        """It can't become a stream: says so to whoever waits, and removes what there is."""
        if self.is_done:
            return
        log.warning("restore of stream %s failed: %s", self.name, why)
        waiting = [reply, self._answer_to, *(one for _, one in self._chunks), self._end_reply or b""]
        try:
            self.abandon()
        except StoreError as error:
            log.error("stream %s: what was restored of it can not be removed: %s", self.name, error)
        self._tell(self._engine.clock())
        response = ErrorResponse(type=RESPONSE_TYPE, error=codes.STREAM_RESTORE.format(err=why))
        for one in dict.fromkeys(waiting):
            if one:
                self._answer(one, encode(response))

    def fail(self, why: str) -> None:
        """Ends it: whoever waits is told why."""
        self._fail(why, b"")

    def on_time(self, now: int) -> None:
        """Nothing came for too long."""
        if not self.is_done and not self._syncing and now >= self.deadline:
            self._fail(f"restore for stream '{self._engine.config.account} > {self.name}' is stalled", b"")

    def stop(self) -> None:
        """Takes no more chunks."""
        if not self.is_done:
            self.is_done = True
            self._engine.index.remove(self._subscription)

    def abandon(self) -> None:
        """Stops and removes what was restored so far. Raises StoreError."""
        self.stop()
        store, self._store = self._store, None
        if store is not None:
            store.delete()

    def _tell(self, now: int) -> None:
        fields = {
            "stream": self.name,
            "start": format_time(self._started),
            "end": format_time(now),
            "bytes": self._received,
            **self._fields,
        }
        self._engine.advisories.publish(f"STREAM.RESTORE_COMPLETE.{self.name}", "restore_complete", fields)


def check_state(state: StreamState) -> None:
    """Raises ProtocolError for a stream state that can not be."""
    first, last, messages = state.first_seq, state.last_seq, state.messages
    if min(first, last, messages, state.bytes, state.consumer_count) < 0 or max(first, last) > SEQ_MAX:
        raise ProtocolError("invalid stream state: a number below zero or above what a stream can hold")
    if (not first and (last or messages)) or (first > last + 1) or messages > max(0, last - first + 1):
        raise ProtocolError("invalid stream state: inconsistent message count or sequence range")


def consumer_snapshot(config: ConsumerConfig, state: archive.ArchivedState, last_seq: int) -> bytes:
    """What a consumer's store keeps for an archived state. Raises ValueError where that makes no sense."""
    delivered = min(state.delivered.stream_seq, last_seq)
    floor = (state.ack_floor.consumer_seq, min(state.ack_floor.stream_seq, last_seq))
    pending, given_up = [], []
    for seq, one in sorted(state.pending.items()):
        times = min(state.redelivered.get(seq, 0) + 1, UINT32_MAX)
        if seq <= delivered and config.ack_policy is not AckPolicy.NONE:
            pending.append((seq, one.sequence, one.timestamp, times))
    for seq, count in sorted(state.redelivered.items()):
        # One that is not pending was given up, if it had as many deliveries as it may have.
        if seq not in state.pending and 0 < config.max_deliver <= count + 1:
            given_up.append((seq, min(count + 1, UINT32_MAX)))
    policy = _KERNEL_POLICY[config.ack_policy]
    made = make_snapshot(policy, (state.delivered.consumer_seq, delivered), floor, pending, given_up)
    AckState(policy).restore(made)
    return made
