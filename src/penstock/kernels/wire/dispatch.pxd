"""The hot path of routing: from a message to every interested sink."""
from libc.stdint cimport uint64_t
from penstock.kernels.wire.output cimport OutBuffer
from penstock.kernels.routing.literals cimport Lookup
from penstock.kernels.wire.sinks cimport DirtyList, Message, Sink, SinkSubscription
from penstock.kernels.routing.subscription_index cimport MatchResult, SubscriptionIndex

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

# Says that what `origin` sent has called something that may take long: the clock is looked at before it goes on.
cdef void note_call(Sink origin) noexcept

# Routes one message to everybody interested; returns how many took it.
cdef int route(SubscriptionIndex index, const Message* m, Sink origin) except -1
# The same for a message whose subject's lookup has perhaps begun.
cdef int route_looked_up(SubscriptionIndex index, Lookup* sought, const Message* m, Sink origin) except -1
# Tells who asked, when it listens itself, that nobody took its request.
cdef int answer_no_responders(SubscriptionIndex index, ClientSink sink, const Message* m) except -1
# Sends a header block without a message to the publisher's own subscription to the reply, if it has one.
cdef int answer_status(SubscriptionIndex index, ClientSink sink, const Message* m, bytes header) except -1
# route() for Python callers.
cpdef int publish(
    SubscriptionIndex index, bytes subject, bytes reply, bytes header, bytes payload, Sink origin=*
) except -1
