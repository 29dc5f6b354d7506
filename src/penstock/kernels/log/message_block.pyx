"""One block of a stream: the bytes of its records, and an index of its sequences.

A block is filled front to back and then closed; entries of removed messages stay, marked dead, because
the chains of their subjects pass through them. A compacted block has entries for only some of its sequences and
stores the sequences in an array (sparse).

Invariants: entries are in order of sequence; every offset that is not ENTRY_NONE is that of a record
that scan() checked or this process wrote; `live` and `live_bytes` count the entries without ENTRY_DEAD. The bytes
neither move nor go while a view of them is exported.
Rejected: a map of sequences (a dense array needs only a subtraction); dropping dead entries immediately (it would
need a search for the entries that link to them).
"""
import struct

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

from penstock.kernels.base.memory cimport array_grow, array_new
from penstock.kernels.wire.output cimport OutBuffer
from penstock.kernels.log.records cimport (
    SEQ_BITS,
    KIND_BATCH,
    KIND_FLOOR,
    KIND_MESSAGE,
    KIND_REMOVED,
    KIND_REPLACES,
    RECORD_END,
    RECORD_BAD_HASH,
    RECORD_OK,
    RECORD_OVERHEAD,
    RECORD_TORN_BATCH,
    decode_record,
    encode_record,
    record_size,
    xxh64,
)
from penstock.kernels.log.records import WHY

cdef extern from *:
    """
    #include <stdlib.h>
    #ifdef __linux__
    #include <sys/mman.h>
    #endif
    /* Memory of blocks: in huge pages if available, because each small page costs a fault. Some freed blocks
       stay for reuse: the system clears new memory, which takes longer than filling it. Needs the interpreter's
       lock. */
    #define SPARE_MAX 2
    static struct { void* p; size_t n; } large_spare[SPARE_MAX];
    static void* large_alloc(size_t n) {
        int i;
        for (i = 0; i < SPARE_MAX; i++)
            if (large_spare[i].n == n) {
                void* kept = large_spare[i].p;
                large_spare[i].n = 0;
                return kept;
            }
    #if defined(__linux__) && defined(MADV_HUGEPAGE)
        const size_t page = 2u << 20;
        void* p;
        if (posix_memalign(&p, page, n)) return NULL;
        madvise(p, n / page * page, MADV_HUGEPAGE);
        return p;
    #else
        return malloc(n);
    #endif
    }
    static void large_free(void* p, size_t n) {
        int i;
        for (i = 0; i < SPARE_MAX; i++)
            if (!large_spare[i].n) {
                large_spare[i].p = p;
                large_spare[i].n = n;
                return;
            }
        free(p);
    }
    """
    void* large_alloc(size_t n)
    void large_free(void* p, size_t n)

cdef enum:
    DATA_MIN = 4096
    LARGE = 4194304                 # bytes from which a block gets huge pages
    SPARE_CAPACITY = 8388608        # capacity of blocks whose memory is reused: the default size
    ENTRIES_MIN = 64
    REMOVED_FIRST = 16
    HOLE_MIN = 16                   # zeros in a row; the fixed fields of an intact record have fewer
    DENSE_FACTOR = 3                # sparse when less than one sequence in three has an entry

cdef enum BatchState:
    BATCH_WHOLE
    BATCH_DAMAGED                   # the hashes of some records do not match
    BATCH_TORN                      # some records are missing

# magic, number, size, bytes and last 8 bytes of the file, first and last sequence, first and last timestamp, live
# messages and bytes, floor, least last sequence and its timestamp, last replaced block, entries, removed ranges, sparse
HEAD = struct.Struct("<8s6Q2q4Qq3QB")
PAIR = struct.Struct("<2Q")
DIGEST = struct.Struct("<Q")
FILE_AT = 24                        # offset in HEAD of size and last bytes of the file
INDEX_MAGIC = b"PENSIDX2"


