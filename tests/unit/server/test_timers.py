"""Timers of the server that set themselves again: also after a fault."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.server.accounts.service_requests import ServiceRequests
from penstock.server.monitoring.system_service import SystemService

pytestmark = pytest.mark.feature("operations.fault-containment")


class FakeLoop:
    """Calls what is due when the test says so."""

    def __init__(self) -> None:
        self.due: list[Callable[[], object]] = []

    def call_later(self, delay_s: float, callback: Callable[..., object], *args: object) -> SimpleNamespace:
        self.due.append(lambda: callback(*args))
        return SimpleNamespace(cancel=lambda: None)

    def fire(self) -> None:
        """The time of all timers has come. The loop logs what they raise."""
        due, self.due = self.due, []
        for call in due:
            try:
                call()
            except LookupError:
                continue


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> FakeLoop:
    fake = FakeLoop()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: fake)
    return fake


def fail(*_: Any) -> None:
    raise LookupError("no")


@pytest.mark.parametrize("part", ["_tick", "_publish_connections", "_publish_event"])
def test_events_of_the_server_go_on_after_a_fault(
    part: str, loop: FakeLoop, monkeypatch: pytest.MonkeyPatch, noted_faults: list[BaseException]
) -> None:
    options = SimpleNamespace(has_system_account=True, system_account="$SYS")
    server: Any = SimpleNamespace(
        context=SimpleNamespace(options=options, server_id="ID"),
        accounts=SimpleNamespace(
            count_also=lambda count: None, when_created=lambda serve: None, open=lambda name: None
        ),
        sessions={},
    )
    published: list[str] = []
    monkeypatch.setattr(SystemService, "_publish_event", lambda *args: published.append(args[1]))
    system = SystemService(server)
    system.start()
    loop.fire()  # the timers call what they were set to
    with monkeypatch.context() as patch:
        patch.setattr(SystemService, part, fail)
        for _ in range(3):
            loop.fire()
    loop.fire()  # some are set to what failed
    assert noted_faults
    noted_faults.clear()
    published.clear()
    loop.fire()
    assert "$SYS.SERVER.ID.STATSZ" in published
    assert len(loop.due) == 2


@pytest.mark.parametrize("part", ["_on_time", "expire"])
def test_requests_to_services_end_after_a_check_of_their_time_that_raised(
    part: str, loop: FakeLoop, monkeypatch: pytest.MonkeyPatch, noted_faults: list[BaseException]
) -> None:
    context: Any = SimpleNamespace(clock=lambda: 5)
    accounts: Any = None
    requests = ServiceRequests(context, accounts)
    checked: list[int] = []

    def expire(now: int) -> int:
        checked.append(now)
        return 0

    router: Any = SimpleNamespace(expire=expire, shortest_threshold_ns=0)
    requests.import_router = router
    with monkeypatch.context() as patch:
        patch.setattr(*((ServiceRequests, part, fail) if part == "_on_time" else (router, part, fail)))
        requests._watch()  # the first request is pending
        loop.fire()
        loop.fire()
    loop.fire()  # it may be set to what failed
    assert len(noted_faults) >= 2
    noted_faults.clear()
    loop.fire()
    assert checked == [5]
    assert loop.due == []
