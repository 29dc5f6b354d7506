"""Identity of a writing task, and the marker that records its progress."""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec

from penstock.errors import ConfigError, MisuseError

_NOT_A_TOKEN = re.compile(r"[^A-Za-z0-9_-]")


class Marker(msgspec.Struct, forbid_unknown_fields=False):
    """Progress record, stored as JSON.

    epoch: micro-batch number, 0 for batch writes. next: next row of the task, or next stream sequence.
    created: creation time of the stream if `next` is a sequence, else "".
    """

    epoch: int
    next: int
    created: str = ""

    def encode(self) -> bytes:
        """The marker as JSON."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, payload: bytes, where: str) -> Marker:
        """Parse a marker found on subject `where`. Raises ConfigError if it is not one."""
        try:
            return msgspec.json.decode(payload, type=cls)
        except msgspec.DecodeError as error:
            raise ConfigError(
                f"the message on {where!r} is no marker of the sink ({error}): choose another place "
                "for markers"
            ) from None


@dataclass(frozen=True)
class TaskIdentity:
    """Query, micro-batch and partition of a task; equal for every attempt of the same task."""

    query: str
    epoch: int
    partition: int

    @classmethod
    def of_task(cls, write_id: str | None) -> TaskIdentity:
        """Identity of the running Spark task. write_id: option `writeId` of a batch write.

        Raises MisuseError outside of a task, or if Spark provides no query id.
        """
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
        """Prefix of all message ids of the task."""
        return f"{self.query}:{self.epoch}:{self.partition}:".encode()

    def check(self, epoch: int, record: str) -> None:
        """Raises MisuseError if `epoch` is later than this task's: the task is out of date."""
        if epoch > self.epoch:
            raise MisuseError(
                f"{self}: {record} is of micro-batch {epoch}. This task is out of date; or the checkpoint "
                "was set back, then use a new one, or remove that record"
            )

    def __str__(self) -> str:
        return f"query {self.query}, micro-batch {self.epoch}, partition {self.partition}"
