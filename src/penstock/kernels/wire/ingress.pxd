"""The input half of a connection: from its read buffer to the router."""
from libc.stdint cimport uint64_t

from penstock.kernels.routing.literals cimport Lookup
from penstock.kernels.routing.subscription_index cimport SubscriptionIndex
from penstock.kernels.wire.dispatch cimport ClientSink, SubjectMapper
from penstock.kernels.wire.frames cimport Frame, FrameParser
from penstock.kernels.wire.sinks cimport Message
from penstock.kernels.wire.ticks cimport LoopBudget, TickTrigger

# A PUB or HPUB taken out of the read buffer, and where in it it began.
cdef struct PublishFrame:
    Frame frame
    size_t start

# The input half of a connection.
cdef class Ingress:
    cdef readonly FrameParser parser
    cdef readonly ClientSink sink
    cdef public SubscriptionIndex index
    cdef public bint verbose, pedantic, no_responders
    # None, or callable(subject: bytes) -> bool | int; False = drop (it has sent -ERR), True = allowed for good,
    # any other number = allowed this time
    cdef public object publish_check
    cdef dict allowed                   # {subject: True}: what publish_check let through
    cdef Frame frame                    # the control frame process() stopped at
    cdef uint64_t frame_epoch           # parser.epoch while `frame` is alive
    cdef bint has_frame, busy
    # None, or callable(subject, reply, header, payload) -> int: routes publishes that ask to be traced
    cdef public object on_traced
    cdef public bint trace_parent       # does a header `traceparent` ask?
    cdef public SubjectMapper mapper    # None, or changes subjects of publishes before anything checks them
    cdef public object on_control       # callable(op): process() stopped at this frame; it goes on from there
    cdef public object on_fed_slow      # callable(): what was read went to a sink above its stall_threshold
    # Whose tick a read may end, and whose budget it has; None = it ends none and may work for ever.
    cdef public TickTrigger trigger
    cdef public bint is_direct          # reads come straight from the socket, and may end the tick
    # None = it may work for ever, or callable(): a part is over, the rest waits; call go_on() in the next turn
    cdef public object on_wait
    cdef readonly bint waiting          # for go_on()
    cdef public bint held               # nothing is worked on: what is read waits until go_on() without it
    # Of the part that runs: its budget is used up; it has none; nothing has been done in it.
    cdef bint spent, unbounded, fresh
    cdef bint filled                    # the last read filled the room that it was given
    cdef bint fills_parts               # its last part was about as long as a short one may be
    cdef uint64_t used                  # ns of its part that went into reads before this one
    cdef uint64_t heavy_until           # it is one with much to do
    cdef public bint active             # has read something since somebody set it False
    cdef readonly Py_ssize_t read_bytes     # of the last read
    # Dispatches PUB/HPUB frames; returns 0 when the buffer needs more, else the Op of the control
    # frame (or OP_ERROR) it stopped at; the caller reads it by control() and calls process() again.
    cpdef int process(self) except -1
    cdef int run(self) except -1
    cdef int take_ahead(self, PublishFrame* ahead, Lookup* sought, int* op) except -1
    cdef int publish_ahead(self, const PublishFrame* ahead, Lookup* sought, int count) except -1
    cdef int publish_some(self, const PublishFrame* ahead, Lookup* sought, int i, int count) except -1
    cdef int fail(self, const Frame* f, object error) except -1
    cdef int work(self) except -1
    cdef int work_on(self, size_t n, bint full) except -1
    cdef bint yields(self) except -1
    cdef bint note_weight(self, LoopBudget budget, size_t n, uint64_t messages, bint full) except -1
    cdef int unlooked_max(self) noexcept
    cdef bint is_over(self) except -1
    cdef int publish_frame(self, const Frame* f, Lookup* sought) except -1
    cdef bint is_allowed(self, const Message* m) except -1
    cdef bint is_reply_allowed(self, const Message* m) except -1

# Does the header block name a destination of traces? With `parent`, a `traceparent` asks as well.
cdef bint asks_for_trace(const Message* m, bint parent) noexcept nogil
