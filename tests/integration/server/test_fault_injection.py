"""A fault in any call that the server makes for one client affects no other client.

Which calls those are is found by watching a run of the scenario (tests/support/fault_sites.py). Then the run
is repeated with one of them raising: once, wherever it is, or each time that it works for the victim.
Bystanders must be served meanwhile and afterwards, and what the fault left must go when it is deleted. By
default a random share is tried, which a fresh seed chooses (it is printed); `make faults` tries all.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from penstock.jetstream.api.api_table import ApiRequest
from penstock.jetstream.consumer.consumer_replica import ConsumerReplica
from penstock.jetstream.external import ExternalReader
from penstock.jetstream.restore import Restore
from penstock.jetstream.snapshot import Snapshot
from penstock.jetstream.sourcing import LocalReader
from penstock.jetstream.stream.stream_replica import StreamReplica
from penstock.protocol.api import ApiStreamConfig
from penstock.server.session import Session
from penstock.store.streamfiles import FileStreamStore
from tests.support.fault_scenario import Scenario, running
from tests.support.fault_sites import Injection, Site, recorded, visible_kernels

pytestmark = pytest.mark.feature("operations.fault-containment")

ATTEMPT_S = 30.0
SHARE_S = 5.0  # of the default run, in each mode
_NAMES = frozenset(("V", "W", "I", "M", "S", "E", "R"))
_OTHERS = frozenset("B")


def of(value: Any, streams: frozenset[str], users: frozenset[str]) -> bool:
    """Is it an asset, what copies one, a session or a request of these? What is new may not be whole."""
    if isinstance(value, Session):
        identity = getattr(value, "identity", None)
        return identity is not None and identity.user in users
    if isinstance(value, ApiRequest):
        return bool(value.args) and value.args[0] in streams
    if isinstance(value, (ConsumerReplica, LocalReader, ExternalReader)):
        value = getattr(value, "stream", None)
    if isinstance(value, Snapshot):
        value = getattr(value, "_stream", None)
    if isinstance(value, (StreamReplica, Restore)):
        value = getattr(value, "config", None)
    return isinstance(value, (FileStreamStore, ApiStreamConfig)) and getattr(value, "name", "") in streams


def is_victims(value: Any) -> bool:
    return of(value, _NAMES, frozenset(("victim",)))


def is_bystanders(value: Any) -> bool:
    return of(value, _OTHERS, frozenset("abc"))


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Thousands of faults are logged."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


async def sites_of(scenario: Scenario) -> list[Site]:
    """The call sites of the whole run; a second one finds none that the first did not pass."""
    sites: dict[Site, None] = {}
    for _ in range(2):  # what is imported or cached once is no call of the second
        with recorded(sites):
            await scenario.play()
        await scenario.clean()
    return sorted(sites)


async def attempt(scenario: Scenario, site: Site, *, always: bool) -> int:
    """Plays with the fault; returns how often it was raised. Raises what went wrong."""
    injection = Injection(site, always=always, is_victims=is_victims, is_bystanders=is_bystanders)
    steps = 0

    async def between() -> None:
        nonlocal steps
        injection.rearm()
        steps += injection.raised > 0
        if steps == 1:  # first: serving them may set a timer that nothing else would set again
            await scenario.keeps_time()
        if steps % 8 == 1:  # while it lasts
            await scenario.serves_bystanders()

    with injection.armed():
        await scenario.play(until=lambda: injection.raised and not always, between=between)
    await scenario.serves_bystanders()
    await scenario.clean()
    await scenario.serves_bystanders()
    return injection.raised


def budget_s() -> float:
    return float(os.environ.get("PENSTOCK_FAULTS_S", SHARE_S))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # faults in closing generators
@pytest.mark.parametrize("settings", ["", ", sync_interval: always"], ids=["default", "sync_always"])
@pytest.mark.parametrize("always", [False, True], ids=["once", "always"])
async def test_a_fault_in_any_call_for_one_client_leaves_the_others_served(
    always: bool, settings: str, noted_faults: list[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("PENSTOCK_FAULTS_SEED", time.time_ns() % 1_000_000))
    failures: list[str] = []
    raised = at = 0
    with visible_kernels():
        async with running(settings) as scenario:
            sites = await sites_of(scenario)
        Random(seed).shuffle(sites)
        end = time.monotonic() + budget_s()
        while at < len(sites) and time.monotonic() < end:
            async with running(settings) as scenario:
                is_new = True
                while at < len(sites) and time.monotonic() < end:
                    site = sites[at]
                    try:
                        async with asyncio.timeout(ATTEMPT_S):  # what waits for ever is not contained either
                            hits = await attempt(scenario, site, always=always)
                    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001
                        failures.append(f"{site}: {type(error).__name__} {error}"[:400])
                        at += 1
                        break  # with a server that is whole
                    noted_faults.clear()
                    if not hits and not is_new:
                        break  # a call that fills a cache of the server is made on a new one only
                    at += 1
                    raised += hits > 0
                    is_new = False
    noted_faults.clear()
    mode = f"{'always' if always else 'once'}, {settings.strip(', ') or 'default'}, seed {seed}"
    with capsys.disabled():
        print(
            f"\nfaults, {mode}: {at} of {len(sites)} call sites tried, {raised} raised,"
            f" {len(failures)} not contained"
        )
    assert not failures, "\n".join(failures)


async def test_time_goes_on_after_a_fault_at_the_entry_of_the_timer(
    noted_faults: list[BaseException],
) -> None:
    with visible_kernels():
        async with running() as scenario:
            assert await attempt(scenario, Site("", 0, "server/tick.py Tick._on_timer"), always=False) == 1
    noted_faults.clear()
