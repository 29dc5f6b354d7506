# cython: auto_pickle=False
"""Everything that receives messages is a sink; a subscription ties a subject filter to a sink.

Invariants: a Subscription sits in at most one SubscriptionIndex (`indexed`); its filter, queue group and
sid never change. A DirtyList calls `wake` once between two takes.
"""
from libc.stdint cimport uint64_t


cdef class Sink:
    """Base of everything that takes messages. On its own it refuses them all."""

    cdef Subscription beyond(self, Subscription sub):
        return sub

    cdef int deliver(self, Subscription sub, const Message* m, Sink origin) except -1:
        return 0

    cdef bint flush(self) except -1:
        return False


cdef class Subscription:
    """Interest of one sink in one subject filter."""

    def __cinit__(
        self,
        Sink sink not None,
        bytes subject not None,
        bytes queue not None=b"",
        bytes sid not None=b"",
        uint64_t max_msgs=0,
    ):
        self.sink = sink
        self.subject = subject
        self.queue = queue
        self.sid = sid
        self.max_msgs = max_msgs

    def __repr__(self):
        return (
            f"Subscription({self.subject!r}, queue={self.queue!r}, sid={self.sid!r}, "
            f"delivered={self.delivered}, max_msgs={self.max_msgs}, closed={self.closed})"
        )


cdef class DirtyList:
    """What has work left for the end of the tick, in the order it was marked."""

    def __cinit__(self, wake=None):
        self.items = []
        self.wake = wake

    def __len__(self):
        return len(self.items)

    cdef int mark(self, object item) except -1:
        self.items.append(item)
        if len(self.items) == 1 and self.wake is not None:
            self.wake()
        return 0

    cpdef list take(self):
        """What was marked since the last take. Each item clears its own "already marked" flag."""
        cdef list taken = self.items
        self.items = []
        return taken
