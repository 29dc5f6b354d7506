"""The input half of a connection: from its read buffer to the router."""
from libc.stdint cimport uint64_t

from penstock.kernels.routing.literals cimport Lookup
from penstock.kernels.routing.subscription_index cimport SubscriptionIndex
from penstock.kernels.wire.dispatch cimport ClientSink, SubjectMapper
from penstock.kernels.wire.frames cimport Frame, FrameParser
from penstock.kernels.wire.sinks cimport Message
from penstock.kernels.wire.ticks cimport LoopBudget, TickTrigger

# A parsed PUB or HPUB, and its offset in the read buffer.
cdef struct PublishFrame:
    Frame frame
    size_t start

# The input half of a connection.
cdef class Ingress:
    cdef readonly FrameParser parser
    cdef readonly ClientSink sink
    cdef public SubscriptionIndex index
    cdef public bint verbose, pedantic, no_responders
    # None, or callable(subject: bytes) -> bool | int; False = drop (it has sent -ERR), True = allowed and cached,
    # any other number = allowed this time
    cdef public object publish_check
    cdef dict allowed                   # {subject: True}: cached decisions of publish_check
    cdef Frame frame                    # the control frame process() stopped at
    cdef uint64_t frame_epoch           # parser.epoch for which `frame` is valid
    cdef bint has_frame, busy
    # None, or callable(subject, reply, header, payload) -> int: routes publishes that request a trace
    cdef public object on_traced
    cdef public bint trace_parent       # does a `traceparent` header request a trace?
    cdef public SubjectMapper mapper    # None, or changes subjects of publishes before any check
    cdef public object on_control       # callable(op): process() stopped at this frame; the callee continues
    cdef public object on_fed_slow      # callable(): a publish went to a sink above its stall_threshold
    # Runs the tick that a read may end, and has the time budget; None = no tick and no time limit.
    cdef public TickTrigger trigger
    cdef public bint is_direct          # reads come directly from the socket, and may end the tick
    cdef public int socket              # descriptor that go_on() may read; -1 = only the event loop reads
    cdef readonly bint is_broken        # go_on() found that the socket has failed
    # None = no time limit, or callable(): a part is over, the rest waits; call go_on() in the next iteration
    cdef public object on_wait
    cdef readonly bint waiting          # for go_on()
    cdef public bint paused             # input waits until go_on() is called with this cleared
    # State of the current part: its budget is used up; it has none; nothing has been done in it.
    cdef bint spent, unbounded, fresh
    cdef bint is_plain                  # it has only routed publishes so far, to few receivers without Python code
    cdef bint filled                    # the last read filled its view
    cdef bint fills_parts               # its last part took at least half of a short budget
    cdef uint64_t used                  # ns that earlier reads of the current part took
    cdef uint64_t heavy_until           # ns: until then it counts as a connection with much to do
    cdef public bint active             # has read something since the owner set it False
    cdef readonly Py_ssize_t read_bytes     # of the last read
    # Dispatches PUB/HPUB frames; returns 0 when the buffer needs more, else the Op of the control
    # frame (or OP_ERROR) it stopped at; the caller reads it by control() and calls process() again.
    cpdef int process(self) except -1
    cdef int run(self) except -1
    cdef int take_ahead(self, PublishFrame* ahead, Lookup* lookups, int* op) except -1
    cdef int publish_ahead(self, const PublishFrame* ahead, Lookup* lookups, int count) except -1
    cdef int fail(self, const Frame* f, object error) except -1
    cdef int work(self) except -1
    cdef int work_on(self, size_t n, bint full) except -1
    cdef bint yields(self) except -1
    cdef int read_on(self) except -1
    cdef bint note_weight(self, LoopBudget budget, size_t n, uint64_t messages, bint full) except -1
    cdef int unchecked_max(self) noexcept
    cdef bint is_over(self) except -1
    cdef int publish_frame(self, const Frame* f, Lookup* lookup) except -1
    cdef bint is_allowed(self, const Message* m) except -1
    cdef bint is_reply_allowed(self, const Message* m) except -1

# Does the header block name a trace destination? With `parent`, a `traceparent` counts as well.
cdef bint asks_for_trace(const Message* m, bint parent) noexcept nogil
