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

    block_size: bytes after which a new block begins. durable: removals are noted in the blocks, for a store
    that writes them. load_block(number, size) gives the bytes of a closed block back; read_ranges([(number,
    pieces)]) some of several, as kernels.readahead.Reading does, or None where the blocks have to be loaded.
    on_lost(number, [(offset, seq, why)]) is called with messages whose bytes on disk turned out to be wrong;
    they count as removed, and once one is found all others of its block are looked for. storage ("file" or
    "memory") says what a message counts in `bytes`: a stream that its configuration calls a file's counts as
    such wherever it is kept.
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
        """Stores one message and returns its sequence. Raises ValueError when no record can hold it."""

    def cost_of(self, subject_len: int, header_len: int, payload_len: int) -> int:
        """How much `bytes` grows by such a message. All that predicts it asks here."""

    def begin_batch(self, size: int, count: int) -> None:
        """What is appended until end_batch() is one unit: it comes back from the disk whole or not at all.

        size, count: the most bytes of records, and messages, it will have. Writing has to wait until its end.

        Raises ValueError above BATCH_BYTES_MAX.
        """

    def end_batch(self) -> None:
        """The unit is complete."""

    def skip(self, ts: int) -> int:
        """Uses up the next sequence without storing anything, and returns it."""

    def skip_to(self, seq: int, ts: int) -> int:
        """Uses up all sequences up to seq, as `skip` does one."""

    def load(self, seq: int) -> StoredRecord | None:
        """The live message at seq."""

    def load_last(self, filter: bytes) -> StoredRecord | None:
        """The last live message whose subject matches the filter (wildcards allowed; b"" = all)."""

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
        """Removes what matches the filter, below upto_seq (0 = no bound), but keeps the newest `keep`.

        Returns how many went. Without filter and keep, an upto_seq above last_seq moves the sequence on:
        the next message gets upto_seq (as the official server does).
        """

    def purge_part(self, filter: bytes, seq: int, upto_seq: int, looks: int, most: int) -> tuple[int, int]:
        """Removes `most` messages at most that match the filter, from seq on and below upto_seq, with looks
        at so many messages (of a literal filter: so many that match). Returns how many went, and where it
        goes on; 0: there are no more."""

    def limit(self, msgs_max: int, bytes_max: int) -> int:
        """Removes from the front until both hold (0 or negative = no limit); returns how many went."""

    def limit_subject(self, subject: bytes, keep: int) -> int:
        """Keeps the newest `keep` messages of a literal subject; returns how many went."""

    def enforce_age(self, oldest_ts: int, most: int = ...) -> int:
        """Removes from the front what is older than oldest_ts (ns), `most` at most; returns how many went."""

    def set_first_seq(self, seq: int) -> None:
        """The next message gets this sequence. Only for an empty log; ValueError otherwise."""

    # --- counting
    @property
    def num_subjects(self) -> int: ...
    @property
    def unindexed_subjects(self) -> int:
        """How many subjects the index that answers wildcards does not have yet."""

    def index_subjects(self) -> bool:
        """Puts some more subjects into that index; False when all are there."""

    def subject_memory(self) -> int:
        """Bytes held for the subjects."""

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
    def flush_notes(self) -> bool:
        """Notes removals in the open block; call before unwritten(). Were there any?"""

    def unwritten(self) -> list[MessageBlock]:
        """Blocks with bytes past their `written`, in the order to write them."""

    @property
    def is_written(self) -> bool:
        """Was everything handed to the operating system, notes of removals included?"""

    def take_closed(self) -> list[MessageBlock]:
        """Blocks that were closed since the last call: their index wants to be written."""

    def take_dropped(self) -> list[int]:
        """Numbers of blocks that are gone since the last call: their files may go after the next write."""

    def all_written(self) -> None:
        """The store has handed everything there is to the operating system."""

    def outdone(self) -> set[int]:
        """Numbers of blocks that are gone because messages took the place of theirs which aren't written yet:
        should those never be, the old ones must still be there. Don't change it."""

    def take_patches(self) -> list[tuple[int, int, bytes]]:
        """(block number, offset, bytes) of secure removals since the last call."""

    def settle(self, block: MessageBlock) -> None:
        """A closed block is on disk: its bytes may leave memory."""

    def bring_back(self, block: MessageBlock) -> None:
        """The bytes of a closed block are in memory until others are loaded."""

    def release_idle(self) -> None:
        """Releases all bytes that can be loaded again. No pointer into the log may be in use."""

    def restore(self, blocks: list[MessageBlock]) -> list[tuple[int, str]]:
        """Takes over blocks read from disk, in order of number; only the last may be open.

        Returns (number, why) of blocks that contradict the ones before and were left out.
        """
