"""Options of reading with format `jetstream`. docs/spark.md has them in one table.

Names are those of Spark's Kafka source wherever one means the same; its own spelling is taken too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from penstock.errors import ConfigError
from penstock.spark.connection_options import (
    CONNECTION_OPTIONS,
    ConnectionOptions,
    OptionParser,
    check_subject,
)
from penstock.spark.positions import (
    EARLIEST,
    LATEST,
    SEQUENCE_MAX,
    Position,
    Positions,
    only_one,
    parse_positions,
)

BATCH_ROWS_MAX = 1 << 24
BATCH_BYTES_MAX = 1 << 30
COLUMNS = ("subject", "seq", "time", "headers", "data", "stream")
PAYLOADS = ("raw", "string", "json", "avro", "arrow")
MODES = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True)
class PayloadOptions:
    """What becomes of payloads."""

    kind: str = "raw"
    """Option `payload`: `raw` (binary, the default), `string`, `json`, `avro` or `arrow`."""
    schema: str | None = None
    """Option `payloadSchema`: the fields of `json`, `avro` and `arrow`, as DDL ("id bigint, name string")
    or as Spark's JSON of a schema. Not needed where `.schema(…)` gives column `data` its type."""
    mode: str = "PERMISSIVE"
    """Option `mode`, as of Spark's JSON reader: what a payload that can't be read does. PERMISSIVE: null
    fields; DROPMALFORMED: no row; FAILFAST: the query fails. Default PERMISSIVE."""
    corrupt_column: str = "_corrupt_record"
    """Option `columnNameOfCorruptRecord`: the field of the payload's schema (a string) that takes the text
    of a payload that can't be read; only when the schema has it. Default _corrupt_record."""
    avro_schema: str | None = None
    """Option `avroSchema`: the schema the payloads were written with, as JSON."""


@dataclass(frozen=True)
class SourceOptions:
    """What to read, from where to where, and in which portions."""

    connection: ConnectionOptions
    streams: tuple[str, ...]
    """Option `stream` (or the argument of `load`): comma-separated names. Required."""
    subjects: tuple[str, ...] = ()
    """Option `subject`: comma-separated filters, wildcards allowed. Default: every subject."""
    starting: Positions = field(default_factory=lambda: Positions(EARLIEST))
    """Options `startingOffsets` (`startingPosition`), `startingSequence`, `startingTime`
    (`startingTimestamp`), `startingOffsetsByTimestamp`: one of them. Default earliest."""
    ending: Positions = field(default_factory=lambda: Positions(LATEST))
    """Options `endingOffsets` (`endingPosition`), `endingSequence`, `endingTime` (`endingTimestamp`),
    `endingOffsetsByTimestamp`; batch only. Default latest."""
    min_partitions: int = 1
    """Option `minPartitions`: cut into at least this many ranges (of one sequence or more). Default 1."""
    records_per_partition: int = 250_000
    """Option `recordsPerPartition`: sequences in one range at most. Default 250000."""
    max_records_per_trigger: int | None = None
    """Option `maxRecordsPerTrigger`: sequences in one micro-batch at most. Default: all there are."""
    max_bytes_per_trigger: int | None = None
    """Option `maxBytesPerTrigger`: about so many bytes in one micro-batch at most, by the mean size of a
    stream's messages; at least one message. Default: all there are."""
    min_records_per_trigger: int = 1
    """Option `minRecordsPerTrigger`: wait for so many sequences, `maxTriggerDelay` long. Default 1."""
    max_trigger_delay_s: float = 900.0
    """Option `maxTriggerDelay`: as 500ms, 10s, 15m or 1h. Default 15m."""
    fail_on_data_loss: bool = True
    """Option `failOnDataLoss`: fail when messages the query still had to read are gone from a stream's
    beginning, or with the stream. Default true."""
    fail_on_gaps: bool = False
    """Option `failOnDataLoss` is `strict`: fail also when single sequences are gone from within."""
    include_headers: bool = False
    """Option `includeHeaders`: a column `headers map<string, array<string>>`. Default false."""
    columns: tuple[str, ...] = ()
    """Option `columns`: only these, comma-separated, in this order; what isn't named is neither sent by the
    server (payloads) nor built. Default: all, `headers` only with `includeHeaders`."""
    push_filters: bool | None = None
    """Option `pushFilters`: let the server filter what Spark would. Needs the setting
    spark.sql.python.filterPushdown.enabled, which `penstock.spark.register` sets. Default: when registered
    so."""
    payload: PayloadOptions = PayloadOptions()
    batch_rows: int = 32_768
    """Option `batchRows`: rows of an Arrow batch at most. Default 32768."""
    batch_bytes: int = 16 * 1024 * 1024
    """Option `batchBytes`: an Arrow batch is cut at this size; one message more may go in. Default 16 MiB."""
    pull_records: int = 10_000
    """Option `pullRecords`: messages one request asks for. Default 10000."""
    access: str = "consumer"
    """Option `access`: `consumer` (an ephemeral one without acks, per task), or `direct` (direct gets: the
    stream needs allow_direct, no consumers are made, at most one subject filter). Default consumer."""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        """The options as Spark hands them over.

        Raises ConfigError: an unknown name (with the nearest known one), a value that can't be read or is out
        of bounds, a contradiction, no stream.
        """
        return SourceOptionParser(given).source()


