"""The end of a tick: everything that was put off while sockets were read, in the one order that is right.

    1. apply        what was published to streams gets its sequence; acks are applied
    2. write        what was applied goes to the operating system (and to the disk, with `sync: always`)
    3. acknowledge  pub acks go into out buffers: never before their record was written
    4. deliver      consumers pump messages into out buffers, after the acks of what they follow
    5. flush        each connection that has something to send writes it in one call

One tick covers everything that was read since the last one: however many publishes arrived, each stream
is written once and each connection is written to once. Code that puts work off calls `schedule()` (DirtyLists
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
from penstock.kernels.wire.ticks import TickTrigger

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
            contains exceptions itself (jetstream/engine_tick.py); one that escapes all the same costs that
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
        engines = list(self._engines)
        for engine in engines:
            try:
                engine.apply(now)
            except Exception as error:
                engines = self._without(engine, engines, error)
        for engine in engines:
            try:
                engine.write()
            except Exception as error:
                engines = self._without(engine, engines, error)
        for engine in engines:
            try:
                engine.acknowledge()
            except Exception as error:
                engines = self._without(engine, engines, error)
        for engine in engines:
            try:
                engine.deliver(now)
            except Exception as error:
                self._engine_failed(error, engine)

    def _without(self, failed: Engine, engines: list[Engine], error: Exception) -> list[Engine]:
        """The engines that have the next step, when this one of them failed."""
        self._engine_failed(error, failed)
        return [engine for engine in engines if engine is not failed]

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
        trigger = self.trigger
        try:
            try:
                if trigger.begin() and self._engines and not self._failed:
                    self._run_engines_or_fail()
                    self._arm()
            finally:
                trigger.done()
            trigger.flush()
        except Exception as error:
            self._end_failed(error)

    def _end_failed(self, error: Exception) -> None:
        """The tick itself failed. Nothing schedules what it left undone, so another tick follows."""
        faults.note("end of a tick", error)
        self._loop.call_later(AGAIN_S, self._again)

    def _again(self) -> None:
        self.schedule()
        self._run()  # what schedule() asks for may be what failed

    def _engine_failed(self, error: Exception, engine: Engine) -> None:
        faults.note("JetStream of an account", error)
        try:
            engine.begin_again()
        except Exception as lost:
            faults.note("JetStream of an account, in beginning again", lost)
        self._loop.call_later(AGAIN_S, self.schedule)

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
            try:
                due = engine.next_deadline()
            except Exception as error:
                self._engine_failed(error, engine)
                continue
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
            try:
                self._all_on_time()
            except Exception as error:
                self._end_failed(error)
        except BaseException as error:
            self._fail(error)
            raise
        self.schedule()

    def _all_on_time(self) -> None:
        now = self._clock()
        for engine in self._engines:
            try:
                engine.on_time(now)
            except Exception as error:
                self._engine_failed(error, engine)

    def _fail(self, error: BaseException) -> None:
        self._failed = True
        self._on_failure(error)
