"""Sends the server's warnings to the event log only while the simulation runs it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from penstock.testing.sim import Violation

if TYPE_CHECKING:
    from penstock.testing.sim.simulator import Simulator


class LogTap(logging.Handler):
    """The tap of one simulator. A run enters it once, which makes the entries for each call cheap. Without
    flipped bits, the server must not leave out anything it finds."""

    def __init__(self, sim: Simulator) -> None:
        super().__init__(logging.WARNING)
        self._sim = sim
        self._loggers = [logging.getLogger("penstock.store"), logging.getLogger("penstock.jetstream")]
        self._depth = 0
        self._before: list[tuple[bool, list[logging.Handler]]] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        self._sim.say(f"  server: {text}")
        sim = self._sim
        if "is left out" in text and not (sim.flipped or sim.damaged):
            raise Violation("recovers", text)

    def __enter__(self) -> None:
        self._depth += 1
        if self._depth == 1:
            self._before = [(one.propagate, one.handlers[:]) for one in self._loggers]
            for one in self._loggers:
                one.propagate, one.handlers = False, [self]

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            for one, (propagate, handlers) in zip(self._loggers, self._before, strict=True):
                one.propagate, one.handlers = propagate, handlers
