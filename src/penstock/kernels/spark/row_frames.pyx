"""The Spark sink's hot path: rows as publish frames, and the pub acks for them.

Rows: publishes rows of Arrow columns directly from the columns' buffers.

Purpose: a Spark task writes its rows without a Python object per row. A row is a subject, a payload, optional
header lines and an optional message id; `encode` writes

    HPUB <subject> [<reply><number><end>] <sizes>
    NATS/1.0
    <fixed lines>[<numbered line><number>][Nats-Msg-Id: <id>]<the row's own lines>

    <payload>

A generated id is `<prefix><row>:<hash>`: the row's number within its task, and a hash of subject,
header lines and payload, which distinguishes rows with the same number when a task is run again and its rows
arrive in another order.

Invariants: the constructors check all offsets, so encoding reads nothing outside of the columns; the output is
whole frames; the id of a row doesn't depend on its position in a batch.
Rejected: Arrow's own types (the kernel would need pyarrow's headers to build); random ids.

AckWindow: tracks the pub acks of a publisher with many messages in flight, without a Python object per ack.

A message's reply subject ends in its number; `feed` iterates over the frames of a connection and marks acked
messages. Any reply other than a plain ack (an error, no responders, another layout of the JSON, another stream) is
returned to Python as an event.

Invariants: `base` is the lowest number not yet acked; numbers in [base, end)
are in flight, never more than `size`; an ack for a number outside of that is a late one and is dropped.
"""
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memchr, memcmp, memcpy

from penstock.kernels.base.memory cimport array_zeroed
from penstock.kernels.log.records cimport xxh64
from penstock.kernels.wire.output cimport OutBuffer, put_uint
from penstock.kernels.wire.frames cimport OP_ERROR, OP_HMSG, OP_MSG, OP_NEED_MORE, Frame, FrameParser


# --- row frames

cdef enum:
    SLACK = 160             # verbs, spaces, numbers, line ends, the name of the id's header
    ID_TAIL = 40            # a row number, a colon, sixteen hexadecimal digits

cdef const char* DIGITS = b"0123456789abcdef"
cdef const char* NOTHING = b""
cdef const char* PUB = b"HPUB "


cdef struct Slice:
    const char* data
    size_t size


cdef bint is_subject(const char* p, size_t n) noexcept nogil:
    """Has it no blank or control character, no empty token and no wildcard? (grammar.pyx allows some control
    characters, and takes twice as long.)"""
    cdef size_t i, token = 0
    for i in range(n):
        if p[i] == 46:
            if not is_plain_token(p + token, i - token):
                return False
            token = i + 1
        elif 0 <= p[i] <= 32 or p[i] == 127:
            return False
    return is_plain_token(p + token, n - token)


cdef inline bint is_plain_token(const char* p, size_t n) noexcept nogil:
    return n > 1 or (n == 1 and p[0] != 42 and p[0] != 62)


cdef class TextColumn:
    """A binary or string column: `offsets` are count + 1 int32 from `start` on, `data` the bytes or None.
    Raises ValueError when they are outside of the data."""
    cdef const unsigned char[:] offsets
    cdef const unsigned char[:] data
    cdef const int32_t* at
    cdef const char* bytes
    cdef readonly size_t count

    def __cinit__(self, const unsigned char[:] offsets not None, const unsigned char[:] data, size_t start,
                  size_t count):
        cdef size_t i, size = 0
        if (start + count + 1) * 4 > <size_t>offsets.shape[0]:
            raise ValueError(f"rows {start}..{start + count} of a column of {offsets.shape[0] // 4 - 1}")
        self.offsets = offsets
        self.at = (<const int32_t*>&offsets[0]) + start
        self.count = count
        self.bytes = NULL
        if data is not None and data.shape[0]:
            self.data = data
            self.bytes = <const char*>&data[0]
            size = <size_t>data.shape[0]
        if self.at[0] < 0 or <size_t>self.at[count] > size:
            raise ValueError(f"the column's values end at {self.at[count]} of {size} bytes")
        for i in range(count):
            if self.at[i + 1] < self.at[i]:
                raise ValueError(f"row {i} lies at {self.at[i]}..{self.at[i + 1]}")

    def first_bad_subject(self):
        """The first row that is no valid publish subject, or -1."""
        cdef size_t i
        cdef Slice s
        for i in range(self.count):
            s = self.row(i)
            if not is_subject(s.data, s.size):
                return i
        return -1

    cdef inline Slice row(self, size_t i) noexcept:
        cdef Slice s
        s.data = NOTHING
        if self.bytes != NULL:
            s.data = self.bytes + self.at[i]
        s.size = <size_t>(self.at[i + 1] - self.at[i])
        return s


