"""Everything that receives messages is a sink; a subscription ties a subject filter to a sink."""
from libc.stdint cimport uint64_t

# A message on its way. Pointers belong to whoever calls deliver() and die when it returns.
cdef struct Message:
    const char* subject
    size_t subject_len
    const char* reply           # NULL when absent
    size_t reply_len
    const char* body            # header block followed by payload, contiguous
    size_t header_len           # 0 when there is no header block
    size_t body_len             # header and payload together

cdef class Sink:
    # Does a message that was sent to it by another subject than its own keep its own? (What a consumer delivers,
    # to a client.) Other sinks get it under the subject that reached them.
    cdef bint shows_stored
    # The subscription that a message ends at: `sub` itself, unless this sink passes messages on; None = nobody's.
    cdef Subscription beyond(self, Subscription sub)
    # Takes one message for one of its subscriptions. `origin` is the publisher's sink or None.
    # Returns 1 when taken, 0 when refused (closed, echo off): a queue group then tries another member.
    cdef int deliver(self, Subscription sub, const Message* m, Sink origin) except -1
    # The end of a tick in which it marked itself: hands on what it holds. True when its receiver is congested.
    cdef bint flush(self) except -1

cdef class Subscription:
    cdef readonly Sink sink
    cdef readonly bytes subject     # the filter, wildcards allowed
    cdef readonly bytes queue       # b"" when it is no member of a queue group
    cdef readonly bytes sid
    cdef public uint64_t max_msgs   # UNSUB max; 0 = no maximum
    cdef public uint64_t delivered
    cdef public bint closed
    cdef bint indexed               # sits in a SubscriptionIndex

# Things with work left for the end of the tick. The first mark of a tick calls `wake`.
cdef class DirtyList:
    cdef list items
    cdef public object wake         # callable without arguments, or None
    cdef int mark(self, object item) except -1      # the item keeps its own "already marked" flag
    cpdef list take(self)
