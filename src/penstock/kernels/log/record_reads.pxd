"""Prefetches single records of closed blocks with a thread."""
from libc.stdint cimport uint32_t, uint64_t

from penstock.kernels.log.log_core cimport LogCore
from penstock.kernels.log.message_block cimport MessageBlock
from penstock.kernels.log.records cimport Record


# A range of bytes in a file.
cdef struct FileRange:
    uint32_t offset
    uint32_t size


cdef class Group:
    cdef uint64_t* seqs             # of the ranges, ascending; NULL without any
    cdef FileRange* ranges
    cdef size_t count, at           # number of records, index of the next one
    cdef size_t size                # bytes of all records
    cdef object reading             # the pending read, until take()
    cdef bytes data                 # the bytes of all records after take()
    cdef size_t data_at             # offset of the next record in `data`

    cdef void drop(self) noexcept
    cdef bint advance_to(self, uint64_t seq) noexcept
    cdef int request(self, LogCore log, const uint64_t* upcoming, size_t n) except -1
    cdef bint take(self) except -1
    cdef bint _add(self, MessageBlock block, const uint64_t* upcoming, size_t n, size_t* total) noexcept

cdef class BlockReads:
    cdef Group now, ahead           # the current group, and the next one, whose read may be pending
    cdef readonly uint64_t fetched  # records read so far, for tests and measurements

    # LogCore.read() of upcoming[0]; the caller will probably read the n ascending sequences in order.
    cdef int read(self, LogCore log, const uint64_t* upcoming, size_t n, Record* r) except -1
    # Releases the prefetched records. None of them may be in use.
    cdef void drop(self) noexcept

    cdef bint _next_group(self, LogCore log, const uint64_t* upcoming, size_t n) except -1
