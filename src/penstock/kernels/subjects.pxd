"""Subject grammar and the subscription index (literal, wildcard, queue groups, match cache)."""
from libc.stdint cimport uint64_t, uint32_t
from penstock.kernels.sinks cimport Subscription, Sink, Message

# A publish subject: non-empty tokens, no wildcard tokens, no whitespace or NUL.
cdef bint is_literal_subject(const char* s, size_t n) noexcept nogil
# A subscription filter: like a subject, `*` as a whole token, `>` as the whole last token.
cdef bint is_valid_filter(const char* s, size_t n) noexcept nogil
cdef bint has_wildcard(const char* s, size_t n) noexcept nogil
# Does filter `f` match literal subject `s`?
cdef bint filter_matches(const char* f, size_t fn, const char* s, size_t sn) noexcept nogil

# Who gets a subject: immutable once built, safe to keep while subscriptions change.
cdef class MatchResult:
    cdef readonly list plain        # [Subscription] without queue group
    cdef readonly list groups       # [[Subscription, ...], ...] one list a queue group, never empty lists

cdef class SubscriptionIndex:
    cdef readonly uint64_t generation       # grows at every insert and remove
    cdef readonly size_t count
    # Private tables follow; add fields freely.
    cdef object root
    cdef dict literals
    # Never None; an empty result when nobody is interested. Cached on the raw bytes.
    cdef MatchResult lookup(self, const char* subject, size_t n)
    cpdef int insert(self, Subscription sub) except -1
    cpdef bint remove(self, Subscription sub) except -1
