"""All messages that streams ever stored, and which of them are durable: the reference for copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.testing.sim.feature_checks import Feature, feature
from penstock.testing.sim.stream_checks import Held, StreamRecord

if TYPE_CHECKING:
    from penstock.testing.sim.simulator import Simulator


class History(Feature):
    """One stream from creation to deletion. ident: its incarnation."""

    def __init__(self, record: StreamRecord) -> None:
        super().__init__(record)
        self.held: dict[int, Held] = {}
        self.ident = ""
        self.written = 0  # sequences up to here are durable, as the server promises

    def looked(self, before: dict[int, Held], fresh: dict[int, Held], now: int) -> None:
        self.held.update(fresh)

    def recovered(self, now: int, *, power: bool, damaged: bool) -> None:
        self.held.update(self.record.live)
        self.written = self.record.last_seq


class Origins:
    """All streams of a run."""

    def __init__(self) -> None:
        self._known: dict[str, list[History]] = {}

    def follow(self, world: Simulator) -> None:
        """Records, between two ticks, that written messages are durable, and finds new streams."""
        for name, stream in world.engine.streams.items():
            record = world.streams.get(name)
            if record is None:
                continue
            history = feature(record, History)
            if history.ident != stream.identity:
                history.ident = stream.identity  # also when a crash made it another incarnation
                history.held = dict(record.live)
            if not stream.syncing or not world.always:
                history.written = record.kept.last_seq
            known = self._known.setdefault(name, [])
            if history not in known:
                self._take_over(known, history)
                known.append(history)

    def _take_over(self, known: list[History], history: History) -> None:
        """Identifies a stream that is back after a restart because its deletion failed."""
        for past in [one for one in known if one.ident == history.ident]:
            history.held = past.held | history.held
            known.remove(past)

    def of(self, name: str) -> list[History]:
        """The incarnations of a stream name, the present one last."""
        return self._known.get(name, [])

    def find(self, name: str, ident: str) -> History | None:
        """One incarnation, or None."""
        return next((one for one in self.of(name) if one.ident == ident), None)

    def written(self, name: str, ident: str) -> int | None:
        """The last durable sequence of a stream, or None when unknown."""
        history = self.find(name, ident)
        return history.written if history is not None else None
