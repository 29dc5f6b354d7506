# cython: auto_pickle=False
"""When the end of a tick runs: once the sockets that were ready are read, within a read that is alone, or within
the read that makes it large.

The event loop doesn't say how many sockets are ready. Where the last tick covered one read, the next
AT_ONCE_MAX reads each end the tick themselves: what came in alone (a request, a publish that waits for its
ack) goes on without another turn of the loop. The one after those is scheduled again, to see whether reads
still come alone; as soon as a tick covers more than one, all are scheduled: one write for several reads is
cheaper than one for each. A read that filled its buffer is never alone: what is behind it is read next.

A tick for engines whose reads are WORK_MAX ends within the last of them. A client that fills a window and waits
for acks gets some while the rest is worked on, and what was read is in the cache still when it is applied. Work
is counted in bytes, and messages take some besides their own: two thousand small ones are much, and few bytes.
Where connections with little to do are there as well (`LoopBudget`), a quarter of it is much: what is applied
together makes them wait as much as what is read together. What such a connection reads while others wait for
their turn is sent at once, ahead of their work.

Invariants: the end is scheduled at most once at a time; whatever is marked or scheduled is followed by an end
of tick; sinks marked while engines have their turn are flushed by that very tick and schedule none.

Rejected: ending the tick within every read (four publishers into four subscribers: sixteen writes for four);
applying after each read and ending the tick later (what the cache spares is what the calls take).
"""
from libc.stdint cimport uint64_t

from penstock.kernels.wire.budget cimport LoopBudget
from penstock.kernels.wire.sinks cimport DirtyList, Sink

from penstock.faults import note

cdef enum:
    GRANT = 32
    MUCH = 1 << 20
    MUCH_CROWDED = 1 << 18
    WORK_A_MESSAGE = 1536

AT_ONCE_MAX = GRANT
WORK_MAX = MUCH
WORK_MAX_CROWDED = MUCH_CROWDED
MESSAGE_WORK = WORK_A_MESSAGE


cdef class TickTrigger:
    """Decides when the end of a tick runs."""

    def __cinit__(self, call_soon, end, clock=None):
        self.call_soon = call_soon
        self.end = end
        self.dirty_sinks = DirtyList(self.on_dirty_sink)
        self.budget = LoopBudget(call_soon, clock)

    def on_dirty_sink(self):
        if not self.running:
            self.request()

    cpdef schedule(self):
        self.engines_due = True
        self.request()

    cdef int request(self) except -1:
        if self.scheduled or (self.reading and self.at_once):
            return 0
        self.scheduled = True
        self.call_soon(self.end)
        return 0

    cdef void begin_read(self) noexcept:
        self.reading = True

    cdef int end_read(self, size_t n, uint64_t messages, bint full, bint light) except -1:
        self.reading = False
        if light and self.dirty_sinks.items and self.budget.has_waiting():
            self.flush()
        if full and self.engines_due and not self.scheduled:
            self.scheduled = True
            self.call_soon(self.end)
        if self.scheduled:
            self.reads += 1
            self.work += n + messages * WORK_A_MESSAGE
            if self.engines_due and self.work >= MUCH_CROWDED and (
                self.work >= MUCH or self.budget.is_crowded()
            ):
                self.early = True
                self.end()
        elif self.engines_due:
            self.at_once -= 1
            self.end()
        elif self.dirty_sinks.items:
            self.at_once -= 1
            self.flush()
        return 0

    cdef int abandon_read(self) except -1:
        self.reading = False
        if self.engines_due or self.dirty_sinks.items:
            self.request()
        return 0

    def read(self, work, size_t n=0, uint64_t messages=0, bint full=False, bint light=False):
        self.begin_read()
        try:
            work()
        except BaseException:
            self.abandon_read()
            raise
        self.end_read(n, messages, full, light)

    def begin(self):
        cdef bint due = self.engines_due
        if due and self.dirty_sinks.items and self.budget.is_crowded():
            self.flush()                # what is ready doesn't wait for the engines
        self.work = 0
        if self.early:                  # the one that is scheduled still comes, for what is read from now on
            self.early = False
        else:
            if self.scheduled and self.reads:
                self.at_once = GRANT if self.reads == 1 else 0
            self.scheduled = False
            self.reads = 0
        self.engines_due = False
        self.running = True
        return due

    def done(self):
        self.running = False

    cpdef bint flush(self) except -1:
        cdef bint congested = False
        cdef list taken = self.dirty_sinks.take()
        cdef Py_ssize_t i
        for i in range(len(taken)):
            try:
                if (<Sink?>taken[i]).flush():
                    congested = True
            except Exception as error:          # the others' turn comes all the same
                note("flush of a sink", error)
        return congested
