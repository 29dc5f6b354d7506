# cython: auto_pickle=False
"""The subscriptions that were made a moment ago.

Interest travels to other clusters on another connection than messages. A requester that subscribes to its inbox and
sends a request at once may have the answer before the other cluster knows of the inbox. So replies that match a
subscription of the last two seconds are routed by name instead (gateway_links.pyx).

Bound: of RECENT_MAX subscriptions at once no more are noted, and all replies are routed by name for that time.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint64_t

from penstock.kernels.routing.subscription_index cimport MatchResult, SubscriptionIndex
from penstock.kernels.wire.sinks cimport Sink, SinkSubscription
from penstock.kernels.wire.ticks cimport monotonic_ns

from collections import deque

cdef enum:
    RECENT_MAX = 65536

cdef Sink NO_SINK = Sink()


cdef class RecentInterest:
    """The subscriptions of an account that are younger than two seconds. clock -- callable() -> ns, for tests."""

    def __cinit__(self, clock=None):
        self.index = SubscriptionIndex()
        self.queue = deque()
        self.clock = clock

    def __len__(self):
        return len(self.queue)

    cdef uint64_t now(self) except? 0:
        return monotonic_ns() if self.clock is None else <uint64_t>self.clock()

    cdef int note(self, bytes subject) except -1:
        """Notes a new subscription."""
        cdef uint64_t end = self.now() + RECENT_NS
        cdef SinkSubscription sub
        self.expire()
        if len(self.queue) >= RECENT_MAX:
            self.all_until = end
            return 0
        sub = SinkSubscription(NO_SINK, subject)
        self.index.insert(sub)
        self.queue.append((end, sub))
        return 0

    cdef bint matches(self, const char* subject, size_t n) except -1:
        """Does one of them match the subject?"""
        cdef MatchResult result
        if not self.all_until and not len(self.queue):
            return False
        self.expire()
        if self.all_until:
            return True
        result = self.index.lookup(subject, n)
        return len(result.plain) > 0

    cpdef int expire(self) except -1:
        """Forgets those that are older."""
        cdef uint64_t now = self.now()
        if self.all_until and self.all_until <= now:
            self.all_until = 0
        while self.queue and <uint64_t>self.queue[0][0] <= now:
            self.index.remove(self.queue.popleft()[1])
        return 0

    def has(self, bytes subject not None):
        """Does one of them match the subject? For tests."""
        return self.matches(PyBytes_AS_STRING(subject), <size_t>PyBytes_GET_SIZE(subject))

    def add(self, bytes subject not None):
        """Notes a new subscription. For tests."""
        self.note(subject)
