"""Everything that receives messages is a sink; a subscription ties a subject filter to a sink."""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

# A message during delivery. The caller of deliver() owns what the pointers refer to; they are valid until it returns.
cdef struct Message:
    const char* subject
    size_t subject_len
    const char* reply           # NULL when absent
    size_t reply_len
    const char* body            # header block followed by payload, contiguous
    size_t header_len           # 0 when there is no header block
    size_t body_len             # header and payload together

cdef enum:
    SUBSCRIPTION_CLOSED = 1
    SUBSCRIPTION_LIMITED = 2        # UNSUB max
    SUBSCRIPTION_NO_SID = 4         # entry_words() has no sid: there is none, or it is too long
    SUBSCRIPTION_REMOTE = 8         # a RemoteSubscription
    SUBSCRIPTION_PRIVATE = 16       # not announced to other servers

# What the other end of a connection is. A message's way on depends on where it comes from.
cpdef enum PeerKind:
    PEER_CLIENT = 0
    PEER_ROUTE = 1                  # another server of the cluster
    PEER_LEAF = 2                   # a leaf node of this server
    PEER_HUB = 3                    # the server whose leaf node this one is
    PEER_GATEWAY = 4                # a server of another cluster

# The state that a delivery to a subscription reads and changes, in its own cache lines (base/memory.pyx): with subject
# and sid of up to 30 bytes together it is one line. It is also the entry of the table of literal filters.
cdef struct SubscriptionEntry:
    void* subscription          # its SinkSubscription, borrowed; NULL: a filter with several (subscription_index.pyx)
    void* receiver              # the Sink, borrowed; or the FilterState of a filter with several subscriptions
    uint64_t delivered
    uint32_t hash               # of the subject; set by the table that it is in
    uint16_t subject_len
    uint8_t sid_len
    uint8_t flags               # SUBSCRIPTION_...; most have none

# Subject, blank, sid, blank: the start of a MSG frame after its verb. Without a sid only the first blank.
cdef inline char* entry_words(const SubscriptionEntry* entry) noexcept nogil:
    return <char*>entry + sizeof(SubscriptionEntry)

# The caller sets the hash. A subject that is too long for any index is left out.
cdef SubscriptionEntry* entry_new(const char* subject, size_t n, const char* sid, size_t sid_len) except NULL
cdef void entry_free(SubscriptionEntry* entry) noexcept

cdef class Sink:
    # Does the sink see the subject that a message was stored with, when a consumer delivers it to another subject?
    # Clients do. Other sinks see the subject that the message was delivered to.
    cdef bint shows_stored
    # Does the sink take messages of this server's clients only? Each server does the imports of its own clients.
    cdef bint for_clients
    # The final subscription of a message: `sub` itself, unless this sink forwards messages; None = there is none.
    cdef SinkSubscription beyond(self, SinkSubscription sub)
    # Accepts one message for one of its subscriptions. `origin` is the publisher's sink or None.
    # Returns 1 when accepted, 0 when refused (closed, echo off): a queue group then tries another member.
    cdef int deliver(self, SinkSubscription sub, const Message* m, Sink origin) except -1
    # The same for the entry of a subscription that is not closed, and a message whose subject equals the
    # subscription's.
    cdef int deliver_to(self, SubscriptionEntry* entry, const Message* m, Sink origin) except -1
    # Called at the end of a tick in which it marked itself: sends its output. True when its receiver is congested.
    cdef bint flush(self) except -1

cdef class SinkSubscription:
    cdef readonly Sink sink
    cdef readonly bytes subject     # the filter, wildcards allowed
    cdef readonly bytes queue       # b"" without a queue group
    cdef readonly bytes sid
    cdef uint64_t most              # UNSUB max; 0 = no maximum
    cdef bint indexed               # is in a SubscriptionIndex
    cdef SubscriptionEntry* entry   # owned; never NULL
    cdef void mark(self, uint8_t flag, bint value) noexcept

# Another server, as receiver of one account's messages: it gets each message once, however many of its subscriptions
# match. Routing first names the queue groups that the server shall serve, then sends.
cdef class PeerSink(Sink):
    # Do the stream imports of its account serve it?
    cdef bint follows_imports
    # May it get messages that come from this connection, for this subscription of it (None: for any)? Always, unless
    # the connection is one to another server.
    cdef bint takes_from(self, Sink source, RemoteSubscription sub) except -1
    # How far away it is, for the choice among clusters: round trip time, ns.
    cdef uint64_t distance(self) noexcept
    # The connection's sink, whose backlog slows this receiver down.
    cdef Sink connection(self)
    cdef int choose(self, bytes queue) except -1
    # Sends the message with the queue groups named since the last call; `plain`: the server has other subscriptions
    # that match. Returns 1 when accepted.
    cdef int send(self, const Message* m, Sink origin, bint plain) except -1

# The interest of another server in a subject; `weight` is its number of members of the queue group.
cdef class RemoteSubscription(SinkSubscription):
    cdef public uint32_t weight
    cdef readonly bint for_leaf     # of a leaf node, or of a hub: its members of queue groups come after the cluster's
    cdef readonly bint for_cluster  # of another cluster: its members of queue groups come last
    cdef readonly bytes cluster     # of the leaf node or hub; b"" = of a route's server, or unknown
    cdef void speak_for(self, bytes cluster) noexcept
    cdef void speak_for_cluster(self) noexcept

# Objects with work left for the end of the tick. The first mark of a tick calls `wake`.
cdef class DirtyList:
    cdef list items
    cdef public object wake         # callable without arguments, or None
    cdef int mark(self, object item) except -1      # the item keeps its own "already marked" flag
    cpdef list take(self)


# Takes the Exception that is set in the interpreter, and clears it: for callers that call a function through a
# `noexcept` pointer and check its result themselves, because entering a `try` costs about a hundred instructions.
# Propagates what is no Exception.
cdef object take_raised()


cdef class RoutingGuard:
    cdef readonly bint is_active


cdef inline bint is_remote(SinkSubscription sub) noexcept:
    return sub.entry.flags & SUBSCRIPTION_REMOTE != 0


cdef inline bint is_closed(SinkSubscription sub) noexcept:
    return sub.entry.flags & SUBSCRIPTION_CLOSED != 0
