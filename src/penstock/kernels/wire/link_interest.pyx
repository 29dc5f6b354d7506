# cython: auto_pickle=False
"""What a server announces to others: the interest in an account, over routes and leaf node links.

A receiver learns whether there is interest in a subject, and of queue groups how many members. Who gets to know what:

    interest of            routes       leaf nodes            hubs   other clusters
    clients, services      RS+          LS+                   LS+    RS+
    imports, mappings      -            LS+                   LS+    -
    routes                 -            LS+                   -      RS+
    other clusters         -            LS+                   -      -
    leaf nodes of routes   -            LS+ unless isolated   -      RS+
    leaf nodes             LS+ origin   LS+ unless isolated   LS+    RS+
    hubs                   -            LS+ unless isolated   -      -

Servers of a cluster have the same imports, and each one its own link to a hub: that is why routes do not get the
interest of imports and hubs, and hubs not that of routes. A leaf node or hub never gets what it, or another server of
its cluster, announced itself: messages would come back. Subjects that detect loops (`$LDS.`) go to all leaf nodes and
hubs of other clusters, so that they come back to who made them if there is a loop.

Invariants: no count is zero. Every feed's server knows exactly the counts (weights of queue groups, presence of
others) that its permissions allow.

Rejected: a table of what each leaf node knows, as in the official server. A hub with a thousand leaf nodes would
hold the interest of all of them a thousand times. The counts by source, less those of the leaf node's own cluster,
give the same numbers.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memchr, memcmp

from penstock.kernels.routing.subscription_index cimport Announcer, SubscriptionIndex
from penstock.kernels.wire.leaf_links cimport LeafSink
from penstock.kernels.wire.recent_interest cimport RecentInterest
from penstock.kernels.wire.route_links cimport RouteSink, RouteTarget
from penstock.kernels.wire.sinks cimport (
    PEER_GATEWAY, PEER_HUB, PEER_ROUTE, SUBSCRIPTION_PRIVATE, RemoteSubscription, SinkSubscription, is_remote,
)

cdef bytes NO_WORD = b""
cdef bytes NAMELESS = b"_"


cdef inline bint is_loop_subject(bytes key) noexcept:
    return PyBytes_GET_SIZE(key) > 5 and memcmp(PyBytes_AS_STRING(key), b"$LDS.", 5) == 0


cdef inline bytes key_of(SinkSubscription sub):
    return sub.subject + b" " + sub.queue if sub.queue else sub.subject


cdef inline bint is_queue_key(bytes key) noexcept:
    return memchr(PyBytes_AS_STRING(key), c' ', <size_t>PyBytes_GET_SIZE(key)) != NULL


cdef inline bytes subject_of(bytes key):
    return key.partition(b" ")[0]


cdef class InterestFeed:
    """One server of the cluster that receives an account's interest."""

    cdef bint allows(self, bytes key) except -1:
        return self.may_import is None or bool(self.may_import(subject_of(key)))

    cdef int announce(self, bytes key, uint64_t count) except -1:
        if count:
            return self.link.put_line(b"RS+ ", self.word, key, count if is_queue_key(key) else 0)
        return self.link.put_line(b"RS- ", self.word, key, 0)

    cdef int announce_leaf(self, bytes cluster, bytes key, uint64_t count) except -1:
        """Interest of leaf nodes of this cluster; b"" = they have none."""
        cdef bytes words
        if not self.link.names_origins:
            return self.announce(key, count)
        words = (cluster or NAMELESS) + b" " + self.word
        if count:
            return self.link.put_line(b"LS+ ", words, key, count if is_queue_key(key) else 0)
        return self.link.put_line(b"LS- ", words, key, 0)


