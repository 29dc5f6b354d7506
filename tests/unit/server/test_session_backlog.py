"""Slow receivers: the write deadline, and publishers that wait for them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from penstock.net.backlog import EAGER_BYTES, STALL_BYTES_MAX, BacklogWatch, Bounds

pytestmark = pytest.mark.feature("core.slow-consumers", "core.write-deadline")


class FakeTimer:
    def __init__(self, loop: FakeLoop, at_s: float, call: Any) -> None:
        self.loop, self.at_s, self.call = loop, at_s, call

    def cancel(self) -> None:
        if self in self.loop.timers:
            self.loop.timers.remove(self)


class FakeLoop:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.timers: list[FakeTimer] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, callback: Any, *arguments: Any) -> FakeTimer:
        timer = FakeTimer(self, self.now_s + delay_s, lambda: callback(*arguments))
        self.timers.append(timer)
        return timer

    def call_soon(self, callback: Any) -> None:
        raise AssertionError("nothing waits in the budget's queue here")

    def pass_s(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while due := [timer for timer in self.timers if timer.at_s <= end_s + 1e-9]:
            timer = min(due, key=lambda timer: timer.at_s)
            self.timers.remove(timer)
            self.now_s = timer.at_s
            timer.call()
        self.now_s = end_s


class Receiver:
    """Takes as much of what waits as the test says."""

    def __init__(self, pending: int = 1 << 20) -> None:
        self.taken = 0
        self.pending = pending
        self.closed = False
        self.slow = 0

    def take(self, size: int) -> None:
        self.taken += size
        self.pending -= size

    def bytes_taken(self) -> int:
        return self.taken

    def pending_bytes(self) -> int:
        return self.pending

    def close_slow(self) -> None:
        self.closed = True

    def count_slow(self) -> None:
        self.slow += 1


@pytest.fixture
def loop() -> FakeLoop:
    return FakeLoop()


def watching(loop: FakeLoop, **options: Any) -> BacklogWatch:
    settings: dict[str, Any] = {"max_pending": 64 << 20, "write_deadline_s": 10.0}
    fake: Any = loop
    return BacklogWatch(fake, Bounds(**(settings | options)), flush_all=lambda: False)


def test_a_receiver_that_takes_nothing_for_the_write_deadline_is_closed(loop: FakeLoop) -> None:
    watch, receiver = watching(loop), Receiver()
    watch.begin(receiver)
    loop.pass_s(9.9)
    assert not receiver.closed
    loop.pass_s(1.1)
    assert receiver.closed


def test_a_receiver_that_takes_too_little_by_the_write_deadline_is_closed(loop: FakeLoop) -> None:
    watch, receiver = watching(loop), Receiver(pending=1000)
    watch.begin(receiver)
    loop.pass_s(5)
    receiver.take(999)
    receiver.pending += 5000
    loop.pass_s(4.9)
    assert not receiver.closed
    loop.pass_s(1.1)
    assert receiver.closed


def test_what_comes_after_the_deadline_began_has_one_of_its_own(loop: FakeLoop) -> None:
    watch, receiver = watching(loop), Receiver(pending=1000)
    watch.begin(receiver)
    for _ in range(10):
        loop.pass_s(8)
        receiver.pending += 5000
        receiver.take(receiver.pending - 5000)
    assert not receiver.closed
    loop.pass_s(12)
    assert receiver.closed


def test_with_retry_a_receiver_that_takes_something_is_given_time_again(loop: FakeLoop) -> None:
    watch, receiver = watching(loop, retry=True), Receiver()
    watch.begin(receiver)
    for _ in range(5):
        receiver.take(1)
        loop.pass_s(10)
    assert (receiver.closed, receiver.slow) == (False, 5)
    loop.pass_s(12)
    assert receiver.closed


def test_a_receiver_that_has_drained_is_left_alone(loop: FakeLoop) -> None:
    watch, receiver = watching(loop), Receiver()
    watch.begin(receiver)
    watch.end(receiver)
    loop.pass_s(60)
    assert not receiver.closed
    assert loop.timers == []


def test_a_stalled_publisher_goes_on_when_receivers_have_drained(loop: FakeLoop) -> None:
    watch, receiver, resumed = watching(loop), Receiver(), []
    watch.begin(receiver)
    watch.stall(lambda: resumed.append(loop.now_s), 1000)
    loop.pass_s(0.004)
    watch.end(receiver)
    assert resumed == [0.004]
    loop.pass_s(1)
    assert resumed == [0.004]


@pytest.mark.parametrize(("read_bytes", "limit_s"), [(1, 0.010), (64 * 1024, 0.010), (256 * 1024, 0.040)])
def test_a_stall_lasts_ten_milliseconds_per_64_kib_at_most(
    loop: FakeLoop, read_bytes: int, limit_s: float
) -> None:
    watch, resumed = watching(loop), []
    watch.stall(lambda: resumed.append(True), read_bytes)
    loop.pass_s(limit_s - 0.001)
    assert not resumed
    loop.pass_s(0.002)
    assert resumed == [True]
    assert watch.stalls == 1


def test_a_publisher_that_has_gone_is_not_resumed(loop: FakeLoop) -> None:
    watch, resumed = watching(loop), []

    def resume() -> None:
        resumed.append(True)

    watch.stall(resume, 1)
    watch.forget(resume)
    loop.pass_s(1)
    assert not resumed


def test_thresholds_follow_max_pending(loop: FakeLoop) -> None:
    usual = watching(loop)
    assert (usual.stall_bytes, usual.eager_bytes) == (STALL_BYTES_MAX, EAGER_BYTES)
    small = watching(loop, max_pending=1 << 20)
    assert (small.stall_bytes, small.eager_bytes) == (1 << 19, 1 << 18)
    assert watching(loop, stall=False).stall_bytes == 64 << 20


def test_closing_leaves_no_timer(loop: FakeLoop) -> None:
    watch = watching(loop)
    watch.begin(Receiver())
    watch.stall(lambda: None, 1)
    watch.close()
    assert loop.timers == []


class Faulty:
    """Raises in the place of a function or method."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.is_faulty, self.raised = True, 0
        whole = getattr(owner, name)

        def replaced(*args: Any) -> Any:
            if self.is_faulty:
                self.raised += 1
                raise LookupError("no")
            return whole(*args)

        patch.setattr(owner, name, replaced)


