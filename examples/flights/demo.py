"""All flights that left New York in 2013: through a server into a Spark table and a chart.

    python examples/flights/demo.py [--rows N] [--out FOLDER]

An embedded penstock server keeps streams in files. Then, one after the other:

    publish     every flight to `flights.<carrier>.<origin>.<dest>` as a JSON document (flights_data.py)
    stream      a streaming query counts the flights of each day and airport in windows ...
    sink        ... and writes each window, once it is over, into a second stream, exactly once
    archive     the stream of flights goes to Parquet, verified
    table       departures, mean and 95th percentile of the delay by carrier and month, from archive and
                stream as one table
    chart       of both

All of it is compared with what pandas computes from the original table. Exit code 1 when a single row or
figure differs.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from flights_chart import draw, draw_days
from flights_data import FLIGHTS, DataMissingError, load_airlines, load_flights, messages
from flights_days import DAYS_STREAM, END_SUBJECT, check_days, publish_end, read_days, stream_days
from flights_publish import STREAM, publish
from flights_table import MismatchError, by_carrier_and_month, check, start_spark, time_read, write
from rich.console import Console
from rich.table import Table

from penstock import testing
from penstock.spark.pipelines.archive import archive
from penstock.spark.pipelines.replay import table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE_WIDTH = 116
MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]


def run(rows: int, out: Path, console: Console) -> None:
    """Run the demo. Raises MismatchError if the stream's table differs from the data frame's."""
    started = time.perf_counter()
    console.print("reading the flights of 2013 …")
    flights = load_flights().head(rows)
    with (
        tempfile.TemporaryDirectory(prefix="penstock-flights-") as store,
        testing.server(jetstream=True, store_dir=store) as server,
    ):
        console.print(f"an embedded penstock server listens at {server.url}, its streams in {store}")
        publish_s = asyncio.run(publish(server.url, messages(flights), len(flights)))
        stored = sum(path.stat().st_size for path in Path(store).rglob("*") if path.is_file())
        console.print(f"{len(flights):,} flights acked in {publish_s:.1f} s, {stored / 1e6:,.0f} MB on disk")
        console.print("starting Spark …")
        spark = start_spark()
        try:
            days = stream(spark, server.url, flights, Path(store), console)
            archive_flights(spark, server.url, len(flights), out / "archive", console)
            job_started = time.perf_counter()
            both = table(spark, STREAM, str(out / "archive"), {"servers": server.url})
            flights_only = both.where(f"subject <> '{END_SUBJECT}'")
            found = write(by_carrier_and_month(flights_only), out / "by_carrier_and_month")
            job_s = time.perf_counter() - job_started
            read_s = time_read(spark, server.url, STREAM)
        finally:
            spark.stop()
    check(found, flights, rows)
    draw(found, load_airlines(), out / "delays.png")
    draw_days(days, out / "days.png")
    console.print(as_table(found))
    console.print(
        f"published {len(flights) / publish_s:,.0f} flights/s, every one acked; the table took {job_s:.1f} "
        f"s; reading alone, once warm: {len(flights) / read_s:,.0f} rows/s"
    )
    console.print(
        f"[green]checked:[/] exactly {rows:,} rows, and the table's {len(found)} rows equal "
        f"those computed from the data frame ({time.perf_counter() - started:.0f} s in all)"
    )
    names = ", ".join(
        str(out / name) for name in ("by_carrier_and_month", "archive", "delays.png", "days.png")
    )
    console.print(f"written: {names}")


def stream(
    spark: SparkSession, url: str, flights: pd.DataFrame, store: Path, console: Console
) -> pd.DataFrame:
    """Read the daily windows from the stream that the query wrote to. Raises MismatchError."""
    started = time.perf_counter()
    asyncio.run(publish_end(url))
    batches = stream_days(spark, url, store / "checkpoint")
    days = read_days(spark, url)
    check_days(days, flights)
    console.print(
        f"streamed: {len(flights):,} flights in {len(batches)} micro-batches became {len(days):,} windows of "
        f"a day and airport in stream {DAYS_STREAM}, in {time.perf_counter() - started:.1f} s"
    )
    return days


def archive_flights(spark: SparkSession, url: str, rows: int, folder: Path, console: Console) -> None:
    """Archive to Parquet. Removes the archive of an earlier run, which is of another stream."""
    shutil.rmtree(folder, ignore_errors=True)
    done = archive(spark, STREAM, str(folder), {"servers": url}, range_records=100_000, console=console)
    if done.rows != rows + 1:  # the message that ends the stream is one more
        raise MismatchError(f"the archive holds {done.rows:,} messages, {rows:,} flights were published")


def as_table(found: pd.DataFrame) -> Table:
    """Three rows per carrier: departures, mean and 95th percentile of the delay in minutes, per month."""
    table = Table(title="Departures, mean and 95th percentile of the departure delay (minutes)", expand=False)
    table.add_column("", style="bold")
    table.add_column("")
    for month in MONTHS:
        table.add_column(month, justify="right")
    order = found.groupby("carrier")["departures"].sum().sort_values(ascending=False).index
    for carrier in order:
        mine = found[found["carrier"] == carrier].set_index("month").reindex(range(1, 13))
        lines = (
            (carrier, "departures", [_text(value, ",.0f") for value in mine["departures"]], ""),
            ("", "mean", [_text(value, ".1f") for value in mine["mean_delay"]], "cyan"),
            ("", "p95", [_text(value, ".0f") for value in mine["p95_delay"]], "yellow"),
        )
        for name, what, figures, style in lines:
            table.add_row(name, what, *figures, style=style, end_section=what == "p95")
    return table


def _text(value: float, form: str) -> str:
    return "" if pd.isna(value) else format(value, form)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=FLIGHTS, help="only the first N flights")
    parser.add_argument("--out", type=Path, default=Path("out") / "flights")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    console = Console()
    if console.width < TABLE_WIDTH:
        console = Console(width=TABLE_WIDTH)
    try:
        run(options.rows, options.out, console)
    except (MismatchError, DataMissingError) as error:
        console.print(f"[red]failed:[/] {error}", soft_wrap=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
