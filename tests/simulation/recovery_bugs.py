"""Bugs of recovery and of what the store does to its files, planted on purpose like those of bugs.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.store import recovery
from penstock.store.files import write_atomically
from penstock.testing.sim.disk import SimDisk
from tests.simulation.stream_bugs import removals_before_what_they_rest_on


def tail_cut_in_two_steps(patch: pytest.MonkeyPatch) -> None:
    """Recovery truncates a block with a bad tail, and is killed before that is on the disk."""

    def in_place(disk: SimDisk, path: Path, offset: int, data: memoryview) -> None:
        write_atomically(
            disk, path.with_name(f"{path.name}.cut-{offset}"), bytes(data[offset:]), sync_name=False
        )
        fd = disk.open(path)
        disk._step("truncate")
        file = disk._fds[fd]
        file.pending.append((offset, None))
        file.apply(offset, None)
        disk.sync(fd)

    patch.setattr(recovery, "_cut", in_place)


RECOVERY_BUGS: list[tuple[Callable[[pytest.MonkeyPatch], None], str, int]] = [
    (tail_cut_in_two_steps, "sequence", 93000225),
    (removals_before_what_they_rest_on, "prefix", 194),
]
