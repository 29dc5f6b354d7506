# cython: auto_pickle=False
"""Incremental parser of NATS protocol frames, both directions; output.pyx writes them.

Theory of operation. The parser owns one growable read buffer; `data[start:end]` is read and not yet consumed.
A frame is a control line, for PUB, HPUB, MSG and HMSG followed by a body and CRLF. next() has three outcomes: a
frame, OP_NEED_MORE, OP_ERROR. While the body of a frame is incomplete, `need` holds the size of the whole frame, and
next() compares two numbers. While a control line is incomplete, `line_scanned` is the length already searched, so
that the next read does not search those bytes again.

Invariants: start <= end <= capacity; the buffer moves, grows or is given back only in get_buffer(), feed() and
give_back(), and never while a view of it exists or it is pinned (`exports` > 0); after an error the parser stays
stopped; the frames parsed from a stream of bytes don't depend on how it is split into reads.

A parser without input holds no buffer: it gives the empty buffer to the parser that reads next. Thousands of idle
connections would otherwise keep a page each, and a read would find its buffer in no cache.

The parser checks a verb as soon as its bytes arrive, as the official server does: it refuses an unknown verb without
waiting for a line end, and with connect_only any verb but CONNECT at its first byte, because an unauthenticated peer
must not fill memory with a payload. A control line ends with LF, the CR before it is optional; a CR anywhere else
among arguments is refused, so that it can't be smuggled into a subject.

Rejected: a state machine over single bytes (memchr and whole-line parsing measured three times as fast);
keeping the parsed arguments of a frame that waits for its body (its control line is parsed once more when
the body is complete, at most once per frame).
"""
from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromObject
from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memchr, memcmp, memcpy, memmove

cdef extern from *:
    """
    #if (defined(__GNUC__) || defined(__clang__)) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    #define first_marked(word) ((size_t)__builtin_ctzll(word) >> 3)
    #else
    #define first_marked(word) ((size_t)0)
    #endif
    """
    size_t first_marked(uint64_t word) noexcept nogil       # the first byte with a bit set, or one before it

cdef enum:
    READ_ROOM = 1 << 16             # minimum room for a read
    CAPACITY_FIRST = 1 << 17
    CAPACITY_KEPT = 1 << 20         # an empty buffer larger than this is freed
    # A control line is its arguments, at most max_control_line bytes, and the verb, blanks and CR before
    # and after them, for which this much is allowed.
    LINE_SLACK = 16
    ARGUMENTS_MAX = 4               # HPUB and HMSG have the most: 3 or 4, and 4 or 5
    ARGUMENTS_SPACE = 6             # one more than any verb has, so that too many are detected
    SIZE_DIGITS_MAX = 9

# The empty buffer, of CAPACITY_FIRST bytes, that the last parser gave back; NULL = none. One is enough: a loop reads
# one connection after the other. Guarded by the GIL.
cdef char* spare = NULL

# The members of both enums are names of the module as well: `frames.OP_PUB`.
globals().update(Op.__members__)
globals().update(ParseError.__members__)


cdef inline bint is_blank(char c) noexcept nogil:
    return c == c' ' or c == c'\t'


cdef inline const char* skip_blanks(const char* p, const char* end) noexcept nogil:
    while p < end and is_blank(p[0]):
        p += 1
    return p


cdef inline const char* past_word(const char* p, const char* limit) noexcept nogil:
    """Skips bytes above the blank, eight at a time; stops at the latest eight bytes before the limit."""
    cdef uint64_t word
    while limit - p >= 8:
        memcpy(&word, p, 8)
        word = (word - <uint64_t>0x2121212121212121) & ~word & <uint64_t>0x8080808080808080
        if word:
            return p + first_marked(word)
        p += 8
    return p


cdef inline int split(const char* p, const char* end, const char* limit, Span* spans) noexcept nogil:
    """Splits by blanks into at most ARGUMENTS_SPACE spans; -1 when one contains a CR.

    The byte at `end` is the CR or LF that ends the line. Up to `limit` the buffer can be read: the words of a frame
    with a body are skipped eight bytes at a time up to the end of the line.
    """
    cdef int count = 0
    cdef const char* token
    while True:
        while p < end and (p[0] == c' ' or p[0] == c'\t'):
            p += 1
        if p == end or count == ARGUMENTS_SPACE:
            return count
        token = p
        p = past_word(p, limit)
        while p < end and p[0] != c' ' and p[0] != c'\t':
            if p[0] == c'\r':
                return -1
            p += 1
        spans[count].p = token
        spans[count].n = <size_t>(p - token)
        count += 1


