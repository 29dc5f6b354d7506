# cython: auto_pickle=False
"""The input half of a connection: from its read buffer to the router. ingress.pxd has the attributes.

Invariants: nothing references a message after process() returned; while process() runs, the read buffer can't
move, so that a service called from there may use other connections freely.

A publish is treated as the official server (2.15) does, in this order: count it, map its subject, refuse a
reserved subject, ask publish_check, refuse a reserved reply, write +OK (verbose), route, answer 503 without receivers.

The check for a trace request runs for every message with headers, so it only searches for header names. Python
interprets the values and decides whether to trace (server/monitoring/message_trace.py).

Rejected: passing PUB frames to Python when pedantic or verbose are on (the answers are two fixed texts).
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint64_t
from libc.string cimport memchr, memcmp

from penstock.kernels.routing.grammar cimport (
    is_literal_subject, is_reserved_reply, is_reserved_subject, may_be_reserved,
)
from penstock.kernels.routing.literals cimport Lookup
from penstock.kernels.routing.subscription_index cimport SubscriptionIndex
from penstock.kernels.wire.dispatch cimport (
    ClientSink, answer_no_responders, answer_status, route_looked_up,
)
from penstock.kernels.wire.frames cimport ERROR_MALFORMED, OP_HPUB, OP_NEED_MORE, OP_PUB, FrameParser, to_python
from penstock.kernels.wire.sinks cimport Message, take_raised
from penstock.kernels.wire.ticks cimport (
    CROWD_PERIOD_NS, CROWDED_READ_BYTES, CROWDED_SMALL_READ_BYTES, HEAVY_PERIOD_NS, LIGHT_READ_NS, SHORT_BUDGET_NS,
    SMALL_MESSAGE_BYTES, LoopBudget, TickTrigger,
)

from penstock.faults import describe as describe_fault, note as note_fault

cdef extern from *:
    """
    #ifdef _WIN32
    static long long receive_at_once(int fd, char* p, size_t n) { return -1; }
    #else
    #include <errno.h>
    #include <sys/socket.h>
    static long long receive_at_once(int fd, char* p, size_t n) {
        long long got = recv(fd, p, n, MSG_DONTWAIT);
        return got >= 0 || errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? got : -2;
    }
    #endif
    """
    # The number of bytes, 0 at the end of the stream, -1 = nothing to read now, -2 = an error.
    long long receive_at_once(int fd, char* p, size_t n) noexcept nogil

cdef enum:
    ALLOWED_MAX = 1024              # cached decisions of publish_check
    AHEAD = 32                      # publishes whose lookups are prefetched together
    TAKEN_MAX = 32                  # deliveries between two reads of the clock
    UNCHECKED_MAX = 128             # publishes between two reads of the clock in a long part: each costs half a publish
    LIGHT_BYTES = 16 << 10          # a larger read makes a connection heavy
    SMALL_READ_PUBLISHES_MAX = 4    # of one read, of up to SMALL_MESSAGE_BYTES together
    DEST_LEN = 16
    PARENT_LEN = 12


# --- headers that ask for a trace

cdef inline bint is_parent(const char* p) noexcept nogil:
    """Is it `traceparent:`, in any case?"""
    cdef const char* name = b"traceparent:"
    cdef int i
    for i in range(PARENT_LEN):
        if (p[i] | 0x20 if c'A' <= p[i] <= c'Z' else p[i]) != name[i]:
            return False
    return True


cdef bint asks_for_trace(const Message* m, bint parent) noexcept nogil:
    cdef const char* p = m.body
    cdef const char* end = m.body + m.header_len
    cdef const char* newline
    while True:
        newline = <const char*>memchr(p, c'\n', <size_t>(end - p))
        if newline == NULL:
            return False
        p = newline + 1
        if end - p >= DEST_LEN and p[0] == c'N' and memcmp(p, b"Nats-Trace-Dest:", DEST_LEN) == 0:
            return True
        if parent and end - p >= PARENT_LEN and is_parent(p):
            return True


def asks(bytes header not None, bint parent):
    cdef Message m
    m.body, m.header_len = PyBytes_AS_STRING(header), <size_t>PyBytes_GET_SIZE(header)
    return asks_for_trace(&m, parent)


# --- the connection

# The type through which publish_run() is called where its result -1 is checked by hand: as `except -1` function, each
# call would enter a `try`, which costs a tenth of a publish.
ctypedef int (*PublishRun)(Ingress, const PublishFrame*, Lookup*, int, int*) noexcept


cdef int publish_run(Ingress self, const PublishFrame* ahead, Lookup* lookups, int count, int* at) except -1:
    """Routes publishes from index `at` on, and counts it up. An exception ends the run after the publish that raised
    it."""
    cdef ClientSink sink = self.sink
    cdef int i = at[0], taken = 0
    while i < count and not sink.closed:
        at[0] = i = i + 1
        taken += self.publish_frame(&ahead[i - 1].frame, &lookups[i - 1])
        if sink.called or taken > TAKEN_MAX:
            sink.called = self.is_plain = False
            taken = 0
            if self.is_over():
                break
    return 0


cdef class Ingress:
    """The input half of a connection: routes the publishes that its parser reads through `index`.

    sink -- the connection's output half, for responses and counters.
    index -- the account's subscriptions; None until the connection belongs to an account: until then a
    publish is a bug of the caller (RuntimeError).
    """

    def __cinit__(self, ClientSink sink not None, SubscriptionIndex index=None, FrameParser parser=None):
        self.sink = sink
        self.index = index
        self.parser = FrameParser() if parser is None else parser
        self.allowed = {}
        self.socket = -1

    @property
    def fed_slow(self):
        """Has it delivered to a sink above its stall_threshold? Set it False to reset it."""
        return self.sink.fed_slow

    @fed_slow.setter
    def fed_slow(self, bint value):
        self.sink.fed_slow = value

    def configure(
        self, *, bint verbose=False, bint pedantic=False, bint no_responders=False, bint echo=True, bint headers=False
    ):
        """Applies the options of a CONNECT, to both halves of the connection."""
        self.verbose = verbose
        self.pedantic = pedantic
        self.no_responders = no_responders
        self.sink.echo = echo
        self.sink.headers = headers

    def join(
        self, SubscriptionIndex index not None, SubjectMapper mapper=None, on_traced=None, bint trace_parent=False
    ):
        """Routes publishes in this account from now on."""
        self.index = index
        self.mapper = mapper
        self.on_traced = on_traced
        self.trace_parent = trace_parent

    def restrict(self, publish_check):
        """Asks publish_check from now on, and forgets what an earlier one permitted; None = all is allowed.

        publish_check(subject) returns True (asked no more about this subject), another true value or False.
        """
        self.publish_check = publish_check
        self.allowed.clear()

    def take_activity(self):
        """Has it read something since the last call?"""
        cdef bint active = self.active
        self.active = False
        return active

    def received(self, Py_ssize_t n):
        """Processes the `n` bytes that a read put into the parser's buffer; may end the tick.

        When the budget is used up first, or reads keep filling the buffer, it calls on_wait(): the rest, and
        later reads, wait for go_on(). While connections with little to do are active, all input of a connection
        that fills its parts waits, so that the others are read first.
        """
        cdef FrameParser parser = self.parser
        if n < 0 or <size_t>n > parser.capacity - parser.end:
            raise ValueError(f"received({n}), but there was room for {parser.capacity - parser.end} bytes")
        # As buffer_updated() does: a call of it from here would make Python objects.
        parser.end += <size_t>n
        parser.is_offered = False
        if self.sink.closed:
            return
        self.active = True
        self.read_bytes = n
        self.filled = <size_t>n == parser.offered
        if self.waiting or self.paused:
            return
        if self.fills_parts and self.yields():
            self.waiting = True
            self.on_wait()
            return
        self.work_on(<size_t>n, self.filled)
        parser.give_back()              # where the view is released already; else its release does it

    def go_on(self):
        """Processes the next part of the waiting input; `waiting` says whether some is left."""
        self.waiting = False
        self.used = 0
        if not self.sink.closed and not self.paused:
            self.work_on(self.parser.end - self.parser.start, False)
            self.read_on()
            self.parser.give_back()

    def note_full_read(self):
        """Notes that a layer below filled its room for a read: there is more input than its bytes tell."""
        cdef LoopBudget budget
        if self.trigger is not None:
            budget = self.trigger.budget
            self.heavy_until = budget.now() + HEAVY_PERIOD_NS
            budget.busy_until = budget.now() + CROWD_PERIOD_NS

    def finish(self):
        """Processes all input without regard to the budget: the connection is not served again."""
        self.waiting = False
        if not self.sink.closed and not self.paused:
            self.unbounded = True
            try:
                self.work()
            finally:
                self.unbounded = False

    cdef int work_on(self, size_t n, bint full) except -1:
        """Processes input within the budget of a part; full: more input is waiting in the socket."""
        cdef TickTrigger trigger = self.trigger
        cdef LoopBudget budget
        cdef uint64_t messages = self.sink.in_msgs
        cdef bint reading = False, light
        self.spent = False
        self.fresh = self.is_plain = True
        if trigger is None:
            self.work()
            return 0
        budget = trigger.budget
        budget.begin(self.used)
        try:
            if self.is_direct:
                trigger.begin_read()
                reading = True
            self.work()
            messages = self.sink.in_msgs - messages
            light = self.note_weight(budget, n, messages, full)
            if reading:
                reading = False
                trigger.end_read(n, messages, full, light)
                if full:
                    # The loop reads a socket that fills the buffer up to 32 times in a row: these form one part.
                    self.used += budget.taken()
                    self.spent = self.spent or budget.is_spent()
                else:
                    self.used = 0
        finally:
            if reading:
                trigger.abandon_read()
            budget.end()
        if self.spent and self.on_wait is not None and not self.sink.closed and not self.paused:
            if full or self.parser.start != self.parser.end:
                self.waiting = True
                self.on_wait()
        return 0

    cdef bint yields(self) except -1:
        """Should it wait, which fills its parts, because connections with little to do are active?"""
        cdef LoopBudget budget
        if self.heavy_until == 0 or self.trigger is None or self.on_wait is None:
            return False
        budget = self.trigger.budget
        return budget.depth == 0 and budget.now() < min(self.heavy_until, budget.crowded_until)

    cdef int read_on(self) except -1:
        """Reads input for the next part if the connection would have to wait for it anyway.

        The event loop would need three system calls to read here again and to stop again, which takes as long as
        a part. At the end of the stream, and when nothing has arrived, the loop reads again and sees the same.
        """
        cdef FrameParser parser = self.parser
        cdef long long n
        if self.socket < 0 or self.waiting or self.paused or self.sink.closed or not self.filled:
            return 0
        if not self.fills_parts or self.trigger is None or self.on_wait is None:
            return 0
        if self.trigger.budget.now() >= min(self.heavy_until, self.trigger.budget.crowded_until):
            return 0
        parser.make_room_to_read(-1)
        n = receive_at_once(self.socket, parser.data + parser.end, parser.offer_room())
        parser.is_offered = False
        if n <= 0:
            self.is_broken = n == -2
            return 0
        parser.end += <size_t>n
        self.active = True
        self.read_bytes = n
        self.filled = <size_t>n == parser.offered
        self.waiting = True
        self.on_wait()
        return 0

    cdef bint note_weight(self, LoopBudget budget, size_t n, uint64_t messages, bint full) except -1:
        """Is the connection one with little to do, that should be answered soon, or one with much?"""
        cdef uint64_t taken = 0
        cdef bint crowded = budget.began < budget.crowded_until
        cdef bint is_small
        # A few small publishes take no time that matters here, and reading the clock as long as a publish.
        if not self.is_plain or messages > SMALL_READ_PUBLISHES_MAX or n > SMALL_MESSAGE_BYTES:
            taken = budget.taken()
        if messages:
            self.sink.active_ns = budget.began
        self.fills_parts = taken > SHORT_BUDGET_NS // 2 or self.spent or self.filled
        if taken > LIGHT_READ_NS or self.spent or full or self.filled or n > LIGHT_BYTES:
            self.heavy_until = budget.began + HEAVY_PERIOD_NS
            budget.busy_until = budget.began + CROWD_PERIOD_NS
        # The copy that a read makes holds others up too, and takes longer than a part when it fills the buffer.
        if not crowded or budget.began >= self.heavy_until:
            self.parser.view_max = 0
        else:
            messages = messages if messages else 1
            is_small = n < messages * SMALL_MESSAGE_BYTES
            self.parser.view_max = CROWDED_SMALL_READ_BYTES if is_small else CROWDED_READ_BYTES
        if budget.began >= self.heavy_until:
            budget.note_light()
            return True
        return False

    cdef int unchecked_max(self) noexcept:
        """How many publishes to route between two reads of the clock."""
        if self.trigger is None or self.trigger.budget.short or self.mapper is not None:    # (which may call Python)
            return AHEAD
        return UNCHECKED_MAX

    cdef bint is_over(self) except -1:
        """Is the budget of this part used up?"""
        if self.trigger is None or self.on_wait is None or self.unbounded or not self.trigger.budget.is_spent():
            return False
        self.spent = True
        return True

    cdef int work(self) except -1:
        cdef int op = self.process()
        if op != OP_NEED_MORE:
            self.is_plain = False
            self.on_control(op)
        if self.sink.fed_slow:
            self.sink.fed_slow = False
            self.on_fed_slow()
        return 0

    def control(self):
        """The frame at which process() stopped, as a PyFrame. Call it before more is read.

        Raises RuntimeError when there is none, or when the read buffer was touched since.
        """
        if not self.has_frame or self.frame_epoch != self.parser.epoch:
            raise RuntimeError("no control frame: call control() right after process() returned an Op")
        return to_python(&self.frame)

    cpdef int process(self) except -1:
        """Dispatches publishes; returns OP_NEED_MORE, or the Op of the frame it stopped at, or OP_ERROR.

        After an Op: read the frame with control(), then call process() again. A closed sink stops it
        with OP_NEED_MORE, and so does the end of its part. Propagates the exception of a publish,
        whose frame is consumed.
        """
        if self.busy:
            raise RuntimeError("process() was called from within itself")
        self.busy = True
        self.has_frame = self.spent = False
        self.parser.exports += 1        # pins the read buffer
        try:
            return self.run()
        finally:
            self.parser.exports -= 1
            self.busy = False

    cdef int run(self) except -1:
        cdef FrameParser parser = self.parser
        cdef PublishFrame ahead[AHEAD + 1]
        cdef Lookup lookups[AHEAD]
        cdef int count
        cdef int op = OP_PUB
        cdef int most = self.unchecked_max()
        # Each part processes at least one frame, so that it makes progress. After a control frame it reads the clock.
        cdef int unchecked = 0 if self.fresh else most
        self.fresh = False
        while not self.sink.closed:
            if unchecked >= most and op == OP_PUB:   # at the end of the input the clock does not matter
                if self.is_over():
                    break
                unchecked = 0
            count = self.take_ahead(ahead, lookups, &op)
            if count:
                unchecked += count
                self.publish_ahead(ahead, lookups, count)
                if self.sink.closed or self.spent:
                    break
            if op == OP_PUB or (op == OP_NEED_MORE and count):
                continue            # a service that was called may have fed the parser
            if op == OP_NEED_MORE:
                return op
            self.has_frame = True
            self.frame_epoch = parser.epoch
            return op
        return OP_NEED_MORE

    cdef int take_ahead(self, PublishFrame* ahead, Lookup* lookups, int* op) except -1:
        """Parses at most AHEAD publishes; `op` is what follows them, OP_PUB when there may be more.

        `start` of each element, and of the one after the last, is the offset at which that frame begins.
        """
        cdef FrameParser parser = self.parser
        cdef Frame* f
        cdef int count = 0
        op[0] = OP_PUB
        while True:
            ahead[count].start = parser.start
            if count == AHEAD:
                break
            f = &ahead[count].frame
            op[0] = parser.next(f)
            if op[0] == OP_PUB or (op[0] == OP_HPUB and self.sink.headers):
                op[0] = OP_PUB
                lookups[count].subject, lookups[count].n, lookups[count].index = f.subject, f.subject_len, NULL
                count += 1
                continue
            if op[0] == OP_HPUB:
                op[0] = parser.fail(f, ERROR_MALFORMED)
            if op[0] != OP_NEED_MORE:
                self.frame = f[0]
            break
        if count > 1 and self.index is not None and (self.mapper is None or self.mapper.prefix):
            self.index.seek(lookups, <size_t>count)
        return count

    cdef int publish_ahead(self, const PublishFrame* ahead, Lookup* lookups, int count) except -1:
        """Routes the parsed publishes. When the sink closes or the part is over, it rewinds the parser to the frame
        after the last routed one, so that later frames are parsed again."""
        cdef ClientSink sink = self.sink
        cdef int i = 0
        sink.called = False
        while i < count and not sink.closed and not self.spent:
            if (<PublishRun>publish_run)(self, ahead, lookups, count, &i) < 0:
                self.is_plain = False
                self.fail(&ahead[i - 1].frame, take_raised())
        if sink.closed or self.spent:
            self.parser.go_back(ahead[i].start)
        return 0

    cdef int fail(self, const Frame* f, object error) except -1:
        """Handles an exception from routing a publish: the message reaches no further receivers, and its reply
        subject gets the error."""
        cdef Message m
        cdef bytes subject = PyBytes_FromStringAndSize(f.subject, <Py_ssize_t>f.subject_len)
        fault = note_fault(f"publish to {ascii(subject)}", error)
        if f.reply_len and self.sink.headers and self.index is not None:
            m.reply, m.reply_len = f.reply, f.reply_len
            answer_status(self.index, self.sink, &m, f"NATS/1.0 500 {describe_fault(fault)}\r\n\r\n".encode())
        return 0

    cdef int publish_frame(self, const Frame* f, Lookup* lookup) except -1:
        """Routes a PUB or HPUB."""
        cdef Message m
        cdef ClientSink sink = self.sink
        cdef bytes mapped       # owns the bytes that m.subject points at
        cdef int taken
        m.subject, m.subject_len = f.subject, f.subject_len
        m.reply, m.reply_len = f.reply, f.reply_len
        m.body, m.body_len = f.body, f.body_len
        m.header_len = f.header_len
        if sink.tracer is not None:
            sink.tracer.note(True, b"", &m)
        sink.in_msgs += 1
        sink.in_bytes += m.body_len
        if self.pedantic and not is_literal_subject(m.subject, m.subject_len):
            sink.write(b"-ERR 'Invalid Publish Subject'\r\n")     # and routed all the same, as on the official server
        if m.header_len and self.on_traced is not None and asks_for_trace(&m, self.trace_parent):
            sink.called = True
            return self.on_traced(
                PyBytes_FromStringAndSize(m.subject, <Py_ssize_t>m.subject_len),
                PyBytes_FromStringAndSize(m.reply, <Py_ssize_t>m.reply_len) if m.reply_len else b"",
                PyBytes_FromStringAndSize(m.body, <Py_ssize_t>m.header_len),
                PyBytes_FromStringAndSize(m.body + m.header_len, <Py_ssize_t>(m.body_len - m.header_len)),
            )
        if self.mapper is not None and self.mapper.concerns(m.subject, m.subject_len):
            self.is_plain = False           # the mapping may call Python
            mapped = self.mapper.map(PyBytes_FromStringAndSize(m.subject, <Py_ssize_t>m.subject_len))
            m.subject, m.subject_len = PyBytes_AS_STRING(mapped), <size_t>PyBytes_GET_SIZE(mapped)
            lookup.subject, lookup.n, lookup.index = m.subject, m.subject_len, NULL
        if (self.publish_check is not None or may_be_reserved(m.subject, m.subject_len) or
                may_be_reserved(m.reply, m.reply_len)) and not self.is_allowed(&m):
            return 0
        if self.verbose:
            sink.out.append(b"+OK\r\n", 5)
            sink.mark_dirty()
        if self.index is None:
            raise RuntimeError("a publish arrived on an Ingress without an index")
        taken = route_looked_up(self.index, lookup, &m, sink)
        if taken == 0 and m.reply_len and self.no_responders:
            answer_no_responders(self.index, sink, &m)
        return taken

    cdef bint is_allowed(self, const Message* m) except -1:
        """Whether its subject and reply are permitted: reserved ones are refused, publish_check is asked of a subject
        that it has not permitted yet. A refusal has sent its -ERR."""
        cdef bytes subject
        if is_reserved_subject(m.subject, m.subject_len):
            subject = PyBytes_FromStringAndSize(m.subject, <Py_ssize_t>m.subject_len)
            self.sink.write(b"-ERR 'Permissions Violation for Publish to \"" + subject + b"\"'\r\n")
            return False
        if self.publish_check is not None:
            subject = PyBytes_FromStringAndSize(m.subject, <Py_ssize_t>m.subject_len)
            if subject not in self.allowed:
                self.sink.called = True
                verdict = self.publish_check(subject)
                if not verdict:
                    return False
                if verdict is True:
                    if len(self.allowed) >= ALLOWED_MAX:
                        self.allowed.clear()
                    self.allowed[subject] = True
        return self.is_reply_allowed(m)

    cdef bint is_reply_allowed(self, const Message* m) except -1:
        cdef bytes subject
        if m.reply_len and is_reserved_reply(m.reply, m.reply_len):
            subject = PyBytes_FromStringAndSize(m.reply, <Py_ssize_t>m.reply_len)
            self.sink.write(
                b"-ERR 'Permissions Violation for Publish with Reply of \"" + subject + b"\"'\r\n"
            )
            return False
        return True
