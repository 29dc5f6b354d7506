"""Checks a stream from outside: a record of what it stored, and why messages were removed.

The record is not a second implementation of streams. It follows the log from tick to tick: what appears must
have been published, what disappears must have had a reason (a request, a limit, age, an ack), and the
counters must be correct. At a crash it knows which of the states it saw must have survived.

- `live`: messages at the last look; `kept`: as of the last write to the operating system; `synced`: as of the
  last sync.
- After a killed process all of `kept` is there, after a power failure all of `synced`. Nothing removed by
  then is back. Of later publishes a part may be there, each at most once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.jetstream.stream.stream_replica import StreamReplica
from penstock.kernels.log.stream_log import StreamLog
from penstock.protocol import headers
from penstock.protocol.api import ApiStreamConfig, DiscardPolicy
from penstock.protocol.durations import NS_PER_S, parse_time
from penstock.protocol.subjects import matches
from penstock.testing.sim import Violation, require

if TYPE_CHECKING:
    from penstock.testing.sim.copy_checks import Copies, Position
    from penstock.testing.sim.feature_checks import Feature

GRAIN_NS = 20_000_000  # how late the server may expire messages
MARKER = b"Nats-Marker-Reason"
LETTER = b"Penstock-Dead-Letter-Stream"
TAG = "Sim-Tag"
TTLS = ("1", "3s", "never", "60")
_PRODUCED = headers.SCHEDULER.encode() + b":"


class Held(NamedTuple):
    """One stored message. tag: the number of its publish; 0 for messages that the server publishes."""

    seq: int
    ts: int
    subject: str
    header: bytes
    size: int
    tag: int
    payload: bytes


class SimSnapshot(NamedTuple):
    """The state of a stream at some time. sources: its positions."""

    live: dict[int, Held]
    last_seq: int
    maybe: frozenset[int] = frozenset()  # removed since a recovery, perhaps not yet written
    sources: Mapping[str, Position] = MappingProxyType({})


class SimPublish:
    """A publish and its outcome. expect: the expected last sequence, and whether of its subject."""

    __slots__ = (
        "answered", "expect", "increment", "msg_id", "plain", "rollup", "sent", "stream", "subject", "tag",
        "ttl_ns", "value",
    )  # fmt: skip

    def __init__(self, tag: int, stream: str, subject: str, sent: str = "") -> None:
        self.tag = tag
        self.stream = stream
        self.subject = subject  # stored under it
        self.sent = sent or subject  # published under it
        self.msg_id = b""
        self.rollup = ""
        self.ttl_ns = 0
        self.increment = ""  # of a counter
        self.value: str | None = None  # ... and the value in the ack
        self.expect: tuple[int, bool] | None = None
        self.plain = True
        self.answered = False

    def expire_after(self, ttl: str) -> tuple[str, str]:
        """The header of a message that expires."""
        self.ttl_ns = 0 if ttl == "never" else ttl_ns(ttl.encode())
        return headers.TTL, ttl


def tag_of(payload: bytes) -> int:
    """Payloads start with the number of their publish."""
    return int(payload[:8]) if payload[:8].isdigit() else 0


def tag_in(header: bytes, payload: bytes) -> int:
    """The same of a message, whose header has it where the server creates the payload."""
    value = headers.value_of(header, TAG) if header else None
    return tag_of(payload if value is None else value)


def is_produced(header: bytes) -> bool:
    """Whether a schedule produced it."""
    return _PRODUCED in header


def read_log(log: StreamLog, from_seq: int, *, memory: bool, damaged: bool = False) -> dict[int, Held]:
    """The messages of a log at or after a sequence.

    damaged: bits were flipped in its files, or a power failure left holes, so that reading may reveal a lost
    message, which counts as removed from then on.
    """
    found: dict[int, Held] = {}
    seq = log.next_seq(from_seq)
    while seq:
        lost = log.lost
        message = log.load(seq)
        if damaged and message is None and log.lost > lost and log.next_seq(seq) != seq:
            seq = log.next_seq(seq + 1)
            continue
        if message is None or message.seq != seq:
            raise Violation("readable", f"message {seq} is said to be there and can not be read")
        size = len(message.subject) + len(message.header) + len(message.payload)
        size += 16 if memory else 34 if message.header else 30
        is_own = LETTER in message.header or is_produced(message.header)
        tag = 0 if is_own else tag_in(message.header, message.payload)
        subject = message.subject.decode()
        found[seq] = Held(seq, message.ts, subject, message.header, size, tag, message.payload)
        seq = log.next_seq(seq + 1)
    return found


class StreamRecord:
    """One stream, from its creation to its deletion."""

    def __init__(self, name: str, config: ApiStreamConfig, identity: str) -> None:
        self.name = name
        self.identity = identity  # its incarnation
        self.config = self.config_before = config  # now, and at the end of the last tick
        self.memory = config.storage.value == "memory"
        self.live: dict[int, Held] = {}
        self.last_seq = 0
        self.kept = self.synced = SimSnapshot({}, 0)
        self.base = self.kept  # what the last crash had to leave
        self.ever: dict[int, int] = {}  # tag by sequence, of all messages ever seen
        self.seq_of: dict[int, int] = {}  # sequence by tag
        self.acked: dict[int, int] = {}  # tag by sequence, of this incarnation
        self.shown: set[int] = set()  # sequences that were delivered to a consumer
        # Message ids: time by sequence. After the window was extended, an id may occur twice in it.
        self.ids: dict[bytes, dict[int, int]] = {}
        self.window_ns = config.duplicate_window
        self.asked: list[tuple[str, Any]] = []  # removals requested in this tick
        self.published: dict[int, SimPublish] = {}  # in this tick
        self.tags: set[int] = set()  # of all publishes to it
        self.settled: set[int] = set()  # sequences that interest or work-queue retention may remove
        self.settled_before: set[int] = set()  # ... since the end of the last tick
        self.left_otherwise: set[int] = set()  # removed for other reasons than an ack
        self.lost_tags: set[int] = set()  # of publishes that a crash took from the disk
        self.came_back: set[int] = set()  # restored by a crash that revoked their removal
        # A response or the disk confirmed its creation. Until then a power failure may remove a stream whose
        # creation was rejected or got no response.
        self.is_promised = True
        self.limits_changed = False
        self.rolling = False  # limits hold again when the roll-ups of a batch are done
        self.features: list[Feature] = []
        self.copies: Copies | None = None  # of a stream with a mirror or sources
        self.damaged = False  # bits were flipped in its files: messages may be lost
        # A power failure lost unsynced data; in a closed block whose index was kept, this only shows when the
        # block is read.
        self.may_have_holes = False
        self.lost = 0  # messages found damaged; their subjects count them until the next start
        self._bytes = 0
        self._looked_at = 0  # messages at the last check of the limits
        self._looked_at_bytes = 0

    # --- following the log

    def read(self, log: StreamLog, from_seq: int) -> dict[int, Held]:
        """Reads the log. Messages that turn out to be lost are removed; check_recovery() decides whether they
        had to survive."""
        return read_log(log, from_seq, memory=self.memory, damaged=self.damaged or self.may_have_holes)

    def look(self, stream: StreamReplica, now: int) -> None:
        """Adopts and checks the changes since the last look."""
        log = stream.log
        self.config = stream.config
        self.rolling = stream.durability.is_rolling_up
        self.window_ns = min(self.window_ns, stream.config.duplicate_window)
        fresh = self.read(log, self.last_seq + 1)
        if self.copies is not None:
            self.copies.configure()
            self.copies.note_rollups(fresh)
        for held in fresh.values():
            self._check_new(held)
        gone: list[Held] = []
        before = self.live
        if log.messages != len(self.live) + len(fresh):
            gone = [held for seq, held in self.live.items() if log.next_seq(seq) != seq]
        if gone or fresh:
            self.live = {**before, **fresh}
            for held in gone:
                del self.live[held.seq]
            self._note_reasons(gone, now)
            if gone and not self.damaged:
                self._explain(gone, before, fresh, now)
            self._bytes = sum(held.size for held in self.live.values())
        require(
            log.last_seq >= self.last_seq,
            "sequence",
            f"{self.name} went from {self.last_seq} to {log.last_seq}",
        )
        changed = bool(fresh or gone or log.last_seq != self.last_seq)
        self.last_seq = log.last_seq
        self.lost = log.lost
        self._count(log)
        for feature in self.features if changed else ():
            feature.looked(before, fresh, now)

    def end_tick(self) -> None:
        """Ends the tick: requested removals were done or rejected."""
        self.asked.clear()
        self.published.clear()
        self.limits_changed = False
        self.config_before = self.config

    def wrote(self) -> None:
        """Records that everything seen is written to the operating system."""
        sources = self.copies.positions() if self.copies is not None else {}
        self.kept = SimSnapshot(self.live, self.last_seq, sources=sources)

    def was_synced(self, picture: SimSnapshot) -> None:
        """Records that this state is durable."""
        self.synced, self.is_promised = picture, True

    def survived_power_loss(self, opened: int) -> None:
        """What recovery found up to sequence `opened` is durable; what it appended itself is not."""
        live = {seq: held for seq, held in self.kept.live.items() if seq <= opened}
        self.was_synced(self.kept._replace(live=live, last_seq=opened))

    def _check_new(self, held: Held) -> None:
        if self.copies is not None and self.copies.takes_in(held):
            self.copies.came(held)
            if held.tag:
                self._note(held)
            return
        if held.tag == 0:
            require(
                MARKER in held.header or b"Nats-Schedule" in held.header or LETTER in held.header,
                "published", f"{self.name} {held.seq} was never published",
            )  # fmt: skip
            return
        publish = self.published.get(held.tag)
        if publish is None:
            raise Violation("published", f"{self.name} {held.seq}: {held} was not published in this tick")
        if publish.subject != held.subject:
            raise Violation("subjects", f"{self.name}: {held} was to be stored as {publish.subject}")
        present = self.seq_of.get(held.tag)
        if present is not None and present != held.seq and present in self.live:
            raise Violation("no duplicate", f"{self.name}: publish {held.tag} is {present} and {held.seq}")
        self.check_id(publish.msg_id, held)
        self._note(held)

    def check_id(self, msg_id: bytes, held: Held) -> None:
        """Checks that no message in the window of a new one has its id."""
        for seq, ts in self.ids.get(msg_id, {}).items():
            if seq in self.live and held.ts - ts < self.window_ns:
                raise Violation("no duplicate", f"{self.name}: {held} has the message id of {seq}")

    def _note(self, held: Held) -> None:
        if self.acked.get(held.seq, held.tag) != held.tag:
            raise Violation("sequence", f"{self.name}: {held.seq} was acked as {self.acked[held.seq]}")
        self.ever[held.seq] = held.tag
        self.seq_of[held.tag] = held.seq
        msg_id = headers.value_of(held.header, headers.MSG_ID) if held.header else None
        if msg_id:
            self.ids.setdefault(msg_id, {})[held.seq] = held.ts

    # --- why messages go

    def _explain(self, gone: list[Held], before: dict[int, Held], fresh: dict[int, Held], now: int) -> None:
        if self.limits_changed:
            return  # by the limits before or after the update
        left = [held for held in gone if not self._has_reason(held, now)]
        left = [held for held in left if not _went_with_schedule(held, gone, now)]
        if left:
            left = self._without_subject_limit(left, [*before.values(), *fresh.values()])
        if left:
            self._explain_limits(left, before, fresh, exact=len(left) == len(gone))

    def _note_reasons(self, gone: list[Held], now: int) -> None:
        config = self.config
        limited = config.max_msgs > 0 or config.max_bytes > 0 or config.max_msgs_per_subject > 0
        for held in gone:
            acked = held.seq in self.settled and not (limited or self.limits_changed)
            if not acked or self.has_aged(held, now) or self.was_asked_for(held):
                self.left_otherwise.add(held.seq)

    def _has_reason(self, held: Held, now: int) -> bool:
        return (
            self.has_aged(held, now)
            or held.seq in self.settled
            or self.was_asked_for(held)
            or _has_happened(held, now)
        )

    def was_asked_for(self, held: Held) -> bool:
        """Whether a request or a rollup in this tick removes it."""
        for what, detail in self.asked:
            if what == "delete" and detail == held.seq:
                return True
            if what == "purge":
                subject, upto = detail
                if (not subject or matches(subject, held.subject)) and (not upto or held.seq < upto):
                    return True
        if self.copies is not None and self.copies.rolls_up(held):
            return True
        return any(self._may_roll_up(publish, held) for publish in self.published.values())

    def _may_roll_up(self, publish: SimPublish, held: Held) -> bool:
        """Whether a publish removes older messages, if it was stored. One that no look saw may have been."""
        if publish.rollup == "sub" and publish.subject != held.subject:
            return False
        return bool(publish.rollup) and held.seq < self.seq_of.get(publish.tag, held.seq + 1)

    def has_aged(self, held: Held, now: int) -> bool:
        """Whether it is older than the stream's limit or its own allow."""
        if 0 < self.config.max_age <= now - held.ts:
            return True
        ttl = headers.value_of(held.header, headers.TTL) if held.header else None
        return ttl is not None and ttl not in (b"", b"never") and ttl_ns(ttl) <= now - held.ts

    def _without_subject_limit(self, left: list[Held], there: list[Held]) -> list[Held]:
        """there: messages that were live or came since. New messages may have evicted the oldest of their
        subject before acks or requests of the same tick removed others."""
        most = self.config.max_msgs_per_subject
        if most <= 0:
            return left
        seqs: dict[str, list[int]] = {}
        for held in there:
            seqs.setdefault(held.subject, []).append(held.seq)
        oldest: dict[str, int] = {}
        for held in self.live.values():
            oldest.setdefault(held.subject, held.seq)
        by_rollup = bool(self.asked)
        return [
            held for held in left
            if not (
                held.seq < oldest.get(held.subject, 1 << 62)
                and (sum(seq > held.seq for seq in seqs[held.subject]) + self.lost >= most or by_rollup
                     or self.config.max_msgs > 0
                     or self.config.max_bytes > 0)
            )
        ]  # fmt: skip

    def _explain_limits(
        self, left: list[Held], before: dict[int, Held], fresh: dict[int, Held], *, exact: bool
    ) -> None:
        config = self.config
        last_gone = max(left, key=lambda held: held.seq)
        oldest = min(self.live, default=1 << 62)
        if oldest < last_gone.seq:
            raise Violation(
                "kept", f"{self.name}: {last_gone} went without reason, {oldest} is older and there"
            )
        most = len(before) + len(fresh)
        size = sum(held.size for held in before.values()) + sum(held.size for held in fresh.values())
        if exact and not self.published_more(fresh):
            by_count = 0 < config.max_msgs <= len(self.live)
            by_size = 0 < config.max_bytes < sum(h.size for h in self.live.values()) + last_gone.size
        else:
            arriving = len(self.published) + (1000 if self.copies is not None else 0)
            by_count = 0 < config.max_msgs < most + arriving
            by_size = 0 < config.max_bytes < size + 4096 * arriving
        if not (by_count or by_size):
            raise Violation(
                "kept",
                f"{self.name}: {[h.seq for h in left]} went without reason, {len(self.live)} are there",
            )

    def published_more(self, fresh: dict[int, Held]) -> bool:
        """Whether publishes of this tick have left no trace."""
        return self.copies is not None or len(self.published) != len(fresh)

    # --- counting

    def _count(self, log: StreamLog) -> None:
        live = self.live
        first = min(live, default=log.last_seq + 1)
        found = (len(live), self._bytes, first)
        said = (log.messages, log.bytes, log.first_seq)
        if found != said:
            raise Violation("counters", f"{self.name}: (messages, bytes, first) are {found}, it says {said}")
        self._hold_limits(found)

    def _hold_limits(self, found: tuple[int, int, int]) -> None:
        """A stream with discard policy new removes nothing when an update lowers a limit; until enough is
        removed otherwise, it may exceed the limit, but must not grow."""
        config, count = self.config, len(self.live)
        excess = 0 < config.max_msgs < count
        excess_bytes = 0 < config.max_bytes < self._bytes
        if config.discard is DiscardPolicy.NEW:
            excess = excess and count > self._looked_at
            excess_bytes = excess_bytes and self._bytes > self._looked_at_bytes
        shrunk = config.discard is DiscardPolicy.NEW and self.limits_changed
        if (excess or excess_bytes) and not shrunk and not self.rolling:
            raise Violation("limits", f"{self.name}: {found} is more than it may hold")
        self._looked_at, self._looked_at_bytes = count, self._bytes

    def count_thoroughly(self, stream: StreamReplica, now: int) -> None:
        """Checks that are too expensive for every tick: counts by subject, gaps, expiry."""
        log, live = stream.log, self.live
        counts: dict[bytes, int] = {}
        for held in live.values():
            subject = held.subject.encode()
            counts[subject] = counts.get(subject, 0) + 1
        if log.lost:
            # The subject of a damaged message is unknown: the subject's state counts it until the log is
            # reopened.
            may = self.damaged or self.may_have_holes
            require(may, "counters", f"{self.name}: {log.lost} messages lost on a working disk")
            return
        said = log.subjects()
        require(counts == said, "counters", f"{self.name}: by subject {counts}, it says {said}")
        require(log.num_subjects == len(counts), "counters", f"{self.name}: {log.num_subjects} subjects said")
        if live:
            gaps = [seq for seq in range(min(live), self.last_seq + 1) if seq not in live]
            require(
                log.deleted() == gaps, "counters", f"{self.name}: deleted are {gaps}, says {log.deleted()}"
            )
        last: dict[bytes, int] = {}
        for held in live.values():
            last[held.subject.encode()] = held.seq
        for subject, seq in last.items():
            require(
                log.last_seq_of(subject) == seq, "counters",
                f"{self.name}: last of {subject!r} is {seq}, says {log.last_seq_of(subject)}",
            )  # fmt: skip
        most = self.config.max_msgs_per_subject
        if 0 < most < max(counts.values(), default=0) and not self.rolling:
            raise Violation("limits", f"{self.name}: {counts}, {most} a subject are allowed")
        if self.config.max_age > 0 and not self.config.sealed:
            for held in live.values():
                if now - held.ts > self.config.max_age + GRAIN_NS and not (
                    held.header and headers.value_of(held.header, headers.TTL)
                ):
                    raise Violation("age", f"{self.name}: {held} should have gone")

    def forget_the_past(self) -> None:
        """Drops what is known of removed messages, which long runs would accumulate."""
        self.ever = {seq: tag for seq, tag in self.ever.items() if seq in self.live}
        self.acked = {seq: tag for seq, tag in self.acked.items() if seq in self.live}
        self.shown &= self.live.keys()
        self.seq_of = {tag: seq for tag, seq in self.seq_of.items() if seq in self.live}
        self._keep_ids(lambda msg_id, seq: seq in self.live)
        self.tags = set(self.seq_of)

    # --- answers to publishes

    def ack(self, publish: SimPublish, seq: int, duplicate: bool, now: int) -> None:
        """Checks a pub ack."""
        if duplicate:
            stored = self.ids.get(publish.msg_id, {})
            unseen = seq not in self.ever and seq <= self.last_seq
            # The id of a removed message counts as long as that of another one.
            window_ns = max(self.config.duplicate_window, self.config_before.duplicate_window)
            if not unseen and not (seq in stored and now - stored[seq] < window_ns):
                raise Violation(
                    "duplicates", f"{self.name}: {publish.tag} is no duplicate of {seq}: {stored}"
                )
            return
        self.promise(publish, seq, now)
        if publish.expect is not None:
            expected, of_subject = publish.expect
            if not of_subject and expected != seq - 1:
                raise Violation(
                    "expectations", f"{self.name}: {seq} was stored, {expected} was to be the last"
                )

    def promise(self, publish: SimPublish, seq: int, now: int) -> None:
        """Records that a publish is acked as stored."""
        known = self.ever.get(seq)
        if known is None:
            self.ever[seq] = publish.tag  # came and went within the tick
            self.seq_of[publish.tag] = seq
            if publish.msg_id:
                self.ids.setdefault(publish.msg_id, {})[seq] = now
        elif known != publish.tag:
            raise Violation("acks", f"{self.name}: {publish.tag} is acked as {seq}, which is {known}")
        self.acked[seq] = publish.tag

    def may_refuse(self, publish: SimPublish) -> bool:
        """Whether a publish may be rejected while the disk works."""
        config = self.config
        return (
            not publish.plain
            or self.limits_changed  # perhaps by the limits before the update
            or config.discard is DiscardPolicy.NEW
            or config.sealed
            or config.max_msg_size >= 0
            or (config.allow_msg_counter and not publish.increment)
        )

    # --- after a crash

    def check_recovery(
        self, stream: StreamReplica, now: int, *, opened: int, power: bool, always: bool
    ) -> None:
        """Compares the recovered messages with what must have survived, and adopts them.

        opened: the last sequence on disk. What recovery appended itself comes after it.
        """
        log = stream.log
        found = self.read(log, 1)
        base = self.synced if power else self.kept
        must = dict(base.live)
        if not power or always:
            must |= {seq: self.live[seq] for seq in self.acked if seq in self.live}
            self._check_shown(found, now, power=power)
        missing = [held for seq, held in must.items() if found.get(seq) != held]
        self.base = base
        self._judge_found(found, base, opened)
        unexplained = [held for held in missing if not self.may_be_missing(held, found, now, power=power)]
        if unexplained:
            raise Violation(
                "acked means kept", f"{self.name}: {unexplained} were stored, recovery found {sorted(found)}"
            )
        if opened < base.last_seq:
            raise Violation("sequence", f"{self.name}: {base.last_seq} was the last, now {opened}")
        if not power:
            self._judge_prefix(found, base, now)
        there = {held.tag for held in found.values()}
        self.lost_tags |= {tag for tag, seq in self.seq_of.items() if seq > opened and tag not in there}
        self.adopt(stream, opened, found)

    def _check_shown(self, found: dict[int, Held], now: int, *, power: bool) -> None:
        """No crash takes back a message that a consumer got."""
        shown = [self.live[seq] for seq in sorted(self.shown) if seq in self.live]
        gone = [held for held in shown if found.get(held.seq) != held]
        gone = [held for held in gone if not self.may_be_missing(held, found, now, power=power)]
        if gone:
            raise Violation("shown means kept", f"{self.name}: {gone} were delivered, and are gone")

    def _judge_found(self, found: dict[int, Held], base: SimSnapshot, opened: int) -> None:
        tags: dict[int, int] = {}
        for seq, held in found.items():
            known = self.ever.get(seq)
            if held.tag == 0 and seq > opened:
                continue  # recovery appended it
            if held.tag and not self._is_copy(held):
                if held.tag in tags:
                    raise Violation("no duplicate", f"{self.name}: {held.tag} is {tags[held.tag]} and {seq}")
                tags[held.tag] = seq
                if held.tag in self.lost_tags:
                    raise Violation("no resurrection", f"{self.name}: {held} was lost in a crash and is back")
            if seq <= base.last_seq:
                if seq not in base.live and seq in base.maybe and known in (None, held.tag):
                    continue
                if seq not in base.live:
                    raise Violation("no resurrection", f"{self.name}: {held} was gone and is back")
                if base.live[seq] != held and (held.tag or base.live[seq].tag):
                    raise Violation("content", f"{self.name}: {base.live[seq]} came back as {held}")
            elif known is not None and known != held.tag and self.live.get(seq) is not None:
                raise Violation("content", f"{self.name}: {self.live[seq]} came back as {held}")
            elif known is None and held.tag and held.tag not in self.tags and not self._is_copy(held):
                raise Violation("published", f"{self.name}: {held} was not published")

    def _is_copy(self, held: Held) -> bool:
        return self.copies is not None and self.copies.takes_in(held)

    def may_be_missing(self, held: Held, found: dict[int, Held], now: int, *, power: bool) -> bool:
        """Whether a crash may have lost a message."""
        if held.seq not in self.live:
            return True  # removed after the base was written
        if self._has_reason(held, now) or _went_with_schedule(held, self.live.values(), now):
            return True
        # By the limits before or after an update that the crash interrupted.
        configs = [self.config, self.config_before] if self.limits_changed else [self.config]
        return any(self._had_no_room(held, found, config, now, power=power) for config in configs)

    def _had_no_room(
        self, held: Held, found: dict[int, Held], config: ApiStreamConfig, now: int, *, power: bool
    ) -> bool:
        limited = config.max_msgs > 0 or config.max_bytes > 0
        if limited and (self.limits_changed or held.seq < min(found, default=1 << 62)):
            return True
        if config.max_msgs_per_subject > 0 and (
            self.published or self.copies or self.limits_changed or power or config.allow_msg_schedules
        ):
            # Messages that expired may be restored by a power failure, and count beside those published
            # since. One can remove the newer message of its subject, and leave what was written after it: the
            # tombstone of the older one.
            lost = power and any(one.subject == held.subject for one in self.published.values())
            lost = lost or (power and self.copies is not None)
            newer = any(one.subject == held.subject and one.seq > held.seq for one in found.values())
            # What replaced it was written before the crash, and has expired since.
            newer = newer or any(
                one.subject == held.subject and 0 < one.ttl_ns <= now - held.ts
                for one in self.published.values()
            )
            return lost or newer or limited
        return False

    def _judge_prefix(self, found: dict[int, Held], base: SimSnapshot, now: int) -> None:
        """Of what was appended since the last write, recovery keeps a prefix."""
        since = [seq for seq in self.live if seq > base.last_seq]
        # (A schedule that is due at the start may have produced others with the same sequences.)
        present = [seq for seq in since if found.get(seq) == self.live[seq]]
        missing = [seq for seq in since if seq not in present and not self._has_reason(self.live[seq], now)]
        if self.config.max_msgs_per_subject > 0 and self.config.allow_msg_schedules:
            # What a schedule produced at the start removed the message before it.
            made = {
                held.subject for seq, held in found.items() if self.live.get(seq) != held and not held.tag
            }
            missing = [seq for seq in missing if self.live[seq].subject not in made]
        if missing and present and min(missing) < max(present) and not self.asked and not self.published:
            raise Violation("prefix", f"{self.name}: {missing} are gone, {present} are there")

    def adopt(self, stream: StreamReplica, opened: int, found: dict[int, Held] | None = None) -> None:
        """Adopts the present state of the stream. opened: the last sequence on disk; recovery may have given
        the sequences after it to other messages than those that were lost."""
        log = stream.log
        self.config, self.identity = stream.config, stream.identity
        found = self.read(log, 1) if found is None else found
        self.came_back = found.keys() - self.live.keys()
        self.live = found
        self.left_otherwise |= self.ever.keys() - self.live.keys()
        self.settled_before = set()
        self.last_seq = log.last_seq
        self.lost = log.lost
        self._bytes = sum(held.size for held in self.live.values())
        self.ever = {seq: tag for seq, tag in self.ever.items() if seq <= opened}
        self.acked = {seq: tag for seq, tag in self.acked.items() if seq <= opened}
        self.shown = {seq for seq in self.shown if seq <= opened}
        # A marker of the recovery may have the sequence of an unwritten publish.
        self.seq_of = {tag: seq for tag, seq in self.seq_of.items() if self._is_at(tag, seq)}
        self._keep_ids(lambda msg_id, seq: seq <= opened and self._may_have(msg_id, seq))
        for held in self.live.values():
            if held.tag:
                self._note(held)
        lost = frozenset(range(1, self.last_seq + 1)) - self.live.keys()
        self.kept = SimSnapshot(self.live, self.last_seq, lost)
        self.end_tick()
        self._looked_at, self._looked_at_bytes = len(self.live), self._bytes  # a crash may restore some
        self._count(log)

    def _is_at(self, tag: int, seq: int) -> bool:
        held = self.live.get(seq)
        return held is not None and held.tag == tag

    def _may_have(self, msg_id: bytes, seq: int) -> bool:
        """Whether the message of a sequence on disk may have had the id, after a crash. An unwritten message
        may have left its sequence to another one."""
        held = self.live.get(seq)
        return held is None or _msg_id_of(held) == msg_id

    def _keep_ids(self, keeps: Callable[[bytes, int], bool]) -> None:
        """Forgets the other ids."""
        kept = {
            msg_id: {seq: ts for seq, ts in stored.items() if keeps(msg_id, seq)}
            for msg_id, stored in self.ids.items()
        }
        self.ids = {msg_id: stored for msg_id, stored in kept.items() if stored}


def _msg_id_of(held: Held) -> bytes | None:
    return headers.value_of(held.header, headers.MSG_ID) if held.header else None


def _has_happened(held: Held, now: int) -> bool:
    """Whether it is a schedule for one time, which has passed."""
    once = headers.value_of(held.header, headers.SCHEDULE) if held.header else None
    if once is None or not once.startswith(b"@at "):
        return False
    return parse_time(once[4:].decode()) <= now


def _went_with_schedule(held: Held, others: Iterable[Held], now: int) -> bool:
    """Whether it was removed with a schedule, which removes all messages of its subject. It replaced the
    older ones, but a power failure may have restored them."""
    return any(
        one.subject == held.subject and one.seq > held.seq and _has_happened(one, now) for one in others
    )


def ttl_ns(ttl: bytes) -> int:
    """The lifetime of a message with this TTL in ns."""
    from penstock.jetstream.stream.ttl import parse_ttl

    return int(ttl) * NS_PER_S if ttl.isdigit() else parse_ttl(ttl)
