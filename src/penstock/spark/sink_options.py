"""Options of writing to format `jetstream`: validated once, frozen, picklable.

Columns and templates define the message of a row. A template is text with column names in braces, such as
`orders.{customer}.{id}`; `{{` and `}}` are literal braces. Without templates, column `data` (or `value`) is
the payload, `subject` the subject and `headers` the headers.

Option `delivery` selects how rows are delivered exactly once, see delivery.py.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from penstock.errors import ConfigError
from penstock.spark.connection_options import CONNECTION_OPTIONS, ConnectionOptions, OptionParser

DELIVERIES = ("publish", "fast", "atomic")
LEDGER_DEFAULT = "penstock_spark_sink"
_BUCKET_CHARS = frozenset(string.ascii_letters + string.digits + "-_")
_ID_CHARS = frozenset(string.ascii_letters + string.digits + "-_")

# Options of `writeStream` that Spark also passes to the format.
_SPARKS_OWN = frozenset({"checkpointlocation", "queryname"})

# Headers that the sink sets itself; users may not set them.
_OWN_HEADERS = frozenset(
    {
        "nats-msg-id",
        "nats-expected-stream",
        "nats-expected-last-sequence",
        "nats-expected-last-subject-sequence",
        "nats-batch-id",
        "nats-batch-sequence",
        "nats-batch-commit",
    }
)


@dataclass(frozen=True)
class SubjectTemplate:
    """Alternating literal texts and column names: len(texts) == len(columns) + 1."""

    texts: tuple[str, ...]
    columns: tuple[str, ...]

    @classmethod
    def parse(cls, option: str, text: str) -> SubjectTemplate:
        """Parse a template. Raises ConfigError for unbalanced braces or anything but a name in them."""
        texts, columns, literal = [], [], ""
        try:
            parts = list(string.Formatter().parse(text))
        except ValueError as error:
            raise ConfigError(
                f"option {option!r}: {text!r}: {error}; write {{{{ and }}}} for braces"
            ) from None
        for before, name, spec, conversion in parts:
            literal += before
            if name is None:
                continue
            if not name or spec or conversion:
                raise ConfigError(f"option {option!r}: {text!r}: braces hold the name of a column, no more")
            texts.append(literal)
            columns.append(name)
            literal = ""
        return cls((*texts, literal), tuple(columns))


@dataclass(frozen=True)
class SinkOptions:
    """Validated options of a write: target, message layout, delivery."""

    connection: ConnectionOptions
    stream: str
    """Option `stream` (or the argument of `save`): the target stream. Required: the server rejects a row
    whose subject belongs to another stream."""
    subject: SubjectTemplate | None = None
    """Option `subject`: a subject, or a template of one. Default: the column `subject`."""
    data_column: str | None = None
    """Option `dataColumn`: the payload's column, binary or string. Default `data`, else `value`."""
    headers: tuple[tuple[str, SubjectTemplate], ...] = ()
    """Option `headers`: lines of `Name: template`. A column `headers` (map<string,string>,
    map<string,array<string>> or Kafka's array<struct<key,value>>) adds to them."""
    message_id: SubjectTemplate | None = None
    """Option `messageId`: a template of unique row ids, used for deduplication. Default: made of query,
    micro-batch, partition, row and content."""
    delivery: str = "publish"
    """Option `delivery`: `publish`, `fast` (fast ingest; the stream needs allow_batched) or `atomic` (atomic
    batches; the stream needs allow_atomic). Default publish."""
    exactly_once: bool = True
    """Option `exactlyOnce`: false writes without ids and markers, at least once. Default true."""
    ledger: str | None = LEDGER_DEFAULT
    """Option `ledger`: the key-value bucket that records where each task of a query began to write, so that
    a task repeated after the stream's duplicate window finds the rows it stored. Created if missing. `none`:
    rely on the duplicate window alone. Default penstock_spark_sink."""
    marker_subject: str | None = None
    """Option `markerSubject`, required for `delivery` atomic: a subject of the stream under which each task
    stores its marker message, `<markerSubject>.<query>.<partition>`."""
    atomic_rows: int = 500
    """Option `atomicRows`: rows per atomic batch, not counting its marker. Default 500, at most 999."""
    window: int = 8192
    """Option `ackWindow`: rows that may be in flight, unacked. Default 8192."""
    flow: int = 2000
    """Option `flow`, for `delivery` fast: most rows per ack. Default 2000."""
    write_id: str | None = None
    """Option `writeId`: identifies a batch write, so that repeating it stores nothing twice. Default: an id
    that Spark makes for each run. Streaming queries use the query id in their checkpoint."""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SinkOptions:
        """Parse Spark's options.

        Raises ConfigError for an unknown name (names the nearest one), a malformed or out-of-range value,
        contradictory options, or a missing stream.
        """
        ours = {name: value for name, value in given.items() if name.lower() not in _SPARKS_OWN}
        return SinkOptionParser(ours).sink()


