"""Restores: takes the chunks of an archive, on the subject in the response to a STREAM.RESTORE request.

The stream's store is created when the archive's state was read, with an "incomplete" mark
(`StreamMeta.restoring`). After everything is synced, one atomic write removes the mark; until then the stream
is not visible, and a restart removes it. So a restore is complete or absent.

Each chunk gets an empty response when it was processed. An empty chunk ends the archive; its response has the
stream, or error 10062. The chunk that causes a failure gets the error too.

Restoring is counted as work: bytes, plus a cost per chunk, entry and message. A few bytes may expand to
megabytes, and a megabyte may be a quarter million chunks.

Invariants: a step ends once the allowed work is done, or at most one compressed chunk (4 MiB) later; a byte
is moved a fixed number of times, however the archive is split; buffered chunks, entries and consumers count
in `held_bytes`, which transfers.py limits over all restores.

Rejected: collecting the archive in a file first (needs the space twice).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator
from heapq import merge
from typing import Any, TypeVar

import msgspec

from penstock.errors import JetStreamApiError, ProtocolError, StoreError, StoreWriteError
from penstock.jetstream import stream_config
from penstock.jetstream.consumer import consumer_config as rules
from penstock.jetstream.consumer.start import start_of
from penstock.jetstream.consumer.state import KERNEL_POLICY, ConsumerMeta
from penstock.jetstream.limits import SECOND_NS, SEQ_MAX
from penstock.jetstream.stream.stream_replica import StreamMeta, StreamReplica
from penstock.jetstream.transfer_ports import TransferPorts
from penstock.kernels.consumer.ack_encoding import make_snapshot
from penstock.kernels.consumer.ack_state import AckState
from penstock.kernels.log.archive import ENTRY_CUT, ENTRY_LAST, unpack_messages
from penstock.kernels.wire.dispatch import ServiceSink, publish
from penstock.kernels.wire.sinks import Sink, SinkSubscription
from penstock.protocol import error_codes as codes
from penstock.protocol import snapshot_archive
from penstock.protocol.api import (
    TYPE_PREFIX,
    AckPolicy,
    ApiConsumerConfig,
    ApiStreamConfig,
    ErrorResponse,
    StorageType,
    StreamCreateResponse,
    StreamState,
    decode,
    encode,
)
from penstock.protocol.durations import format_time
from penstock.protocol.s2_stream import S2Reader
from penstock.store.interface import StreamStore

log = logging.getLogger("penstock.jetstream")

T = TypeVar("T")

STALLED_NS = 5 * SECOND_NS
WAITING_MAX = 64 * 1024 * 1024  # bytes of chunks sent without waiting for responses
# Units of work: 1 is a byte of the plain archive, about 2 ns.
CHUNK_WORK = 4096  # a chunk is taken, and gets a response
BLOCK_WORK = 512  # a chunk of the compressed stream is read
CONSUMER_WORK = 32 * 1024  # an entry of a consumer is read, or the consumer is created
CONSUMER_BYTE_WORK = 8
MESSAGE_WORK = 128
READ_WORK = 512  # a message of a consumer's state
MESSAGES_SLICE = 512
# Memory in addition to the bytes held.
RESTORE_SIZE = 64 * 1024
CHUNK_SIZE = 256
CONSUMER_SIZE_FACTOR = 4  # of a parsed consumer, per byte of its entry
UINT32_MAX = 2**32 - 1
TakeIn = Callable[[StreamStore, Callable[[StreamReplica | str], None]], None]

RESPONSE_TYPE = TYPE_PREFIX + "stream_create_response"


class Restore:
    """One restore.

    fields: those of its advisories besides stream and times (`client`). resume: called when it may continue
    after it waited for the disk. take_in: takes the store of a complete archive in a cluster, where the
    stream is not opened here, and calls back with the stream or with why there is none.
    """

    def __init__(
        self,
        ports: TransferPorts,
        config: ApiStreamConfig,
        *,
        fields: dict[str, Any],
        resume: Callable[[Restore, int], None],
        now: int,
        take_in: TakeIn | None = None,
    ) -> None:
        self.config = config
        self._take_in = take_in
        self.deliver_subject = f"$JS.SNAPSHOT.RESTORE.{config.name}.{ports.new_id()}"
        self.is_done = False
        self.deadline = now + STALLED_NS
        self._ports = ports
        self._resume = resume
        self._fields = fields
        self._started = now
        self._received = 0
        self._chunks: deque[tuple[bytes, bytes]] = deque()  # (bytes, reply) to be processed
        self._waiting = 0  # bytes of those
        self._end_reply: bytes | None = None  # the sender has ended the archive and waits for the result
        self._answer_to = b""  # the reply subject of the current chunk
        self._s2 = S2Reader()
        self._plain = bytearray()
        self._marked = False
        self._state: StreamState | None = None
        self._consumers: deque[tuple[str, snapshot_archive.ArchivedConsumer]] = deque()
        self._consumers_left = 0  # entries yet to come
        self._consumers_size = 0
        self._whole = False
        self._syncing = False
        # of the consumer or stream under construction
        self._steps: Generator[int, None, object] | None = None
        self._adopting = False
        self._opening: Generator[int, None, StreamReplica] = _nothing()
        self._store: StreamStore | None = None
        self._subscription = SinkSubscription(ServiceSink(self._on_chunk), self.deliver_subject.encode())
        ports.index.insert(self._subscription)

    @property
    def name(self) -> str:
        """The stream's name."""
        return self.config.name

    @property
    def stored_bytes(self) -> int:
        """Bytes in the stream so far."""
        return self._store.log.bytes if self._store is not None else 0

    @property
    def held_bytes(self) -> int:
        """Memory of data that is received but not stored."""
        chunks = self._waiting + CHUNK_SIZE * len(self._chunks)
        return RESTORE_SIZE + chunks + self._s2.size + len(self._plain) + self._consumers_size

    # --- chunks --------------------------------------------------------------------------------

    def _on_chunk(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None
    ) -> None:
        if self.is_done or self._end_reply is not None:
            return
        if not reply:
            self._ports.defer(lambda: self.fail("requires reply subject for each chunk"))
            return
        self.deadline = self._ports.clock() + STALLED_NS
        self._ports.wake()
        if not payload:
            self._end_reply = reply
            return
        self._received += len(payload)
        self._waiting += len(payload)
        self._chunks.append((payload, reply))

    def advance(self, now: int, work: int) -> int:
        """Processes received data, up to `work` units; returns the work left. 0 or less: call again."""
        if self.is_done or self._syncing:
            return work
        if self._adopting:
            return self._adopt(now, work)
        if self._waiting > WAITING_MAX:
            self.fail(f"more than {WAITING_MAX} bytes were sent without waiting for responses")
            return work
        try:
            left = self._take(work)
            if left > 0 and self._end_reply is not None:
                left = self._complete(left)
            if self._store is not None and not self._syncing:
                self._store.write()
        except (ProtocolError, StoreError, ValueError, OverflowError) as error:
            self.fail(str(error))
            return 0
        except JetStreamApiError as error:
            self.fail(error.description)
            return 0
        if left <= 0:
            self.deadline = now + STALLED_NS
        return left

    def _take(self, left: int) -> int:
        """Decompresses and stores; returns the work left."""
        while left > 0:
            left, is_cut = self._store_plain(left)
            if not is_cut:
                break
            plain = self._s2.read()
            if plain is not None:
                left -= len(plain) + BLOCK_WORK
                self._plain += plain
                continue
            if self._answer_to:
                self._answer(self._answer_to, b"")
                self._answer_to = b""
            if not self._chunks:
                break
            chunk, self._answer_to = self._chunks.popleft()
            self._waiting -= len(chunk)
            left -= CHUNK_WORK
            self._s2.feed(chunk)
        return left

    def _answer(self, reply: bytes, payload: bytes) -> None:
        publish(self._ports.index, reply, b"", b"", payload)

    # --- what is in them -----------------------------------------------------------------------

    def _store_plain(self, left: int) -> tuple[int, bool]:
        """Processes complete entries; returns the work left, and False when it needs more data."""
        at = 0
        if not self._marked:
            if len(self._plain) < len(snapshot_archive.MARK):
                return left, True
            if not self._plain.startswith(snapshot_archive.MARK):
                raise ProtocolError(
                    "not an archive of a server from 2.15 on: make the snapshot with such a server"
                )
            self._marked = True
            at = len(snapshot_archive.MARK)
        is_cut = False
        while (self._state is None or self._consumers_left) and left > 0 and not is_cut:
            size_max = snapshot_archive.STATE_MAX if self._state is None else snapshot_archive.CONSUMER_MAX
            taken = snapshot_archive.take_entry(self._plain, at, size_max)
            is_cut = taken is None
            if taken is not None:
                entry, at = taken
                left -= CONSUMER_WORK + CONSUMER_BYTE_WORK * len(entry.payload)
                self._take_head(entry)
        if self._store is not None and not self._consumers_left and not self._whole and left > 0:
            most = 1 + left // MESSAGE_WORK
            at, count, end = unpack_messages(self._store.log, self._plain, at, self._size_max(), most)
            left -= count * MESSAGE_WORK
            is_cut, self._whole = end == ENTRY_CUT, end == ENTRY_LAST
            self._check_room(0)
        if self._whole:
            if len(self._plain) > at:
                raise ProtocolError("archive: data after its end")
            is_cut = True
        if at:
            del self._plain[:at]  # moves the rest only once
        return left, is_cut

    def _take_head(self, entry: snapshot_archive.ArchiveEntry) -> None:
        """Processes the state entry, then the consumers."""
        if self._state is None:
            if entry.name != snapshot_archive.STATE_NAME:
                raise ProtocolError(f"expected {snapshot_archive.STATE_NAME} first")
            self._begin(decode(StreamState, entry.payload))
            return
        name = entry.name.removeprefix(snapshot_archive.CONSUMER_PREFIX)
        if name == entry.name:
            raise ProtocolError(f"expected consumer, found {entry.name!r}")
        self._consumers.append((name, decode(snapshot_archive.ArchivedConsumer, entry.payload)))
        self._consumers_size += CONSUMER_SIZE_FACTOR * (len(entry.payload) + len(entry.name))
        self._consumers_left -= 1

    def _begin(self, state: StreamState) -> None:
        """Creates the incomplete stream."""
        check_state(state)
        self._state = state
        self._consumers_left = state.consumer_count
        self._check_room(state.bytes)
        meta = msgspec.json.encode(StreamMeta(self.config, self._ports.clock(), restoring=True))
        self._store = self._ports.stores.create_stream(self.name, meta, self.config.storage.value)
        if state.first_seq > 1:
            self._store.log.set_first_seq(state.first_seq)

    def _size_max(self) -> int:
        size = self._ports.config().max_payload
        return min(size, self.config.max_msg_size) if self.config.max_msg_size >= 0 else size

    def _check_room(self, size: int) -> None:
        if not self._ports.has_room(self.config.storage, size):
            if self.config.storage is StorageType.MEMORY:
                raise codes.MEMORY_RESOURCES_EXCEEDED.exception()
            raise codes.STORAGE_RESOURCES_EXCEEDED.exception()

    # --- the end -------------------------------------------------------------------------------

    def _complete(self, left: int) -> int:
        """Completes the restore in steps: creates consumers, syncs, then opens the stream."""
        store, state = self._store, self._state
        if store is None or state is None or not self._whole or not self._s2.is_empty:
            raise ProtocolError("backup was truncated")
        if state.last_seq > store.log.last_seq:
            store.log.skip_to(state.last_seq, store.log.last_ts)
        while (self._consumers or self._steps is not None) and left > 0:
            if self._steps is None:
                name, consumer = self._consumers.popleft()
                if consumer.config.sourcing:  # a mirror creates its own
                    continue
                self._steps = self._create_consumer(store, name, consumer)
            left = self._step(left)
        if not self._consumers and left > 0:
            self._syncing = True
            store.write()
            store.start_sync(self._synced)
        return left

    def _step(self, left: int) -> int:
        """Runs one step of the construction in progress; returns the work left."""
        assert self._steps is not None
        try:
            return left - next(self._steps)
        except StopIteration:
            self._steps = None
            return left

    def _create_consumer(
        self, store: StreamStore, name: str, archived: snapshot_archive.ArchivedConsumer
    ) -> Generator[int, None, None]:
        config = msgspec.structs.replace(archived.config, name=name)
        config = rules.checked(config, self.config, self._ports.config())
        state = archived.state
        fresh = state.delivered == snapshot_archive.SequencePair()
        one_per_subject = self.config.max_msgs_per_subject == 1
        start = start_of(config, store.log, one_per_subject=one_per_subject) if fresh else None
        meta = ConsumerMeta(
            config,
            name,
            self._ports.clock(),
            start.seq if start is not None else 1,
            start.resume_seq if start is not None else 0,
            driven=False,
        )
        consumer_store = store.create_consumer(name, encode(meta), config.mem_storage)
        yield CONSUMER_WORK
        if not fresh:
            consumer_store.snapshot((yield from consumer_snapshot(config, state, store.log.last_seq)))

    def _synced(self, error: StoreWriteError | None) -> None:
        if self.is_done:
            return
        if error is not None:
            self.fail(str(error))
            return
        self._ports.defer(self._finish)

    def _finish(self) -> None:
        if self.is_done or self._store is None:
            return
        if self._take_in is not None:
            try:
                self._take_in(self._store, self._taken_in)
            except (StoreError, msgspec.DecodeError) as error:
                self.fail(str(error))
            else:
                self._store = None  # now owned by the cluster
            return
        try:
            self._store.save_meta(msgspec.json.encode(StreamMeta(self.config, self._ports.clock())))
        except StoreError as error:
            self.fail(str(error))
            return
        self._syncing, self._adopting = False, True
        self._opening = self._ports.adopt(self._store)
        self._resume(self, self._ports.clock())

    def _taken_in(self, result: StreamReplica | str) -> None:
        if self.is_done:
            return
        if isinstance(result, str):
            self.fail(result)
        else:
            self._adopted(result)
        self._resume(self, self._ports.clock())

    def _adopt(self, now: int, left: int) -> int:
        """Opens the stream with its consumers; returns the work left."""
        self.deadline = now + STALLED_NS
        try:
            while left > 0:
                left -= next(self._opening)
        except StopIteration as end:
            self._adopted(end.value)
        except StoreError as error:
            self.fail(str(error))
        return left

    def _adopted(self, stream: StreamReplica) -> None:
        self._store = None  # now owned by the stream
        self.stop()
        now = self._ports.clock()
        self._tell(now)
        response = StreamCreateResponse(
            config=stream_config.with_versions(stream.config, self._ports.config()),
            created=format_time(stream.created),
            state=stream.state(),
            domain=self._ports.config().domain,
            ts=format_time(now),
        )
        self._answer(self._end_reply or b"", encode(response))

    def fail(self, why: str) -> None:
        """Ends the restore with an error: reports it to all replies that wait, and removes the store."""
        if self.is_done:
            return
        log.warning("restore of stream %s failed: %s", self.name, why)
        waiting = [self._answer_to, *(one for _, one in self._chunks), self._end_reply or b""]
        try:
            self.abandon()
        except StoreError as error:
            log.error("stream %s: its partial restore cannot be removed: %s", self.name, error)
        self._tell(self._ports.clock())
        response = ErrorResponse(type=RESPONSE_TYPE, error=codes.STREAM_RESTORE.format(err=why))
        for one in dict.fromkeys(waiting):
            if one:
                self._answer(one, encode(response))

    def on_time(self, now: int) -> None:
        """Ends the restore when no chunk arrived for too long."""
        if not self.is_done and not self._syncing and now >= self.deadline:
            self.fail(f"restore for stream '{self._ports.config().account} > {self.name}' is stalled")

    def stop(self) -> None:
        """Stops taking chunks."""
        if not self.is_done:
            self.is_done = True
            self._ports.index.remove(self._subscription)

    def abandon(self) -> None:
        """Stops and removes the partial stream. Raises StoreError."""
        self.stop()
        self._opening.close()
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
        self._ports.advisories.publish(f"STREAM.RESTORE_COMPLETE.{self.name}", "restore_complete", fields)


