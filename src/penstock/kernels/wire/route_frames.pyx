# cython: auto_pickle=False
"""Incremental parser of the frames that servers exchange over routes.

    RS+ <account> <subject> [<queue> <weight>]            RS- <account> <subject> [<queue>]
    LS+ <origin> <account> <subject> [<queue> <weight>]   LS- <origin> <account> <subject> [<queue>]
    RMSG <account> <subject> [<reply> | + <reply> <queue>... | '|' <queue>...] <size>
    HMSG the same, with <header size> <total size>
    LMSG <origin>, then as HMSG; the header size may be 0
    A+ <account>                                          A- <account>

A route that is dedicated to an account omits the account. Leaf nodes (RouteParser.for_leaf) exchange shorter
forms, as a link between them belongs to one account:

    LS+ <subject> [<queue> <weight>]                      LS- <subject> [<queue>]
    LMSG <subject> [<reply> | + <reply> <queue>... | '|' <queue>...] <size>
    HMSG the same, with <header size> <total size>

Control frames are those of clients, and FrameParser parses them; its buffer, its outcomes and its invariants apply
here too.

Invariant: before widen() the parser holds at most 64 KiB, whatever the peer sends, and refuses messages and interest at
their first byte. The peer has proved nothing until then, and a connection that costs the peer nothing must not cost
the server memory.

Weights that are missing or malformed count as 1, as on the official server.
"""
from libc.stdint cimport uint32_t
from libc.string cimport memchr

from penstock.kernels.wire.frames cimport (
    ERROR_CONTROL_LINE, ERROR_MALFORMED, ERROR_PAYLOAD, ERROR_UNKNOWN_OPERATION, OP_ERROR,
    OP_NEED_MORE, FrameParser, ParseError, PyFrame, Span, parse_size, to_python,
)
from cpython.bytes cimport PyBytes_FromStringAndSize

cdef enum:
    NARROW_LINE = 16 << 10          # of a peer that is not registered: CONNECT and INFO
    NARROW_ROOM = 16 << 10
    NARROW_CAPACITY = 32 << 10
    WIDE_LINE = 64 << 10
    WIDE_ROOM = 64 << 10
    WIDE_CAPACITY = 128 << 10
    PAYLOAD_MAX = 64 << 20
    FIRST = 5                       # origin, account, subject, reply indicator, reply
    LAST = 3                        # the two sizes, and what stands before them
    INTEREST_MAX = 6                # one more than any interest has

globals().update(RouteOp.__members__)


cdef inline const char* next_token(const char* p, const char* end, Span* token) noexcept nogil:
    """The next token into `token`, empty at the end; returns the position after it, NULL for a CR within."""
    while p < end and (p[0] == c' ' or p[0] == c'\t'):
        p += 1
    token.p = p
    while p < end and p[0] != c' ' and p[0] != c'\t':
        if p[0] == c'\r':
            return NULL
        p += 1
    token.n = <size_t>(p - token.p)
    return p


cdef inline char upper(char c) noexcept nogil:
    return c - 32 if c'a' <= c <= c'z' else c


# What a line begins with. `shape`: which of parse_interest and parse_message reads its arguments.
cdef struct RouteVerb:
    const char* name
    size_t n
    int op
    bint is_leaf
    bint has_header

cdef enum:
    ROUTE_VERBS = 9
    LEAF_VERBS = 4

cdef RouteVerb VERBS[ROUTE_VERBS]
VERBS[0] = RouteVerb(b"RMSG ", 5, ROUTE_MSG, False, False)
VERBS[1] = RouteVerb(b"HMSG ", 5, ROUTE_MSG, False, True)
VERBS[2] = RouteVerb(b"LMSG ", 5, ROUTE_MSG, True, True)
VERBS[3] = RouteVerb(b"RS+ ", 4, ROUTE_SUB, False, False)
VERBS[4] = RouteVerb(b"RS- ", 4, ROUTE_UNSUB, False, False)
VERBS[5] = RouteVerb(b"LS+ ", 4, ROUTE_SUB, True, False)
VERBS[6] = RouteVerb(b"LS- ", 4, ROUTE_UNSUB, True, False)
VERBS[7] = RouteVerb(b"A+ ", 3, ROUTE_ACCOUNT, False, False)
VERBS[8] = RouteVerb(b"A- ", 3, ROUTE_NO_ACCOUNT, False, False)

# Those between leaf nodes, whose frames name no origin.
cdef RouteVerb LINK_VERBS[LEAF_VERBS]
LINK_VERBS[0] = RouteVerb(b"LMSG ", 5, ROUTE_MSG, False, False)
LINK_VERBS[1] = RouteVerb(b"HMSG ", 5, ROUTE_MSG, False, True)
LINK_VERBS[2] = RouteVerb(b"LS+ ", 4, ROUTE_SUB, False, False)
LINK_VERBS[3] = RouteVerb(b"LS- ", 4, ROUTE_UNSUB, False, False)


