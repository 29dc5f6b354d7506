"""Checks a consumer as its clients see it.

- Deliveries have contiguous consumer sequences, new messages are in the order of the stream, and the delivery
  count is right; delivered messages are in the stream and match the filters.
- Acked messages are not redelivered: after a killed process if the ack's tick ended, after a power failure if
  it was confirmed (with sync always).
- With key-shared delivery, one message per key is in flight, and those of a key are in order.
- A reset survives a killed process as a whole or not at all, and stays where it began.
- The ack floor never decreases, pending messages were delivered and not acked, and num_pending is correct.
"""

from __future__ import annotations

from typing import Any

from penstock.jetstream.consumer.consumer_config import DEAD_LETTER_KEY, KEY_TOKEN, filters_of
from penstock.jetstream.consumer.consumer_replica import ConsumerReplica
from penstock.protocol.acks import AckSubject
from penstock.protocol.subjects import matches
from penstock.testing.sim import Violation, require
from penstock.testing.sim.stream_checks import Held, StreamRecord


def pending_of(consumer: ConsumerReplica) -> dict[int, int]:
    """Deliveries by sequence of messages in flight; parked ones were not delivered yet."""
    return {seq: times for seq, _, _, times in consumer.state.pending() if times}


class ConsumerRecord:
    """One consumer. `config` is the configuration in the server's response."""

    def __init__(self, stream: str, name: str, config: dict[str, Any], created: int) -> None:
        self.stream = stream
        self.name = name
        self.created = created
        self.delivered: dict[int, int] = {}  # deliveries by sequence, of unacked messages
        self.outstanding: list[tuple[str, int]] = []  # (ack subject, sequence) that a client may still ack
        self.sent: dict[int, str] = {}  # acks that may not be written yet
        self.settled: set[int] = set()
        self.confirmed: set[int] = set()
        self.consumer_seq = self.durable_seq = 0
        self.recovered = 0  # the last sequence delivered, as recovered after a crash
        self.resume = 0  # last_per_subject: end of the initial messages, which are in `firsts`
        self.firsts: set[int] = set()
        self.came: set[int] = set()  # all sequences ever delivered
        self.passed: set[int] = set()  # skipped because they were removed; restored by a power failure
        self.twice_in_flight: set[int] = set()  # a power failure revoked the order of their key
        self.given_up: set[int] = set()  # may be dead letters
        self.exhausted: set[int] = set()  # delivered max_deliver times, before an update raised it
        self.termed: set[int] = set()  # ... and must be, since the decision was written
        self.moved: set[int] = set()  # ... and are, with a stored dead letter
        self.acked_late: set[int] = set()  # ... but were acked after all
        self.was_removed = False  # removed while the disk kept its files: its earlier history is unknown
        self.rewired = False  # filters or keys were updated
        self.is_resetting = False  # a reset is in flight, or failed halfway: it may apply at a restart
        self.was_reset = False
        self.resets = self.since = 0  # as the server had them after its last response
        self.start = 1
        self.newest = 0
        self.floor = self.written_floor = self.durable_floor = 0
        self.configure(config)

    def configure(self, config: dict[str, Any]) -> None:
        before = getattr(self, "config", config)
        self.had_keys = getattr(self, "had_keys", False) or KEY_TOKEN in (before.get("metadata") or {})
        self.rewired |= any(
            before.get(name) != config.get(name) for name in ("filter_subject", "filter_subjects", "metadata")
        )
        self.config = config
        metadata = config.get("metadata") or {}
        self.key_token = int(metadata.get(KEY_TOKEN, 0))
        self.dead_letter = str(metadata.get(DEAD_LETTER_KEY, ""))
        self.had_keys |= self.key_token > 0
        self.policy = config.get("ack_policy", "none")
        self.filters: list[str] = config.get("filter_subjects") or []
        if config.get("filter_subject"):
            self.filters = [config["filter_subject"]]
        self.max_deliver = max(config.get("max_deliver", -1), 0)
        self.push = config.get("deliver_subject", "")
        self.simple_start = config.get("deliver_policy", "all") != "last_per_subject"
        self.may_vanish = bool(config.get("inactive_threshold")) or not config.get("durable_name")

    def update(self, config: dict[str, Any], consumer: ConsumerReplica, record: StreamRecord) -> None:
        """Applies another configuration. Messages that reached the previous max_deliver are no longer
        pending, and are not redelivered under a higher one. Other filters have other last messages."""
        pending = pending_of(consumer)
        self.exhausted |= {
            seq for seq, times in self.delivered.items() if self._is_last(seq, times) and seq not in pending
        }
        filters, firsts = self.filters, self.firsts
        self.configure(config)
        self._note_resets(consumer)
        if self.resume and self.filters != filters:
            self.starts_with_lasts(self.resume, record)
            self.firsts |= firsts

    def start_over(self, before: ConsumerRecord, consumer: ConsumerReplica, record: StreamRecord) -> None:
        """Begins where a reset put the consumer. before: its record until then."""
        self.was_reset = self.was_removed = True
        self.had_keys |= before.had_keys
        self.rewired |= before.rewired
        self.start = consumer.meta.start_seq
        self.newest = self.recovered = consumer.since - 1
        self._note_resets(consumer)
        if not self.simple_start:
            self.starts_with_lasts(consumer.meta.resume_seq, record)

    def _note_resets(self, consumer: ConsumerReplica) -> None:
        self.resets, self.since = consumer.state.resets, consumer.since

    def _is_last(self, seq: int, times: int) -> bool:
        """Whether it reached max_deliver."""
        return 0 < self.max_deliver <= times or seq in self.exhausted

    @property
    def key(self) -> tuple[str, str]:
        return self.stream, self.name

    def key_of(self, subject: str) -> str:
        """The message's key for key-shared delivery."""
        return subject.split(".")[self.key_token - 1]

    def wants(self, subject: str) -> bool:
        """Whether its filters match the subject."""
        return not self.filters or any(matches(one, subject) for one in self.filters)

    def is_done_with(self, held: Held) -> bool:
        """Whether it was acked, or will never be delivered."""
        if held.seq < self.start or not self.wants(held.subject):
            return True
        if held.seq <= self.resume and held.seq not in self.firsts:
            return True  # the initial messages are the last of each subject
        if self.policy == "none" and held.seq <= self.newest:
            return True  # without acks, delivery is enough
        # (Parked messages are pending, so they were not skipped.)
        parked = (
            self.key_token
            and held.seq >= self.since  # what precedes the position of a reset is not delivered
            and held.seq not in self.came
            and held.seq not in self.passed
        )
        if held.seq <= self.recovered and held.seq not in self.delivered and not parked:
            return True  # the ack that the crash interrupted had arrived
        return held.seq in self.settled or held.seq in self.sent or held.seq in self.moved

    def may_let_go(self, held: Held) -> bool:
        """Whether a message may leave its work queue: it was acked, whatever the filters are now, or will
        never be delivered."""
        is_acked = self.policy == "explicit" and (held.seq in self.settled or held.seq in self.sent)
        return is_acked or held.seq in self.moved or (self.wants(held.subject) and self.is_done_with(held))

    # --- what comes and goes

    def deliver(self, about: AckSubject, reply: str, payload: bytes, record: StreamRecord) -> None:
        """Checks a delivery."""
        seq = about.stream_seq
        where = f"{self.stream} > {self.name}: {seq}"
        held = record.live.get(seq)
        if held is None:
            raise Violation("delivered", f"{where} is not in the stream")
        if not self.config.get("headers_only"):
            require(payload == held.payload, "delivered", f"{where} came as {payload!r}, is {held}")
        record.shown.add(seq)
        # Pending messages are redelivered whatever the filters are now, and so are messages that were parked
        # when they changed.
        parked = self.had_keys and (self.rewired or (self.was_removed and seq <= self.recovered))
        wanted = seq in self.delivered or self.wants(held.subject) or parked
        require(wanted, "delivered", f"{where}: {held.subject} is not of {self.filters}")
        if seq in self.confirmed or seq in self.settled:
            raise Violation("acks stay", f"{where} was acked and came again")
        if about.consumer_seq != self.consumer_seq + 1:
            raise Violation("numbers", f"{where} is number {about.consumer_seq} after {self.consumer_seq}")
        self.consumer_seq += 1
        times = self.delivered.get(seq, 0) + 1
        if about.delivered != times:
            raise Violation("numbers", f"{where} says delivery {about.delivered}, is {times}")
        if self.max_deliver and times > self.max_deliver:
            raise Violation("max_deliver", f"{where} came {times} times")
        if times >= self.max_deliver > 0:
            self.given_up.add(seq)
        if self.key_token:
            self._check_turn(held, times, record)
        self.came.add(seq)
        if times == 1 and not self.key_token:
            if seq <= self.newest and not self.had_keys:
                raise Violation("order", f"{where} came after {self.newest}")
            self.newest = seq
            # The subject of a lost message is unknown: it is counted until the next start.
            exact = self.simple_start and not self.had_keys and not record.damaged and not record.lost
            if exact and self.count_behind(record, seq) != about.pending:
                found = self.count_behind(record, seq)
                raise Violation("num_pending", f"{where} says {about.pending}, there are {found}")
        if self.policy == "none":
            self.settled.add(seq)
        else:
            self.delivered[seq] = times
            self.outstanding.append((reply, seq))

    def _check_turn(self, held: Held, times: int, record: StreamRecord) -> None:
        """Checks key-shared delivery: one message per key in flight, in the order of the stream."""
        key = self.key_of(held.subject)
        where = f"{self.stream} > {self.name}: {held.seq} of key {key}"
        for seq, before in self.delivered.items():
            other = record.live.get(seq)
            if other is None or seq == held.seq or self.key_of(other.subject) != key:
                continue
            if self.rewired and times > 1:
                continue  # both were in flight when the key was configured
            if times > 1 and {seq, held.seq} & self.twice_in_flight:
                continue
            if seq not in self.sent and not self._is_last(seq, before):
                raise Violation("one a key", f"{where} came while {seq} was in flight")
        if times > 1 or self.rewired or not self.simple_start:
            return
        for seq, other in record.live.items():
            is_before = max(self.start, self.recovered + 1) <= seq < held.seq and self.wants(other.subject)
            if is_before and seq not in self.came and self.key_of(other.subject) == key:
                raise Violation("order of a key", f"{where} came before {seq}")

    def count_behind(self, record: StreamRecord, seq: int) -> int:
        """The number of matching messages after a sequence."""
        return sum(1 for held in record.live.values() if held.seq > seq and self.wants(held.subject))

    def ack(self, seq: int, how: str) -> list[int]:
        """Records an ack that was sent; returns the sequences it acks."""
        seqs = [one for one in self.delivered if one <= seq] if self.policy == "all" else [seq]
        for one in seqs:
            if one not in self.settled:
                self.sent.setdefault(one, how)  # of several acks the first one counts
        if how == "+TER":
            self.given_up.update(seqs)
        else:
            self.acked_late.update(self.given_up.intersection(seqs))
        return seqs

    def confirm(self, seqs: list[int]) -> None:
        """Records a confirmation by the server."""
        self.confirmed.update(seqs)
        self._settle(seqs)

    def wrote(self, *, stream_too: bool) -> None:
        """Records that a tick ended and its changes are written. stream_too: also removals from the
        stream."""
        if self.dead_letter:
            self.termed.update(seq for seq, how in self.sent.items() if how == "+TER")
        self._settle(list(self.sent))
        self.sent.clear()
        self.durable_seq = self.consumer_seq
        if stream_too:
            self.durable_floor = self.written_floor

    def starts_with_lasts(self, resume: int, record: StreamRecord) -> None:
        """Sets the initial messages of last_per_subject: the last of each subject up to `resume`."""
        self.resume = resume
        lasts = {
            held.subject: seq
            for seq, held in record.live.items()
            if seq <= resume and self.wants(held.subject)
        }
        self.firsts = set(lasts.values())

    def _settle(self, seqs: list[int]) -> None:
        for seq in seqs:
            self.settled.add(seq)
            self.delivered.pop(seq, None)

    # --- looking at the server's side

    def check(self, consumer: ConsumerReplica, record: StreamRecord, info: dict[str, Any]) -> None:
        """Compares CONSUMER.INFO and the ack state with the model, between ticks."""
        where = f"{self.stream} > {self.name}"
        state = consumer.state
        floor = info["ack_floor"]["stream_seq"]
        require(floor >= self.floor, "floor", f"{where}: went from {self.floor} to {floor}")
        self.floor = floor
        said = info["delivered"]["consumer_seq"]
        require(said == self.consumer_seq, "numbers", f"{where}: {said} delivered, {self.consumer_seq} came")
        if self.simple_start and not self.had_keys and not record.damaged and not record.lost:
            # A reset may go back before the first sequence, and a power failure after it takes messages.
            first = consumer.meta.start_seq if not state.resets else 1
            position = max(first - 1, state.delivered_stream)
            found = self.count_behind(record, position)
            require(
                found == info["num_pending"], "num_pending", f"{where}: {info['num_pending']}, are {found}"
            )
        if self.policy != "explicit":
            return
        pending = pending_of(consumer)
        for seq in pending:
            if seq not in self.delivered:
                raise Violation("pending", f"{where}: {seq} is pending and was acked or never came")
        for seq, times in self.delivered.items():
            lost = seq in record.live and seq not in pending and seq not in self.sent
            if lost and not self._is_last(seq, times):
                raise Violation("until acked", f"{where}: {seq} came, was not acked and is not pending")
        require(
            info["num_ack_pending"] == len(pending), "pending",
            f"{where}: {info['num_ack_pending']} said, {len(pending)} are",
        )  # fmt: skip

    def check_recovery(
        self, consumer: ConsumerReplica, record: StreamRecord, *, power: bool, always: bool
    ) -> None:
        """Compares the recovered state with what must have survived, and adopts it."""
        where = f"{self.stream} > {self.name}"
        state = consumer.state
        if self.was_reset and power and always:
            require(
                state.delivered_consumer <= self.consumer_seq, "resets stay",
                f"{where}: {state.delivered_consumer} delivered, {self.consumer_seq} came since the reset",
            )  # fmt: skip
        if power:
            self.settled = set(self.confirmed) if always else set()
            self.confirmed &= self.settled
            self.termed.clear()
            self.floor = self.written_floor = self.durable_floor = 0
        else:
            self.floor = self.written_floor = self.durable_floor  # what was not written is lost
            require(
                self.durable_seq <= state.delivered_consumer <= self.consumer_seq or self.policy == "none",
                "numbers",
                f"{where}: {self.durable_seq} to {self.consumer_seq} delivered, "
                f"says {state.delivered_consumer}",
            )
        pending = {seq for seq, _, _, _ in state.pending()}
        self.note_restored(consumer, record)
        if self.policy == "explicit":
            for seq in pending:
                if seq in self.settled and seq in record.live:
                    raise Violation("acks stay", f"{where}: {seq} was acked and is pending")
            if not power:
                for seq, times in self.delivered.items():
                    lost = seq in record.live and seq not in pending and seq not in self.sent
                    lost = lost and seq not in record.came_back
                    if lost and seq <= state.delivered_stream and not self._is_last(seq, times):
                        raise Violation("until acked", f"{where}: {seq} is pending no more")
        for seq in self.settled:
            if seq > state.delivered_stream and seq in record.live and self.policy == "explicit":
                raise Violation("acks stay", f"{where}: {seq} was acked and will come again")
        if self.policy == "none":
            self.settled = {seq for seq in self.settled if seq <= state.delivered_stream}
        self.adopt(consumer)

    def check_resets(self, consumer: ConsumerReplica) -> None:
        """After a killed process: a reset is there as a whole or not at all, and stays where it began."""
        state, since = consumer.state, consumer.since
        where = f"{self.stream} > {self.name}: {state.resets} resets after {self.resets}, since {since}"
        if set(filters_of(consumer.config)) != set(self.filters):
            return  # a request whose response was lost changed both
        if state.resets == self.resets:
            require(since == self.since, "resets are whole", f"{where}, was {self.since}")
        elif state.resets > self.resets:
            is_whole = self.is_resetting and not state.delivered_consumer
            require(is_whole, "resets are whole", f"{where}, with {state.delivered_consumer} deliveries")
        require(state.delivered_stream >= since - 1, "resets are whole", f"{where}: {state.delivered_stream}")

    def note_restored(self, consumer: ConsumerReplica, record: StreamRecord) -> None:
        """Handles messages whose removal a power failure or a failing disk revoked: the consumer's state may
        have been written since."""
        state = consumer.state
        back = (self.passed | record.came_back) - {seq for seq, _, _, _ in state.pending()}
        self.passed = {one for one in back if one <= state.delivered_stream}
        self.twice_in_flight = (self.twice_in_flight | record.came_back) & pending_of(consumer).keys()

    def adopt(self, consumer: ConsumerReplica) -> None:
        """Adopts the server's state."""
        state = consumer.state
        self.start = consumer.meta.start_seq
        self._note_resets(consumer)
        self.delivered = pending_of(consumer)
        self.outstanding = [one for one in self.outstanding if one[1] in self.delivered]
        self.exhausted.clear()
        self.sent.clear()
        self.consumer_seq = self.durable_seq = state.delivered_consumer
        self.newest = self.recovered = state.delivered_stream
        self.settled -= self.delivered.keys()
        self.confirmed &= self.settled
