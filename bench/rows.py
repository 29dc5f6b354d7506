"""A row of the benchmark's table: its measurement and its goal."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from servers import ServerProcess

CPU_LEAST_S = 0.01  # below, what a server does besides counts as much


def itself(server: ServerProcess) -> ServerProcess:
    """The default server."""
    return server


def is_wanted(name: str, only: list[str], without: list[str]) -> bool:
    """Whether a row's name contains a text of `only` (any name, if that is empty) and none of `without`, in
    any case."""
    name = name.lower()
    return (not only or any(text.lower() in name for text in only)) and not any(
        text.lower() in name for text in without
    )


@dataclass(frozen=True)
class Scenario:
    """One row: `measure(server)` returns the figure; `goal` is the required ratio, `most` the maximum of
    penstock's own figure, `enough()` an own figure that suffices whatever the ratio is.

    `rate(server)`: of a row whose figure is a cost beside that of a simpler case, the rate itself (msg/s).
    Two checkouts are compared by it: the cost grows too when the simpler case becomes faster.

    `instead(server)` is the process to measure in place of one of the two: another configuration, or another
    product. `alone`: only penstock is measured.
    """

    name: str
    unit: str
    measure: Callable[[ServerProcess], float]
    bigger_is_better: bool = True
    goal: float | None = None
    most: float | None = None
    enough: Callable[[], float | None] | None = None
    instead: Callable[[ServerProcess], ServerProcess] = itself
    rate: Callable[[ServerProcess], float] | None = None
    alone: bool = False


@dataclass
class Row:
    scenario: Scenario
    figures: dict[str, list[float]] = field(default_factory=dict)
    cpu_s: dict[str, list[float]] = field(default_factory=dict)  # of the servers, per measurement
    failure: str = ""  # why it ended early

    @property
    def rival(self) -> str:
        """The server that penstock is compared with in this row."""
        return next((name for name in self.figures if name != "penstock"), "nats-server")

    def median(self, server: str) -> float | None:
        values = self.figures.get(server)
        return statistics.median(values) if values else None

    def ratio(self) -> float | None:
        ours, theirs = self.median("penstock"), self.median(self.rival)
        if ours is None or theirs is None:
            return None
        return ours / theirs if self.scenario.bigger_is_better else theirs / ours

    def pair_ratio(self) -> float | None:
        """The median of the ratios of each round. Load that changes from round to round affects it less than
        the ratio of the medians."""
        ours, theirs = self.figures.get("penstock", []), self.figures.get(self.rival, [])
        pairs = [
            (a, b) if self.scenario.bigger_is_better else (b, a) for a, b in zip(ours, theirs, strict=False)
        ]
        ratios = [a / b for a, b in pairs if b]
        return statistics.median(ratios) if ratios else None

    def cpu_ratio(self) -> float | None:
        """CPU time of the rival by that of penstock, medians: above 1 penstock needs less.

        None if one of the two processes was restarted while it was measured, or worked for too short a time.
        """
        ours, theirs = self.cpu_s.get("penstock"), self.cpu_s.get(self.rival)
        if not ours or not theirs or statistics.median(ours) < CPU_LEAST_S:
            return None
        return statistics.median(theirs) / statistics.median(ours)

    def missed(self) -> bool:
        """Whether the figure misses the goal."""
        ours, ratio = self.median("penstock"), self.ratio()
        goal, most = self.scenario.goal, self.scenario.most
        enough = self.scenario.enough() if self.scenario.enough is not None else None
        if most is not None and ours is not None and ours > most:
            return True
        if goal is None or ratio is None or ratio >= goal:
            return False
        return enough is None or ours is None or ours < enough

    def aim(self) -> str:
        """The goal as shown in the table."""
        scenario = self.scenario
        enough = scenario.enough() if scenario.enough is not None else None
        if scenario.goal is not None:
            return f">= {scenario.goal:g}" + (f" or {enough:,.0f}" if enough is not None else "")
        return f"ours <= {scenario.most:,g}" if scenario.most is not None else ""
