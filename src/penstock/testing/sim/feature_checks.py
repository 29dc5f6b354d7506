"""What streams with special configurations must keep besides what all streams must: one Feature each, which
looks on while the stream's record follows the log."""

from __future__ import annotations

from typing import TypeVar

from penstock.testing.sim.stream_checks import Held, StreamRecord

F = TypeVar("F", bound="Feature")


class Feature:
    """One rule of one stream. Every method may be left as it is: it does nothing."""

    def __init__(self, record: StreamRecord) -> None:
        self.record = record

    def looked(self, before: dict[int, Held], fresh: dict[int, Held], now: int) -> None:
        """The record took in what changed. before: what was live until now. fresh: what was stored since."""

    def end_tick(self, now: int, *, faulty: bool) -> None:
        """The tick is over: everything that arrived was stored or refused, and answered."""

    def check(self, now: int, *, faulty: bool) -> None:
        """Time for what is too dear for every tick."""

    def crashed(self) -> None:
        """The server died in this tick."""

    def recovered(self, now: int, *, power: bool, damaged: bool) -> None:
        """After a crash: the record took over what was found."""


def feature(record: StreamRecord, kind: type[F]) -> F:
    """The one of that kind."""
    for one in record.features:
        if isinstance(one, kind):
            return one
    raise AssertionError(f"{record.name} has no {kind.__name__}")
