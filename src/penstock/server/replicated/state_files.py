"""The files of one group's states: manifests and chunks, each in a file whose name tells its content.

A file never changes: what has another content has another name. So a checkpoint writes only what the ones
before did not have, and a replica that catches up keeps what it has fetched, whatever interrupts it.

The event loop calls; a thread of the disk executor does the work, one job at a time and in the order of the
calls, so that a file is never removed after it was written again.

Invariants:
- `has` is true for a file whose bytes were written or verified since the start, and for one that is being
  written. After flush() reports success, all of these are on disk, with their names.
- A file that was found at the start is not trusted before it was read: a crash may have torn it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from penstock.errors import StoreCorruptError, StoreError, StoreWriteError
from penstock.jetstream.stream.replica_state import CHUNK_NAME, HASH_SIZE, has_name
from penstock.store.disk import Disk
from penstock.store.executor import DiskExecutor
from penstock.store.files import make_directory, sync_directory, sync_file

WRITE_BYTES = 4 << 20
"""So many bytes are written in one job."""

Failure = StoreError | OSError
Flushed = Callable[[Failure | None], None]
WhenRead = Callable[[list[bytes] | None, Failure | None], None]


class StateFiles:
    """See the module.

    Args:
        disk: the file operations.
        executor: runs the work on files.
        directory: of this group; its parent exists.
    """

    def __init__(self, disk: Disk, executor: DiskExecutor, directory: Path) -> None:
        self._disk = disk
        self._executor = executor
        self.directory = directory
        self._present: set[bytes] = set()
        self._unsynced: set[bytes] = set()
        self._unverified = self._list()
        self._batch: list[tuple[bytes, list[bytes]]] = []
        self._batch_bytes = 0
        self._jobs: deque[tuple[Callable[[], Any], Callable[[Any, Failure | None], None]]] = deque()
        self._is_busy = False
        self._generation = 0
        self._failure: Failure | None = None
        self._wakes: list[Callable[[], None]] = []
        self.waiting_bytes = 0
        """Bytes that are kept and not written yet."""

    def _list(self) -> set[bytes]:
        try:
            names = self._disk.names(self.directory)
        except FileNotFoundError:
            return set()
        except OSError as error:
            raise StoreError(f"cannot list: {error.strerror}", path=str(self.directory)) from error
        found = set()
        for name in names:
            if len(name) in (2 * HASH_SIZE, 2 * CHUNK_NAME.size):
                found.add(bytes.fromhex(name))
        return found

    # --- what is there ---------------------------------------------------------------------------

    def has(self, name: bytes) -> bool:
        """Whether the file of this name is there, or will be when the writes are done."""
        return name in self._present

    def may_have(self, name: bytes) -> bool:
        """The same, and for a file that was found at the start, good or not."""
        return name in self._present or name in self._unverified

    # --- writing ---------------------------------------------------------------------------------

    def keep(self, name: bytes, parts: list[bytes]) -> None:
        """Writes a file. name: of its parts together."""
        if name in self._present:
            return
        self._present.add(name)
        self._unverified.discard(name)
        size = sum(len(one) for one in parts)
        self._batch.append((name, parts))
        self._batch_bytes += size
        self.waiting_bytes += size
        if self._batch_bytes >= WRITE_BYTES:
            self._write_batch()

    def _write_batch(self) -> None:
        batch, self._batch = self._batch, []
        size, self._batch_bytes = self._batch_bytes, 0
        if batch:
            self._run(partial(self._write, batch), partial(self._written, [name for name, _ in batch], size))

    def _write(self, batch: list[tuple[bytes, list[bytes]]]) -> None:
        make_directory(self._disk, self.directory)
        for name, parts in batch:
            path = self._path(name)
            try:
                self._write_file(path, parts)
            except OSError as error:
                raise StoreWriteError(f"cannot write: {error.strerror}", path=str(path)) from error

    def _write_file(self, path: Path, parts: list[bytes]) -> None:
        fd = self._disk.open(path, truncate=True)
        try:
            offset = 0
            for part in parts:
                written = 0
                with memoryview(part) as view:
                    while written < len(part):
                        written += self._disk.write(fd, view[written:], offset + written)
                offset += written
        finally:
            self._disk.close(fd)

    def _written(self, names: list[bytes], size: int, _: None, error: Failure | None) -> None:
        self.waiting_bytes -= size
        wakes, self._wakes = self._wakes, []
        for wake in wakes:
            wake()
        if error is None:
            self._unsynced.update(names)
        else:
            self._present.difference_update(names)
            self._unverified.update(names)
            self._failure = error

    def when_written(self, wake: Callable[[], None]) -> None:
        """Calls when the next write has ended. Something that waits for a write must be there."""
        self._write_batch()
        self._wakes.append(wake)

    def flush(self, done: Flushed) -> None:
        """Makes everything that was kept or verified durable, then calls done(None); done(error) if any of it
        could not be written: that is not there any more."""
        self._write_batch()
        self._run(self._nothing, partial(self._sync, done))

    @staticmethod
    def _nothing() -> None:
        """Comes after all writes that were requested before."""

    def _sync(self, done: Flushed, _: None, error: Failure | None) -> None:
        failure, self._failure = self._failure or error, None
        if failure is not None:
            done(failure)
            return
        names = sorted(self._unsynced)
        self._run(partial(self._sync_files, names), partial(self._synced, names, done), is_next=True)

    def _sync_files(self, names: list[bytes]) -> None:
        self._disk.for_each(partial(sync_file, self._disk), [self._path(one) for one in names])
        sync_directory(self._disk, self.directory)
        sync_directory(self._disk, self.directory.parent)

    def _synced(self, names: list[bytes], done: Flushed, _: None, error: Failure | None) -> None:
        if error is None:
            self._unsynced.difference_update(names)
        else:  # the system may have dropped what a failed sync covers: it is written again
            self._unsynced.difference_update(names)
            self._present.difference_update(names)
            self._unverified.update(names)
        done(error)

    # --- reading ---------------------------------------------------------------------------------

    def read(self, names: list[bytes], most: int, done: WhenRead) -> None:
        """Reads the first of these files, until they have `most` bytes, at least one. Calls done(contents,
        None); done(None, error) when one of them is missing or has other bytes than its name says
        (StoreCorruptError)."""
        self._write_batch()
        self._run(partial(self._read_some, names, most), partial(self._were_read, names, done))

    def _read_some(self, names: list[bytes], most: int) -> list[bytes]:
        found: list[bytes] = []
        for name in names:
            found.append(self._read(name))
            most -= len(found[-1])
            if most <= 0:
                break
        return found

    def _were_read(
        self, names: list[bytes], done: WhenRead, found: list[bytes] | None, error: Failure | None
    ) -> None:
        if found is not None:
            self._found_good(names[: len(found)])
        done(found, error)

    def _found_good(self, names: list[bytes]) -> None:
        new = self._unverified.intersection(names)
        self._unverified -= new
        self._present |= new
        self._unsynced |= new

    def read_part(self, name: bytes, offset: int, count: int) -> tuple[int, bytes]:
        """The size of a file, and up to `count` of its bytes. For work in a thread. Raises OSError."""
        path = self._path(name)
        return self._disk.size(path), self._disk.read_at(path, offset, count)

    def run(self, work: Callable[[], Any], done: Callable[[Any, Failure | None], None]) -> None:
        """Runs work on these files, after what was requested before."""
        self._write_batch()
        self._run(work, done)

    def _read(self, name: bytes) -> bytes:
        path = self._path(name)
        try:
            content = self._disk.read(path)
        except OSError as error:
            raise StoreError(f"cannot read: {error.strerror}", path=str(path)) from error
        if not has_name(name, [content]):
            raise StoreCorruptError("the file has other bytes than its name says", path=str(path))
        return content

    def verify(self, names: list[bytes], done: WhenRead) -> None:
        """Reads files, and calls done(the good ones, None). The others count as missing from then on."""
        self._run(partial(self._verify, names), partial(self._verified, names, done))

    def _verify(self, names: list[bytes]) -> list[bytes]:
        good = []
        for name in names:
            try:
                self._read(name)
            except StoreError:
                continue
            good.append(name)
        return good

    def _verified(
        self, names: list[bytes], done: WhenRead, good: list[bytes] | None, error: Failure | None
    ) -> None:
        if good is not None:
            self._found_good(good)
            self._present.difference_update(set(names).difference(good))
        self._unverified.difference_update(names)
        done(good, error)

    # --- removing --------------------------------------------------------------------------------

    def remove_except(self, used: Callable[[], set[bytes]], done: Callable[[], None]) -> None:
        """Removes all files but those that `used` returns (called in a thread), then calls done(). Until then
        has() may not be asked. What cannot be removed stays for the next call."""
        self._write_batch()
        names = frozenset(self._present | self._unverified)
        self._run(partial(self._remove, names, used), partial(self._removed, done))

    def _remove(self, names: frozenset[bytes], used: Callable[[], set[bytes]]) -> list[bytes]:
        removed = []
        for name in sorted(names - used()):
            try:
                self._disk.unlink(self._path(name))
            except OSError:
                continue
            removed.append(name)
        return removed

    def _removed(self, done: Callable[[], None], removed: list[bytes] | None, error: Failure | None) -> None:
        for names in (self._present, self._unverified, self._unsynced):
            names.difference_update(removed or ())
        done()

    def remove_all(self, done: Callable[[], None]) -> None:
        """Removes the directory, and calls done()."""
        self._run(partial(self._disk.remove_tree, self.directory), lambda _, error: done())

    def close(self) -> None:
        """Forgets the jobs that have not begun, and the result of the one that runs. Only remove_all() may
        follow."""
        self._generation += 1
        self._jobs.clear()
        self._batch.clear()

    # --- jobs ------------------------------------------------------------------------------------

    def _path(self, name: bytes) -> Path:
        return self.directory / name.hex()

    def _run(
        self,
        work: Callable[[], Any],
        done: Callable[[Any, Failure | None], None],
        *,
        is_next: bool = False,
    ) -> None:
        if is_next:
            self._jobs.appendleft((work, done))
        else:
            self._jobs.append((work, done))
        self._next()

    def _next(self) -> None:
        if self._is_busy or not self._jobs:
            return
        work, done = self._jobs.popleft()
        self._is_busy = True
        self._executor.run(work, partial(self._finished, done, self._generation), self)

    def _finished(
        self, done: Callable[[Any, Failure | None], None], generation: int, result: Any, error: Failure | None
    ) -> None:
        self._is_busy = False
        try:
            if generation == self._generation:
                done(result, error)
        finally:
            self._next()
