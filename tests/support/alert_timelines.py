"""A Prometheus in simulated time: scrapes a real server, and evaluates alert rules over the samples."""

from __future__ import annotations

import urllib.error
from collections.abc import Callable
from typing import Any

from penstock.errors import ServerError
from penstock.testing.embedded import EmbeddedServer
from tests.support.metric_scrapes import scrape_samples
from tests.support.promql_evaluation import SampleStore, Vector, evaluate

STEP_S = 60.0
TARGET = {"job": "penstock", "instance": "127.0.0.1:8222"}


class AlertTimeline:
    """Scrapes `server()` once a minute of simulated time, as the job `penstock`."""

    def __init__(self, server: Callable[[], EmbeddedServer]) -> None:
        self._server = server
        self.store = SampleStore()
        self.now_s = 0.0

    def scrape(self) -> None:
        """Scrapes; `up` says whether there was an answer."""
        self.now_s += STEP_S
        up = 1.0
        try:
            for sample in scrape_samples(self._server()):
                self.store.add(self.now_s, sample.name, sample.labels | TARGET, sample.value)
        except (urllib.error.URLError, ServerError, AssertionError):
            up = 0.0
        self.store.add(self.now_s, "up", TARGET, up)

    def active(self, expression: Any) -> Vector:
        """The series for which the expression of a rule holds now."""
        found = evaluate(self.store, expression, self.now_s)
        assert isinstance(found, dict)
        return found

    def fires(self, expression: Any, for_s: float, act: Callable[[int], object]) -> bool:
        """Whether the rule comes to fire: its expression holds for `for_s` without a gap. `act(n)` precedes
        the scrape of minute n, from 0 on."""
        since: float | None = None
        for minute in range(int(for_s / STEP_S) + 6):
            act(minute)
            self.scrape()
            if not self.active(expression):
                since = None
                continue
            since = self.now_s if since is None else since
            if self.now_s - since >= for_s:
                return True
        return False
