"""Single records of closed blocks, read ahead by a thread."""
from libc.stdint cimport uint32_t, uint64_t

from penstock.kernels.log.log_core cimport LogCore
from penstock.kernels.log.message_block cimport MessageBlock
from penstock.kernels.log.records cimport Record


# Some bytes of a file.
cdef struct Piece:
    uint32_t offset
    uint32_t size


cdef class Group:
    cdef uint64_t* seqs             # of the pieces, ascending; NULL while there are none
    cdef Piece* pieces
    cdef size_t count, at           # how many there are, which one comes next
    cdef size_t size                # of all together
    cdef object reading             # with take(), until they were needed
    cdef bytes data                 # then their bytes, one behind the other
    cdef size_t data_at             # where those of the next one are

    cdef void drop(self) noexcept
    cdef bint turn_to(self, uint64_t seq) noexcept
    cdef int ask(self, LogCore log, const uint64_t* upcoming, size_t n) except -1
    cdef bint take(self) except -1
    cdef bint _add(self, MessageBlock block, const uint64_t* upcoming, size_t n, size_t* total) noexcept

cdef class BlockReads:
    cdef Group now, ahead           # what is delivered, and what comes next, perhaps on its way
    cdef readonly uint64_t fetched  # pieces read so far, for tests and measurements

    # LogCore.read() of upcoming[0]; the n sequences, ascending, are likely to be asked for one after the other.
    cdef int read(self, LogCore log, const uint64_t* upcoming, size_t n, Record* r) except -1
    # Lets go of what was read ahead. No record of it may be in use.
    cdef void drop(self) noexcept

    cdef bint _turn_to(self, LogCore log, const uint64_t* upcoming, size_t n) except -1
