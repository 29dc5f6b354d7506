"""The subscriptions that were made a moment ago."""
from libc.stdint cimport uint64_t

from penstock.kernels.routing.subscription_index cimport SubscriptionIndex

cdef enum:
    RECENT_NS = 2_000_000_000

# The subscriptions of an account that are younger than RECENT_NS.
cdef class RecentInterest:
    cdef SubscriptionIndex index
    cdef object queue                   # deque of (end of its time, SinkSubscription)
    cdef object clock                   # None = the system's, or callable() -> ns; for tests
    cdef uint64_t all_until             # too many were made: until then every subject counts as recent
    cdef uint64_t now(self) except? 0
    cdef int note(self, bytes subject) except -1
    cdef bint matches(self, const char* subject, size_t n) except -1
    cpdef int expire(self) except -1
