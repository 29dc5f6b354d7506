"""What must be true of message schedules: one happens when its time came and not before, once each time, as
long as it is its subject's last message; also when the server was away meanwhile.

When the next time is follows from the pattern and, from then on, from what the produced messages say.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from penstock.protocol import headers
from penstock.protocol.durations import NS_PER_S, format_time, parse_time
from penstock.testing.sim.feature_checks import Feature
from penstock.testing.sim.stream_checks import Held, StreamRecord, tag_of
from penstock.testing.sim.transform_checks import stored_subject
from penstock.testing.sim.violation import Violation, require

LATE_NS = 5 * NS_PER_S  # ... it may happen; while the disk fails it is tried once a second
CRON_S = 5


class ScheduleModel(NamedTuple):
    """One that is there. due: ns. since: when (ns) it may have happened without a trace, or the server found
    it after a crash; it may count its next time from then. made, made_at: sequence and time of the message
    that says when it is due."""

    held: Held
    due: int
    since: int = 0
    made: int = 0
    made_at: int = 0


def schedule_headers(name: str, now: int, random: Random, *, ttls: bool) -> list[tuple[str, str]]:
    """What asks for one."""
    pattern = random.choice(
        [
            f"@at {format_time(now + random.choice([-1, 1, 3, 10]) * NS_PER_S)}",
            f"@every {random.choice([2, 5])}s",
            f"*/{CRON_S} * * * * *",
        ]
    )
    pairs = [(headers.SCHEDULE, pattern), (headers.SCHEDULE_TARGET, f"{name}.{random.choice('xy')}")]
    if ttls and random.random() < 0.4:
        pairs.append((headers.SCHEDULE_TTL, "3s"))
    return pairs


def is_schedule(held: Held) -> bool:
    """Does the message ask for others?"""
    return bool(_value(held, headers.SCHEDULE)) and not _value(held, headers.SCHEDULER)


def _value(held: Held, name: str) -> str:
    return (headers.value_of(held.header, name) or b"").decode() if held.header else ""


def _first_due(held: Held) -> int:
    pattern = _value(held, headers.SCHEDULE)
    if pattern.startswith("@at "):
        return parse_time(pattern[4:])
    if pattern.startswith("@every "):
        return held.ts + int(pattern[7:-1]) * NS_PER_S - NS_PER_S // 2  # whole seconds are counted from
    return _next_cron(held.ts)


def _next_cron(after: int) -> int:
    return (after // (CRON_S * NS_PER_S) + 1) * CRON_S * NS_PER_S


class Schedules(Feature):
    """Of one stream."""

    def __init__(self, record: StreamRecord) -> None:
        super().__init__(record)
        self._known: dict[str, ScheduleModel] = {}  # by subject
        self._produced: set[int] = set()  # sequences
        self._faulty_at = 0
        self._looked_upto = 0  # sequence

    def looked(self, before: dict[int, Held], fresh: dict[int, Held], now: int) -> None:
        if self.record.config.allow_msg_schedules:
            self._follow(fresh)
            self._known = {
                subject: one._replace(since=now) if self._may_be_unseen(one, fresh) else one
                for subject, one in self._known.items()
                if one.held.seq in self.record.live
            }
        self._looked_upto = self.record.last_seq

    def _follow(self, fresh: dict[int, Held]) -> None:
        for held in fresh.values():
            scheduler = _value(held, headers.SCHEDULER)
            if scheduler:
                self._take(scheduler, held)
            self._known.pop(held.subject, None)
            if is_schedule(held):
                self._known[held.subject] = ScheduleModel(held, _first_due(held))

    def _take(self, scheduler: str, held: Held) -> None:
        """It was produced."""
        self._produced.add(held.seq)
        where = f"{self.record.name} {held.seq}, of {scheduler}"
        known = self._known.get(scheduler)
        tag = tag_of(held.payload)
        if known is None or known.held.tag != tag:
            # One whose time is over may come and go in one tick. It takes the place of the one there was.
            publish = self.record.published.get(tag)
            may = publish is not None and publish.subject == scheduler
            require(may, "schedules", f"{where}: there is no such schedule")
            return
        require(held.ts >= known.due, "schedules", f"{where}: came {known.due - held.ts} ns too early")
        target = stored_subject(self.record.config, _value(known.held, headers.SCHEDULE_TARGET))
        right = (held.subject, held.payload) == (target, known.held.payload)
        require(right or self.record.limits_changed, "schedules", f"{where}: {held}, target is {target}")
        following = _value(held, headers.SCHEDULE_NEXT)
        if _value(known.held, headers.SCHEDULE).startswith("@at "):
            gone = known.held.seq not in self.record.live
            require(following == "purge" and gone, "schedules", f"{where}: did not end with {following}")
            del self._known[scheduler]
            return
        due = parse_time(following)
        require(due > known.due and due >= held.ts, "schedules", f"{where}: the next is at {following}")
        self._known[scheduler] = known._replace(due=due, made=held.seq, made_at=held.ts)

    def _may_be_unseen(self, one: ScheduleModel, fresh: dict[int, Held]) -> bool:
        """May what it made have gone before the record looked? A purge or a roll-up takes it, and where there
        is a limit per subject, the next message of the target: another schedule may have the same one."""
        record = self.record
        if record.asked or any(publish.rollup == "all" for publish in record.published.values()):
            return True
        target = stored_subject(record.config, _value(one.held, headers.SCHEDULE_TARGET))
        newest = max((seq for seq, held in fresh.items() if held.subject == target), default=0)
        return any(seq not in fresh for seq in range(self._looked_upto + 1, newest))

    def end_tick(self, now: int, *, faulty: bool) -> None:
        if faulty:
            self._faulty_at = now

    def check(self, now: int, *, faulty: bool) -> None:
        config = self.record.config
        if faulty or config.sealed or now < self._faulty_at + LATE_NS or self.record.damaged:
            return
        limited = config.max_msgs > 0 or config.max_bytes > 0 or config.retention.value != "limits"
        for subject, one in self._known.items():
            late = (now - max(one.due, one.since + CRON_S * NS_PER_S)) / NS_PER_S
            if not limited and late * NS_PER_S > LATE_NS:
                raise Violation("schedules", f"{self.record.name}: {subject} is {late} s late")

    def recovered(self, now: int, *, power: bool, damaged: bool) -> None:
        if not self.record.config.allow_msg_schedules:
            return
        live = dict(sorted(self.record.live.items()))
        new = {seq: held for seq, held in live.items() if _value(held, headers.SCHEDULER)}
        new = {seq: held for seq, held in new.items() if seq not in self._produced}
        fits = not power and not damaged and self._faulty_at < now
        before, self._known = self._known, {}
        before = {subject: self._found_again(one, now) for subject, one in before.items()} if fits else {}
        for held in new.values():
            known = before.get(_value(held, headers.SCHEDULER))
            # Others were published with the tick that the crash ended, maybe in place of a known one.
            if known is not None and known.held.tag == tag_of(held.payload):
                require(held.ts >= known.due, "schedules", f"{held} came too early, due {known.due}")
        # What one made while the server started may have gone with the start, too.
        self._looked_upto = min(self._looked_upto, self.record.base.last_seq)
        fresh = {seq: held for seq, held in live.items() if seq > self._looked_upto}
        before = {
            subject: one._replace(since=now) if self._may_be_unseen(one, fresh) else one
            for subject, one in before.items()
        }
        self._looked_upto = self.record.last_seq
        self._produced = set(new)
        for held in live.values():
            scheduler = _value(held, headers.SCHEDULER)
            self._known.pop(held.subject, None)
            if is_schedule(held):
                past = before.get(held.subject)
                is_same = past is not None and past.held.seq == held.seq
                first = ScheduleModel(held, _first_due(held), since=now)
                self._known[held.subject] = past if is_same and past is not None else first
            elif scheduler in self._known and _value(held, headers.SCHEDULE_NEXT) != "purge":
                due = parse_time(_value(held, headers.SCHEDULE_NEXT))
                known = self._known[scheduler]
                if due >= known.due:
                    self._known[scheduler] = known._replace(due=due, made=held.seq, made_at=held.ts)
            if scheduler:
                self._produced.add(held.seq)

    def _found_again(self, one: ScheduleModel, now: int) -> ScheduleModel:
        """What the server knows after a restart of a schedule that was there before it.

        Where the message is gone that says when it is due, the stream's last time is what counts. A message
        that was made too late says a time of a cron pattern after the nearest whole second, and there may be
        one before that, which then is due.
        """
        if one.made > self.record.base.last_seq:  # made in memory alone, while the disk failed
            return ScheduleModel(one.held, _first_due(one.held), since=now)
        is_cron = not _value(one.held, headers.SCHEDULE).startswith("@")
        if not is_cron or not one.made or one.made in self.record.live:
            return one
        return one._replace(due=min(one.due, _next_cron(one.made_at)), since=now)