cdef void free_data(char* data, size_t capacity) noexcept:
    if capacity == <size_t>SPARE_CAPACITY:
        large_free(data, capacity)
    elif capacity:
        free(data)


cdef bint has_hole(const char* p, size_t n) noexcept:
    """Are there HOLE_MIN zeros in a row? Bytes that a power loss took are zeros, whole sectors of them. A
    record that was damaged later has them only where its message has."""
    cdef size_t i, zeros = 0
    for i in range(n):
        zeros = 0 if p[i] else zeros + 1
        if zeros == HOLE_MIN:
            return True
    return False


cdef inline char* put_bytes(char* to, const void* data, size_t size) noexcept:
    """Copies data to an address. Returns the address behind it."""
    if size:                                        # without any, data may be NULL, which memcpy must not get
        memcpy(to, data, size)
    return to + size


cdef inline Py_ssize_t next_in_block(MessageBlock block, size_t at) noexcept:
    """The next entry of the same subject; -1 when there is none in this block."""
    cdef uint32_t delta = block.entries[at].next_delta
    if delta == 0 or delta == <uint32_t>NEXT_FAR:
        return -1
    if block.seqs == NULL:                          # as find(), without a call for each entry
        return <Py_ssize_t>(at + delta) if at + delta < block.count else -1
    return block.find(block.seq_at(at) + delta)


