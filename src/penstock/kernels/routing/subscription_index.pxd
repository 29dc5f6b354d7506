"""The subscription index: literal and wildcard filters, queue groups, match cache."""
from libc.stdint cimport int64_t, uint32_t, uint64_t
from penstock.kernels.routing.literals cimport LiteralTable, Lookup
from penstock.kernels.routing.recent_match cimport Recent, RecentLiteral
from penstock.kernels.wire.sinks cimport (
    Message, RemoteSubscription, Sink, SinkSubscription, SubscriptionEntry,
)
from penstock.kernels.routing.filter_trie cimport Node

# The receivers of a subject: immutable once built, safe to keep while subscriptions change.
cdef class MatchResult:
    cdef readonly list plain        # [Subscription] without queue group
    cdef readonly list groups       # [[Subscription, ...], ...] one list a queue group, never empty lists
    cdef RemoteReceivers remote     # None: no other server is interested. `plain` and `groups` have none of them

# A queue group with members on other servers.
cdef class SharedGroup:
    cdef bytes queue
    cdef list local                 # [Subscription]; may be empty
    cdef list remote                # [RemoteSubscription]

# The other servers that a subject concerns.
cdef class RemoteReceivers:
    cdef list targets               # [PeerSink] all of them, each once; first those with a plain subscription
    cdef Py_ssize_t plain_count     # how many of them have one
    cdef list local_groups          # those of MatchResult.groups without remote members
    cdef list shared                # [SharedGroup]

# The subscriptions of one filter, and their MatchResult.
cdef class FilterState:
    cdef list members               # [Subscription] in the order of insertion
    cdef MatchResult result         # None: it must be rebuilt
    cdef size_t slot                # its index in SubscriptionIndex.states
    cdef SubscriptionEntry* entry   # owned, in the table of literal filters; NULL for a wildcard filter
    cdef int add(self, SinkSubscription sub) except -1
    cdef int drop(self, SinkSubscription sub) except -1
    cdef SubscriptionEntry* single(self)

cdef struct CacheEntry:
    uint64_t hash
    char* key
    uint32_t key_len                # 0: nothing cached here
    uint32_t key_capacity
    uint32_t bucket                 # by the first token of the key, see SubscriptionIndex.in_bucket

cdef enum:
    BUCKETS = 256

# Reply subjects of open requests (`_R_.<...>`). They are too many and too short-lived for an index.
cdef class AwaitedReplies:
    # The receiver of a reply, or None.
    cdef MatchResult find(self, const char* subject, size_t n)
    # The same; empty when the request is over or the requester has unsubscribed, None for a request of another server.
    cdef MatchResult find_wanted(self, const char* subject, size_t n)
    # A subscription to this filter has left the index: it may have been a requester's.
    cdef int unsubscribed(self, const char* f, size_t n) except -1

# Called at every change of the subscriptions; the base class does nothing.
cdef class Announcer:
    cdef int inserted(self, SinkSubscription sub) except -1
    cdef int removed(self, SinkSubscription sub) except -1
    # The weight of the subscription, which is in the index, has changed by delta.
    cdef int reweighed(self, RemoteSubscription sub, int64_t delta) except -1

cdef bint is_awaited(const char* subject, size_t n) noexcept nogil

cdef class SubscriptionIndex:
    cdef public AwaitedReplies replies      # None, or receivers in addition to the subscriptions
    cdef public object watcher              # None, or has inserted(sub) and removed(sub), for those of this server
    cdef public Announcer announcer         # None, or announces the subscriptions to other servers
    cdef readonly uint64_t generation       # grows at every insert and remove
    cdef readonly size_t count
    cdef readonly uint64_t num_lookups      # since creation
    cdef readonly uint64_t num_walks        # of those, cache misses
    cdef readonly object on_insert          # see call_after()
    cdef readonly object on_remove
    cdef public uint64_t random_state       # picks queue group members; set it for a repeatable choice
    cdef uint64_t seed                      # of the hashes
    cdef dict members                       # {Subscription: None} in the order of insertion
    cdef list states                        # [FilterState | None]: keeps alive what nodes point to
    cdef list free_slots                    # of `states`
    cdef LiteralTable literals
    cdef Recent recent                      # the last lookup
    cdef RecentLiteral recent_literal
    cdef Node* root
    cdef CacheEntry* cache
    cdef list cached                        # [MatchResult | None], beside `cache`
    cdef size_t in_cache
    cdef uint32_t in_bucket[BUCKETS]        # entries cached, by the first token of their subject
    # Never None; an empty result without interest. The cache key is the raw subject.
    cdef MatchResult lookup(self, const char* subject, size_t n)
    # For the hot path: builds no MatchResult for a subject with a single receiver. See the definition.
    cdef MatchResult lookup_or_single(self, Lookup* lookup, SubscriptionEntry** single)
    # Prefetches the memory that lookups of these subjects (`subject`, `n`, `index` NULL) will read.
    cdef void seek(self, Lookup* lookups, size_t count) noexcept
    cdef MatchResult with_replies(self, const char* subject, size_t n, MatchResult result)
    cpdef int insert(self, SinkSubscription sub) except -1
    cpdef bint remove(self, SinkSubscription sub) except -1
    cdef uint64_t random(self) noexcept
    cdef SubscriptionEntry* literal_of(self, const Lookup* lookup) noexcept
    cdef MatchResult find(self, const Lookup* lookup, SubscriptionEntry** single)
    cdef int remember(self, const char* subject, size_t n, uint64_t key_hash, MatchResult result) except -1
    cdef int forget(self, size_t i) except -1
    cdef int invalidate(self, const char* f, size_t n, bint wildcard) except -1
    cdef FilterState new_state(self)
    cdef FilterState new_literal_state(self, const char* f, size_t n)
    cdef int drop_state(self, FilterState state) except -1
    cdef int insert_literal(self, const char* f, size_t n, SinkSubscription sub) except -1
    cdef int remove_literal(self, const char* f, size_t n, SinkSubscription sub) except -1
    cdef int insert_wildcard(self, const char* f, size_t n, SinkSubscription sub) except -1
    cdef int remove_wildcard(self, const char* f, size_t n, SinkSubscription sub) except -1
    cdef uint32_t bucket_of(self, const char* s, size_t n) noexcept
