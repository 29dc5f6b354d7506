"""Mirrors and sources on disk: wherever the process is killed, every message comes once, none is missed.

The disk is copied before and after everything that is done to it, writes also in their middle; each copy is
what a process killed at that instant leaves. Each is opened, goes on to the end, and is compared with the
origin.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.kernels.wire.dispatch import publish
from penstock.store import disk
from penstock.store.disk import LocalDisk
from penstock.store.file import FileStore
from tests.support.engine import EngineHarness
from tests.unit.jetstream.test_mirrors import content, make, settle

pytestmark = pytest.mark.feature("sourcing.catch-up")


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process's death leaves doesn't depend on syncs."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(disk.os, name, lambda fd: None)


Step = Callable[[EngineHarness], None]


class FilmedDisk(LocalDisk):
    """Calls `cut` between any two changes, and in the middle of each write."""

    def __init__(self) -> None:
        self.cut: Callable[[], None] = lambda: None

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        half = len(data) // 2
        self.cut()
        if half:
            super().write(fd, data[:half], offset)
            self.cut()
        written = super().write(fd, data[half:], offset + half)
        self.cut()
        return half + written

    def rename(self, old: Path, new: Path) -> None:
        self.cut()
        super().rename(old, new)
        self.cut()

    def unlink(self, path: Path) -> None:
        self.cut()
        super().unlink(path)


def opened(root: Path, film: LocalDisk | None = None) -> tuple[FileStore, EngineHarness]:
    store = FileStore(root, block_size=700, disk=film or LocalDisk())
    return store, EngineHarness(store.account("$G"))


def after_each_crash(root: Path, script: Step, check: Step) -> int:
    """Runs the script, and the check on what each crash meanwhile leaves; returns how many there were."""
    film = FilmedDisk()
    copies: list[Path] = []
    _, js = opened(root / "store", film)

    def cut() -> None:
        copies.append(root / f"copy{len(copies)}")
        shutil.copytree(root / "store", copies[-1], ignore=shutil.ignore_patterns(".lock"))

    film.cut = cut
    script(js)
    film.cut = lambda: None
    for copy in copies:
        store, after = opened(copy)
        check(after)
        store.close()
        shutil.rmtree(copy)
    return len(copies)


def fill(js: EngineHarness, first: int, last: int) -> None:
    for n in range(first, last):
        publish(js.index, b"o.%d" % (n % 3), b"", b"", b"%03d" % n)
        if n % 4 == 3:
            js.tick()
    settle(js)


def test_a_killed_mirror_goes_on_without_a_gap_or_a_double(tmp_path: Path) -> None:
    def script(js: EngineHarness) -> None:
        js.create("O", "o.*")
        make(js, "M", mirror={"name": "O"})
        fill(js, 0, 12)
        js.api("STREAM.MSG.DELETE.O", {"seq": 12})
        fill(js, 12, 17)

    def check(js: EngineHarness) -> None:
        if "M" not in js.engine.streams:
            return
        held, original = content(js, "M"), content(js, "O")
        # What it had was a beginning of what the origin had; message 12 is deleted on the way.
        beginning = [seq for seq in original if seq <= max(held, default=0)]
        assert set(held) - {12} == set(beginning) - {12}
        assert all(original.get(seq, one) == one for seq, one in held.items())
        settle(js)
        mirrored = content(js, "M")
        assert original.items() <= mirrored.items()
        assert set(mirrored) - set(original) <= {12}
        js.request("o.0", b"new")
        settle(js)
        assert content(js, "M")[js.engine.streams["O"].log.last_seq].payload == b"new"

    assert after_each_crash(tmp_path, script, check) > 30


@pytest.mark.parametrize(
    ("settings", "drain"),
    [({}, False), ({"retention": "workqueue"}, True), ({"max_msgs": 2}, False)],
    ids=["kept", "consumed", "limited"],
)
def test_a_killed_stream_takes_nothing_from_a_source_twice(
    tmp_path: Path, settings: dict[str, Any], drain: bool
) -> None:
    def script(js: EngineHarness) -> None:
        js.create("O", "o.*")
        make(js, "S", sources=[{"name": "O"}], **settings)
        for first in range(0, 12, 4):
            fill(js, first, first + 4)
            if drain:
                js.api("STREAM.PURGE.S")

    def check(js: EngineHarness) -> None:
        if "S" not in js.engine.streams:
            return
        log = js.engine.streams["S"].log
        settle(js)
        published = [one.payload for one in content(js, "O").values()]
        # Every message got one sequence: none came twice, none is missing.
        assert log.last_seq == len(published)
        for seq, one in content(js, "S").items():
            assert one.payload == published[seq - 1]

    assert after_each_crash(tmp_path, script, check) > 30


def test_a_killed_stream_loses_nothing_of_a_work_queue(tmp_path: Path) -> None:
    def script(js: EngineHarness) -> None:
        js.create("O", "o.*", retention="workqueue")
        make(js, "S", sources=[{"name": "O"}])
        fill(js, 0, 12)

    def check(js: EngineHarness) -> None:
        if "S" not in js.engine.streams:
            return
        published = js.engine.streams["O"].log.last_seq
        both = {one.payload for one in [*content(js, "S").values(), *content(js, "O").values()]}
        assert both == {b"%03d" % n for n in range(published)}
        settle(js)
        assert [one.payload for one in content(js, "S").values()] == [b"%03d" % n for n in range(published)]
        settle(js)
        assert content(js, "O") == {}

    assert after_each_crash(tmp_path, script, check) > 30
