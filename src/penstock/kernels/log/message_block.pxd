"""One block of a stream: the bytes of its records, and an index of its sequences."""
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from penstock.kernels.log.records cimport Record

# The index entry of one message: its position, and the distance to the next message of its subject.
cdef struct Entry:
    uint32_t offset             # of its record in the block; ENTRY_DEAD: it was removed; ENTRY_NONE: no record
    uint32_t next_delta         # sequences to the next message of the same subject; 0 = none yet

cdef enum:
    ENTRY_DEAD = 0x80000000
    ENTRY_OFFSET = 0x7FFFFFFF
    ENTRY_NONE = 0xFFFFFFFF     # dead, without a record
    SPAN_MAX = 0xFFFFFFFF       # sequences between a block's first and last
    NEXT_FAR = 0xFFFFFFFF       # there is a next message, further away than a delta can express

cdef enum:
    BATCH_HEAD_SIZE = 38        # of the head of a batch: an empty record and the size of what follows

# Messages that a tombstone removes.
cdef struct RemovedRange:
    uint64_t first, last

cdef class MessageBlock:
    cdef readonly uint64_t number           # its file's number
    cdef readonly uint64_t first_seq        # of the first entry; start of the block when it is empty
    cdef readonly uint64_t last_seq         # of the last entry; first_seq - 1 when there is none
    cdef readonly uint64_t live             # live messages
    cdef readonly uint64_t live_bytes
    cdef readonly int64_t first_ts, last_ts  # of the first and last entry, 0 when there is none
    cdef Entry* entries
    cdef uint32_t* seqs                     # sparse: sequence - first_seq of each entry; NULL: an entry each
    cdef size_t count, entry_capacity
    cdef uint64_t reach                     # no entry links to a sequence above this one

    cdef char* data                         # NULL while the bytes are only on disk
    cdef object source                      # owner of `data` when it is borrowed
    cdef bint borrowed
    cdef readonly size_t size               # bytes of the block
    cdef size_t capacity
    cdef public size_t written              # bytes that the store has passed to the operating system
    cdef public bint closed                 # no more records will be appended
    cdef bint verify                        # bytes come from disk: check each record's hash when it is read
    cdef public bint replaces               # its file still has the bytes before a rewrite
    cdef bint queued                        # for compaction
    cdef uint32_t single_reads              # records read alone since the bytes were last loaded for one
    cdef uint64_t superseded_at             # last sequence when a publish replaced one of its messages
    # The tombstones in the block: removed ranges, floor and least last sequence.
    cdef RemovedRange* removed
    cdef size_t removed_count, removed_capacity
    cdef readonly list skipped_offsets      # offsets of bad records between good ones
    # (first, last, sequences of the records with holes) of batches that a power loss tore, when they were scanned.
    cdef readonly list torn_batches
    cdef readonly uint64_t floor, last_at_least
    cdef readonly uint64_t replaces_upto    # it replaces the blocks up to this number; 0 = only itself
    cdef readonly int64_t recorded_ts          # timestamp of the last message when the floor was recorded
    cdef size_t farthest                    # highest offset in the index it was read from
    cdef bytes subject_rows                 # subjects of a block read from its index, until the log has merged them
    cdef Py_ssize_t views                   # exported memoryviews; while there are any, the bytes must not move

    cdef char* reserve(self, size_t n) except NULL
    # Adds the entry of a message whose record begins at `offset`.
    cdef int push(self, uint64_t seq, uint32_t offset, int64_t ts, size_t size) except -1
    # Index of the entry of seq, or -1.
    cdef Py_ssize_t find(self, uint64_t seq) noexcept
    # Index of the first entry >= seq; count when none.
    cdef Py_ssize_t find_from(self, uint64_t seq) noexcept
    cdef uint64_t seq_at(self, size_t index) noexcept
    cdef int begin_at(self, uint64_t seq) except -1
    cdef int _reserve_entry(self) except -1
    cdef int _skip_to(self, uint64_t seq) except -1
    cdef int _remember(self, int kind, const Record* r) except -1
    # Appends a tombstone: a removed range (seq..last), the floor seq with the last sequence and its timestamp, or
    # the block numbers seq..last that this block replaces.
    cdef int append_tombstone(self, int kind, uint64_t seq, uint64_t last, int64_t last_ts) except -1
    # Writes the head of a batch at an offset with BATCH_HEAD_SIZE reserved bytes.
    cdef int write_batch_head(self, size_t offset, uint64_t first, uint64_t last, uint64_t size) except -1
    cdef void release(self) noexcept
    # Does it contain only live messages?
    cdef bint clean(self) noexcept
    cdef bytes _subject_table(self)
    cdef int _take_entries(self, const char* p, size_t count, const char* seqs) except -1
    cdef int _fill(self, size_t n) except -2
    cdef size_t _next_good(self, size_t at, size_t n) noexcept
    cdef bint _batch_is_torn(self, int state, size_t end, size_t n) noexcept
    cdef list _holed(self, size_t at, size_t end)
    cdef int _batch_state(self, const Record* r, size_t* at, size_t n) noexcept

# One row of the subjects in a block's index; the text follows. Positions count entries.
cdef packed struct SubjectRow:
    uint32_t first
    uint32_t last
    uint32_t count
    uint16_t text_len