cdef bint parse_size(const Span* span, size_t* size) noexcept nogil:
    """Decimal digits only, at most nine: no sign, no overflow."""
    cdef size_t i
    cdef size_t v = 0
    cdef unsigned char digit
    if span.n == 0 or span.n > SIZE_DIGITS_MAX:
        return False
    for i in range(span.n):
        digit = <unsigned char>(span.p[i] - c'0')
        if digit > 9:
            return False
        v = v * 10 + digit
    size[0] = v
    return True


# The verbs, in upper-case letters. `blank`: must a blank follow the verb? Otherwise anything may follow
# (PING, PONG and +OK ignore the rest of their line; JSON may follow CONNECT and INFO immediately).
cdef struct Verb:
    const char* name
    size_t n
    int op
    bint blank

cdef Verb VERBS[12]
VERBS[0] = Verb(b"PUB", 3, OP_PUB, True)
VERBS[1] = Verb(b"HPUB", 4, OP_HPUB, True)
VERBS[2] = Verb(b"SUB", 3, OP_SUB, True)
VERBS[3] = Verb(b"UNSUB", 5, OP_UNSUB, True)
VERBS[4] = Verb(b"MSG", 3, OP_MSG, True)
VERBS[5] = Verb(b"HMSG", 4, OP_HMSG, True)
VERBS[6] = Verb(b"PING", 4, OP_PING, False)
VERBS[7] = Verb(b"PONG", 4, OP_PONG, False)
VERBS[8] = Verb(b"CONNECT", 7, OP_CONNECT, False)
VERBS[9] = Verb(b"INFO", 4, OP_INFO, False)
VERBS[10] = Verb(b"+OK", 3, OP_OK, False)
VERBS[11] = Verb(b"-ERR", 4, OP_ERR, True)


cdef int match_verb(const char* p, size_t n, bint whole, size_t* verb_len) noexcept nogil:
    """The Op of the verb at p; OP_NEED_MORE when the n bytes are a prefix of one; OP_ERROR for any other.

    whole -- the line is complete: a prefix is no verb.
    """
    cdef int i
    cdef size_t k, shared
    cdef char c
    cdef Verb* verb
    for i in range(12):
        verb = &VERBS[i]
        shared = n if n < verb.n else verb.n
        for k in range(shared):
            c = p[k]
            if c'a' <= c <= c'z':
                c -= 32
            if c != verb.name[k]:
                break
        else:
            if n < verb.n or (n == verb.n and verb.blank):
                # -ERR alone on its line is accepted: it has no text to misread.
                if not whole or (n == verb.n and verb.op == OP_ERR):
                    verb_len[0] = verb.n
                    return verb.op if whole else OP_NEED_MORE
                return OP_ERROR
            if verb.blank and not is_blank(p[verb.n]):
                if not (verb.op == OP_ERR and p[verb.n] == c'\r'):
                    return OP_ERROR
            verb_len[0] = verb.n
            return verb.op
    return OP_ERROR


cdef inline int fast_verb(const char* p, const char* end, size_t* verb_len) noexcept nogil:
    """The verbs of messages in capitals, without the table; 0 for all others. `end - p` is checked."""
    if end - p >= 5:
        if p[0] == c'P' and p[1] == c'U' and p[2] == c'B' and p[3] == c' ':
            verb_len[0] = 3
            return OP_PUB
        if p[0] == c'M' and p[1] == c'S' and p[2] == c'G' and p[3] == c' ':
            verb_len[0] = 3
            return OP_MSG
        if p[0] == c'H' and p[4] == c' ':
            verb_len[0] = 4
            if p[1] == c'P' and p[2] == c'U' and p[3] == c'B':
                return OP_HPUB
            if p[1] == c'M' and p[2] == c'S' and p[3] == c'G':
                return OP_HMSG
    return OP_NEED_MORE


