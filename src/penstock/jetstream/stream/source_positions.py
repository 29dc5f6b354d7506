"""Positions of a stream in its sources, for when the messages that imply them are gone.

The header of every sourced message names its origin and sequence, so the last message of each source is its
position. A work queue whose messages were consumed, or a purged stream, has no such message: positions are
also recorded in a journal beside the messages, with the stream's last sequence at that time.

Ordering contract: positions are recorded after the messages are written, and before anything that follows
from them takes effect (consumers, removals by acks). A crash in between leaves the headers, which are read
from the recorded sequence on. A record that covers messages lost in a power failure is ignored.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable

import msgspec

from penstock.jetstream.stream.header_scan import scan_headers, work_of
from penstock.jetstream.stream.source_config import read_header
from penstock.jetstream.stream.source_state import SourceState
from penstock.kernels.log.stream_log import StreamLog
from penstock.protocol import headers
from penstock.store.interface import ConsumerStore, StreamStore

JOURNAL_MAX = 256 * 1024  # bytes of records after which one replaces all


class PositionRecord(msgspec.Struct, frozen=True, array_like=True):
    """last_seq: the stream's last sequence at the time. sources: index name -> (sequence, identity) of the
    origin."""

    last_seq: int
    sources: dict[str, tuple[int, str]]


class SourcePositions:
    """The positions of one stream with sources."""

    def __init__(self, store: StreamStore) -> None:
        self._store = store
        self._journal: ConsumerStore | None = None
        self._recorded: dict[str, tuple[int, str]] = {}  # as the journal has it
        self._recorded_seq = 0  # the stream's last sequence then
        self._left: dict[str, tuple[int, str]] = {}  # of sources that it no longer has, until recorded

    def note(self, source_states: Iterable[SourceState], log: StreamLog) -> None:
        """Records positions that changed since the last call. Raises StoreWriteError."""
        moved = {
            one.index_name: (one.seq, one.ident)
            for one in source_states
            if one.seq and self._recorded.get(one.index_name) != (one.seq, one.ident)
        }
        moved = {**self._left, **moved}
        if moved:
            journal = self._open()
            self._recorded.update(moved)
            self._recorded_seq = log.last_seq
            journal.append(msgspec.json.encode(PositionRecord(log.last_seq, moved)))
            self._left.clear()
        if self._journal is not None:
            self._journal.write()
            if self._journal.journal_bytes > JOURNAL_MAX:
                self._journal.start_snapshot(
                    msgspec.json.encode(PositionRecord(log.last_seq, self._recorded))
                )

    def leave(self, source_states: Iterable[SourceState]) -> None:
        """Handles sources that an update removed. The next record must have their positions: it moves the
        sequence from which headers are read past their last messages, and the source may be added again."""
        self._left.update((one.index_name, (one.seq, one.ident)) for one in source_states if one.seq)

    def _open(self) -> ConsumerStore:
        if self._journal is None:
            self._journal = self._store.open_positions()
            self._journal.load()
        return self._journal

    def prepare(self, log: StreamLog) -> None:
        """Opens the journal and reads what another process recorded. Raises StoreError."""
        if self._journal is None:
            self._journal = self._read(log)

    def recover(self, source_states: Collection[SourceState], log: StreamLog) -> Generator[int, None, None]:
        """Restores the source states from the journal and the messages stored since; yields work. Raises
        StoreError without prepare()."""
        known = yield from self.find(source_states, log)
        for source_state in source_states:
            if source_state.index_name in known and not source_state.is_mirror:
                source_state.resume_at(*known[source_state.index_name])

    def find(
        self, source_states: Iterable[SourceState], log: StreamLog
    ) -> Generator[int, None, dict[str, tuple[int, str]]]:
        """The positions in the journal and in the messages stored since, by source: (sequence, identity of
        the origin). Yields work. Raises StoreError without prepare().

        The messages may be of sources that the stream no longer has, when a power failure took the record of
        their removal. The next record must have those positions too, see leave().
        """
        self.prepare(log)
        known = dict(self._recorded)
        for found in scan_headers(log, headers.STREAM_SOURCE, self._recorded_seq + 1):
            for _, _, value in found:
                name, seq, ident = read_header(value)
                if name:
                    known[name] = (seq, ident)
            yield work_of(found)
        known.update(self._left)
        present = {one.index_name for one in source_states}
        self._left.update(
            (name, position)
            for name, position in known.items()
            if name not in present and position != self._recorded.get(name)
        )
        return known

    def _read(self, log: StreamLog) -> ConsumerStore:
        journal = self._store.open_positions()
        state, entries = journal.load()
        for text in [*([state] if state is not None else ()), *entries]:
            record = msgspec.json.decode(text, type=PositionRecord)
            if record.last_seq > log.last_seq:
                # A power failure removed the messages that it covers; it must never count again. Without the
                # sync, another power failure could restore it, when other messages have these sequences.
                journal.snapshot(msgspec.json.encode(PositionRecord(self._recorded_seq, self._recorded)))
                journal.sync()
                break
            self._recorded.update(record.sources)
            self._recorded_seq = record.last_seq
        return journal