cdef class MessageBlock:
    def __cinit__(self, uint64_t number, uint64_t first_seq):
        assert first_seq > 0
        self.number = number
        self.first_seq = first_seq
        self.last_seq = first_seq - 1
        self.skipped_offsets = []
        self.torn_batches = []

    def __dealloc__(self):
        free(self.entries)
        free(self.seqs)
        free(self.removed)
        # Decides by `capacity`, not by `source`: the garbage collector may have cleared that already.
        free_data(self.data, self.capacity)

    def __len__(self):
        return self.count

    @property
    def resident(self):
        return self.data != NULL

    cdef char* reserve(self, size_t n) except NULL:
        cdef size_t wanted
        cdef char* p
        if self.size + n > self.capacity:
            if self.views:
                raise BufferError("the bytes of a block can't grow while a view of them is exported")
            assert not self.borrowed
            wanted = self.capacity if self.capacity else DATA_MIN
            while wanted < self.size + n:
                wanted *= 2
            if self.data == NULL and wanted >= <size_t>LARGE:
                p = <char*>large_alloc(wanted)
            else:
                p = <char*>realloc(self.data, wanted)
            if p == NULL:
                raise MemoryError(f"no memory for a block of {wanted} bytes")
            self.data = p
            self.capacity = wanted
        assert self.size + n <= self.capacity
        return self.data + self.size

    cdef int _reserve_entry(self) except -1:
        cdef size_t wanted
        cdef Entry* p
        cdef uint32_t* q
        if self.count < self.entry_capacity:
            return 0
        wanted = self.entry_capacity * 2 if self.entry_capacity else ENTRIES_MIN
        p = <Entry*>realloc(self.entries, wanted * sizeof(Entry))
        if p == NULL:
            raise MemoryError(f"no memory for {wanted} entries of a block")
        self.entries = p
        if self.seqs != NULL:
            q = <uint32_t*>realloc(self.seqs, wanted * sizeof(uint32_t))
            if q == NULL:
                raise MemoryError(f"no memory for {wanted} sequences of a block")
            self.seqs = q
        self.entry_capacity = wanted
        return 0

    cdef int push(self, uint64_t seq, uint32_t offset, int64_t ts, size_t size) except -1:
        cdef Entry* entry
        # Searches in the block, and what recovery assigns next, rely on ascending sequences and offsets; the top bit
        # of an offset marks a removed message.
        assert seq > self.last_seq
        assert offset < <uint32_t>ENTRY_DEAD
        assert self.borrowed or offset + size <= self.capacity
        assert (
            self.count == 0 or self.entries[self.count - 1].offset == <uint32_t>ENTRY_NONE
            or self.entries[self.count - 1].offset & <uint32_t>ENTRY_OFFSET < offset
        )
        if self.count == 0:
            self.first_seq = seq
            self.first_ts = ts
        elif seq != self.last_seq + 1 and self.seqs == NULL:
            self._skip_to(seq)
        self._reserve_entry()
        entry = &self.entries[self.count]
        entry.offset = offset
        entry.next_delta = 0
        if self.seqs != NULL:
            self.seqs[self.count] = <uint32_t>(seq - self.first_seq)
        self.count += 1
        self.last_seq = seq
        self.last_ts = ts
        self.live += 1
        self.live_bytes += size
        assert self.count <= self.entry_capacity and self.live <= self.count
        assert self.live_bytes <= offset + size
        return 0

    cdef int _skip_to(self, uint64_t seq) except -1:
        """Handles a gap: adds empty entries when it is small, otherwise the block becomes sparse."""
        cdef uint64_t span = seq - self.first_seq
        cdef size_t i
        assert span <= SPAN_MAX and seq > self.last_seq + 1
        if span < 1024 or span / DENSE_FACTOR < self.count:
            while self.last_seq + 1 < seq:
                self._reserve_entry()
                self.entries[self.count].offset = <uint32_t>ENTRY_NONE
                self.entries[self.count].next_delta = 0
                self.count += 1
                self.last_seq += 1
            return 0
        self.seqs = <uint32_t*>malloc(self.entry_capacity * sizeof(uint32_t))
        if self.seqs == NULL:
            raise MemoryError("no memory for the sequences of a sparse block")
        for i in range(self.count):
            self.seqs[i] = <uint32_t>i
        return 0

    cdef int begin_at(self, uint64_t seq) except -1:
        """Sets the position of an empty block among the others."""
        assert self.count == 0
        self.first_seq = seq
        self.last_seq = seq - 1
        return 0

    cdef Py_ssize_t find(self, uint64_t seq) noexcept:
        cdef Py_ssize_t at
        if seq < self.first_seq or seq > self.last_seq:
            return -1
        if self.seqs == NULL:
            return <Py_ssize_t>(seq - self.first_seq)
        at = self.find_from(seq)
        if <size_t>at < self.count and self.seqs[at] == seq - self.first_seq:
            return at
        return -1

    cdef Py_ssize_t find_from(self, uint64_t seq) noexcept:
        cdef size_t low = 0, high, middle
        cdef uint64_t wanted
        if seq <= self.first_seq:
            return 0
        if seq > self.last_seq:
            return self.count
        if self.seqs == NULL:
            return <Py_ssize_t>(seq - self.first_seq)
        wanted = seq - self.first_seq
        high = self.count
        while low < high:
            middle = (low + high) // 2
            if self.seqs[middle] < wanted:
                low = middle + 1
            else:
                high = middle
        return low

    cdef uint64_t seq_at(self, size_t index) noexcept:
        return self.first_seq + (index if self.seqs == NULL else self.seqs[index])

    cdef int append_tombstone(self, int kind, uint64_t seq, uint64_t last, int64_t last_ts) except -1:
        cdef Record r
        cdef size_t size
        assert not self.closed                      # the index of a closed block would lack it
        assert kind != KIND_REMOVED or 0 < seq <= last
        r.seq = seq
        r.ts = <int64_t>last
        r.body = <const char*>&last_ts
        r.body_len = sizeof(last_ts) if kind == KIND_FLOOR else 0
        size = record_size(0, 0, r.body_len)
        encode_record(self.reserve(size), size, kind, seq, r.ts, NULL, 0, r.body, 0, r.body_len)
        self.size += size
        assert self.written < self.size <= self.capacity
        return self._remember(kind, &r)

    cdef int write_batch_head(self, size_t offset, uint64_t first, uint64_t last, uint64_t size) except -1:
        # The head covers exactly the bytes after it. A reserved head that was written already would stay empty.
        assert not self.closed and self.written <= offset
        assert offset + BATCH_HEAD_SIZE + size == self.size <= self.capacity and first <= last
        encode_record(self.data + offset, BATCH_HEAD_SIZE, KIND_BATCH, first, <int64_t>last, NULL, 0,
                      <const char*>&size, 0, sizeof(size))
        return 0

    cdef int _remember(self, int kind, const Record* r) except -1:
        if kind == KIND_REMOVED:
            self.removed = <RemovedRange*>array_grow(
                self.removed, &self.removed_capacity, self.removed_count + 1, sizeof(RemovedRange), REMOVED_FIRST,
                b"tombstones of a block",
            )
            self.removed[self.removed_count].first = r.seq
            self.removed[self.removed_count].last = <uint64_t>r.ts
            self.removed_count += 1
            return 0
        if kind == KIND_REPLACES:
            self.replaces_upto = <uint64_t>r.ts
            return 0
        if kind == KIND_BATCH:
            return 0                        # the batch is complete
        if r.seq > self.floor:
            self.floor = r.seq
        if <uint64_t>r.ts >= self.last_at_least:
            self.last_at_least = <uint64_t>r.ts
            if r.body_len == sizeof(self.recorded_ts):
                memcpy(&self.recorded_ts, r.body, sizeof(self.recorded_ts))
        return 0

    cdef void release(self) noexcept:
        """Releases the bytes, which can be loaded again; a no-op while a view of them is exported."""
        if self.views:
            return
        free_data(self.data, self.capacity)
        self.source = None
        self.borrowed = False
        self.data = NULL
        self.capacity = 0

    cdef bint clean(self) noexcept:
        return self.live_bytes + (RECORD_OVERHEAD if self.replaces_upto else 0) == self.size

    # ------------------------------------------------------------------ for the store

    def __getbuffer__(self, Py_buffer* view, int flags):
        """The block's bytes, read only; they don't move while a view is exported."""
        if self.data == NULL:
            raise BufferError(f"the bytes of block {self.number} are not loaded")
        PyBuffer_FillInfo(view, self, self.data, self.size, 1, flags)
        self.views += 1

    def __releasebuffer__(self, Py_buffer* view):
        assert self.views > 0 and self.data != NULL
        self.views -= 1

    def scan(self, const unsigned char[:] data not None, bint copy=True):
        """Reads a block's bytes, each record checked; see the .pyi."""
        cdef size_t n = data.shape[0]
        cdef int status
        assert self.count == 0 and self.size == 0 and self.data == NULL
        if copy or n == 0:
            self.reserve(n if n else 1)
            if n:
                memcpy(self.data, &data[0], n)
        else:
            self.source = data.base
            self.borrowed = True
            self.data = <char*>&data[0]
            self.verify = True
        status = self._fill(n)
        assert self.size <= n and self.live <= self.count
        if status == RECORD_END:
            return None
        return self.size, WHY.get(status, f"its sequence does not follow {self.last_seq}")

    cdef int _fill(self, size_t n) except -2:
        """Reads entries and tombstones from the first n bytes: RECORD_END, or the status of the first bad record,
        -1 for an impossible sequence."""
        cdef Record r
        cdef int kind = 0, status, state
        cdef size_t good, end
        while True:
            status = decode_record(self.data + self.size, n - self.size, &r, &kind, True)
            if status == RECORD_BAD_HASH:
                good = self._next_good(self.size + r.size, n)
                if good:
                    self.skipped_offsets.append(self.size)
                    self.size = good
                    continue
            if status != RECORD_OK:
                return status
            if kind != KIND_MESSAGE:
                if <uint64_t>r.ts >> SEQ_BITS:
                    return -1
                if kind == KIND_BATCH:
                    end = self.size + r.size
                    state = self._batch_state(&r, &end, n)
                    if self._batch_is_torn(state, end, n):
                        return RECORD_TORN_BATCH
                    holed = self._holed(self.size + r.size, end) if state == BATCH_DAMAGED else None
                    if holed:
                        self.torn_batches.append((r.seq, <uint64_t>r.ts, holed))
                self._remember(kind, &r)
            elif r.seq == 0 or r.subject_len == 0 or (
                self.count and (r.seq <= self.last_seq or r.seq - self.first_seq > SPAN_MAX)
            ):
                return -1
            else:
                self.push(r.seq, <uint32_t>self.size, r.ts, r.size)
            self.size += r.size

    cdef size_t _next_good(self, size_t at, size_t n) noexcept:
        """Offset of the next valid record, found by the lengths of the damaged ones; 0 when there is none.

        A record with damaged contents, or one that its removal has partially overwritten, still has its length. A
        torn batch is not valid: the block is truncated before it.
        """
        cdef Record r
        cdef int kind = 0, status, state
        cdef size_t found = 0
        while True:
            status = decode_record(self.data + at, n - at, &r, &kind, True)
            if status == RECORD_BAD_HASH:
                at += r.size
                continue
            if status != RECORD_OK:
                return 0
            if found == 0:
                found = at
            at += r.size
            if kind != KIND_BATCH:
                return found
            state = self._batch_state(&r, &at, n)
            if state != BATCH_DAMAGED or self.closed:
                return found if state != BATCH_TORN else 0

    cdef bint _batch_is_torn(self, int state, size_t end, size_t n) noexcept:
        """Is a part of the batch missing that ends at `end`? A crash during a write leaves such a batch, with no
        valid record after it. A closed block is never truncated.

        A power loss may take these bytes and leave some that were written later. Truncating the block there would
        lose records that were acked, so the block keeps the batch, and restore() decides what becomes of it.
        """
        return state == BATCH_TORN or (
            state == BATCH_DAMAGED and not self.closed and self._next_good(end, n) == 0
        )

    cdef list _holed(self, size_t at, size_t end):
        """The sequences that damaged records with a hole between two offsets have, as far as their bytes tell."""
        cdef Record r
        cdef int kind = 0
        cdef uint64_t tagged = 0
        cdef list found = []
        while at < end:
            if decode_record(self.data + at, end - at, &r, &kind, True) == RECORD_BAD_HASH and \
                    has_hole(self.data + at, r.size):
                memcpy(&tagged, self.data + at + sizeof(uint32_t), sizeof(tagged))
                found.append(tagged & ((<uint64_t>1 << SEQ_BITS) - 1))
            at += r.size
        return found

    cdef int _batch_state(self, const Record* r, size_t* at, size_t n) noexcept:
        """The BatchState of the batch with head `r`, which begins at `at`; sets `at` to its end."""
        cdef Record member
        cdef int kind = 0, status, state = BATCH_WHOLE
        cdef size_t end
        cdef uint64_t size = 0
        if r.body_len != sizeof(size):
            return BATCH_TORN
        memcpy(&size, r.body, sizeof(size))
        if size > n - at[0]:
            return BATCH_TORN
        end = at[0] + size
        while at[0] < end:
            status = decode_record(self.data + at[0], end - at[0], &member, &kind, True)
            if status == RECORD_BAD_HASH:
                state = BATCH_DAMAGED
            elif status != RECORD_OK:
                return BATCH_TORN
            at[0] += member.size
        return state

    def release_borrowed(self):
        """Releases the bytes if they are borrowed."""
        if self.borrowed:
            self.release()

    # ------------------------------------------------------------------ the index of a closed block

    def export_index(self):
        """Everything that recovery needs of a closed block without reading it; see the .pyi."""
        cdef bytes head, rows
        cdef bytearray index
        cdef size_t removed = self.removed_count * sizeof(RemovedRange), entries = self.count * sizeof(Entry)
        cdef size_t seqs = self.count * sizeof(uint32_t) if self.seqs != NULL else 0
        cdef char* to
        assert self.closed and self.data != NULL
        head = HEAD.pack(
            INDEX_MAGIC, self.number, self.size, 0, 0, self.first_seq, self.last_seq, self.first_ts,
            self.last_ts, self.live, self.live_bytes, self.floor, self.last_at_least, self.recorded_ts,
            self.replaces_upto, self.count, self.removed_count, self.seqs != NULL,
        )
        rows = self._subject_table()
        # Written into its place: an index of the usual block has a megabyte, and each copy costs as many new pages.
        index = PyByteArray_FromStringAndSize(NULL, len(head) + removed + entries + seqs + len(rows) + DIGEST.size)
        to = put_bytes(PyByteArray_AS_STRING(index), <const char*>head, len(head))
        to = put_bytes(to, self.removed, removed)
        to = put_bytes(to, self.entries, entries)
        to = put_bytes(to, self.seqs, seqs)
        to = put_bytes(to, <const char*>rows, len(rows))
        memset(to, 0, DIGEST.size)
        return index

    @staticmethod
    def tie_index(bytearray index not None, uint64_t file_size, uint64_t file_tail):
        """Completes an exported index, in place; see the .pyi."""
        # A copy would be made in the thread of the disk's jobs, whose memory pool keeps a few of that size for ever.
        cdef bytes pair = PAIR.pack(file_size, file_tail)
        cdef size_t size = len(index)
        cdef char* start = PyByteArray_AS_STRING(index)
        cdef uint64_t digest
        assert size >= <size_t>(HEAD.size + DIGEST.size)
        memcpy(start + <size_t>FILE_AT, <const char*>pair, len(pair))
        digest = xxh64(start, size - <size_t>DIGEST.size, 0)
        memcpy(start + size - <size_t>DIGEST.size, &digest, sizeof(digest))

    cdef bytes _subject_table(self):
        """A row for each chain that begins in this block. At most one chain of a subject has live messages."""
        cdef unsigned char* reached = <unsigned char*>calloc(self.count + 1, 1)
        cdef size_t i, at
        cdef SubjectRow row
        cdef Record r
        cdef int kind = 0
        cdef Py_ssize_t next_at
        cdef OutBuffer out = OutBuffer()
        cdef char* d
        if reached == NULL:
            raise MemoryError("no memory to index a block")
        try:
            for i in range(self.count):
                next_at = next_in_block(self, i)
                if next_at >= 0:
                    reached[next_at] = 1
            for i in range(self.count):
                if reached[i] or self.entries[i].offset == <uint32_t>ENTRY_NONE:
                    continue
                row.count = 0
                at = i
                while True:
                    if not self.entries[at].offset & <uint32_t>ENTRY_DEAD:
                        if row.count == 0:
                            row.first = <uint32_t>at
                        row.last = <uint32_t>at
                        row.count += 1
                    next_at = next_in_block(self, at)
                    if next_at < 0:
                        break
                    at = next_at
                if row.count == 0:
                    continue
                at = self.entries[row.first].offset
                if decode_record(self.data + at, self.size - at, &r, &kind, False) != RECORD_OK:
                    raise ValueError(f"block {self.number} has no record at {at}")
                row.text_len = <uint16_t>r.subject_len
                d = out.reserve(sizeof(SubjectRow) + r.subject_len)
                memcpy(d, &row, sizeof(SubjectRow))
                memcpy(d + sizeof(SubjectRow), r.subject, r.subject_len)
                out.size += sizeof(SubjectRow) + r.subject_len
            return out.take()
        finally:
            free(reached)

    @staticmethod
    def from_index(bytes index not None, uint64_t number, uint64_t file_size, uint64_t file_tail):
        """The closed block that an index describes; see the .pyi."""
        cdef MessageBlock block
        cdef const char* p = <const char*>index
        cdef size_t n = len(index), at, i, count, removed, size
        cdef bint sparse
        if n < <size_t>(HEAD.size + DIGEST.size):
            raise ValueError("it is too short")
        if DIGEST.unpack_from(index, n - DIGEST.size)[0] != xxh64(p, n - DIGEST.size, 0):
            raise ValueError("its hash does not match its bytes")
        (magic, of_number, size, of_size, of_tail, first_seq, last_seq, first_ts, last_ts, live, live_bytes, floor,
         last_at_least, recorded_ts, replaces_upto, count, removed, sparse) = HEAD.unpack_from(index)
        if magic != INDEX_MAGIC:
            raise ValueError("it has another format")
        if of_number != number or of_size != file_size or of_tail != file_tail:
            raise ValueError("it belongs to a block file with other bytes")
        if count > n or removed > n:
            raise ValueError("its counts do not fit its size")
        at = HEAD.size + removed * PAIR.size
        i = at + count * (sizeof(Entry) + (sizeof(uint32_t) if sparse else 0))
        if i > n - DIGEST.size or first_seq == 0:
            raise ValueError("its counts do not fit its size")
        if (first_seq | last_seq | floor | last_at_least) >> SEQ_BITS:
            raise ValueError("it contains sequences that are out of range")
        block = MessageBlock(number, first_seq)
        if removed:
            block.removed = <RemovedRange*>array_new(removed, sizeof(RemovedRange), b"tombstones of a block")
            memcpy(block.removed, p + <size_t>HEAD.size, removed * sizeof(RemovedRange))
            block.removed_count = block.removed_capacity = removed
        block._take_entries(p + at, count, p + at + count * sizeof(Entry) if sparse else NULL)
        block.subject_rows = index[i:n - DIGEST.size]
        # A power failure can leave a file empty: it has no farthest record.
        if block.last_seq != last_seq or block.live != live or live_bytes > size or (count and block.farthest >= size):
            raise ValueError("its entries contradict its counts")
        block.first_ts = first_ts
        block.last_ts = last_ts
        block.live_bytes = live_bytes
        block.floor = floor
        block.last_at_least = last_at_least
        block.recorded_ts = recorded_ts
        block.replaces_upto = replaces_upto
        block.size = block.written = size
        block.reach = last_seq
        block.closed = True
        assert block.live <= block.count and block.first_seq <= block.last_seq + 1
        return block

    cdef int _take_entries(self, const char* p, size_t count, const char* seqs) except -1:
        cdef size_t i
        self.entry_capacity = count if count else 1
        self.entries = <Entry*>malloc(self.entry_capacity * sizeof(Entry))
        if seqs != NULL:
            self.seqs = <uint32_t*>malloc(self.entry_capacity * sizeof(uint32_t))
        if self.entries == NULL or (seqs != NULL and self.seqs == NULL):
            raise MemoryError(f"no memory for {count} entries of a block")
        memcpy(self.entries, p, count * sizeof(Entry))
        if seqs != NULL:
            memcpy(self.seqs, seqs, count * sizeof(uint32_t))
        self.count = count
        for i in range(count):
            if seqs != NULL and (self.seqs[i] < i or (i and self.seqs[i] <= self.seqs[i - 1])):
                raise ValueError("its sequences do not ascend")
            if self.entries[i].offset == <uint32_t>ENTRY_NONE:
                continue
            self.live += not self.entries[i].offset & <uint32_t>ENTRY_DEAD
            if self.entries[i].offset & <uint32_t>ENTRY_OFFSET > self.farthest:
                self.farthest = self.entries[i].offset & <uint32_t>ENTRY_OFFSET
        if count:
            self.last_seq = self.seq_at(count - 1)
        # The log creates links to other blocks again when it merges this one.
        for i in range(count):
            if self.entries[i].next_delta > self.last_seq - self.seq_at(i):
                self.entries[i].next_delta = 0
        return 0