cdef class LeafFeed:
    """One leaf node or hub that receives an account's interest."""

    cdef bint sees(self, int source, bytes key) noexcept:
        if source == SOURCE_LOCAL or source == SOURCE_IMPORT:
            return True
        if is_loop_subject(key):
            return True
        if self.link.peer == PEER_HUB:
            return source == SOURCE_LEAF
        return source == SOURCE_ROUTE or source == SOURCE_GATEWAY or not self.isolated

    cdef int64_t visible(self, bytes key) except -1:
        """How many subscriptions it should know of."""
        cdef int64_t count = 0
        cdef int source
        for source in range(<int>SOURCES):
            if not self.sees(source, key):
                continue
            count += <int64_t>(<dict>self.interest.counts[source]).get(key, 0)
            if source >= SOURCE_ROUTED_LEAF:
                own = self.interest.of_clusters.get((source, self.link.cluster or self.link))
                if own is not None:
                    count -= <int64_t>(<dict>own).get(key, 0)
        return count

    cdef bint allows(self, bytes key) except -1:
        return self.may_announce is None or is_loop_subject(key) or bool(self.may_announce(subject_of(key)))

    cdef int announce(self, bytes key, int64_t count) except -1:
        if count > 0:
            return self.link.put_line(b"LS+ ", NO_WORD, key, <uint64_t>count if is_queue_key(key) else 0)
        return self.link.put_line(b"LS- ", NO_WORD, key, 0)


cdef class GatewayFeed(LeafFeed):
    """One server of another cluster that receives an account's interest: all of this cluster's."""

    cdef bint sees(self, int source, bytes key) noexcept:
        return (
            source == SOURCE_LOCAL or source == SOURCE_ROUTE or source == SOURCE_ROUTED_LEAF or source == SOURCE_LEAF
        )

    cdef int announce(self, bytes key, int64_t count) except -1:
        if count > 0:
            return self.link.put_line(b"RS+ ", self.word, key, <uint64_t>count if is_queue_key(key) else 0)
        return self.link.put_line(b"RS- ", self.word, key, 0)


