"""Everything that streams ever held, and how much of it lasts: what copies of it are held against."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.testing.sim.feature_checks import Feature, feature
from penstock.testing.sim.stream_checks import Held, StreamRecord

if TYPE_CHECKING:
    from penstock.testing.sim.simulator import Simulator


class History(Feature):
    """Of one stream, from its creation to its deletion. ident: what tells it from others of its name."""

    def __init__(self, record: StreamRecord) -> None:
        super().__init__(record)
        self.held: dict[int, Held] = {}
        self.ident = ""
        self.written = 0  # sequences up to there last, by what the server promises

    def looked(self, before: dict[int, Held], fresh: dict[int, Held], now: int) -> None:
        self.held.update(fresh)

    def recovered(self, now: int, *, power: bool, damaged: bool) -> None:
        self.held.update(self.record.live)
        self.written = self.record.last_seq


class Origins:
    """Of all streams that there ever were."""

    def __init__(self) -> None:
        self._known: dict[str, list[History]] = {}

    def follow(self, world: Simulator) -> None:
        """Between two ticks: what was written lasts, and new streams are taken note of."""
        for name, stream in world.engine.streams.items():
            record = world.streams.get(name)
            if record is None:
                continue
            history = feature(record, History)
            if history.ident != stream.identity:
                history.ident = stream.identity  # when a crash made another stream of it, too
                history.held = dict(record.live)
            if not stream.syncing or not world.always:
                history.written = record.kept.last_seq
            known = self._known.setdefault(name, [])
            if history not in known:
                self._take_over(known, history)
                known.append(history)

    def _take_over(self, known: list[History], history: History) -> None:
        """A stream whose deletion failed is back with a restart: it is the one that was known before."""
        for past in [one for one in known if one.ident == history.ident]:
            history.held = past.held | history.held
            known.remove(past)

    def of(self, name: str) -> list[History]:
        """The streams of that name, the present one last."""
        return self._known.get(name, [])

    def find(self, name: str, ident: str) -> History | None:
        """One of them."""
        return next((one for one in self.of(name) if one.ident == ident), None)

    def written(self, name: str, ident: str) -> int | None:
        """The last sequence of a stream that lasts; None when it is not known."""
        history = self.find(name, ident)
        return history.written if history is not None else None
