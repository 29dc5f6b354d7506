"""What clients of a replicated stream saw, and what must hold of it.

Each write has a tag of its own as payload. `violations` compares what clients know with the messages at the
end: nothing acknowledged is lost or stored twice, nothing refused is stored, sequences follow real time, and
one compare-and-set wins. `is_linearizable` searches an order of all requests of one subject that explains
every answer, also where later messages have replaced earlier ones (Wing and Gong 1993, with Lowe's memory of
visited states). `consumer_violations` checks deliveries.

A write without an answer may be stored at any time after it was sent, or never.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import NamedTuple

STATES_MAX = 200_000


class Action(Enum):
    PUBLISH = "publish"
    CAS = "compare and set"
    READ = "read"


class Outcome(Enum):
    DONE = "done"
    REFUSED = "refused"  # for a compare-and-set: because of the subject's last sequence
    FAILED = "failed"  # another error: not stored
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Operation:
    """A request and its answer. Times are of one clock; returned: infinite without an answer.

    tag: of the write, or of the message that was read; "" = there was none. seq: acknowledged or read, 0 =
    none. expected: the subject's last sequence that a compare-and-set expects.
    """

    action: Action
    subject: str
    tag: str
    invoked: float
    returned: float = inf
    outcome: Outcome = Outcome.UNKNOWN
    seq: int = 0
    expected: int = 0

    def __str__(self) -> str:
        text = f"{self.action.value} {self.tag!r} on {self.subject}, {self.outcome.value}, seq {self.seq}"
        return f"{text}, {self.invoked:.3f} to {self.returned:.3f} s"


class Stored(NamedTuple):
    """A message of the stream at the end."""

    seq: int
    subject: str
    tag: str


def violations(operations: Iterable[Operation], stored: Sequence[Stored]) -> list[str]:
    """What must not be, of a stream that removes nothing."""
    writes = [one for one in operations if one.action is not Action.READ]
    at = {one.seq: one for one in stored}
    seqs: dict[str, int] = {}
    found = []
    for tag, times in Counter(one.tag for one in stored).items():
        if times > 1:
            found.append(f"stored {times} times: {tag!r}")
    for one in stored:
        seqs.setdefault(one.tag, one.seq)
    for write in writes:
        is_stored = write.tag in seqs
        if write.outcome is Outcome.DONE and at.get(write.seq, Stored(0, "", "")).tag != write.tag:
            found.append(f"acknowledged and lost: {write}; at its sequence is {at.get(write.seq)}")
        elif write.outcome in (Outcome.REFUSED, Outcome.FAILED) and is_stored:
            found.append(f"refused and stored at {seqs[write.tag]}: {write}")
    unexplained = seqs.keys() - {write.tag for write in writes}
    found += [f"stored and never sent: {tag!r}" for tag in sorted(unexplained)]
    return found + _wrong_order(writes, seqs) + _wrong_expectations(writes, stored, seqs)


def _wrong_order(writes: Iterable[Operation], seqs: dict[str, int]) -> list[str]:
    """Writes that were sent after the answer to a write with a higher sequence."""
    found = []
    placed = [one for one in writes if one.tag in seqs]
    ended = sorted((one for one in placed if one.returned < inf), key=lambda one: one.returned)
    position, highest = 0, 0
    for write in sorted(placed, key=lambda one: one.invoked):
        while position < len(ended) and ended[position].returned < write.invoked:
            highest = max(highest, seqs[ended[position].tag])
            position += 1
        if seqs[write.tag] < highest:
            found.append(f"stored at {seqs[write.tag]}, before {highest}, which was answered first: {write}")
    return found


def _wrong_expectations(
    writes: Iterable[Operation], stored: Sequence[Stored], seqs: dict[str, int]
) -> list[str]:
    before: dict[str, int] = {}
    last: dict[str, int] = defaultdict(int)
    for one in stored:
        before[one.tag] = last[one.subject]
        last[one.subject] = one.seq
    return [
        f"stored after {before[write.tag]} instead of {write.expected}: {write}"
        for write in writes
        if write.action is Action.CAS and write.tag in seqs and before[write.tag] != write.expected
    ]


class _Step:
    """A request or an answer, in a doubly linked list in order of time."""

    __slots__ = ("answer", "bit", "next", "operation", "previous")

    def __init__(self, operation: Operation | None, bit: int) -> None:
        self.operation = operation  # None: an answer
        self.bit = bit
        self.answer: _Step | None = None
        self.previous: _Step | None = None
        self.next: _Step | None = None

    def append(self, step: _Step) -> _Step:
        self.next, step.previous = step, self
        return step

    def take_out(self) -> None:
        assert self.previous is not None
        self.previous.next = self.next
        if self.next is not None:
            self.next.previous = self.previous

    def put_back(self) -> None:
        assert self.previous is not None
        self.previous.next = self
        if self.next is not None:
            self.next.previous = self


def _steps(operations: Sequence[Operation]) -> _Step:
    """The head of the list."""
    events = []
    for index, one in enumerate(operations):
        request = _Step(one, 1 << index)
        events.append((one.invoked, 0, index, request))
        if one.returned < inf and one.outcome is not Outcome.UNKNOWN:
            request.answer = _Step(None, 0)
            events.append((one.returned, 1, index, request.answer))
    head = at = _Step(None, 0)
    for _, _, _, step in sorted(events, key=lambda event: event[:3]):
        at = at.append(step)
    return head


def _after(last: str, one: Operation, seqs: dict[str, int]) -> str | None:
    """The last tag of the subject after an operation; None if it can not be next."""
    seq = seqs.get(last, -1) if last else 0  # -1: not known
    if one.action is Action.READ:
        return last if one.tag == last else None
    if one.outcome is Outcome.FAILED:
        return last
    if one.action is Action.CAS:
        if one.outcome is Outcome.REFUSED:
            return last if seq != one.expected else None
        if seq not in (one.expected, -1):
            return None
    own = seqs.get(one.tag, -1)
    return one.tag if -1 in (own, seq) or own > seq else None


def is_linearizable(
    operations: Iterable[Operation], states_max: int = STATES_MAX, stored: Sequence[Stored] = ()
) -> bool | None:
    """Whether one order of the requests of a subject explains the answers. None = not decided: the search
    visited `states_max` states.

    stored: messages whose sequences are known otherwise. Reads without an answer say nothing.
    """
    kept = [one for one in operations if one.action is not Action.READ or one.outcome is Outcome.DONE]
    seqs = {one.tag: one.seq for one in kept if one.seq and one.outcome is Outcome.DONE}
    seqs |= {one.tag: one.seq for one in stored}
    head = _steps(kept)
    open_answers = sum(one.returned < inf and one.outcome is not Outcome.UNKNOWN for one in kept)
    last, done = "", 0
    visited: set[tuple[int, str]] = set()
    path: list[tuple[_Step, str]] = []
    step = head.next
    while open_answers:
        assert step is not None, "an answer is left, so the list does not end before it"
        if step.operation is None:  # its request must come before this answer: go back
            if not path:
                return False
            step, last = path.pop()
            done ^= step.bit
            open_answers += _put_back(step)
            step = step.next
            continue
        after = _after(last, step.operation, seqs)
        key = (done | step.bit, after or "")
        if after is None or key in visited:
            step = step.next
            continue
        if len(visited) >= states_max:
            return None
        visited.add(key)
        path.append((step, last))
        last, done = after, done | step.bit
        open_answers -= _take_out(step)
        step = head.next
    return True


def _take_out(step: _Step) -> bool:
    """Takes a request and its answer out of the list. Returns whether there was an answer."""
    step.take_out()
    if step.answer is not None:
        step.answer.take_out()
    return step.answer is not None


def _put_back(step: _Step) -> bool:
    if step.answer is not None:
        step.answer.put_back()
    step.put_back()
    return step.answer is not None


def not_linearizable(
    operations: Iterable[Operation], stored: Sequence[Stored] = ()
) -> tuple[list[str], list[str]]:
    """The subjects without an explanation, and those that the search did not decide."""
    subjects: dict[str, list[Operation]] = defaultdict(list)
    for one in operations:
        subjects[one.subject].append(one)
    messages: dict[str, list[Stored]] = defaultdict(list)
    for message in stored:
        messages[message.subject].append(message)
    verdicts = {
        name: is_linearizable(found, stored=messages[name]) for name, found in sorted(subjects.items())
    }
    return (
        [name for name, verdict in verdicts.items() if verdict is False],
        [name for name, verdict in verdicts.items() if verdict is None],
    )


class Delivery(NamedTuple):
    """A message that a pull request got. requested: when that was sent."""

    seq: int
    requested: float


def consumer_violations(
    deliveries: Iterable[Delivery], confirmed: dict[int, float], wanted: Iterable[int]
) -> list[str]:
    """What must not be, of a consumer with explicit acks.

    confirmed: when the confirmation of each sequence's ack arrived. wanted: the sequences at the end.
    """
    got = set()
    found = []
    for one in deliveries:
        got.add(one.seq)
        if one.requested > confirmed.get(one.seq, inf):
            found.append(f"{one.seq} delivered to a request sent after the confirmation of its ack")
    return found + [f"{seq} never delivered" for seq in wanted if seq not in got]