def check_state(state: StreamState) -> None:
    """Raises ProtocolError for an inconsistent stream state."""
    first, last, messages = state.first_seq, state.last_seq, state.messages
    if min(first, last, messages, state.bytes, state.consumer_count) < 0 or max(first, last) > SEQ_MAX:
        raise ProtocolError("invalid stream state: a number is below zero or above a stream's limit")
    if (not first and (last or messages)) or (first > last + 1) or messages > max(0, last - first + 1):
        raise ProtocolError("invalid stream state: inconsistent message count or sequence range")


def consumer_snapshot(
    config: ApiConsumerConfig, state: snapshot_archive.ArchivedState, last_seq: int
) -> Generator[int, None, bytes]:
    """The stored form of an archived consumer state; yields work. Raises ProtocolError, DecodeError or
    ValueError for an invalid state."""
    delivered = min(state.delivered.stream_seq, last_seq)
    floor = (state.ack_floor.consumer_seq, min(state.ack_floor.stream_seq, last_seq))
    redelivered, given_up_seqs = yield from _by_seq(snapshot_archive.pieces(state.redelivered, int))
    unacked, pending_seqs = yield from _by_seq(
        snapshot_archive.pieces(state.pending, snapshot_archive.PendingMessage)
    )
    pending, given_up = [], []
    for at, seq in enumerate(pending_seqs, 1):
        times = min(redelivered.get(seq, 0) + 1, UINT32_MAX)
        if seq <= delivered and config.ack_policy is not AckPolicy.NONE:
            pending.append((seq, unacked[seq].sequence, unacked[seq].timestamp, times))
        if not at % MESSAGES_SLICE:
            yield MESSAGES_SLICE * READ_WORK
    for at, seq in enumerate(given_up_seqs, 1):
        # Not pending: given up, if it had the maximum number of deliveries.
        count = redelivered[seq]
        if seq not in unacked and 0 < config.max_deliver <= count + 1:
            given_up.append((seq, min(count + 1, UINT32_MAX)))
        if not at % MESSAGES_SLICE:
            yield MESSAGES_SLICE * READ_WORK
    policy = KERNEL_POLICY[config.ack_policy]
    made = make_snapshot(policy, (state.delivered.consumer_seq, delivered), floor, pending, given_up)
    yield len(pending) * MESSAGE_WORK
    AckState(policy).restore(made)
    return made


def _by_seq(parts: Iterator[dict[int, T]]) -> Generator[int, None, tuple[dict[int, T], Iterator[int]]]:
    """Merges the parts; returns them with an iterator over their sequences in order. It sorts lazily: a
    hundred thousand at once would take long."""
    found: dict[int, T] = {}
    seqs: list[list[int]] = []
    for part in parts:
        seqs.append(sorted(seq for seq in part if seq not in found))
        found |= part
        yield len(part) * READ_WORK
    return found, merge(*seqs)


def _nothing() -> Generator[int, None, StreamReplica]:
    """Placeholder until there is a stream to open."""
    raise AssertionError("nothing is restored yet")
    yield 0
