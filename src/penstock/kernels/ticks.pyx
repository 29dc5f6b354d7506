# cython: auto_pickle=False
"""When the end of a tick runs: once the sockets that were ready are read, or within a read that is alone.

The event loop doesn't say how many sockets are ready. Where the last tick covered one read, the next
AT_ONCE_MAX reads each end the tick themselves: what came in alone (a request, a publish that waits for its
ack) goes on without another turn of the loop. The one after those is scheduled again, to see whether reads
still come alone; as soon as a tick covers more than one, all are scheduled: one write for several reads is
cheaper than one for each.

Invariants: the end is scheduled at most once at a time; whatever is marked or scheduled is followed by an end
of tick; sinks marked while engines have their turn are flushed by that very tick and schedule none.

Rejected: ending the tick within every read (four publishers into four subscribers: sixteen writes for four).
"""
from penstock.kernels.sinks cimport DirtyList, Sink

cdef enum:
    GRANT = 32

AT_ONCE_MAX = GRANT


cdef class TickTrigger:
    """Decides when the end of a tick runs."""

    def __cinit__(self, call_soon, end):
        self.call_soon = call_soon
        self.end = end
        self.dirty_sinks = DirtyList(self.on_dirty_sink)

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

    cdef int end_read(self) except -1:
        self.reading = False
        if self.scheduled:
            self.reads += 1
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

    def read(self, work):
        self.begin_read()
        try:
            work()
        except BaseException:
            self.abandon_read()
            raise
        self.end_read()

    def begin(self):
        cdef bint due = self.engines_due
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
            if (<Sink?>taken[i]).flush():
                congested = True
        return congested
