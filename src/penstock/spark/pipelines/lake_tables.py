"""Archives of streams in Delta and Iceberg tables, each range of sequences in one commit.

A commit is atomic and carries the range it adds (Delta: `userMetadata`, Iceberg: a property of the snapshot),
so a run that is killed has added a range or has not, and the next run knows. The table's properties have the
stream and when it was created; one table has one stream.

The end of the archive is the later of the newest range in the table's history and the last sequence in the
table: history expires (Delta: 30 days; Iceberg: 5 days), rows may be deleted.

Rejected: a manifest beside the table (a second commit, and a catalog may move a table); ALTER TABLE after
each range (a second commit, and Delta's fails on some patch releases of the Spark it is for); MERGE on
sequences (reads the table for each range).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar, TypeVar

import msgspec

from penstock.errors import ConfigError, MisuseError
from penstock.spark.pipelines.manifest import ManifestEntry, RangeTotals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")

MARK = "penstock.range"
_STREAM, _CREATED = "penstock.stream", "penstock.created"
_HISTORY_MAX = 1000
_COLUMNS = {
    "stream": "string",
    "seq": "bigint",
    "subject": "string",
    "time": "timestamp",
    "headers": "map<string, array<string>>",
    "data": "binary",
}
COLUMNS = tuple(_COLUMNS)
_DDL = ", ".join(f"{name} {kind}" for name, kind in _COLUMNS.items())
# Spark's words for a format or catalog whose jar is not there.
_NO_JAR = ("DATA_SOURCE_NOT_FOUND", "ClassNotFoundException", "Cannot find catalog plugin class")


class LakeTable(ABC):
    """One table of a format. Methods raise ConfigError if the session has no jar for the format."""

    format: ClassVar[str]
    needs: ClassVar[str]

    def __init__(self, spark: SparkSession, where: str) -> None:
        self.spark = spark
        self.where = where
        self.check()

    @property
    @abstractmethod
    def name(self) -> str:
        """The table's name in SQL."""

    @abstractmethod
    def check(self) -> None:
        """Raises ConfigError for a session without the settings of the format, or a name that is none."""

    @abstractmethod
    def create(self, stream: str, created: str) -> None:
        """Create the table unless it exists."""

    @abstractmethod
    def append(self, rows: DataFrame, entry: ManifestEntry) -> None:
        """Add rows with the columns of COLUMNS in one commit that has the entry as its mark."""

    @abstractmethod
    def marks(self) -> list[str]:
        """The marks of the commits that the table's history has."""

    def messages(self) -> DataFrame:
        """The table's columns: stream, seq, subject, time, headers, data."""
        return self.call(lambda: self.spark.table(self.name).select(*COLUMNS))

    def entries(self) -> list[ManifestEntry]:
        """The last range, in a list; empty if there is no table, or nothing in it.

        Raises MisuseError if the table is no archive.
        """
        properties = self.properties()
        if properties is None:
            return []
        stream, created = properties.get(_STREAM), properties.get(_CREATED)
        if stream is None or created is None:
            raise MisuseError(f"table {self.where} is no archive of a stream: archive to a table of its own")
        marked = [msgspec.json.decode(text, type=ManifestEntry) for text in self.marks()]
        found = [entry for entry in marked if (entry.stream, entry.created) == (stream, created)]
        last = self.spark.sql(f"SELECT max(seq) AS last FROM {self.name}").collect()[0].last
        if last is not None:  # an empty range behind the last row, if the history has expired
            found.append(ManifestEntry(stream, created, last + 1, last + 1, RangeTotals(0, 0, 0)))
        return [max(found, key=lambda entry: (entry.end, -entry.start))] if found else []

    def properties(self) -> dict[str, str] | None:
        """The table's properties; None if there is no table."""
        from pyspark.errors import AnalysisException

        try:
            rows = self.call(lambda: self.spark.sql(f"SHOW TBLPROPERTIES {self.name}").collect())
        except AnalysisException as error:
            if self.is_missing(error):
                return None
            raise
        return {row.key: row.value for row in rows}

    def is_missing(self, error: Exception) -> bool:
        """Whether Spark says that there is no such table."""
        return "TABLE_OR_VIEW_NOT_FOUND" in str(error) or "SCHEMA_NOT_FOUND" in str(error)

    def call(self, action: Callable[[], T]) -> T:
        """The result of `action`. Raises ConfigError if Spark says that a class of the format is missing."""
        from py4j.protocol import Py4JError  # a catalog that can't be loaded is not one of Spark's own errors
        from pyspark.errors import PySparkException

        try:
            return action()
        except (PySparkException, Py4JError) as error:
            said = [
                line.strip() for line in str(error).splitlines() if any(words in line for words in _NO_JAR)
            ]
            if said:
                raise ConfigError(f"format {self.format} needs {self.needs}: {said[0]}") from error
            raise

    def properties_sql(self, stream: str, created: str) -> str:
        return f"TBLPROPERTIES ('{_STREAM}' = '{_quoted(stream)}', '{_CREATED}' = '{_quoted(created)}')"


