"""What the clients and replicas of one group saw in a run, and what must hold of it.

The log orders the writes, so linearizability needs no search. A write that was invoked after another one was
acknowledged has a higher index. A read sees every write that was acknowledged, and everything that another
read saw, before it was invoked.
"""

from __future__ import annotations

from penstock.raft.raft_messages import Entry


class BrokenPromise(AssertionError):
    """What a group must keep does not hold. `rule` names it."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(f"{rule}: {what}")
        self.rule = rule


class RaftHistory:
    """See the module."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.committed: list[tuple[int, bytes]] = []
        """(term, data) of each entry from index 1 on."""
        self._leaders: dict[int, str] = {}
        self._acknowledged = 0  # the highest index that a client knows of
        self.writes = 0
        self.reads = 0

    @property
    def terms(self) -> int:
        """How many terms had a leader."""
        return len(self._leaders)

    def leads(self, name: str, term: int) -> None:
        """A replica leads in a term."""
        other = self._leaders.setdefault(term, name)
        if other != name:
            raise BrokenPromise("election safety", f"{other} and {name} lead {self.group} in term {term}")

    def applied(self, name: str, entry: Entry) -> None:
        """A replica applied an entry."""
        value = (entry.term, entry.data)
        if entry.index == len(self.committed) + 1:
            self.committed.append(value)
        elif entry.index > len(self.committed) + 1:
            raise BrokenPromise("gap", f"{name} applies {entry.index} of {len(self.committed)} entries")
        elif self.committed[entry.index - 1] != value:
            known = self.committed[entry.index - 1]
            raise BrokenPromise(
                "state machine safety",
                f"{name} applies {value} at {entry.index} of {self.group}, not {known}",
            )

    def invoked(self) -> int:
        """What a request that begins now must see or follow."""
        return self._acknowledged

    def write_acknowledged(self, invoked: int, index: int, data: bytes) -> None:
        """A client learned that its write is entry `index`."""
        if index > len(self.committed) or self.committed[index - 1][1] != data:
            raise BrokenPromise("acknowledged", f"{data!r} is not entry {index} of {self.group}")
        if index <= invoked:
            raise BrokenPromise("linearizable", f"the write {data!r} is before {invoked} of {self.group}")
        self._acknowledged = max(self._acknowledged, index)
        self.writes += 1

    def read_answered(self, invoked: int, index: int) -> None:
        """A client read the state after entry `index`."""
        if index < invoked:
            raise BrokenPromise("linearizable", f"a read sees {index} of {self.group}, not {invoked}")
        self._acknowledged = max(self._acknowledged, index)
        self.reads += 1
