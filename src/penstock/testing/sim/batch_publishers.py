"""The publishers of atomic and fast batches of all streams; atomic_checks.py and fast_checks.py check
them."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from penstock.kernels.wire.sinks import Sink
from penstock.testing.sim import Violation
from penstock.testing.sim.atomic_checks import AtomicBatchModel, AtomicRecord
from penstock.testing.sim.fast_checks import FastBatchModel, FastRecord
from penstock.testing.sim.stream_checks import Held, StreamRecord


class StreamBatches:
    """The batches of one stream."""

    def __init__(self, record: StreamRecord) -> None:
        self.record = record
        self.atomic = AtomicRecord(record)
        self.fast = FastRecord(record)


class BatchBook:
    """The batches of all streams, and the inboxes for their responses. committed: gives the last sequence of
    a stream that may be acked; None: any."""

    def __init__(self, committed: Callable[[str], int | None]) -> None:
        self._committed = committed
        self._streams: dict[str, StreamBatches] = {}
        self._numbers = itertools.count(1)
        self._inboxes: dict[int, AtomicRecord] = {}
        self._fast: dict[str, FastRecord] = {}
        self._died_at = 0  # ns

    def of(self, record: StreamRecord) -> StreamBatches:
        """The batches of a stream; none was started before the stream was created."""
        known = self._streams.get(record.name)
        if known is None or known.record is not record:
            known = self._streams[record.name] = StreamBatches(record)
        return known

    def new_atomic(self, record: StreamRecord) -> AtomicBatchModel:
        batch = AtomicBatchModel(next(self._numbers), record)
        self.of(record).atomic.batches.append(batch)
        return batch

    def new_fast(self, record: StreamRecord, *, flow: int, gap_ok: bool) -> FastBatchModel:
        batch = FastBatchModel(next(self._numbers), record, flow=flow, gap_ok=gap_ok)
        fast = self._fast[batch.id] = self.of(record).fast
        fast.batches.append(batch)
        return batch

    def new_inbox(self, record: StreamRecord) -> int:
        """The number of a new inbox for one response about an atomic batch."""
        number = next(self._numbers)
        self._inboxes[number] = self.of(record).atomic
        return number

    # --- events of the simulator

    def applied(self, record: StreamRecord, now: int, *, refusing: bool) -> None:
        """Records that the server applied a stream's arrivals, or rejected all of them."""
        batches = self._streams.get(record.name)
        if batches is not None and batches.record is record:
            batches.atomic.applied(now, refusing=refusing)
            batches.fast.applied()

    def end_tick(self, record: StreamRecord, now: int, *, faulty: bool) -> None:
        """Checks a stream after its tick, when its record has looked at the log."""
        batches = self._streams.get(record.name)
        if batches is not None and batches.record is record:
            batches.atomic.end_tick(now, faulty=faulty)
            batches.fast.end_tick(now, faulty=faulty)

    def died(self, now: int) -> None:
        """Records a crash. The server may have applied everything by now: time passes before it restarts."""
        self._died_at = now
        for batches in self._streams.values():
            batches.atomic.applied(now, refusing=False)

    def check_recovery(self, record: StreamRecord, found: dict[int, Held], now: int, *, power: bool) -> None:
        """Checks the recovered messages, before the record adopts them."""
        batches = self._streams.get(record.name)
        if batches is not None and batches.record is record:
            batches.atomic.check_recovery(found, now, power=power)
            batches.fast.check_recovery(found, self._died_at, power=power)

    def crashed(self, *, damaged: bool) -> None:
        """Drops pending responses after a crash. damaged: bits of the files were flipped."""
        self._inboxes.clear()
        for batches in self._streams.values():
            batches.atomic.crashed(damaged=damaged)
            batches.fast.crashed()

    # --- what arrives

    def on_atomic_answer(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None
    ) -> None:
        number = int(subject.rpartition(b".")[2])
        atomic = self._inboxes.pop(number, None)
        if atomic is None:
            raise Violation("answers", f"{subject!r} got a second answer: {payload!r}")
        atomic.answered(number, payload, self._committed(atomic.name))

    def on_fast_answer(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None
    ) -> None:
        batch_id = subject.split(b".")[2].decode()
        fast = self._fast[batch_id]
        fast.answered(batch_id, payload, self._committed(fast.name))
