"""Progress of a streaming query: what the source reports, and how to read it.

Spark lets a Python source report nothing but offsets. Therefore the latest offset carries, besides the ends
of the streams, `lag` (messages stored and not yet read, per stream) and `incoming_per_s` (messages stored per
second since the last report). Both show in `query.lastProgress`; `source_progress` parses all of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.spark.offsets import Offset, StreamBounds, StreamPosition, decode_offset, encode_offset


class LagReport:
    """Builds the latest offset of a progress report: the ends of the streams and the lag."""

    def __init__(self) -> None:
        self._end: Offset = {}
        self._before: tuple[float, dict[str, StreamBounds]] | None = None

    def taken(self, end: Offset) -> None:
        """Record the end offset of the micro-batch being planned."""
        self._end = end

    def latest(self, bounds: dict[str, StreamBounds], now_s: float) -> dict[str, Any]:
        """The latest offset with `lag` and `incoming_per_s`. now_s: monotonic clock, seconds."""
        ends = {name: StreamPosition(b.last_seq + 1, b.created) for name, b in bounds.items()}
        report = encode_offset(ends)
        report["lag"] = {
            name: max(0, p.next - self._end[name].next) for name, p in ends.items() if name in self._end
        }
        if self._before is not None and now_s > self._before[0]:
            then_s, then = self._before
            stored = sum(
                max(0, b.last_seq - then[name].last_seq)
                for name, b in bounds.items()
                if name in then and then[name].created == b.created
            )
            report["incoming_per_s"] = round(stored / (now_s - then_s), 1)
        self._before = now_s, bounds
        return report


@dataclass(frozen=True)
class SourceProgress:
    """Progress of one jetstream source in one micro-batch."""

    streams: tuple[str, ...]
    rows: int
    """Rows read."""
    sequences: int
    """Sequences passed. A recreated stream counts from sequence 1."""
    lag: Mapping[str, int]
    """Per stream: sequences stored and not yet read after this micro-batch."""
    rows_per_s: float
    """Rows read per second while the micro-batch ran."""
    incoming_per_s: float
    """Messages stored per second, in all streams, since the previous report."""

    @property
    def skipped(self) -> int:
        """Sequences without a row: deleted, expired, or not matched by a subject filter."""
        return max(0, self.sequences - self.rows)


def source_progress(progress: Any) -> list[SourceProgress]:
    """Progress of the jetstream sources of a query.

    progress: `query.lastProgress`, an element of `query.recentProgress`, or a StreamingQueryListener's
    `event.progress`. Returns an empty list for None, the value before the first micro-batch.
    """
    if progress is None:
        return []
    text = progress.json if hasattr(progress, "json") else json.dumps(progress)
    found = (_read(source) for source in json.loads(text)["sources"])
    return [source for source in found if source is not None]


def _read(source: Mapping[str, Any]) -> SourceProgress | None:
    end, latest = _json(source.get("endOffset")), _json(source.get("latestOffset"))
    if not (isinstance(end, dict) and "streams" in end and "v" in end):
        return None
    start = _json(source.get("startOffset"))
    finish = decode_offset(end)
    begin = decode_offset(start) if start else {}
    now = decode_offset(latest) if latest else finish
    return SourceProgress(
        streams=tuple(finish),
        rows=int(source.get("numInputRows", 0)),
        sequences=sum(_passed(begin, name, p.next, p.created) for name, p in finish.items()),
        lag={name: max(0, now[name].next - p.next) for name, p in finish.items() if name in now},
        rows_per_s=float(source.get("processedRowsPerSecond", 0.0)),
        incoming_per_s=float((latest or {}).get("incoming_per_s", 0.0)),
    )


def _passed(begin: Offset, stream: str, until: int, created: str) -> int:
    known = begin.get(stream)
    return max(0, until - (known.next if known is not None and known.created == created else 1))


def _json(value: Any) -> Any:
    """Decode an offset, which Spark reports either as JSON text or as an object."""
    return json.loads(value) if isinstance(value, str) else value
