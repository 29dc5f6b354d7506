"""Snapshots: sends a stream's archive in chunks to the deliver subject of a STREAM.SNAPSHOT request.

The contents are fixed by the request: its consumers, and messages up to the last sequence at that time. A
consumer's state is taken when its entry is written, limited to those messages; messages that are removed
meanwhile are omitted. A chunk's reply subject takes its ack; the window limits unacked chunks. The last chunk
and the empty message after it have no reply subject. That message has status 408 or 500 when the archive is
incomplete, else 204; as on the official server it has none when no chunk was full.

The receiver may subscribe after the response, as the `nats` command line does, so the first chunk waits for
it, at most two seconds. Until then, only a subscription to exactly the deliver subject counts as the
receiver's: a wildcard exists for other reasons, such as a client's inbox for all responses, and a chunk that
only such a subscription receives is lost. After the two seconds, as on the official server, chunks are sent
to any subscription that matches: the receiver may have used a wildcard.

Invariant: at most a slice of the archive and one chunk are in memory.

Rejected: writing the archive to a file first (doubles the disk space that a snapshot needs).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from penstock.jetstream.consumer.consumer_replica import ConsumerReplica
from penstock.jetstream.limits import SECOND_NS
from penstock.jetstream.stream.stream_replica import StreamReplica
from penstock.jetstream.transfer_ports import TransferPorts
from penstock.kernels.ingest.ingest import StreamSink
from penstock.kernels.log.archive import pack_messages
from penstock.kernels.wire.dispatch import ServiceSink, publish
from penstock.kernels.wire.sinks import Sink, SinkSubscription
from penstock.protocol import snapshot_archive
from penstock.protocol.api import encode
from penstock.protocol.durations import format_time
from penstock.protocol.s2_stream import IDENTIFIER, encode_chunks
from penstock.protocol.status import NO_CONTENT, NO_FLOW_RESPONSE, NO_INTEREST, Status

KIB = 1024
CHUNK_DEFAULT, CHUNK_MIN, CHUNK_MAX = 128 * KIB, KIB, 1024 * KIB
WINDOW_DEFAULT, WINDOW_MIN, WINDOW_MAX = 8192 * KIB, KIB, 32 * 1024 * KIB
SLICE_BYTES = 256 * KIB  # of the archive, produced and sent per tick
MESSAGES_SLICE = 1024  # of a consumer, encoded per tick
INTEREST_WAIT_NS = 2 * SECOND_NS
ACK_WAIT_NS = 5 * SECOND_NS


class Snapshot:
    """One snapshot. fields: those of its advisories besides stream and times (`client`)."""

    def __init__(
        self,
        ports: TransferPorts,
        stream: StreamReplica,
        deliver_subject: str,
        *,
        consumers: bool,
        chunk_size: int,
        window_size: int,
        fields: dict[str, Any],
        now: int,
    ) -> None:
        self.id = ports.new_id()
        self.state = stream.state()
        self.is_done = False
        self.deadline = now + INTEREST_WAIT_NS
        self._ports = ports
        self._stream = stream
        self._subject = deliver_subject.encode()
        self._fields = fields
        self._started = now
        # Whether the receiver is subscribed; None until the first chunk may leave.
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
        ports.index.insert(self._acks)
        ports.interest.await_listener(self, self._subject, ports.wake)

    # --- what is sent --------------------------------------------------------------------------

    def _archive(self, with_consumers: bool, now: int) -> Iterator[bytes]:
        """Yields the compressed archive in slices."""
        log = self._stream.log
        consumers = [
            one
            for _, one in sorted(self._stream.consumers.items())
            if with_consumers and not (one.config.direct or one.is_driven)
        ]
        self.state = msgspec.structs.replace(self.state, consumer_count=len(consumers))
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
        """Sends at most a slice of the archive. Returns whether more can be sent without waiting."""
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
        """Why it cannot continue: the receiver's status, and the advisory's text; None when it can."""
        if not self._ports.table.has(self._stream):
            return Status(500, "stream deleted"), "stream deleted"
        if self._stream.log.lost != self._lost:
            return Status(500, "a message cannot be read"), "a message cannot be read"
        if self._is_heard is None:
            if self._has_receiver():
                self._begin(self._has_receiver, self._ports.clock())
        elif not self._is_heard():
            return NO_INTEREST, "no interest"
        return None

    def _has_receiver(self) -> bool:
        """Whether a client subscribes to exactly the deliver subject, or one behind another server does. A
        stream's subscription does not count."""
        match = self._ports.index.match(self._subject)
        return b"" in match.elsewhere or any(
            one.subject == self._subject and not isinstance(one.sink, StreamSink) for one in match.plain
        )

    def _has_interest(self) -> bool:
        return self._ports.index.has_interest(self._subject)

    def _begin(self, is_heard: Callable[[], bool], now: int) -> None:
        self._is_heard = is_heard
        self._ports.interest.stop(self)
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
        publish(self._ports.index, self._subject, reply, header, payload)

    def _on_ack(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None
    ) -> None:
        if not self.is_done and self._slots < self._slots_max:
            self._slots += 1
            self.deadline = max(self.deadline, self._ports.clock() + ACK_WAIT_NS)
            self._ports.wake()

    # --- the end -------------------------------------------------------------------------------

    def on_time(self, now: int) -> None:
        """Ends the snapshot when acks time out, or the receiver has not subscribed."""
        if self.is_done or now < self.deadline:
            return
        if self._is_heard is None:
            if self._has_interest():
                self._begin(self._has_interest, now)
            else:
                self._finish(NO_INTEREST, "no interest", now)
        elif self._slots:
            self.deadline = now + ACK_WAIT_NS  # it waits for this server
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
        self._ports.advisories.publish(
            f"STREAM.SNAPSHOT_COMPLETE.{self._stream.name}", "snapshot_complete", fields
        )

    def stop(self) -> None:
        """Stops without sending more."""
        if not self.is_done:
            self.is_done = True
            self._ports.index.remove(self._acks)
            self._ports.interest.stop(self)


def pack_consumer(consumer: ConsumerReplica, last_seq: int, now: int) -> Iterator[bytes]:
    """Yields the archive entry of a consumer, limited to stream sequences up to last_seq, in parts that may
    be empty."""
    state = consumer.state
    config = consumer.config
    delivered = snapshot_archive.SequencePair(state.delivered_consumer, min(state.delivered_stream, last_seq))
    floor = snapshot_archive.SequencePair(state.ack_floor_consumer, min(state.ack_floor_stream, last_seq))
    rows, given_up = state.pending(), state.given_up()  # everything at the same moment
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
