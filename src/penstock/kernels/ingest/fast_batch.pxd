"""Fast batches of a stream: the grammar of their reply subjects, and how far each one is."""
from libc.stdint cimport int64_t, uint32_t, uint64_t
from penstock.kernels.wire.buffers cimport OutBuffer
from penstock.kernels.log.key_table cimport KeyEntry, KeyTable

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
