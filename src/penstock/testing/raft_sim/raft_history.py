"""What the clients and replicas of one group saw in a run, and what must hold of it.

The log orders the writes, so linearizability needs no search. A write that was invoked after another one was
acknowledged has a higher index. A read sees every write that was acknowledged, and everything that another
read saw, before it was invoked.
"""

from __future__ import annotations

from bisect import bisect_right


class BrokenPromise(AssertionError):
    """What a group must keep does not hold. `rule` names it."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(f"{rule}: {what}")
        self.rule = rule


class RaftHistory:
    """See the module."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.committed: dict[int, tuple[int, bytes]] = {}
        """(term, data) of each command, by index."""
        self._indexes: list[int] = []  # of the commands, ascending
        self._leaders: dict[int, str] = {}
        self._acknowledged = 0  # the highest index that a client knows of
        self.writes = 0
        self.reads = 0

    @property
    def terms(self) -> int:
        """How many terms had a leader."""
        return len(self._leaders)

    @property
    def last_index(self) -> int:
        """The index of the last command."""
        return self._indexes[-1] if self._indexes else 0

    def leads(self, name: str, term: int) -> None:
        """A replica leads in a term."""
        other = self._leaders.setdefault(term, name)
        if other != name:
            raise BrokenPromise("election safety", f"{other} and {name} lead {self.group} in term {term}")

    def serves(self, name: str, term: int, index: int) -> None:
        """A leader begins to serve with the state after `index`."""
        missing = [one for one in self._indexes if one > index and self.committed[one][0] < term]
        if missing:
            raise BrokenPromise(
                "leader's state", f"{name} serves {self.group} at {index} and lacks {missing}, term {term}"
            )

    def applied(self, name: str, before: int, index: int, term: int, data: bytes) -> None:
        """A replica applied a command, with the state after the command at `before`."""
        at = bisect_right(self._indexes, before)
        expected = self._indexes[at] if at < len(self._indexes) else 0
        if not expected:
            self._indexes.append(index)
            self.committed[index] = (term, data)
        elif index != expected:
            raise BrokenPromise("order", f"{name} applies {index} of {self.group} and not {expected}")
        elif self.committed[index] != (term, data):
            raise BrokenPromise(
                "state machine safety",
                f"{name} applies {(term, data)} at {index} of {self.group}, not {self.committed[index]}",
            )

    def invoked(self) -> int:
        """What a request that begins now must see or follow."""
        return self._acknowledged

    def write_acknowledged(self, invoked: int, index: int, data: bytes) -> None:
        """A client learned that its write is entry `index`."""
        if self.committed.get(index, (0, b""))[1] != data:
            raise BrokenPromise("acknowledged", f"{data!r} is not entry {index} of {self.group}")
        if index <= invoked:
            raise BrokenPromise("linearizable", f"the write {data!r} is before {invoked} of {self.group}")
        self._acknowledged = max(self._acknowledged, index)
        self.writes += 1

    def write_lost(self, index: int, term: int, data: bytes) -> None:
        """A client learned that its write is not committed."""
        if self.committed.get(index, (0, b""))[0] == term:
            raise BrokenPromise("lost", f"{data!r} counts as lost and is entry {index} of {self.group}")

    def read_answered(self, invoked: int, index: int) -> None:
        """A client read the state after entry `index`."""
        if index < invoked:
            raise BrokenPromise("linearizable", f"a read sees {index} of {self.group}, not {invoked}")
        self._acknowledged = max(self._acknowledged, index)
        self.reads += 1
