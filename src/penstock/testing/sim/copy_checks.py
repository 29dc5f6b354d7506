"""Checks copies: of a mirror, and of a stream with sources.

- A copy equals its original, with the same sequence in a mirror; copies of a source are in the order of their
  origin, each once, also across crashes.
- No copy exists before its original is written (with sync always: synced), and none is skipped that its
  origin still has.
- An interest or work-queue origin removes a message only after the target has written its copy
  (retention_model.py).
- After a quiet period nothing is missing.

Without sync always, a power failure may remove originals that were copied: their sequences may then belong to
other messages on either side.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from penstock.protocol import headers
from penstock.protocol.api import (
    ApiStreamConfig,
    ApiStreamSourceInfo,
    DiscardPolicy,
    RetentionPolicy,
    StreamSource,
)
from penstock.testing.sim import Violation, require
from penstock.testing.sim.feature_checks import Feature
from penstock.testing.sim.source_model import Source, copied_header, key_of, renamed, source_in, takes
from penstock.testing.sim.stream_checks import Held, StreamRecord

if TYPE_CHECKING:
    from penstock.jetstream.stream.source_state import SourceState
    from penstock.jetstream.stream.stream_replica import StreamReplica
    from penstock.testing.sim.simulator import Simulator

_ROLLS_UP = re.compile(b"^(Nats-Rollup|Nats-Schedule-Next): ", re.MULTILINE)

Position = tuple[int, str]  # the last sequence of an origin, and its incarnation


class Copies(Feature):
    """The copies in one stream that has or had a mirror or sources."""

    def __init__(self, record: StreamRecord, sim: Simulator) -> None:
        super().__init__(record)
        self._sim = sim
        self._sources: dict[str, StreamSource] = {}  # all sources that it ever had
        # An update may change the start of a source without copies: until its next restart either one is
        # valid.
        self._other_starts: dict[str, list[StreamSource]] = {}
        self._upto: dict[str, Position] = {}  # the last of each that was seen in the log
        self._before: dict[str, Position] = {}  # ... at the previous look
        self._came: set[tuple[str, int, str]] = set()  # all copies ever: (source, sequence, ident)
        self._written: dict[str, Position] = {}  # positions reported by the server at its last write
        self._claimed: dict[str, Position] = {}  # ... that are durable
        self._rollups: list[Held] = []  # copies at the previous look that remove older messages
        self._rollups_of_tick: list[Held] = []  # the same since the last tick
        self._tick_from = 0  # the last sequence before it
        # Per source, the server's highest position when the stream ended at a sequence.
        self._stood: dict[str, dict[int, Position]] = {}
        # Per removed source, the highest position that a record of the server may still have after a power
        # failure. When an update adds the source again, the actual one shows.
        self._noted_at_most: dict[str, Position] = {}
        self._taken: dict[str, int] = {}  # positions that the server reported before it
        self._may_be_ahead = False  # power failure without syncs
        self._last_seq = 0  # of the stream, at the last look
        self._ids_unseen: set[bytes] = set()  # message ids of copies that came and went between two looks
        self._placed = 0  # a purge of the mirror up to here, beyond its origin's position
        self._to_be_found: Mapping[int, Held] = {}  # messages that no removal had reached before the crash
        self.configure()

    # --- new messages

    def takes_in(self, held: Held) -> bool:
        """Whether it is a copy."""
        return self.record.config.mirror is not None or source_in(held) is not None

    def came(self, held: Held) -> None:
        """Checks a copy that appeared in the log."""
        if self.record.damaged:
            return
        mirror = self.record.config.mirror
        if mirror is not None:
            self._check_mirrored(mirror, held)
            return
        about = source_in(held)
        assert about is not None, "not a copy"
        self._check_sourced(about, held)

    def _check_mirrored(self, mirror: StreamSource, held: Held) -> None:
        origins = self._sim.origins.of(mirror.name)
        matching = [
            origin for origin in origins
            if held.seq in origin.held and self._is_copy(held, mirror, origin.held[held.seq], origin.ident)
        ]  # fmt: skip
        if not matching:
            found = [origin.held.get(held.seq) for origin in origins]
            raise Violation("copies", f"{self.record.name}: {held} is no copy of any of {found}")
        if matching[-1] is origins[-1]:
            self._check_written(mirror.name, held.seq, origins[-1].ident)

    def _check_sourced(self, about: Source, held: Held) -> None:
        where = f"{self.record.name}: {held}"
        source = self._sources.get(about.key)
        if source is None:
            raise Violation("copies", f"{where} is of no source, which are {list(self._sources)}")
        origin = self._sim.origins.find(source.name, about.ident)
        original = origin.held.get(about.seq) if origin is not None else None
        if original is None:
            raise Violation("copies", f"{where}: its origin never had that")
        if not self._is_copy(held, source, original, about.ident):
            raise Violation("copies", f"{where} is no copy of {original}")
        require(self._may_take(source, original), "copies", f"{where} is none of {source}")
        seq, ident = self._upto.get(about.key, (0, ""))
        if ident == about.ident and about.seq <= seq:
            raise Violation("exactly once", f"{where} came after {seq}")
        self._check_written(source.name, about.seq, about.ident)
        self.record.check_id(headers.value_of(held.header, headers.MSG_ID) or b"", held)
        self._upto[about.key] = (about.seq, about.ident)
        self._stood.setdefault(about.key, {})[held.seq - 1] = (about.seq - 1, about.ident)
        self._came.add((about.key, about.seq, about.ident))

    def end_tick(self, now: int, *, faulty: bool) -> None:
        self._rollups_of_tick.clear()
        self._tick_from = self.record.last_seq
        stream = self._sim.engine.streams.get(self.record.name)
        self._taken = (
            {key_of(one.source): one.seq for one in stream.sources.states} if stream is not None else {}
        )

    def _is_copy(self, held: Held, source: StreamSource, original: Held, ident: str) -> bool:
        configs = (self.record.config, self.record.config_before)
        return any(self._is_copy_by(config, held, source, original, ident) for config in configs)

    def _is_copy_by(
        self, config: ApiStreamConfig, held: Held, source: StreamSource, original: Held, ident: str
    ) -> bool:
        is_mirror = config.mirror is not None
        wanted = copied_header(source, original, ident, is_mirror=is_mirror)
        found = held.header
        if config.subject_delete_marker_ttl:  # raises lower TTLs
            wanted, found = (headers.without(one, headers.TTL) if one else one for one in (wanted, found))
        if is_mirror and held.ts < original.ts:
            return False
        renamed_to = renamed(source, config, original.subject)
        return (held.subject, held.payload, found) == (renamed_to, original.payload, wanted)

    def _check_written(self, name: str, seq: int, ident: str) -> None:
        written = self._sim.origins.written(name, ident)
        if written is not None and seq > written:
            raise Violation("ahead", f"{self.record.name} has {seq} of {name}, {written} was written")

    def note_rollups(self, found: Mapping[int, Held]) -> None:
        """Records copies that were, or may have been, stored since the last look."""
        config = self.record.config
        self._rollups = []
        if config.allow_rollup_hdrs and not config.deny_purge:
            seen = [one for one in found.values() if _rolls_up(one)]
            taken = [one for one in self._fresh() if _rolls_up(one)]
            self._rollups = seen + (taken if self._hides() else _gone_at_once(taken, seen))
        self._rollups_of_tick += [held for held in self._rollups if held.seq > self._tick_from]

    def _hides(self) -> bool:
        """Whether copies may be removed in the tick that stored them, other than by a later roll-up: by
        limits and requests. An interest stream does not store messages without an interested consumer, but
        applies their headers, as the official server does."""
        config = self.record.config
        limited = config.max_msgs > 0 or config.max_bytes > 0 or config.max_msgs_per_subject > 0
        return limited or config.retention is RetentionPolicy.INTEREST or bool(self.record.asked)

    def _fresh(self) -> Iterator[Held]:
        """Copies of this tick, visible in the log or not."""
        stream, config = self._sim.engine.streams[self.record.name], self.record.config
        for source_state in stream.sources.states:
            name, taken = source_state.source.name, self._taken.get(key_of(source_state.source), 0)
            for origin in self._sim.origins.of(name):
                for held in origin.held.values():
                    if taken < held.seq <= source_state.seq and self._may_take(source_state.source, held):
                        subject = renamed(source_state.source, config, held.subject)
                        yield held._replace(seq=self.record.last_seq + 1, subject=subject)

    def rolls_up(self, held: Held) -> bool:
        """Whether a copy removed an older message. Slices may do that later in the tick that stored it."""
        rollups = (*self._rollups, *self._rollups_of_tick)
        return any(one.seq > held.seq and _takes_away(one, held.subject) for one in rollups)

    def rolled_up(self, subject: str) -> bool:
        """Whether a copy may have removed a message of the subject that came in the same tick."""
        return any(_takes_away(one, subject) for one in self._rollups_of_tick)

    # --- nothing is passed over

    def looked(self, before: dict[int, Held], fresh: dict[int, Held], now: int) -> None:
        self._note_purges()
        record = self.record
        if record.config.mirror is not None:
            self._upto = dict.fromkeys(self._sources, (record.last_seq, ""))
        else:
            self._note_unseen(record.last_seq - self._last_seq - len(fresh))
        self._last_seq = record.last_seq
        self._note_stood()
        for key, (seq, ident) in self._upto.items():
            past, past_ident = self._before.get(key, (0, ""))
            if (seq, ident) != (past, past_ident) and self._shows_everything():
                self._check_between(key, past if ident == past_ident else 0, seq, ident)
        self._before = dict(self._upto)

    def _shows_everything(self) -> bool:
        """Whether every copy that is not a duplicate is visible in the log at the next look."""
        record, config = self.record, self.record.config
        limited = config.max_msgs > 0 or config.max_bytes > 0 or config.max_msgs_per_subject > 0
        limited = limited or config.max_age > 0 or config.retention is not RetentionPolicy.LIMITS
        requested = bool(record.asked) or record.limits_changed or record.damaged
        return not (limited or requested or config.allow_rollup_hdrs or config.allow_msg_ttl)

    def _note_unseen(self, count: int) -> None:
        """Handles a request that removed messages in the tick that stored them. count: messages that no look
        saw. Copies up to the server's position may be among them: they must not come again."""
        stream = self._sim.engine.streams[self.record.name]
        for source_state in stream.sources.states if count > 0 and not self._shows_everything() else ():
            key, ident = key_of(source_state.source), source_state.ident
            past, past_ident = self._before.get(key, (0, ""))
            for held in self._wanted(source_state.source, past if ident == past_ident else 0, ident):
                if count == 0 or held.seq > source_state.seq:
                    break
                count -= 1
                self._came.add((key, held.seq, ident))
                if (held.seq, ident) > self._upto.get(key, (0, "")) or self._upto[key][1] != ident:
                    self._upto[key] = (held.seq, ident)
                if held.header:
                    self._ids_unseen.add(headers.value_of(held.header, headers.MSG_ID) or b"")

    def _note_purges(self) -> None:
        """A purge beyond a mirror's position moves it there, as on the official server."""
        for what, detail in self.record.asked:
            if what == "purge" and not detail[0]:
                self._placed = max(self._placed, detail[1] - 1)

    def _check_between(self, key: str, past: int, upto: int, ident: str) -> None:
        source = self._sources[key]
        missing = [held for held in self._wanted(source, past, ident) if held.seq < upto]
        if source.opt_start_time and not past:
            return  # a source without copies starts at the present last message
        if missing:
            raise Violation("gap", f"{self.record.name} has {upto} of {key}, and passed over {missing}")

    def _wanted(self, source: StreamSource, past: int, ident: str) -> list[Held]:
        """What the origin has after a sequence and the target lacks."""
        record = self.record
        stream = self._sim.engine.streams.get(source.name)
        origin = self._sim.origins.find(source.name, ident or (stream.identity if stream else ""))
        if stream is None or origin is None or origin.ident != stream.identity:
            return []
        is_mirror = record.config.mirror is not None
        found = []
        for seq, held in origin.held.items():
            if seq <= past or (is_mirror and seq in record.live) or stream.log.next_seq(seq) != seq:
                continue
            msg_id = headers.value_of(held.header, headers.MSG_ID) if held.header else None
            came = (key_of(source), seq, origin.ident) in self._came
            known = not is_mirror and msg_id and (msg_id in record.ids or msg_id in self._ids_unseen)
            wanted = all(takes(one, held) for one in self._variants(source))
            if wanted and not came and not known:
                found.append(held)
        return found

    def check_complete(self) -> None:
        """Checks completeness, after enough time with a working disk."""
        stream = self._sim.engine.streams[self.record.name]
        config = self.record.config
        for source_state, info in zip(stream.sources.states, self._infos(stream), strict=True):
            origin = self._sim.engine.streams.get(source_state.source.name)
            if origin is None or self.record.damaged or origin.durability.failure is not None:
                continue
            where = f"{self.record.name} from {source_state.index_name}"
            may_refuse = config.discard is DiscardPolicy.NEW or config.max_msg_size >= 0 or config.sealed
            if source_state.refusal is not None or source_state.batch.count:
                require(may_refuse, "complete", f"{where}: blocked by {source_state.refusal}")
                continue
            key = key_of(source_state.source)
            seq, ident = self._upto.get(key, (0, ""))
            seq = seq if ident in ("", origin.identity) else 0
            if not may_refuse and self._shows_everything() and not source_state.source.opt_start_time:
                missing = self._wanted(source_state.source, seq, origin.identity)
                require(not missing, "complete", f"{where}: {missing} did not come")
            require(info.lag == 0, "complete", f"{where}: lag is {info.lag}")

    def _infos(self, stream: StreamReplica) -> list[ApiStreamSourceInfo]:
        mirror, sources = self._sim.engine.sourcing.infos(stream, self._sim.now)
        return [mirror] if mirror is not None else sources

    # --- what is written

    def positions(self) -> dict[str, Position]:
        """The positions that the log shows."""
        return dict(self._upto)

    def wrote(self, stream: StreamReplica) -> None:
        """Records that everything in the stream is written, including the positions that the server reports.

        Called at the write: removals by deliveries are written in the next tick.
        """
        for source_state in stream.sources.states:
            self._written[key_of(source_state.source)] = (source_state.seq, source_state.ident)

    def lasts(self) -> None:
        """Records that everything written is durable: with sync always it was synced."""
        self._claimed.update(self._written)

    def may_take(self, source_state: SourceState, held: Held) -> bool:
        """Whether it takes a message of its origin."""
        return self._may_take(source_state.source, held)

    def has_kept(self, source_state: SourceState, held: Held) -> bool:
        """Whether it has written its copy of a message that it takes."""
        return held.seq <= self._claimed.get(key_of(source_state.source), (0, ""))[0]

    def holds(self, held: Held) -> bool:
        """Whether a copy of this message is written."""
        return held.tag > 0 and any(one.tag == held.tag for one in self.record.kept.live.values())

    # --- crashes

    def came_back(self) -> None:
        """The stream is back after a deletion that failed, and nothing is known of it any more: what it
        copied, and was asked to remove, is not missing."""
        self._note_stood()

    def crashed(self) -> None:
        self._note_purges()
        self._note_stood()
        self._to_be_found = self.record.live if self._shows_everything() else {}

    def _note_stood(self) -> None:
        stream = self._sim.engine.streams.get(self.record.name)
        if stream is None or stream.config.mirror is not None:
            return
        for one in stream.sources.states:
            self._stood.setdefault(key_of(one.source), {})[stream.log.last_seq] = (one.seq, one.ident)

    def _still_known(self, kept: Mapping[str, Position], *, is_lossy: bool) -> dict[str, Position]:
        """Positions from which the server may continue, given the copies that are left and those that had to
        survive.

        The copies that show them may be gone: they expired, were evicted by limits, or a request removed them
        and the disk kept that although it failed before the response. After a power failure without syncs, an
        origin that lost its end reuses the sequences; as on the official server, the target does not take
        those messages.

        The server may know no more than it did when the stream ended at its present end. Unless such a power
        failure lost them, it may know nothing from copies that only the crash removed.
        """
        last_seq, stream = self.record.last_seq, self._sim.engine.streams.get(self.record.name)
        lost = {} if is_lossy else self._lost()
        known = {}
        for source_state in (
            stream.sources.states if stream is not None and stream.config.mirror is None else ()
        ):
            key, ident = key_of(source_state.source), source_state.ident
            most, stood_ident = self._stood_at(key, last_seq)
            seq, kept_ident = kept.get(key, (0, ident))
            taken = any(seq < one <= source_state.seq for one in lost.get((key, ident), ()))
            if stood_ident == kept_ident == ident and seq < source_state.seq <= most and not taken:
                known[key] = (source_state.seq, ident)
        return known

    def _stood_at(self, key: str, last_seq: int) -> Position:
        """The server's highest position in a source when the stream ended there."""
        stood = self._stood.get(key, {})
        at = min((seq for seq in stood if seq >= last_seq), default=max(stood, default=0))
        return stood.get(at, (0, ""))

    def _lost(self) -> dict[tuple[str, str], list[int]]:
        """Sequences, by source and incarnation, of copies that the crash removed."""
        lost: dict[tuple[str, str], list[int]] = {}
        for seq, held in self._to_be_found.items():
            about = source_in(held)
            if about is not None and self.record.live.get(seq) != held:
                lost.setdefault((about.key, about.ident), []).append(about.seq)
        return lost

    def recovered(self, now: int, *, power: bool, damaged: bool) -> None:
        """Checks positions after a crash, when the record has adopted the recovered messages."""
        self.configure()
        record, sim = self.record, self._sim
        self._rollups_of_tick.clear()
        self._tick_from = record.last_seq
        is_lossy = power and not sim.always
        kept = {} if is_lossy else dict(record.base.sources)
        for held in record.live.values():
            about = source_in(held) if record.config.mirror is None else None
            # The last one counts: an origin that lost messages in a power failure may have lower sequences.
            if about is not None and (is_lossy or held.seq > record.base.last_seq):
                kept[about.key] = (about.seq, about.ident)
        kept |= self._still_known(kept, is_lossy=is_lossy)
        if is_lossy:
            removed = self._stood.keys() - self._present()
            self._noted_at_most = {key: self._stood_at(key, record.last_seq) for key in removed}
        for stood in self._stood.values():
            for seq in [one for one in stood if one > record.last_seq]:
                del stood[seq]
        if record.config.mirror is not None:
            kept = dict.fromkeys(self._sources, (record.last_seq, ""))
        self._upto, self._before = kept, dict(kept)
        self._last_seq = record.last_seq
        record.kept = record.kept._replace(sources=dict(kept))
        self._written = dict(self._claimed)  # what was not durable is lost
        self._may_be_ahead |= damaged or is_lossy
        if not self._may_be_ahead:
            self._check_not_ahead()
        if not damaged:
            self._came = {one for one in self._came if not self._comes_again(*one)}

    def _comes_again(self, key: str, seq: int, ident: str) -> bool:
        """Whether a crash removed a copy, so that it comes again."""
        upto, upto_ident = self._upto.get(key, (0, ident))
        return ident == upto_ident and seq > upto

    def _check_not_ahead(self) -> None:
        record = self.record
        for key, (seq, ident) in self._upto.items():
            source = self._sources.get(key)
            stream = self._sim.engine.streams.get(source.name) if source is not None else None
            if source is None or stream is None or source.opt_start_seq:
                continue
            # The mirror may have copies of an earlier stream of that name.
            others = [one for one in self._sim.origins.of(source.name) if one.ident != stream.identity]
            if ident not in ("", stream.identity) or others:
                continue
            last = max(stream.log.last_seq, self._placed if record.config.mirror is not None else 0)
            require(seq <= last, "ahead", f"{record.name} has {seq} of {key}, which ends at {last}")

    def configure(self) -> None:
        """Adopts the configuration. Called before copies under it."""
        config = self.record.config
        for one in [config.mirror] if config.mirror is not None else config.sources:
            past = self._sources.get(key_of(one))
            if past is not None and past != one:
                self._other_starts.setdefault(key_of(one), []).append(past)
            self._sources[key_of(one)] = one
        for key in self._present() & self._noted_at_most.keys():
            self._add_again(key, self._noted_at_most.pop(key))

    def _present(self) -> set[str]:
        return {key_of(one) for one in self.record.config.sources}

    def _add_again(self, key: str, most: Position) -> None:
        """Handles a source that is added again. Without a copy yet, the server continues after its recorded
        position, if that is left, or after the last copy in the log."""
        stream = self._sim.engine.streams[self.record.name]
        [position] = [(one.seq, one.ident) for one in stream.sources.states if key_of(one.source) == key]
        seq, ident = self._upto.get(key, (0, most[1]))
        if ident == most[1] == position[1] and seq < position[0] <= most[0]:
            self._upto[key] = self._before[key] = position

    def _variants(self, source: StreamSource) -> list[StreamSource]:
        return [source, *self._other_starts.get(key_of(source), ())]

    def _may_take(self, source: StreamSource, held: Held) -> bool:
        return any(takes(one, held) for one in self._variants(source))


def _rolls_up(held: Held) -> bool:
    return _ROLLS_UP.search(held.header) is not None


def _gone_at_once(taken: list[Held], seen: list[Held]) -> list[Held]:
    """Of roll-ups in one tick, those that others of it may have removed, which removed others or were removed
    themselves."""
    gone: list[Held] = []
    while found := [
        one for one in taken if one not in gone and any(_takes_away(by, one.subject) for by in seen + gone)
    ]:
        gone += found
    return gone


def _takes_away(one: Held, subject: str) -> bool:
    """Whether it removes older messages of the subject. The last message of a schedule removes the
    schedule."""
    if headers.value_of(one.header, headers.SCHEDULE_NEXT) == b"purge":
        scheduler = headers.value_of(one.header, headers.SCHEDULER) or b""
        if scheduler.decode() == subject:
            return True
    value = headers.value_of(one.header, headers.ROLLUP)
    return value == b"all" or (value == b"sub" and one.subject == subject)