cdef class Rows:
    """The rows of one batch. headers: complete lines, each with its line end. ids: the user's message ids;
    without them ids are generated from `id_prefix` (none when that is empty). first_row: number of the first row;
    numbers: int64 row numbers instead, for selected rows."""
    cdef readonly TextColumn subjects, payloads, headers, ids
    cdef readonly bytes id_prefix
    cdef readonly int64_t first_row
    cdef const int64_t[:] numbers
    cdef readonly size_t count

    def __cinit__(self, TextColumn subjects not None, TextColumn payloads not None, TextColumn headers=None,
                  TextColumn ids=None, bytes id_prefix=b"", int64_t first_row=0, const int64_t[:] numbers=None):
        self.count = subjects.count
        for column in (payloads, headers, ids):
            if column is not None and column.count != self.count:
                raise ValueError(f"columns of {self.count} and {column.count} rows")
        if numbers is not None and <size_t>numbers.shape[0] != self.count:
            raise ValueError(f"{numbers.shape[0]} numbers for {self.count} rows")
        self.subjects = subjects
        self.payloads = payloads
        self.headers = headers
        self.ids = ids
        self.id_prefix = id_prefix
        self.first_row = first_row
        self.numbers = numbers

    def __len__(self):
        return self.count

    cdef size_t write_id(self, char* d, size_t i) noexcept:
        """Writes the row's id at d, which has room for it; returns its size, 0 without one."""
        cdef Slice s
        cdef uint64_t hash = 0
        cdef size_t n, prefix = <size_t>len(self.id_prefix)
        cdef int shift
        if self.ids is not None:
            s = self.ids.row(i)
            memcpy(d, s.data, s.size)
            return s.size
        if prefix == 0:
            return 0
        memcpy(d, <const char*>self.id_prefix, prefix)
        n = prefix
        n += put_uint(d + n, <uint64_t>(self.numbers[i] if self.numbers is not None else self.first_row + i))
        d[n] = 58
        n += 1
        if self.headers is not None:
            s = self.headers.row(i)
            hash = xxh64(s.data, s.size, hash)
        s = self.subjects.row(i)
        hash = xxh64(s.data, s.size, hash)
        s = self.payloads.row(i)
        hash = xxh64(s.data, s.size, hash)
        for shift in range(16):
            d[n + shift] = DIGITS[(hash >> (60 - 4 * shift)) & 15]
        return n + 16

    cdef inline size_t id_room(self, size_t i) noexcept:
        return self.ids.row(i).size if self.ids is not None else <size_t>len(self.id_prefix) + ID_TAIL

    def message_ids(self):
        """The ids of all rows, as a list of bytes; b"" for a row without one."""
        cdef OutBuffer out = OutBuffer()
        cdef size_t i
        cdef char* d
        found = []
        for i in range(self.count):
            d = out.reserve(self.id_room(i))
            found.append(d[:self.write_id(d, i)])
        return found

    def subject(self, size_t i):
        if i >= self.count:
            raise IndexError(f"row {i} of {self.count}")
        cdef Slice s = self.subjects.row(i)
        return s.data[:s.size]

    def size(self, size_t i):
        """Bytes of a row's subject, header lines and payload."""
        if i >= self.count:
            raise IndexError(f"row {i} of {self.count}")
        return (self.subjects.row(i).size + self.payloads.row(i).size
                + (self.headers.row(i).size if self.headers is not None else 0))

    def encode(self, OutBuffer out not None, size_t start, size_t count, *, bytes reply=b"", uint64_t number=0,
               bytes end=b"", bytes fixed=b"", bytes numbered=b"", size_t max_payload, size_t out_max=1 << 20):
        """Writes up to `count` rows from `start` on, numbered from `number` on; stops before a message larger
        than max_payload, or when `out` holds out_max bytes. Returns how many rows were written.

        reply: start of the reply subject, followed by the number and `end`; empty for none. fixed:
        header lines for every row. numbered: start of a header line that ends in the number."""
        cdef size_t i, block, head
        cdef Slice subject, payload, own
        cdef char* d
        cdef char* begin
        cdef char* id
        cdef size_t id_size
        cdef OutBuffer scratch = OutBuffer()
        cdef size_t reply_size = <size_t>len(reply), end_size = <size_t>len(end)
        cdef size_t fixed_size = <size_t>len(fixed), numbered_size = <size_t>len(numbered)
        if start + count > self.count:
            raise IndexError(f"rows {start}..{start + count} of {self.count}")
        own.data = NOTHING
        own.size = 0
        for i in range(start, start + count):
            if out.size >= out_max:
                return i - start
            subject = self.subjects.row(i)
            payload = self.payloads.row(i)
            if self.headers is not None:
                own = self.headers.row(i)
            id = scratch.reserve(self.id_room(i) + 1)
            id_size = self.write_id(id, i)
            begin = out.reserve(SLACK + subject.size + reply_size + end_size + fixed_size + numbered_size + id_size
                                + own.size + payload.size)
            block = fixed_size + own.size
            if numbered_size:
                block += numbered_size + digits(number) + 2
            if id_size:
                block += 15 + id_size
            if block:
                block += 12
            if block + payload.size > max_payload:
                return i - start
            d = begin
            head = 5 if block else 4
            memcpy(d, PUB + 5 - head, head)
            d += head
            memcpy(d, subject.data, subject.size)
            d += subject.size
            d[0] = 32
            d += 1
            if reply_size:
                memcpy(d, <const char*>reply, reply_size)
                d += reply_size
                d += put_uint(d, number)
                memcpy(d, <const char*>end, end_size)
                d += end_size
                d[0] = 32
                d += 1
            if block:
                d += put_uint(d, block)
                d[0] = 32
                d += 1
            d += put_uint(d, block + payload.size)
            memcpy(d, b"\r\n", 2)
            d += 2
            if block:
                memcpy(d, b"NATS/1.0\r\n", 10)
                d += 10
                memcpy(d, <const char*>fixed, fixed_size)
                d += fixed_size
                if numbered_size:
                    memcpy(d, <const char*>numbered, numbered_size)
                    d += numbered_size
                    d += put_uint(d, number)
                    memcpy(d, b"\r\n", 2)
                    d += 2
                if id_size:
                    memcpy(d, b"Nats-Msg-Id: ", 13)
                    memcpy(d + 13, id, id_size)
                    memcpy(d + 13 + id_size, b"\r\n", 2)
                    d += 15 + id_size
                memcpy(d, own.data, own.size)
                memcpy(d + own.size, b"\r\n", 2)
                d += own.size + 2
            memcpy(d, payload.data, payload.size)
            d += payload.size
            memcpy(d, b"\r\n", 2)
            d += 2
            out.size += <size_t>(d - begin)
            number += 1
        return count


