"""The messages of one stream: the interface for Python and for the store. See log_core.pyx.

Rejected: answering wildcards by scanning the messages (the subject index knows first, last and count of
every subject, and a chain leads through the rest).
"""
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdlib cimport calloc, free, malloc, qsort
from libc.string cimport memcpy, memset

from penstock.kernels.log.subject_chains cimport count_many, merge_rows, merge_subject, sum_counts
from penstock.kernels.routing.grammar cimport filter_matches, has_wildcard
from penstock.kernels.log.message_block cimport (
    BATCH_HEAD_SIZE, ENTRY_DEAD, ENTRY_NONE, SPAN_MAX, MessageBlock,
)
from penstock.kernels.log.records cimport KIND_FLOOR, KIND_REMOVED, RECORD_OK, Record, cost_of
from penstock.kernels.wire.sinks cimport Message
from penstock.kernels.log.subject_state cimport Subject

cdef enum:
    WARM_MAX = 2                    # closed blocks that keep their own copy after they are on disk
    BATCH_SIZE_MAX = 0x40000000     # a batch is in one block, whose offsets have 31 bits
    ALL = 0xFFFFFFFFFFFFFFFF
    LAST_LOOKS = 10000              # messages that a search for the last readable one looks at: about a millisecond
    TOMBSTONES_MAX = 32768               # of removed messages in a block: adding them to its index takes 10 ms
    SINGLE_READS_MAX = 256          # records of a block that are read alone before it is loaded

DEFAULT_BLOCK_SIZE = BLOCK_SIZE_DEFAULT
BATCH_BYTES_MAX = BATCH_SIZE_MAX


cdef int compare_first(const void* a, const void* b) noexcept nogil:
    cdef uint64_t left = (<const uint64_t*>a)[0], right = (<const uint64_t*>b)[0]
    return (left > right) - (left < right)


cdef class StoredRecord:
    def __init__(self, uint64_t seq, int64_t ts, bytes subject not None, bytes header not None,
                 bytes payload not None):
        self.seq = seq
        self.ts = ts
        self.subject = subject
        self.header = header
        self.payload = payload

    def __eq__(self, other):
        if not isinstance(other, StoredRecord):
            return NotImplemented
        cdef StoredRecord o = other
        return (
            self.seq == o.seq and self.ts == o.ts and self.subject == o.subject and self.header == o.header
            and self.payload == o.payload
        )

    __hash__ = None

    def __repr__(self):
        return f"StoredRecord(seq={self.seq}, subject={self.subject!r}, {len(self.payload)} bytes)"


cdef StoredRecord last_readable(StreamLog log, bytes filter):
    """The last match, where subjects still have lost messages as their last ones (see _count_lost()). A request waits
    for it, so it looks at a bounded number of messages."""
    cdef Record r
    cdef int left = LAST_LOOKS
    cdef uint64_t seq = log._previous_live(log.last_seq)
    while seq and left:
        left -= 1
        if log.read(seq, &r) and (
            not filter or filter_matches(<const char*>filter, len(filter), r.subject, r.subject_len)
        ):
            return log._stored(seq)
        seq = log._previous_live(seq - 1)
    return None


