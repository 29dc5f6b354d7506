"""The time budget of connections, and when the end of a tick runs."""
from libc.stdint cimport uint64_t

from penstock.kernels.wire.sinks cimport DirtyList

cdef extern from *:
    """
    #ifdef _WIN32
    #include <windows.h>
    static unsigned long long monotonic_ns(void) {
        LARGE_INTEGER count, frequency;
        QueryPerformanceCounter(&count);
        QueryPerformanceFrequency(&frequency);
        return (unsigned long long)((double)count.QuadPart * 1e9 / (double)frequency.QuadPart);
    }
    #else
    #include <time.h>
    static unsigned long long monotonic_ns(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return (unsigned long long)t.tv_sec * 1000000000ull + (unsigned long long)t.tv_nsec;
    }
    #endif
    """
    uint64_t monotonic_ns() noexcept nogil


cpdef enum:
    SHORT_BUDGET_NS = 25_000
    LONG_BUDGET_NS = 2_000_000
    LIGHT_READ_NS = 50_000              # the work of one read of a connection with little to do, at most
    HEAVY_PERIOD_NS = 50_000_000        # how long a connection that had much to do counts as one with much to do
    CROWD_PERIOD_NS = 10_000_000        # how long the loop is crowded after one with little to do was active
    # A read of a connection with much to do in a crowd; the second when it sends messages of less than the third.
    CROWDED_READ_BYTES = 32 << 10
    CROWDED_SMALL_READ_BYTES = 16 << 10
    SMALL_MESSAGE_BYTES = 1 << 10

cdef class LoopBudget:
    cdef object call_soon
    cdef object clock               # None = the monotonic clock
    cdef object queue               # callables that wait to be called, in FIFO order
    cdef bint scheduled             # call_soon(run_queue) was called
    cdef bint in_queue              # run_queue() runs
    cdef uint64_t began, until      # of the current part, ns
    cdef bint short                 # the current budget is the short one
    cdef uint64_t crowded_until
    cdef uint64_t busy_until        # connections with much to do were active
    cdef unsigned int depth         # nested parts: the part of a layer contains those of its connection
    cdef uint64_t now(self) except? 0
    # Begins a part, or a nested one. `used`: ns of its budget that are already spent.
    cdef int begin(self, uint64_t used) except -1
    # Has the current part, if any, used up its budget?
    cdef bint is_spent(self) except -1
    # Time that the current part has taken so far, ns.
    cdef uint64_t taken(self) except? 0
    cdef int end(self) except -1
    # Notes that a connection with little to do was active: it needs short response times.
    cdef int note_light(self) except -1
    cdef bint is_crowded(self) except -1
    # Do others with much to do work, or wait to?
    cdef bint is_busy(self) except -1


cdef class TickTrigger:
    cdef readonly DirtyList dirty_sinks
    cdef readonly LoopBudget budget     # shared by all connections, whether or not their reads may end the tick
    cdef object call_soon, end
    cdef readonly bint engines_due      # there is work besides sinks that have something to send
    cdef readonly bint scheduled        # call_soon(end) was called
    cdef bint running, reading
    cdef bint early                     # an end within a read, while another is scheduled
    cdef unsigned int reads             # since the last scheduled end
    cdef uint64_t work                  # work read since the last end
    cdef readonly unsigned int at_once  # how many more reads may end the tick themselves
    cpdef schedule(self)
    cdef int request(self) except -1
    # Enclose the processing of one read of n bytes with that many messages; full: the read filled its buffer; light:
    # the connection has little to do. After an exception, abandon_read() replaces end_read().
    cdef void begin_read(self) noexcept
    cdef int end_read(self, size_t n, uint64_t messages, bint full, bint light) except -1
    cdef int abandon_read(self) except -1
    cpdef bint flush(self) except -1