cdef size_t digits(uint64_t v) noexcept nogil:
    cdef size_t n = 1
    while v >= 10:
        v //= 10
        n += 1
    return n


# --- pub acks

cpdef enum AckEvent:
    ACKS_NEED_MORE = 0
    ACKS_OTHER = 1          # a reply other than a plain ack: see number, header, payload
    ACKS_CONTROL = 2        # PING, PONG, INFO, +OK, -ERR: see op, payload
    ACKS_ERROR = 3          # the peer broke the protocol


cdef bint number_at_end(const char* p, size_t n, uint64_t* out) noexcept nogil:
    """Parses the digits after the last dot."""
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
    """Is it the rest of an ack with only a sequence: `,"seq":7}`, optionally with a blank?"""
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
    """size: how many messages may be in flight. stream: the stream whose acks are plain."""
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
        self.acked = <unsigned char*>array_zeroed(size, 1, b"acks")
        self.size = size
        self.sid = sid
        self.expected = b'{"stream":"' + stream + b'"'

    def __dealloc__(self):
        free(self.acked)

    @property
    def room(self):
        return self.size - (self.end - self.base)

    def sent(self, uint64_t count):
        """Notes that `count` more numbers, from `end` on, are in flight."""
        if count > self.size - (self.end - self.base):
            raise ValueError(f"{count} more of {self.size}, {self.end - self.base} are in flight")
        self.end += count

    def acknowledge(self, uint64_t number, bint duplicate, uint64_t seq):
        """Handles an ack that Python parsed; True when the number was in flight and not acked."""
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
        """Processes the acks in the parser's buffer; returns an AckEvent: why it stopped."""
        cdef Frame f
        cdef int op
        cdef size_t sid_size = <size_t>len(self.sid)
        while True:
            op = parser.next(&f)
            if op == OP_MSG or op == OP_HMSG:
                if f.sid_len != sid_size or memcmp(f.sid, <const char*>self.sid, sid_size) != 0:
                    continue        # a late reply to an earlier request
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