cdef class LocalInterest(Announcer):
    """The interest in one account, and the servers that receive it."""

    def __cinit__(self, bytes account not None, bint counts_remote=False):
        self.account = account
        self.counts_remote = counts_remote
        self.counts = [{} for _ in range(<int>SOURCES)]
        self.of_clusters = {}
        self.feeds = {}
        self.leaf_feeds = {}
        self.extra = []

    def __len__(self):
        return len(self.counts[SOURCE_LOCAL])

    def count_all(self, SubscriptionIndex index not None):
        """Counts the subscriptions that are in the index already, once, before there are feeds."""
        for sub in index.subscriptions():
            self.inserted(sub)

    # --- changes

    cdef int inserted(self, SinkSubscription sub) except -1:
        return self.note(sub, 1)

    cdef int removed(self, SinkSubscription sub) except -1:
        return self.note(sub, -1)

    cdef int reweighed(self, RemoteSubscription sub, int64_t delta) except -1:
        return self.note_remote(sub, delta)

    cdef int note(self, SinkSubscription sub, int64_t delta) except -1:
        cdef int source = SOURCE_LOCAL
        if sub.entry.flags & SUBSCRIPTION_PRIVATE:
            return 0
        if is_remote(sub):
            return self.note_remote(<RemoteSubscription>sub, delta * <int64_t>(<RemoteSubscription>sub).weight)
        if sub.sink.for_clients:
            source = SOURCE_IMPORT
        return self.change(source, None, key_of(sub), delta, len(sub.queue) != 0)

    cdef int note_remote(self, RemoteSubscription sub, int64_t delta) except -1:
        cdef RouteSink link = (<RouteTarget>sub.sink).link
        cdef int source
        if not self.counts_remote:
            return 0
        if link.peer == PEER_ROUTE:
            source = SOURCE_ROUTED_LEAF if sub.for_leaf else SOURCE_ROUTE
        elif link.peer == PEER_GATEWAY:
            source = SOURCE_GATEWAY
        else:
            source = SOURCE_HUB if link.peer == PEER_HUB else SOURCE_LEAF
        cluster = (sub.cluster or link) if sub.for_leaf else None
        return self.change(source, cluster, key_of(sub), delta, len(sub.queue) != 0)

    cdef int change(self, int source, object cluster, bytes key, int64_t delta, bint is_queue) except -1:
        cdef InterestFeed feed
        cdef LeafFeed leaf
        cdef int64_t total = add_to(<dict>self.counts[source], key, delta)
        cdef int64_t count
        if self.recent is not None and delta > 0 and (source == SOURCE_LOCAL or source == SOURCE_LEAF) and not is_queue:
            self.recent.note(key)
        if cluster is not None:
            of_cluster = self.of_clusters.get((source, cluster))
            if of_cluster is None:
                of_cluster = self.of_clusters[source, cluster] = {}
            count = add_to(<dict>of_cluster, key, delta)
            if not of_cluster:
                del self.of_clusters[source, cluster]
            if source == SOURCE_LEAF and (is_queue or is_change(count, delta)):
                for feed in self.feeds.values():
                    if feed.allows(key):
                        feed.announce_leaf(cluster if isinstance(cluster, bytes) else NO_WORD, key, <uint64_t>count)
        elif source == SOURCE_LOCAL and (is_queue or is_change(total, delta)):
            for feed in self.feeds.values():
                if feed.allows(key):
                    feed.announce(key, <uint64_t>total)
        for leaf in self.leaf_feeds.values():
            if not leaf.sees(source, key) or (cluster is not None and cluster == (leaf.link.cluster or leaf.link)):
                continue
            count = leaf.visible(key)
            if (is_queue or is_change(count, delta)) and leaf.allows(key):
                leaf.announce(key, count)
        return 0

    def expect(self, bytes subject not None):
        """Announces a subject without a subscription."""
        self.change(SOURCE_LOCAL, None, subject, 1, False)

    def expect_from_leafs(self, subjects):
        """Announces these subjects to leaf nodes and hubs, in place of those of the last call."""
        cdef bytes subject
        before, self.extra = self.extra, list(subjects)
        for subject in self.extra:
            self.change(SOURCE_IMPORT, None, subject, 1, False)
        for subject in before:
            self.change(SOURCE_IMPORT, None, subject, -1, False)

    # --- routes

    def connect(self, RouteSink link not None, bint dedicated, may_import=None):
        """Announces everything to a server, and every change from now on."""
        cdef InterestFeed feed = InterestFeed.__new__(InterestFeed)
        feed.link = link
        feed.word = NO_WORD if dedicated else self.account + b" "
        feed.may_import = may_import
        self.feeds[link] = feed
        self.announce_all(feed, False)

    def disconnect(self, RouteSink link not None, bint retract=False):
        """Announces nothing more to a server; retract: tells it that there is no interest."""
        cdef InterestFeed feed = self.feeds.pop(link, None)
        if feed is not None and retract:
            self.announce_all(feed, True)

    cdef int announce_all(self, InterestFeed feed, bint retract) except -1:
        cdef bytes key
        for key, count in self.counts[SOURCE_LOCAL].items():
            if feed.allows(key):
                feed.announce(key, 0 if retract else <uint64_t>count)
        for (source, cluster), counts in self.of_clusters.items():
            if source != SOURCE_LEAF:
                continue
            word = cluster if isinstance(cluster, bytes) else NO_WORD
            for key, count in counts.items():
                if feed.allows(key):
                    feed.announce_leaf(word, key, 0 if retract else <uint64_t>count)
        return 0

    def restrict(self, RouteSink link not None, may_import):
        """Applies other permissions, and announces the difference."""
        cdef InterestFeed feed = self.feeds.get(link)
        cdef bytes key
        if feed is None:
            return
        local = self.counts[SOURCE_LOCAL]
        of_leafs = {
            cluster: counts for (source, cluster), counts in self.of_clusters.items() if source == SOURCE_LEAF
        }
        known = {key: feed.allows(key) for counts in (local, *of_leafs.values()) for key in counts}
        feed.may_import = may_import
        for key, count in local.items():
            if feed.allows(key) != known[key]:
                feed.announce(key, 0 if known[key] else <uint64_t>count)
        for cluster, counts in of_leafs.items():
            word = cluster if isinstance(cluster, bytes) else NO_WORD
            for key, count in counts.items():
                if feed.allows(key) != known[key]:
                    feed.announce_leaf(word, key, 0 if known[key] else <uint64_t>count)

    def repeat(self, RouteSink link not None):
        """Announces everything to a server again, which may accept more than before."""
        cdef InterestFeed feed = self.feeds.get(link)
        if feed is not None:
            self.announce_all(feed, False)

    # --- leaf nodes and hubs

    def connect_leaf(self, LeafSink link not None, may_announce=None, bint isolated=False):
        """Announces everything to a leaf node or hub, and every change from now on."""
        cdef LeafFeed feed = LeafFeed.__new__(LeafFeed)
        feed.link = link
        feed.interest = self
        feed.isolated = isolated
        feed.may_announce = may_announce
        self.leaf_feeds[link] = feed
        self.announce_to(feed)

    # --- other clusters

    def note_recent(self, RecentInterest recent not None):
        """Notes new subscriptions there."""
        self.recent = recent

    def connect_gateway(self, RouteSink link not None):
        """Announces everything to a server of another cluster, and every change from now on."""
        cdef GatewayFeed feed = GatewayFeed.__new__(GatewayFeed)
        feed.link = link
        feed.interest = self
        feed.word = self.account + b" "
        self.leaf_feeds[link] = feed
        self.announce_to(feed)

    cdef int announce_to(self, LeafFeed feed) except -1:
        cdef dict keys = {}
        cdef bytes key
        cdef int64_t count
        for counts in self.counts:
            keys.update(counts)
        for key in keys:
            count = feed.visible(key)
            if count > 0 and feed.allows(key):
                feed.announce(key, count)
        return 0

    def disconnect_leaf(self, RouteSink link not None):
        """Announces nothing more to a leaf node, a hub or another cluster."""
        self.leaf_feeds.pop(link, None)

    def restrict_leaf(self, LeafSink link not None, may_announce):
        """Applies other permissions, and announces the difference."""
        cdef LeafFeed feed = self.leaf_feeds.get(link)
        cdef bytes key
        cdef int64_t count
        if feed is None:
            return
        keys = {key: feed.allows(key) for counts in self.counts for key in counts}
        feed.may_announce = may_announce
        for key, known in keys.items():
            count = feed.visible(key)
            if count > 0 and feed.allows(key) != known:
                feed.announce(key, 0 if known else count)

    # --- for tests and monitoring

    def counted(self):
        """{key: count}: what routes learn of this server's clients and services."""
        return dict(self.counts[SOURCE_LOCAL])

    def known_to(self, RouteSink link not None):
        """{key: count}: what a leaf node, a hub or another cluster knows."""
        cdef LeafFeed feed = self.leaf_feeds.get(link)
        cdef bytes key
        if feed is None:
            return {}
        keys = {key: None for counts in self.counts for key in counts}
        return {key: feed.visible(key) for key in keys if feed.visible(key) > 0 and feed.allows(key)}


cdef inline int64_t add_to(dict counts, bytes key, int64_t delta) except? -1:
    """Adds to a count; returns it. A count of zero is removed."""
    cdef int64_t count = <int64_t>counts.get(key, 0) + delta
    if count > 0:
        counts[key] = count
        return count
    counts.pop(key, None)
    return 0


cdef inline bint is_change(int64_t count, int64_t delta) noexcept:
    """Does a count that has changed by delta come from nothing, or go there?"""
    return (count > 0) != (count - delta > 0)
