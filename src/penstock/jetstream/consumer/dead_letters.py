"""Dead letters: what a consumer gives up moves to another stream (consumer metadata `penstock.dead_letter`).

A message that reached max_deliver or was terminated is published to the subject the metadata names, with
headers that say where it came from and why, and with its payload and its own headers. It is settled on
its consumer (and leaves a workqueue) when the stream behind that subject has acked it; only then the advisory
is sent.

Theory of operation. Giving up is journalled at once; from then on the message is never delivered again, and a
letter is due for it until its ack has settled it. It is published when the journal is written (and synced,
with sync_always): a crash may not take back that a message was given up whose letter is there. After a
restart a letter is due for whatever was given up and is not settled. Such a letter may have been stored
before the crash, as one whose answer was an error, or never came, may have been: the stream it goes to is
searched for it before it is published again, so that it is there exactly once, however long that takes. What
is found counts when it was written. Where the stream is out of reach (in another account) the same message id
has to do: it is dropped there within the duplicate window.

A consumer is not removed for inactivity while a letter is due; deleting it drops them.

Invariants: at most UNDER_WAY_MAX letters are published and not answered; a message with a letter due is in
the ack state's given-up ones.

Rejected: storing the letter straight into the other stream's log (it may be in another account, or
replicated); a second journal of letters (the ack state already says what is given up).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from penstock.kernels.wire.dispatch import publish
from penstock.protocol import headers
from penstock.protocol.api import ConsumerConfig, DecodeError, decode
from penstock.protocol.durations import NS_PER_S, format_time
from penstock.protocol.subjects import matches

if TYPE_CHECKING:
    from penstock.jetstream.consumer.consumer_replica import ConsumerReplica
    from penstock.jetstream.stream.stream_replica import StreamReplica

log = logging.getLogger("penstock.jetstream")

METADATA_KEY = "penstock.dead_letter"

STREAM = "Penstock-Dead-Letter-Stream"
CONSUMER = "Penstock-Dead-Letter-Consumer"
SUBJECT = "Penstock-Dead-Letter-Subject"
SEQUENCE = "Penstock-Dead-Letter-Sequence"
TIME = "Penstock-Dead-Letter-Time"
DELIVERIES = "Penstock-Dead-Letter-Deliveries"
REASON = "Penstock-Dead-Letter-Reason"
ORIGINAL_ID = "Penstock-Dead-Letter-Msg-Id"

MAX_DELIVER = "max_deliver"
TERMINATED = "terminated"

REPLY_PREFIX = "$JS.DL."
UNDER_WAY_MAX = 256
RETRY_NS = 5 * NS_PER_S


class DeadLetter(NamedTuple):
    deliveries: int
    reason: str
    text: str  # of +TERM
    consumer_seq: int = 0


class DeadLetterAck(msgspec.Struct):
    """What matters of a pub ack."""

    seq: int = 0
    error: dict[str, object] | None = None


def subject_of(config: ConsumerConfig) -> str:
    """Where dead letters go; "" when messages that are given up stay where they are."""
    return config.metadata.get(METADATA_KEY, "")


class DeadLetters:
    """The letters of one consumer. Stands idle unless its configuration asks for them."""

    def __init__(self, consumer: ConsumerReplica) -> None:
        self._consumer = consumer
        self._due: dict[int, DeadLetter] = {}  # by stream sequence
        self._under_way: dict[int, int] = {}  # stream sequence -> published at, ns
        self._answers: list[tuple[int, bytes]] = []
        self._doubtful: set[int] = set()  # may have been stored before
        self._unkept: set[int] = set()  # given up, and the journal is not written yet
        self._retry_at: int | None = None
        self._complained = False

    @property
    def wanted(self) -> bool:
        return bool(subject_of(self._consumer.config))

    @property
    def is_busy(self) -> bool:
        """Is a letter not stored yet?"""
        return bool(self._due)

    def is_due(self, seq: int) -> bool:
        """Was the message given up, and is its letter not stored yet?"""
        return seq in self._due

    @property
    def has_unkept(self) -> bool:
        """Was a message given up since the journal was written?"""
        return bool(self._unkept)

    def kept(self) -> None:
        """The journal is written: the letters of what was given up may go."""
        if self._unkept:
            self._unkept.clear()
            self._consumer.acks.mark()

    def resume(self) -> None:
        """After a restart, or when letters are asked for from now on: what was given up is due."""
        if not self.wanted:
            self._due.clear()
            self._under_way.clear()
            self._unkept.clear()
            self._retry_at = None
            return
        for seq, deliveries in self._consumer.state.given_up():
            if seq not in self._due:
                limit = self._consumer.config.max_deliver
                reason = MAX_DELIVER if 0 < limit <= deliveries else TERMINATED
                self._due[seq] = DeadLetter(deliveries, reason, "")
                self._doubtful.add(seq)
        if self._due:
            self._consumer.acks.mark()

    def add(self, seq: int, dead_letter: DeadLetter) -> None:
        """The message was given up (and is so in the ack state)."""
        self._due[seq] = dead_letter
        self._unkept.add(seq)
        self._consumer.acks.mark()

    def on_answer(self, seq: int, payload: bytes) -> None:
        """The pub ack of a letter. Nothing changes before the next `apply`."""
        self._answers.append((seq, payload))
        self._consumer.acks.mark()

    def next_deadline(self) -> int | None:
        """When letters without an answer are published again (ns)."""
        return self._retry_at

    def on_time(self, now: int) -> None:
        """Tries again what had no answer."""
        if self._retry_at is not None and self._retry_at <= now:
            self._retry_at = None
            self._doubtful.update(self._under_way)
            self._under_way.clear()
            self._consumer.acks.mark()

    def apply(self, now: int) -> int:
        """Settles what was answered, publishes what is due; returns how many messages were settled."""
        if not (self._due or self._answers or self._under_way):
            return 0  # as ever: this is asked in every tick that brings acks
        answers, self._answers = self._answers, []
        settled = sum(self._answered(seq, payload) for seq, payload in answers)
        if self._due and len(self._under_way) < UNDER_WAY_MAX:
            settled += self._drop_stored(now)
            for seq in [seq for seq in self._due if seq not in self._under_way and seq not in self._unkept]:
                if len(self._under_way) >= UNDER_WAY_MAX:
                    break
                self._publish(seq, now)
        if self._under_way and self._retry_at is None:
            self._retry_at = now + RETRY_NS
        elif not self._under_way:
            self._retry_at = None
        return settled

    def _answered(self, seq: int, payload: bytes) -> int:
        if seq not in self._due:
            return 0
        try:
            answer = decode(DeadLetterAck, payload)
        except DecodeError:
            answer = DeadLetterAck(error={"description": f"{payload[:100]!r} is no pub ack"})
        if answer.error or not answer.seq:
            self._complain(f"was refused: {(answer.error or {}).get('description', 'no sequence')}")
            return 0  # stays under way until the next retry
        self._complained = False
        return self._settle(seq)

    def _settle(self, seq: int) -> int:
        dead_letter = self._due.pop(seq)
        self._under_way.pop(seq, None)
        self._doubtful.discard(seq)
        consumer = self._consumer
        settled = consumer.settle(seq)
        if dead_letter.reason == MAX_DELIVER:
            consumer.tell_given_up(seq, dead_letter.deliveries)
        else:
            consumer.tell_terminated(seq, dead_letter.consumer_seq, dead_letter.deliveries, dead_letter.text)
        return settled

    def _publish(self, seq: int, now: int) -> None:
        consumer = self._consumer
        found = consumer.stream.log.load(seq)
        if found is None:  # it left the stream meanwhile: there is nothing to move
            del self._due[seq]
            self._doubtful.discard(seq)
            consumer.settle(seq)
            return
        header = self._header(seq, self._due[seq], found.subject, found.header, found.ts)
        reply = f"{REPLY_PREFIX}{consumer.stream.name}.{consumer.name}.{seq}".encode()
        self._under_way[seq] = now
        subject = subject_of(consumer.config)
        if not publish(consumer.engine.index, subject.encode(), reply, header, found.payload):
            self._complain("found no stream")

    def _header(self, seq: int, dead_letter: DeadLetter, subject: bytes, header: bytes, ts: int) -> bytes:
        consumer = self._consumer
        pairs = [
            (headers.MSG_ID, self._id(seq)),
            (STREAM, consumer.stream.name),
            (CONSUMER, consumer.name),
            (SUBJECT, subject.decode("utf-8", "replace")),
            (SEQUENCE, str(seq)),
            (TIME, format_time(ts)),
            (DELIVERIES, str(dead_letter.deliveries)),
            (REASON, f"{dead_letter.reason}: {dead_letter.text}" if dead_letter.text else dead_letter.reason),
        ]
        own = headers.parse(header).headers.pairs() if header else ()
        for name, value in own:
            if name == headers.MSG_ID:
                pairs.append((ORIGINAL_ID, value))
            elif not name.startswith(("Nats-", "Penstock-Dead-Letter-")):  # those would act on the letter
                pairs.append((name, value))
        return headers.build(pairs)

    def _id(self, seq: int) -> str:
        consumer = self._consumer
        return f"dead-letter.{consumer.stream.name}.{consumer.name}.{consumer.created}.{seq}"

    def _drop_stored(self, now: int) -> int:
        """Settles letters that were stored before; returns how many. One that is there and not written yet is
        under way: its answer comes, or it is looked for again."""
        if not self._doubtful:
            return 0
        indeterminate = {self._id(seq).encode(): seq for seq in self._doubtful}
        self._doubtful.clear()
        subject = subject_of(self._consumer.config).encode()
        settled = 0
        for stream in self._consumer.engine.streams.values():
            if any(matches(one, subject.decode()) for one in stream.config.subjects):
                for seq, at in self._stored_in(stream, subject, indeterminate).items():
                    if at <= stream.durable_seq:
                        settled += self._settle(seq)
                    else:
                        self._under_way[seq] = now
        return settled

    def _stored_in(self, stream: StreamReplica, subject: bytes, ids: dict[bytes, int]) -> dict[int, int]:
        """The sequences whose letters a stream holds, and where. A letter is never older than its message.

        It may be there twice: power loss took back that it was settled, after its stream forgot the id. The
        first one counts, which was written before the others.
        """
        oldest = self._consumer.stream.log.load(min(ids.values()))
        found: dict[int, int] = {}
        at = stream.log.seq_at_time(oldest.ts) if oldest is not None else stream.log.first_seq
        while (dead_letter := stream.log.load_next(subject, at)) is not None:
            at = dead_letter.seq + 1
            seq = (
                ids.get(headers.value_of(dead_letter.header, headers.MSG_ID) or b"")
                if dead_letter.header
                else None
            )
            if seq is not None and seq in self._due:
                found.setdefault(seq, dead_letter.seq)
        return found

    def _complain(self, why: str) -> None:
        if not self._complained:
            self._complained = True
            log.warning(
                "consumer %s of stream %s: a dead letter to %r %s; tried again every %d s",
                self._consumer.name, self._consumer.stream.name, subject_of(self._consumer.config), why,
                RETRY_NS // NS_PER_S,
            )  # fmt: skip
