# cython: auto_pickle=False
"""How long the loop works for connections with much to do before the others have a turn.

Everything runs in one thread, so a connection that sends much makes all others wait for as long as the server
works on what it sent. That work is cut into parts: when the budget of a turn is used up, what is left stays in
the read buffer, and its connection queues for a later turn of the loop. Queued connections share the budget of
a turn and are served in the order in which they queued. The budget is time, and not a count of frames: a frame
costs from a tenth of a microsecond (a publish without subscribers) to milliseconds (a request), and the same
publish costs more with every subscriber.

There are two budgets. SHORT applies while connections with little to do were active within CROWD: their answers
wait for the parts of the others, mostly twice (request and reply). LONG applies otherwise: each part has a fixed
cost of some microseconds (the loop's turn, pausing and resuming the socket), and long parts make batches, writes
and runs of acks large. Connections that all have much to do need throughput more than short answer times, so
they use long parts among themselves too.

The budget covers the read as well. The kernel copies 128 KiB in 50 microseconds, twice a short part, so in a
crowd a connection with much to do is given room for READ_CROWDED bytes. Measured beside a flood of 128-byte
publishes: the bystander's median round trip fell from 0.36 to 0.22 ms, the flood's rate by a seventh. Rejected:
half of that. It takes another fifth from the round trip, and another seventh from the flood's rate; a flood of
16 KiB messages, which no longer fit in a read, loses a quarter.

Invariants: each queued connection has its turn, whatever others do or raise; none has two in one turn of the
loop.

Rejected: a thread for each connection, or for some of them (the state of the server has one writer, and the
interpreter one lock); counting frames (see above); asking the kernel before each part whether another socket
is ready (the event loop gives no access to its descriptor, and asking costs more than the turn); a budget for
each connection (eight floods make a turn eight times as long).
"""
from collections import deque

from libc.stdint cimport uint64_t

from penstock.faults import contain

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

SHORT_NS = SHORT
LONG_NS = LONG
CROWD_NS = CROWD
CROWDED_READ = READ_CROWDED


cdef class LoopBudget:
    """See the module docstring."""

    def __cinit__(self, call_soon, clock=None):
        self.call_soon = call_soon
        self.clock = clock
        self.queue = deque()

    cdef uint64_t now(self) except? 0:
        return monotonic_ns() if self.clock is None else self.clock()

    cdef int begin(self, uint64_t used) except -1:
        cdef uint64_t most
        self.depth += 1
        if self.depth == 1:
            self.began = self.now()
            if not self.in_turn:        # of a turn, all parts have one budget
                self.short = self.began < self.crowded_until
                most = SHORT if self.short else LONG
                self.until = self.began + (most - used if used < most else 0)
        return 0

    cdef bint is_spent(self) except -1:
        return self.depth != 0 and self.now() >= self.until

    cdef uint64_t taken(self) except? 0:
        return self.now() - self.began

    cdef int end(self) except -1:
        self.depth -= 1
        return 0

    cdef int note_light(self) except -1:
        self.crowded_until = self.began + CROWD
        return 0

    cdef bint is_crowded(self) except -1:
        return self.now() < self.crowded_until

    cdef bint has_waiting(self) except -1:
        return len(self.queue) != 0

    @property
    def crowded(self):
        return self.is_crowded()

    @property
    def waiting(self):
        return len(self.queue)

    def wait(self, work, failed=None):
        self.queue.append((work, failed))
        if not self.scheduled and not self.in_turn:
            self.scheduled = True
            self.call_soon(self.turn)

    def turn(self):
        """Runs queued work in order, until the budget of the turn is used up."""
        cdef Py_ssize_t left = len(self.queue)
        cdef uint64_t now = self.now()
        self.scheduled = False
        self.in_turn = True
        self.short = now < self.crowded_until
        self.until = now + (SHORT if self.short else LONG)
        try:
            while left:
                left -= 1
                work, failed = self.queue.popleft()
                if failed is None:
                    work()
                else:
                    contain(work, failed)
                if left and self.now() >= self.until:
                    break
        finally:
            self.in_turn = False
            if self.queue:
                self.scheduled = True
                self.call_soon(self.turn)

    def begin_part(self):
        self.begin(0)

    def end_part(self):
        self.end()

    def is_over(self):
        return self.is_spent()
