"""Which part of which query a task writes, and the small record that says how far it got."""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec

from penstock.errors import ConfigError, MisuseError

_NOT_A_TOKEN = re.compile(r"[^A-Za-z0-9_-]")


class Marker(msgspec.Struct, forbid_unknown_fields=False):
    """epoch: number of the micro-batch, 0 for batch writes. next: a position within it (a row, a sequence).
    created: of the stream the position is in, where it is one of a stream."""

    epoch: int
    next: int
    created: str = ""

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, payload: bytes, where: str) -> Marker:
        try:
            return msgspec.json.decode(payload, type=cls)
        except msgspec.DecodeError as error:
            raise ConfigError(
                f"the message on {where!r} is no marker of the sink ({error}): choose another place "
                "for markers"
            ) from None


@dataclass(frozen=True)
class TaskIdentity:
    """The same whenever Spark runs the same part of the same micro-batch again."""

    query: str
    epoch: int
    partition: int

    @classmethod
    def of_task(cls, write_id: str | None) -> TaskIdentity:
        """Of the Spark task this runs in. write_id: what the user named a batch write."""
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None:
            raise MisuseError("rows are written inside of a Spark task, this is none")
        query = context.getLocalProperty("sql.streaming.queryId")
        if query is not None:
            epoch = int(context.getLocalProperty("streaming.sql.batchId") or 0)
        else:
            query, epoch = write_id or context.getLocalProperty("spark.sql.execution.query.id"), 0
        if not query:
            raise MisuseError("this Spark names no query for the write: say option 'writeId'")
        return cls(_NOT_A_TOKEN.sub("_", query), epoch, context.partitionId())

    @property
    def id_prefix(self) -> bytes:
        """What all message ids of the task begin with."""
        return f"{self.query}:{self.epoch}:{self.partition}:".encode()

    def check(self, epoch: int, record: str) -> None:
        """Raises MisuseError when a later micro-batch of the query was written: this task is an old one."""
        if epoch > self.epoch:
            raise MisuseError(
                f"{self}: {record} is of micro-batch {epoch}. This task is out of date; or the checkpoint "
                "was set back, then use a new one, or remove that record"
            )

    def __str__(self) -> str:
        return f"query {self.query}, micro-batch {self.epoch}, partition {self.partition}"
