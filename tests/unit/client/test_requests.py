"""The table of pending requests on a clock that the test moves: deadlines, and what is written when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.client.message import RawMessage
from penstock.client.options import Options
from penstock.client.requests import RequestTable
from penstock.errors import DisconnectedError, RequestTimeoutError

pytestmark = pytest.mark.feature("client.connection")


class Timer:
    """A timer of the clock below."""

    def __init__(self, when: float, call: Callable[[], None]) -> None:
        self.when = when
        self.call = call
        self.is_set = True

    def cancel(self) -> None:
        self.is_set = False


class Session:
    """The parts of a session that requests use, on a clock that stands until `advance`."""

    def __init__(self) -> None:
        self.options = Options()
        self.is_connected = True
        self.now = 100.0
        self.timers: list[Timer] = []
        self.timers_made = 0
        self.at_once: list[bytes] = []
        self.later: list[bytes] = []
        self.replies: list[bytes] = []
        self.receive: Callable[[RawMessage], None] = lambda _: None
        create_future = asyncio.get_running_loop().create_future
        self.loop = SimpleNamespace(create_future=create_future, time=lambda: self.now, call_at=self.call_at)

    def call_at(self, when: float, call: Callable[[], None]) -> Timer:
        self.timers_made += 1
        self.timers.append(Timer(when, call))
        return self.timers[-1]

    def subscribe(self, subject: str, receive: Callable[[RawMessage], None]) -> object:
        self.receive = receive
        return object()

    def send_now(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        self.at_once.append(subject)
        self.replies.append(reply)

    def send(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        self.later.append(subject)
        self.replies.append(reply)

    def answer(self, number: int) -> None:
        """Answer the request that was sent as this one, from 0."""
        self.receive((1, self.replies[number], None, None, b"answer"))

    def set_timers(self) -> list[float]:
        return [timer.when for timer in self.timers if timer.is_set]

    async def advance(self, to: float) -> None:
        """Let time pass, and the timers run that are due."""
        self.now = to
        for timer in list(self.timers):
            if timer.is_set and timer.when <= to:
                timer.is_set = False
                timer.call()
        await asyncio.sleep(0)
        await asyncio.sleep(0)


@pytest.fixture
async def session() -> Session:
    return Session()


@pytest.fixture
def ask(session: Session) -> Callable[[str, float], Any]:
    table = RequestTable(session)  # type: ignore[arg-type]

    async def asked(subject: str, timeout: float) -> asyncio.Task[RawMessage]:
        task = asyncio.ensure_future(table.request(subject.encode(), b"", b"", timeout))
        await asyncio.sleep(0)
        return task

    asked.table = table  # type: ignore[attr-defined]
    return asked


async def test_each_request_fails_at_its_own_deadline(session: Session, ask: Any) -> None:
    tasks = {timeout: await ask(f"in.{timeout}", timeout) for timeout in (5, 1, 3)}
    failed: list[float] = []
    for after in (0.9, 1, 2.9, 3, 4.9, 5):
        await session.advance(100 + after)
        done = [timeout for timeout, task in tasks.items() if task.done()]
        failed += [timeout for timeout in done if timeout not in failed]
        assert failed == [timeout for timeout in (1, 3, 5) if timeout <= after]
        assert len(session.set_timers()) <= 1
    with pytest.raises(RequestTimeoutError, match=r"'in\.3' within 3 s"):
        await tasks[3]
    for task in (tasks[1], tasks[5]):
        assert isinstance(task.exception(), RequestTimeoutError)
    assert not session.set_timers()


async def test_a_timer_that_runs_a_little_early_fails_what_it_was_set_for(session: Session, ask: Any) -> None:
    """Event loops run a timer up to their clock's resolution too early."""
    task = await ask("a", 1)
    [timer] = session.timers
    session.now = timer.when - 1e-9
    timer.is_set = False
    timer.call()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert isinstance(task.exception(), RequestTimeoutError)
    assert not session.set_timers()


async def test_requests_one_after_the_other_share_a_timer(session: Session, ask: Any) -> None:
    for number in range(100):
        task = await ask("a", 5)
        session.answer(number)
        assert (await task)[4] == b"answer"
        session.now += 1 / 64
    assert session.timers_made == 1
    late = await ask("a", 5)  # sent at 101.5625
    await session.advance(106.5)
    assert not late.done()
    await session.advance(106.5625)
    assert isinstance(late.exception(), RequestTimeoutError)


async def test_a_request_alone_is_written_at_once_and_the_others_together(session: Session, ask: Any) -> None:
    first, second, third = await ask("a", 5), await ask("b", 5), await ask("c", 5)
    assert (session.at_once, session.later) == ([b"a"], [b"b", b"c"])
    for number in range(3):
        session.answer(number)
    await asyncio.gather(first, second, third)
    fourth = await ask("d", 5)
    assert (session.at_once, session.later) == ([b"a", b"d"], [b"b", b"c"])
    session.answer(3)
    await fourth


async def test_a_lost_connection_fails_all_and_leaves_no_timer(session: Session, ask: Any) -> None:
    tasks = [await ask("a", 5), await ask("b", 2)]
    ask.table.fail(DisconnectedError)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [str(task.exception()) for task in tasks] == ["a", "b"]
    assert not session.set_timers()
    again = await ask("c", 2)
    assert session.set_timers() == [102.0]
    await session.advance(102)
    assert isinstance(again.exception(), RequestTimeoutError)
