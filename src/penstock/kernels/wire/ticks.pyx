# cython: auto_pickle=False
"""Scheduling of the event loop: the time budget of connections, and the end of a tick.

LoopBudget limits how long the loop works for connections with much to do before the others are served.

Everything runs in one thread, so a connection that sends much makes all others wait while the server processes its
input. That work is split into parts: when the budget of an iteration of the event loop is used up, the
rest stays in the read buffer, and its connection queues for a later iteration. Queued connections share the budget
of an iteration and are served in FIFO order. The budget is time, and not a count of frames: a frame
costs from a tenth of a microsecond (a publish without subscribers) to milliseconds (a request), and the same
publish costs more with every subscriber.

There are two budgets. The short one applies while connections with little to do were active within CROWD_PERIOD_NS:
their answers wait for the parts of the others, mostly twice (request and reply). The long one applies otherwise: each
part has a fixed cost of some microseconds (the loop's iteration, pausing and resuming the socket), and long parts make
batches, writes and runs of acks large. Connections that all have much to do need throughput more than short answer
times, so they use long parts among themselves too. The period is short because every connection begins with little to
do: with
50 ms, clients that subscribe and then flood lost a tenth of their fan-out for the requests they began with. Who
asks less often than every 10 ms waits for one long part at most.

The budget covers the read as well. A read of 128 KiB takes 50 microseconds, twice a short part, so in a
crowd a connection with much to do is given room for CROWDED_READ_BYTES, and for CROWDED_SMALL_READ_BYTES when its
messages are small. Measured beside a flood of 128-byte publishes: with 32 KiB the bystander's median round trip
fell from 0.36 to 0.24 ms and the flood's rate by a seventh; with 16 KiB to 0.21 ms, and the rate by another 5 %.
Between such parts the ingress reads the socket itself: the event loop would need three system calls to read again
and to stop again. That took 13 % from the median and 13 % from the CPU of a message.
Rejected: 16 KiB for all (a flood of 16 KiB messages, which no longer fit in a read, loses a quarter); 8 KiB for
small messages (15 to 20 % more CPU a message, and no certain gain).

Invariants: each queued connection is served, even if others raise; none is served twice in one iteration.

Rejected: a thread for each connection, or for some of them (the state of the server has one writer, and the
interpreter one lock); counting frames (see above); asking the system before each part whether another socket
is ready (the event loop gives no access to its descriptor, and asking costs more than an iteration); a budget for
each connection (eight floods make an iteration eight times as long).

TickTrigger decides when the end of a tick runs: after all ready sockets are read, within a read that is the only
one, or within the read that makes the tick large.

The event loop doesn't report how many sockets are ready. If the last tick covered one read, the next
AT_ONCE_MAX reads each end the tick themselves: a single message (a request, a publish that waits for its
ack) is processed without another iteration of the loop. The read after those schedules the end again, to find out
whether reads still come alone; as soon as a tick covers more than one, every end is scheduled: one write for several
reads is cheaper than one for each. A read that filled its buffer does not count as alone: more input follows.

A tick for engines whose reads reach WORK_MAX ends within the last of them. A client that fills a window and waits
for acks gets some while the rest is processed, and the input is still in the cache when it is applied. Work
is counted in bytes plus a constant per message, because two thousand small messages are much work in few bytes.
While connections with little to do are active (`LoopBudget`), the limit is a quarter: work that is applied
together delays them as much as work that is read together. The output of a read of such a connection is sent
immediately, ahead of the work of others that wait or were active within CROWD_PERIOD_NS: the next iteration of the
loop would read their sockets first.

Invariants: the end is scheduled at most once at a time; an end of tick follows every mark and every schedule();
sinks marked while the engines run are flushed by that same tick and schedule none.

Rejected: ending the tick within every read (four publishers into four subscribers: sixteen writes for four);
applying after each read and ending the tick later (the extra calls cost what the cache saves).
"""
from libc.stdint cimport uint64_t

from penstock.kernels.wire.dispatch cimport ClientSink
from penstock.kernels.wire.sinks cimport DirtyList, Sink, take_raised

from collections import deque

