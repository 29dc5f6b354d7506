"""CPU time of the measured processes, which hardly depends on other load on the machine.

Wall-clock rates depend on other processes; CPU time per row depends on the code alone, apart from shared
caches. Linux only, like the rest of the benchmark.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class CpuTimes:
    """CPU seconds of the server, Spark's JVM and Spark's Python workers."""

    server_s: float
    jvm_s: float
    python_s: float

    def __sub__(self, before: CpuTimes) -> CpuTimes:
        return CpuTimes(
            self.server_s - before.server_s, self.jvm_s - before.jvm_s, self.python_s - before.python_s
        )

    def us_each(self, rows: int) -> dict[str, float]:
        """Microseconds per row."""
        times = {"server": self.server_s, "jvm": self.jvm_s, "python": self.python_s}
        return {name: round(seconds / rows * 1e6, 2) for name, seconds in times.items()}


@dataclass
class Figures:
    """Figures of one measurement, per run."""

    rates: list[float] = field(default_factory=list)
    cpu_us: list[dict[str, float]] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """Medians, and the rate of each run. cpu_us: microseconds per row."""
        names = self.cpu_us[0]
        return {
            "rows_per_s": round(statistics.median(self.rates)),
            "rates": [round(rate) for rate in self.rates],
            "cpu_us": {name: statistics.median(used[name] for used in self.cpu_us) for name in names},
        }


@contextmanager
def measured(server_pid: int, figures: Figures, rows: int, left_out: Collection[int] = ()) -> Iterator[None]:
    """Record the time and CPU time to process `rows` rows, without that of the processes `left_out`."""
    before, started = cpu_times(server_pid, left_out), time.perf_counter()
    yield
    figures.rates.append(rows / (time.perf_counter() - started))
    figures.cpu_us.append((cpu_times(server_pid, left_out) - before).us_each(rows))


def load_average() -> float:
    """One-minute load average."""
    return round(os.getloadavg()[0], 1)


def cpu_times(server_pid: int, left_out: Collection[int] = ()) -> CpuTimes:
    """CPU time used by this process's descendants, without the benchmark itself and the processes
    `left_out`."""
    found = {"server": 0.0, "java": 0.0, "python": 0.0}
    for pid in descendants(os.getpid()):
        if pid in left_out:
            continue
        try:
            fields = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            continue  # it just ended, and is part of its parent's children time
        name, _, rest = fields.partition("(")[2].rpartition(")")
        seconds = sum(int(ticks) for ticks in rest.split()[11:15]) / _TICKS_PER_S
        found["server" if pid == server_pid else "java" if name == "java" else "python"] += seconds
    return CpuTimes(found["server"], found["java"], found["python"])


def descendants(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            children = (task / "children").read_text().split()
        except OSError:
            continue
        for child in map(int, children):
            yield child
            yield from descendants(child)
