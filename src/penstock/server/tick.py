"""The end of a tick: runs all deferred work in a fixed order.

    1. apply        streams store the publishes of the tick; consumers apply acks
    2. write        new records go to the operating system; with `sync: always` a sync starts in a thread
    3. acknowledge  pub acks go into out buffers, of streams whose records are durable. With `sync: always`,
                    those of a stream whose sync is in flight follow when it ends (`EngineTick.committed`)
    4. deliver      consumers deliver messages into out buffers, after the acks of the same messages
    5. flush        each connection with output writes once

One tick covers all input since the last one: however many publishes arrived, each stream writes once and
each connection writes once, or earlier when much output waits. Code that defers work calls `schedule()`
(dirty lists do, through `wake`). The event loop runs the tick after it has read all ready sockets. A read
that comes alone runs the tick itself (`TickTrigger`). Sinks with output need step 5 only.

Invariant: after an Exception anywhere, a tick follows and the timer is set again. The loop and the reads
therefore call `_run`, `_on_timer` and `_again` through `faults.contain`. Each of them clears the state which
shows that it is scheduled (`TickTrigger`, `_timer`); one that raises at its entry would leave it set.

Rejected: acting immediately. It would cost a system call per message, and every place that publishes would
    have to keep the order above.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

from penstock import faults
from penstock.kernels.wire.ticks import TickTrigger

AGAIN_S = 0.1  # delay of the next tick after a failure outside of streams and consumers


class Engine(Protocol):
    """What a tick needs from an account's JetStream engine."""

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
        clock: returns ns since 1970.
        on_failure: called with a BaseException that is no Exception; the server then stops. Engines contain
            exceptions (jetstream/engine_tick.py). An exception that still escapes costs that engine the rest
            of its tick; other accounts are unaffected.
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
        self.trigger = TickTrigger(loop.call_soon, partial(faults.contain, self._run, self._end_failed))
        self.dirty_sinks = self.trigger.dirty_sinks
        self.schedule = self.trigger.schedule  # requests an end of tick
        self.flush = self.trigger.flush  # step 5 only; True when a receiver is congested

    def add(self, engine: Engine) -> None:
        self._engines.append(engine)
        self.schedule()

    def remove(self, engine: Engine) -> None:
        """Removes a closed engine."""
        self._engines.remove(engine)

    def run_engines(self, now: int) -> None:
        """Runs steps 1 to 4. An engine that fails in a step skips the following ones: acks for unwritten
        records must not leave."""
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
        """The engines that continue with the next step after `failed` raised."""
        self._engine_failed(error, failed)
        return [engine for engine in engines if engine is not failed]

    def run_now(self) -> None:
        """Runs the end of this tick now if work is pending."""
        if not self._failed:
            self.run_engines(self._clock())
        self.flush()

    def stop(self) -> None:
        """Runs pending work; no ticks or timers follow."""
        self.run_now()
        self._engines = []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _run(self) -> None:
        trigger = self.trigger
        try:
            if trigger.begin() and self._engines and not self._failed:
                self._run_engines_or_fail()
                self._arm()
        finally:
            trigger.done()
        trigger.flush()

    def _end_failed(self, error: Exception) -> None:
        """Handles a failure of the tick itself. Nothing else would schedule the remaining work, so retry
        later."""
        faults.note("end of a tick", error)
        self._loop.call_later(AGAIN_S, faults.contain, self._again, self._end_failed)

    def _again(self) -> None:
        self.schedule()
        self._run()  # not schedule(), which may be what failed

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
        except BaseException as error:  # the acks of this tick must not leave
            self._fail(error)
            raise

    def _arm(self) -> None:
        """Sets the timer to the earliest deadline of all engines."""
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
            self._timer = self._loop.call_later(delay_s, faults.contain, self._on_timer, self._timer_failed)

    def _on_timer(self) -> None:
        self._timer = None
        try:
            self._all_on_time()
        except Exception:
            raise  # _timer_failed
        except BaseException as error:
            self._fail(error)
            raise
        self.schedule()

    def _timer_failed(self, error: Exception) -> None:
        self._timer = None
        self._end_failed(error)

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
