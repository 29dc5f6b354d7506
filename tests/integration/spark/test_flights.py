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

pytestmark = pytest.mark.feature("spark.stream")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLE = Path(__file__).parents[3] / "examples" / "flights"
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
        messages = spark.read.format("jetstream").option("servers", server.url).load(STREAM)
        found = write(by_carrier_and_month(messages), tmp_path / "table")
    assert len(found) == 36
    check(found, flights, ROWS)
    draw_chart(found, tmp_path / "delays.png")

    with pytest.raises(MismatchError, match="the stream gave 2,000 rows, 2,001 flights"):
        check(found, flights, ROWS + 1)
    wrong: Any = found.copy()
    wrong.loc[3, "mean_delay"] += 0.001
    with pytest.raises(MismatchError, match="mean_delay"):
        check(wrong, flights, ROWS)


def test_windows_go_to_a_second_stream_as_they_close(
    spark: SparkSession, flights: pd.DataFrame, tmp_path: Path
) -> None:
    from flights_chart import draw_days
    from flights_data import messages
    from flights_days import check_days, publish_end, read_days, stream_days
    from flights_publish import publish
    from flights_table import MismatchError

    dated = flights.assign(
        time_hour=[f"2013-01-{1 + n // 500:02d}T{n // 25 % 20:02d}:00:00Z" for n in range(ROWS)]
    )
    with testing.server(jetstream=True, store_dir=tmp_path / "store") as server:
        asyncio.run(publish(server.url, messages(dated), ROWS))
        asyncio.run(publish_end(server.url))
        stream_days(spark, server.url, tmp_path / "checkpoint")
        days = read_days(spark, server.url)
        stream_days(spark, server.url, tmp_path / "checkpoint")
        assert len(read_days(spark, server.url)) == len(days) == 12
    check_days(days, dated)
    with pytest.raises(MismatchError, match="differ from the data frame"):
        check_days(days, dated.head(ROWS - 1))
    draw_days(days, tmp_path / "days.png")
    assert (tmp_path / "days.png").read_bytes().startswith(b"\x89PNG")


def draw_chart(found: pd.DataFrame, path: Path) -> None:
    from flights_chart import draw

    draw(found, {"UA": "United Air Lines Inc."}, path)
    assert path.read_bytes().startswith(b"\x89PNG")
