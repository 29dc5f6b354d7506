"""Counts of requests to the API of JetStream."""

from __future__ import annotations

import re

import pytest

from penstock.cli.reports.api_requests import ApiRequests, request_and_asset

pytestmark = pytest.mark.feature("cli.server")


@pytest.mark.parametrize(
    ("subject", "request_name", "asset"),
    [
        ("$JS.API.INFO", "INFO", ""),
        ("$JS.API.STREAM.NAMES", "STREAM.NAMES", ""),
        ("$JS.API.STREAM.INFO.ORDERS", "STREAM.INFO", "ORDERS"),
        ("$JS.API.STREAM.MSG.GET.ORDERS", "STREAM.MSG.GET", "ORDERS"),
        ("$JS.API.CONSUMER.INFO.ORDERS.C", "CONSUMER.INFO", "ORDERS > C"),
        ("$JS.API.CONSUMER.CREATE.ORDERS.C.orders.new", "CONSUMER.CREATE", "ORDERS > C"),
        ("$JS.API.CONSUMER.DURABLE.CREATE.ORDERS.C", "CONSUMER.DURABLE.CREATE", "ORDERS > C"),
        ("$JS.API.CONSUMER.MSG.NEXT.ORDERS.C", "CONSUMER.MSG.NEXT", "ORDERS > C"),
        ("$JS.API.CONSUMER.LIST.ORDERS", "CONSUMER.LIST", "ORDERS"),
        ("$JS.API.DIRECT.GET.KV_B.$KV.B.k", "DIRECT.GET", "KV_B"),
        ("$JS.API.META.LEADER.STEPDOWN", "META.LEADER.STEPDOWN", ""),
        ("$JS.API.", "", ""),
        ("orders.new", "", ""),
    ],
)
def test_a_request_is_named_by_its_subject(subject: str, request_name: str, asset: str) -> None:
    assert request_and_asset(subject) == (request_name, asset)


def test_rates_are_about_the_last_seconds_and_the_most_frequent_come_first() -> None:
    now = 0.0
    requests = ApiRequests(re.compile("^AP"), rate_s=10, consumers=False, clock=lambda: now)
    for subject in ("STREAM.INFO.S", "CONSUMER.INFO.S.C", "CONSUMER.INFO.S.D"):
        requests.count("APP", f"$JS.API.{subject}")
    requests.count("OTHER", "$JS.API.STREAM.NAMES")
    assert [(row["request"], row["asset"], row["count"], row["recent"]) for row in requests.rows()] == [
        ("CONSUMER.INFO", "S", 2, 2), ("STREAM.INFO", "S", 1, 1),
    ]  # fmt: skip
    now = 11.0
    requests.count("APP", "$JS.API.STREAM.INFO.S")
    assert [(row["request"], row["count"], row["recent"]) for row in requests.rows(reverse=True)] == [
        ("CONSUMER.INFO", 2, 0), ("STREAM.INFO", 2, 1),
    ]  # fmt: skip
