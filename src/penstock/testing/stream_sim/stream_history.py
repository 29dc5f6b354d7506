"""What clients and replicas of one stream saw in a run, and what must hold of it.

Every message has a tag of its own. `finish` compares what the clients know with the stream at the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from penstock.jetstream.limits import SECOND_NS
from penstock.jetstream.replicated_stream import ReplicatedStream
from penstock.protocol import headers
from penstock.protocol.durations import parse_time
from penstock.testing.raft_sim.raft_history import BrokenPromise
from penstock.testing.sim.following_replica import acks_of, messages_of, state_of

FULL_EVERY = 8
"""The whole state is compared at every entry whose index is divisible by this."""


@dataclass
class TaggedPublish:
    """A publish of a client. expected: the sequence that its subject must have had; None: any. batch: of an
    atomic batch. seq: as acknowledged, 0 before. may_be_gone: its removal was requested; is_gone: and the
    answer says that it is done."""

    tag: str
    subject: str
    expected: int | None = None
    batch: str = ""
    msg_id: str = ""
    seq: int = 0
    is_refused: bool = False
    may_be_gone: bool = False
    is_gone: bool = False


@dataclass
class ConsumerSeen:
    """What clients of a consumer saw. prefix: of the subjects that it wants. confirmed: the term of the
    leader that confirmed the ack of a sequence. is_at_most_once: it takes no acks."""

    prefix: str
    delivered: set[int] = field(default_factory=set)
    confirmed: dict[int, int] = field(default_factory=dict)
    is_at_most_once: bool = False


class StreamHistory:
    """See the module."""

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.publishes: dict[str, TaggedPublish] = {}
        self.consumers: dict[str, ConsumerSeen] = {}
        self._states: dict[int, tuple[str, bytes, Any]] = {}
        self.acked_seq = 0
        self.entries = 0
        self.acked = self.refused = self.deliveries = self.confirmations = self.reads = 0
        self._seq_of_tag: dict[int, str] = {}
        self._thinned: set[str] = set()  # subjects of which messages may be removed

    def _broken(self, rule: str, what: str) -> BrokenPromise:
        return BrokenPromise(rule, f"{self.stream}: {what}")

    # --- replicas

    def applied(self, name: str, replica: ReplicatedStream) -> None:
        """A replica applied an entry: replicas are equal at equal index."""
        if replica.failure or replica.difference:
            raise self._broken("replicas follow", f"{name}: {replica.failure or replica.difference}")
        index = replica.applied_index
        self.entries = max(self.entries, index)
        self._compare(index, name, digest_of(replica) if index % FULL_EVERY == 0 else outline_of(replica))

    def compare_whole(self, name: str, replica: ReplicatedStream) -> None:
        """A replica at the end of the run, when all have applied the same."""
        self._compare(-replica.applied_index, name, digest_of(replica))

    def _compare(self, index: int, name: str, state: Any) -> None:
        packed = repr(state).encode()
        key = blake2b(packed, digest_size=16).digest()
        known = self._states.setdefault(index, (name, key, state))
        if known[1] != key:
            raise self._broken("replicas are equal", f"entry {index}: {different(known, (name, key, state))}")

    # --- clients

    def publish_acknowledged(self, tag: str, seq: int, is_duplicate: bool) -> None:
        """A client got a pub ack."""
        one = self.publishes[tag]
        if one.seq and one.seq != seq:
            raise self._broken("one place", f"{tag} is acknowledged at {one.seq} and at {seq}")
        if one.seq and not one.msg_id:
            raise self._broken("one answer", f"{tag} is acknowledged twice")
        if one.is_refused:
            raise self._broken("one answer", f"{tag} was refused, and is acknowledged at {seq}")
        other = self._seq_of_tag.setdefault(seq, tag)
        if other != tag:
            raise self._broken("one place", f"{seq} is acknowledged for {other} and {tag}")
        one.seq = seq
        self.acked += 1
        self.acked_seq = max(self.acked_seq, seq)

    def publish_refused(self, tag: str) -> None:
        """A client got an error."""
        one = self.publishes[tag]
        self.refused += 1
        if not one.msg_id:  # else an earlier attempt may be stored
            one.is_refused = True

    def removing(self, tag: str) -> None:
        """A client requests the removal of a message."""
        self.publishes[tag].may_be_gone = True

    def removed(self, tag: str) -> None:
        """The answer says that it is removed."""
        self.publishes[tag].is_gone = True

    def read_answered(self, invoked: int, last_seq: int) -> None:
        """A stream info says which sequence is the last. invoked: the highest known one when it was sent."""
        self.reads += 1
        if last_seq < invoked:
            raise self._broken("linearizable reads", f"a read sees {last_seq}, after {invoked} was known")
        self.acked_seq = max(self.acked_seq, last_seq)

    def delivered(self, consumer: str, seq: int, term: int) -> None:
        """A client got a message of a consumer, from the leader of a term."""
        seen = self.consumers[consumer]
        self.deliveries += 1
        confirmed = seen.confirmed.get(seq)
        if confirmed is not None and confirmed <= term:
            raise self._broken(
                "confirmed acks stay",
                f"{consumer}: {seq} is delivered in term {term}, its ack was confirmed in {confirmed}",
            )
        if seen.is_at_most_once and seq in seen.delivered:
            raise self._broken("at most once", f"{consumer}: {seq} is delivered again in term {term}")
        seen.delivered.add(seq)

    def ack_confirmed(self, consumer: str, seq: int, term: int) -> None:
        """A client knows that its ack counts."""
        self.confirmations += 1
        self.consumers[consumer].confirmed.setdefault(seq, term)

    # --- the end

    def finish(self, replica: ReplicatedStream, *, skips_nothing: bool) -> None:
        """The stream at the end of the run, healed and drained. skips_nothing: consumers without acks have
        delivered everything, too."""
        self._thinned = {one.subject for one in self.publishes.values() if one.may_be_gone}
        found: dict[str, int] = {}
        last_of: dict[str, int] = {}
        batches: dict[str, list[int]] = {}
        for seq, _, subject, _, payload in messages_of(replica.stream):
            tag, text = payload.decode(), subject.decode()
            one = self.publishes[tag]
            if tag in found:
                raise self._broken("nothing doubled", f"{tag} is at {found[tag]} and at {seq}")
            found[tag] = seq
            if one.is_gone:
                raise self._broken("removed", f"{tag} is at {seq}")
            if one.is_refused:
                raise self._broken("refused means not stored", f"{tag} is at {seq}")
            is_sure = text not in self._thinned
            if is_sure and one.expected is not None and one.expected != last_of.get(text, 0):
                raise self._broken(
                    "compare-and-set", f"{tag} at {seq} expected {one.expected}, not {last_of.get(text, 0)}"
                )
            last_of[text] = seq
            if one.batch:
                batches.setdefault(one.batch, []).append(seq)
        for tag, one in self.publishes.items():
            if one.seq and not (one.batch or one.may_be_gone) and found.get(tag) != one.seq:
                raise self._broken("acked kept", f"{tag}, acknowledged at {one.seq}, is at {found.get(tag)}")
        self._finish_batches(batches)
        for name, seen in self.consumers.items():
            wanted = {
                seq for tag, seq in found.items() if self.publishes[tag].subject.startswith(seen.prefix)
            }
            skipped = wanted - seen.delivered
            if skipped and (skips_nothing or not seen.is_at_most_once):
                raise self._broken("nothing skipped", f"{name} never delivered {sorted(skipped)[:9]}")

    def check_copy(
        self, origin: ReplicatedStream, copy: ReplicatedStream, prefix: str, *, is_mirror: bool
    ) -> None:
        """A mirror, or a stream that takes the subjects with `prefix` as a source, at the end: it has
        everything that its origin has, in the same order, and nothing twice."""
        found: dict[bytes, int] = {}
        for seq, _, _, _, payload in messages_of(copy.stream):
            if payload in found or payload.decode() not in self.publishes:
                raise self._broken("copies", f"{copy.stream.name} has {payload!r} at {seq}: {found}")
            found[payload] = seq
        before = 0
        for seq, _, subject, _, payload in messages_of(origin.stream):
            if not subject.decode().startswith(prefix):
                continue
            at = found.get(payload, 0)
            if at <= before or (is_mirror and at != seq):
                why = f"{payload!r}, which is at {seq}, is at {at} in {copy.stream.name}, behind {before}"
                raise self._broken("copies", why)
            before = at

    def check_times(self, replica: ReplicatedStream, now: int) -> None:
        """The leader's stream at the end, when nothing but time has touched it for a while: what was due at
        `now` (ns) has happened."""
        max_age = replica.stream.config.max_age
        for seq, ts, subject, header, _ in messages_of(replica.stream):
            ttl = headers.value_of(header, headers.TTL) if header else None
            lasts = int(ttl.rstrip(b"s")) * SECOND_NS if ttl else max_age
            if ts + lasts < now:
                raise self._broken("expired means gone", f"{subject!r} at {seq} is {now - ts} ns old")
            schedule = headers.value_of(header, headers.SCHEDULE) if header else None
            if schedule and schedule.startswith(b"@at ") and parse_time(schedule[4:].decode()) < now:
                raise self._broken("schedules are kept", f"{subject!r} at {seq}: {schedule!r}")

    def _finish_batches(self, batches: dict[str, list[int]]) -> None:
        sizes: dict[str, int] = {}
        thinned = set[str]()
        for one in self.publishes.values():
            if one.batch:
                sizes[one.batch] = sizes.get(one.batch, 0) + 1
                if one.may_be_gone:
                    thinned.add(one.batch)
                elif one.seq and one.batch not in batches:
                    raise self._broken("acked kept", f"batch {one.batch}, acknowledged, is not there")
        for batch, seqs in batches.items():
            if batch in thinned:
                continue
            if len(seqs) != sizes[batch] or seqs != list(range(seqs[0], seqs[0] + len(seqs))):
                raise self._broken("batches are whole", f"{batch} of {sizes[batch]} is at {seqs}")


def outline_of(replica: ReplicatedStream) -> tuple[Any, ...]:
    """What of a replica's state is cheap to look at."""
    log = replica.stream.log
    consumers = [(name, one.state.delivered_stream, one.state.ack_floor_stream, one.state.num_pending)
                 for name, one in sorted(replica.standby.by_name.items())]  # fmt: skip
    return (
        replica.hash.value,
        replica.stream.now,
        log.first_seq,
        log.last_seq,
        log.messages,
        log.bytes,
        consumers,
    )


def digest_of(replica: ReplicatedStream) -> tuple[Any, ...]:
    """The whole state of a replica."""
    consumers = [
        (name, one.meta, acks_of(one.state), one.pin) for name, one in sorted(replica.standby.by_name.items())
    ]
    return tuple(state_of(replica.stream).items()), consumers


def different(one: tuple[str, bytes, Any], other: tuple[str, bytes, Any]) -> str:
    """The first difference of two states, for a failure's message."""
    for left, right in zip(one[2], other[2], strict=True):
        if left != right:
            pair = (left, right)
            if isinstance(left, tuple):
                pair = next((a, b) for a, b in zip(left, right, strict=True) if a != b)
            return f"{one[0]} has {pair[0]!r}, {other[0]} has {pair[1]!r}"
    return "only their encodings differ"
