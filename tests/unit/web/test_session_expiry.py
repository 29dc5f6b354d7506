"""The timer that ends sessions of the web page, on a loop that the test moves."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.web.session_expiry import CHECK_S, SessionExpiry
from penstock.web.session_table import SessionTable

pytestmark = pytest.mark.feature("monitoring.web")


class Timers:
    """The timers of a loop: the functions to call, and after how many seconds."""

    def __init__(self) -> None:
        self.waiting: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, delay_s: float, function: Callable[[], None]) -> Timers:
        self.waiting.append((delay_s, function))
        return self

    def cancel(self) -> None:
        self.waiting.clear()

    def fire(self) -> None:
        (_, function), *self.waiting = self.waiting
        function()


def test_it_looks_while_there_are_sessions_and_once_at_a_time() -> None:
    timers, left = Timers(), [True, False]
    expiry = SessionExpiry(timers.call_later, lambda: left.pop(0))
    expiry.watch()
    expiry.watch()
    assert [delay_s for delay_s, _ in timers.waiting] == [CHECK_S]
    timers.fire()
    assert len(timers.waiting) == 1
    timers.fire()
    assert timers.waiting == []
    expiry.watch()
    assert len(timers.waiting) == 1


def test_nothing_is_looked_at_after_the_end() -> None:
    timers = Timers()
    expiry = SessionExpiry(timers.call_later, lambda: True)
    expiry.stop()
    expiry.watch()
    expiry.stop()
    assert timers.waiting == []


def test_sessions_end_by_what_became_of_their_visitors() -> None:
    table: SessionTable[str] = SessionTable()
    for name in ("here", "gone", "away"):
        table.add(name, "csrf", name, name, 0.0)
    assert table.leave_out(lambda visitor: visitor != "here") == ["gone", "away"]
    assert len(table) == 1
    assert table.find("here", 1.0) is not None