class DeltaArchive(LakeTable):
    """A Delta table at a path, partitioned by day.

    A range is also a transaction of Delta: a second run that adds the same range at once adds nothing.
    """

    format = "delta"
    needs = "Delta's jar in spark.jars.packages, and its extension and catalog (docs/spark-tables.md)"

    @property
    def name(self) -> str:
        return f"delta.`{self.where}`"

    def check(self) -> None:
        if "`" in self.where:
            raise ConfigError(f"{self.where!r} is no path of a Delta table")
        if "DeltaSparkSessionExtension" not in (self.spark.conf.get("spark.sql.extensions", "") or ""):
            raise ConfigError(f"format delta needs {self.needs}: spark.sql.extensions does not name it")

    def create(self, stream: str, created: str) -> None:
        self.call(
            lambda: self.spark.sql(
                f"CREATE TABLE IF NOT EXISTS {self.name} ({_DDL}, day date) USING delta "
                f"PARTITIONED BY (day) {self.properties_sql(stream, created)}"
            )
        )

    def append(self, rows: DataFrame, entry: ManifestEntry) -> None:
        from pyspark.sql import functions as f

        options = {
            "txnAppId": f"penstock:{entry.stream}:{entry.created}",
            "txnVersion": str(entry.end),
            "userMetadata": msgspec.json.encode({MARK: entry}).decode(),
        }
        dated = rows.withColumn("day", f.to_date("time"))
        dated.write.format("delta").mode("append").options(**options).save(self.where)

    def marks(self) -> list[str]:
        history = self.spark.sql(f"DESCRIBE HISTORY {self.name} LIMIT {_HISTORY_MAX}").select("userMetadata")
        found = []
        for row in history.where(f"userMetadata LIKE '%{MARK}%'").collect():
            facts = msgspec.json.decode(row.userMetadata, type=dict[str, msgspec.Raw])
            if MARK in facts:
                found.append(bytes(facts[MARK]).decode())
        return found

    def is_missing(self, error: Exception) -> bool:
        return super().is_missing(error) or "DELTA_" in str(error)


class IcebergArchive(LakeTable):
    """An Iceberg table of a catalog, partitioned by the days of `time`."""

    format = "iceberg"
    needs = "Iceberg's jar in spark.jars.packages, and a catalog (docs/spark-tables.md)"

    @property
    def name(self) -> str:
        return ".".join(f"`{part}`" for part in self.where.split("."))

    def check(self) -> None:
        parts = self.where.split(".")
        if len(parts) < 3 or not all(parts) or any(c in self.where for c in "`/' "):
            raise ConfigError(
                f"{self.where!r} is no name of an Iceberg table: write catalog.database.table, such as "
                "lake.streams.orders"
            )
        if self.spark.conf.get(f"spark.sql.catalog.{parts[0]}", None) is None:
            raise ConfigError(
                f"format iceberg needs {self.needs}: there is no setting spark.sql.catalog.{parts[0]}"
            )

    def create(self, stream: str, created: str) -> None:
        database = self.name.rpartition(".")[0]

        def create() -> None:
            self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {database}")
            self.spark.sql(
                f"CREATE TABLE IF NOT EXISTS {self.name} ({_DDL}) USING iceberg "
                f"PARTITIONED BY (days(time)) {self.properties_sql(stream, created)}"
            )

        self.call(create)

    def append(self, rows: DataFrame, entry: ManifestEntry) -> None:
        text = msgspec.json.encode(entry).decode()
        rows.writeTo(self.name).option(f"snapshot-property.{MARK}", text).append()

    def marks(self) -> list[str]:
        rows = self.spark.sql(f"SELECT summary['{MARK}'] AS mark FROM {self.name}.snapshots").collect()
        return [row.mark for row in rows if row.mark is not None]


LAKE_FORMATS: dict[str, type[LakeTable]] = {"delta": DeltaArchive, "iceberg": IcebergArchive}


def lake_table(spark: SparkSession, table_format: str, where: str) -> LakeTable:
    """The archive in a table of this format. Raises ConfigError, also for a format that is not known."""
    made = LAKE_FORMATS.get(table_format)
    if made is None:
        raise ConfigError(f"format {table_format!r}: parquet, {' or '.join(LAKE_FORMATS)}")
    return made(spark, where)


def settings_of(table_format: str, where: str, given: Mapping[str, str]) -> dict[str, str]:
    """Spark's settings for a new session that archives in this format; what is given wins.

    The jar is not among them: its version is that of Spark. where: an Iceberg table's name, whose catalog is
    a folder (`spark.sql.catalog.<catalog>.warehouse`) unless it is given otherwise.
    """
    ours: dict[str, str] = {}
    if table_format == "delta":
        ours["spark.sql.extensions"] = "io.delta.sql.DeltaSparkSessionExtension"
        ours["spark.sql.catalog.spark_catalog"] = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
    if table_format == "iceberg":
        catalog = f"spark.sql.catalog.{where.partition('.')[0]}"
        ours["spark.sql.extensions"] = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        ours[catalog] = "org.apache.iceberg.spark.SparkCatalog"
        if not {f"{catalog}.type", f"{catalog}.catalog-impl", f"{catalog}.uri"} & given.keys():
            ours[f"{catalog}.type"] = "hadoop"
    return {**ours, **given}


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