cdef const RouteVerb* match_route_verb(
    const RouteVerb* verbs, int count, const char* p, size_t n, bint* partial
) noexcept nogil:
    """The verb at p. NULL when there is none; `partial`: the n bytes may become one."""
    cdef int i
    cdef size_t k, shared
    partial[0] = False
    for i in range(count):
        shared = n if n < verbs[i].n else verbs[i].n
        for k in range(shared):
            if upper(p[k]) != verbs[i].name[k] and not (p[k] == c'\t' and verbs[i].name[k] == c' '):
                break
        else:
            if n >= verbs[i].n:
                return &verbs[i]
            partial[0] = True
    return NULL


cdef class RouteParser(FrameParser):
    """Bytes in, frames of a route out. See the module docstring."""

    def __init__(self):
        FrameParser.__init__(self, NARROW_LINE, PAYLOAD_MAX)
        self.read_room = NARROW_ROOM
        self.capacity_first = NARROW_CAPACITY
        self.view_max = NARROW_ROOM
        self.account = b""

    def widen(self, size_t max_control_line=WIDE_LINE):
        """The peer is registered: it may send messages and interest, and lines and reads may be long."""
        self.is_wide = True
        self.max_control_line = max(<size_t>WIDE_LINE, max_control_line)
        self.read_room = WIDE_ROOM
        self.capacity_first = WIDE_CAPACITY
        self.view_max = 0

    def dedicate(self, bytes account not None):
        """The frames concern this account and omit it."""
        self.account = account

    def for_leaf(self):
        """The frames are those of a leaf node link."""
        self.is_leaf = True

    cdef int refuse(self, RouteFrame* f, int error) noexcept:
        f.op = self.fail(&f.plain, <ParseError>error)
        return f.op

    cdef int next_route(self, RouteFrame* f) except -1:
        """Next frame into f, or OP_NEED_MORE, or OP_ERROR."""
        cdef size_t n = self.end - self.start
        cdef char first, second
        if self.error:
            f.op = OP_ERROR
            return OP_ERROR
        if n == 0 or n < self.need:
            f.op = OP_NEED_MORE
            return OP_NEED_MORE
        first = upper(self.data[self.start])
        if self.is_wide and (first == c'R' or first == c'H' or first == c'L' or first == c'A'):
            return self.parse_route(f)
        second = upper(self.data[self.start + 1]) if n > 1 else 0
        if first == c'P' and n == 1 and not self.connect_only:
            f.op = OP_NEED_MORE
            return OP_NEED_MORE
        if not self.connect_only and not (
            first == c'C' or first == c'I' or first == c'+' or first == c'-'
            or (first == c'P' and (second == c'I' or second == c'O'))
        ):
            return self.refuse(f, ERROR_UNKNOWN_OPERATION)
        f.op = self.next_in_line(&f.plain)
        return f.op

    cdef int parse_route(self, RouteFrame* f) except -1:
        cdef const char* line = self.data + self.start
        cdef size_t n = self.end - self.start
        cdef bint partial = False
        cdef const RouteVerb* verb = match_route_verb(
            &LINK_VERBS[0] if self.is_leaf else &VERBS[0],
            LEAF_VERBS if self.is_leaf else ROUTE_VERBS, line, n, &partial
        )
        cdef const char* eol
        cdef const char* p
        if verb == NULL:
            if not partial:
                return self.refuse(f, ERROR_UNKNOWN_OPERATION)
            f.op = OP_NEED_MORE
            return OP_NEED_MORE
        eol = <const char*>memchr(line + self.line_scanned, c'\n', n - self.line_scanned)
        if eol == NULL:
            if n > self.max_control_line:
                return self.refuse(f, ERROR_CONTROL_LINE)
            self.line_scanned = n
            f.op = OP_NEED_MORE
            return OP_NEED_MORE
        self.line_scanned = <size_t>(eol - line)
        if self.line_scanned > self.max_control_line:
            return self.refuse(f, ERROR_CONTROL_LINE)
        p = line + verb.n
        if eol > p and (eol - 1)[0] == c'\r':
            eol -= 1
        f.op = verb.op
        f.is_leaf = verb.is_leaf
        f.origin.n = f.account.n = f.queues.n = 0
        f.weight = 1
        f.plain.op = verb.op
        f.plain.subject = f.plain.reply = f.plain.sid = f.plain.body = NULL
        f.plain.subject_len = f.plain.reply_len = f.plain.sid_len = f.plain.header_len = f.plain.body_len = 0
        f.plain.max_msgs = 0
        if verb.op == ROUTE_MSG:
            return self.parse_message(f, p, eol, verb.has_header)
        if verb.op >= ROUTE_ACCOUNT:
            if next_token(p, eol, &f.account) == NULL or not f.account.n:
                return self.refuse(f, ERROR_MALFORMED)
        elif self.parse_interest(f, p, eol) == OP_ERROR:
            return OP_ERROR
        self.start += self.line_scanned + 1
        self.line_scanned = self.need = 0
        return f.op

    cdef int parse_interest(self, RouteFrame* f, const char* p, const char* end) except -1:
        cdef Span a[INTEREST_MAX]
        cdef int count = 0
        cdef int at = 0
        cdef size_t weight = 0
        while count < INTEREST_MAX:
            p = next_token(p, end, &a[count])
            if p == NULL:
                return self.refuse(f, ERROR_MALFORMED)
            if a[count].n == 0:
                break
            count += 1
        if f.is_leaf:
            f.origin = a[0]
            at = 1
        if not self.account and not self.is_leaf:
            f.account = a[at]
            at += 1
        count -= at             # subject, queue, weight
        if count != 1 and count != (3 if f.op == ROUTE_SUB else 2):
            return self.refuse(f, ERROR_MALFORMED)
        f.plain.subject, f.plain.subject_len = a[at].p, a[at].n
        if count > 1:
            f.plain.reply, f.plain.reply_len = a[at + 1].p, a[at + 1].n
        if count == 3 and parse_size(&a[at + 2], &weight) and weight > 1:
            f.weight = <uint32_t>weight
        return f.op

    cdef int parse_message(self, RouteFrame* f, const char* p, const char* end, bint has_header) except -1:
        cdef Span first[FIRST]
        cdef Span last[LAST]
        cdef Span token
        cdef int count = 0
        cdef int base = <int>f.is_leaf + <int>(not self.account and not self.is_leaf)       # of the subject
        cdef int sizes = 1 + <int>has_header
        cdef int between, at, i
        cdef size_t header_len = 0, body_len = 0
        cdef const char* body = self.data + self.start + self.line_scanned + 1
        while True:
            p = next_token(p, end, &token)
            if p == NULL:
                return self.refuse(f, ERROR_MALFORMED)
            if token.n == 0:
                break
            if count < FIRST:
                first[count] = token
            for i in range(LAST - 1):
                last[i] = last[i + 1]
            last[LAST - 1] = token
            count += 1
        between = count - base - 1 - sizes
        if between < 0:
            return self.refuse(f, ERROR_MALFORMED)
        if f.is_leaf:
            f.origin = first[0]
        if not self.account and not self.is_leaf:
            f.account = first[base - 1]
        f.plain.subject, f.plain.subject_len = first[base].p, first[base].n
        if between == 1:
            f.plain.reply, f.plain.reply_len = first[base + 1].p, first[base + 1].n
        elif between > 1:
            at = base + 2                               # of the first queue
            if first[base + 1].n != 1 or (first[base + 1].p[0] != c'+' and first[base + 1].p[0] != c'|'):
                return self.refuse(f, ERROR_MALFORMED)
            if first[base + 1].p[0] == c'+':
                f.plain.reply, f.plain.reply_len = first[base + 2].p, first[base + 2].n
                at += 1
            token = last[LAST - 1 - sizes]              # the last queue
            f.queues.p = first[at - 1].p + first[at - 1].n
            f.queues.n = <size_t>(token.p + token.n - f.queues.p) if token.p + token.n > f.queues.p else 0
        if not parse_size(&last[LAST - 1], &body_len):
            return self.refuse(f, ERROR_MALFORMED)
        if has_header and (not parse_size(&last[LAST - 2], &header_len) or header_len > body_len):
            return self.refuse(f, ERROR_MALFORMED)
        if body_len > self.max_payload:
            return self.refuse(f, ERROR_PAYLOAD)
        f.op = self.take_body(&f.plain, body, header_len, body_len)
        return f.op

    def next_route_frame(self):
        """The next frame, or None while it is incomplete; for Python callers."""
        cdef RouteFrame f
        cdef PyRouteFrame frame
        if self.next_route(&f) == OP_NEED_MORE:
            return None
        frame = PyRouteFrame.__new__(PyRouteFrame)
        frame.op = f.op
        frame.control = None
        frame.origin = frame.account = frame.subject = frame.reply = frame.queue = frame.body = b""
        frame.queues = []
        if f.op < ROUTE_SUB:
            frame.control = to_python(&f.plain)
            return frame
        frame.is_leaf, frame.weight, frame.header_len = f.is_leaf, f.weight, f.plain.header_len
        frame.origin = text_of(&f.origin)
        frame.account = text_of(&f.account)
        if f.op >= ROUTE_ACCOUNT:
            return frame
        frame.subject = PyBytes_FromStringAndSize(f.plain.subject, <Py_ssize_t>f.plain.subject_len)
        if f.op == ROUTE_MSG:
            frame.queues = text_of(&f.queues).split()
            frame.reply = PyBytes_FromStringAndSize(f.plain.reply, <Py_ssize_t>f.plain.reply_len)
            frame.body = PyBytes_FromStringAndSize(f.plain.body, <Py_ssize_t>f.plain.body_len)
        else:
            frame.queue = PyBytes_FromStringAndSize(f.plain.reply, <Py_ssize_t>f.plain.reply_len)
        return frame


cdef bytes text_of(const Span* span):
    return PyBytes_FromStringAndSize(span.p, <Py_ssize_t>span.n) if span.n else b""


cdef class PyRouteFrame:
    """One frame as Python sees it: bytes, b"" when absent."""

    cdef readonly int op
    cdef readonly PyFrame control
    cdef readonly bint is_leaf
    cdef readonly bytes origin, account, subject, reply, queue, body
    cdef readonly list queues
    cdef readonly size_t header_len
    cdef readonly uint32_t weight
