"""Fast batches, staged atomic batches and their commit."""
from libc.stdint cimport int64_t, uint32_t, uint64_t

from penstock.kernels.ingest.publish_headers cimport PublishHead
from penstock.kernels.base.hash_table cimport HashTable
from penstock.kernels.wire.output cimport OutBuffer


cdef enum FastOperation:
    FAST_START = 0
    FAST_APPEND = 1
    FAST_COMMIT = 2
    FAST_EOB = 3
    FAST_PING = 4

# How to handle a publish of a fast batch.
cdef enum FastVerdict:
    FAST_STORE = 0                  # the next message of an open batch
    FAST_IGNORE = 1                 # its batch has ended
    FAST_ASK = 2                    # anything else: left to Python

# A reply subject `<prefix>.<id>.<flow>.<ok|fail>.<seq>.<op>.$FI`, as offsets into it.
cdef struct FastSubject:
    size_t id_start
    size_t key_len                  # <prefix>.<id>
    size_t head_len                 # everything before the sequence
    uint64_t seq
    uint32_t flow
    int operation
    bint gap_ok

cdef bint is_fast(const char* reply, size_t n) noexcept nogil
# False: the subject does not have that form.
cdef bint parse_subject(const char* p, size_t n, FastSubject* s) noexcept nogil

# An entry of a KeyTable: a batch and its key.
cdef class KeyEntry:
    cdef uint64_t hash
    cdef bytes key

cdef class KeyTable:
    cdef dict members               # {entry: None}
    cdef HashTable table            # by hash: addresses of the members
    cdef uint64_t seed
    cdef KeyEntry look_up(self, const char* key, size_t n)
    cdef int add(self, KeyEntry entry, bytes key) except -1
    cdef int remove(self, KeyEntry entry) except -1
    cdef int remove_all(self) except -1
    cdef list entries(self)

cdef class FastBatch(KeyEntry):     # its key is <prefix>.<id>
    cdef bytes head
    cdef readonly bytes id
    cdef readonly uint32_t flow     # the most messages per ack that the client allows
    cdef readonly bint gap_ok
    cdef readonly uint64_t seq      # the highest batch sequence received
    cdef readonly uint64_t stream_seq   # of its last message in the stream
    cdef readonly uint64_t acked    # the batch sequence in the last flow ack
    cdef readonly uint32_t msgs     # messages per flow ack, now
    cdef readonly int64_t heard_ns
    cdef public bytes final         # the final ack; None while the batch is open
    cdef readonly bint is_refused     # ended, and a later message was refused in this tick
    cdef bint is_due

cdef class FastBatches(KeyTable):
    cdef list due                   # open batches whose publisher is due a flow ack
    cdef object ended               # recently ended batches, oldest first
    cdef FastBatch last             # the batch of the last message
    cdef readonly size_t count      # open batches
    cdef OutBuffer scratch
    cdef FastBatch next_append(self, const char* reply, size_t n, int64_t now, int* verdict)
    cdef int took(self, FastBatch batch, uint64_t seq, uint64_t stream_seq, bint duplicate) except -1
    cdef int step(self, FastBatch batch, uint32_t limit) except -1
    cdef int unlink(self, FastBatch batch) except -1


# Memory of the staged messages of a stream, and of a server: its streams' total.
cdef class StagedTotal:
    cdef readonly size_t bytes
    cdef readonly size_t bytes_max
    cdef readonly StagedTotal whole     # counts the same bytes; None: this is the whole
    cdef int add(self, size_t n) except -1
    cdef int remove(self, size_t n) except -1

# One open batch: its publishes, contiguous and in the format of the streams' batches.
cdef class StagedBatch(KeyEntry):
    cdef OutBuffer buf
    cdef size_t last_at             # offset of the last message
    cdef size_t messages_max, size_max
    cdef readonly StagedTotal total
    cdef readonly bytes id
    cdef readonly size_t count      # messages
    cdef readonly size_t size       # bytes of their records
    cdef readonly uint32_t flags    # of all messages, ORed
    cdef public uint64_t seq        # of the last received message of the batch
    cdef readonly int64_t heard_ns
    cdef int put(self, const PublishHead* head) except -1
    cdef int count_in(self, const PublishHead* head) except -1

cdef class StagedBatches(KeyTable):
    cdef StagedBatch last           # the batch of the last message
    cdef readonly size_t count      # open batches
    cdef readonly int64_t check_at    # ns: from then on Python first checks for batches that timed out
    # 1: copied the next message of an open batch; 0: anything else, left to Python.
    cdef bint take(self, const PublishHead* head, int64_t now) except -1
