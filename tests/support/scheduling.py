"""Which tests share a process, and in what order they start, when xdist shares them among processes.

A file's tests run in one process: their fixtures start servers. So do all tests of the in-process Spark
session: a JVM takes seconds to start and half a gigabyte to keep. What takes longest starts first, because
what starts last leaves the other processes idle; xdist's own order, files with many tests first, puts kills
and Spark last.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parents[2]
# Those that ask for the fixture `spark`. xdist schedules names of tests, before any fixture is known.
SESSION_FILES = {
    str(path.relative_to(ROOT))
    for path in (ROOT / "tests/integration").rglob("test_*.py")
    if "spark: SparkSession" in path.read_text()
}


class FileScheduling(LoadScopeScheduling):
    """`--dist loadfile`, with one scope for the files of the Spark session."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        return "the Spark session" if file in SESSION_FILES else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> FileScheduling | None:
    if config.getoption("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False  # the order is that of longest_first()
    return FileScheduling(config, log)  # type: ignore[arg-type]


def is_slow(item: pytest.Item) -> bool:
    """Does it take more than ten seconds, or use a JVM?"""
    return bool(item.get_closest_marker("slow") or item.get_closest_marker("spark"))


def longest_first(items: list[pytest.Item]) -> None:
    """Slow files first, then integration tests, which wait for timers while others compute."""
    slow_files = {item.path for item in items if is_slow(item)}
    items.sort(key=lambda item: item.path not in slow_files)


def choose_shares(config: pytest.Config) -> None:
    """Sets TEST_SHARES, which worker processes inherit: whether a part of the tests marked share(n) is left
    out. A run of the whole suite leaves it out; one of chosen tests or a campaign does not."""
    if hasattr(config, "workerinput"):
        return
    is_whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not config.option.keyword
    os.environ.setdefault("TEST_SHARES", "one" if is_whole and config.getoption("timeout") != 0 else "all")


def leave_out_shares(items: list[pytest.Item], draw: int) -> list[pytest.Item]:
    """Keeps one in n of a file's tests that are marked share(n); `draw` decides which. Returns the others."""
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    seen: Counter[Path] = Counter()
    for item in items:
        mark = item.get_closest_marker("share")
        if mark is None:
            kept.append(item)
        else:
            (left_out if (seen[item.path] + draw) % mark.args[0] else kept).append(item)
            seen[item.path] += 1
    items[:] = kept
    return left_out
