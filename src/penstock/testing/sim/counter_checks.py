"""Checks counters: each message has the sum of its subject so far, so the total is the sum of the acked
increments, also within batches.

A tick starts with the sums in the log. Every ack in it has the sum with its increment, and the log ends with
the last one. After a killed process, the sum is one that some of the increments in flight lead to, in their
order.
"""

from __future__ import annotations

import json
from functools import lru_cache
from random import Random
from typing import Any

from penstock.protocol import headers
from penstock.testing.sim import Violation
from penstock.testing.sim.feature_checks import Feature
from penstock.testing.sim.stream_checks import Held, SimPublish, StreamRecord

_EVERYTHING = 1 << 62
INCREMENTS = ("+1", "1", "-1", "+7", "-300", "0", "123456789012345678901234567890")


def counter_config(config: dict[str, Any], random: Random) -> dict[str, Any]:
    """The configuration of a stream with counters."""
    for useless in ("allow_msg_ttl", "subject_delete_marker_ttl", "max_msg_size", "discard_new_per_subject"):
        config.pop(useless, None)
    return config | {
        "allow_msg_counter": True, "retention": "limits", "discard": "old", "max_msgs": -1, "max_bytes": -1,
        "max_age": 0, "no_ack": False, "max_msgs_per_subject": random.choice([-1, 1, 3]),
    }  # fmt: skip


class Counters(Feature):
    """The counters of one stream."""

    def __init__(self, record: StreamRecord) -> None:
        super().__init__(record)
        self._totals: dict[str, int] = {}  # by subject, at the start of the tick
        self.sent: list[SimPublish] = []  # in this tick, outside of batches
        self.has_batches = False  # this tick has messages of a batch, whose sums no ack reports
        self._unsure = False  # messages were removed in this tick
        # Messages whose removal a power failure revoked, by sequence, and the last sequence at that time: up
        # to it, sums may continue from them or from messages before them.
        self._returned: dict[int, int] = {}
        self._removable = _EVERYTHING  # messages up to here may have been removed before the crash

    def looked(self, before: dict[int, Held], fresh: dict[int, Held], now: int) -> None:
        self._unsure |= bool(self.record.asked) or self.record.limits_changed

    def end_tick(self, now: int, *, faulty: bool) -> None:
        if not self.record.config.allow_msg_counter:
            return
        record, totals = self.record, self._totals
        found = self._found()
        if not (faulty or self._unsure or record.asked or record.limits_changed):
            for one in self.sent:
                if one.value is None:
                    continue  # rejected: the stream's record checks whether it may be
                totals[one.subject] = totals.get(one.subject, 0) + int(one.increment)
                if totals[one.subject] != int(one.value) and not self.has_batches:
                    where = f"{record.name}: {one.tag} on {one.subject}"
                    raise Violation("sum", f"{where} is {one.value}, not {totals[one.subject]}")
            if found != totals and not self.has_batches:
                raise Violation("sum", f"{record.name}: the log has {found}, the acks come to {totals}")
        self._begin()
        self._unsure |= faulty  # an unwritten message may be lost in a crash

    def check(self, now: int, *, faulty: bool) -> None:
        self._check_chain()

    def _check_chain(self) -> None:
        """Checks each message's sum: that of its subject's previous message plus its increment, where all
        messages in between are present.

        A power failure can revoke the removal of the previous message and keep what was stored after it: then
        the sum continues from it, or from one before it.
        """
        record = self.record
        if not record.config.allow_msg_counter or record.damaged:
            return
        subjects: dict[str, list[Held]] = {}
        run = 0  # everything from here on is present
        before = -1
        for seq, held in sorted(record.live.items()):
            run = run if seq == before + 1 else seq
            before = seq
            past = subjects.setdefault(held.subject, [])
            self._check_sum(held, past, run)
            past.append(held)

    def _check_sum(self, held: Held, past: list[Held], run: int) -> None:
        """past: earlier messages of its subject."""
        increment = int(headers.value_of(held.header, headers.INCR) or b"0")
        for one in reversed(past):
            if one.seq < run or _sum_of(held) == _sum_of(one) + increment:
                return
            if held.seq > self._returned.get(one.seq, 0):
                raise Violation("sum", f"{self.record.name}: {held} after {one}")

    def crashed(self) -> None:
        self._removable = _EVERYTHING if self.record.asked else self.record.last_seq
        self._unsure |= bool(self.record.asked) or self.record.limits_changed

    def recovered(self, now: int, *, power: bool, damaged: bool) -> None:
        record = self.record
        if power:
            back = (seq for seq in record.came_back if seq <= self._removable)
            self._returned |= dict.fromkeys(back, record.last_seq)
        self._returned = {seq: last for seq, last in self._returned.items() if seq in record.live}
        if not damaged:
            self._check_chain()
        is_sure = not (power or damaged or self._unsure or self.has_batches)
        if self.record.config.allow_msg_counter and is_sure:
            may = {subject: {total} for subject, total in self._totals.items()}
            for one in self.sent:
                sums = may.setdefault(one.subject, {0})
                sums |= {total + int(one.increment) for total in sums}
            for subject, total in self._found().items():
                if total not in may.get(subject, ()):
                    raise Violation("sum", f"{self.record.name}: {subject} came back as {total}")
        self._begin()

    def _begin(self) -> None:
        self._totals = self._found() if self.record.config.allow_msg_counter else {}
        self._unsure = self.record.damaged  # the last message is no longer known
        self.sent.clear()
        self.has_batches = False

    def _found(self) -> dict[str, int]:
        return {held.subject: _sum_of(held) for held in self.record.live.values()}


def _sum_of(held: Held) -> int:
    return _sum_in(held.payload)


@lru_cache(4096)
def _sum_in(payload: bytes) -> int:
    return int(json.loads(payload)["val"])
