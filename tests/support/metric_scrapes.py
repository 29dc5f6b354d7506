"""The page /metrics as samples, read by the parsers of prometheus-client."""

from __future__ import annotations

import urllib.request
from typing import NamedTuple

from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from penstock.testing.embedded import EmbeddedServer

OPENMETRICS = "application/openmetrics-text;version=1.0.0"
CLASSIC = "text/plain;version=0.0.4"


class MetricSample(NamedTuple):
    """One line of the page."""

    name: str
    labels: dict[str, str]
    value: float


def metrics_text(running: EmbeddedServer, accept: str = OPENMETRICS) -> tuple[str, str]:
    """The content type and the text. accept: the Accept header; "" = none."""
    monitor = running.server.monitor
    assert monitor is not None
    request = urllib.request.Request(f"{monitor.url}/metrics", headers={"Accept": accept} if accept else {})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def scrape_samples(running: EmbeddedServer, accept: str = OPENMETRICS) -> list[MetricSample]:
    """All samples of the page."""
    kind, text = metrics_text(running, accept)
    is_open = kind.startswith("application/openmetrics-text")
    parse = openmetrics.text_string_to_metric_families if is_open else text_string_to_metric_families
    return [
        MetricSample(sample.name, dict(sample.labels), sample.value)
        for family in parse(text)
        for sample in family.samples
    ]
