"""Dead letters: moves messages that a consumer gives up to another stream (consumer metadata
`penstock.dead_letter`).

A message that reached max_deliver or was terminated is published to the subject in the metadata, with its
payload, its own headers, and headers that say where it came from and why. When the stream behind that subject
has acked it, the message counts as acked on its consumer (and leaves a work queue), and the advisory is sent.

Theory of operation. The decision to give up is journalled at once; from then on the message is not delivered
again, and its dead letter is due until a pub ack settles it. The dead letter is published after the journal
is written (and synced, with sync_always): else a crash could revoke the decision when the dead letter is
already stored. After a restart, a dead letter is due for each message that was given up and is not settled.
Such a dead letter may have been stored before the crash; the same holds where the pub ack was an error or
never arrived. So before it is published again, the target stream is searched for it: it is stored exactly
once, however long that takes. A dead letter found there counts once it is durable. A stream in another
account cannot be searched; there the repeated message id is dropped within the duplicate window.

A consumer is not removed for inactivity while dead letters are due; deleting it drops them.

Invariants: at most IN_FLIGHT_MAX dead letters are published and not acked; a message with a due dead letter
is marked as given up in the ack state.

Rejected: storing dead letters directly in the other stream's log (it may be in another account, or
replicated); a second journal of dead letters (the ack state already has the decisions).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import msgspec

from penstock.jetstream.consumer.consumer_advisories import ConsumerAdvisories
from penstock.jetstream.consumer.consumer_config import dead_letter_subject
from penstock.jetstream.consumer.consumer_effects import ConsumerEffects
from penstock.jetstream.consumer.state import ConsumerMeta
from penstock.jetstream.stream.stream_replica import StreamReplica
from penstock.kernels.consumer.ack_state import AckState
from penstock.protocol import headers
from penstock.protocol.api import ApiConsumerConfig, DecodeError, decode
from penstock.protocol.durations import NS_PER_S, format_time
from penstock.protocol.subjects import matches

log = logging.getLogger("penstock.jetstream")

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
IN_FLIGHT_MAX = 256
RETRY_NS = 5 * NS_PER_S


class DeadLetter(NamedTuple):
    deliveries: int
    reason: str
    text: str  # reason given with +TERM
    consumer_seq: int = 0


class DeadLetterAck(msgspec.Struct):
    """The fields of a pub ack that matter here."""

    seq: int = 0
    error: dict[str, object] | None = None


class DeadLetters:
    """The dead letters of one consumer of `stream`. No-op unless its configuration names a subject.

    streams: where dead letters are searched, by name. state: has the decisions to give up. effects: gets dead
    letters. mark: makes the consumer apply in the next tick.

    unwritten: messages that were given up since the journal was written. retry_at: when (ns) dead letters
    without a pub ack are published again; None for never.
    """

    def __init__(
        self,
        streams: Mapping[str, StreamReplica],
        stream: StreamReplica,
        meta: ConsumerMeta,
        state: AckState,
        advisories: ConsumerAdvisories,
        effects: ConsumerEffects,
        mark: Callable[[], object],
    ) -> None:
        self._streams = streams
        self._stream = stream
        self._consumer = meta.name
        self._id_prefix = f"dead-letter.{stream.name}.{meta.name}.{meta.created}."
        self._state = state
        self._advisories = advisories
        self._effects = effects
        self._mark = mark
        self._subject = dead_letter_subject(meta.config)
        self._max_deliver = meta.config.max_deliver
        self._due: dict[int, DeadLetter] = {}  # by stream sequence
        self._in_flight: dict[int, int] = {}  # stream sequence -> published at, ns
        self._answers: list[tuple[int, bytes]] = []
        self._indeterminate: set[int] = set()  # may be stored already
        self.unwritten: set[int] = set()
        self.retry_at: int | None = None
        self._complained = False

    @property
    def wanted(self) -> bool:
        return bool(self._subject)

    @property
    def is_busy(self) -> bool:
        """Whether dead letters are due."""
        return bool(self._due)

    def is_due(self, seq: int) -> bool:
        """Whether the message was given up and its dead letter is not yet acked."""
        return seq in self._due

    def written(self) -> None:
        """Releases dead letters after the journal was written."""
        if self.unwritten:
            self.unwritten.clear()
            self._mark()

    def committed(self, given_up: set[int]) -> None:
        """The same for these, after the group of the stream committed that they were given up."""
        if given_up:
            self.unwritten -= given_up
            self._mark()

    def configure(self, config: ApiConsumerConfig) -> None:
        """Follows a change of the consumer's configuration."""
        self._subject = dead_letter_subject(config)
        self._max_deliver = config.max_deliver
        self.resume()

    def resume(self) -> None:
        """Finds the due dead letters after a restart or a change of the configuration."""
        if not self.wanted:
            self._due.clear()
            self._in_flight.clear()
            self.unwritten.clear()
            self.retry_at = None
            return
        for seq, deliveries in self._state.given_up():
            if seq not in self._due:
                reason = MAX_DELIVER if 0 < self._max_deliver <= deliveries else TERMINATED
                self._due[seq] = DeadLetter(deliveries, reason, "")
                self._indeterminate.add(seq)
        if self._due:
            self._mark()

    def start_over(self, seq: int) -> None:
        """The consumer was reset: messages from `seq` on are delivered again, and a pub ack of an earlier
        dead letter must not settle them. If they are given up again, they have another dead letter; within
        the duplicate window it is dropped by its message id."""
        for due in [due for due in self._due if due >= seq]:
            del self._due[due]
            self._in_flight.pop(due, None)
            self._indeterminate.discard(due)
            self.unwritten.discard(due)

    def add(self, seq: int, dead_letter: DeadLetter) -> None:
        """Adds a message that was given up. (The ack state has it marked.)"""
        self._due[seq] = dead_letter
        self.unwritten.add(seq)
        self._mark()

    def on_answer(self, seq: int, payload: bytes) -> None:
        """Records the pub ack of a dead letter. The next `apply` processes it."""
        self._answers.append((seq, payload))
        self._mark()

    def on_time(self, now: int) -> None:
        """Retries dead letters without a pub ack."""
        if self.retry_at is not None and self.retry_at <= now:
            self.retry_at = None
            self._indeterminate.update(self._in_flight)
            self._in_flight.clear()
            self._mark()

    def apply(self, now: int) -> int:
        """Processes pub acks and publishes due dead letters. Returns by how many the pending count fell."""
        if not (self._due or self._answers or self._in_flight):
            return 0  # the usual case: every tick with acks calls this
        answers, self._answers = self._answers, []
        settled = sum(self._answered(seq, payload) for seq, payload in answers)
        if self._due and len(self._in_flight) < IN_FLIGHT_MAX:
            settled += self._drop_stored(now)
            for seq in [seq for seq in self._due if seq not in self._in_flight and seq not in self.unwritten]:
                if len(self._in_flight) >= IN_FLIGHT_MAX:
                    break
                self._publish(seq, now)
        if self._in_flight and self.retry_at is None:
            self.retry_at = now + RETRY_NS
        elif not self._in_flight:
            self.retry_at = None
        return settled

    def _answered(self, seq: int, payload: bytes) -> int:
        if seq not in self._due:
            return 0
        try:
            answer = decode(DeadLetterAck, payload)
        except DecodeError:
            answer = DeadLetterAck(error={"description": f"{payload[:100]!r} is not a pub ack"})
        if answer.error or not answer.seq:
            self._complain(f"was rejected: {(answer.error or {}).get('description', 'no sequence')}")
            return 0  # stays in flight until the next retry
        self._complained = False
        return self._settle(seq)

    def _settle(self, seq: int) -> int:
        dead_letter = self._due.pop(seq)
        self._in_flight.pop(seq, None)
        self._indeterminate.discard(seq)
        settled = int(self._state.drop(seq))
        if dead_letter.reason == MAX_DELIVER:
            self._advisories.given_up(seq, dead_letter.deliveries)
        else:
            self._advisories.terminated(
                seq, dead_letter.consumer_seq, dead_letter.deliveries, dead_letter.text
            )
        return settled

    def _publish(self, seq: int, now: int) -> None:
        found = self._stream.log.load(seq)
        if found is None:  # removed from the stream: nothing to move
            del self._due[seq]
            self._indeterminate.discard(seq)
            self._state.drop(seq)
            return
        header = self._header(seq, self._due[seq], found.subject, found.header, found.ts)
        reply = f"{REPLY_PREFIX}{self._stream.name}.{self._consumer}.{seq}".encode()
        self._in_flight[seq] = now
        unheard = partial(self._complain, "found no stream")
        self._effects.dead_letter(self._subject.encode(), reply, header, found.payload, unheard)

    def _header(self, seq: int, dead_letter: DeadLetter, subject: bytes, header: bytes, ts: int) -> bytes:
        pairs = [
            (headers.MSG_ID, self._id(seq)),
            (STREAM, self._stream.name),
            (CONSUMER, self._consumer),
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
            # those would apply to the dead letter
            elif not name.startswith(("Nats-", "Penstock-Dead-Letter-")):
                pairs.append((name, value))
        return headers.build(pairs)

    def _id(self, seq: int) -> str:
        return f"{self._id_prefix}{seq}"

    def _drop_stored(self, now: int) -> int:
        """Settles dead letters that are already stored. Returns by how many the pending count fell. A dead
        letter that is found but not durable yet is in flight: its pub ack arrives, or a retry searches
        again."""
        if not self._indeterminate:
            return 0
        indeterminate = {self._id(seq).encode(): seq for seq in self._indeterminate}
        self._indeterminate.clear()
        subject = self._subject.encode()
        settled = 0
        for stream in self._streams.values():
            if any(matches(one, self._subject) for one in stream.config.subjects):
                for seq, at in self._stored_in(stream, subject, indeterminate).items():
                    if at <= stream.durability.durable_seq:
                        settled += self._settle(seq)
                    else:
                        self._in_flight[seq] = now
        return settled

    def _stored_in(self, stream: StreamReplica, subject: bytes, ids: dict[bytes, int]) -> dict[int, int]:
        """Searches a stream for dead letters by id. Returns {sequence of the message: sequence of its dead
        letter}.

        A dead letter is never older than its message, so the search starts at that time. It may be stored
        twice, when a power failure revoked its settlement after the stream had forgotten the id. The first
        one counts: it was written before the others.
        """
        oldest = self._stream.log.load(min(ids.values()))
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
                "consumer %s of stream %s: a dead letter to %r %s; retry every %d s",
                self._consumer, self._stream.name, self._subject, why,
                RETRY_NS // NS_PER_S,
            )  # fmt: skip