_STARTS = ("startingOffsets", "startingSequence", "startingTime", "startingOffsetsByTimestamp")
_ENDS = ("endingOffsets", "endingSequence", "endingTime", "endingOffsetsByTimestamp")
# The order of these names is the one of the error that lists them.
_SOURCE_OPTIONS = (
    "stream",
    "subject",
    *_STARTS,
    *_ENDS,
    "minPartitions",
    "recordsPerPartition",
    "maxRecordsPerTrigger",
    "maxBytesPerTrigger",
    "minRecordsPerTrigger",
    "maxTriggerDelay",
    "failOnDataLoss",
    "includeHeaders",
    "columns",
    "pushFilters",
    "payload",
    "payloadSchema",
    "avroSchema",
    "mode",
    "columnNameOfCorruptRecord",
    "batchRows",
    "batchBytes",
    "pullRecords",
    "access",
)


class SourceOptionParser(OptionParser):
    known = (*_SOURCE_OPTIONS, *CONNECTION_OPTIONS)
    aliases: ClassVar[Mapping[str, str]] = {
        "path": "stream",  # spark.read.format("jetstream").load("ORDERS")
        "startingposition": "startingOffsets",
        "startingtimestamp": "startingTime",
        "endingposition": "endingOffsets",
        "endingtimestamp": "endingTime",
        # As the Kafka source calls them.
        "subscribe": "stream",
        "maxoffsetspertrigger": "maxRecordsPerTrigger",
        "minoffsetspertrigger": "minRecordsPerTrigger",
        "maxrecordsperpartition": "recordsPerPartition",
    }

    def source(self) -> SourceOptions:
        streams = self.names("stream")
        if not streams:
            raise ConfigError('option \'stream\' is missing: .option("stream", "ORDERS") or .load("ORDERS")')
        access = self.choice("access", ("consumer", "direct"), "consumer")
        subjects = tuple(check_subject("subject", item, wildcards=True) for item in self.items("subject"))
        if access == "direct" and len(subjects) > 1:
            raise ConfigError(
                "option 'access' is direct, which takes one subject filter; 'subject' gives several"
            )
        loss = self.choice("failOnDataLoss", ("true", "false", "strict"), "true")
        if loss == "strict" and subjects:
            raise ConfigError(
                "option 'failOnDataLoss' is strict, which counts sequences: leave the filter 'subject' out, "
                "and filter with where()"
            )
        return SourceOptions(
            connection=self.connection(),
            streams=streams,
            subjects=subjects,
            starting=self.starting(streams),
            ending=self.ending(streams),
            min_partitions=self.integer("minPartitions", 1, 1, 100_000),
            records_per_partition=self.integer("recordsPerPartition", 250_000, 1, SEQUENCE_MAX),
            max_records_per_trigger=self.integer("maxRecordsPerTrigger", None, 1, SEQUENCE_MAX),
            max_bytes_per_trigger=self.integer("maxBytesPerTrigger", None, 1, SEQUENCE_MAX),
            min_records_per_trigger=self.integer("minRecordsPerTrigger", 1, 1, SEQUENCE_MAX),
            max_trigger_delay_s=self.duration("maxTriggerDelay", 900.0),
            fail_on_data_loss=loss != "false",
            fail_on_gaps=loss == "strict",
            include_headers=self.boolean("includeHeaders", False),
            columns=self.columns(),
            push_filters=self.boolean("pushFilters", False) if "pushFilters" in self.values else None,
            payload=self.payload(),
            batch_rows=self.integer("batchRows", 32_768, 1, BATCH_ROWS_MAX),
            batch_bytes=self.integer("batchBytes", 16 * 1024 * 1024, 1, BATCH_BYTES_MAX),
            pull_records=self.integer("pullRecords", 10_000, 1, 1_000_000),
            access=access,
        )

    def starting(self, streams: tuple[str, ...]) -> Positions:
        given = only_one(self.values, _STARTS)
        if given is None:
            return Positions(EARLIEST)
        if given == "startingSequence":
            return Positions(Position("sequence", self.integer(given, None, 1, SEQUENCE_MAX)))
        times = given != "startingOffsets"
        return parse_positions(given, self.values[given], EARLIEST, streams, times=times)

    def ending(self, streams: tuple[str, ...]) -> Positions:
        given = only_one(self.values, _ENDS)
        if given is None:
            return Positions(LATEST)
        if given == "endingSequence":
            return Positions(Position("sequence", self.integer(given, None, 0, SEQUENCE_MAX - 1) + 1))
        times = given != "endingOffsets"
        ends = parse_positions(given, self.values[given], LATEST, streams, times=times)
        if EARLIEST in ends.all():
            raise ConfigError(f"option {given!r} is earliest: that read never has rows")
        return ends

    def columns(self) -> tuple[str, ...]:
        names = self.items("columns")
        for name in names:
            if name not in COLUMNS:
                raise ConfigError(f"option 'columns': there is no {name!r}; there are {', '.join(COLUMNS)}")
        return names

    def payload(self) -> PayloadOptions:
        kind = self.choice("payload", PAYLOADS, "raw")
        if kind in ("raw", "string"):
            for name in ("payloadSchema", "avroSchema"):
                if name in self.values:
                    raise ConfigError(f"option {name!r} is given, but 'payload' is {kind}")
        if kind == "avro" and "avroSchema" not in self.values:
            raise ConfigError("option 'payload' is avro: give 'avroSchema', the schema of the payloads")
        return PayloadOptions(
            kind=kind,
            schema=self.values.get("payloadSchema"),
            mode=self.choice("mode", MODES, "PERMISSIVE"),
            corrupt_column=self.values.get("columnNameOfCorruptRecord", "_corrupt_record"),
            avro_schema=self.values.get("avroSchema"),
        )

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        """The one of `choices` that is given, however it is spelled."""
        given = self.values.get(name, default).strip()
        for choice in choices:
            if choice.lower() == given.lower():
                return choice
        raise ConfigError(f"option {name!r} is {given!r}: {', '.join(choices[:-1])} or {choices[-1]}")

    def duration(self, name: str, default: float) -> float:
        """Seconds, given as 500ms, 10s, 15m or 1h."""
        text = self.values.get(name)
        if text is None:
            return default
        found = re.fullmatch(r"(\d+)\s*(ms|s|m|h|d)", text.strip().lower())
        if found is None:
            raise ConfigError(f"option {name!r} is {text!r}: a duration as 500ms, 10s, 15m or 1h")
        return int(found[1]) * _UNITS_S[found[2]]
