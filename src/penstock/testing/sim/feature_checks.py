"""Checks of special configurations, one Feature each, which observe the stream's record as it follows the
log."""

from __future__ import annotations

from typing import TypeVar

from penstock.testing.sim.stream_checks import Held, StreamRecord

F = TypeVar("F", bound="Feature")


class Feature:
    """One rule of one stream. The default of each method does nothing."""

    def __init__(self, record: StreamRecord) -> None:
        self.record = record

    def looked(self, before: dict[int, Held], fresh: dict[int, Held], now: int) -> None:
        """Called when the record has adopted changes. before: previously live messages. fresh: messages
        stored since."""

    def end_tick(self, now: int, *, faulty: bool) -> None:
        """Called at the end of a tick: everything that arrived was stored or rejected, and got its
        response."""

    def check(self, now: int, *, faulty: bool) -> None:
        """Called for checks that are too expensive for every tick."""

    def crashed(self) -> None:
        """Called when the server dies in a tick."""

    def recovered(self, now: int, *, power: bool, damaged: bool) -> None:
        """Called after a crash, when the record has adopted the recovered messages."""


def feature(record: StreamRecord, kind: type[F]) -> F:
    """The stream's Feature of that class."""
    for one in record.features:
        if isinstance(one, kind):
            return one
    raise AssertionError(f"{record.name} has no {kind.__name__}")