class SinkOptionParser(OptionParser):
    side = "sink"
    known = (
        "stream",
        "subject",
        "dataColumn",
        "headers",
        "messageId",
        "delivery",
        "exactlyOnce",
        "ledger",
        "markerSubject",
        "atomicRows",
        "ackWindow",
        "flow",
        "writeId",
        "includeHeaders",
        *CONNECTION_OPTIONS,
    )
    aliases: ClassVar[Mapping[str, str]] = {"path": "stream"}  # df.write.format("jetstream").save("ORDERS")

    def sink(self) -> SinkOptions:
        if not self.boolean("includeHeaders", True):
            raise ConfigError(
                "option 'includeHeaders' is false: a column 'headers' is always written; drop the column"
            )
        streams = self.names("stream")
        if len(streams) != 1:
            raise ConfigError(
                f"option 'stream' names {len(streams)} streams, a write goes to one: "
                '.option("stream", "ORDERS")'
            )
        delivery = self.values.get("delivery", "publish").strip().lower()
        if delivery not in DELIVERIES:
            raise ConfigError(f"option 'delivery' is {delivery!r}: {', '.join(DELIVERIES)}")
        exactly_once = self.boolean("exactlyOnce", True)
        return SinkOptions(
            connection=self.connection(),
            stream=streams[0],
            subject=self.template("subject"),
            data_column=self.values.get("dataColumn"),
            headers=self.header_templates(),
            message_id=self.message_id(delivery, exactly_once),
            delivery=delivery,
            exactly_once=exactly_once,
            ledger=self.ledger(delivery),
            marker_subject=self.marker_subject(delivery),
            atomic_rows=self.integer("atomicRows", 500, 1, 999),
            window=self.integer("ackWindow", 8192, 1, 1 << 20),
            flow=self.integer("flow", 2000, 1, 65_535),
            write_id=self.write_id(),
        )

    def template(self, name: str) -> SubjectTemplate | None:
        text = self.values.get(name)
        return None if text is None else SubjectTemplate.parse(name, text)

    def message_id(self, delivery: str, exactly_once: bool) -> SubjectTemplate | None:
        if "messageId" in self.values and delivery == "atomic":
            raise ConfigError(
                "option 'messageId' is not for 'delivery' atomic: its markers tell what is stored"
            )
        if "messageId" in self.values and not exactly_once:
            raise ConfigError("options 'messageId' and 'exactlyOnce' = false contradict each other")
        return self.template("messageId")

    def header_templates(self) -> tuple[tuple[str, SubjectTemplate], ...]:
        found = []
        for line in self.values.get("headers", "").splitlines():
            if not line.strip():
                continue
            name, colon, value = line.partition(":")
            name = name.strip()
            if not colon or not name or any(c.isspace() for c in name):
                raise ConfigError(f"option 'headers': {line!r} is no line of `Name: value`")
            if name.lower() in _OWN_HEADERS:
                raise ConfigError(f"option 'headers': {name} is the sink's own")
            found.append((name, SubjectTemplate.parse("headers", value.strip())))
        return tuple(found)

    def ledger(self, delivery: str) -> str | None:
        name = self.values.get("ledger", LEDGER_DEFAULT).strip()
        if delivery == "atomic" or name.lower() == "none":
            return None
        if not name or set(name) - _BUCKET_CHARS:
            raise ConfigError(f"option 'ledger': {name!r} is no bucket name (letters, digits, - and _)")
        return name

    def marker_subject(self, delivery: str) -> str | None:
        subject = self.values.get("markerSubject")
        if (subject is None) == (delivery == "atomic"):
            raise ConfigError(
                "option 'markerSubject' is missing: with 'delivery' atomic, name a subject of the stream for "
                "the tasks' markers"
                if subject is None
                else "option 'markerSubject' is for 'delivery' atomic"
            )
        return None if subject is None else self.subject("markerSubject", subject)

    def write_id(self) -> str | None:
        text = self.values.get("writeId")
        if text is not None and (not text or len(text) > 64 or set(text) - _ID_CHARS):
            raise ConfigError(f"option 'writeId' is {text!r}: 1 to 64 letters, digits, - and _")
        return text
