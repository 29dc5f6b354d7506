"""Checks atomic batches: all messages of a batch are stored contiguously, or none.

The model follows what was sent (with losses, repetitions and reordering) as the specification prescribes, and
knows the correct response to each message. Whether a batch that may be rejected was rejected follows from the
log and the responses. That no batch is stored in part is checked after every tick and crash, and on what a
client reads while batches are in flight.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, NamedTuple

from penstock.protocol.api import RetentionPolicy
from penstock.testing.sim import Violation, check_committed, require
from penstock.testing.sim.stream_checks import Held, SimPublish, StreamRecord

TIMEOUT_NS = 10_000_000_000
MESSAGES_MAX = 12  # of a batch; also the limit in the simulated server's configuration


class AtomicArrival(NamedTuple):
    """A message in flight. publish: None for an end without a message. commit: "", "1" or "eob"."""

    batch: AtomicBatchModel
    seq: int
    publish: SimPublish | None
    commit: str
    size: int  # bytes of header and payload
    answer: int  # number of the inbox for the response; 0: none


class Applied(NamedTuple):
    """An arrival that the server applied at `now` (ns). refusing: it rejected all publishes to the stream.

    A simulated tick that waits for the disk spans several of the server's, and the disk may fail in some of
    them.
    """

    arrival: AtomicArrival
    now: int
    refusing: bool


class AtomicBatchModel:
    """One batch, as its publisher and as a server without faults see it."""

    def __init__(self, number: int, record: StreamRecord) -> None:
        self.id = f"atomic{number}"
        self.record = record
        self.sent: list[SimPublish] = []  # by the publisher: number n is at n - 1
        self.is_open = False  # on the server
        self.staged: list[SimPublish] = []
        self.heard = 0
        self.uncertain = False  # the disk failed meanwhile: its publisher abandons it

    def expire(self, now: int) -> None:
        if self.is_open and self.heard + TIMEOUT_NS <= now:
            self.is_open = False

    def take(self, arrival: AtomicArrival, now: int) -> str:
        """The expected result of a message: "staged", "refused" or "commit" (of everything staged)."""
        if 0 <= self.record.config.max_msg_size < arrival.size and not self.record.limits_changed:
            return "refused"  # checked before the batch is known
        self.expire(now)
        if not self.is_open:
            self.staged = []
            if arrival.seq != 1:
                return "refused"
        self.is_open = False
        if arrival.seq != len(self.staged) + 1 or (arrival.commit == "eob" and arrival.seq == 1):
            return "refused"
        if arrival.publish is not None:
            self.staged.append(arrival.publish)
        if len(self.staged) > MESSAGES_MAX:
            return "refused"
        if arrival.commit:
            return "commit"
        self.is_open, self.heard = True, now
        return "staged"


class AtomicRecord:
    """The atomic batches of one stream."""

    def __init__(self, record: StreamRecord) -> None:
        self._record = record
        self.batches: list[AtomicBatchModel] = []  # not ended by their publishers
        self.arrivals: list[AtomicArrival] = []  # not yet applied by the server
        self._applied: list[Applied] = []  # since the last tick
        self.answers: dict[int, bytes] = {}
        self._whole: list[list[SimPublish]] = []  # stored batches of which some message is left
        self._reads: list[set[int]] = []  # tags, one set per read of the whole stream

    @property
    def name(self) -> str:
        """Of the stream."""
        return self._record.name

    def applied(self, now: int, *, refusing: bool) -> None:
        """Records that the server applied all arrivals. refusing: it rejected every publish to the stream."""
        self._applied += [Applied(arrival, now, refusing) for arrival in self.arrivals]
        self.arrivals.clear()

    def answered(self, number: int, answer: bytes, committed: int | None) -> None:
        """Records a response. committed: the last sequence that may be acked; None: any."""
        self.answers[number] = answer
        said: dict[str, Any] = json.loads(answer) if answer else {}
        if "error" not in said:
            check_committed(self.name, said.get("seq", 0), "acked with its batch", committed)

    def end_tick(self, now: int, *, faulty: bool) -> None:
        """Checks a tick: everything that arrived was decided and got its response."""
        record = self._record
        require(not self.arrivals, "progress", f"{record.name}: {self.arrivals} were not applied")
        applied, self._applied = self._applied, []
        answers, self.answers = self.answers, {}
        committed: list[list[SimPublish]] = []
        for arrival, at, refusing in applied:
            batch = arrival.batch
            batch.uncertain |= faulty or record.limits_changed
            came_to = "refused" if refusing else batch.take(arrival, at)
            answer = answers.pop(arrival.answer, None)
            staged = list(batch.staged)
            if came_to == "commit" and self._is_stored(staged):
                committed.append(staged)
            silent = not arrival.answer or record.config.no_ack
            if came_to == "staged" or silent or (batch.uncertain and answer is None):
                require(not answer or batch.uncertain, "answers", f"{batch.id} {arrival.seq}: {answer!r}")
                self._check_silent(came_to, batch, staged, committed)
            elif self._check_answer(arrival, came_to, staged, answer, now, stored=staged in committed):
                committed.append(staged)
        require(not answers, "answers", f"{record.name}: unexpected responses {answers}")
        self._check_nothing_else([one.arrival for one in applied], committed)
        self._whole += committed
        self._check_reads()
        self._forget()

    def _check_silent(
        self,
        came_to: str,
        batch: AtomicBatchModel,
        staged: list[SimPublish],
        committed: list[list[SimPublish]],
    ) -> None:
        if came_to != "commit" or batch.uncertain or staged in committed:
            return
        may = any(self._record.may_refuse(one) for one in staged) or self._left_at_once(staged, set())
        require(may, "atomic", f"{batch.id} was committed and is not there")

    def _check_answer(
        self,
        arrival: AtomicArrival,
        came_to: str,
        staged: list[SimPublish],
        answer: bytes | None,
        now: int,
        *,
        stored: bool,
    ) -> bool:
        """Checks a response. Returns whether it reports the batch as stored."""
        batch, record = arrival.batch, self._record
        where = f"{batch.id} {arrival.seq}, {came_to}"
        if answer is None:
            raise Violation("answers", f"{where}: was not answered")
        said: dict[str, Any] = json.loads(answer) if answer else {}
        if "error" in said:
            may = came_to == "refused" or any(record.may_refuse(one) for one in staged)
            require(may or batch.uncertain, "answers", f"{where}: {said}")
            require(batch.uncertain or not stored, "atomic", f"{where}: {said}, but it is stored")
            return False
        require(came_to == "commit", "answers", f"{where}: {said}")
        count, last = said["count"], said["seq"]
        right = (len(staged), batch.id)
        require((count, said["batch"]) == right, "answers", f"{where}: {said}, has {right}")
        require(
            stored or self._left_at_once(staged, set()), "atomic", f"{where}: {said}, and it is not there"
        )
        for i, publish in enumerate(staged):
            record.promise(publish, last - count + 1 + i, now)
        return True

    # --- is it whole?

    def _is_stored(self, batch: list[SimPublish]) -> bool:
        """Whether a batch is in the log. Raises Violation when only a part is."""
        return self._check_whole(batch, self._record.seq_of, self._record.live)

    def _check_whole(
        self,
        batch: list[SimPublish],
        seq_of: dict[int, int],
        live: dict[int, Held],
        expired: Collection[SimPublish] = (),
    ) -> bool:
        found = {i: seq_of[one.tag] for i, one in enumerate(batch) if one.tag in seq_of}
        if not found:
            return False
        at = min(found)
        first = found[at] - at
        seqs = [seq_of.get(one.tag) for one in batch]
        for i, seq in found.items():
            if seq != first + i:
                raise Violation("atomic", f"{self._record.name}: a batch is at {seqs}, not in one run")
        missing = [one for i, one in enumerate(batch) if i not in found and one not in expired]
        others = [one for one in batch if one not in expired]
        if missing and not self._left_at_once(others, {batch[i].tag for i in found}, live):
            raise Violation("atomic", f"{self._record.name}: of a batch only {seqs} is there")
        return True

    def _left_at_once(
        self, batch: list[SimPublish], present: set[int], live: dict[int, Held] | None = None
    ) -> bool:
        """Whether the missing messages of a batch may have been removed in the tick that stored them."""
        record, config = self._record, self._record.config
        live = record.live if live is None else live
        if config.retention is not RetentionPolicy.LIMITS or record.limits_changed or record.asked:
            return True
        if any(one.rollup for one in record.published.values()) or config.allow_msg_schedules:
            return True
        newest: dict[str, int] = {}
        for held in live.values():
            newest[held.subject] = max(newest.get(held.subject, 0), held.seq)
        by_size = config.max_msgs > 0 or config.max_bytes > 0
        there = False
        for one in batch:
            if one.tag in present:
                there = True
            elif record.copies is not None and record.copies.rolled_up(one.subject):
                continue
            elif (not by_size or there) and (config.max_msgs_per_subject <= 0 or one.subject not in newest):
                return False
        return True

    def _check_nothing_else(self, arrivals: list[AtomicArrival], committed: list[list[SimPublish]]) -> None:
        """Checks that no message of an uncommitted batch is stored."""
        whole = {one.tag for batch in committed for one in batch}
        for batch in dict.fromkeys(arrival.batch for arrival in arrivals):
            for seq, one in enumerate(batch.sent, 1):
                if one.tag in self._record.seq_of and one.tag not in whole and not self._knows(one):
                    raise Violation("atomic", f"{batch.id} {seq} is stored, and was not committed")

    def _knows(self, publish: SimPublish) -> bool:
        return any(one.tag == publish.tag for batch in self._whole for one in batch)

    # --- reads

    def was_read(self, tags: set[int]) -> None:
        """Checks a read of the whole stream: it has all messages of a batch or none."""
        self._reads.append(tags)

    def _check_reads(self) -> None:
        reads, self._reads = self._reads, []
        seq_of, live = self._record.seq_of, self._record.live
        for tags in reads:
            for batch in self._whole:
                missing = [one for one in batch if one.tag not in tags and seq_of.get(one.tag) in live]
                if missing and len(missing) < len([one for one in batch if seq_of.get(one.tag) in live]):
                    raise Violation("atomic", f"{self._record.name}: {missing[0].tag} was missing in a read")
            unknown = tags - seq_of.keys() - set(self._record.ever.values()) - {0}
            unknown -= self._record.published.keys()  # those may have been stored and removed within the tick
            require(
                not unknown or self._record.copies is not None,
                "atomic",
                f"{self._record.name}: {unknown} were read and never stored",
            )

    # --- crashes

    def check_recovery(self, found: dict[int, Held], now: int, *, power: bool) -> None:
        """Checks the recovered messages after a crash, before the stream's record adopts them."""
        seq_of = {held.tag: seq for seq, held in found.items() if held.tag}
        live = self._record.live
        for batch in self._whole:
            seqs = [self._record.seq_of.get(one.tag, 0) for one in batch]
            parts = [live[seq] for seq in seqs if seq in live]
            kept = [held for held in parts if found.get(held.seq) == held]
            lost = [held for held in parts if found.get(held.seq) != held]
            lost = [held for held in lost if not self._record.may_be_missing(held, found, now, power=power)]
            if kept and lost:
                raise Violation("atomic", f"{self._record.name}: {kept} came back and {lost} did not")
        committed: list[list[SimPublish]] = []
        for arrival, at, refusing in self._applied:
            if not refusing and arrival.batch.take(arrival, at) == "commit":
                batch = list(arrival.batch.staged)
                # A message that has expired since may have been stored, and removed at the start.
                expired = [one for one in batch if 0 < one.ttl_ns <= now - at and one.tag not in seq_of]
                if self._check_whole(batch, seq_of, found, expired):
                    committed.append(batch)
        self._check_nothing_else_found(seq_of, committed)
        self._whole += committed

    def _check_nothing_else_found(self, seq_of: dict[int, int], committed: list[list[SimPublish]]) -> None:
        whole = {one.tag for batch in committed for one in batch}
        for batch in [*self.batches, *(one.arrival.batch for one in self._applied)]:
            for one in batch.sent:
                if one.tag in seq_of and one.tag not in whole and not self._knows(one):
                    raise Violation("atomic", f"{batch.id}: {one.tag} came back, and was not committed")

    def crashed(self, *, damaged: bool) -> None:
        """Forgets the server's open batches after a crash; their publishers continue.

        damaged: bits of the stream's files were flipped, so stored batches may be incomplete.
        """
        if damaged:
            self._whole.clear()
        for batch in self.batches:
            batch.is_open = False
        self.arrivals.clear()
        self._applied.clear()
        self.answers.clear()
        self._reads.clear()
        self._forget()

    def _forget(self) -> None:
        live = self._record.live
        seq_of = self._record.seq_of
        self._whole = [batch for batch in self._whole if any(seq_of.get(one.tag) in live for one in batch)]
