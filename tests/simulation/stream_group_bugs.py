"""Bugs planted in stream groups: their roles, reads, checkpoints and catch-up. Each with a seed of the
simulation that finds it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest

from penstock.raft.raft_messages import RaftSnapshot
from penstock.replication.group_port import SnapshotDone
from penstock.replication.replica_group import ReplicaGroup
from penstock.server.replicated.state_files import StateFiles
from penstock.server.replicated.stream_checkpoints import StreamCheckpoints
from penstock.server.replicated.stream_group_owner import StreamGroup

Plant = Callable[[pytest.MonkeyPatch], None]


def applies_entries_of_a_state_again(patch: pytest.MonkeyPatch) -> None:
    """A restored replica counts itself some entries behind what it has."""
    restore = StreamGroup._restore

    def wrong(self: StreamGroup, state: Any, chunk_of: Any, index: int, term: int) -> Any:
        return restore(self, state, chunk_of, max(index - 5, 0), term)

    patch.setattr(StreamGroup, "_restore", wrong)


def answers_reads_whose_leadership_ended(patch: pytest.MonkeyPatch) -> None:
    """A read that was not confirmed is answered."""
    patch.setattr(StreamGroup, "read_lost", lambda self, context: self.read_ready(context, 0))


def answers_reads_at_once(patch: pytest.MonkeyPatch) -> None:
    """A leader asks no majority."""

    def wrong(self: StreamGroup, done: Callable[[], object]) -> bool:
        done()
        return True

    patch.setattr(StreamGroup, "read_index", wrong)


def drops_entries_while_a_state_is_loaded(patch: pytest.MonkeyPatch) -> None:
    """What is committed before the replica is there is forgotten."""
    committed = StreamGroup.committed

    def wrong(self: StreamGroup, index: int, term: int, payload: bytes) -> bool:
        return self._replica is not None and committed(self, index, term, payload)

    patch.setattr(StreamGroup, "committed", wrong)


def hands_out_entries_behind_one_that_takes_long(patch: pytest.MonkeyPatch) -> None:
    """A stream goes on while a roll-up is unfinished."""
    committed = StreamGroup.committed

    def wrong(self: StreamGroup, index: int, term: int, payload: bytes) -> bool:
        committed(self, index, term, payload)
        return False

    patch.setattr(StreamGroup, "committed", wrong)


def does_not_sync_its_states(patch: pytest.MonkeyPatch) -> None:
    """The log gets a checkpoint whose files a power failure takes."""
    patch.setattr(StateFiles, "_sync_files", lambda self, names: None)


def does_not_sync_the_names_of_its_files(patch: pytest.MonkeyPatch) -> None:
    """The bytes of a checkpoint's files are on disk, their names are not."""

    def wrong(self: StateFiles, names: list[bytes]) -> None:
        for name in names:
            fd = self._disk.open(self._path(name), create=False)
            self._disk.sync(fd)
            self._disk.close(fd)

    patch.setattr(StateFiles, "_sync_files", wrong)


def removes_files_before_the_log_has_the_next_checkpoint(patch: pytest.MonkeyPatch) -> None:
    """A start finds the log's checkpoint, and its files are gone."""
    take_snapshot = StreamGroup.take_snapshot

    def wrong(self: StreamGroup, done: SnapshotDone) -> None:
        def at_once(data: bytes | None, durable: Callable[[], None] = lambda: None) -> None:
            durable()
            done(data)

        take_snapshot(self, at_once)

    patch.setattr(StreamGroup, "take_snapshot", wrong)


def removes_files_while_a_state_is_taken(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint relies on chunks that are removed before it is complete."""

    def wrong(self: StreamCheckpoints, wake: Callable[[], None]) -> Generator[int, None, None]:
        self._users += 1
        yield 1
        self._users = 0

    patch.setattr(StreamCheckpoints, "retain", wrong)
    patch.setattr(StreamCheckpoints, "release", lambda self: None)


def does_not_serve_after_a_state_was_loaded(patch: pytest.MonkeyPatch) -> None:
    """A server that was elected while it loaded a state never serves."""
    loaded = StreamGroup._loaded

    def wrong(self: StreamGroup, replica: Any) -> None:
        tell, self._tell_role = self._tell_role, lambda: None  # type: ignore[method-assign]
        loaded(self, replica)
        self._tell_role = tell  # type: ignore[method-assign]

    patch.setattr(StreamGroup, "_loaded", wrong)


def waits_for_a_checkpoint_that_was_given_up(patch: pytest.MonkeyPatch) -> None:
    """A member that took another state while it took a checkpoint never takes one again."""
    install = ReplicaGroup._install

    def wrong(self: ReplicaGroup, snapshot: RaftSnapshot) -> None:
        taking = self._taking
        install(self, snapshot)
        self._taking = taking

    patch.setattr(ReplicaGroup, "_install", wrong)


STREAM_GROUP_BUGS: tuple[tuple[Plant, int], ...] = (
    (applies_entries_of_a_state_again, 1),
    (answers_reads_whose_leadership_ended, 2),
    (answers_reads_at_once, 2),
    (drops_entries_while_a_state_is_loaded, 3),
    (does_not_sync_its_states, 1),
    (does_not_sync_the_names_of_its_files, 3),
    (removes_files_before_the_log_has_the_next_checkpoint, 161),
    (removes_files_while_a_state_is_taken, 1),
    (does_not_serve_after_a_state_was_loaded, 94),
    (waits_for_a_checkpoint_that_was_given_up, 201),
    (hands_out_entries_behind_one_that_takes_long, 2),
)
"""Each bug with the seed that is tried first."""