@pytest.mark.parametrize("part", ["_on_check", "check_deadlines", "_check_deadline"])
def test_slow_receivers_are_closed_after_a_check_that_raised(
    loop: FakeLoop, part: str, monkeypatch: pytest.MonkeyPatch, noted_faults: list[BaseException]
) -> None:
    faulty = Faulty(monkeypatch, BacklogWatch, part)
    watch, receiver = watching(loop), Receiver()
    watch.begin(receiver)
    loop.pass_s(20)
    assert faulty.raised == len(noted_faults) == 20
    noted_faults.clear()
    faulty.is_faulty = False
    loop.pass_s(1.1)
    assert receiver.closed and loop.timers == []


def test_a_receiver_whose_closing_raises_keeps_no_other_one_open(
    loop: FakeLoop, monkeypatch: pytest.MonkeyPatch, noted_faults: list[BaseException]
) -> None:
    watch, failing, other = watching(loop), Receiver(), Receiver()
    faulty = Faulty(monkeypatch, failing, "close_slow")
    watch.begin(failing)
    watch.begin(other)
    loop.pass_s(11)
    assert other.closed and not failing.closed and noted_faults
    noted_faults.clear()
    faulty.is_faulty = False
    loop.pass_s(1.1)
    assert failing.closed


@pytest.mark.parametrize("drained", [False, True])
def test_a_publisher_goes_on_after_the_end_of_its_pause_raised(
    loop: FakeLoop, drained: bool, monkeypatch: pytest.MonkeyPatch, noted_faults: list[BaseException]
) -> None:
    faulty = Faulty(monkeypatch, BacklogWatch, "_stall_over")
    watch, receiver, resumed = watching(loop), Receiver(), []
    watch.begin(receiver)
    for name in ("one", "other"):
        watch.stall(partial(resumed.append, name), 1)
    if drained:
        watch.end(receiver)
    loop.pass_s(0.02)
    assert len(noted_faults) == 2 and not resumed
    noted_faults.clear()
    faulty.is_faulty = False
    loop.pass_s(1.1)
    assert resumed == ["one", "other"]
