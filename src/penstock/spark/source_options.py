"""Options of reading with format `jetstream`. docs/spark.md lists them in one table.

Names follow Spark's Kafka source where the meaning is the same; its spelling is accepted as an alias.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import ClassVar

from penstock.errors import ConfigError
from penstock.spark.connection_options import (
    CONNECTION_OPTIONS,
    ConnectionOptions,
    check_subject,
)
from penstock.spark.payload_options import PAYLOAD_OPTIONS, PayloadOptionParser, PayloadOptions
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
COLUMNS = ("subject", "seq", "time", "headers", "cloudevent", "data", "stream")
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True)
class SourceOptions:
    """Validated options of a read: streams, bounds, batch sizes."""

    connection: ConnectionOptions
    streams: tuple[str, ...]
    """Option `stream` (or the argument of `load`): comma-separated names. Required, or `streamPattern`."""
    stream_pattern: str | None = None
    """Option `streamPattern`: a regular expression; every stream whose whole name it matches is read. Streams
    that appear while a streaming query runs are read from their first message."""
    subjects: tuple[str, ...] = ()
    """Option `subject`: comma-separated filters, wildcards allowed. Default: every subject."""
    starting: Positions = field(default_factory=lambda: Positions(EARLIEST))
    """Options `startingOffsets` (`startingPosition`), `startingSequence`, `startingTime`
    (`startingTimestamp`), `startingOffsetsByTimestamp`: one of them. Default earliest."""
    ending: Positions = field(default_factory=lambda: Positions(LATEST))
    """Options `endingOffsets` (`endingPosition`), `endingSequence`, `endingTime` (`endingTimestamp`),
    `endingOffsetsByTimestamp`; batch only. Default latest."""
    min_partitions: int = 1
    """Option `minPartitions`: least number of partitions (of one sequence or more). Default 1."""
    records_per_partition: int = 250_000
    """Option `recordsPerPartition`: most sequences per partition. Default 250000."""
    max_records_per_trigger: int | None = None
    """Option `maxRecordsPerTrigger`: most sequences per micro-batch. Default: no limit."""
    max_bytes_per_trigger: int | None = None
    """Option `maxBytesPerTrigger`: approximate limit of bytes per micro-batch, estimated from the mean
    message size of a stream; at least one message. Default: no limit."""
    min_records_per_trigger: int = 1
    """Option `minRecordsPerTrigger`: wait for so many sequences, at most `maxTriggerDelay`. Default 1."""
    max_trigger_delay_s: float = 900.0
    """Option `maxTriggerDelay`, such as 500ms, 10s, 15m or 1h. Default 15m."""
    fail_on_data_loss: bool = True
    """Option `failOnDataLoss`: fail if unread messages were removed from the beginning of a stream, it lost
    its end, or it was deleted. Default true."""
    fail_on_gaps: bool = False
    """Option `failOnDataLoss` is `strict`: also fail if single sequences are missing."""
    include_headers: bool = False
    """Option `includeHeaders`: a column `headers map<string, array<string>>`. Default false."""
    cloud_events: bool = False
    """Option `cloudEvents`: a column `cloudevent` with the attributes of CloudEvents, and column `data` has
    the event's data. Default false."""
    columns: tuple[str, ...] = ()
    """Option `columns`: comma-separated columns, in this order. Others are not built, and the server does not
    send unneeded payloads. Default: all, `headers` only with `includeHeaders` and `cloudevent` only with
    `cloudEvents`."""
    push_filters: bool | None = None
    """Option `pushFilters`: push filters down to the server. Needs the setting
    spark.sql.python.filterPushdown.enabled, which `penstock.spark.register` sets. Default: true after
    `register`, else false."""
    payload: PayloadOptions = field(default_factory=PayloadOptions)
    batch_rows: int = 32_768
    """Option `batchRows`: most rows per Arrow batch. Default 32768."""
    batch_bytes: int = 16 * 1024 * 1024
    """Option `batchBytes`: size of an Arrow batch, exceeded by at most one message. Default 16 MiB."""
    pull_records: int = 10_000
    """Option `pullRecords`: messages per request. Default 10000."""
    access: str = "consumer"
    """Option `access`: `consumer` (one ephemeral consumer without acks per task) or `direct` (direct gets: no
    consumers, the stream needs allow_direct, at most one subject filter). Default consumer."""
    durable: str | None = None
    """Option `durable`: name of a durable pull consumer of the stream, created if a streaming query finds
    none. The query reads what it delivers, and acks it once the micro-batch is committed. Streaming only.
    Default: none."""
    ack_wait_s: float = 300.0
    """Option `ackWait`, such as 30s or 5m: the ack wait of a consumer that is created. Default 5m."""

    @property
    def filter_subject(self) -> str:
        """The field of this name of a consumer of these subjects: the only one."""
        return self.subjects[0] if len(self.subjects) == 1 else ""

    @property
    def filter_subjects(self) -> list[str]:
        """The field of this name of a consumer of these subjects: all of them, where there are several."""
        return list(self.subjects) if len(self.subjects) > 1 else []

    def of_tasks(self, known: ConnectionOptions) -> Iterator[SourceOptions]:
        """The options of the tasks of a read, without end. known: the driver's connection. Each task begins
        with another server than the one before; those of different reads do, too."""
        for turn in count(random.randrange(len(known.servers))):
            yield replace(self, connection=replace(known, turn=turn))

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        """Parse Spark's options.

        Raises ConfigError for an unknown name (names the nearest one), a malformed or out-of-range value,
        contradictory options, or a missing stream.
        """
        return SourceOptionParser(given).source()


