"""A stream on its way out: its archive, in chunks, to the subject a STREAM.SNAPSHOT request names.

What the archive holds is settled when the request comes: the consumers of then, and the messages up to the
last sequence of then. A consumer's state is that of its turn, as far as it is about those messages; messages
that leave while it is sent are left out. A chunk's reply takes its ack; as many chunks are on their
way as fit the window. The last chunk and the empty message after it have no reply; that message says
why the archive is not whole (408, 500), or 204; as on the official server nothing, when no chunk was full.

The receiver may subscribe after it got the response, as the `nats` command line does, so the first chunk
waits for it, two seconds at most. Until then only a subscription to exactly the deliver subject counts as the
receiver's: a wildcard is there for other reasons, a client's inbox for all its answers above all, and a chunk
that only such a subscription gets is lost. After the two seconds the chunks go to whatever takes the subject,
as with the official server: the receiver may have subscribed by a wildcard.

Invariant: at most a slice of the archive and one chunk are in memory.
Rejected: a file of the archive first (it doubles the disk a backup needs).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from penstock.jetstream.consumer.consumer_replica import ConsumerReplica
from penstock.jetstream.limits import SECOND_NS
from penstock.jetstream.stream.stream_replica import StreamReplica
from penstock.kernels.ingest.ingest import StreamSink
from penstock.kernels.log.archive_entries import pack_messages
from penstock.kernels.wire.dispatch import ServiceSink, publish
from penstock.kernels.wire.sinks import Sink, SinkSubscription
from penstock.protocol import snapshot_archive
from penstock.protocol.api import encode
from penstock.protocol.durations import format_time
from penstock.protocol.s2_stream import IDENTIFIER, encode_chunks
from penstock.protocol.status import NO_CONTENT, NO_FLOW_RESPONSE, NO_INTEREST, Status

if TYPE_CHECKING:
    from penstock.jetstream.engine import JetStreamEngine

KIB = 1024
CHUNK_DEFAULT, CHUNK_MIN, CHUNK_MAX = 128 * KIB, KIB, 1024 * KIB
WINDOW_DEFAULT, WINDOW_MIN, WINDOW_MAX = 8192 * KIB, KIB, 32 * 1024 * KIB
SLICE_BYTES = 256 * KIB  # of the archive, that one tick makes and sends
MESSAGES_SLICE = 1024  # of a consumer, that one tick makes
INTEREST_WAIT_NS = 2 * SECOND_NS
ACK_WAIT_NS = 5 * SECOND_NS


class Snapshot:
    """One backup. fields: what its advisories say besides stream and times (`client`)."""

    def __init__(
        self,
        engine: JetStreamEngine,
        stream: StreamReplica,
        deliver_subject: str,
        *,
        consumers: bool,
        chunk_size: int,
        window_size: int,
        fields: dict[str, Any],
        now: int,
    ) -> None:
        self.id = engine.new_id()
        self.state = stream.state()
        self.is_done = False
        self.deadline = now + INTEREST_WAIT_NS
        self._engine = engine
        self._stream = stream
        self._subject = deliver_subject.encode()
        self._fields = fields
        self._started = now
        # Whether somebody still listens; None until the first chunk may leave.
        self._is_heard: Callable[[], bool] | None = None
        self._lost = stream.log.lost
        self._chunk_size = min(max(CHUNK_MIN, chunk_size or CHUNK_DEFAULT), CHUNK_MAX)
        window = min(max(WINDOW_MIN, window_size or WINDOW_DEFAULT), WINDOW_MAX)
        self._slots = self._slots_max = max(1, window // self._chunk_size)
        self._sent = 0
        self._unsent = bytearray()
        self._pieces: Iterator[bytes] | None = self._archive(consumers, now)
        self._reply = f"$JS.SNAPSHOT.ACK.{stream.name}.{self.id}".encode()
        self._acks = SinkSubscription(ServiceSink(self._on_ack), self._reply + b".>")
        engine.index.insert(self._acks)
        engine.interest.await_listener(self, self._subject, engine.wake)

    # --- what is sent --------------------------------------------------------------------------

    def _archive(self, with_consumers: bool, now: int) -> Iterator[bytes]:
        """The compressed archive, slice by slice."""
        log = self._stream.log
        consumers = [
            one
            for _, one in sorted(self._stream.consumers.items())
            if with_consumers and not (one.config.direct or one.is_driven)
        ]
        self.state.consumer_count = len(consumers)
        head = snapshot_archive.pack_entry(
            snapshot_archive.ArchiveEntry(snapshot_archive.STATE_NAME, now, encode(self.state))
        )
        return self._compressed(snapshot_archive.MARK + head, consumers, log.first_seq, now)

    def _compressed(
        self, head: bytes, consumers: list[ConsumerReplica], seq: int, now: int
    ) -> Iterator[bytes]:
        last_seq = self.state.last_seq
        yield IDENTIFIER + encode_chunks(head)
        for consumer in consumers:
            for part in pack_consumer(consumer, last_seq, now):
                yield encode_chunks(part) if part else b""
        while seq:
            packed, seq = pack_messages(self._stream.log, seq, last_seq, SLICE_BYTES)
            yield encode_chunks(packed)
        yield encode_chunks(snapshot_archive.END)

    def advance(self, now: int) -> bool:
        """Sends what may be sent, a slice of the archive at most; is there more that doesn't wait?"""
        failure = self._failure()
        if failure is not None:
            self._finish(failure[0], failure[1], now)
        if self.is_done or self._is_heard is None:
            return False
        if len(self._unsent) < self._chunk_size and self._pieces is not None and self._slots:
            piece = next(self._pieces, None)
            if piece is None:
                self._pieces = None
            else:
                self._unsent += piece
        sent = 0
        while self._slots and len(self._unsent) >= self._chunk_size and sent < SLICE_BYTES:
            self._send_chunk(now)
            sent += self._chunk_size
        if self._pieces is None and len(self._unsent) < self._chunk_size:
            if self._unsent:
                self._publish(b"", b"", bytes(self._unsent))
            self._finish(NO_CONTENT if self._sent else None, "", now)
        return not self.is_done and self._slots > 0

    def _failure(self) -> tuple[Status, str] | None:
        """Why it can't go on: the status the receiver gets, and what the advisory says."""
        if self._engine.streams.get(self._stream.name) is not self._stream:
            return Status(500, "stream deleted"), "stream deleted"
        if self._stream.log.lost != self._lost:
            return Status(500, "a message can not be read"), "a message can not be read"
        if self._is_heard is None:
            if self._has_receiver():
                self._begin(self._has_receiver, self._engine.clock())
        elif not self._is_heard():
            return NO_INTEREST, "no interest"
        return None

    def _has_receiver(self) -> bool:
        """Is there a subscription for this backup alone? A stream takes the subject for its own reasons."""
        return any(
            one.subject == self._subject and not isinstance(one.sink, StreamSink)
            for one in self._engine.index.match(self._subject).plain
        )

    def _has_interest(self) -> bool:
        return self._engine.index.has_interest(self._subject)

    def _begin(self, is_heard: Callable[[], bool], now: int) -> None:
        self._is_heard = is_heard
        self._engine.interest.stop(self)
        self.deadline = now + ACK_WAIT_NS

    def _send_chunk(self, now: int) -> None:
        size = self._chunk_size
        self._sent += 1
        self._slots -= 1
        self.deadline = now + ACK_WAIT_NS
        chunk = bytes(self._unsent[:size])
        del self._unsent[:size]
        self._publish(b"%s.%d.%d" % (self._reply, size, self._sent), b"", chunk)

    def _publish(self, reply: bytes, header: bytes, payload: bytes) -> None:
        publish(self._engine.index, self._subject, reply, header, payload)

    def _on_ack(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None
    ) -> None:
        if not self.is_done and self._slots < self._slots_max:
            self._slots += 1
            self.deadline = max(self.deadline, self._engine.clock() + ACK_WAIT_NS)
            self._engine.wake()

    # --- the end -------------------------------------------------------------------------------

    def on_time(self, now: int) -> None:
        """Gives up when nobody acks, or nobody came to listen."""
        if self.is_done or now < self.deadline:
            return
        if self._is_heard is None:
            if self._has_interest():
                self._begin(self._has_interest, now)
            else:
                self._finish(NO_INTEREST, "no interest", now)
        elif self._slots:
            self.deadline = now + ACK_WAIT_NS  # it waits for us
        else:
            self._finish(NO_FLOW_RESPONSE, "no flow response", now)

    def _finish(self, status: Status | None, error: str, now: int) -> None:
        self.stop()
        self._publish(b"", status.block() if status is not None else b"", b"")
        fields = {
            "stream": self._stream.name,
            "start": format_time(self._started),
            "end": format_time(now),
            **self._fields,
            **({"error": error} if error else {}),
        }
        self._engine.advisories.publish(
            f"STREAM.SNAPSHOT_COMPLETE.{self._stream.name}", "snapshot_complete", fields
        )

    def stop(self) -> None:
        """Sends nothing any more."""
        if not self.is_done:
            self.is_done = True
            self._engine.index.remove(self._acks)
            self._engine.interest.stop(self)


