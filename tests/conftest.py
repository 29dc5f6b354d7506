"""What every test shares. Fixtures of the server come from the plugin `penstock.testing.plugin`."""

from __future__ import annotations

import gc
import os
import tomllib
from collections.abc import Generator, Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from penstock import faults
from penstock.testing.sim.runner import fresh_seed
from tests.support.examples import PROFILE
from tests.support.hanging import pytest_runtest_makereport
from tests.support.scheduling import (
    choose_shares,
    is_slow,
    leave_out_shares,
    longest_first,
    pytest_xdist_make_scheduler,
)

__all__ = ["pytest_runtest_makereport", "pytest_xdist_make_scheduler"]

# Installed, the package registers the plugin by itself; run from the source tree it doesn't.
if "penstock" not in {point.name for point in entry_points(group="pytest11")}:
    pytest_plugins = ["penstock.testing.plugin"]

# The first of the simulation's fresh seeds, drawn once: the processes that share the tests inherit it.
SIM_FIRST = os.environ.setdefault("SIM_FIRST", str(fresh_seed()))


def pytest_configure(config: pytest.Config) -> None:
    choose_shares(config)


def pytest_report_header() -> list[str]:
    """Says which seeds and how many examples this run draws, so that the whole run can be repeated."""
    seeds = f"simulation: fresh seeds from {SIM_FIRST} (repeat them with SIM_FIRST={SIM_FIRST})"
    has_all = os.environ["TEST_SHARES"] == "all"
    shares = f"tests marked share(n): {'all' if has_all else 'one in n (TEST_SHARES=all runs all of them)'}"
    return [seeds, f"hypothesis: {PROFILE} profile", shares]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Imports all tests without garbage collections, and excludes what was imported from the later ones: a
    full collection, which some tests ask for, then takes milliseconds instead of half a second."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def noted_faults() -> Iterator[list[BaseException]]:
    """Exceptions that the product contained: a test fails on those that it did not take out of the list."""
    noted: list[BaseException] = []

    def watch(where: str, error: BaseException) -> None:
        if error not in noted:
            noted.append(error)

    with faults.watch(watch):
        yield noted
    for error in noted:
        raise AssertionError("the product contained an exception that no test expects") from error


FEATURES = {
    f"{area}.{name}"
    for area, entries in tomllib.loads(
        (Path(__file__).resolve().parents[1] / "docs/features.toml").read_text()
    ).items()
    for name in entries
}


def pytest_itemcollected(item: pytest.Item) -> None:
    """Refuses a feature that the table does not have: its test would be missing in docs/features.md."""
    for marker in item.iter_markers("feature"):
        for name in marker.args:
            if name not in FEATURES:
                raise pytest.UsageError(
                    f"{item.nodeid} names the feature {name!r}, which docs/features.toml does not have:"
                    " correct the id, or add the feature"
                )


# A JVM starts within seconds, but Spark's queries wait for each other on a machine with two cores.
SLOW_TIMEOUT_S = 600


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Gives tests their order, time limits and tries. Campaigns say `--timeout 0`: no test has a limit then.

    What runs against the official server may be tried twice more: its races are not ours to fix, and
    what a race of ours does shows in the same test's run against penstock, which has one try."""
    has_limits = config.getoption("timeout") != 0
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
        if has_limits and is_slow(item) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT_S))
        callspec = getattr(item, "callspec", None)
        if callspec is not None and "official" in callspec.id.split("-"):
            item.add_marker(pytest.mark.flaky(reruns=2))
    if os.environ["TEST_SHARES"] == "one":
        config.hook.pytest_deselected(items=leave_out_shares(items, int(SIM_FIRST)))
    longest_first(items)
