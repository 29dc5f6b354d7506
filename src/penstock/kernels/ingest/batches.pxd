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

# What is to be done with a publish of a fast batch.
cdef enum FastVerdict:
    FAST_STORE = 0                  # the next message of an open batch
    FAST_IGNORE = 1                 # its batch has ended
    FAST_ASK = 2                    # anything else: Python decides

# A reply subject `<prefix>.<id>.<flow>.<ok|fail>.<seq>.<op>.$FI`, as offsets into it.
cdef struct FastSubject:
    size_t id_start
    size_t key_len                  # <prefix>.<id>
    size_t head_len                 # all before the sequence
    uint64_t seq
    uint32_t flow
    int operation
    bint gap_ok

cdef bint is_fast(const char* reply, size_t n) noexcept nogil
# False: the subject is not of that form.
cdef bint parse_subject(const char* p, size_t n, FastSubject* s) noexcept nogil

# An open batch, found by the bytes that name it.
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
    cdef public int64_t heard_ns
    cdef public bytes final         # the last answer; None while the batch is open
    cdef public bint is_refused     # ended, and a message behind the end was refused in this tick
    cdef bint is_due

cdef class FastBatches(KeyTable):
    cdef list due                   # open batches that a flow ack is due to
    cdef object ended               # the batches that ended last, oldest first
    cdef FastBatch last             # the batch that was heard last
    cdef readonly size_t count      # open ones
    cdef OutBuffer scratch
    cdef FastBatch next_append(self, const char* reply, size_t n, int64_t now, int* verdict)
    cdef int took(self, FastBatch batch, uint64_t seq, uint64_t stream_seq, bint duplicate) except -1
    cdef int step(self, FastBatch batch, uint32_t limit) except -1
    cdef int unlink(self, FastBatch batch) except -1


# What the staged messages of a whole server take.
cdef class StagedTotal:
    cdef readonly size_t bytes
    cdef public size_t bytes_max

# One open batch: its messages as they stood in the streams' batches, one behind the other.
cdef class StagedBatch(KeyEntry):
    cdef OutBuffer buf
    cdef size_t last_at             # where the last message begins
    cdef size_t messages_max, size_max
    cdef readonly StagedTotal total
    cdef readonly bytes id
    cdef readonly size_t count      # messages
    cdef readonly size_t size       # bytes of their records
    cdef readonly uint32_t flags    # of any of them
    cdef public uint64_t seq        # of the last message of the batch that came
    cdef public int64_t heard_ns
    cdef int put(self, const PublishHead* head) except -1
    cdef void count_in(self, const PublishHead* head) noexcept

cdef class StagedBatches(KeyTable):
    cdef StagedBatch last           # the batch that was heard last
    cdef readonly size_t count      # open ones
    cdef public int64_t check_at    # ns: from then on Python looks first whether one was silent for too long
    # Takes the next message of an open batch that may have it: 1; anything else, and Python decides: 0.
    cdef bint take(self, const PublishHead* head, int64_t now) except -1
