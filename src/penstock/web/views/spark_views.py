"""Progress of Spark's streaming queries, as they publish it.

A query publishes each of its progress reports, the JSON of Spark's `StreamingQueryProgress`, to
`penstock.spark.progress.<query>` (docs/web.md has the listener). The page subscribes as the
visitor and shows what arrives from then on. Reports are messages of others: only known fields are read, and
what is no report counts as `unreadable`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.web.visitor import Visitor
from penstock.web.web_ports import Slice

if TYPE_CHECKING:
    from penstock.client import Msg

SUBJECT = "penstock.spark.progress.>"
QUERIES_MAX = 100
REPORTS_KEPT = 60
REPORT_BYTES_MAX = 256 * 1024
SOURCES_MAX = 16
QUEUED_MAX = 256
NOTE = "spark"


class QuerySource(msgspec.Struct, rename="camel"):
    """The fields of a source or sink that are shown."""

    description: str = ""
    num_input_rows: float = 0
    input_rows_per_second: float = 0.0
    processed_rows_per_second: float = 0.0
    latest_offset: Any = None


class QueryReport(msgspec.Struct, rename="camel"):
    """The fields of a `StreamingQueryProgress` that are shown."""

    id: str
    batch_id: int
    timestamp: str = ""
    name: str | None = None
    num_input_rows: float = 0
    input_rows_per_second: float = 0.0
    processed_rows_per_second: float = 0.0
    duration_ms: dict[str, float] = {}
    sources: list[QuerySource] = []


class ProgressReports:
    """The latest reports of each query, oldest query first."""

    def __init__(self) -> None:
        self.queries: dict[str, deque[QueryReport]] = {}
        self.unreadable = 0

    def take(self, data: bytes) -> None:
        """Adds a report."""
        try:
            if len(data) > REPORT_BYTES_MAX:
                raise msgspec.DecodeError("too long")
            report = msgspec.json.decode(data, type=QueryReport)
        except (msgspec.DecodeError, RecursionError):
            self.unreadable += 1
            return
        known = self.queries.pop(report.id, None) or deque(maxlen=REPORTS_KEPT)
        known.append(report)
        self.queries[report.id] = known
        if len(self.queries) > QUERIES_MAX:
            del self.queries[next(iter(self.queries))]

    async def on_message(self, msg: Msg) -> None:
        self.take(msg.data)

    def rows(self) -> list[Slice]:
        return [_row(reports) for reports in reversed(self.queries.values())]


async def spark(visitor: Visitor, query: Mapping[str, str]) -> Slice:
    """The queries that reported since the visitor opened this view first. Raises PermissionsError."""
    reports = visitor.notes.get(NOTE)
    if reports is None:
        reports = visitor.notes[NOTE] = ProgressReports()
        await visitor.client.subscribe(SUBJECT, callback=reports.on_message, max_pending_messages=QUEUED_MAX)
        await visitor.client.flush()
    return {"subject": SUBJECT, "rows": reports.rows(), "unreadable": reports.unreadable}


def _row(reports: deque[QueryReport]) -> Slice:
    latest = reports[-1]
    return {
        "id": latest.id[:64],
        "name": (latest.name or "")[:256],
        "batch": latest.batch_id,
        "time": latest.timestamp[:40],
        "rows": latest.num_input_rows,
        "in_per_s": latest.input_rows_per_second,
        "done_per_s": latest.processed_rows_per_second,
        "batch_ms": latest.duration_ms.get("triggerExecution", 0),
        "lag": sum(_lag(source) for source in latest.sources[:SOURCES_MAX]),
        "sources": [source.description[:256] for source in latest.sources[:SOURCES_MAX]],
        "reports": len(reports),
    }


def _lag(source: QuerySource) -> int:
    """Messages stored and not yet read, as penstock's source reports them in its latest offset."""
    offset = source.latest_offset
    if isinstance(offset, str):
        try:
            offset = msgspec.json.decode(offset)
        except (msgspec.DecodeError, RecursionError):
            return 0
    lag = offset.get("lag") if isinstance(offset, dict) else None
    values = lag.values() if isinstance(lag, dict) else ()
    return sum(value for value in values if isinstance(value, int) and value >= 0)
