"""Messages of atomic batches that wait for their commit."""
from libc.stdint cimport int64_t, uint32_t, uint64_t
from penstock.kernels.wire.buffers cimport OutBuffer
from penstock.kernels.log.key_table cimport KeyEntry, KeyTable
from penstock.kernels.ingest.publish_headers cimport PublishHead

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
