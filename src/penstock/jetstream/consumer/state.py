"""What a consumer keeps: its meta, and its ack state as a snapshot with a journal.

Once a tick the kernel's journal bytes (runs of deliveries and acks) are appended to the store; when the
journal has outgrown the state it describes, a snapshot replaces both. Recovery is the snapshot with the
journal replayed on it: ack floor, pending messages and delivery counts are as they were, and what was due
is due.

Deliveries are written after they were sent, in the same tick: a crash in between sends a message again
(at least once), never loses one.
"""

from __future__ import annotations

import logging

import msgspec

from penstock.errors import StoreCorruptError
from penstock.kernels.consumer.ack_state import AckPolicy as KernelPolicy
from penstock.kernels.consumer.ack_state import AckState
from penstock.protocol.api import AckPolicy, ConsumerConfig
from penstock.store.interface import ConsumerStore

log = logging.getLogger("penstock.jetstream")

KERNEL_POLICY = {
    AckPolicy.NONE: KernelPolicy.ACK_NONE,
    AckPolicy.ALL: KernelPolicy.ACK_ALL,
    AckPolicy.EXPLICIT: KernelPolicy.ACK_EXPLICIT,
    AckPolicy.FLOW_CONTROL: KernelPolicy.ACK_ALL,  # an answer to flow control acks all before it
}

# A snapshot is taken when the journal has as many bytes as four snapshots, and not below a minimum.
SNAPSHOTS_PER_JOURNAL = 4


class ConsumerMeta(msgspec.Struct, frozen=True):
    """What the store keeps about a consumer besides its ack state.

    start_seq: the stream sequence it began with. resume_seq: deliver policy last_per_subject first takes
    the last message of each subject up to here, then everything behind it; 0 for the other policies.
    since: the first sequence its position speaks of, after other filters or a reset; 0: start_seq.
    driven: it stands for a mirror or source that reads the log itself (source_consumer.py), and delivers
    nothing; None: kept by a version in which that was so of all with ack policy flow_control.
    """

    config: ConsumerConfig
    name: str
    created: int  # ns
    start_seq: int
    resume_seq: int = 0
    since: int = 0
    driven: bool | None = None


class Recorder:
    """Writes an ack state into its store.

    journal_min_bytes: below that a journal is not worth replacing by a snapshot.
    """

    def __init__(self, store: ConsumerStore, state: AckState, journal_min_bytes: int) -> None:
        self._store = store
        self._state = state
        self._snapshot_at = self._journal_min_bytes = journal_min_bytes
        self.is_behind = False  # the last write failed: the store has more than the operating system

    def recover(self, last_seq: int) -> None:
        """Makes the state what the store says. Raises StoreCorruptError where that makes no sense.

        last_seq: of the stream. Where a power failure took the stream's end, but not that of the journal,
        what was delivered beyond it is forgotten: its sequences will be other messages.
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
                f"the state of consumer {self._store.name} can't be read: {error}"
            ) from error

    def _reconcile(self, last_seq: int) -> None:
        delivered = self._state.delivered_stream
        if delivered <= last_seq:
            return
        log.warning(
            "consumer %s delivered up to %d, its stream ends at %d: goes on from there",
            self._store.name, delivered, last_seq,
        )  # fmt: skip
        self._state.truncate(last_seq)
        self._store.snapshot(self._state.snapshot())
        # Without the sync, the next power loss could bring back what was delivered, for other messages.
        self._store.sync()

    def start_over(self, seq: int) -> None:
        """The state of a consumer that begins with stream sequence `seq`. Raises StoreWriteError."""
        fresh = AckState(self._state.policy, seq).snapshot()
        self._state.restore(fresh)
        self._store.snapshot(fresh)

    def write(self, *, sync: bool = False) -> None:
        """Appends what changed since the last time; sync: and waits for the disk, also when nothing changed:
        an ack that repeats an earlier one is confirmed by what that one wrote, which may not be synced yet.

        Raises StoreWriteError; the next write goes on there.
        """
        entry = self._state.take_journal()
        if entry:
            self._store.append(entry)
        elif not self.is_behind and not sync:
            return
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
