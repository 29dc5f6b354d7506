"""The time budget of connections, and when the end of a tick runs."""
from libc.stdint cimport uint64_t

from penstock.kernels.wire.sinks cimport DirtyList


# ns
cdef enum:
    SHORT = 25_000
    LONG = 2_000_000
    LIGHT = 50_000                  # the work of one read of a connection with little to do, at most
    HEAVY = 50_000_000              # a connection that had much to do counts as one with much to do
    CROWD = 10_000_000              # after a connection with little to do was active
# bytes, of a read of a connection with much to do in a crowd
    READ_CROWDED = 32 << 10
    READ_CROWDED_SMALL = 16 << 10   # when it sends messages of less than SMALL_MESSAGE bytes
    SMALL_MESSAGE = 1 << 10

cdef class LoopBudget:
    cdef object call_soon
    cdef object clock               # None = the monotonic clock
    cdef object queue               # callables that wait for a turn, in FIFO order
    cdef bint scheduled             # call_soon(turn) was called
    cdef bint in_turn               # turn() runs
    cdef uint64_t began, until      # of the current part, ns
    cdef bint short                 # the budget of the current part or turn is SHORT
    cdef uint64_t crowded_until
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
    # Is a callable waiting for a turn?
    cdef bint has_waiting(self) except -1


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
