"""Content negotiation of /metrics, and the documented names of its metrics."""

from __future__ import annotations

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_classic
from tools.metrics_page import PAGE, page

from penstock.server.monitoring.metric_families import Durations, Families
from penstock.server.monitoring.metrics import CLASSIC, OPENMETRICS, encode, format_of

PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


@pytest.mark.parametrize("accept", [
    PROMETHEUS_2, PROMETHEUS_3,
    "application/openmetrics-text", "APPLICATION/OpenMetrics-Text ; Version=1.0.0",
    "text/plain, application/openmetrics-text", "text/*;q=0.1, application/openmetrics-text;q=0.2",
    "text/plain;q=0, */*, application/openmetrics-text;q=0.001",
])  # fmt: skip
def test_who_prefers_openmetrics_gets_it(accept: str) -> None:
    assert format_of(accept) == OPENMETRICS


@pytest.mark.parametrize("accept", [
    "", "*/*", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", "text/plain",
    "application/openmetrics-text;q=0.2, text/plain;q=0.3", "application/openmetrics-text;q=0",
    "application/openmetrics-text;version=2.0.0", "application/openmetrics-text;q=many",
    "image/png", ";;,,;q=", "application/openmetrics-text;q=0.1,*/*;q=0.2",
])  # fmt: skip
def test_all_others_get_the_classic_format(accept: str) -> None:
    assert format_of(accept) == CLASSIC


def test_names_of_clients_and_streams_survive_both_formats() -> None:
    name = 'a"b\\c\nd\x00ü🙂{}='
    families = Families()
    families.add("connection_pending_bytes", 3, "$G", "7", name)
    families.add("publish_ack_duration_seconds", Durations([(0.1, 2), (2.5, 4)], 5, 9.25), name)
    for kind, parse in ((OPENMETRICS, parse_openmetrics), (CLASSIC, parse_classic)):
        found = list(parse(encode(families, kind).decode()))
        samples = [sample for family in found for sample in family.samples]
        (pending,) = (one for one in samples if one.name == "penstock_connection_pending_bytes")
        assert pending.labels == {"account": "$G", "cid": "7", "name": name}
        times = [one for one in samples if one.name.startswith("penstock_publish_ack_duration_seconds")]
        assert {one.labels["account"] for one in times} == {name}
        values = {one.labels.get("le", one.name.rpartition("_")[2]): one.value for one in times}
        assert values == {"0.1": 2, "2.5": 4, "+Inf": 5, "count": 5, "sum": 9.25}
        families = _without_process(families)


def test_the_page_of_metrics_is_what_the_code_says() -> None:
    text = PAGE.read_text()
    assert page(text) == text, "python tools/metrics_page.py"


def _without_process(families: Families) -> Families:
    """What encode() added is added again by the next call."""
    for family in families:
        if family.name.startswith("process_"):
            family.samples.clear()
    return families
