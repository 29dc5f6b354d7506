"""Checks dead letters: each message that a consumer gave up is stored in the dead letter stream exactly once
and unchanged, and nothing else is.

All dead letters of a run go to one stream without limits, from which nothing is removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from penstock.jetstream.consumer import dead_letters
from penstock.jetstream.stream.stream_replica import StreamReplica
from penstock.protocol import headers
from penstock.testing.sim import Violation, require
from penstock.testing.sim.consumer_checks import ConsumerRecord
from penstock.testing.sim.stream_checks import StreamRecord, tag_in

LETTERS = "L"
CONFIG = {"name": LETTERS, "subjects": [f"{LETTERS}.>"], "duplicate_window": 100_000_000}

Consumers = Mapping[tuple[str, str], ConsumerRecord]
Streams = Mapping[str, StreamRecord]


class DeadLetterChecks:
    """The stored dead letters."""

    def __init__(self) -> None:
        self._stored: dict[bytes, int] = {}  # by message id
        self._repeatable: set[bytes] = set()  # of those, where a crash revoked what their consumers recorded
        self._started_over: set[bytes] = set()  # first parts of their ids, for consumers that were reset
        self._lossy = False  # messages were lost: sequences may be reused
        self._looked_upto = 0

    def look(self, stream: StreamReplica, streams: Streams, consumers: Consumers) -> None:
        """Checks new dead letters."""
        log = stream.log
        seq = log.next_seq(self._looked_upto + 1)
        while seq:
            self._take(stream, seq, streams, consumers)
            seq = log.next_seq(seq + 1)
        self._looked_upto = log.last_seq

    def crashed(
        self, stream: StreamReplica | None, streams: Streams, consumers: Consumers, *, lossy: bool
    ) -> None:
        """Adopts the stored dead letters after a crash. lossy: unsynced data, or what follows a flipped bit,
        may be lost."""
        self._stored.clear()
        self._looked_upto = 0
        self._lossy |= lossy
        if stream is not None:
            self.look(stream, streams, consumers)
        if lossy:
            self._repeatable.update(self._stored)

    def started_over(self, consumer: ConsumerRecord) -> None:
        """A consumer was reset: it may give up messages once more."""
        self._started_over.add(_id_start(consumer))

    def _take(self, stream: StreamReplica, seq: int, streams: Streams, consumers: Consumers) -> None:
        dead_letter = stream.log.load(seq)
        if dead_letter is None:
            return  # the checks of its stream decide whether it may be missing
        about = {name: headers.value_of(dead_letter.header, name) or b"" for name in _ABOUT}
        msg_id = about[headers.MSG_ID]
        again = msg_id in self._repeatable or msg_id.rpartition(b".")[0] in self._started_over
        if msg_id in self._stored and not again:
            raise Violation("dead letters", f"{msg_id!r} is stored at {self._stored[msg_id]} and {seq}")
        self._stored[msg_id] = seq
        source, name = about[dead_letters.STREAM].decode(), about[dead_letters.CONSUMER].decode()
        at = int(about[dead_letters.SEQUENCE])
        record, consumer = streams.get(source), consumers.get((source, name))
        if record is None or consumer is None or not msg_id.endswith(b".%d.%d" % (consumer.created, at)):
            return  # its stream or consumer no longer exists
        tag = record.ever.get(at)
        require(
            self._lossy or tag is None or tag == tag_in(dead_letter.header, dead_letter.payload),
            "dead letters", f"{msg_id!r} holds {dead_letter.payload[:8]!r}, the message is {tag}",
        )  # fmt: skip
        may = at in consumer.given_up or consumer.delivered.get(at, 0) >= consumer.max_deliver > 0
        may = may or consumer.was_removed or consumer.recovered >= at  # a crash revoked its position
        require(may, "dead letters", f"{msg_id!r}: it was not given up")
        consumer.moved.add(at)

    def check_complete(self, consumer: ConsumerRecord, record: StreamRecord, pending: Set[int]) -> None:
        """Checks at the end that everything that was given up is stored."""
        if not consumer.dead_letter or consumer.rewired:
            return
        wanted = set(consumer.termed)
        if consumer.max_deliver:
            wanted |= {
                seq for seq, times in consumer.delivered.items()
                if times >= consumer.max_deliver and seq not in pending and seq not in consumer.settled
            }  # fmt: skip
        for seq in sorted(wanted - record.left_otherwise - consumer.acked_late):
            msg_id = b"%b.%d" % (_id_start(consumer), seq)
            if msg_id not in self._stored and (seq in record.live or seq in record.ever):
                raise Violation("dead letters", f"{msg_id!r} was given up, and there is no letter")


def _id_start(consumer: ConsumerRecord) -> bytes:
    return f"dead-letter.{consumer.stream}.{consumer.name}.{consumer.created}".encode()


_ABOUT = (headers.MSG_ID, dead_letters.STREAM, dead_letters.CONSUMER, dead_letters.SEQUENCE)
