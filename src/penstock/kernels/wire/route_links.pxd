"""Messages and interest between servers: the compiled half of a route."""
from libc.stdint cimport uint64_t
from libc.string cimport memcmp

from penstock.kernels.routing.subscription_index cimport SubscriptionIndex
from penstock.kernels.wire.dispatch cimport ClientSink, Views
from penstock.kernels.wire.frames cimport Span
from penstock.kernels.wire.ingress cimport Ingress
from penstock.kernels.wire.output cimport OutBuffer
from penstock.kernels.wire.route_frames cimport RouteFrame, RouteParser
from penstock.kernels.wire.sinks cimport PEER_GATEWAY, PEER_ROUTE, Message, PeerSink, Sink

cdef enum:
    ROUTED_LEN = 19                     # what a gateway puts before a reply: `_GR_.cccccc.ssssss.`

# The queue groups that get a message of another server.
cdef enum GroupChoice:
    GROUPS_NAMED = 0                    # those that the frame names
    GROUPS_ALL = 1                      # all: the message was renamed here, so the other server could choose none
    GROUPS_OWN = 2                      # of an answer: those named, and those without members elsewhere (is_own)
    GROUPS_ANSWERED = 3                 # of an answer: those named

# The output half of a route. `peer` of ClientSink: what the other end is.
cdef class RouteSink(ClientSink):
    # The leaf node cluster behind it: of all messages of a leaf node link, of the current message of a route. b"" =
    # none, or it has no name. Messages do not go back there.
    cdef readonly bytes cluster
    cdef SubscriptionIndex home         # of the account of a leaf node link; None for a route
    cdef bint names_origins             # the server takes origins of leaf nodes
    cdef readonly bint traces           # the server reports the steps of messages that ask for it
    cdef object on_dropped              # None, or callable(): messages were dropped since the last take_dropped()
    cdef readonly uint64_t dropped_msgs, dropped_bytes
    cdef bint has_reported
    cdef dict targets                   # {account: RouteTarget}
    cdef RoutedReplies routed_replies   # None: replies that gateways have routed are treated like others
    cdef bint has_room(self, size_t n, Sink origin) except -1
    cdef int sent(self, size_t body_len, Sink origin) except -1
    cdef int put_line(self, const char* verb, bytes word, bytes key, uint64_t weight) except -1
    cdef RouteTarget target_of(self, bytes account, SubscriptionIndex index, bytes word)
    cdef RouteTarget new_target(self)

# One account of another server, as receiver of messages, and its interest.
cdef class RouteTarget(PeerSink):
    cdef readonly RouteSink link
    cdef readonly bytes account
    cdef bytes word                     # "<account> " in frames, b"" on a dedicated route
    cdef SubscriptionIndex index
    cdef OutBuffer queues               # " <queue> <queue>": named for the next message
    cdef dict subs                      # {key of the frame: RemoteSubscription}
    cdef const char* verb               # of a message without headers, five bytes
    # {subject: (RemoteSubscription, routed reply)}: answers that are sent under another subject; None = none yet.
    cdef dict routed
    cdef bytes routed_of(self, const Message* m)
    cdef int expect_answer(self, bytes subject, bytes routed) except -1
    cdef int forget_answer(self, bytes subject) except -1
    cdef bytes cluster_of(self, Sink origin)
    cdef int encode(self, const Message* m, bytes origin) except -1
    cdef int add(self, const RouteFrame* f, bytes key, bytes subject, bytes queue) except -1
    cdef int drop(self, bytes key) except -1
    cdef int move(self, SubscriptionIndex index) except -1

# What a server knows of replies that gateways have routed (gateway_links.pyx).
cdef class RoutedReplies:
    # A local receiver gets a message with this routed reply, and may answer it under the plain one.
    cdef int note(self, RouteIngress ingress, SubscriptionIndex index, const char* reply, size_t n) except -1
    # Takes an answer with a routed subject to the server that asked.
    cdef int answer(self, RouteIngress ingress, SubscriptionIndex index, const RouteFrame* f) except -1
    # A leaf node answers another cluster's request, which may have come to another server of this cluster.
    cdef int expect(self, RouteIngress ingress, SubscriptionIndex index, const char* routed) except -1
    # Does a routed subject name a server of this cluster?
    cdef bint is_here(self, const char* routed) noexcept
    # The routed name of a reply that came with one, or None.
    cdef bytes name_of(self, SubscriptionIndex index, const Message* m)

# The input half of a route.
cdef class RouteIngress(Ingress):
    cdef RouteParser frames
    cdef RouteFrame route_frame
    cdef object open_account            # callable(name: bytes) -> SubscriptionIndex | None
    cdef RoutedReplies replies          # None: replies that gateways have routed are treated like others
    cdef object may_export              # None, or callable(subject: bytes) -> bool
    cdef readonly uint64_t unknown      # messages and interest of unknown accounts
    cdef bytes last_account
    cdef SubscriptionIndex last_index
    cdef SubscriptionIndex find_account(self, const Span* name)
    cdef int take_message(self, const RouteFrame* f) except -1
    cdef int take_account(self, const RouteFrame* f) except -1
    cdef int route(
        self, SubscriptionIndex index, const RouteFrame* f, const char* subject, size_t n, GroupChoice choice
    ) except -1
    cdef int take_interest(self, const RouteFrame* f) except -1
    cdef int route_on(
        self, SubscriptionIndex index, const Views* views, const Span* queues, GroupChoice choice
    ) except -1

# Does the subject begin with `_GR_.<6 characters of a cluster>.<6 of a server>.`?
cdef inline bint is_routed(const char* subject, size_t n) noexcept nogil:
    return n > ROUTED_LEN and memcmp(subject, b"_GR_.", 5) == 0

# Has the server that a message comes from done the imports of its publisher?
cdef inline bint is_served(RouteSink source) noexcept:
    return source.peer == PEER_ROUTE or source.peer == PEER_GATEWAY

# The publisher of its messages for local receivers: a leaf node or hub counts as a client, None stands for a client of
# another server of the cluster, or of another cluster.
cdef inline RouteSink origin_of(RouteSink source):
    return None if is_served(source) else source

cdef int route_from_peer(
    SubscriptionIndex index, const Views* views, const Span* queues, GroupChoice choice, RouteSink source
) except -1
