"""The flights example on a small table of its own: messages, the Spark job, the check, the chart."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest

from penstock import testing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLE = Path(__file__).parents[2] / "examples" / "flights"
ROWS = 2_000


@pytest.fixture(scope="module", autouse=True)
def example_on_path() -> Iterator[None]:
    sys.path.insert(0, str(EXAMPLE))
    yield
    sys.path.remove(str(EXAMPLE))


@pytest.fixture(scope="module")
def flights() -> pd.DataFrame:
    """Made-up flights in the package's columns: floats with NaN, as pandas reads them there."""
    chance = np.random.default_rng(2013)
    delay = np.where(chance.random(ROWS) < 0.05, np.nan, np.round(chance.normal(10, 30, ROWS)))
    return pd.DataFrame(
        {
            "year": 2013,
            "month": chance.integers(1, 13, ROWS),
            "day": 1,
            "dep_time": np.where(np.isnan(delay), np.nan, 517.0),
            "sched_dep_time": 515,
            "dep_delay": delay,
            "arr_time": np.nan,
            "sched_arr_time": 819,
            "arr_delay": np.nan,
            "carrier": chance.choice(["UA", "B6", "9E"], ROWS),
            "flight": chance.integers(1, 9999, ROWS),
            "tailnum": np.where(chance.random(ROWS) < 0.1, None, "N14228"),
            "origin": chance.choice(["EWR", "JFK", "LGA"], ROWS),
            "dest": "IAH",
            "air_time": np.nan,
            "distance": 1400,
            "hour": 5,
            "minute": 15,
            "time_hour": "2013-01-01T10:00:00Z",
        }
    )


def test_a_flight_is_a_document_with_whole_numbers_and_nulls(flights: pd.DataFrame) -> None:
    import json

    from flights_data import messages

    made = list(messages(flights))
    assert len(made) == ROWS
    subject, document = made[0]
    row = flights.iloc[0]
    assert subject == f"flights.{row.carrier}.{row.origin}.IAH"
    fields = json.loads(document)
    assert list(fields) == list(flights.columns)
    assert fields["air_time"] is None
    assert b'"distance":1400,' in document
    delays = [json.loads(text)["dep_delay"] for _, text in made]
    assert {type(delay) for delay in delays} == {int, type(None)}


def test_the_streams_table_is_the_data_frames(
    spark: SparkSession, flights: pd.DataFrame, tmp_path: Path
) -> None:
    from flights_data import messages
    from flights_publish import STREAM, publish
    from flights_table import MismatchError, by_carrier_and_month, check, write

    with testing.server(jetstream=True, store_dir=tmp_path / "store") as server:
        asyncio.run(publish(server.url, messages(flights), ROWS))
        found = write(by_carrier_and_month(spark, server.url, STREAM), tmp_path / "table")
    assert len(found) == 36
    check(found, flights, ROWS)
    draw_if_possible(found, tmp_path / "delays.png")

    with pytest.raises(MismatchError, match="the stream gave 2,000 rows, 2,001 flights"):
        check(found, flights, ROWS + 1)
    wrong: Any = found.copy()
    wrong.loc[3, "mean_delay"] += 0.001
    with pytest.raises(MismatchError, match="mean_delay"):
        check(wrong, flights, ROWS)


def draw_if_possible(found: pd.DataFrame, path: Path) -> None:
    """matplotlib comes with the demo's dependencies, not with the tests'."""
    pytest.importorskip("matplotlib")
    from flights_chart import draw

    draw(found, {"UA": "United Air Lines Inc."}, path)
    assert path.read_bytes().startswith(b"\x89PNG")
