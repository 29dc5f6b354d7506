"""A disk that measures its syncs, for the metrics of a server.

Syncs are the calls that a slow disk shows in: writes end in the page cache. One place measures those of
streams, consumers and the log of replicated groups, because each of them syncs through its Disk.

Rejected: measuring where syncs are requested (a sync of several files would be one event, and the log of
groups would need a second place).
"""

from __future__ import annotations

import time
from pathlib import Path

from penstock.kernels.base.duration_histogram import DurationHistogram
from penstock.store.disk import LocalDisk


class MeasuredDisk(LocalDisk):
    """The file system of this machine; syncs are measured, in any thread.

    sync_times: durations of the syncs that succeeded. sync_failures: number of those that failed.
    """

    def __init__(self) -> None:
        self.sync_times = DurationHistogram()
        self.sync_failures = 0

    def sync(self, fd: int) -> None:
        began = time.monotonic_ns()
        try:
            super().sync(fd)
        except OSError:
            self.sync_failures += 1
            raise
        self.sync_times.observe(time.monotonic_ns() - began)

    def sync_directory(self, path: Path) -> None:
        began = time.monotonic_ns()
        try:
            super().sync_directory(path)
        except FileNotFoundError:  # the directory was removed meanwhile, which is no failure of the disk
            raise
        except OSError:
            self.sync_failures += 1
            raise
        self.sync_times.observe(time.monotonic_ns() - began)
