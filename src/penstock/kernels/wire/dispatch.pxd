"""The hot path of routing: from a message to every interested sink."""
from libc.stdint cimport uint8_t, uint64_t
from penstock.kernels.wire.output cimport OutBuffer
from penstock.kernels.routing.literals cimport Lookup
from penstock.kernels.wire.sinks cimport DirtyList, Message, RemoteSubscription, Sink, SinkSubscription
from penstock.kernels.routing.subscription_index cimport (
    MatchResult, RemoteReceivers, SharedGroup, SubscriptionIndex,
)

# Enforces a receiver's permissions on deliveries. Most receivers have none, which costs one comparison.
# may_receive(subject: bytes) -> bool, or None: all; called once for a subject.
# on_reply(reply: bytes), or None; called before a message with a reply is delivered.
cdef class DeliveryGuard:
    cdef public object may_receive, on_reply
    cdef dict decided
    cdef bint passes(self, const Message* m) except -1
    cdef int note_reply(self, const Message* m) except -1

# Reports the messages of a connection, for a log that shows them. A connection without one pays for a comparison.
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
    # Most bytes in `out`, 0 = no bound; a delivery that exceeds it closes the sink and sets `overflowed`.
    cdef public size_t pending_max
    cdef readonly bint overflowed
    cdef dict drain_waiters             # {callback: None}, called once at drained()
    cdef bint fed_slow                  # as a publisher: has delivered to a sink above its threshold
    cdef bint called                    # as a publisher: its message called a service that may take long
    cdef public DeliveryGuard guard     # None, or the permissions of this receiver
    cdef public int socket              # descriptor that `out` may be sent to directly; -1 = owner.flush() sends it
    cdef readonly uint64_t sent_bytes   # sent directly to the socket
    # Monotonic time of the last message to or from the client, or of note_active(); ns, 0 = none yet.
    cdef readonly uint64_t active_ns
    cdef uint64_t noted_msgs            # out_msgs at the last flush
    cdef public Tracer tracer           # None, or receives the messages of this connection
    cdef readonly uint8_t peer          # PeerKind of the other end
    # Cached client info for services in other accounts (account_imports.pyx), or None.
    cdef public bytes brief, detail
    cdef int mark_dirty(self) except -1
    cdef int tell_auto_unsubscribe(self, SinkSubscription sub) except -1
    cdef int encoded(self, size_t body_len, Sink origin) except -1
    cdef bint send(self) except -1
    # Would this receiver get the message but for the guard?
    cdef bint denies(self, SinkSubscription sub, const Message* m) except -1
    # Is the backlog in `out` too large for a consumer to add to it?
    cdef bint is_blocked(self, size_t backlog_max) noexcept

# A Python callable as a sink, for rare messages: API requests, system services.
# callback(subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None)
# `before()` runs first: it applies pending publishes, so that the service sees every earlier message stored.
cdef class ServiceSink(Sink):
    cdef object callback
    cdef object before

# Caches subject mappings. decide(subject: bytes) -> (subject to route: bytes, cacheable: bool); a mapping that is not
# cacheable is decided again for every message. One for all connections of an account.
cdef class SubjectMapper:
    cdef object decide
    cdef dict decided
    cdef readonly bytes prefix
    cdef bint concerns(self, const char* subject, size_t n) noexcept
    cpdef bytes map(self, bytes subject)

# Notes that a message of `origin` called a service that may take long: the ingress then checks its time budget.
cdef void note_call(Sink origin) noexcept

# Routes one message to all receivers; returns how many accepted it.
cdef int route(SubscriptionIndex index, const Message* m, Sink origin) except -1
# The same with a lookup that may have been prefetched.
cdef int route_looked_up(SubscriptionIndex index, Lookup* lookup, const Message* m, Sink origin) except -1
# A message as its different receivers see it. A consumer's delivery is routed by its deliver subject, and clients see
# the subject that it was stored with; other servers get that one behind the reply (route_links.pyx).
cdef struct Views:
    const Message* near         # for receivers within this server
    const Message* shown        # for those with shows_stored
    const Message* far          # for other servers
# Delivers to the other servers, and to the queue groups that have members there.
cdef int route_remote(SubscriptionIndex index, RemoteReceivers remote, const Views* views, Sink origin) except -1
# Delivers to one member of a queue group, from index `first` on.
cdef int route_to_member(list group, size_t first, const Views* views, Sink origin) except -1
# Delivers to a member of this server, or returns the server of the chosen one; counts in `taken`. `source`: the
# connection that the message comes from, `origin`: its publisher, for receivers.
cdef RemoteSubscription choose_member(
    SubscriptionIndex index, SharedGroup group, const Views* views, Sink origin, Sink source, int* taken
)
# Sends the no-responders status (503) to the requester's own subscription to the reply, if it has one.
cdef int answer_no_responders(SubscriptionIndex index, ClientSink sink, const Message* m) except -1
# Sends a header block without a message to the publisher's own subscription to the reply, if it has one.
cdef int answer_status(SubscriptionIndex index, ClientSink sink, const Message* m, bytes header) except -1
# route() for Python callers.
cpdef int publish(
    SubscriptionIndex index, bytes subject, bytes reply, bytes header, bytes payload, Sink origin=*
) except -1
