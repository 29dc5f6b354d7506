"""Stored state of a consumer: its meta, and its ack state as a snapshot with a journal.

Once per tick the kernel's journal bytes (runs of deliveries and acks) are appended to the store; when the
journal has outgrown the state, a new snapshot replaces both. Recovery loads the snapshot and replays the
journal: ack floor, pending messages, delivery counts and due redeliveries are restored.

Deliveries are written after they were sent, in the same tick: a crash in between repeats a message (at least
once), but loses none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from penstock.errors import StoreCorruptError
from penstock.kernels.consumer.ack_state import AckPolicy as KernelPolicy
from penstock.kernels.consumer.ack_state import AckState
from penstock.protocol.api import AckPolicy, ApiConsumerConfig
from penstock.store.interface import ConsumerStore

log = logging.getLogger("penstock.jetstream")

KERNEL_POLICY = {
    AckPolicy.NONE: KernelPolicy.ACK_NONE,
    AckPolicy.ALL: KernelPolicy.ACK_ALL,
    AckPolicy.EXPLICIT: KernelPolicy.ACK_EXPLICIT,
    AckPolicy.FLOW_CONTROL: KernelPolicy.ACK_ALL,  # a flow control response acks everything before it
}

# A new snapshot replaces a journal with the size of four snapshots, and of at least journal_min_bytes.
SNAPSHOTS_PER_JOURNAL = 4


class ConsumerMeta(msgspec.Struct, frozen=True):
    """What the store holds about a consumer besides its ack state.

    start_seq: its first stream sequence. resume_seq: deliver policy last_per_subject first delivers the last
    message of each subject up to here, then everything above; 0 for other policies. since: the first sequence
    that the position covers, after a change of filters; 0: start_seq. resets: how many resets of the ack
    state precede that change; after a later one the ack state has the first sequence. driven: it represents a
    mirror or source that reads the log itself (source_consumer.py), and delivers nothing; None: stored by a
    version in which that was so for all with ack policy flow_control.
    """

    config: ApiConsumerConfig
    name: str
    created: int  # ns
    start_seq: int
    resume_seq: int = 0
    since: int = 0
    driven: bool | None = None
    resets: int = 0

    @property
    def is_for_copies(self) -> bool:
        """Whether a mirror or source made it for itself: it is no asset of a cluster."""
        return bool(self.config.direct or self.config.sourcing or self.driven)


class Recorder:
    """Writes an ack state to its store.

    journal_min_bytes: a shorter journal is not replaced by a snapshot. record: called with each entry of the
    journal, before it is written; None: nothing follows the consumer.
    """

    def __init__(
        self,
        store: ConsumerStore,
        state: AckState,
        journal_min_bytes: int,
        record: Callable[[bytes], object] | None = None,
    ) -> None:
        self._store = store
        self._state = state
        self._record = record
        self._snapshot_at = self._journal_min_bytes = journal_min_bytes
        self.is_behind = False  # the last write failed: the store buffers changes that are not written

    def recover(self, last_seq: int) -> None:
        """Restores the state from the store. Raises StoreCorruptError when it is invalid.

        last_seq: of the stream. After a power failure the stream may end before the journal does. Deliveries
        beyond its end are then dropped: their sequences will belong to other messages. The position stays at
        or after the consumer's first sequence, because a work queue keeps what precedes it, and one that a
        reset put beyond the end waits there.
        """
        snapshot, entries = self._store.load()
        try:
            if snapshot is not None:
                self._state.restore(snapshot)
            for entry in entries:
                self._state.replay(entry)
            if entries or snapshot is not None:
                self._reconcile(last_seq)
        except ValueError as error:
            raise StoreCorruptError(
                f"the state of consumer {self._store.name} cannot be read: {error}"
            ) from error

    def _reconcile(self, last_seq: int) -> None:
        delivered = self._state.delivered_stream
        if delivered <= max(last_seq, self._state.start_seq - 1):
            return
        log.warning(
            "consumer %s delivered up to sequence %d, but its stream ends at %d: it continues from there",
            self._store.name, delivered, last_seq,
        )  # fmt: skip
        self._state.truncate(last_seq)
        self.replace()
        # Without the sync, another power failure could restore the dropped deliveries, for other messages.
        self._store.sync()

    def replace(self) -> None:
        """Stores the state as a whole, in recovery: whatever follows the consumer begins with it. Raises
        StoreWriteError."""
        self._store.snapshot(self._state.snapshot())

    def write(self, *, sync: bool = False) -> None:
        """Appends changes since the last call. sync: also syncs, even without changes: a repeated ack is
        confirmed by the write of the first one, which may not be synced yet.

        Raises StoreWriteError; the next write continues there.
        """
        entry = self._state.take_journal()
        if entry and self._record is not None:
            self._record(entry)
        if not (entry or self.is_behind or sync):
            return
        if entry:
            self._store.append(entry)
        self.is_behind = True
        if self._store.journal_bytes < self._snapshot_at:
            self._store.write()
        else:
            state = self._state.snapshot()
            self._store.start_snapshot(state)
            self._snapshot_at = max(self._journal_min_bytes, SNAPSHOTS_PER_JOURNAL * len(state))
        if sync:
            self._store.sync()
        self.is_behind = False
