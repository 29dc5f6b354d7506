"""Delta and Iceberg archives without a JVM: names, settings, and how far an archive is."""

from __future__ import annotations

import json
from collections import namedtuple
from typing import Any

import pytest

from penstock.errors import ConfigError, MisuseError
from penstock.spark.pipelines.lake_tables import MARK, LakeTable, lake_table, settings_of

pytestmark = pytest.mark.feature("spark.tables")

PROPERTIES = {"penstock.stream": "ORDERS", "penstock.created": "then"}


class FakeTable:
    """The rows that Spark answers for what an archive asks, and the settings of a session."""

    def __init__(
        self, properties: dict[str, str], marks: list[dict[str, Any] | None], last: int | None
    ) -> None:
        self.properties, self.marks, self.last = properties, marks, last
        self.conf = {
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.lake": "x",
        }
        self.rows: list[Any] = []

    def sql(self, text: str) -> FakeTable:
        if text.startswith("SHOW TBLPROPERTIES"):
            row = namedtuple("row", "key value")
            self.rows = [row(*pair) for pair in self.properties.items()]
        elif "max(seq)" in text:
            self.rows = [namedtuple("row", "last")(self.last)]
        elif "DESCRIBE HISTORY" in text:
            texts = [None if mark is None else json.dumps({MARK: mark}) for mark in self.marks]
            self.rows = [namedtuple("row", "userMetadata")(text) for text in texts if text is not None]
        else:
            texts = [None if mark is None else json.dumps(mark) for mark in self.marks]
            self.rows = [namedtuple("row", "mark")(text) for text in texts]
        return self

    def select(self, _: str) -> FakeTable:
        return self

    def where(self, _: str) -> FakeTable:
        return self

    def collect(self) -> list[Any]:
        return self.rows


def mark(end: int, stream: str = "ORDERS", created: str = "then") -> dict[str, Any]:
    totals = {"rows": 7, "bytes": 8, "hash": 9}
    return {"stream": stream, "created": created, "start": 1, "end": end, "totals": totals}


def archive_of(fake: FakeTable, table_format: str) -> LakeTable:
    where = "/data/orders" if table_format == "delta" else "lake.db.orders"
    spark: Any = fake
    return lake_table(spark, table_format, where)


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
@pytest.mark.parametrize(
    ("marks", "last", "end"),
    [
        ([], None, None),
        ([mark(11)], 8, 11),  # the last messages of the range were deleted before
        ([None, mark(11), None, mark(21)], 20, 21),
        ([], 20, 21),  # the history has expired
        ([mark(11)], None, 11),  # all rows were deleted
        ([mark(11)], 20, 21),  # a run that was killed while it read the history
        ([mark(99, "OTHER"), mark(98, created="before")], 20, 21),
    ],
)
def test_an_archive_ends_where_its_history_or_its_rows_say(
    table_format: str, marks: list[dict[str, Any] | None], last: int | None, end: int | None
) -> None:
    entries = archive_of(FakeTable(PROPERTIES, marks, last), table_format).entries()
    assert [(one.stream, one.created, one.end) for one in entries] == (
        [] if end is None else [("ORDERS", "then", end)]
    )
    if mark(end or 0) in marks:  # what the table must have in it, before it may be purged from the stream
        assert (entries[0].start, entries[0].totals.rows) == (1, 7)


def test_a_table_that_is_no_archive_is_refused() -> None:
    with pytest.raises(MisuseError, match=r"lake\.db\.orders is no archive of a stream"):
        archive_of(FakeTable({"owner": "me"}, [], 5), "iceberg").entries()


def test_names_are_quoted_and_must_be_of_their_format() -> None:
    fake: Any = FakeTable({}, [], None)
    assert lake_table(fake, "delta", "/data/o r").name == "delta.`/data/o r`"
    assert lake_table(fake, "iceberg", "lake.db.o-r").name == "`lake`.`db`.`o-r`"
    for where in ("lake.orders", "lake..orders", "/data/x.y.z", "lake.db.o`r"):
        with pytest.raises(ConfigError, match="no name of an Iceberg table"):
            lake_table(fake, "iceberg", where)
    with pytest.raises(ConfigError, match="no path of a Delta table"):
        lake_table(fake, "delta", "a`b")
    assert "'penstock.stream' = 'it\\'s'" in lake_table(fake, "delta", "a").properties_sql("it's", "then")


def test_settings_are_those_of_the_format_unless_given() -> None:
    assert settings_of("parquet", "/data", {"spark.x": "1"}) == {"spark.x": "1"}
    delta = settings_of("delta", "/data", {"spark.sql.extensions": "mine"})
    assert delta["spark.sql.extensions"] == "mine"
    assert delta["spark.sql.catalog.spark_catalog"].endswith("DeltaCatalog")
    folder = settings_of("iceberg", "lake.db.t", {"spark.sql.catalog.lake.warehouse": "/w"})
    assert folder["spark.sql.catalog.lake.type"] == "hadoop"
    served = settings_of("iceberg", "lake.db.t", {"spark.sql.catalog.lake.uri": "http://c"})
    assert "spark.sql.catalog.lake.type" not in served
