"""Acks on their way in to consumers.

An AckSink takes every ack of a stream, finds the consumer by its token and keeps plain acks as pairs of
numbers; what needs a decision (NAK, +WPI, +NXT, +TERM, an ack that wants a confirmation) waits as a tuple,
with its place among the plain ones. Nothing is applied here: acks are applied once a tick.

Invariant: an ack for an unknown consumer, or with numbers that are none, is refused: its sender hears that
nobody listens.
Rejected: one subscription of `$JS.ACK.<stream>.<consumer>.>` a consumer (it would drop the router's caches
whenever an ephemeral comes or goes); lists of Python tuples for acks (0.6 M/s).
"""
from libc.stdint cimport UINT64_MAX, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcmp
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE

from penstock.kernels.consumer.ack_state cimport ACK_ALL, ACK_NONE, AckState
from penstock.kernels.consumer.ack_window cimport Entry, entry_at, window_find
from penstock.kernels.wire.sinks cimport DirtyList, Message, Sink, SinkSubscription

cdef enum:
    ACK_NUMBERS = 5             # <deliveries>.<stream seq>.<consumer seq>.<ts>.<pending>


cdef const char* get_uint(const char* p, const char* end, uint64_t* v) noexcept:
    """Reads digits up to a dot or the end: where reading goes on (past the dot), or NULL when there is no
    number."""
    cdef uint64_t value = 0, digit
    cdef const char* start = p
    while p < end and c"0" <= p[0] <= c"9":
        digit = <uint64_t>(p[0] - c"0")
        if value > (UINT64_MAX - digit) // 10:
            return NULL
        value = value * 10 + digit
        p += 1
    if p == start:
        return NULL
    if p < end:
        if p[0] != c".":
            return NULL
        p += 1
        if p == end:
            return NULL
    v[0] = value
    return p


cdef class AckQueue:
    """Acks of one consumer that wait for the end of the tick.

    Args: owner: what gets marked in dirty_list when the first ack comes.
    """

    def __cinit__(self, object owner, DirtyList dirty_list not None):
        self.owner = owner
        self.dirty_list = dirty_list
        self.special = []
        self.samples = []

    def __dealloc__(self):
        free(self.items)

    cpdef int mark(self) except -1:
        """The owner has work this tick."""
        if not self.is_dirty:
            self.is_dirty = True
            self.dirty_list.mark(self.owner)
        return 0

    def clean(self):
        """The owner was taken from the dirty list."""
        self.is_dirty = False

    cdef int push(self, uint64_t stream_seq, uint64_t consumer_seq) except -1:
        cdef size_t capacity
        cdef PlainAck* items
        if self.count == self.capacity:
            capacity = self.capacity * 2 if self.capacity else 64
            items = <PlainAck*>realloc(self.items, capacity * sizeof(PlainAck))
            if items == NULL:
                raise MemoryError(f"no memory for {capacity} acks")
            self.items = items
            self.capacity = capacity
        self.items[self.count].stream_seq = stream_seq
        self.items[self.count].consumer_seq = consumer_seq
        self.count += 1
        return 0

    def take_special(self):
        """[(place among the plain acks, stream seq, consumer seq, deliveries, body, reply)], and they are
        gone."""
        taken = self.special
        self.special = []
        return taken

    cpdef int sample(self, AckState state, uint64_t stream_seq) except -1:
        """An ack of stream_seq is about to be applied: every so many of those which settle something leave
        (stream seq, first consumer seq, deliveries, delivered at) in `samples`."""
        cdef Py_ssize_t at
        cdef Entry* entry
        if self.sample_percent == 0:
            return 0
        at = window_find(&state.window, stream_seq, 0)
        if at < 0:
            return 0
        self.sample_due += self.sample_percent
        if self.sample_due < 100:
            return 0
        self.sample_due -= 100
        entry = entry_at(&state.window, <size_t>at)
        self.samples.append((entry.seq, entry.cseq, entry.deliveries, entry.ts))
        return 0

    def apply(self, AckState state not None, size_t upto=<size_t>-1):
        """Applies the plain acks up to place `upto`; returns how many messages stopped being pending."""
        cdef size_t end = upto if upto < self.count else self.count
        cdef size_t settled = 0
        cdef PlainAck* item
        while self.applied < end:
            item = &self.items[self.applied]
            self.applied += 1
            if self.sample_percent:
                self.sample(state, item.stream_seq)
            if state.policy == ACK_ALL:
                settled += state.ack_all(item.stream_seq, item.consumer_seq)
            elif state.policy != ACK_NONE:
                settled += <size_t>state.ack(item.stream_seq, item.consumer_seq)
        if self.applied == self.count:
            self.applied = self.count = 0
        return settled


cdef class AckSink(Sink):
    """Takes the acks of all consumers of one stream.

    Subscribe it on `$JS.ACK.<stream>.>` and on `$JS.ACK.<domain or _>.<account hash>.<stream>.>`: what
    follows the subscription's last dot-and-`>` is `<consumer>.<five numbers>`, in the longer form perhaps
    with more tokens. An ack for an unknown consumer is refused, so that its sender hears that nobody
    listens.
    """

    def __cinit__(self):
        self.queues = {}

    def add(self, bytes consumer not None, AckQueue queue not None):
        """Acks for `consumer` go to `queue`."""
        self.queues[consumer] = queue
        self.last_name = None

    def remove(self, bytes consumer not None):
        """The consumer is gone."""
        self.queues.pop(consumer, None)
        self.last_name = None
        self.last = None

    cdef int deliver(self, SinkSubscription sub, const Message* m, Sink origin) except -1:
        cdef size_t prefix = <size_t>PyBytes_GET_SIZE(sub.subject) - 1
        cdef const char* name = m.subject + prefix
        cdef const char* end = m.subject + m.subject_len
        cdef const char* p
        cdef uint64_t numbers[ACK_NUMBERS]
        cdef int i
        cdef size_t body_len = m.body_len - m.header_len
        cdef const char* body = m.body + m.header_len
        if m.subject_len <= prefix:
            return 0
        p = <const char*>memchr(name, c".", <size_t>(end - name))
        if p == NULL:
            return 0
        if self.last_name is None or <Py_ssize_t>(p - name) != PyBytes_GET_SIZE(self.last_name) or \
                memcmp(name, PyBytes_AS_STRING(self.last_name), <size_t>(p - name)) != 0:
            token = PyBytes_FromStringAndSize(name, p - name)
            queue = self.queues.get(token)
            if queue is None:
                return 0
            self.last_name = token
            self.last = <AckQueue>queue
        p += 1
        for i in range(ACK_NUMBERS):
            if p == end:
                return 0
            p = get_uint(p, end, &numbers[i])
            if p == NULL:
                return 0
        if p != end and sub.subject.count(b".") < 5:
            return 0            # only the longer form may have more tokens
        if m.reply_len == 0 and (body_len == 0 or (body_len == 4 and memcmp(body, b"+ACK", 4) == 0) or
                                 (body_len == 3 and memcmp(body, b"+OK", 3) == 0)):
            self.last.push(numbers[1], numbers[2])
        else:
            self.last.special.append((
                self.last.count, numbers[1], numbers[2], numbers[0],
                PyBytes_FromStringAndSize(body, <Py_ssize_t>body_len),
                PyBytes_FromStringAndSize(m.reply, <Py_ssize_t>m.reply_len) if m.reply_len else b"",
            ))
        self.last.mark()
        return 1
