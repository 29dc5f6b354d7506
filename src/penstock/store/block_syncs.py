"""Syncs of one stream's block files: what is not on disk yet, and the syncs in flight.

Invariants:
- A sync covers everything written before its start that no sync in flight covers. It ends after those that
  are in flight, and fails if one of them fails: success means that everything before its start is on disk.
- What a failed sync covered is covered again by the next one.
- A file whose sync failed is written again before anything counts as synced. The system may have dropped the
  bytes that it could not write: it marks them clean and reports the error once, and later syncs of the file
  succeed without them.
- The list of records to overwrite (see erasures.py) is on disk before their tombstones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from penstock import faults
from penstock.errors import StoreError, StoreWriteError
from penstock.store.block_reading import block_path
from penstock.store.erasures import Covered, Erasures
from penstock.store.executor import drain
from penstock.store.files import OpenFiles, sync_file

OnEnd = Callable[[StoreWriteError | None], object]

_LOCKS = tuple(threading.Lock() for _ in range(64))
"""Held during the sync of a file: one of them for each path. Few streams share one."""


class _Sync(NamedTuple):
    """What a sync covers."""

    numbers: set[int]  # blocks
    writes: int  # number of the last write
    names_changed: bool
    erasures: Covered


class _SyncInFlight:
    """A sync in the background. steps: called with its error or None, in the order of the starts."""

    __slots__ = ("failure", "is_done", "numbers", "steps")

    def __init__(self, numbers: set[int], steps: Sequence[OnEnd]) -> None:
        self.numbers = numbers
        self.steps = steps
        self.failure: StoreWriteError | None = None
        self.is_done = False


class BlockSyncs:
    """Syncs one stream's block files. `pending_rewrites`: gives the blocks whose files still have records
    that a rewrite or a removal of the file takes away.

    writes: number of the last write that succeeded; what recovery found counts as the first one, because the
    process that wrote it may have died before its sync. synced_writes: the last one on disk; 0: none.
    """

    def __init__(
        self,
        directory: Path,
        files: OpenFiles,
        erasures: Erasures,
        pending_rewrites: Callable[[], set[int]],
    ) -> None:
        self.unsynced: set[int] = set()  # blocks written since the last sync
        self.syncing: set[int] = set()  # blocks covered by syncs in flight
        self.distrusted: set[Path] = set()  # files whose sync failed: to be written again
        self.was_clean = False  # everything was on disk when the last write began
        self.end_raised = False  # a step of the sync that ended last raised
        self.writes, self.synced_writes = 1, 0
        self._directory = directory
        self._files = files
        self._disk = files.disk
        self._erasures = erasures
        self._pending_rewrites = pending_rewrites
        self._names_changed = False
        self._in_flight: list[_SyncInFlight] = []  # in the order of their starts
        self._last_failure: StoreWriteError | None = None  # of those in flight; see run()
        self._owner = object()  # of the work in the executor
        self._closed = False

    @property
    def is_idle(self) -> bool:
        """Whether no sync is in flight."""
        return not self._in_flight

    def sync_files(self, paths: Iterable[Path]) -> None:
        """Syncs files of the stream, in any thread. Raises StoreWriteError; the file that failed is to be
        written again, and all syncs of it fail until then."""
        for path in paths:
            # The system tells one of two threads about its error. The other one must learn of it here.
            with _LOCKS[hash(path) % len(_LOCKS)]:
                if path in self.distrusted:
                    raise self._distrust()
                try:
                    sync_file(self._disk, path)
                except StoreWriteError:
                    self.distrusted.add(path)
                    raise

    def begin_write(self) -> None:
        """A write begins."""
        self.was_clean = not self.unsynced and not self.syncing

    def end_write(self) -> None:
        """The write succeeded: the whole log is written."""
        self.writes += 1

    def written(self, number: int) -> None:
        """A block's file was written to."""
        self.unsynced.add(number)

    def names_changed(self) -> None:
        """The directory got or lost a file."""
        self._names_changed = True

    def discard(self, number: int) -> None:
        """A block's file was replaced by a synced one, or is removed."""
        self.unsynced.discard(number)

    def paths_after(self, number: int, numbers: set[int]) -> list[Path]:
        """The files of those of the blocks that come after one."""
        return [block_path(self._directory, one) for one in sorted(numbers) if one > number]

    def required_after(self, number: int) -> list[Path]:
        """The files that must be on disk before anything there reflects a removal from this block: they
        contain the messages that replaced the removed ones. A background job can overtake the sync that would
        cover them.

        This applies only when everything written before them is on disk, as with `sync: always`. Otherwise a
        power loss takes back everything since the last sync in any case, and one sync per block would delay
        all writers.
        """
        return self.paths_after(number, self.syncing | self.unsynced if self.was_clean else self.syncing)

    # ------------------------------------------------------------------ in this thread

    def wait(self) -> None:
        """Waits for the syncs in flight. Raises StoreWriteError when one of them failed: the system may have
        dropped what it covered, and would report success from now on."""
        self._last_failure = None
        self.drain()
        if self._last_failure is not None:
            raise self._last_failure

    def drain(self) -> None:
        """Waits for the syncs in flight."""
        drain(self._files.executor, self._owner)

    def run(self) -> None:
        """Syncs what no sync in flight covers. Raises StoreWriteError."""
        sync = self._begin()
        try:
            self._run(sync)
        except StoreWriteError:
            self._failed(sync)
            raise
        self._succeeded(sync)

    # ------------------------------------------------------------------ in the background

    def start(
        self,
        steps: Sequence[OnEnd],
        *,
        also: Callable[[], object] = lambda: None,
        names: Sequence[Path] = (),
    ) -> None:
        """Starts a sync in the background, together with directories (`names`), and calls `also` in it, which
        syncs files that others own and write again.

        At its end it calls `steps`, each with the error or None. One that raises is called once more with an
        error, and the others follow: acks wait for one of them, and what a failed sync covered must be
        covered again.
        """
        sync = self._begin()

        def work() -> None:
            also()
            self._run(sync)
            self._disk.for_each(self._sync_names, names)

        def note_end(failure: StoreWriteError | None) -> None:
            if self._closed:
                return  # the files may be those of another stream of this name
            self.syncing = set().union(*(one.numbers for one in self._in_flight))
            if failure is None:
                self._succeeded(sync)
            else:
                self._last_failure = failure
                self._failed(sync)

        flight = _SyncInFlight(sync.numbers, (note_end, *steps))
        self._in_flight.append(flight)
        self.syncing |= sync.numbers

        def finish(_: None, error: StoreError | OSError | None) -> None:
            flight.is_done = True
            if error is None and self.distrusted:  # a job met the error, which is reported once
                error = self._distrust()
            if error is not None and flight.failure is None:  # (that of an earlier sync says more)
                flight.failure = StoreWriteError(str(error))
            self._end_done()

        self._files.executor.run(work, finish, self._owner)

    def _end_done(self) -> None:
        """Ends the syncs that are done and follow no other one that is in flight."""
        while self._in_flight and self._in_flight[0].is_done:
            first = self._in_flight.pop(0)
            if first.failure is not None:
                for later in self._in_flight:
                    later.failure = first.failure
            self.end_raised = False
            for step in first.steps:
                faults.contain(step, partial(self._step_failed, step), first.failure)

    def _step_failed(self, step: OnEnd, error: Exception, _: StoreWriteError | None) -> None:
        """What the step did is unknown, so it takes the sync for a failed one."""
        self.end_raised = True
        why = StoreWriteError(faults.describe(self._note(error)))
        faults.contain(step, self._step_failed_again, why)

    def _step_failed_again(self, error: Exception, *_: object) -> None:
        self._note(error)

    def _note(self, error: Exception) -> str:
        return faults.note(f"end of a sync of {self._directory}", error)

    def _begin(self) -> _Sync:
        erasures = self._erasures.begin_sync(self._pending_rewrites)
        sync = _Sync(self.unsynced, self.writes, self._names_changed, erasures)
        self.unsynced, self._names_changed = set(), False
        return sync

    def _succeeded(self, sync: _Sync) -> None:
        self.synced_writes = max(self.synced_writes, sync.writes)
        self._erasures.sync_succeeded(sync.erasures)

    def _failed(self, sync: _Sync) -> None:
        self.unsynced |= sync.numbers
        self._names_changed |= sync.names_changed
        self._erasures.sync_failed(sync.erasures)

    def _run(self, sync: _Sync) -> None:
        # The list first: on disk without the tombstones it has no effect, but not the other way round.
        if self.distrusted:
            raise self._distrust()
        if sync.erasures.recorded:
            self.sync_files([self._erasures.path])
        self.sync_files([block_path(self._directory, number) for number in sorted(sync.numbers)])
        if sync.names_changed:
            self._sync_names(self._directory)

    def _distrust(self) -> StoreWriteError:
        return StoreWriteError(
            "cannot sync: an earlier sync failed, the file is written again first",
            path=str(min(self.distrusted.copy(), default="")),
        )

    def _sync_names(self, directory: Path) -> None:
        try:
            self._disk.sync_directory(directory)
        except FileNotFoundError:
            return  # the consumer or the stream was deleted meanwhile
        except OSError as error:
            raise StoreWriteError(
                f"cannot sync the directory: {error.strerror}", path=str(directory)
            ) from error

    def close(self) -> None:
        """Lets syncs in flight end without effect."""
        self._closed = True
