"""When the end of a tick runs."""
from penstock.kernels.sinks cimport DirtyList

cdef class TickTrigger:
    cdef readonly DirtyList dirty_sinks
    cdef object call_soon, end
    cdef readonly bint engines_due      # there is work besides sinks that have something to send
    cdef readonly bint scheduled        # call_soon(end) is under way
    cdef bint running, reading
    cdef unsigned int reads             # reads that the scheduled end covers
    cdef readonly unsigned int at_once  # how many more reads may end the tick themselves
    cpdef schedule(self)
    cdef int request(self) except -1
    # Around the work on one read. After an exception, abandon_read() takes the place of end_read().
    cdef void begin_read(self) noexcept
    cdef int end_read(self) except -1
    cdef int abandon_read(self) except -1
    cpdef bint flush(self) except -1