def pack_consumer(consumer: ConsumerReplica, last_seq: int, now: int) -> Iterator[bytes]:
    """The entry of a consumer, of what the archive holds: nothing behind stream sequence last_seq. In parts,
    with empty ones while it is made."""
    state = consumer.state
    config = consumer.config
    delivered = snapshot_archive.SequencePair(state.delivered_consumer, min(state.delivered_stream, last_seq))
    floor = snapshot_archive.SequencePair(state.ack_floor_consumer, min(state.ack_floor_stream, last_seq))
    rows, given_up = state.pending(), state.given_up()  # all of it at one moment
    pending, redelivered = [], []
    for at in range(0, len(rows), MESSAGES_SLICE):
        some = [row for row in rows[at : at + MESSAGES_SLICE] if row[0] <= last_seq]
        pending.append(
            encode({seq: snapshot_archive.PendingMessage(number, ts) for seq, number, ts, _ in some})
        )
        redelivered.append(encode({seq: times - 1 for seq, _, _, times in some if times > 1}))
        yield b""
    for at in range(0, len(given_up), MESSAGES_SLICE):
        gone = given_up[at : at + MESSAGES_SLICE]
        redelivered.append(encode({seq: max(times - 1, 1) for seq, times in gone if seq <= last_seq}))
        yield b""
    archived = snapshot_archive.ArchivedState(
        delivered, floor, snapshot_archive.joined(pending), snapshot_archive.joined(redelivered)
    )
    body = encode(snapshot_archive.ArchivedConsumer(config, archived))
    entry = snapshot_archive.pack_entry(
        snapshot_archive.ArchiveEntry(snapshot_archive.CONSUMER_PREFIX + consumer.name, now, body)
    )
    for at in range(0, len(entry), SLICE_BYTES):
        yield entry[at : at + SLICE_BYTES]
