"""The pub acks of a publisher that has many messages under way, counted without a Python object per ack.

A message's reply subject ends in its number; `feed` walks the frames a connection received and marks what was
acked. What isn't a plain ack (an error, no responders, another layout of the JSON, another stream) comes back
to Python as the event of one message.

Invariants: `base` is the lowest number not yet acked, and all numbers below it are; numbers in [base, end)
are under way, never more than `size`; an ack for a number outside of that is an old one and is dropped.
"""
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memchr

from penstock.kernels.wire.frames cimport Frame, FrameParser, OP_ERROR, OP_HMSG, OP_MSG, OP_NEED_MORE

cpdef enum AckEvent:
    ACKS_NEED_MORE = 0
    ACKS_OTHER = 1          # an answer that is no plain ack: see number, header, payload
    ACKS_CONTROL = 2        # PING, PONG, INFO, +OK, -ERR: see op, payload
    ACKS_ERROR = 3          # the peer broke the protocol


cdef bint number_at_end(const char* p, size_t n, uint64_t* out) noexcept nogil:
    """The digits behind the last dot."""
    cdef uint64_t v = 0, scale = 1
    cdef size_t i = n
    while i and p[i - 1] != 46:
        i -= 1
        if p[i] < 48 or p[i] > 57 or n - i > 18:
            return False
        v += <uint64_t>(p[i] - 48) * scale
        scale *= 10
    out[0] = v
    return 0 < i < n


cdef const char* find(const char* p, size_t n, const char* what, size_t m) noexcept nogil:
    cdef const char* at
    cdef const char* end = p + n
    while <size_t>(end - p) >= m:
        at = <const char*>memchr(p, what[0], <size_t>(end - p) - m + 1)
        if at == NULL:
            return NULL
        if memcmp(at, what, m) == 0:
            return at
        p = at + 1
    return NULL


cdef bint plain_seq(const char* p, const char* end, uint64_t* seq) noexcept nogil:
    """Is this the rest of an ack that says a sequence and nothing else? `,"seq":7}`, maybe with a blank."""
    cdef uint64_t v = 0
    if end - p < 9 or p[0] != 44:
        return False
    p += 2 if p[1] == 32 else 1
    if end - p < 8 or memcmp(p, b'"seq":', 6) != 0:
        return False
    p += 6
    if end - p > 20:
        return False
    while p < end - 1:
        if p[0] < 48 or p[0] > 57:
            return False
        v = v * 10 + <uint64_t>(p[0] - 48)
        p += 1
    seq[0] = v
    return p[0] == 125


cdef class AckWindow:
    """size: how many messages may be under way. stream: the only one whose acks are plain."""
    cdef unsigned char* acked
    cdef readonly size_t size
    cdef readonly uint64_t base, end
    cdef readonly uint64_t last_seq     # highest stream sequence acked
    cdef readonly uint64_t duplicates
    cdef readonly uint64_t number
    cdef readonly bytes header, payload
    cdef readonly int op
    cdef bytes sid, expected

    def __cinit__(self, bytes sid not None, bytes stream not None, size_t size):
        if size < 1 or size > 1 << 24:
            raise ValueError(f"size is {size}; it may be 1 to {1 << 24}")
        self.acked = <unsigned char*>calloc(size, 1)
        if self.acked == NULL:
            raise MemoryError(f"no memory for {size} acks")
        self.size = size
        self.sid = sid
        self.expected = b'{"stream":"' + stream + b'"'

    def __dealloc__(self):
        free(self.acked)

    @property
    def room(self):
        return self.size - (self.end - self.base)

    def sent(self, uint64_t count):
        """`count` more numbers are under way, from `end` on."""
        if count > self.size - (self.end - self.base):
            raise ValueError(f"{count} more of {self.size}, {self.end - self.base} are under way")
        self.end += count

    def acknowledge(self, uint64_t number, bint duplicate, uint64_t seq):
        """For an ack that Python read; True when the number was under way and not acked."""
        return self.mark(number, duplicate, seq)

    cdef bint mark(self, uint64_t number, bint duplicate, uint64_t seq) noexcept:
        cdef size_t slot = number % self.size
        if number < self.base or number >= self.end or self.acked[slot]:
            return False
        self.acked[slot] = 1
        self.duplicates += duplicate
        if seq > self.last_seq:
            self.last_seq = seq
        while self.base < self.end and self.acked[self.base % self.size]:
            self.acked[self.base % self.size] = 0
            self.base += 1
        return True

    cdef bint take(self, const Frame* f) except -1:
        """True for a plain ack."""
        cdef size_t n = <size_t>len(self.expected), size = f.body_len
        cdef const char* p = f.body
        cdef const char* at
        cdef uint64_t number = 0, seq = 0
        if f.header_len or size <= n or memcmp(p, <const char*>self.expected, n) != 0:
            return False
        if not number_at_end(f.subject, f.subject_len, &number):
            return False
        if plain_seq(p + n, p + size, &seq):
            self.mark(number, False, seq)
            return True
        if find(p, size, b'"error"', 7) != NULL:
            return False
        at = find(p, size, b'"seq":', 6)
        if at == NULL:
            return False
        at += 6
        while at < p + size and at[0] == 32:
            at += 1
        if at == p + size or at[0] < 48 or at[0] > 57:
            return False
        while at < p + size and 48 <= at[0] <= 57:
            seq = seq * 10 + <uint64_t>(at[0] - 48)
            at += 1
        self.mark(number, find(p, size, b'"duplicate"', 11) != NULL, seq)
        return True

    def feed(self, FrameParser parser not None):
        """Takes the acks in the parser's buffer; returns an AckEvent: why it stopped."""
        cdef Frame f
        cdef int op
        cdef size_t sid_size = <size_t>len(self.sid)
        while True:
            op = parser.next(&f)
            if op == OP_MSG or op == OP_HMSG:
                if f.sid_len != sid_size or memcmp(f.sid, <const char*>self.sid, sid_size) != 0:
                    continue        # an answer to an earlier request that came late
                if self.take(&f):
                    continue
                self.op = op
                if not number_at_end(f.subject, f.subject_len, &self.number):
                    continue
                self.header = f.body[:f.header_len] if f.header_len else b""
                self.payload = (f.body + f.header_len)[:f.body_len - f.header_len]
                return ACKS_OTHER
            if op == OP_NEED_MORE:
                return ACKS_NEED_MORE
            if op == OP_ERROR:
                return ACKS_ERROR
            self.op = op
            self.payload = f.body[:f.body_len] if f.body_len else b""
            return ACKS_CONTROL
