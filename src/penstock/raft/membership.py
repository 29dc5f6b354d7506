"""The members of a group, and its changes: one at a time.

A member is a voter or a learner, which gets the log and does not count. Two memberships that differ by one
voter have no two majorities without a common member; therefore a change takes effect as soon as it is in the
log, and there is never a second one that is not committed (Ongaro's thesis, 4.1; its erratum of 2015: nor
before the leader has committed an entry of its own term, see leadership.py). A server joins as a learner and
is promoted when it has the log, so that a new, empty member never counts in a quorum that it delays.

Rejected: joint consensus (see docs/decisions); entries with a difference instead of the whole membership
(a membership could not be read from one entry, and a truncation would need the inverse).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from enum import Enum
from typing import NamedTuple


class ChangeKind(Enum):
    """What a change does with a member."""

    ADD_LEARNER = "add a learner"
    PROMOTE = "make a learner a voter"
    REMOVE = "remove a voter or learner"


class Membership(NamedTuple):
    """Sorted names of the members."""

    voters: tuple[str, ...]
    learners: tuple[str, ...] = ()

    @property
    def members(self) -> tuple[str, ...]:
        """Voters and learners."""
        return self.voters + self.learners

    def quorum(self, lowered: int = 0) -> int:
        """How many voters decide: a majority, or `lowered` where that is less and not 0 (raft_replica.py)."""
        majority = len(self.voters) // 2 + 1
        return min(lowered, majority) if lowered else majority

    def is_quorum(self, names: Collection[str], lowered: int = 0) -> bool:
        """Whether enough of the voters are among `names`."""
        return sum(voter in names for voter in self.voters) >= self.quorum(lowered)

    def quorum_value(self, values: Mapping[str, int], lowered: int = 0) -> int:
        """The largest number that enough of the voters have reached."""
        reached = sorted((values.get(voter, 0) for voter in self.voters), reverse=True)
        return reached[self.quorum(lowered) - 1] if reached else 0

    def changed(self, kind: ChangeKind, member: str) -> Membership | None:
        """The membership after a change; None when the change makes no sense for it."""
        voters, learners = set(self.voters), set(self.learners)
        if kind is ChangeKind.ADD_LEARNER:
            if member in voters or member in learners:
                return None
            learners.add(member)
        elif kind is ChangeKind.PROMOTE:
            if member not in learners:
                return None
            learners.remove(member)
            voters.add(member)
        elif member in learners:
            learners.remove(member)
        elif member in voters and len(voters) > 1:
            voters.remove(member)
        else:
            return None  # a group without voters could never decide anything again
        return Membership(tuple(sorted(voters)), tuple(sorted(learners)))

    def encode(self) -> bytes:
        """The data of a membership entry."""
        return json.dumps([self.voters, self.learners], separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> Membership:
        """Raises ValueError."""
        match json.loads(data):
            case [list(voters), list(learners)] if all(isinstance(one, str) for one in voters + learners):
                return cls(tuple(voters), tuple(learners))
        raise ValueError(f"a membership is two lists of names, not {data[:80]!r}")
