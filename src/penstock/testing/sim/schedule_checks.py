"""Checks message schedules: each occurs when it is due and not before, once each time, as long as it is its
subject's last message; also across downtime.

The first time follows from the pattern, further ones from the produced messages.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from penstock.protocol import headers
from penstock.protocol.api import RetentionPolicy
from penstock.protocol.durations import NS_PER_S, format_time, parse_time
from penstock.testing.sim import Violation, require
from penstock.testing.sim.feature_checks import Feature
from penstock.testing.sim.stream_checks import Held, StreamRecord, tag_of
from penstock.testing.sim.transform_checks import stored_subject

LATE_NS = 5 * NS_PER_S  # ... it may occur; while the disk fails it is retried once a second
CRON_S = 5


class ScheduleModel(NamedTuple):
    """An existing schedule. due: ns. since: when (ns) it may have occurred without a trace, or was found
    after a crash; its next time may count from then. made, made_at: sequence and time of the message that
    determines when it is due."""

    held: Held
    due: int
    since: int = 0
    made: int = 0
    made_at: int = 0


def schedule_headers(name: str, now: int, random: Random, *, ttls: bool) -> list[tuple[str, str]]:
    """The headers of a schedule."""
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
    """Whether the message is a schedule."""
    return bool(_value(held, headers.SCHEDULE)) and not _value(held, headers.SCHEDULER)


def _value(held: Held, name: str) -> str:
    return (headers.value_of(held.header, name) or b"").decode() if held.header else ""


def _first_due(held: Held) -> int:
    pattern = _value(held, headers.SCHEDULE)
    if pattern.startswith("@at "):
        return parse_time(pattern[4:])
    if pattern.startswith("@every "):
        return held.ts + int(pattern[7:-1]) * NS_PER_S - NS_PER_S // 2  # counted in whole seconds
    return _next_cron(held.ts)


def _next_cron(after: int) -> int:
    return (after // (CRON_S * NS_PER_S) + 1) * CRON_S * NS_PER_S


class Schedules(Feature):
    """The schedules of one stream."""

    def __init__(self, record: StreamRecord) -> None:
        super().__init__(record)
        self._known: dict[str, ScheduleModel] = {}  # by subject
        self._produced: set[int] = set()  # sequences
        self._ended: list[tuple[Held, Held]] = []  # schedules that have ended, each with its last message
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
            lasting = self.record.kept.live.keys() | self.record.synced.live.keys()
            self._ended = [(one, made) for one, made in self._ended if one.seq in lasting]
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
        """Checks a produced message."""
        self._produced.add(held.seq)
        where = f"{self.record.name} {held.seq}, of {scheduler}"
        known = self._known.get(scheduler)
        tag = tag_of(held.payload)
        if known is None or known.held.tag != tag:
            # A schedule that is already due may come and go in one tick. It replaces the existing one.
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
            # While slices remove what roll-ups replaced, the schedule waits; check() finds one
            # that stays.
            gone = known.held.seq not in self.record.live or self.record.rolling
            require(following == "purge" and gone, "schedules", f"{where}: did not end with {following}")
            self._ended.append((known.held, held))
            del self._known[scheduler]
            return
        due = parse_time(following)
        require(due > known.due and due >= held.ts, "schedules", f"{where}: the next is at {following}")
        self._known[scheduler] = known._replace(due=due, made=held.seq, made_at=held.ts)

    def _may_be_unseen(self, one: ScheduleModel, fresh: dict[int, Held]) -> bool:
        """Whether its produced message may have been removed before the record looked: by a purge, a roll-up,
        or with a limit per subject by the next message of the target, which schedules may share."""
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

    def crashed(self) -> None:
        record, config = self.record, self.record.config
        limited = config.max_msgs > 0 or config.max_bytes > 0 or config.max_msgs_per_subject > 0
        limited = limited or config.retention is not RetentionPolicy.LIMITS
        removed = (
            record.asked or record.limits_changed or any(one.rollup for one in record.published.values())
        )
        if limited or removed:
            self._ended.clear()
        self._ended = [(one, made) for one, made in self._ended if made.seq in record.live]

    def _check_ended(self, now: int) -> None:
        """A schedule is removed together with the storing of its last message: a crash must leave one of
        the two."""
        record = self.record
        there = {(_value(held, headers.SCHEDULER), tag_of(held.payload)) for held in record.live.values()}
        for one, made in self._ended:
            lasted = record.base.live.get(one.seq) == one
            aged = record.has_aged(one, now) or record.has_aged(made, now)
            if lasted and not aged and one.seq not in record.live and (one.subject, one.tag) not in there:
                raise Violation("schedules", f"{record.name}: {one} is gone, and so is {made}")

    def recovered(self, now: int, *, power: bool, damaged: bool) -> None:
        if not power and not damaged:
            self._check_ended(now)
        self._ended.clear()
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
            # Others were published in the tick that the crash ended, maybe replacing a known one.
            if known is not None and known.held.tag == tag_of(held.payload):
                require(held.ts >= known.due, "schedules", f"{held} came too early, due {known.due}")
        # Messages produced at the start may have been removed by the start, too.
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
        """What the server knows after a restart of an existing schedule.

        Where the message that determines its time is gone, the stream's last time counts. A message that was
        produced late names a time of a cron pattern after the nearest whole second; there may be an earlier
        one, which then is due.
        """
        if one.made > self.record.base.last_seq:  # in memory only, while the disk failed
            return ScheduleModel(one.held, _first_due(one.held), since=now)
        is_cron = not _value(one.held, headers.SCHEDULE).startswith("@")
        if not is_cron or not one.made or one.made in self.record.live:
            return one
        return one._replace(due=min(one.due, _next_cron(one.made_at)), since=now)
