"""Messages and interest between clusters: the compiled half of a gateway link."""
from libc.stdint cimport uint64_t

from penstock.kernels.routing.subscription_index cimport SubscriptionIndex
from penstock.kernels.wire.output cimport OutBuffer
from penstock.kernels.wire.recent_interest cimport RecentInterest
from penstock.kernels.wire.route_frames cimport RouteFrame
from penstock.kernels.wire.route_links cimport RoutedReplies, RouteIngress, RouteSink, RouteTarget
from penstock.kernels.wire.sinks cimport Message, RemoteSubscription, Sink

# What a cluster tells about its interest in an account.
cpdef enum InterestMode:
    MODE_OPTIMISTIC = 0         # it wants all messages but those that it refuses
    MODE_TRANSITIONING = 1      # it announces its interest now
    MODE_INTEREST_ONLY = 2      # it wants what it announced

# The replies that this server routes by name, and those of other clusters.
cdef class GatewayReplies(RoutedReplies):
    cdef bytes own                      # `_GR_.<cluster>.<server>.` of this server; b"" = it has no gateways
    cdef dict clusters                  # {cluster hash: GatewaySink}
    cdef set absent                     # hashes of clusters whose link is lost
    cdef dict recent                    # {account: RecentInterest}
    cdef object noted                   # deque of (end of its time, RouteTarget, reply, routed name, answers' subject)
    cdef dict names                     # {index of the account: {reply: routed name}}: those of `noted`
    cdef object relay                   # None, or callable(account, server hash) -> (RouteSink, word) or None
    cdef object clock                   # None = the system's, or callable() -> ns; for tests
    cdef uint64_t now(self) except? 0
    cdef int keep(self, RouteTarget target, bytes subject, bytes routed, bytes answered) except -1
    cdef object relay_to(self, RouteIngress ingress, const char* routed)

# The output half.
cdef class GatewaySink(RouteSink):
    cdef GatewayReplies replies
    cdef uint64_t rtt                   # ns

# An account of another cluster, as receiver of messages, and that cluster's interest.
cdef class GatewayTarget(RouteTarget):
    cdef readonly int mode              # InterestMode
    cdef set refused                    # subjects that the cluster does not want; only while it is optimistic
    cdef RemoteSubscription everything  # in the index while the cluster is optimistic and wants the account
    cdef RecentInterest recent          # None until the first message with a reply
    cdef RemoteSubscription answers     # of subjects routed to the cluster by name; None = none yet
    cdef OutBuffer reply                # of the message that is sent
    cdef int want_all(self, bint all_subjects) except -1
    cdef int expect_answers(self, bytes cluster) except -1

# The input half.
cdef class GatewayIngress(RouteIngress):
    cdef readonly bint is_outbound
    cdef int misplaced(self) except -1
