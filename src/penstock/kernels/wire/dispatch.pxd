"""The hot path of routing: from a connection's read buffer to every interested sink."""
from libc.stdint cimport uint64_t
from penstock.kernels.wire.buffers cimport OutBuffer
from penstock.kernels.wire.budget cimport LoopBudget
from penstock.kernels.wire.frames cimport Frame, FrameParser
from penstock.kernels.routing.literals cimport Lookup
from penstock.kernels.wire.sinks cimport DirtyList, Message, Sink, SinkSubscription
from penstock.kernels.routing.subscription_index cimport MatchResult, SubscriptionIndex
from penstock.kernels.wire.ticks cimport TickTrigger

# What a receiver's permissions mean for deliveries. Most receivers have none, and pay for a comparison.
# may_receive(subject: bytes) -> bool, or None: all; it is asked once about a subject.
# on_reply(reply: bytes), or None; called before a message with a reply is delivered.
cdef class DeliveryGuard:
    cdef public object may_receive, on_reply
    cdef dict decided
    cdef bint passes(self, const Message* m) except -1
    cdef int note_reply(self, const Message* m) except -1

# Tells what passes a connection, for a log that shows messages. A connection that has none pays for a comparison.
# tell(received: bool, subject, sid, reply, body: bytes, header_len: int); sid is b"" for a publish.
cdef class Tracer:
    cdef object tell
    cdef int note(self, bint received, bytes sid, const Message* m) except -1

# The output half of a connection: encodes MSG/HMSG into `out`, marks itself dirty.
cdef class ClientSink(Sink):
    cdef readonly OutBuffer out
    cdef DirtyList dirty_list
    cdef bint is_dirty
    cdef public bint echo               # CONNECT echo
    cdef public bint headers            # CONNECT headers: without it messages go out as MSG, header stripped
    cdef public bint closed
    cdef public uint64_t out_msgs, out_bytes
    cdef public uint64_t in_msgs, in_bytes
    cdef public object owner            # the Python session; owner.on_auto_unsubscribe(sub) at UNSUB max
    cdef public size_t stall_threshold  # backlog of `out`, bytes, above which publishers should wait
    # Bytes that may wait in `out`, 0 = no bound; what goes above it closes the sink, `overflowed`.
    cdef public size_t pending_max
    cdef readonly bint overflowed
    cdef dict drain_waiters             # {callback: None}, called once at drained()
    cdef bint fed_slow                  # as a publisher: has delivered to a sink above its threshold
    cdef bint called                    # as a publisher: what it sent has called what may take long
    cdef public DeliveryGuard guard     # None, or what keeps messages from this receiver
    cdef public int socket              # where `out` may go straight to; -1 = owner.flush() sends it
    cdef readonly uint64_t sent_bytes   # what went straight to the socket
    cdef public Tracer tracer           # None, or what is told of messages that come and go
    cdef public bytes brief, detail     # None, or what services in other accounts are told of it (account_imports.pyx)
    cdef int mark_dirty(self) except -1
    cdef int tell_auto_unsubscribe(self, SinkSubscription sub) except -1
    cdef int encoded(self, size_t body_len, Sink origin) except -1
    cdef bint send(self) except -1
    # Is it the guard alone that keeps the message from this receiver?
    cdef bint denies(self, SinkSubscription sub, const Message* m) except -1
    # Does more wait in `out` than a consumer may add to?
    cdef bint is_blocked(self, size_t backlog_max) noexcept

# A Python callable as a sink, for what is rare: API requests, system services.
# callback(subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None)
# Before it is called, `before()` runs (what is pending for streams is applied).
cdef class ServiceSink(Sink):
    cdef object callback
    cdef object before

# Remembers what became of subjects. decide(subject: bytes) -> (subject to route: bytes, is it always so: bool);
# what isn't always so is asked anew for every message. One for all connections of an account.
cdef class SubjectMapper:
    cdef object decide
    cdef dict decided
    cpdef bytes map(self, bytes subject)

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
    cdef bint note_weight(self, LoopBudget budget, size_t n, bint full) except -1
    cdef int unlooked_max(self) noexcept
    cdef bint is_over(self) except -1
    cdef int publish_frame(self, const Frame* f, Lookup* sought) except -1
    cdef bint is_allowed(self, const Message* m) except -1
    cdef bint is_reply_allowed(self, const Message* m) except -1

# Says that what `origin` sent has called something that may take long: the clock is looked at before it goes on.
cdef void note_call(Sink origin) noexcept

# Routes one message to everybody interested; returns how many took it.
cdef int route(SubscriptionIndex index, const Message* m, Sink origin) except -1
# Tells who asked, when it listens itself, that nobody took its request.
cdef int answer_no_responders(SubscriptionIndex index, ClientSink sink, const Message* m) except -1
# The same for Python callers.
cpdef int publish(
    SubscriptionIndex index, bytes subject, bytes reply, bytes header, bytes payload, Sink origin=*
) except -1