cdef class FrameParser:
    """Bytes in, frames out. See the module docstring for how, FrameParser.next for the outcomes."""

    def __cinit__(self):
        self.read_room = READ_ROOM
        self.capacity_first = CAPACITY_FIRST

    def __init__(self, size_t max_control_line=4096, size_t max_payload=0):
        self.max_control_line = max_control_line
        self.max_payload = max_payload

    def __dealloc__(self):
        free(self.data)

    def set_limits(self, size_t max_control_line, size_t max_payload):
        """Changes the limits for frames that are not parsed yet."""
        self.max_control_line = max_control_line
        self.max_payload = max_payload

    def lock(self):
        """Accepts only CONNECT, until unlock()."""
        self.connect_only = True

    def unlock(self):
        """Accepts all frames: the peer is authenticated."""
        self.connect_only = False

    # --- the read buffer

    cdef void give_back(self) noexcept:
        """Gives the buffer to the next parser that reads, if it is empty and not in use. Invalidates pointers
        of frames. A larger buffer stays: its connection has large frames, and growing copies them."""
        global spare
        if self.exports or self.start != self.end or self.capacity != CAPACITY_FIRST:
            return
        if spare == NULL:
            spare = self.data
        else:
            free(self.data)
        self.data = NULL
        self.start = self.end = self.capacity = 0
        self.epoch += 1

    cdef int make_room(self, size_t room) except -1:
        """Makes room for that many bytes after `end`. Invalidates pointers of frames."""
        global spare
        cdef size_t kept = self.end - self.start
        cdef size_t capacity
        cdef char* data
        self.epoch += 1
        if self.exports == 0:
            if kept == 0:
                self.start = self.end = 0
                if self.capacity > CAPACITY_KEPT and room <= self.capacity_first:
                    free(self.data)
                    self.data = NULL
                    self.capacity = 0
            if self.capacity - self.end < room and self.start and self.capacity - kept >= room:
                memmove(self.data, self.data + self.start, kept)
                self.start = 0
                self.end = kept
        if self.data != NULL and self.capacity - self.end >= room:
            return 0
        if self.exports:
            raise BufferError("the read buffer can't grow while a view of it exists or frames are in use")
        if room > (<size_t>-1) // 4 - kept:
            raise MemoryError(f"a read buffer can't take {room} more bytes")
        capacity = self.capacity if self.capacity else self.capacity_first
        while capacity < kept + room:
            capacity *= 2
        if capacity == CAPACITY_FIRST and spare != NULL:
            data, spare = spare, NULL
        else:
            data = <char*>malloc(capacity)
        if data == NULL:
            raise MemoryError(f"no memory for a read buffer of {capacity} bytes")
        if kept:
            memcpy(data, self.data + self.start, kept)
        free(self.data)
        self.data = data
        self.capacity = capacity
        self.start = 0
        self.end = kept
        return 0

    cdef object view_of_room(self):
        return PyMemoryView_FromObject(self)

    def get_buffer(self, Py_ssize_t size_hint=-1):
        """A writable view of the room for the next read: at least `size_hint` bytes, and at least 64 KiB.

        For asyncio's BufferedProtocol. A frame larger than the buffer makes it grow by doubling, never
        directly to the size that the peer announces. Invalidates earlier pointers and `control()` frames.
        Raises BufferError when the buffer would have to move while an earlier view exists.
        """
        self.make_room_to_read(size_hint)
        return self.view_of_room()

    def room_to_read(self, Py_ssize_t size_hint=-1):
        """get_buffer() for event loops that need no more than the buffer protocol: returns the parser itself, whose
        buffer is the room. A memoryview for each read costs 400 instructions."""
        self.make_room_to_read(size_hint)
        return self

    cdef int make_room_to_read(self, Py_ssize_t size_hint) except -1:
        cdef size_t room = self.read_room
        cdef size_t kept = self.end - self.start
        # A parser with less room for reads (route_frames.pyx) ignores the hint: event loops ask for 64 KiB and more.
        if size_hint > READ_ROOM and room >= READ_ROOM:
            room = <size_t>size_hint
        if self.need > kept and self.need - kept > room:
            # At most double what was received: the peer has to send bytes to make the buffer grow.
            room = min(self.need - kept, max(room, self.capacity))
        self.make_room(room)
        return 0

    cdef size_t offer_room(self) noexcept:
        cdef size_t room = self.capacity - self.end
        if self.view_max and room > self.view_max:
            room = self.view_max
        self.offered = room
        self.is_offered = True
        return room

    def buffer_updated(self, Py_ssize_t n):
        """Notes that `n` bytes were read into the last view of get_buffer()."""
        if n < 0 or <size_t>n > self.capacity - self.end:
            raise ValueError(f"buffer_updated({n}), but there was room for {self.capacity - self.end} bytes")
        self.end += <size_t>n
        self.is_offered = False

    def feed(self, data):
        """Appends bytes (any contiguous buffer), for sources other than a BufferedProtocol."""
        cdef Py_buffer view
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            if view.len:
                self.make_room(<size_t>view.len)
                memcpy(self.data + self.end, view.buf, <size_t>view.len)
                self.end += <size_t>view.len
        finally:
            PyBuffer_Release(&view)

    def __getbuffer__(self, Py_buffer* view, int flags):
        cdef size_t room = self.offer_room()
        PyBuffer_FillInfo(view, self, self.data + self.end, <Py_ssize_t>room, 0, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer* view):
        assert self.exports > 0
        self.exports -= 1
        if not self.is_offered:         # else the bytes that were read into the view are still to be noted
            self.give_back()

    @property
    def held_bytes(self):
        """Bytes of memory that the read buffer takes."""
        return self.capacity

    @property
    def pending(self):
        """Bytes read and not yet consumed."""
        return self.end - self.start

    cpdef bytes take_rest(self):
        """Takes the bytes read and not yet consumed: they belong to another layer of the stream."""
        cdef bytes rest = PyBytes_FromStringAndSize(self.data + self.start, <Py_ssize_t>(self.end - self.start))
        self.start = self.end
        self.line_scanned = self.need = 0
        return rest

    def release(self):
        """Frees the buffer, with what was not consumed, of a connection that has ended.

        The connection is part of a cycle of objects, which stays until a garbage collection finds it: fifteen that
        ended within a payload of 16 MB kept a quarter of a gigabyte.
        """
        if self.exports:                # in use: it is freed with the parser
            return
        free(self.data)
        self.data = NULL
        self.start = self.end = self.capacity = 0
        self.line_scanned = self.need = 0
        self.epoch += 1

    # --- frames

    cdef int fail(self, Frame* f, ParseError error) noexcept:
        self.error = error
        f.op = OP_ERROR
        return OP_ERROR

    cdef int next(self, Frame* f) except -1:
        if self.error:
            return self.fail(f, <ParseError>self.error)
        if self.end - self.start < self.need or self.start == self.end:
            f.op = OP_NEED_MORE
            return OP_NEED_MORE
        return self.next_in_line(f)

    cdef void go_back(self, size_t start) noexcept:
        self.start = start
        self.line_scanned = self.need = 0
        self.error = ERROR_NONE         # the parser finds the error again after `start`

    cdef int next_in_line(self, Frame* f) noexcept:
        """Finds the control line at `start` and parses it."""
        cdef const char* line = self.data + self.start
        cdef size_t n = self.end - self.start
        cdef const char* eol = <const char*>memchr(line + self.line_scanned, c'\n', n - self.line_scanned)
        cdef const char* p
        cdef int op
        cdef size_t verb_len = 0
        f.op = OP_NEED_MORE
        if self.connect_only and line[0] != c'C' and line[0] != c'c':
            return self.fail(f, ERROR_NO_CONNECT)
        if eol == NULL:
            if match_verb(line, n, False, &verb_len) == OP_ERROR:
                return self.fail(f, ERROR_UNKNOWN_OPERATION)
            if n > LINE_SLACK and n - LINE_SLACK > self.max_control_line:
                return self.fail(f, ERROR_CONTROL_LINE)
            self.line_scanned = n
            return OP_NEED_MORE
        self.line_scanned = <size_t>(eol - line)
        op = fast_verb(line, eol, &verb_len)
        if op == OP_NEED_MORE:
            op = match_verb(line, <size_t>(eol - line), True, &verb_len)
            if op == OP_ERROR:
                return self.fail(f, ERROR_UNKNOWN_OPERATION)
        p = skip_blanks(line + verb_len, eol)
        if <size_t>(eol - line) > LINE_SLACK and <size_t>(eol - line) - LINE_SLACK > self.max_control_line:
            return self.fail(f, ERROR_CONTROL_LINE)
        if eol > p and (eol - 1)[0] == c'\r':
            eol -= 1
        if <size_t>(eol - p) > self.max_control_line:
            return self.fail(f, ERROR_CONTROL_LINE)
        return self.parse_arguments(f, op, p, eol)

    cdef int parse_arguments(self, Frame* f, int op, const char* p, const char* end) noexcept:
        """`p` to `end` are the arguments of a complete control line; `line_scanned` is the offset of its LF."""
        cdef Span a[ARGUMENTS_SPACE]
        cdef int count
        cdef size_t header_len = 0, body_len = 0
        cdef const char* body = self.data + self.start + self.line_scanned + 1
        cdef bint has_header = op == OP_HPUB or op == OP_HMSG
        cdef int fixed      # arguments without the optional one

        f.subject = f.reply = f.sid = f.body = NULL
        f.subject_len = f.reply_len = f.sid_len = f.header_len = f.body_len = 0
        f.max_msgs = 0
        if op == OP_PUB or op == OP_MSG or has_header:
            count = split(p, end, self.data + self.end, a)
            fixed = 2 + <int>has_header + <int>(op == OP_MSG or op == OP_HMSG)
            if count != fixed and count != fixed + 1:
                return self.fail(f, ERROR_MALFORMED)
            if not parse_size(&a[count - 1], &body_len):
                return self.fail(f, ERROR_MALFORMED)
            if has_header and (not parse_size(&a[count - 2], &header_len) or header_len > body_len):
                return self.fail(f, ERROR_MALFORMED)
            if self.max_payload and body_len > self.max_payload:
                return self.fail(f, ERROR_PAYLOAD)
            f.subject, f.subject_len = a[0].p, a[0].n
            if op == OP_MSG or op == OP_HMSG:
                f.sid, f.sid_len = a[1].p, a[1].n
            if count > fixed:
                count = fixed - 1 - <int>has_header     # the reply stands right before the sizes
                f.reply, f.reply_len = a[count].p, a[count].n
            f.op = op
            return self.take_body(f, body, header_len, body_len)

        if op == OP_SUB or op == OP_UNSUB:
            count = split(p, end, self.data + self.end, a)
            if op == OP_SUB:
                if count != 2 and count != 3:
                    return self.fail(f, ERROR_MALFORMED)
                f.subject, f.subject_len = a[0].p, a[0].n
                if count == 3:
                    f.reply, f.reply_len = a[1].p, a[1].n
                f.sid, f.sid_len = a[count - 1].p, a[count - 1].n
            else:
                if count != 1 and count != 2:
                    return self.fail(f, ERROR_MALFORMED)
                f.sid, f.sid_len = a[0].p, a[0].n
                # A maximum which is no number means "now", as on the official server.
                if count == 2 and parse_size(&a[1], &body_len):
                    f.max_msgs = body_len
        elif op == OP_CONNECT or op == OP_INFO or op == OP_ERR:
            while end > p and is_blank((end - 1)[0]):
                end -= 1
            if op == OP_ERR and end - p >= 2 and p[0] == c"'" and (end - 1)[0] == c"'":
                p += 1
                end -= 1
            f.body = p
            f.body_len = <size_t>(end - p)
        # PING, PONG and +OK ignore the rest of their line.
        f.op = op
        self.start = <size_t>(body - self.data)
        self.line_scanned = 0
        self.need = 0
        return op

    cdef int take_body(self, Frame* f, const char* body, size_t header_len, size_t body_len) noexcept:
        """Consumes the frame when its body and the CRLF after it are complete."""
        cdef size_t need = <size_t>(body - self.data) - self.start + body_len + 2
        cdef size_t have = self.end - self.start
        if have < need:
            # Checks CR and LF only when both have arrived.
            self.need = need
            f.op = OP_NEED_MORE
            return OP_NEED_MORE
        if body[body_len] != c'\r' or body[body_len + 1] != c'\n':
            return self.fail(f, ERROR_UNKNOWN_OPERATION)
        f.body = body
        f.header_len = header_len
        f.body_len = body_len
        self.start += need
        self.line_scanned = 0
        self.need = 0
        return f.op

    def next_frame(self):
        """The next frame, or None while it is incomplete.

        A protocol error of the peer raises nothing: it returns a frame with op OP_ERROR, now and at every
        further call, and `error` says which.
        """
        cdef Frame f
        if self.next(&f) == OP_NEED_MORE:
            return None
        return to_python(&f)

    def next_batch(self, Py_ssize_t limit=-1):
        """All MSG and HMSG frames up to the first other frame: [(sid, subject, reply, header, payload), ...].

        sid is an int, reply and header are None when absent, the others bytes. `stopped_op` then says
        what follows: OP_NEED_MORE, the Op of a frame (read it with next_frame()) or OP_ERROR; OP_MSG or
        OP_HMSG only when `limit` messages were taken. A sid that is no number is ERROR_MALFORMED.
        """
        cdef list batch = []
        cdef Frame f
        cdef size_t start
        cdef size_t sid = 0
        cdef Span digits
        cdef bytes reply, header
        cdef Py_ssize_t count = 0
        cdef int op
        while True:
            start = self.start
            op = self.next(&f)
            if op != OP_MSG and op != OP_HMSG:
                if op != OP_ERROR:
                    self.start = start          # not a message: left for next_frame()
                break
            if count == limit:
                self.start = start
                break
            digits.p, digits.n = f.sid, f.sid_len
            if not parse_size(&digits, &sid):
                op = self.fail(&f, ERROR_MALFORMED)
                break
            if (
                self.last_subject is None
                or <size_t>PyBytes_GET_SIZE(self.last_subject) != f.subject_len
                or memcmp(PyBytes_AS_STRING(self.last_subject), f.subject, f.subject_len) != 0
            ):
                self.last_subject = PyBytes_FromStringAndSize(f.subject, <Py_ssize_t>f.subject_len)
            reply = None
            if f.reply != NULL:
                reply = PyBytes_FromStringAndSize(f.reply, <Py_ssize_t>f.reply_len)
            header = None
            if op == OP_HMSG:
                header = PyBytes_FromStringAndSize(f.body, <Py_ssize_t>f.header_len)
            batch.append((
                sid, self.last_subject, reply, header,
                PyBytes_FromStringAndSize(f.body + f.header_len, <Py_ssize_t>(f.body_len - f.header_len)),
            ))
            count += 1
            self.message_bytes += f.body_len
        self.messages += <uint64_t>count
        self.stopped_op = op
        return batch


