"""Arrow columns built directly from the frames of a pull consumer or a direct-get batch.

Purpose: a Spark task turns a socket's bytes into record batches without a Python object per message.
`feed()` iterates over the frames in a parser's buffer and appends each message to growable C buffers in Arrow's
layout; `take()` transfers those buffers, and pyarrow wraps them without a copy.

Invariants: rows appear in strictly ascending sequence, each within [start, end_seq), each exactly once; every
variable column holds less than 2^31 bytes, so its 32-bit offsets cannot overflow; a row is appended to
all wanted columns or (on an error) the builder must be thrown away.

Rejected: pyarrow's builders (a Python object per value); nullable columns (a message always has all of its
fields, an absent header block is an empty map); headers as an array of pairs (users look a header up by
name: `headers['Nats-Msg-Id'][0]`).
"""
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memchr, memcmp, memcpy
from cpython.buffer cimport PyBuffer_FillInfo
from penstock.kernels.base.memory cimport array_grow, array_new
from penstock.kernels.wire.frames cimport (
    Frame, FrameParser, OP_ERROR, OP_HMSG, OP_MSG, OP_NEED_MORE,
)

cdef enum:
    FIRST_CAPACITY = 4096
    BATCH_BYTES_MAX = 1 << 30       # plus one smaller frame stays under 2^31
    TOKENS_MAX = 11                 # later tokens of a longer ack subject are not needed
    ACK_PREFIX_LEN = 8

cdef uint64_t INT64_MAX = 0x7FFFFFFFFFFFFFFF


cdef int grow(Column* c, size_t n) except -1:
    c.data = <char*>array_grow(c.data, &c.capacity, c.size + n, 1, FIRST_CAPACITY, b"bytes of columns")
    return 0


cdef inline int put_bytes(Column* c, const char* p, size_t n) except -1:
    if c.capacity - c.size < n or c.data == NULL:
        grow(c, n)
    if n:
        memcpy(c.data + c.size, p, n)
        c.size += n
    return 0


cdef inline int put_i32(Column* c, int32_t v) except -1:
    if c.capacity - c.size < 4 or c.data == NULL:
        grow(c, 4)
    (<int32_t*>(c.data + c.size))[0] = v
    c.size += 4
    return 0


cdef inline int put_i64(Column* c, int64_t v) except -1:
    if c.capacity - c.size < 8 or c.data == NULL:
        grow(c, 8)
    (<int64_t*>(c.data + c.size))[0] = v
    c.size += 8
    return 0


cdef int parse_uint(const char* p, size_t n, uint64_t* out) noexcept nogil:
    """Parses decimal digits, no sign, at most an int64; 1 when valid."""
    cdef uint64_t v = 0
    cdef size_t i
    cdef unsigned int d
    if n == 0 or n > 19:
        return 0
    for i in range(n):
        d = <unsigned char>p[i] - 48
        if d > 9:
            return 0
        v = v * 10 + d
    if v > INT64_MAX:
        return 0
    out[0] = v
    return 1


