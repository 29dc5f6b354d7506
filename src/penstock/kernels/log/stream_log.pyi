"""The messages of one stream as Python sees them; the hot path is in stream_log.pxd."""

from collections.abc import Callable
from typing import Protocol

from penstock.kernels.log.log_core import LogCore
from penstock.kernels.log.message_block import MessageBlock
from penstock.kernels.log.records import Buffer

DEFAULT_BLOCK_SIZE: int
BATCH_BYTES_MAX: int

class StoredRecord:
    """One stored message. `ts` is ns since epoch; `header` is the whole header block, b"" without one."""

    seq: int
    ts: int
    subject: bytes
    header: bytes
    payload: bytes
    def __init__(self, seq: int, ts: int, subject: bytes, header: bytes, payload: bytes) -> None: ...

class _PendingRead(Protocol):
    def take(self) -> bytes: ...

class StreamLog(LogCore):
    """Blocks of records, per-subject state and counters of one stream.

    block_size: bytes after which a new block begins. durable: removals are recorded in the blocks, for a
    store that writes them; without it, and with load_block, the store may write closed blocks and nothing is
    read from them at a start. load_block(number, size) returns the bytes of a closed block;
    read_ranges([(number, ranges)]) those of some ranges, like record_reads.Reading, or None when the blocks
    have to be loaded. on_lost(number, [(offset, seq, why)]) is called with messages whose bytes on disk are
    damaged; they count as removed, and the first one starts a check of its whole block. storage ("file" or
    "memory") selects the cost of a message in `bytes`: that of the stream's configuration, wherever it is
    stored.
    """

    def __init__(
        self,
        block_size: int = ...,
        durable: bool = False,
        load_block: Callable[[int, int], Buffer] | None = None,
        on_lost: Callable[[int, list[tuple[int, int, str]]], None] | None = None,
        read_ranges: Callable[[list[tuple[int, bytes]]], _PendingRead | None] | None = None,
        storage: str = "file",
    ) -> None: ...

    # --- messages
    def append(self, subject: bytes, header: bytes, payload: bytes, ts: int) -> int:
        """Stores one message and returns its sequence. Raises ValueError when it is too large for a
        record."""

    def cost_of(self, subject_len: int, header_len: int, payload_len: int) -> int:
        """The amount by which such a message increases `bytes`. Every prediction must use it."""

    def begin_storing(self) -> None:
        """What is removed until end_storing() makes room for messages that are being stored: after a crash
        before they are written, it is there again. Calls may nest."""

    def end_storing(self) -> None: ...
    def begin_batch(self, size: int, count: int) -> None:
        """Starts a batch, up to end_batch(): recovery restores all of its messages or none.

        size, count: upper bounds of its bytes of records and messages. Nothing may be written before its end.

        Raises ValueError above BATCH_BYTES_MAX.
        """

    def end_batch(self) -> None:
        """Completes the batch."""

    def skip(self, ts: int) -> int:
        """Uses up the next sequence without storing anything, and returns it."""

    def skip_to(self, seq: int, ts: int) -> int:
        """Uses up all sequences up to seq, as `skip` does one."""

    def load(self, seq: int) -> StoredRecord | None:
        """The live message at seq."""

    def load_last(self, filter: bytes) -> StoredRecord | None:
        """The last live message whose subject matches the filter (wildcards allowed; b"" = all).

        Where the last one proved unreadable, the one before it, if it is among the last 10,000.
        """

    def load_next(self, filter: bytes, seq: int) -> StoredRecord | None:
        """The first live message at or after seq whose subject matches the filter."""

    def next_seq(self, seq: int, filter: bytes = b"") -> int:
        """Like load_next, the sequence alone; 0 when there is none. A wildcard filter scans: after
        a 0, continue at last_seq + 1."""

    def last_seq_of(self, filter: bytes) -> int:
        """The sequence load_last would load; 0 when none."""

    def last_seqs(self, filter: bytes = b">", upto_seq: int = 0) -> list[int]:
        """The last sequence of each matching subject (at or below upto_seq when given), ascending."""

    def seq_at_time(self, ts: int) -> int:
        """The first live sequence stored at or after ts (ns); last_seq + 1 when there is none."""

    # --- removal
    def remove(self, seq: int, secure: bool = False) -> bool:
        """Removes one message; secure overwrites its bytes too. False when it isn't there."""

    def purge(self, filter: bytes | None = None, upto_seq: int = 0, keep: int = 0) -> int:
        """Removes matching messages below upto_seq (0 = no bound), except the newest `keep`.

        Returns how many it removed. Without filter and keep, an upto_seq above last_seq advances the
        sequence: the next message gets upto_seq (as on the official server).
        """

    def purge_part(self, filter: bytes, seq: int, upto_seq: int, looks: int, most: int) -> tuple[int, int]:
        """Removes at most `most` matching messages from seq on and below upto_seq, and examines at most
        `looks` messages (with a literal filter: matching ones). Returns how many it removed, and the sequence
        at which to continue; 0: complete."""

    def limit(self, msgs_max: int, bytes_max: int) -> int:
        """Removes messages from the front until the log is within both limits (0 or negative = no limit);
        returns how many."""

    def limit_subject(self, subject: bytes, keep: int) -> int:
        """Removes all but the newest `keep` messages of a literal subject; returns how many."""

    def enforce_age(self, oldest_ts: int, most: int = ...) -> int:
        """Removes at most `most` messages older than oldest_ts (ns) from the front; returns how many."""

    def set_first_seq(self, seq: int) -> None:
        """The next message gets this sequence. Only for an empty log; ValueError otherwise."""

    # --- counting
    @property
    def num_subjects(self) -> int: ...
    @property
    def unindexed_subjects(self) -> int:
        """Number of subjects that are not in the wildcard index yet."""

    def index_subjects(self) -> bool:
        """Adds a slice of subjects to that index; False when all are in it."""

    def subject_memory(self) -> int:
        """Allocated bytes of the subject state."""

    def subjects(self, filter: bytes = b">") -> dict[bytes, int]:
        """Live messages by subject, of the subjects the filter matches."""

    def count_matching(self, filter: bytes = b">") -> int:
        """Live messages whose subject matches."""

    def count_from(self, seq: int, filter: bytes = b"") -> int:
        """Live messages at or after seq whose subject matches (b"" = all)."""

    @property
    def num_deleted(self) -> int:
        """Removed sequences between the first and the last."""

    def deleted(self, limit: int = 0) -> list[int]:
        """Those sequences, ascending, at most `limit` (0 = all)."""

    # --- for the store
    def block_list(self) -> list[MessageBlock]: ...
    def flush_tombstones(self) -> bool:
        """Records removals in the open block; call before unwritten(). Were there any?"""

    def unwritten(self) -> list[MessageBlock]:
        """Blocks with bytes past their `written`, in the order to write them."""

    @property
    def is_written(self) -> bool:
        """Was everything passed to the operating system, including tombstones?"""

    def take_closed(self) -> list[MessageBlock]:
        """Blocks closed since the last call, for a store with files: those are its own from now on."""

    def take_dropped(self) -> list[int]:
        """Numbers of blocks dropped since the last call: their files may be deleted after the next write."""

    def all_written(self) -> None:
        """Takes notice that the store has passed everything to the operating system."""

    def superseded_blocks(self) -> set[int]:
        """Numbers of dropped blocks whose messages were replaced by messages that aren't written yet: their
        files must stay, because after a crash the replaced messages must still exist. Do not modify the
        set."""

    def take_patches(self) -> list[tuple[int, int, bytes]]:
        """(block number, offset, bytes) of secure removals since the last call."""

    def patch(self, number: int, offset: int, data: bytes) -> None:
        """Overwrites bytes of block `number` in memory: those of a removed message, which recovery found in
        its file. The block may be written from memory again. Blocks that are not in memory, or mapped from
        their files, stay as they are."""

    def mark_stored(self, block: MessageBlock) -> None:
        """Takes notice that a closed block is on disk: its bytes may be released."""

    def ensure_loaded(self, block: MessageBlock) -> None:
        """Loads the bytes of a closed block, which stay in memory until others are loaded."""

    def release_idle(self) -> None:
        """Releases all bytes that can be loaded again. No pointer into the log may be in use."""

    def restore(self, blocks: list[MessageBlock]) -> list[tuple[int, str]]:
        """Fills a new log with blocks read from disk, in order of number; only the last may be open.

        Returns (number, why) of blocks that contradict earlier ones and were left out. A batch of which a
        record was lost is removed as a whole, and is in incomplete_batches.
        """

    @property
    def incomplete_batches(self) -> list[tuple[int, int, int]]:
        """(block number, first, last sequence) of the batches that restore() removed."""
