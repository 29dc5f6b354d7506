"""When the end of a tick runs."""
from libc.stdint cimport uint64_t
from penstock.kernels.wire.budget cimport LoopBudget
from penstock.kernels.wire.sinks cimport DirtyList

cdef class TickTrigger:
    cdef readonly DirtyList dirty_sinks
    cdef readonly LoopBudget budget     # of those whose reads may end the tick, and of all other connections
    cdef object call_soon, end
    cdef readonly bint engines_due      # there is work besides sinks that have something to send
    cdef readonly bint scheduled        # call_soon(end) is under way
    cdef bint running, reading
    cdef bint early                     # an end within a read, while another is scheduled
    cdef unsigned int reads             # since the last end that was scheduled
    cdef uint64_t work                  # read since the last end
    cdef readonly unsigned int at_once  # how many more reads may end the tick themselves
    cpdef schedule(self)
    cdef int request(self) except -1
    # Around the work on one read of n bytes with so many messages; full: there was no room for more; light: the
    # connection has little to do. After an exception, abandon_read() takes the place of end_read().
    cdef void begin_read(self) noexcept
    cdef int end_read(self, size_t n, uint64_t messages, bint full, bint light) except -1
    cdef int abandon_read(self) except -1
    cpdef bint flush(self) except -1
