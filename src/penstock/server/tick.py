"""The end of a tick: everything that was put off while sockets were read, in the one order that is right.

    1. apply        what was published to streams gets its sequence; acks are applied
    2. write        what was applied goes to the operating system (and to the disk, with `sync: always`)
    3. acknowledge  pub acks go into out buffers: never before their record was written
    4. deliver      consumers pump messages into out buffers, after the acks of what they follow
    5. flush        each connection that has something to send writes it in one call

One tick covers everything that was read since the last one: however many publishes arrived, each stream
is written once and each connection is written to once. Whoever puts work off calls `schedule()` (DirtyLists
do by their `wake`); the event loop runs the tick once the sockets that were ready are read, or the one read
that came alone runs it itself (`TickTrigger`). Sinks that have something to send need step 5 only.

Rejected: acting at once where work arises. It would cost a system call a message, and it would spread the
order above over every place that publishes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from penstock import faults
from penstock.kernels.ticks import TickTrigger

AGAIN_S = 0.1  # until what failed outside of any stream and consumer has its next tick


class Engine(Protocol):
    """What a tick needs of an account's JetStream."""

    def apply(self, now: int) -> None: ...
    def write(self) -> None: ...
    def acknowledge(self) -> None: ...
    def deliver(self, now: int) -> None: ...
    def next_deadline(self) -> int | None: ...
    def on_time(self, now: int) -> None: ...
    def begin_again(self) -> None: ...


class Tick:
    """Runs the end of each tick, and the engines' timers.

    Args:
        loop: the event loop.
        clock: now, ns since the epoch.
        on_failure: told of what escaped an engine and is no Exception; the server stops on it. An engine
            contains exceptions itself (jetstream/containment.py); one that escapes all the same costs that
            engine the rest of its tick, and the other accounts nothing.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], int],
        on_failure: Callable[[BaseException], object],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._on_failure = on_failure
        self._engines: list[Engine] = []
        self._failed = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self.trigger = TickTrigger(loop.call_soon, self._run)
        self.dirty_sinks = self.trigger.dirty_sinks
        self.schedule = self.trigger.schedule  # there is work for the end of this tick
        self.flush = self.trigger.flush  # step 5; True when a receiver among them is congested

    def add(self, engine: Engine) -> None:
        self._engines.append(engine)
        self.schedule()

    def remove(self, engine: Engine) -> None:
        """The engine has been closed."""
        self._engines.remove(engine)

    def run_engines(self, now: int) -> None:
        """Steps 1 to 4. An engine that fails in one of them has none of those that follow: acks of what was
        not written must not leave."""
        engines = [one for one in self._engines if faults.contain(_apply, self._engine_failed, one, now)]
        engines = [one for one in engines if faults.contain(_write, self._engine_failed, one)]
        engines = [one for one in engines if faults.contain(_acknowledge, self._engine_failed, one)]
        for engine in engines:
            faults.contain(_deliver, self._engine_failed, engine, now)

    def settle(self) -> None:
        """Does at once what waits for the end of this tick."""
        if not self._failed:
            self.run_engines(self._clock())
        self.flush()

    def stop(self) -> None:
        """Does what is left; no more ticks and timers follow."""
        self.settle()
        self._engines = []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _run(self) -> None:
        faults.contain(self._end, self._end_failed)

    def _end(self) -> None:
        trigger = self.trigger
        try:
            if trigger.begin() and self._engines and not self._failed:
                self._run_engines_or_fail()
                self._arm()
        finally:
            trigger.done()
        trigger.flush()

    def _end_failed(self, error: Exception) -> None:
        """The tick itself failed, and what it left undone nobody asks for again: another one does."""
        faults.note("end of a tick", error)
        self._loop.call_later(AGAIN_S, self._again)

    def _again(self) -> None:
        self.schedule()
        self._run()  # what schedule() asks for may be what failed

    def _engine_failed(self, error: Exception, engine: Engine, *_: object) -> None:
        faults.note("JetStream of an account", error)
        faults.contain(_begin_again, self._engine_lost, engine)
        self._loop.call_later(AGAIN_S, self.schedule)

    def _engine_lost(self, error: Exception, engine: Engine) -> None:
        faults.note("JetStream of an account, in beginning again", error)

    def _run_engines_or_fail(self) -> None:
        try:
            self.run_engines(self._clock())
        except Exception:
            raise  # _end_failed
        except BaseException as error:  # acks of this tick must not leave
            self._fail(error)
            raise

    def _arm(self) -> None:
        """Sets the one timer to the earliest deadline of all engines."""
        at = 0
        for engine in self._engines:
            due = faults.contain(_next_deadline, self._engine_failed, engine)
            if due is not None and (not at or due < at):
                at = due
        if at == self._timer_ns and self._timer is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_ns = at
        if at:
            delay_s = max(0, at - self._clock()) / 1e9
            self._timer = self._loop.call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        try:
            faults.contain(self._all_on_time, self._end_failed)
        except BaseException as error:
            self._fail(error)
            raise
        self.schedule()

    def _all_on_time(self) -> None:
        now = self._clock()
        for engine in self._engines:
            faults.contain(_on_time, self._engine_failed, engine, now)

    def _fail(self, error: BaseException) -> None:
        self._failed = True
        self._on_failure(error)


def _apply(engine: Engine, now: int) -> bool:
    engine.apply(now)
    return True


def _write(engine: Engine) -> bool:
    engine.write()
    return True


def _acknowledge(engine: Engine) -> bool:
    engine.acknowledge()
    return True


def _deliver(engine: Engine, now: int) -> None:
    engine.deliver(now)


def _on_time(engine: Engine, now: int) -> None:
    engine.on_time(now)


def _next_deadline(engine: Engine) -> int | None:
    return engine.next_deadline()


def _begin_again(engine: Engine) -> None:
    engine.begin_again()