_STARTS = ("startingOffsets", "startingSequence", "startingTime", "startingOffsetsByTimestamp")
_ENDS = ("endingOffsets", "endingSequence", "endingTime", "endingOffsetsByTimestamp")
# The error for an unknown option lists the names in this order.
_SOURCE_OPTIONS = (
    "stream",
    "streamPattern",
    "subject",
    *_STARTS,
    "startingOffsetsByTimestampStrategy",
    *_ENDS,
    "minPartitions",
    "recordsPerPartition",
    "maxRecordsPerTrigger",
    "maxBytesPerTrigger",
    "minRecordsPerTrigger",
    "maxTriggerDelay",
    "failOnDataLoss",
    "includeHeaders",
    "cloudEvents",
    "columns",
    "pushFilters",
    *PAYLOAD_OPTIONS,
    "batchRows",
    "batchBytes",
    "pullRecords",
    "access",
    "durable",
    "ackWait",
)
# They choose sequences; a durable consumer chooses messages.
_NOT_WITH_DURABLE = ("minRecordsPerTrigger", "maxTriggerDelay")


class SourceOptionParser(PayloadOptionParser):
    known = (*_SOURCE_OPTIONS, *CONNECTION_OPTIONS)
    aliases: ClassVar[Mapping[str, str]] = {
        "path": "stream",  # spark.read.format("jetstream").load("ORDERS")
        "startingposition": "startingOffsets",
        "startingtimestamp": "startingTime",
        "endingposition": "endingOffsets",
        "endingtimestamp": "endingTime",
        # Names of the Kafka source.
        "subscribe": "stream",
        "subscribepattern": "streamPattern",
        "maxoffsetspertrigger": "maxRecordsPerTrigger",
        "minoffsetspertrigger": "minRecordsPerTrigger",
        "maxrecordsperpartition": "recordsPerPartition",
        # Names of Confluent's clients.
        "schema.registry.url": "schemaRegistry",
    }

    def source(self) -> SourceOptions:
        streams = self.names("stream")
        pattern = self.pattern()
        if not streams and pattern is None:
            raise ConfigError('option \'stream\' is missing: .option("stream", "ORDERS") or .load("ORDERS")')
        if streams and pattern is not None:
            raise ConfigError("options 'stream' and 'streamPattern' contradict each other: give one of them")
        if self.values.get("startingOffsetsByTimestampStrategy", "latest").strip().lower() != "latest":
            raise ConfigError(
                "option 'startingOffsetsByTimestampStrategy': only latest, as always here: a time after the "
                "last message starts with the next one"
            )
        access = self.choice("access", ("consumer", "direct"), "consumer")
        subjects = tuple(check_subject("subject", item, wildcards=True) for item in self.items("subject"))
        if access == "direct" and len(subjects) > 1:
            raise ConfigError(
                "option 'access' is direct, which takes one subject filter; 'subject' gives several"
            )
        durable = self.durable(streams)
        loss = self.choice("failOnDataLoss", ("true", "false", "strict"), "true")
        if loss == "strict" and subjects:
            raise ConfigError(
                "option 'failOnDataLoss' is strict, which counts sequences: leave the filter 'subject' out, "
                "and filter with where()"
            )
        if loss == "strict" and durable is not None:
            raise ConfigError(
                "option 'failOnDataLoss' is strict, which counts sequences; a durable consumer delivers some "
                "of them: set it to true"
            )
        return SourceOptions(
            connection=self.connection(),
            streams=streams,
            stream_pattern=pattern,
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
            cloud_events=self.boolean("cloudEvents", False),
            columns=self.columns(),
            push_filters=self.boolean("pushFilters", False) if "pushFilters" in self.values else None,
            payload=self.payload(),
            batch_rows=self.integer("batchRows", 32_768, 1, BATCH_ROWS_MAX),
            batch_bytes=self.integer("batchBytes", 16 * 1024 * 1024, 1, BATCH_BYTES_MAX),
            pull_records=self.integer("pullRecords", 10_000, 1, 1_000_000),
            access=access,
            durable=durable,
            ack_wait_s=self.duration("ackWait", 300.0),
        )

    def durable(self, streams: tuple[str, ...]) -> str | None:
        """The name of the durable consumer. Raises ConfigError for what contradicts it."""
        if "durable" not in self.values:
            if "ackWait" in self.values:
                raise ConfigError("option 'ackWait' is given without 'durable', the consumer it is for")
            return None
        names = self.names("durable")
        if len(names) != 1:
            raise ConfigError(f"option 'durable' is {self.values['durable']!r}: the name of one consumer")
        if len(streams) != 1:
            raise ConfigError("option 'durable' names a consumer of one stream: name that one in 'stream'")
        for name in _NOT_WITH_DURABLE:
            if name in self.values:
                raise ConfigError(
                    f"options 'durable' and {name!r} contradict each other: a consumer delivers what there is"
                )
        return names[0]

    def pattern(self) -> str | None:
        text = self.values.get("streamPattern")
        if text is not None:
            try:
                re.compile(text)
            except re.error as error:
                raise ConfigError(
                    f"option 'streamPattern': {text!r} is no regular expression: {error}"
                ) from None
        return text

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

    def duration(self, name: str, default: float) -> float:
        """Seconds, given as 500ms, 10s, 15m or 1h."""
        text = self.values.get(name)
        if text is None:
            return default
        found = re.fullmatch(r"(\d+)\s*(ms|s|m|h|d)", text.strip().lower())
        if found is None:
            raise ConfigError(f"option {name!r} is {text!r}: a duration as 500ms, 10s, 15m or 1h")
        return int(found[1]) * _UNITS_S[found[2]]
