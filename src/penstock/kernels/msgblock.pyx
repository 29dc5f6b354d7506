"""One block of a stream: its records' bytes, and where each sequence is in them.

A block is filled front to back and then closed; entries of removed messages stay, marked dead, because
the chains of their subjects run through them. A compacted block has entries for few of its sequences and
then keeps the sequences beside them (sparse).

Invariants: entries are in order of sequence; every offset that is not ENTRY_NONE is that of a record
checked when it was scanned or written here; `live` and `live_bytes` count the entries without ENTRY_DEAD.
Rejected: a map of sequences (a dense array is a subtraction); dropping dead entries at once (a chain
could only be mended by searching what points at it).
"""
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from penstock.kernels.records cimport (
    KIND_FLOOR,
    KIND_MESSAGE,
    RECORD_END,
    RECORD_OK,
    decode_record,
    encode_record,
    record_size,
    xxh64,
)
from penstock.kernels.records import WHY

cdef enum:
    DATA_MIN = 4096
    ENTRIES_MIN = 64
    DENSE_FACTOR = 3                # sparse when less than one sequence in three has an entry


cdef class MessageBlock:
    def __cinit__(self, uint64_t number, uint64_t first_seq):
        assert first_seq > 0
        self.number = number
        self.first_seq = first_seq
        self.last_seq = first_seq - 1
        self.removed = []

    def __dealloc__(self):
        free(self.entries)
        free(self.seqs)
        if self.source is None:
            free(self.data)

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
                raise BufferError("the bytes of a block grow while a view of them is out")
            assert self.source is None
            wanted = self.capacity if self.capacity else DATA_MIN
            while wanted < self.size + n:
                wanted *= 2
            p = <char*>realloc(self.data, wanted)
            if p == NULL:
                raise MemoryError(f"no memory for a block of {wanted} bytes")
            self.data = p
            self.capacity = wanted
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
        assert seq > self.last_seq
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
            if seq - self.first_seq > 0xFFFFFFFF:
                raise ValueError(f"block {self.number} would span more than 2**32 sequences")
            self.seqs[self.count] = <uint32_t>(seq - self.first_seq)
        self.count += 1
        self.last_seq = seq
        self.last_ts = ts
        self.live += 1
        self.live_bytes += size
        return 0

    cdef int _skip_to(self, uint64_t seq) except -1:
        """A gap: empty entries when it is small, else the block turns sparse."""
        cdef uint64_t span = seq - self.first_seq
        cdef size_t i
        if span > 0xFFFFFFFF:
            raise ValueError(f"block {self.number} would span more than 2**32 sequences")
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

    cdef int note(self, int kind, uint64_t seq, int64_t ts) except -1:
        """Appends a note record (removed range or floor) to the bytes."""
        cdef size_t size = record_size(0, 0, 0)
        cdef char* d = self.reserve(size)
        encode_record(d, size, kind, seq, ts, NULL, 0, NULL, 0, 0)
        self.size += size
        self._remember(kind, seq, ts)
        return 0

    cdef int _remember(self, int kind, uint64_t seq, int64_t ts) except -1:
        if kind == KIND_FLOOR:
            if seq > self.floor:
                self.floor = seq
            if <uint64_t>ts > self.last_at_least:
                self.last_at_least = <uint64_t>ts
        else:
            self.removed.append((seq, <uint64_t>ts))
        return 0

    cdef void release(self) noexcept:
        """Lets the bytes go; they can be loaded again."""
        if self.views:
            return
        if self.source is None:
            free(self.data)
        self.source = None
        self.data = NULL
        self.capacity = 0

    # ------------------------------------------------------------------ for the store

    def __getbuffer__(self, Py_buffer* view, int flags):
        """The block's bytes, read only; they don't move while a view is out."""
        if self.data == NULL:
            raise BufferError(f"the bytes of block {self.number} are not loaded")
        PyBuffer_FillInfo(view, self, self.data, self.size, 1, flags)
        self.views += 1

    def __releasebuffer__(self, Py_buffer* view):
        self.views -= 1

    def scan(self, const unsigned char[:] data not None):
        """Reads a block's bytes, which the block then owns a copy of; see the .pyi."""
        cdef Record r
        cdef int kind = 0, status = RECORD_OK
        cdef size_t n = data.shape[0]
        cdef const char* p
        cdef char* d
        assert self.count == 0 and self.size == 0
        d = self.reserve(n if n else 1)
        if n:
            memcpy(d, &data[0], n)
        p = self.data
        while True:
            status = decode_record(p + self.size, n - self.size, &r, &kind, True)
            if status != RECORD_OK:
                break
            if kind != KIND_MESSAGE:
                self._remember(kind, r.seq, r.ts)
            elif r.seq <= self.last_seq and self.count or r.seq == 0 or r.subject_len == 0:
                return self.size, f"sequence {r.seq} follows {self.last_seq}"
            else:
                self.push(r.seq, <uint32_t>self.size, r.ts, r.size)
            self.size += r.size
        if status == RECORD_END:
            return None
        return self.size, WHY[status]