cdef class PyFrame:
    """One frame: op, subject, reply, sid, header, payload (bytes, None when absent) and max_msgs.

    SUB has its queue group in `reply` (also as `queue`); CONNECT and INFO their JSON and -ERR its text,
    without quotes, in `payload`.
    """

    @property
    def queue(self):
        """The queue group of a SUB."""
        return self.reply

    def __repr__(self):
        return (
            f"PyFrame(op={self.op}, subject={self.subject!r}, reply={self.reply!r}, sid={self.sid!r}, "
            f"header={self.header!r}, payload={self.payload!r}, max_msgs={self.max_msgs})"
        )


cdef bytes bytes_or_none(const char* p, size_t n):
    return None if p == NULL else PyBytes_FromStringAndSize(p, <Py_ssize_t>n)


cdef PyFrame to_python(const Frame* f):
    """Copies a frame out of the read buffer. For OP_ERROR only `op` is set."""
    cdef PyFrame frame = PyFrame.__new__(PyFrame)
    frame.op = f.op
    if f.op == OP_ERROR:
        return frame
    frame.subject = bytes_or_none(f.subject, f.subject_len)
    frame.reply = bytes_or_none(f.reply, f.reply_len)
    frame.sid = bytes_or_none(f.sid, f.sid_len)
    if f.op == OP_HPUB or f.op == OP_HMSG:
        frame.header = PyBytes_FromStringAndSize(f.body, <Py_ssize_t>f.header_len)
    if f.body != NULL:
        frame.payload = PyBytes_FromStringAndSize(
            f.body + f.header_len, <Py_ssize_t>(f.body_len - f.header_len)
        )
    frame.max_msgs = f.max_msgs
    return frame