cdef class StreamLog(LogCore):
    def append(self, bytes subject not None, bytes header not None, bytes payload not None, int64_t ts):
        cdef bytes body = header + payload if header else payload
        cdef Message m
        memset(&m, 0, sizeof(Message))
        m.subject = <const char*>subject
        m.subject_len = len(subject)
        m.body = <const char*>body
        m.header_len = len(header)
        m.body_len = len(body)
        return self.append_message(&m, ts)

    def cost_of(self, size_t subject_len, size_t header_len, size_t payload_len):
        return cost_of(&self.cost, subject_len, header_len, header_len + payload_len)

    def begin_storing(self):
        """What is removed until end_storing() makes room for messages that are being stored. Calls may nest."""
        self.storing += 1

    def end_storing(self):
        assert self.storing > 0
        self.storing -= 1

    def begin_batch(self, size_t size, size_t count):
        """Makes the messages appended until end_batch() atomic on recovery; see the .pyi."""
        cdef MessageBlock block = self.tail
        assert not self.in_batch
        if not self.durable:
            return
        if size > BATCH_SIZE_MAX:
            raise ValueError(f"a batch of {size} bytes can't be stored as one: it has {BATCH_SIZE_MAX} at most")
        size += BATCH_HEAD_SIZE
        if block is None or (block.count and (
            block.size + size > self.block_size
            or self.last_seq + count - block.first_seq > <uint64_t>SPAN_MAX
        )):
            self._roll()
            block = self.tail
        block.reserve(size)
        self.in_batch = True
        self.batch_at = block.size
        self.batch_first = self.last_seq + 1
        block.size += BATCH_HEAD_SIZE       # end_batch writes it: nothing can read the block meanwhile

    def end_batch(self):
        """Completes the batch: writes the head before it, without which recovery discards the batch."""
        cdef MessageBlock block = self.tail
        cdef size_t size
        if not self.in_batch:
            return
        self.in_batch = False
        assert block.size >= self.batch_at + BATCH_HEAD_SIZE
        size = block.size - self.batch_at - BATCH_HEAD_SIZE
        if size == 0:
            block.size = self.batch_at      # the batch stored no message
        else:
            block.write_batch_head(self.batch_at, self.batch_first, block.last_seq, size)

    cdef StoredRecord _stored(self, uint64_t seq):
        cdef Record r
        cdef StoredRecord message
        if seq == 0 or not self.read_single(seq, &r):
            return None
        message = StoredRecord.__new__(StoredRecord)
        message.seq = r.seq
        message.ts = r.ts
        message.subject = PyBytes_FromStringAndSize(r.subject, r.subject_len)
        message.header = PyBytes_FromStringAndSize(r.body, r.header_len)
        message.payload = PyBytes_FromStringAndSize(r.body + r.header_len, r.body_len - r.header_len)
        return message

    cdef int read_single(self, uint64_t seq, Record* r) except -1:
        """Reads the record alone from a block that is not loaded, up to SINGLE_READS_MAX times; then loads the block.

        Gets of messages all over a stream would otherwise load a block of 8 MiB for each one, once the blocks are
        larger together than what stays loaded: 170 us each from the page cache, and from the disk all of the block.
        A record alone takes 4 us. Of 300,000 messages of 128 bytes, read in random order after a restart, 5,900 a
        second came by blocks, 80,000 with 64 records alone before a block, 185,000 with 256.
        """
        cdef MessageBlock block = self._seek(seq)
        if block is None or block.data != NULL or self.read_ranges is None:
            return self.read(seq, r)
        if block.single_reads >= <uint32_t>SINGLE_READS_MAX:
            block.single_reads = 0
            return self.read(seq, r)
        block.single_reads += 1
        if self.single is None:
            self.single = BlockReads()
        self.single.drop()
        return self.single.read(self, &seq, 1, r)

    def load(self, uint64_t seq):
        return self._stored(seq)

    def load_last(self, bytes filter not None):
        cdef uint64_t seq = self.last_seq_of(filter)
        cdef StoredRecord found = self._stored(seq)
        if found is None and seq and self.lost:
            return last_readable(self, filter)
        return found

    def last_seq_of(self, bytes filter not None):
        cdef size_t i, n
        cdef uint64_t last = 0
        if filter == b"" or filter == b">":
            return self._previous_live(self.last_seq)
        n = self.state.match(<const char*>filter, len(filter))
        for i in range(n):
            if self.state.items[self.state.matched[i]].last > last:
                last = self.state.items[self.state.matched[i]].last
        return last

    cdef uint64_t _previous_live(self, uint64_t seq) noexcept:
        """Last live sequence <= seq, 0 when there is none."""
        cdef Py_ssize_t i = len(self.blocks) - 1, at
        cdef MessageBlock block
        while i >= 0:
            block = <MessageBlock>self.blocks[i]
            if block.live and block.first_seq <= seq:
                at = block.find_from(seq)
                if at == <Py_ssize_t>block.count or block.seq_at(at) > seq:
                    at -= 1
                while at >= 0:
                    if not block.entries[at].offset & <uint32_t>ENTRY_DEAD:
                        return block.seq_at(at)
                    at -= 1
            i -= 1
        return 0

    def load_next(self, bytes filter not None, uint64_t seq):
        return self._stored(self.next_matching(seq, <const char*>filter, len(filter)))

    def next_seq(self, uint64_t seq, bytes filter not None=b""):
        return self.next_matching(seq, <const char*>filter, len(filter))

    def remove(self, uint64_t seq, bint secure=False):
        return self._remove(seq, True, secure) == 1

    def skip(self, int64_t ts):
        return self.skip_message(ts)

    def limit(self, int64_t msgs_max, int64_t bytes_max):
        return self.enforce_limits(msgs_max, bytes_max, ALL, 0)

    def limit_subject(self, bytes subject not None, uint64_t keep):
        return self.enforce_subject_limit(<const char*>subject, len(subject), keep, ALL)

    def enforce_age(self, int64_t oldest_ts, uint64_t most=0xFFFFFFFFFFFFFFFF):
        cdef uint64_t gone = 0
        while gone < most and self.messages and self.first_ts < oldest_ts:
            gone += self._remove(self.first_seq, True, False)
        return gone

    def purge(self, bytes filter=None, uint64_t upto_seq=0, uint64_t keep=0):
        cdef uint64_t gone = 0, most, seq
        if filter is None or filter == b">":
            filter = b""
        if filter == b"" and keep == 0 and upto_seq > self.last_seq:
            self.last_seq = upto_seq - 1
            return self._purge_all()
        most = self.count_matching(filter)
        most = most - keep if most > keep else 0
        if most == 0:
            return 0
        if filter == b"" and upto_seq == 0 and keep == 0:
            return self._purge_all()
        seq = self.next_matching(self.first_seq, <const char*>filter, len(filter))
        while seq and gone < most and (upto_seq == 0 or seq < upto_seq):
            gone += self._remove(seq, True, False)
            seq = self.next_matching(seq + 1, <const char*>filter, len(filter))
        return gone

    def purge_part(self, bytes filter not None, uint64_t seq, uint64_t upto_seq, size_t looks,
                   uint64_t most):
        """Purges for a while, from seq on; see the .pyi."""
        cdef const char* f = <const char*>filter
        cdef size_t n = len(filter)
        cdef bint wild = has_wildcard(f, n) and filter != b">"
        cdef uint64_t gone = 0
        cdef Record r
        if seq < self.first_seq:
            seq = self.first_seq
        while looks and gone < most:
            # A wildcard examines each message: a query of the subject index for each next message could examine
            # all subjects each time.
            seq = self._next_live(seq) if wild else self.next_matching(seq, f, n)
            if seq == 0 or seq >= upto_seq:
                return gone, 0
            looks -= 1
            if not wild or (self.read(seq, &r) and filter_matches(f, n, r.subject, r.subject_len)):
                gone += self._remove(seq, True, False)
            seq += 1
        return gone, seq

    def _purge_all(self):
        """Removes all messages without examining them one by one."""
        cdef uint64_t gone = self.messages
        cdef MessageBlock block
        for block in self.blocks:
            if self.has_files:
                self._dropped.append(block.number)
                if self.durable and self.storing:
                    self._superseded.add(block.number)
        if not self.storing:
            self._superseded.clear()       # a user purged the messages: a crash need not bring them back
        self.blocks = []
        self._closed.clear()
        self.sparse.clear()
        self.warm.clear()
        self.loaded.clear()
        self.loaded_bytes = 0
        self.tail = self.read_block = self.chain_block = None
        self.state.clear()
        self._patches.clear()
        memset(self.hints, 0, sizeof(self.hints))
        self.range_count = 0
        self.messages = self.bytes = 0
        self.removals += gone
        if self.watch is not None:
            self.watch.lost()
        self.first_seq = self.last_seq + 1
        self.first_ts = 0
        if self.durable:
            self._roll()
        return gone

    def set_first_seq(self, uint64_t seq):
        if self.messages or seq <= self.last_seq:
            raise ValueError(
                f"the first sequence can be set to {seq} in an empty log only, above its last ({self.last_seq})"
            )
        self.last_seq = seq - 1
        self._purge_all()

    @property
    def num_subjects(self):
        return self.state.count

    @property
    def unindexed_subjects(self):
        return self.state.used - self.state.indexed

    def index_subjects(self):
        """Adds a slice of subjects to the wildcard index; False when all are in it."""
        self.state._catch_up()
        return self.state.indexed < self.state.used

    def subject_memory(self):
        """Allocated bytes of the subject state."""
        return self.state.memory()

    def subjects(self, bytes filter not None=b">"):
        cdef size_t i, n = self.state.match(<const char*>filter, len(filter))
        cdef Subject* s
        cdef dict found = {}
        for i in range(n):
            s = &self.state.items[self.state.matched[i]]
            found[PyBytes_FromStringAndSize(self.state.arena + s.text, s.text_len)] = s.count
        return found

    def last_seqs(self, bytes filter not None=b">", uint64_t upto_seq=0):
        """Last sequence of each matching subject (at or below upto_seq when given), ascending."""
        cdef size_t i, n = self.state.match(<const char*>filter, len(filter))
        cdef Subject* s
        cdef list found = []
        cdef list late = []
        for i in range(n):
            s = &self.state.items[self.state.matched[i]]
            if upto_seq == 0 or s.last <= upto_seq:
                found.append(s.last)
            elif s.first <= upto_seq:
                late.append(self.state.matched[i])
        for sid in late:
            found.append(self._last_upto(<uint32_t>sid, upto_seq))
        found.sort()
        return found

    cdef uint64_t _last_upto(self, uint32_t sid, uint64_t upto_seq) except? 0:
        cdef Subject* s = &self.state.items[sid]
        cdef uint64_t at = s.first, last = s.first
        while at and at <= upto_seq:
            last = at
            at = self._along(s, at + 1)
        return last

    def count_matching(self, bytes filter not None=b">"):
        cdef size_t i, n
        cdef uint64_t count = 0
        if filter == b"" or filter == b">":
            return self.messages
        n = self.state.match(<const char*>filter, len(filter))
        if n == 1 and self.lost:
            self._pass_lost(&self.state.items[self.state.matched[0]])
        for i in range(n):
            count += self.state.items[self.state.matched[i]].count
        return count

    cdef uint64_t _count_all_from(self, uint64_t seq) noexcept:
        cdef uint64_t count = 0
        cdef size_t i, at
        cdef MessageBlock block
        if seq <= self.first_seq:
            return self.messages
        i = self._block_from(seq)
        while i < <size_t>len(self.blocks):
            block = <MessageBlock>self.blocks[i]
            if seq <= block.first_seq:
                count += block.live
            elif block.live == block.count:
                count += block.count - block.find_from(seq)
            else:
                for at in range(block.find_from(seq), block.count):
                    count += not block.entries[at].offset & <uint32_t>ENTRY_DEAD
            i += 1
        return count

    def count_from(self, uint64_t seq, bytes filter not None=b""):
        if filter == b"" or filter == b">":
            return self._count_all_from(seq)
        return self._count_subjects(self.state.matched, self.state.match(<const char*>filter, len(filter)), seq)

    cdef uint64_t _count_subjects(self, const uint32_t* ids, size_t n, uint64_t seq) except? 0xFFFFFFFFFFFFFFFF:
        """Live messages from seq on of these subjects, which must be distinct."""
        cdef uint64_t total
        if n == self.state.count and self.lost == 0:
            return self._count_all_from(seq)
        total = sum_counts(self.state.items, ids, n)
        if total == self.messages:
            return self._count_all_from(seq)
        if self.lost == 0:                  # (otherwise the subjects also count lost messages)
            if seq <= self.first_seq:
                return total
            if total > self.messages // 2:
                return self._count_all_from(seq) - self._count_others(ids, n, seq)
        return count_many(self, ids, n, seq)

    cdef uint64_t _count_others(self, const uint32_t* ids, size_t n, uint64_t seq) except? 0xFFFFFFFFFFFFFFFF:
        """The same for all other subjects, which have fewer messages to walk along."""
        cdef size_t used = self.state.used, i, kept = 0
        cdef unsigned char* named = <unsigned char*>calloc(used + 1, 1)
        cdef uint32_t* others = <uint32_t*>malloc((self.state.count - n + 1) * sizeof(uint32_t))
        try:
            if named == NULL or others == NULL:
                raise MemoryError(f"no memory for a count among {used} subjects")
            for i in range(n):
                named[ids[i]] = 1
            for i in range(used):
                if not named[i] and self.state.items[i].count:
                    others[kept] = <uint32_t>i
                    kept += 1
            return count_many(self, others, kept, seq)
        finally:
            free(named)
            free(others)

    def seq_at_time(self, int64_t ts):
        """First live sequence stored at or after ts; last_seq + 1 when none is."""
        cdef size_t low = 0, high = len(self.blocks), middle, probe
        cdef MessageBlock block
        cdef Record r
        cdef uint64_t seq
        while low < high:
            middle = (low + high) // 2
            probe = middle
            while probe < high and not (<MessageBlock>self.blocks[probe]).count:
                probe += 1                  # a block with only tombstones has no times
            if probe == high:
                high = middle
            elif (<MessageBlock>self.blocks[probe]).last_ts < ts:
                low = probe + 1
            else:
                high = middle
        while low < <size_t>len(self.blocks) and not (<MessageBlock>self.blocks[low]).count:
            low += 1
        if low == <size_t>len(self.blocks):
            return self.last_seq + 1
        block = <MessageBlock>self.blocks[low]
        seq = self._next_live(self._seq_at_time_in(block, ts))
        while seq:
            if self.read(seq, &r) and r.ts >= ts:
                return seq
            seq = self._next_live(seq + 1)
        return self.last_seq + 1

    cdef uint64_t _seq_at_time_in(self, MessageBlock block, int64_t ts) except? 0:
        cdef size_t low = 0, high = block.count, middle, probe
        cdef Record r
        while low < high:
            middle = (low + high) // 2
            probe = middle
            while probe < high and (block.entries[probe].offset == <uint32_t>ENTRY_NONE
                                    or self._decode(block, probe, &r) != RECORD_OK):
                probe += 1
            if probe == high:
                high = middle
            elif r.ts < ts:
                low = probe + 1
            else:
                high = middle
        return block.seq_at(low) if low < block.count else block.last_seq + 1

    @property
    def num_deleted(self):
        return self.last_seq + 1 - self.first_seq - self.messages if self.messages else 0

    def deleted(self, size_t limit=0):
        """Removed sequences between first and last, ascending, at most `limit` (0 = all)."""
        cdef list found = []
        cdef uint64_t expected = self.first_seq, seq
        if self.num_deleted == 0:
            return found
        seq = self._next_live(expected)
        while True:
            while expected < (seq if seq else self.last_seq + 1):
                found.append(expected)
                if limit and <size_t>len(found) == limit:
                    return found
                expected += 1
            if seq == 0:
                return found
            expected = seq + 1
            seq = self._next_live(expected)

    # ------------------------------------------------------------------ for the store

    def block_list(self):
        return list(self.blocks)

    def flush_tombstones(self):
        """Writes tombstones of removals to the open block, so that the next write includes them."""
        cdef size_t i
        cdef uint64_t low, high
        if not self.durable or (self.range_count == 0 and self.first_seq <= self.recorded_floor):
            return False
        # Recovery reads the bytes after a batch's head as its messages, so a tombstone between them would break it.
        assert not self.in_batch
        if self.tail is None or self.tail.size > self.block_size or self.tail.removed_count > TOMBSTONES_MAX:
            self._roll()                # (tombstones alone may fill a block too)
        self._join_ranges()
        for i in range(self.range_count):
            low = self.ranges[2 * i]
            high = self.ranges[2 * i + 1]
            if high >= self.first_seq:
                self.tail.append_tombstone(KIND_REMOVED, low if low > self.first_seq else self.first_seq, high, 0)
        self.range_count = 0
        if self.first_seq > self.recorded_floor:
            self.tail.append_tombstone(KIND_FLOOR, self.first_seq, self.last_seq, self.last_ts)
            self.recorded_floor = self.first_seq
        assert self.tail.written <= self.tail.size
        return True

    cdef void _join_ranges(self) noexcept:
        """Sorts and joins ranges: acks arrive slightly out of order, so most ranges are adjacent."""
        cdef size_t i, kept = 1
        if self.range_count < 2:
            return
        qsort(self.ranges, self.range_count, 16, &compare_first)
        for i in range(1, self.range_count):
            if self.ranges[2 * i] <= self.ranges[2 * kept - 1] + 1:
                if self.ranges[2 * i + 1] > self.ranges[2 * kept - 1]:
                    self.ranges[2 * kept - 1] = self.ranges[2 * i + 1]
            else:
                self.ranges[2 * kept] = self.ranges[2 * i]
                self.ranges[2 * kept + 1] = self.ranges[2 * i + 1]
                kept += 1
        self.range_count = kept

    def unwritten(self):
        """Blocks with bytes that were not passed to the operating system, in order."""
        cdef MessageBlock block
        cdef list found = []
        cdef Py_ssize_t i = len(self.blocks) - 1
        # Only closed blocks of this tick and the open one can have any: look from the end.
        while i >= 0:
            block = <MessageBlock>self.blocks[i]
            if block.written < block.size and not block.replaces:
                found.append(block)
            elif block.closed:
                break
            i -= 1
        found.reverse()
        return found

    @property
    def is_written(self):
        """Was everything passed to the operating system, including tombstones?"""
        return self.range_count == 0 and self.first_seq <= self.recorded_floor and not self.unwritten()

    def take_closed(self):
        """Returns the closed blocks whose index isn't on disk yet, and removes them from the list: the store is
        responsible for them from now on."""
        closed = self._closed
        self._closed = []
        return closed

    def take_dropped(self):
        """Returns and removes the numbers of blocks whose files may be deleted after everything was written."""
        dropped = self._dropped
        self._dropped = []
        return dropped

    def all_written(self):
        """Takes notice that everything was passed to the operating system, including tombstones."""
        # The files of replaced messages are deleted from now on, so a bug must not move either number back.
        assert not self.in_batch
        assert self.written_seq <= self.last_seq and self.written_floor <= self.first_seq
        assert self.range_count == 0
        self.written_seq = self.last_seq
        self.written_floor = self.first_seq
        self._superseded.clear()

    def superseded_blocks(self):
        """Numbers of dropped blocks with messages whose successors aren't written."""
        return self._superseded

    def take_patches(self):
        """Returns and removes (block number, offset, bytes) to overwrite in the files."""
        patches = self._patches
        self._patches = []
        return patches

    def patch(self, uint64_t number, size_t offset, bytes data not None):
        """Overwrites bytes of a recovered block in memory; see the .pyi."""
        cdef MessageBlock block
        for block in self.blocks:
            if block.number == number and block.data != NULL and not block.borrowed:
                assert offset + <size_t>len(data) <= block.size
                memcpy(block.data + offset, <const char*>data, len(data))

    def mark_stored(self, MessageBlock block not None):
        """Takes notice that the block and its index are on disk: its bytes need not stay in memory."""
        if self.load_block is None or not block.closed or block.data == NULL:
            return
        assert block.written == block.size and not block.replaces   # its bytes can be loaded again
        self.warm.append(block)
        while len(self.warm) > WARM_MAX:
            (<MessageBlock>self.warm.pop(0)).release()

    def ensure_loaded(self, MessageBlock block not None):
        """Loads the bytes of a closed block, which stay in memory until others are loaded."""
        if block.data == NULL and block.size:
            self._load(block)

    def release_idle(self):
        """Releases all bytes that can be loaded again. No pointer into the log may be in use."""
        if self.load_block is None:
            return
        if self.single is not None:
            self.single.drop()
        while self.loaded:
            self._unload(<MessageBlock>self.loaded[0])
        while self.warm:
            (<MessageBlock>self.warm.pop()).release()

    def restore(self, list blocks not None):
        """Fills a new log with blocks read from disk, in order of number; see the .pyi."""
        cdef MessageBlock block, previous = None
        cdef uint64_t floor = 1, last = 0, replaced = 0, seq
        cdef size_t i
        cdef list kept = [], refused = []
        assert not self.blocks and self.last_seq == 0
        assert self.durable                 # _merge() counts whole records
        self.incomplete_batches = []
        for block in blocks:
            self.next_number = max(self.next_number, max(block.number, block.replaces_upto) + 1)
            if block.number <= replaced:
                # An earlier block already contains its messages: the process ended before deleting this file.
                self._dropped.append(block.number)
                continue
            replaced = max(replaced, block.replaces_upto)
            if previous is not None and block.count and block.first_seq <= previous.last_seq:
                why = f"it begins at {block.first_seq}, the block before ends at {previous.last_seq}"
                refused.append((block.number, why))
                continue
            if block.count == 0:
                block.begin_at((previous.last_seq if previous is not None else 0) + 1)
            floor = max(floor, block.floor)
            last = max(last, max(block.last_at_least, block.last_seq))
            for i in range(block.removed_count):
                # A message can be removed before it is written: then only the tombstone has its sequence. Reusing
                # the sequence would remove another message by the same tombstone at the next start.
                last = max(last, block.removed[i].last)
            if block.count and block.last_seq >= block.last_at_least:
                self.last_ts = block.last_ts
            elif block.last_at_least:       # otherwise its bytes were lost
                self.last_ts = block.recorded_ts
            kept.append(block)
            previous = block
        for block in kept:
            if block.last_seq < floor and block.closed:
                self._dropped.append(block.number)
                continue
            self.blocks.append(block)
            if not block.closed:
                assert block is kept[len(kept) - 1]
                self.tail = block
            self._merge(block)
        self.last_seq = last
        self.first_seq = 1
        self._advance_first()
        for block in kept:
            for i in range(block.removed_count):
                seq = self._next_live(max(block.removed[i].first, self.first_seq))
                while seq and seq <= block.removed[i].last:
                    self._remove(seq, False, False)
                    seq = self._next_live(seq + 1)
        self._drop_incomplete(kept, floor)
        while self.messages and self.first_seq < floor:
            self._remove(self.first_seq, False, False)
        if self.messages == 0:
            self.first_seq = max(floor, last + 1)
            self.last_seq = self.first_seq - 1
        self._drop_heads()
        # The tombstone with the last sequence must be in a block that is never dropped: the open one, if there is one.
        self.recorded_floor = 0
        if self.tail is not None:
            self.recorded_floor = self.tail.floor
        else:
            for block in self.blocks:
                self.recorded_floor = max(self.recorded_floor, block.floor)
        for block in self.blocks:
            if block.closed:
                self._queue_if_sparse(block)
        self.written_floor = self.first_seq
        self.removals = 0
        assert self.first_seq <= self.last_seq + 1
        assert self.last_seq >= last        # a sequence that was acked must not be assigned again
        return refused

    cdef int _drop_incomplete(self, list blocks, uint64_t floor) except -1:
        """Removes what is left of batches of which a power loss took bytes, so that no reader gets a part of
        one: they were not synced, and what was written later may be there. A message that is damaged otherwise is
        lost alone, for its batch may have been acked long ago.

        A record that was half overwritten when the power failed, because its message was removed securely, may
        look the same: then its tombstone is elsewhere, and the batch is complete.
        """
        cdef MessageBlock block
        cdef uint64_t first, last, seq
        for block in blocks:
            for first, last, holed in block.torn_batches:
                for seq in holed:
                    if not self._is_recorded(blocks, floor, seq):
                        break
                else:
                    continue
                self.incomplete_batches.append((block.number, first, last))
                seq = self._next_live(max(first, self.first_seq))
                while seq and seq <= last:
                    self._remove(seq, False, False)
                    seq = self._next_live(seq + 1)
        return 0

    cdef bint _is_recorded(self, list blocks, uint64_t floor, uint64_t seq):
        """Whether a tombstone tells that a message was removed."""
        cdef MessageBlock block
        cdef size_t i
        if seq < floor:
            return True
        for block in blocks:
            for i in range(block.removed_count):
                if block.removed[i].first <= seq <= block.removed[i].last:
                    return True
        return False

    cdef int _merge(self, MessageBlock block) except -1:
        """Adds a restored block's messages to the counters and the subject state."""
        cdef Record r
        cdef size_t at
        cdef uint64_t seq
        assert block.last_seq >= self.last_seq and block.live <= block.count
        if block.subject_rows is not None:
            merge_rows(self, block)
        else:
            for at in range(block.count):
                if block.entries[at].offset & <uint32_t>ENTRY_DEAD:
                    continue
                seq = block.seq_at(at)
                if self._decode(block, at, &r) == RECORD_OK:
                    merge_subject(self, r.subject, r.subject_len, seq, seq, 1)
        self.messages += block.live
        self.bytes += block.live_bytes
        self.last_seq = block.last_seq
        return 0
