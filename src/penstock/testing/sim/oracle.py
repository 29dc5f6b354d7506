"""All messages that streams ever stored, and which of them are durable: the reference for copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.testing.sim.feature_checks import Feature, feature
from penstock.testing.sim.stream_checks import Held, StreamRecord

if TYPE_CHECKING:
    from penstock.jetstream.stream.stream_replica import StreamReplica
    from penstock.testing.sim.simulator import Simulator


class Incarnation(Feature):
    """A stream from its creation to its deletion. ident: identifies the incarnation."""

    def __init__(self, record: StreamRecord) -> None:
        super().__init__(record)
        self.held: dict[int, Held] = {}
        self.ident = ""
        self.stream: StreamReplica | None = None  # of the process that runs
        self.written = 0  # sequences up to here are durable, as the server promises

    def looked(self, before: dict[int, Held], fresh: dict[int, Held], now: int) -> None:
        self.held.update(fresh)

    def recovered(self, now: int, *, power: bool, damaged: bool) -> None:
        self.held.update(self.record.live)
        self.written = self.record.last_seq


class Origins:
    """All streams of a run."""

    def __init__(self) -> None:
        self._known: dict[str, list[Incarnation]] = {}

    def follow(self, sim: Simulator) -> None:
        """Records, between two ticks, that written messages are durable, and finds new streams."""
        for name, stream in sim.engine.streams.items():
            record = sim.streams.get(name)
            if record is None:
                continue
            incarnation = feature(record, Incarnation)
            if incarnation.stream is not stream:
                incarnation.stream = stream
                if incarnation.ident != stream.identity:
                    incarnation.ident = stream.identity  # a crash may have made it another one
                    incarnation.held = dict(record.live)
            if not stream.durability.is_syncing or not sim.always:
                incarnation.written = record.kept.last_seq
            known = self._known.setdefault(name, [])
            if incarnation not in known:
                self._take_over(known, incarnation)
                known.append(incarnation)

    def _take_over(self, known: list[Incarnation], incarnation: Incarnation) -> None:
        """Identifies a stream that is back after a restart because its deletion failed."""
        for past in [one for one in known if one.ident == incarnation.ident]:
            incarnation.held = past.held | incarnation.held
            known.remove(past)

    def of(self, name: str) -> list[Incarnation]:
        """The incarnations of a stream name, the present one last."""
        return self._known.get(name, [])

    def find(self, name: str, ident: str) -> Incarnation | None:
        """One incarnation, or None."""
        return next((one for one in self.of(name) if one.ident == ident), None)

    def written(self, name: str, ident: str) -> int | None:
        """The last durable sequence of a stream, or None when unknown."""
        incarnation = self.find(name, ident)
        return incarnation.written if incarnation is not None else None