from penstock.faults import contain, note


# --- budget

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
            if not self.in_queue:       # all queued parts of an iteration share one budget
                self.short = self.began < self.crowded_until
                most = SHORT_BUDGET_NS if self.short else LONG_BUDGET_NS
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
        self.crowded_until = self.began + CROWD_PERIOD_NS
        return 0

    cdef bint is_crowded(self) except -1:
        return self.now() < self.crowded_until

    cdef bint is_busy(self) except -1:
        return len(self.queue) != 0 or self.began < self.busy_until

    @property
    def crowded(self):
        return self.is_crowded()

    @property
    def waiting(self):
        return len(self.queue)

    def wait(self, work, failed=None):
        self.queue.append((work, failed))
        if not self.scheduled and not self.in_queue:
            self.scheduled = True
            self.call_soon(self.run_queue)

    def run_queue(self):
        """Runs queued work in order, until the budget of the iteration is used up."""
        cdef Py_ssize_t left = len(self.queue)
        cdef uint64_t now = self.now()
        self.scheduled = False
        self.in_queue = True
        self.short = now < self.crowded_until
        self.until = now + (SHORT_BUDGET_NS if self.short else LONG_BUDGET_NS)
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
            self.in_queue = False
            if self.queue:
                self.scheduled = True
                self.call_soon(self.run_queue)

    def begin_part(self):
        self.begin(0)

    def end_part(self):
        self.end()

    def is_over(self):
        return self.is_spent()


# --- ticks

cpdef enum:
    AT_ONCE_MAX = 32
    WORK_MAX = 1 << 20
    WORK_MAX_CROWDED = 1 << 18
    MESSAGE_WORK = 1536


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
        if light and self.dirty_sinks.items and self.budget.is_busy():
            self.flush()
        if full and self.engines_due and not self.scheduled:
            self.scheduled = True
            self.call_soon(self.end)
        if self.scheduled:
            self.reads += 1
            self.work += n + messages * MESSAGE_WORK
            if self.engines_due and self.work >= WORK_MAX_CROWDED and (
                self.work >= WORK_MAX or self.budget.is_crowded()
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
            self.flush()                # output that is ready doesn't wait for the engines
        self.work = 0
        if self.early:                  # the scheduled end still runs, for later reads
            self.early = False
        else:
            if self.scheduled and self.reads:
                self.at_once = AT_ONCE_MAX if self.reads == 1 else 0
            self.scheduled = False
            self.reads = 0
        self.engines_due = False
        self.running = True
        return due

    def done(self):
        self.running = False

    cpdef bint flush(self) except -1:
        cdef bint congested = False
        cdef list taken
        cdef Py_ssize_t i = 0
        cdef uint64_t now
        if not self.dirty_sinks.items:
            return False
        taken = self.dirty_sinks.take()
        # One read of the clock for all sinks, and none within a read, whose part has read it.
        now = self.budget.began if self.budget.depth else self.budget.now()
        while (<FlushRun>flush_run)(taken, &i, now, &congested) < 0:
            note("flush of a sink", take_raised())   # the other sinks are flushed all the same
        return congested


# flush_run() for a caller that checks the result itself: entering a `try` costs a third of a flush.
ctypedef int (*FlushRun)(list, Py_ssize_t*, uint64_t, bint*) noexcept


cdef int flush_run(list sinks, Py_ssize_t* at, uint64_t now, bint* congested) except -1:
    """Flushes the sinks from index `at` on; counts it up, and sets `congested` if a receiver is. An exception ends
    the run after the sink that raised it."""
    while at[0] < len(sinks):
        at[0] += 1
        if flush_at(<Sink?>sinks[at[0] - 1], now):
            congested[0] = True
    return 0


cdef bint flush_at(Sink sink, uint64_t now) except -1:
    """Flushes one sink, and notes when its client had its last message: PONGs do not count."""
    cdef ClientSink client
    if isinstance(sink, ClientSink):
        client = <ClientSink>sink
        if client.noted_msgs != client.out_msgs:
            client.noted_msgs = client.out_msgs
            client.active_ns = now
    return sink.flush()
