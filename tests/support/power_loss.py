"""A server process whose disk loses, at a power failure, what was not synced.

    python tests/support/power_loss.py -c FILE      # as `penstock serve -c FILE`

The process writes down how to undo each file operation before it does it, in a directory beside the
configuration file, and what each sync has made durable. lose_power() undoes what no sync covers, once the
process is killed. Data and names are kept by different syncs, as on file systems that promise no more: a
new file whose directory was not synced is gone.

Some of the writes that were not synced may survive, others not: `keep` decides for each, so that the end of
a file can be torn.

Only a penstock has such a disk: the official server is a static binary, whose system calls cannot be caught
without a debugger.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from penstock.store.disk import LocalDisk

COMMAND = (sys.executable, "-P", str(Path(__file__).resolve()))
_SUFFIX = ".undo"
_JOURNAL = "journal"
_LENGTH = 4


class Step(msgspec.Struct, array_like=True, frozen=True):
    """A file operation, or a sync. kind: written (key: device and inode; old: the bytes that were there,
    size: of the file before), created, renamed, removed (path; other: a link to what it replaced), synced
    (key or the path of a directory; upto: number of the first step that it does not cover)."""

    kind: str
    key: str
    path: str = ""
    other: str = ""
    offset: int = 0
    size: int = 0
    old: bytes = b""
    upto: int = 0


class UndoJournal:
    """The steps of a process. directory: of the journal and of links to files that were replaced."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._file = (directory / _JOURNAL).open("ab", buffering=0)
        self.count = sum(1 for _ in read_steps(directory))
        self._lock = threading.Lock()
        self._encode = msgspec.msgpack.Encoder().encode

    def add(self, step: Step) -> None:
        """Writes it down: it survives the process."""
        data = self._encode(step)
        with self._lock:
            self._file.write(len(data).to_bytes(_LENGTH, "little") + data)
            self.count += 1

    def keep(self, path: Path) -> str:
        """Links a file that will be replaced or removed. Returns the link; "" where there is no file."""
        link = self.directory / f"{self.count}-{threading.get_ident()}-{path.name}"[-200:]
        try:
            os.link(path, link)
        except OSError:  # there is none, or it is a directory
            return ""
        return str(link)


def read_steps(directory: Path) -> Iterator[Step]:
    """The steps of a journal; the last one may be incomplete."""
    path = directory / _JOURNAL
    data = path.read_bytes() if path.exists() else b""
    decode = msgspec.msgpack.Decoder(Step).decode
    at = 0
    while at + _LENGTH <= len(data):
        size = int.from_bytes(data[at : at + _LENGTH], "little")
        if at + _LENGTH + size > len(data):
            return
        yield decode(data[at + _LENGTH : at + _LENGTH + size])
        at += _LENGTH + size


def _key(fd: int) -> str:
    found = os.fstat(fd)
    return f"{found.st_dev}:{found.st_ino}"


def install(journal: UndoJournal) -> None:
    """The disk of this process writes the journal from now on."""
    names = ("open", "write", "sync", "sync_directory", "rename", "unlink")
    before = {name: getattr(LocalDisk, name) for name in names}

    def open_file(self: LocalDisk, path: Path, *, truncate: bool = False, create: bool = True) -> int:
        if truncate:
            unlink(self, path)  # another file of the same name, so that the old one can come back
        if create and not path.exists():
            journal.add(Step("created", str(path.parent), str(path)))
        fd: int = before["open"](self, path, truncate=truncate, create=create)
        return fd

    def write(self: LocalDisk, fd: int, data: bytes | memoryview, offset: int) -> int:
        size = os.fstat(fd).st_size
        old = os.pread(fd, max(min(len(data), size - offset), 0), offset) if offset < size else b""
        journal.add(Step("written", _key(fd), _path_of(fd), "", offset, size, old))
        count: int = before["write"](self, fd, data, offset)
        return count

    def sync(self: LocalDisk, fd: int) -> None:
        upto = journal.count
        before["sync"](self, fd)
        journal.add(Step("synced", _key(fd), upto=upto))

    def sync_directory(self: LocalDisk, path: Path) -> None:
        upto = journal.count
        before["sync_directory"](self, path)
        journal.add(Step("synced", str(path), upto=upto))

    def rename(self: LocalDisk, old: Path, new: Path) -> None:
        journal.add(Step("renamed", str(new.parent), str(new), journal.keep(new), old=os.fsencode(old)))
        before["rename"](self, old, new)

    def unlink(self: LocalDisk, path: Path) -> None:
        journal.add(Step("removed", str(path.parent), str(path), journal.keep(path)))
        before["unlink"](self, path)

    for name, one in zip(names, (open_file, write, sync, sync_directory, rename, unlink), strict=True):
        setattr(LocalDisk, name, one)


def _path_of(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")


def lose_power(conf: Path, keep: Callable[[], bool] = lambda: False) -> int:
    """Undoes what a killed server did not sync. Returns how many bytes of files and how many names it lost.

    conf: its configuration file. keep: whether a write or name survives all the same.
    """
    directory = conf.with_suffix(_SUFFIX)
    steps = list(read_steps(directory))
    durable: dict[str, int] = {}
    lost = 0
    inodes: dict[str, str] = {}
    for step in steps:
        if step.kind == "synced":
            durable[step.key] = max(step.upto, durable.get(step.key, 0))
    store = conf.with_suffix("")
    for path in [*store.rglob("*"), *directory.iterdir()]:
        if path.is_file():
            found = path.stat()
            inodes[f"{found.st_dev}:{found.st_ino}"] = str(path)
    for number in range(len(steps) - 1, -1, -1):
        step = steps[number]
        if step.kind == "synced" or number < durable.get(step.key, 0) or keep():
            continue
        lost += _undo_write(step, inodes) if step.kind == "written" else _undo_name(step)
    shutil.rmtree(directory)
    return lost


def _undo_write(step: Step, inodes: dict[str, str]) -> int:
    path = inodes.get(step.key)
    if path is None or not os.path.exists(path):
        return 0
    with open(path, "r+b") as file:
        was = os.fstat(file.fileno()).st_size
        os.pwrite(file.fileno(), step.old, step.offset)
        if step.size < was:
            os.truncate(path, max(step.size, step.offset + len(step.old)))
        return max(was - step.size, len(step.old))


def _undo_name(step: Step) -> int:
    path = Path(step.path)
    if not path.parent.is_dir():
        return 0
    if step.kind == "renamed" and path.exists():
        os.replace(path, os.fsdecode(step.old))
    elif step.kind == "created":
        path.unlink(missing_ok=True)
    if step.other and not path.exists():
        os.link(step.other, path)
    return 1


def main() -> int:
    """Serves."""
    from penstock.cli.main import main as command_line

    conf = Path(sys.argv[sys.argv.index("-c") + 1])
    install(UndoJournal(conf.with_suffix(_SUFFIX)))
    sys.argv[0:1] = ["penstock", "serve"]
    return command_line()


if __name__ == "__main__":
    sys.exit(main())
