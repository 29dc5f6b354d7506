"""Checks fast batches: with gap mode `fail` nothing is stored after a gap, with `ok` every gap is reported;
messages that a flow ack covers are stored, and the final ack counts the received ones.

The model follows arrivals, which no publisher can see: a message lost, repeated or reordered in flight is a
missing arrival, or one in another position. After each tick it expects exactly the responses that follow from
the arrivals. Which messages were rejected is taken from the responses.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from penstock.protocol.api import RetentionPolicy
from penstock.protocol.batch import Operation
from penstock.testing.sim import Violation, check_committed, require
from penstock.testing.sim.stream_checks import Held, SimPublish, StreamRecord

TIMEOUT_NS = 10_000_000_000


class FastArrival(NamedTuple):
    """A message, or a ping or end without one (publish: None), in flight."""

    batch: FastBatchModel
    seq: int
    operation: Operation
    publish: SimPublish | None


class FastBatchModel:
    """One batch, as its publisher and as a server without faults see it."""

    def __init__(self, number: int, record: StreamRecord, *, flow: int, gap_ok: bool) -> None:
        self.id = f"fast{number}"
        self.record = record
        self.flow = flow
        self.gap_ok = gap_ok
        self.sent: list[SimPublish] = []  # by the publisher: number n is at n - 1
        self.heard = 0
        self.is_open = False  # on the server
        self.final: tuple[int, bool] | None = None  # the final ack: count, and whether without an error
        self.uncertain = False  # the disk failed meanwhile: its publisher abandons it
        self.seq = 0  # the highest batch sequence received
        self.stored: dict[int, int] = {}  # stream sequence by batch sequence, where known
        self.acked = self.msgs = 0  # of the last flow ack
        self.survived = 0  # sent before a crash, and checked

    @property
    def inbox(self) -> str:
        return f"_IN.f.{self.id}"

    def reply(self, seq: int, operation: Operation) -> bytes:
        gap = "ok" if self.gap_ok else "fail"
        return f"{self.inbox}.{self.id}.{self.flow}.{gap}.{seq}.{operation.value}.$FI".encode()


class FastBatchWalk:
    """Processes the arrivals of a batch in one tick. responses: the responses except flow acks; None after a
    crash, when the rejected messages are unknown."""

    def __init__(self, batch: FastBatchModel, responses: list[dict[str, Any]] | None, now: int) -> None:
        self.batch = batch
        self.record = batch.record
        self.responses = responses
        self.now = now
        self.expected: list[tuple[Any, ...]] = []
        self.pinged = False
        self.refused_behind = False  # a message after the end: one response covers all of a server tick
        self.refused = {said["seq"] for said in responses or () if said.get("type") == "err"}

    def take(self, arrival: FastArrival) -> None:
        batch, seq, operation = self.batch, arrival.seq, arrival.operation
        if batch.is_open and batch.heard + TIMEOUT_NS <= self.now:
            batch.is_open = False
        if not batch.is_open and batch.final is not None:
            if operation is Operation.PING:
                self.expected.append(("final", *batch.final))
            elif seq > 1 and not self.refused_behind:
                self.refused_behind = True
                self.expected.append(("unknown",))
            return
        if not batch.is_open:
            if seq != 1 or operation is Operation.PING:
                self.expected.append(("unknown",))
                return
            batch.is_open, batch.seq = True, 0
        batch.heard = self.now
        if operation is Operation.PING:
            self._ping(seq)
        elif self._in_order(seq):
            if operation is Operation.EOB:
                self._end(None)
            else:
                self._append(arrival)

    def _in_order(self, seq: int) -> bool:
        batch = self.batch
        if seq == batch.seq + 1:
            return True
        self.expected.append(("gap", batch.seq, seq))
        if batch.gap_ok and seq > batch.seq:
            batch.seq = seq - 1
            return True
        self._end(None)
        return False

    def _ping(self, sent: int) -> None:
        batch = self.batch
        if sent > batch.seq:
            self.expected.append(("gap", batch.seq, sent + 1))
            if not batch.gap_ok:
                self._end(None)
                return
            batch.seq = sent
        self.pinged = True

    def _append(self, arrival: FastArrival) -> None:
        batch, publish, seq = self.batch, arrival.publish, arrival.seq
        assert publish is not None
        commits = arrival.operation is Operation.COMMIT
        is_single = commits and seq == 1
        at = self.record.seq_of.get(publish.tag)
        if at is None and self._was_refused(seq, is_alone=seq == 1 and not batch.gap_ok):
            may = self.record.may_refuse(publish) or batch.uncertain
            require(may, "answers", f"{batch.id} {seq} was refused: {self.responses}")
            self._refuse(seq, commits=commits, is_single=is_single)
            return
        if at is None and self.responses is not None:
            left = bool(publish.msg_id) or left_at_once(self.record, publish)
            require(left, "fast", f"{batch.id} {seq} is neither stored nor refused: {self.responses}")
        elif at is not None:
            if at <= max(batch.stored.values(), default=0):
                raise Violation("fast", f"{batch.id} {seq} is at {at}, those before at {batch.stored}")
            batch.stored[seq] = at
        batch.seq = seq
        if commits:
            self._end(None)

    def _was_refused(self, seq: int, *, is_alone: bool) -> bool:
        if self.responses is None:
            return False  # possibly, but without a response
        if is_alone:
            return any(_outline(said) == ("refused",) for said in self.responses)
        return seq in self.refused

    def _refuse(self, seq: int, *, commits: bool, is_single: bool) -> None:
        batch = self.batch
        if seq == 1 and not batch.gap_ok:
            batch.is_open, batch.final = False, None
            self.expected.append(("refused",))
            return
        if is_single:
            batch.is_open, batch.final = False, None  # the server has forgotten the batch
            self.expected += [("err", seq), ("final", 0, True)]
            return
        self.expected.append(("err", seq))
        if batch.gap_ok and not commits:
            batch.seq = seq
        else:
            self._end(None if batch.gap_ok else seq)

    def _end(self, refused: int | None) -> None:
        batch = self.batch
        batch.is_open = False
        batch.final = (batch.seq, refused is None)
        self.expected.append(("final", *batch.final))


def left_at_once(record: StreamRecord, publish: SimPublish) -> bool:
    """Whether a message may have been removed in the tick that stored it."""
    config = record.config
    return (
        config.retention is not RetentionPolicy.LIMITS
        or config.max_msgs > 0
        or config.max_bytes > 0
        or config.max_msgs_per_subject > 0
        or record.limits_changed
        or bool(record.asked)
        or any(one.rollup for one in record.published.values())
        or (record.copies is not None and record.copies.rolled_up(publish.subject))
    )


class FastRecord:
    """The fast batches of one stream."""

    def __init__(self, record: StreamRecord) -> None:
        self._record = record
        self.batches: list[FastBatchModel] = []  # not ended by their publishers
        self.arrivals: list[FastArrival] = []  # since the last tick
        self.answers: dict[str, list[dict[str, Any]]] = {}
        self._flows: list[tuple[str, int, int | None]] = []  # batch, number, and what was committed then
        self._applied = 0  # of the arrivals
        self._answered: set[int] = set()  # how many were applied when the server sent its responses

    def applied(self) -> None:
        """Records that the server applied all arrivals."""
        self._applied = len(self.arrivals)

    @property
    def name(self) -> str:
        """Of the stream."""
        return self._record.name

    def answered(self, batch_id: str, answer: bytes, committed: int | None) -> None:
        """Records a response about a batch. committed: the last sequence that may be acked; None: any."""
        self._answered.add(self._applied)
        said = json.loads(answer)
        self.answers.setdefault(batch_id, []).append(said)
        if said.get("type") == "ack":
            # By its number in the batch: where it is stored, the end of the tick shows.
            self._flows.append((batch_id, said["seq"], committed))
        elif said.get("count"):
            check_committed(self.name, said["seq"], "acked with its batch", committed)

    def _check_flows_committed(self, batches: Iterable[FastBatchModel]) -> None:
        flows, self._flows = self._flows, []
        stored = {batch.id: batch.stored for batch in batches}
        for batch_id, upto, committed in flows:
            last = max((at for seq, at in stored.get(batch_id, {}).items() if seq <= upto), default=0)
            check_committed(self.name, last, f"acked with {upto} of {batch_id}", committed)

    def end_tick(self, now: int, *, faulty: bool) -> None:
        """Checks a tick: everything that arrived was decided and got its response."""
        arrivals, self.arrivals = self.arrivals, []
        answers, self.answers = self.answers, {}
        answered, self._answered = self._answered, set()
        self._applied = 0
        silent = self._record.config.no_ack
        for batch in dict.fromkeys(arrival.batch for arrival in arrivals):
            # Without a response, the rejected messages of a batch are unknown.
            batch.uncertain |= faulty or self._record.limits_changed or silent
            said = answers.pop(batch.id, [])
            flows = [one for one in said if one.get("type") == "ack"]
            responses = [one for one in said if one.get("type") != "ack"]
            unsure = batch.uncertain or silent
            walk = FastBatchWalk(batch, None if unsure else responses, now)
            for number, arrival in enumerate(arrivals):
                # During a sync, one simulated tick is several of the server's.
                walk.refused_behind &= number not in answered
                if arrival.batch is batch:
                    walk.take(arrival)
            self._check_stored(batch)
            if not unsure:
                self._check_responses(batch, walk, responses)
                self._check_flow(batch, walk, flows)
        self._check_flows_committed([*self.batches, *(arrival.batch for arrival in arrivals)])
        for batch in self.batches:
            late = answers.pop(batch.id, [])  # flow acks due while the stream could not send acks
            for one in late:
                ahead = one.get("type") == "ack" and batch.acked <= one["seq"] <= batch.seq
                require(ahead, "answers", f"{batch.id}: unexpected responses {late}")
                batch.acked, batch.msgs = one["seq"], one["msgs"]
        require(not answers, "answers", f"{self._record.name}: unexpected responses {answers}")

    def _check_responses(
        self, batch: FastBatchModel, walk: FastBatchWalk, responses: list[dict[str, Any]]
    ) -> None:
        found = [_outline(one) for one in responses]
        if found != walk.expected:
            raise Violation("fast", f"{batch.id}: expected responses {walk.expected}, got {responses}")
        for one in responses:
            if "count" in one and one.get("count"):
                require(one["batch"] == batch.id, "fast", f"{batch.id}: {one}")
                self._promise(batch, one["count"], walk.now)
                newest = batch.stored.get(max(batch.stored, default=0), one["seq"])
                other = any(publish.msg_id or left_at_once(self._record, publish) for publish in batch.sent)
                require(one["seq"] == newest or other, "fast", f"{batch.id}: {one}, stored {newest}")

    def _check_flow(self, batch: FastBatchModel, walk: FastBatchWalk, flows: list[dict[str, Any]]) -> None:
        for said in flows:
            require(
                batch.acked <= said["seq"] <= batch.seq and 0 < said["msgs"] <= batch.flow,
                "fast", f"{batch.id}: {said} after {batch.acked}, {batch.seq} arrived",
            )  # fmt: skip
            batch.acked, batch.msgs = said["seq"], said["msgs"]
        self._promise(batch, batch.acked, walk.now)
        require(bool(flows) or not walk.pinged, "fast", f"{batch.id}: a ping without answer")
        if batch.is_open and batch.seq >= batch.acked + batch.msgs:
            raise Violation("progress", f"{batch.id}: {batch.seq} arrived, {batch.acked}+{batch.msgs} acked")

    def _promise(self, batch: FastBatchModel, upto: int, now: int) -> None:
        """Checks that acked messages are stored, and records that they must stay."""
        for seq, at in batch.stored.items():
            if seq <= upto:
                self._record.promise(batch.sent[seq - 1], at, now)

    def _check_stored(self, batch: FastBatchModel) -> None:
        """Checks that nothing is stored after the end of a batch, and with `fail` nothing after a gap."""
        for seq, one in enumerate(batch.sent[batch.survived :], batch.survived + 1):
            at = self._record.seq_of.get(one.tag)
            if at is not None and batch.stored.get(seq) != at:
                raise Violation(
                    "past a gap", f"{batch.id} {seq} is stored past {batch.seq}, where the batch ended"
                )

    # --- crashes

    def check_recovery(self, found: dict[int, Held], died_at: int, *, power: bool) -> None:
        """Checks the recovered messages, before the stream's record adopts them."""
        record = self._record
        at_of = {held.tag: seq for seq, held in found.items() if held.tag}
        for batch in self.batches:
            walk = FastBatchWalk(batch, None, died_at)
            for arrival in self.arrivals:
                if arrival.batch is batch:
                    walk.take(arrival)
            fresh = enumerate(batch.sent[batch.survived :], batch.survived + 1)
            present = [seq for seq, one in fresh if one.tag in at_of]
            if not present:
                continue
            if max(present) > batch.seq:
                raise Violation("past a gap", f"{batch.id} {present} came back, it has {batch.seq}")
            ats = [at_of[batch.sent[seq - 1].tag] for seq in present]
            require(ats == sorted(ats), "fast", f"{batch.id} {present} came back at {ats}")
            if power or batch.gap_ok:
                continue
            arrived = {one.seq for one in self.arrivals if one.batch is batch and one.publish is not None}
            for seq in sorted(arrived):
                if seq > max(present):
                    break
                one = batch.sent[seq - 1]
                gone = one.tag in record.seq_of or one.msg_id or left_at_once(record, one)
                if one.tag not in at_of and not gone and not record.may_refuse(one):
                    raise Violation("fast", f"{batch.id}: {present} came back, {seq} did not")

    def crashed(self) -> None:
        """Forgets the server's open batches after a crash; their publishers continue."""
        for batch in self.batches:
            batch.is_open, batch.final = False, None
            batch.seq = batch.acked = batch.msgs = 0
            batch.stored.clear()
            batch.survived = len(batch.sent)
        self.arrivals.clear()
        self.answers.clear()
        self._answered.clear()
        self._flows.clear()
        self._applied = 0


def _outline(said: dict[str, Any]) -> tuple[Any, ...]:
    """The fields of a response to compare."""
    if said.get("type") == "gap":
        return "gap", said["last_seq"], said["seq"]
    if said.get("type") == "err":
        return "err", said["seq"]
    if said.get("error") and not said.get("batch"):
        return ("unknown",) if said["error"]["err_code"] == 10206 else ("refused",)
    return "final", said.get("count", 0), "error" not in said
