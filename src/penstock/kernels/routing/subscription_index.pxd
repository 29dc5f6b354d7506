"""The subscription index: literal and wildcard filters, queue groups, match cache."""
from libc.stdint cimport uint64_t, uint32_t
from penstock.kernels.routing.literals cimport LiteralTable, Lookup
from penstock.kernels.routing.recent_match cimport Recent
from penstock.kernels.wire.sinks cimport SubscriptionEntry, Message, Sink, SinkSubscription
from penstock.kernels.routing.filter_trie cimport Node

# Who gets a subject: immutable once built, safe to keep while subscriptions change.
cdef class MatchResult:
    cdef readonly list plain        # [Subscription] without queue group
    cdef readonly list groups       # [[Subscription, ...], ...] one list a queue group, never empty lists

# The subscriptions of one filter, and what they amount to as a result.
cdef class FilterState:
    cdef list members               # [Subscription] in the order of insertion
    cdef MatchResult result         # None while it has to be built anew
    cdef size_t slot                # its place in SubscriptionIndex.states
    cdef SubscriptionEntry* entry            # its own, in the table of literal filters; NULL for a wildcard
    cdef int add(self, SinkSubscription sub) except -1
    cdef int drop(self, SinkSubscription sub) except -1
    cdef SubscriptionEntry* sole(self)

cdef struct CacheEntry:
    uint64_t hash
    char* key
    uint32_t key_len                # 0: nothing cached here
    uint32_t key_capacity
    uint32_t bucket                 # by the first token of the key, see SubscriptionIndex.in_bucket

cdef enum:
    BUCKETS = 256

# Subjects that one message is awaited on (`_R_.<...>`); they are too many and too short-lived for an index.
cdef class AwaitedReplies:
    # Who awaits this one, or None.
    cdef MatchResult find(self, const char* subject, size_t n)
    # The same, never None, and empty when whoever awaits it listens no more.
    cdef MatchResult find_wanted(self, const char* subject, size_t n)
    # A subscription to this filter has left the index: who asked may listen no more.
    cdef int unsubscribed(self, const char* f, size_t n) except -1

cdef bint is_awaited(const char* subject, size_t n) noexcept nogil

cdef class SubscriptionIndex:
    cdef public AwaitedReplies replies      # None, or beside the subscriptions
    cdef public object watcher              # None, or has inserted(sub) and removed(sub)
    cdef readonly uint64_t generation       # grows at every insert and remove
    cdef readonly size_t count
    cdef readonly uint64_t num_lookups      # since it was made
    cdef readonly uint64_t num_walks        # of those, the ones that the cache didn't answer
    # None, or called with the subscription after every insert or removal: somebody waits for interest, or for
    # its end.
    cdef public object on_insert
    cdef public object on_remove
    cdef public uint64_t random_state       # picks queue group members; set it for a repeatable choice
    cdef uint64_t seed                      # of the hashes
    cdef dict members                       # {Subscription: None} in the order of insertion
    cdef list states                        # [FilterState | None]: keeps alive what nodes point to
    cdef list free_slots                    # of `states`
    cdef LiteralTable literals
    cdef Recent recent                      # what was looked up lately
    cdef Node* root
    cdef CacheEntry* cache
    cdef list cached                        # [MatchResult | None], beside `cache`
    cdef size_t in_cache
    cdef uint32_t in_bucket[BUCKETS]        # entries cached, by the first token of their subject
    # Never None; an empty result when nobody is interested. Cached on the raw bytes.
    cdef MatchResult lookup(self, const char* subject, size_t n)
    # For the hot path: no result is made for a subject that has one receiver. See there.
    cdef MatchResult lookup_or_sole(self, Lookup* sought, SubscriptionEntry** sole)
    # These subjects (`subject`, `n`, `index` NULL) are looked up next: what that reads is fetched meanwhile.
    cdef void seek(self, Lookup* sought, size_t count) noexcept
    cdef MatchResult with_replies(self, const char* subject, size_t n, MatchResult result)
    cpdef int insert(self, SinkSubscription sub) except -1
    cpdef bint remove(self, SinkSubscription sub) except -1
    cdef uint64_t random(self) noexcept
    cdef SubscriptionEntry* literal_of(self, const Lookup* sought) noexcept
    cdef MatchResult find(self, const Lookup* sought, SubscriptionEntry** sole)
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