cdef int parse_ack_subject(const char* p, size_t n, Position* out) noexcept nogil:
    """Parses $JS.ACK.<stream>.<consumer>.<delivered>.<sseq>.<cseq>.<ts>.<pending>: exactly 9 tokens; or at least
    11 with domain and account hash after ACK. 1 when valid."""
    cdef const char* starts[TOKENS_MAX]
    cdef size_t lengths[TOKENS_MAX]
    cdef size_t count = 0, rest = n, at
    cdef const char* cursor = p
    cdef const char* dot
    cdef uint64_t ts
    if n <= ACK_PREFIX_LEN or memcmp(p, b"$JS.ACK.", ACK_PREFIX_LEN) != 0:
        return 0
    while count < TOKENS_MAX:
        dot = <const char*>memchr(cursor, 46, rest)
        starts[count] = cursor
        lengths[count] = rest if dot == NULL else <size_t>(dot - cursor)
        count += 1
        if dot == NULL:
            break
        rest -= <size_t>(dot - cursor) + 1
        cursor = dot + 1
    if count == 9:
        at = 5
    elif count == TOKENS_MAX:
        at = 7
    else:
        return 0
    if not parse_uint(starts[at], lengths[at], &out.seq):
        return 0
    if not parse_uint(starts[at + 1], lengths[at + 1], &out.consumer_seq):
        return 0
    if not parse_uint(starts[at + 2], lengths[at + 2], &ts):
        return 0
    if not parse_uint(starts[at + 3], lengths[at + 3], &out.pending):
        return 0
    out.time_us = <int64_t>(ts // 1000)
    return 1


cdef int64_t days_from_civil(int64_t y, int64_t m, int64_t d) noexcept nogil:
    """Days since 1970-01-01 of a Gregorian date; years 1..9999, so no division of a negative number."""
    cdef int64_t era, year_of_era, day_of_year
    if m <= 2:
        y -= 1
    era = y // 400
    year_of_era = y - era * 400
    day_of_year = (153 * (m - 3 if m > 2 else m + 9) + 2) // 5 + d - 1
    return era * 146097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719468


cdef int parse_rfc3339(const char* p, size_t n, int64_t* out) noexcept nogil:
    """Parses 2006-01-02T15:04:05[.fraction]Z to microseconds since the epoch (further digits are truncated)."""
    cdef uint64_t year, month, day, hour, minute, second
    cdef int64_t fraction = 0, scale = 100000
    cdef size_t i
    if n < 20 or p[4] != 45 or p[7] != 45 or p[10] != 84 or p[13] != 58 or p[16] != 58 or p[n - 1] != 90:
        return 0
    if not (parse_uint(p, 4, &year) and parse_uint(p + 5, 2, &month) and parse_uint(p + 8, 2, &day)
            and parse_uint(p + 11, 2, &hour) and parse_uint(p + 14, 2, &minute)
            and parse_uint(p + 17, 2, &second)):
        return 0
    if year < 1 or month < 1 or month > 12 or day < 1 or day > 31 or hour > 23 or minute > 59 or second > 60:
        return 0
    if n > 20:
        if p[19] != 46 or n < 22:
            return 0
        for i in range(20, n - 1):
            if p[i] < 48 or p[i] > 57:
                return 0
            fraction += (p[i] - 48) * scale
            scale = scale // 10
    out[0] = (days_from_civil(<int64_t>year, <int64_t>month, <int64_t>day) * 86400
              + <int64_t>(hour * 3600 + minute * 60 + second)) * 1000000 + fraction
    return 1


cdef size_t next_line(const char** cursor, size_t* rest, HeaderLine* out) noexcept nogil:
    """Reads the next `Name: value` of a header block; 0 at its end. Skips lines without a colon."""
    cdef const char* p
    cdef const char* newline
    cdef const char* colon
    cdef const char* v
    cdef size_t n, line
    while rest[0]:
        p = cursor[0]
        newline = <const char*>memchr(p, 10, rest[0])
        line = rest[0] if newline == NULL else <size_t>(newline - p) + 1
        cursor[0] = p + line
        rest[0] -= line
        n = line if newline == NULL else line - 1
        if n and p[n - 1] == 13:
            n -= 1
        colon = <const char*>memchr(p, 58, n)
        if colon == NULL or colon == p:
            continue
        out.name = p
        out.name_len = <size_t>(colon - p)
        v = colon + 1
        n -= out.name_len + 1
        while n and (v[0] == 32 or v[0] == 9):
            v += 1
            n -= 1
        while n and (v[n - 1] == 32 or v[n - 1] == 9):
            n -= 1
        out.value = v
        out.value_len = n
        out.grouped = False
        return 1
    return 0


cdef bint named(const HeaderLine* h, const char* name, size_t n) noexcept nogil:
    return h.name_len == n and memcmp(h.name, name, n) == 0


cdef void skip_first_line(const char** cursor, size_t* rest) noexcept nogil:
    cdef const char* newline = <const char*>memchr(cursor[0], 10, rest[0])
    cdef size_t n = rest[0] if newline == NULL else <size_t>(newline - cursor[0]) + 1
    cursor[0] += n
    rest[0] -= n


cdef int status_code(const char* p, size_t n) noexcept nogil:
    """The three digits after NATS/1.0 in the first line of a header block; 0 when there are none."""
    cdef uint64_t v
    if n < 12 or memcmp(p, b"NATS/1.0 ", 9) != 0 or not parse_uint(p + 9, 3, &v):
        return 0
    return <int>v


cdef bint is_direct_header(const HeaderLine* h) noexcept nogil:
    """Is it a header that the server adds to the reply to a direct get, not one of the publisher?"""
    if h.name_len < 11 or memcmp(h.name, b"Nats-", 5) != 0:
        return False
    return (named(h, b"Nats-Stream", 11) or named(h, b"Nats-Subject", 12) or named(h, b"Nats-Sequence", 13)
            or named(h, b"Nats-Time-Stamp", 15) or named(h, b"Nats-Num-Pending", 16)
            or named(h, b"Nats-Last-Sequence", 18) or named(h, b"Nats-UpTo-Sequence", 18))


cdef int parse_direct(const Frame* f, Position* out) noexcept nogil:
    """Reads sequence, time and subject from the headers of a direct-get reply; 1 when all are present.
    The server appends its own lines after the publisher's, so the last of a name counts."""
    cdef const char* cursor = f.body
    cdef size_t rest = f.header_len
    cdef HeaderLine h
    cdef int have = 0
    if rest == 0:
        return 0
    out.pending = 0
    out.consumer_seq = 0
    skip_first_line(&cursor, &rest)
    while next_line(&cursor, &rest, &h):
        if named(&h, b"Nats-Sequence", 13):
            have |= parse_uint(h.value, h.value_len, &out.seq)
        elif named(&h, b"Nats-Time-Stamp", 15):
            have |= parse_rfc3339(h.value, h.value_len, &out.time_us) << 1
        elif named(&h, b"Nats-Subject", 12) and h.value_len:
            out.subject = h.value
            out.subject_len = h.value_len
            have |= 4
        elif named(&h, b"Nats-Num-Pending", 16):
            parse_uint(h.value, h.value_len, &out.pending)
    return have == 7


cdef object text(const char* p, size_t n):
    return p[:n] if n else b""


cdef class ColumnBuffer:
    """Memory of one finished Arrow buffer; freed with the last view of it."""

    def __dealloc__(self):
        free(self.data)

    def __len__(self):
        return self.size

    def __getbuffer__(self, Py_buffer* view, int flags):
        # writable=False: the kernel has released it, and Arrow buffers are immutable
        PyBuffer_FillInfo(view, self, self.data, <Py_ssize_t>self.size, 1, flags)

    def __releasebuffer__(self, Py_buffer* view):
        pass


cdef ColumnBuffer finish(Column* c):
    """Transfers the memory; the column restarts with the capacity that the last batch needed."""
    cdef ColumnBuffer out = ColumnBuffer.__new__(ColumnBuffer)
    cdef size_t capacity = c.capacity
    if c.data == NULL:
        grow(c, 1)      # Arrow accepts no NULL, not even for an empty buffer
    out.data = c.data
    out.size = c.size
    c.data = NULL
    c.size = 0
    c.capacity = 0
    if capacity:
        c.data = <char*>array_new(capacity, 1, b"bytes of columns")
        c.capacity = capacity
    return out


cdef class ColumnBuilder:
    """Collects the messages of one subscription into Arrow buffers.

    `columns`: any of subject, seq, time, headers, data. `sid` is the subscription's id;
    messages of others are left to Python. `direct`: replies of a direct-get batch, else of a pull consumer.
    A batch is full at `rows_max` rows or `bytes_max` bytes (up to 1 GiB) of subjects, headers and payloads.
    `restart()` must be called before the first feed().
    """

    def __cinit__(self, columns, *, bytes sid, bint direct=False, size_t rows_max=32768,
                  size_t bytes_max=16777216):
        wanted = set(columns)
        unknown = wanted - {"subject", "seq", "time", "headers", "data"}
        if unknown:
            raise ValueError(f"unknown columns {sorted(unknown)}; known: subject, seq, time, headers, data")
        if rows_max < 1 or rows_max > 1 << 24:
            raise ValueError(f"rows_max is {rows_max}; it must be 1 to {1 << 24}")
        if bytes_max < 1 or bytes_max > BATCH_BYTES_MAX:
            raise ValueError(f"bytes_max is {bytes_max}; it must be 1 to {BATCH_BYTES_MAX}")
        self.want_subject = "subject" in wanted
        self.want_seq = "seq" in wanted
        self.want_time = "time" in wanted
        self.want_headers = "headers" in wanted
        self.want_data = "data" in wanted
        self.sid = sid
        self.direct = direct
        self.rows_max = rows_max
        self.bytes_max = bytes_max
        self.start_batch()

    def __dealloc__(self):
        free(self.subject_offsets.data)
        free(self.subject_data.data)
        free(self.seqs.data)
        free(self.times.data)
        free(self.data_offsets.data)
        free(self.data_data.data)
        free(self.map_offsets.data)
        free(self.key_offsets.data)
        free(self.key_data.data)
        free(self.list_offsets.data)
        free(self.value_offsets.data)
        free(self.value_data.data)
        free(self.lines)

    def restart(self, uint64_t next_seq, uint64_t end_seq, bytes sid=None):
        """Prepares for a new consumer (or batch request), which delivers from `next_seq` on, up to `end_seq`
        (exclusive). Keeps rows already collected. `sid`: the subscription's id, if it changes."""
        if next_seq < self.next_seq:
            raise ValueError(f"restart at {next_seq}, but everything below {self.next_seq} was seen")
        if sid is not None:
            self.sid = sid
        self.next_seq = next_seq
        self.end_seq = end_seq
        self.consumer_seq = 0
        self.delivered = 0
        self.pending = 0

    cpdef int feed(self, FrameParser parser) except -1:
        """Appends the messages in the parser's buffer; returns an Event: why it stopped."""
        cdef Frame f
        cdef Position p
        cdef int op
        cdef size_t sid_len = len(self.sid)
        cdef const char* sid = self.sid
        while True:
            if self.rows >= self.rows_max or self.batch_bytes >= self.bytes_max:
                return EVENT_FULL
            if self.next_seq >= self.end_seq:
                return EVENT_END
            op = parser.next(&f)
            if op == OP_MSG or op == OP_HMSG:
                if f.sid_len != sid_len or memcmp(f.sid, sid, sid_len) != 0:
                    return self.hand_over(&f, EVENT_MESSAGE)
                if self.direct:
                    if op != OP_HMSG or status_code(f.body, f.header_len) or not parse_direct(&f, &p):
                        return self.hand_over(&f, EVENT_STATUS)
                else:
                    if f.reply == NULL or not parse_ack_subject(f.reply, f.reply_len, &p):
                        return self.hand_over(&f, EVENT_STATUS)
                    p.subject = f.subject
                    p.subject_len = f.subject_len
                    # Nothing is acked, so the server sends each message once: a step of more than one
                    # in the consumer sequence means a lost delivery.
                    if p.consumer_seq != self.consumer_seq + 1:
                        return EVENT_GAP
                    self.consumer_seq = p.consumer_seq
                if p.seq < self.next_seq:
                    return EVENT_GAP
                self.delivered += 1
                self.pending = p.pending
                if p.seq >= self.end_seq:
                    self.next_seq = self.end_seq
                    return EVENT_END
                self.append(&p, f.body, f.header_len, f.body + f.header_len, f.body_len - f.header_len)
                self.next_seq = p.seq + 1
            elif op == OP_NEED_MORE:
                return EVENT_NEED_MORE
            elif op == OP_ERROR:
                return EVENT_ERROR
            else:
                self.op = op
                self.body = text(f.body, f.body_len)
                return EVENT_CONTROL

    def extend(self, list messages, Py_ssize_t start=0, *, bint ordered=True):
        """Appends messages that the client has received, from index `start` on; (Event, index of the next).

        They are tuples (sid, subject, reply, header, payload) of bytes, of which header may be None, and the
        reply is the ack subject of their delivery. `ordered`: as feed() does, stops with EVENT_GAP before a
        message whose delivery is not the next one, and with EVENT_END at end_seq. EVENT_ERROR: this message's
        reply is no ack subject. EVENT_NEED_MORE: all are used up.
        """
        cdef Position p
        cdef Py_ssize_t at
        cdef tuple message
        cdef bytes subject, reply, header, payload
        for at in range(start, len(messages)):
            if self.rows >= self.rows_max or self.batch_bytes >= self.bytes_max:
                return EVENT_FULL, at
            message = messages[at]
            if len(message) != 5:
                raise ValueError(f"a message has 5 parts, not {len(message)}")
            subject, reply, header, payload = message[1], message[2], message[3], message[4]
            if ordered and self.next_seq >= self.end_seq:
                return EVENT_END, at  # first: what comes behind the end may be anything
            if reply is None or not parse_ack_subject(reply, len(reply), &p):
                return EVENT_ERROR, at
            if ordered:
                if p.consumer_seq != self.consumer_seq + 1 or p.seq < self.next_seq:
                    return EVENT_GAP, at
                self.consumer_seq = p.consumer_seq
                if p.seq >= self.end_seq:
                    self.next_seq = self.end_seq
                    return EVENT_END, at
                self.next_seq = p.seq + 1
            self.delivered += 1
            self.pending = p.pending
            p.subject = subject
            p.subject_len = len(subject)
            self.append(
                &p, <const char*>header if header is not None else NULL, len(header) if header is not None else 0,
                payload, len(payload),
            )
        if ordered and self.next_seq >= self.end_seq:
            return EVENT_END, len(messages)
        return EVENT_NEED_MORE, len(messages)

    cdef int append(
        self, const Position* p, const char* header, size_t header_len, const char* payload, size_t payload_len
    ) except -1:
        cdef size_t body_len = header_len + payload_len
        if body_len >= BATCH_BYTES_MAX or p.subject_len >= BATCH_BYTES_MAX - body_len:
            raise ValueError(f"message {p.seq} has {body_len} bytes; a column holds less than 2 GiB")
        if self.want_subject:
            put_bytes(&self.subject_data, p.subject, p.subject_len)
            put_i32(&self.subject_offsets, <int32_t>self.subject_data.size)
        if self.want_seq:
            put_i64(&self.seqs, <int64_t>p.seq)
        if self.want_time:
            put_i64(&self.times, p.time_us)
        if self.want_data:
            put_bytes(&self.data_data, payload, payload_len)
            put_i32(&self.data_offsets, <int32_t>self.data_data.size)
        if self.want_headers:
            self.append_headers(header, header_len)
        self.rows += 1
        self.batch_bytes += p.subject_len + body_len
        return 0

    cdef int append_headers(self, const char* p, size_t n) except -1:
        """One row of map<name, list<value>>: names in order of first appearance, values in theirs."""
        cdef const char* cursor = p
        cdef size_t rest = n, count = 0, i, j
        cdef HeaderLine* lines
        if n:
            skip_first_line(&cursor, &rest)
        while True:
            self.lines = <HeaderLine*>array_grow(
                self.lines, &self.lines_capacity, count + 1, sizeof(HeaderLine), 16, b"header lines"
            )
            if not next_line(&cursor, &rest, &self.lines[count]):
                break
            if not (self.direct and is_direct_header(&self.lines[count])):
                count += 1
        lines = self.lines
        for i in range(count):
            if lines[i].grouped:
                continue
            put_bytes(&self.key_data, lines[i].name, lines[i].name_len)
            put_i32(&self.key_offsets, <int32_t>self.key_data.size)
            for j in range(i, count):
                if not lines[j].grouped and named(&lines[j], lines[i].name, lines[i].name_len):
                    lines[j].grouped = True
                    put_bytes(&self.value_data, lines[j].value, lines[j].value_len)
                    put_i32(&self.value_offsets, <int32_t>self.value_data.size)
            put_i32(&self.list_offsets, <int32_t>(self.value_offsets.size // 4 - 1))
        put_i32(&self.map_offsets, <int32_t>(self.key_offsets.size // 4 - 1))
        return 0

    cdef int hand_over(self, const Frame* f, int event) except -1:
        self.op = f.op
        self.status = status_code(f.body, f.header_len) if f.header_len else 0
        self.message = (
            text(f.sid, f.sid_len),
            text(f.subject, f.subject_len),
            text(f.reply, f.reply_len) if f.reply != NULL else b"",
            text(f.body, f.header_len),
            text(f.body + f.header_len, f.body_len - f.header_len),
        )
        return event

    cdef int start_batch(self) except -1:
        self.rows = 0
        self.batch_bytes = 0
        if self.want_subject:
            put_i32(&self.subject_offsets, 0)
        if self.want_data:
            put_i32(&self.data_offsets, 0)
        if self.want_headers:
            put_i32(&self.map_offsets, 0)
            put_i32(&self.key_offsets, 0)
            put_i32(&self.list_offsets, 0)
            put_i32(&self.value_offsets, 0)
        return 0

    def take(self):
        """(rows, {column: its Arrow buffers}) of the batch collected so far; the next one starts empty.

        Buffers: subject and data (offsets, bytes); seq and time (values); headers (map offsets, name
        offsets, names, list offsets, value offsets, values). Offsets are int32, values int64, little endian.
        """
        rows = self.rows
        out = {}
        if self.want_subject:
            out["subject"] = (finish(&self.subject_offsets), finish(&self.subject_data))
        if self.want_seq:
            out["seq"] = (finish(&self.seqs),)
        if self.want_time:
            out["time"] = (finish(&self.times),)
        if self.want_headers:
            out["headers"] = (
                finish(&self.map_offsets), finish(&self.key_offsets), finish(&self.key_data),
                finish(&self.list_offsets), finish(&self.value_offsets), finish(&self.value_data),
            )
        if self.want_data:
            out["data"] = (finish(&self.data_offsets), finish(&self.data_data))
        self.start_batch()
        return rows, out
