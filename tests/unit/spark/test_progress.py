"""Lag and rates in the progress of a query."""

from __future__ import annotations

import json

import pytest

from penstock.spark.offsets import StreamBounds, StreamPosition, decode_offset, encode_offset
from penstock.spark.progress import LagReport, source_progress

pytestmark = pytest.mark.feature("spark.stream")


def bounds(last_seq: int, created: str = "t") -> dict[str, StreamBounds]:
    return {"S": StreamBounds("S", created, 1, last_seq)}


def test_the_latest_offset_says_how_far_ahead_it_is_and_how_fast_it_moves() -> None:
    report = LagReport()
    assert report.latest(bounds(100), 10.0)["lag"] == {}
    report.taken({"S": StreamPosition(61, "t")})
    latest = report.latest(bounds(150), 12.0)
    assert (latest["lag"], latest["incoming_per_s"]) == ({"S": 90}, 25.0)
    assert decode_offset(latest) == {"S": StreamPosition(151, "t")}
    assert report.latest(bounds(5, "anew"), 13.0)["incoming_per_s"] == 0.0


def test_a_progress_is_read_with_offsets_as_objects_or_as_text() -> None:
    start = encode_offset({"S": StreamPosition(11, "t")})
    end = encode_offset({"S": StreamPosition(61, "t")})
    latest = {**encode_offset({"S": StreamPosition(151, "t")}), "lag": {"S": 90}, "incoming_per_s": 25.0}
    source = {"startOffset": start, "endOffset": end, "latestOffset": latest, "numInputRows": 45}
    other = {"startOffset": 1, "endOffset": 2, "numInputRows": 5}
    for given in (source, {k: json.dumps(v) if isinstance(v, dict) else v for k, v in source.items()}):
        (found,) = source_progress({"sources": [given, other]})
        assert (found.streams, found.rows, found.sequences, found.skipped) == (("S",), 45, 50, 5)
        assert (found.lag, found.incoming_per_s) == ({"S": 90}, 25.0)


def test_before_the_first_micro_batch_there_is_nothing() -> None:
    assert source_progress(None) == []
    end = encode_offset({"S": StreamPosition(3, "t")})
    first = {"startOffset": None, "endOffset": end, "numInputRows": 2}
    assert source_progress({"sources": [first]})[0].sequences == 2
