# cython: auto_pickle=False
"""Everything that receives messages is a sink; a subscription ties a subject filter to a sink.

Invariants: a SinkSubscription is in at most one SubscriptionIndex (`indexed`); its filter, queue group and
sid never change. Its SubscriptionEntry lives as long as it does, and SUBSCRIPTION_LIMITED says whether `most` is
set. A DirtyList calls `wake` once between two takes.

Rejected: counting deliveries in the SinkSubscription itself. Among a hundred thousand, each message then missed the
cache four times, for the subscription, its sid and its entry in the index; now once.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint16_t, uint64_t
from libc.string cimport memcpy

from penstock.kernels.base.memory cimport slab_free, slab_alloc

cdef enum:
    SUBJECT_MAX = 0xFFFF        # bytes
    SID_MAX = 0xFF


cdef inline size_t size_of(size_t subject_len, size_t sid_len) noexcept nogil:
    return sizeof(SubscriptionEntry) + subject_len + 1 + (sid_len + 1 if sid_len else 0)


cdef SubscriptionEntry* entry_new(const char* subject, size_t n, const char* sid, size_t sid_len) except NULL:
    cdef SubscriptionEntry* entry
    cdef char* words
    if n > SUBJECT_MAX:
        n = 0
    if sid_len > SID_MAX:
        sid_len = 0
    entry = <SubscriptionEntry*>slab_alloc(size_of(n, sid_len))
    if entry == NULL:
        raise MemoryError(f"no memory for a subject of {n} bytes")
    entry.subscription = entry.receiver = NULL
    entry.delivered = 0
    entry.hash = 0
    entry.subject_len = <uint16_t>n
    entry.sid_len = <uint8_t>sid_len
    entry.flags = 0 if sid_len else SUBSCRIPTION_NO_SID
    words = entry_words(entry)
    memcpy(words, subject, n)
    words[n] = c' '
    if sid_len:
        memcpy(words + n + 1, sid, sid_len)
        words[n + 1 + sid_len] = c' '
    return entry


cdef void entry_free(SubscriptionEntry* entry) noexcept:
    slab_free(entry, size_of(entry.subject_len, entry.sid_len))


cdef int raise_again() except -1:
    """Raises the exception that is set already."""
    return -1


cdef object take_raised():
    try:
        raise_again()
    except Exception as error:
        return error


cdef class Sink:
    """Base class of all receivers of messages. The base class refuses every message."""

    cdef SinkSubscription beyond(self, SinkSubscription sub):
        return sub

    cdef int deliver(self, SinkSubscription sub, const Message* m, Sink origin) except -1:
        return 0

    cdef int deliver_to(self, SubscriptionEntry* entry, const Message* m, Sink origin) except -1:
        return self.deliver(<SinkSubscription>entry.subscription, m, origin)

    cdef bint flush(self) except -1:
        return False


cdef class SinkSubscription:
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
        self.entry = entry_new(
            PyBytes_AS_STRING(subject), <size_t>PyBytes_GET_SIZE(subject),
            PyBytes_AS_STRING(sid), <size_t>PyBytes_GET_SIZE(sid),
        )
        self.entry.subscription = <void*>self
        self.entry.receiver = <void*>sink
        self.most = max_msgs
        self.mark(SUBSCRIPTION_LIMITED, max_msgs != 0)

    def __dealloc__(self):
        if self.entry != NULL:
            entry_free(self.entry)

    @property
    def max_msgs(self):
        return self.most

    @max_msgs.setter
    def max_msgs(self, uint64_t value):
        self.most = value
        self.mark(SUBSCRIPTION_LIMITED, value != 0)

    @property
    def delivered(self):
        return self.entry.delivered

    @delivered.setter
    def delivered(self, uint64_t value):
        self.entry.delivered = value

    @property
    def private(self):
        return self.entry.flags & SUBSCRIPTION_PRIVATE != 0

    @property
    def remote(self):
        return is_remote(self)

    def keep_private(self):
        """Is not announced to other servers. Call it before the subscription is in an index."""
        self.mark(SUBSCRIPTION_PRIVATE, True)

    @property
    def closed(self):
        return is_closed(self)

    @closed.setter
    def closed(self, bint value):
        self.mark(SUBSCRIPTION_CLOSED, value)

    def close(self):
        """Accepts no more messages."""
        self.mark(SUBSCRIPTION_CLOSED, True)

    def close_after(self, uint64_t max_msgs):
        """Closes itself once `max_msgs` messages were delivered in all; 0 = no maximum."""
        self.most = max_msgs
        self.mark(SUBSCRIPTION_LIMITED, max_msgs != 0)

    cdef void mark(self, uint8_t flag, bint value) noexcept:
        if value:
            self.entry.flags |= flag
        else:
            self.entry.flags &= <uint8_t>~flag

    def __repr__(self):
        return (
            f"Subscription({self.subject!r}, queue={self.queue!r}, sid={self.sid!r}, "
            f"delivered={self.delivered}, max_msgs={self.max_msgs}, closed={self.closed})"
        )


cdef class PeerSink(Sink):
    """Base class of other servers as receivers. The base class refuses every message."""

    cdef bint takes_from(self, Sink source, RemoteSubscription sub) except -1:
        return True

    cdef uint64_t distance(self) noexcept:
        return 0

    cdef Sink connection(self):
        return None

    cdef int choose(self, bytes queue) except -1:
        return 0

    cdef int send(self, const Message* m, Sink origin, bint plain) except -1:
        return 0


cdef class RemoteSubscription(SinkSubscription):
    """Interest of another server, whose sink is a PeerSink."""

    def __cinit__(self, Sink sink not None, bytes subject not None, bytes queue not None=b"", bytes sid not None=b"",
                  uint64_t max_msgs=0):
        if not isinstance(sink, PeerSink):
            raise TypeError(f"{type(sink).__name__} is not the sink of another server")
        self.weight = 1
        self.cluster = b""
        self.mark(SUBSCRIPTION_REMOTE, True)

    cdef void speak_for(self, bytes cluster) noexcept:
        """It is the interest of a leaf node, or hub, of this cluster."""
        self.for_leaf = True
        self.cluster = cluster

    cdef void speak_for_cluster(self) noexcept:
        """It is the interest of another cluster."""
        self.for_cluster = True


cdef class DirtyList:
    """Objects with work left for the end of the tick, in the order of their marks."""

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
        """The objects marked since the last take. Each item clears its own "already marked" flag."""
        cdef list taken = self.items
        self.items = []
        return taken


cdef class RoutingGuard:
    """See sinks.pyi. Compiled, because every tick enters it."""

    def __enter__(self):
        self.require_idle()
        self.is_active = True

    def __exit__(self, *_):
        self.is_active = False

    def require_idle(self):
        if self.is_active:
            raise RuntimeError("streams cannot change while their messages are sent: defer the work to the next tick")
