"""Disks of the simulation that fail where a test wants it."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

from penstock.testing.sim.sim_disk import SimDisk


class TearAt(Random):
    """Tears a write there."""

    def __init__(self, at: int) -> None:
        super().__init__(1)
        self._at = at

    def randrange(self, *_: int) -> int:  # type: ignore[override]
        return self._at


class FailingDisk(SimDisk):
    """Fails once, at its n-th operation from now on, or with the next one of a kind."""

    fails_in = 0
    fails_at = ""

    def _step(self, what: str, path: Path | None = None) -> None:
        super()._step(what, path)
        self.fails_in -= 1
        if self.fails_in == 0 or what == self.fails_at:
            self.fails_at = ""
            raise OSError(errno.EIO, "Input/output error")
