"""Everything that receives messages is a sink; a subscription ties a subject filter to a sink."""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

# A message on its way. Pointers belong to whoever calls deliver() and die when it returns.
cdef struct Message:
    const char* subject
    size_t subject_len
    const char* reply           # NULL when absent
    size_t reply_len
    const char* body            # header block followed by payload, contiguous
    size_t header_len           # 0 when there is no header block
    size_t body_len             # header and payload together

cdef enum:
    INTEREST_CLOSED = 1
    INTEREST_LIMITED = 2        # UNSUB max
    INTEREST_NO_SID = 4         # it isn't among the words: there is none, or it is very long

# What delivering to a subscription reads and changes, in memory of its own (base/memory.pyx): with subject and sid of
# up to 30 bytes together it is one cache line. It doubles as the entry of the table of literal filters.
cdef struct SubscriptionEntry:
    void* subscription          # whose it is, borrowed; NULL: a filter that has several (subscription_index.pyx)
    void* receiver              # that one's Sink, borrowed; or the FilterState of the several
    uint64_t delivered
    uint32_t hash               # of the subject; for the table it is in
    uint16_t subject_len
    uint8_t sid_len
    uint8_t flags               # INTEREST_...; most have none

# Subject, blank, sid, blank: what begins a MSG frame. Without a sid only the first blank.
cdef inline char* interest_words(const SubscriptionEntry* interest) noexcept nogil:
    return <char*>interest + sizeof(SubscriptionEntry)

# Its hash is yet to be set. A subject that is too long for any index is left out.
cdef SubscriptionEntry* interest_new(const char* subject, size_t n, const char* sid, size_t sid_len) except NULL
cdef void interest_free(SubscriptionEntry* interest) noexcept

cdef class Sink:
    # Does a message that was sent to it by another subject than its own keep its own? (What a consumer delivers,
    # to a client.) Other sinks get it under the subject that reached them.
    cdef bint shows_stored
    # The subscription that a message ends at: `sub` itself, unless this sink passes messages on; None = nobody's.
    cdef SinkSubscription beyond(self, SinkSubscription sub)
    # Takes one message for one of its subscriptions. `origin` is the publisher's sink or None.
    # Returns 1 when taken, 0 when refused (closed, echo off): a queue group then tries another member.
    cdef int deliver(self, SinkSubscription sub, const Message* m, Sink origin) except -1
    # The same for a subscription known by what its delivery needs, a message with the subject it subscribed to
    # and a subscription that isn't closed.
    cdef int deliver_to(self, SubscriptionEntry* interest, const Message* m, Sink origin) except -1
    # The end of a tick in which it marked itself: hands on what it holds. True when its receiver is congested.
    cdef bint flush(self) except -1

cdef class SinkSubscription:
    cdef readonly Sink sink
    cdef readonly bytes subject     # the filter, wildcards allowed
    cdef readonly bytes queue       # b"" when it is no member of a queue group
    cdef readonly bytes sid
    cdef uint64_t most              # UNSUB max; 0 = no maximum
    cdef bint indexed               # sits in a SubscriptionIndex
    cdef SubscriptionEntry* interest         # its own; never NULL
    cdef void mark(self, uint8_t flag, bint value) noexcept

# Things with work left for the end of the tick. The first mark of a tick calls `wake`.
cdef class DirtyList:
    cdef list items
    cdef public object wake         # callable without arguments, or None
    cdef int mark(self, object item) except -1      # the item keeps its own "already marked" flag
    cpdef list take(self)


cdef inline bint is_closed(SinkSubscription sub) noexcept:
    return sub.interest.flags & INTEREST_CLOSED != 0
