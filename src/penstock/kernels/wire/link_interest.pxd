"""What a server announces to others: interest of an account's subscriptions, over routes and leaf node links."""
from libc.stdint cimport int64_t, uint64_t

from penstock.kernels.routing.subscription_index cimport Announcer, SubscriptionIndex
from penstock.kernels.wire.recent_interest cimport RecentInterest
from penstock.kernels.wire.route_links cimport RouteSink
from penstock.kernels.wire.sinks cimport RemoteSubscription, SinkSubscription

# Where interest comes from.
cdef enum Source:
    SOURCE_LOCAL        # clients and services of this server
    SOURCE_IMPORT       # service imports and mappings, which each server of a cluster does for its own clients
    SOURCE_ROUTE        # other servers of the cluster
    SOURCE_GATEWAY      # other clusters
    SOURCE_ROUTED_LEAF  # leaf nodes of other servers of the cluster
    SOURCE_LEAF         # leaf nodes of this server
    SOURCE_HUB          # hubs of this server
    SOURCES

# Announces the interest in an account to other servers.
cdef class LocalInterest(Announcer):
    cdef readonly bytes account
    cdef list counts                    # [{subject, or subject and queue: subscriptions}] by Source
    cdef dict of_clusters               # {(Source, cluster or link): {key: subscriptions}}, for leaf nodes and hubs
    cdef dict feeds                     # {RouteSink: InterestFeed}
    cdef dict leaf_feeds                # {RouteSink: LeafFeed}
    cdef RecentInterest recent          # None, or notes new subscriptions of clients and leaf nodes
    cdef list extra                     # subjects announced to leaf nodes and hubs without a subscription
    cdef bint counts_remote             # counts interest of other servers, which may be much
    cdef int note(self, SinkSubscription sub, int64_t delta) except -1
    cdef int note_remote(self, RemoteSubscription sub, int64_t delta) except -1
    cdef int announce_all(self, InterestFeed feed, bint retract) except -1
    cdef int announce_to(self, LeafFeed feed) except -1
    cdef int change(self, int source, object cluster, bytes key, int64_t delta, bint is_queue) except -1

# A server of the cluster that gets the interest.
cdef class InterestFeed:
    cdef RouteSink link
    cdef bytes word
    cdef object may_import              # None, or callable(subject: bytes) -> bool
    cdef bint allows(self, bytes key) except -1
    cdef int announce(self, bytes key, uint64_t count) except -1
    cdef int announce_leaf(self, bytes cluster, bytes key, uint64_t count) except -1

# A leaf node or hub that gets the interest.
cdef class LeafFeed:
    cdef RouteSink link
    cdef LocalInterest interest
    cdef bint isolated                  # gets no interest of other leaf nodes
    cdef object may_announce            # None, or callable(subject: bytes) -> bool
    cdef bint sees(self, int source, bytes key) noexcept
    cdef int64_t visible(self, bytes key) except -1
    cdef bint allows(self, bytes key) except -1
    cdef int announce(self, bytes key, int64_t count) except -1

# A server of another cluster that gets the interest.
cdef class GatewayFeed(LeafFeed):
    cdef bytes word
