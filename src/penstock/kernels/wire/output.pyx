# cython: auto_pickle=False
"""Output: growable buffers, the encoders of NATS protocol frames that write into them, and batches of publishes.

OutBuffer: a growable buffer into which kernels write frames, acks and records.

Invariants: size <= capacity; `data` is NULL only while capacity is 0. A taken buffer keeps at most
`CAPACITY_KEPT` bytes, so that one burst does not stay in memory for the life of a connection.

Rejected: growing a bytes object in place and returning it (the next write then starts on cold memory,
which costs more than the copy).

Encoders: frames from the server to clients, and from clients to the server. An encoder reserves room for the whole
frame and writes it in one step. It does not validate subjects, sids and headers: the caller has.

Batch encoders: many messages of a batch into an out buffer at once. For a fast batch,
`PUB <subject> <prefix><sequence>.1.$FI <size>` and the payload; for an atomic one (`staged`),
`HPUB <subject> <header size> <size>`, the header block `<prefix><sequence>` with its end, and the payload. Payloads
come from a list of bytes or from the two buffers of an Arrow binary or string column. No message object is created.

Invariant: `seq` belongs to the first payload written; the frames are those of `encode_pub`.
Measured with 128-byte payloads: 45 ns a message from a column, 55 ns from a list (650 ns one by one).
Rejected: taking Arrow arrays themselves (pyarrow is no dependency of the client).
"""
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memmove

from penstock.kernels.base.memory cimport array_grow, array_shrink


# --- buffers

cdef enum:
    CAPACITY_FIRST = 4096
    CAPACITY_KEPT = 1 << 20
    SMALL_RUNS_MAX = 64

cdef size_t SIZE_MAX_HALF = (<size_t>-1) >> 1


# "00".."99": two digits per division. Every delivery writes about fifty digits of ack subject; one digit per
# division took 18 % of an ordered consumer's time.
cdef const char* DIGIT_PAIRS = (
    b"00010203040506070809101112131415161718192021222324252627282930313233343536373839404142434445464748"
    b"49505152535455565758596061626364656667686970717273747576777879808182838485868788899091929394959697"
    b"9899"
)


cdef inline size_t digits_of(uint64_t v) noexcept nogil:
    cdef size_t n = 1
    while v >= 100000000:
        v = v // 100000000
        n += 8
    if v >= 10000:
        v = v // 10000
        n += 4
    return n + (v >= 10) + (v >= 100) + (v >= 1000)


cdef inline void put_pair(char* d, uint32_t v) noexcept nogil:
    memcpy(d, DIGIT_PAIRS + <size_t>v * 2, 2)


# Writes digits directly to their final position: a copy from a temporary would stall until the stores complete.
# Eight at once: their pairs do not wait for each other, and divisions of 32 bits are cheaper than those of 64.
cdef size_t put_uint(char* d, uint64_t v) noexcept nogil:
    cdef size_t n = digits_of(v)
    cdef size_t at = n
    cdef uint32_t eight, high, low, left
    while v >= 100000000:
        eight = <uint32_t>(v % 100000000)
        v = v // 100000000
        high, low = eight // 10000, eight % 10000
        at -= 8
        put_pair(d + at, high // 100)
        put_pair(d + at + 2, high % 100)
        put_pair(d + at + 4, low // 100)
        put_pair(d + at + 6, low % 100)
    left = <uint32_t>v
    while left >= 100:
        at -= 2
        put_pair(d + at, left % 100)
        left = left // 100
    if left >= 10:
        put_pair(d, left)
    else:
        d[0] = <char>(c'0' + <int>left)
    return n


cdef class OutBuffer:
    """Pending output bytes; grows by doubling."""

    def __dealloc__(self):
        free(self.data)

    def __len__(self):
        return <Py_ssize_t>self.size

    cdef int grow(self, size_t n) except -1:
        """Makes the capacity at least size + n, doubling."""
        if n > SIZE_MAX_HALF - self.size:
            raise MemoryError(f"an output buffer of {self.size} bytes can't take {n} more")
        self.data = <char*>array_grow(self.data, &self.capacity, self.size + n, 1, CAPACITY_FIRST, b"bytes of output")
        return 0

    cdef char* reserve(self, size_t n) except NULL:
        if n > self.capacity - self.size or self.data == NULL:
            self.grow(n)
        return self.data + self.size

    cdef int append(self, const char* p, size_t n) except -1:
        if n:
            memcpy(self.reserve(n), p, n)
            self.size += n
        return 0

    cpdef int write(self, const unsigned char[:] data) except -1:
        """Appends `data`, any contiguous or strided buffer of bytes."""
        cdef Py_ssize_t n, i
        cdef char* d
        if data is None:
            raise TypeError("write() takes a buffer of bytes, not None")
        n = data.shape[0]
        if n == 0:
            return 0
        d = self.reserve(<size_t>n)
        if data.strides[0] == 1:
            memcpy(d, &data[0], <size_t>n)
        else:
            for i in range(n):
                d[i] = <char>data[i]
        self.size += <size_t>n
        return 0

    cpdef bytes take(self):
        """Everything written since the last take; the buffer is empty afterwards."""
        cdef bytes taken = PyBytes_FromStringAndSize(self.data, <Py_ssize_t>self.size)
        self.clear()
        return taken

    def send_to(self, int fd):
        """Sends to a socket what it takes without waiting, and keeps the rest. Whether nothing is left.

        It is one step for Python: what a signal handler raises comes before it or after it, so what was sent is
        never sent again.
        """
        cdef long long sent
        if self.size:
            sent = send_at_once(fd, self.data, self.size)
            if sent == <long long>self.size:
                self.clear()
            elif sent > 0:
                self.size -= <size_t>sent
                memmove(self.data, self.data + sent, self.size)
        return self.size == 0

    cpdef clear(self):
        """Drops what was written, and the memory above CAPACITY_KEPT."""
        self.size = 0
        if self.capacity > CAPACITY_KEPT:
            self.data = <char*>array_shrink(self.data, &self.capacity, CAPACITY_KEPT, 1)


cdef class PublishBuffer(OutBuffer):
    """An OutBuffer that counts the messages that a client encodes into it."""
    cdef readonly uint64_t messages
    cdef readonly uint64_t message_bytes    # of headers and payloads

    cdef inline void note(self, size_t n) noexcept:
        self.messages += 1
        self.message_bytes += n


cdef class RunBuffer:
    """Variable-size items in one buffer, taken from the front: the batches of streams."""

    def __cinit__(self):
        self.buf = OutBuffer()

    cpdef clear(self):
        """Empties the run. Keeps its memory for the next one, unless the last ones used little of it: memory that is
        freed and allocated again costs a page fault per page."""
        if self.buf.capacity > CAPACITY_KEPT and self.buf.size < self.buf.capacity // 4:
            self.small_runs += 1
        else:
            self.small_runs = 0
        self.buf.size = 0
        if self.small_runs > SMALL_RUNS_MAX:
            self.buf = OutBuffer()
            self.small_runs = 0
        self.count = 0
        self.position = 0

    def rewind(self):
        """Returns to the first item."""
        self.position = 0

    @property
    def size(self):
        """Bytes in the run."""
        return self.buf.size

    def __len__(self):
        return self.count


# --- encoders

cdef enum:
    FRAME_SLACK = 64    # verb, blanks, two sizes of up to 20 digits, two CRLF


cdef inline char* put(char* d, const char* p, size_t n) noexcept nogil:
    memcpy(d, p, n)
    return d + n


cdef inline char* put_word(char* d, const char* p, size_t n) noexcept nogil:
    """Writes the word and a blank."""
    memcpy(d, p, n)
    d[n] = c' '
    return d + n + 1


cdef inline char* put_crlf(char* d) noexcept nogil:
    d[0] = c'\r'
    d[1] = c'\n'
    return d + 2


cdef inline char* put_sizes(char* d, size_t header_len, size_t body_len) noexcept nogil:
    if header_len:
        d += put_uint(d, header_len)
        d[0] = c' '
        d += 1
    d += put_uint(d, body_len)
    return put_crlf(d)


cdef inline char* put_verb(char* d, size_t header_len) noexcept nogil:
    return put(d, b"HMSG ", 5) if header_len else put(d, b"MSG ", 4)


cdef inline void put_rest(
    OutBuffer out, char* d, const char* reply, size_t reply_len, const char* body, size_t header_len, size_t body_len,
) noexcept:
    """Writes the part after the sid at d, which has room for it."""
    if reply_len:
        d = put_word(d, reply, reply_len)
    d = put_sizes(d, header_len, body_len)
    d = put(d, body, body_len)
    d = put_crlf(d)
    out.size = <size_t>(d - out.data)


cdef int put_msg(
    OutBuffer out, const char* subject, size_t subject_len, const char* sid, size_t sid_len,
    const char* reply, size_t reply_len, const char* body, size_t header_len, size_t body_len,
) except -1:
    cdef char* d = put_verb(out.reserve(subject_len + sid_len + reply_len + body_len + FRAME_SLACK), header_len)
    d = put_word(put_word(d, subject, subject_len), sid, sid_len)
    put_rest(out, d, reply, reply_len, body, header_len, body_len)
    return 0


cdef int put_msg_behind(
    OutBuffer out, const char* words, size_t words_len, const char* reply, size_t reply_len,
    const char* body, size_t header_len, size_t body_len,
) except -1:
    cdef char* d = put_verb(out.reserve(words_len + reply_len + body_len + FRAME_SLACK), header_len)
    put_rest(out, put(d, words, words_len), reply, reply_len, body, header_len, body_len)
    return 0


cdef class _View:
    """A contiguous buffer for the duration of one call."""
    cdef Py_buffer view
    cdef const char* p
    cdef size_t n
    cdef bint held

    def __cinit__(self, data):
        if data is None:
            self.p, self.n = NULL, 0
        elif PyBytes_CheckExact(data):
            self.p, self.n = PyBytes_AS_STRING(data), <size_t>PyBytes_GET_SIZE(data)
        else:
            PyObject_GetBuffer(data, &self.view, PyBUF_SIMPLE)
            self.held = True
            self.p, self.n = <const char*>self.view.buf, <size_t>self.view.len

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)


cdef inline const char* text_of(bytes data) noexcept:
    return NULL if data is None else PyBytes_AS_STRING(data)


cdef inline size_t size_of(bytes data) noexcept:
    return 0 if data is None else <size_t>PyBytes_GET_SIZE(data)


cdef int put_body(OutBuffer out, char* d, bytes header, const char* payload, size_t payload_len) except -1:
    """Writes sizes, header, payload and CRLF at d, which has room for them."""
    cdef size_t header_len = size_of(header)
    d = put_sizes(d, header_len, header_len + payload_len)
    if header_len:
        d = put(d, text_of(header), header_len)
    d = put(d, payload, payload_len)
    d = put_crlf(d)
    out.size = <size_t>(d - out.data)
    return 0


cdef int put_pub(OutBuffer out, bytes subject, bytes reply, bytes header, const char* p, size_t n) except -1:
    cdef char* d = out.reserve(size_of(subject) + size_of(reply) + size_of(header) + n + FRAME_SLACK)
    if size_of(header):
        d = put(d, b"HPUB ", 5)
    else:
        d = put(d, b"PUB ", 4)
    d = put_word(d, text_of(subject), size_of(subject))
    if size_of(reply):
        d = put_word(d, text_of(reply), size_of(reply))
    put_body(out, d, header, p, n)
    if type(out) is PublishBuffer:
        (<PublishBuffer>out).note(size_of(header) + n)
    return 0


def encode_pub(OutBuffer out not None, bytes subject not None, bytes reply, bytes header, payload not None):
    """PUB, or HPUB when there is a header block (its CRLF CRLF included). The caller checked the subjects."""
    cdef _View view
    if PyBytes_CheckExact(payload):
        put_pub(out, subject, reply, header, PyBytes_AS_STRING(payload), <size_t>PyBytes_GET_SIZE(payload))
    else:
        view = _View(payload)
        put_pub(out, subject, reply, header, view.p, view.n)


def encode_known_pub(OutBuffer out not None, dict subjects not None, subject, payload, Py_ssize_t payload_max):
    """PUB of bytes on a subject that is in `subjects` in its encoded form; returns the bytes in the buffer.

    -1, and nothing is written, for another subject, a payload that is not bytes, or one above payload_max. It is
    what most calls of a client's `publish` do: one call of a kernel instead of five steps in Python, 0.1 us less.
    """
    cdef bytes encoded
    if not PyBytes_CheckExact(payload) or PyBytes_GET_SIZE(payload) > payload_max:
        return -1
    encoded = subjects.get(subject)
    if encoded is None:
        return -1
    put_pub(out, encoded, None, None, PyBytes_AS_STRING(payload), <size_t>PyBytes_GET_SIZE(payload))
    return out.size


def encode_pubs(
    OutBuffer out not None, bytes subject not None, bytes reply, bytes header, list payloads not None,
    Py_ssize_t start, Py_ssize_t payload_max, size_t enough,
):
    """PUB or HPUB for payloads[start:], until the buffer has `enough` bytes; returns the index of the next.

    Stops before a payload that is not bytes, or that has more than payload_max bytes with the header.
    """
    cdef Py_ssize_t header_len = <Py_ssize_t>size_of(header)
    cdef Py_ssize_t at = start
    cdef object payload
    assert start >= 0
    while at < len(payloads) and out.size < enough:
        payload = payloads[at]
        if not PyBytes_CheckExact(payload) or PyBytes_GET_SIZE(payload) + header_len > payload_max:
            break
        put_pub(out, subject, reply, header, PyBytes_AS_STRING(payload), <size_t>PyBytes_GET_SIZE(payload))
        at += 1
    return at


def encode_msg(
    OutBuffer out not None, bytes subject not None, bytes sid not None, bytes reply, bytes header,
    payload not None,
):
    """MSG, or HMSG when there is a header block."""
    cdef _View view = _View(payload)
    cdef char* d = out.reserve(
        size_of(subject) + size_of(sid) + size_of(reply) + size_of(header) + view.n + FRAME_SLACK
    )
    if size_of(header):
        d = put(d, b"HMSG ", 5)
    else:
        d = put(d, b"MSG ", 4)
    d = put_word(d, text_of(subject), size_of(subject))
    d = put_word(d, text_of(sid), size_of(sid))
    if size_of(reply):
        d = put_word(d, text_of(reply), size_of(reply))
    put_body(out, d, header, view.p, view.n)


def encode_sub(OutBuffer out not None, bytes subject not None, bytes queue, bytes sid not None):
    """SUB subject [queue] sid."""
    cdef char* d = out.reserve(size_of(subject) + size_of(queue) + size_of(sid) + FRAME_SLACK)
    d = put(d, b"SUB ", 4)
    d = put_word(d, text_of(subject), size_of(subject))
    if size_of(queue):
        d = put_word(d, text_of(queue), size_of(queue))
    d = put(d, text_of(sid), size_of(sid))
    d = put_crlf(d)
    out.size = <size_t>(d - out.data)


def encode_unsub(OutBuffer out not None, bytes sid not None, uint64_t max_msgs=0):
    """UNSUB sid [max_msgs]; 0 = now."""
    cdef char* d = out.reserve(size_of(sid) + FRAME_SLACK)
    d = put(d, b"UNSUB ", 6)
    d = put(d, text_of(sid), size_of(sid))
    if max_msgs:
        d[0] = c' '
        d += 1 + put_uint(d + 1, max_msgs)
    d = put_crlf(d)
    out.size = <size_t>(d - out.data)


# --- batch frames

cdef enum:
    BATCH_SLACK = 96                # "PUB ", spaces, three numbers, line ends, "1.$FI"


# The common prefix of all frames of a run.
cdef struct BatchHead:
    const char* line                # up to the sequence (fast) or to the sizes (staged)
    size_t line_len
    const char* block               # staged: the header block up to the sequence; else NULL
    size_t block_len


cdef inline void put_payload(OutBuffer out, const char* start, char* d, const char* payload, size_t n) noexcept:
    """Writes the end of the frame that begins at `start`; its payload goes to d."""
    if n:
        memcpy(d, payload, n)
        d += n
    memcpy(d, b"\r\n", 2)
    out.size += <size_t>(d + 2 - start)


cdef int put_staged(OutBuffer out, const BatchHead* head, uint64_t seq, const char* payload, size_t n) except -1:
    cdef char* d = out.reserve(head.line_len + head.block_len + n + BATCH_SLACK)
    cdef char* start = d
    cdef char digits[20]
    cdef size_t digits_len = put_uint(digits, seq)
    cdef size_t header_len = head.block_len + digits_len + 4
    memcpy(d, head.line, head.line_len)
    d += head.line_len
    d += put_uint(d, header_len)
    d[0] = c" "
    d += 1
    d += put_uint(d, header_len + n)
    memcpy(d, b"\r\n", 2)
    d += 2
    memcpy(d, head.block, head.block_len)
    d += head.block_len
    memcpy(d, digits, digits_len)
    d += digits_len
    memcpy(d, b"\r\n\r\n", 4)
    d += 4
    put_payload(out, start, d, payload, n)
    return 0


cdef int put_append(OutBuffer out, const BatchHead* head, uint64_t seq, const char* payload, size_t n) except -1:
    if type(out) is PublishBuffer:
        (<PublishBuffer>out).note(n)
    if head.block != NULL:
        return put_staged(out, head, seq, payload, n)
    cdef char* d = out.reserve(head.line_len + n + BATCH_SLACK)
    cdef char* start = d
    memcpy(d, head.line, head.line_len)
    d += head.line_len
    d += put_uint(d, seq)
    memcpy(d, b".1.$FI ", 7)
    d += 7
    d += put_uint(d, n)
    memcpy(d, b"\r\n", 2)
    d += 2
    put_payload(out, start, d, payload, n)
    return 0


cdef bytes line_of(bytes subject, bytes prefix, bint staged):
    return b"HPUB " + subject + b" " if staged else b"PUB " + subject + b" " + prefix


cdef BatchHead batch_head_of(bytes line, bytes prefix, bint staged) noexcept:
    cdef BatchHead head
    head.line = PyBytes_AS_STRING(line)
    head.line_len = <size_t>PyBytes_GET_SIZE(line)
    head.block = PyBytes_AS_STRING(prefix) if staged else NULL
    head.block_len = <size_t>PyBytes_GET_SIZE(prefix) if staged else 0
    return head


def encode_appends(OutBuffer out not None, bytes subject not None, bytes prefix not None, uint64_t seq,
                   list payloads not None, size_t start, size_t count, size_t max_payload, bint staged=False):
    """Writes `count` payloads from index `start` on as messages with batch sequences from `seq` on; stops before a
    payload larger than max_payload, or when the buffer has a mebibyte. Returns how many it wrote."""
    cdef bytes line = line_of(subject, prefix, staged)
    cdef BatchHead head = batch_head_of(line, prefix, staged)
    cdef size_t i, n, end = start + count
    cdef object payload
    if end > <size_t>len(payloads):
        raise IndexError(f"payloads {start}..{end} of {len(payloads)}")
    for i in range(start, end):
        payload = payloads[i]
        if not PyBytes_CheckExact(payload):
            raise TypeError(f"payload {i} is {type(payload).__name__}, not bytes")
        n = <size_t>PyBytes_GET_SIZE(payload)
        if n > max_payload or out.size > (1 << 20):
            return i - start
        put_append(out, &head, seq + i - start, PyBytes_AS_STRING(payload), n)
    return count


def encode_column(OutBuffer out not None, bytes subject not None, bytes prefix not None, uint64_t seq,
                  const unsigned char[:] offsets not None, bint wide, const unsigned char[:] data, size_t start,
                  size_t count, size_t max_payload, bint staged=False):
    """The same for a column: offsets as 32-bit (wide: 64-bit) numbers, data None when it has no bytes."""
    cdef bytes line = line_of(subject, prefix, staged)
    cdef BatchHead head = batch_head_of(line, prefix, staged)
    cdef size_t i, width = 8 if wide else 4
    cdef size_t data_size = <size_t>data.shape[0] if data is not None else 0
    cdef int64_t first, last
    cdef const unsigned char* at
    cdef const char* payload
    if (start + count + 1) * width > <size_t>offsets.shape[0]:
        raise IndexError(f"rows {start}..{start + count} of a column of {offsets.shape[0] // width - 1}")
    for i in range(count):
        at = &offsets[0] + (start + i) * width
        first = (<const int64_t*>at)[0] if wide else (<const int32_t*>at)[0]
        last = (<const int64_t*>at)[1] if wide else (<const int32_t*>at)[1]
        if first < 0 or last < first or <size_t>last > data_size:
            raise ValueError(f"row {start + i} lies at {first}..{last} of {data_size} bytes")
        if <size_t>(last - first) > max_payload or out.size > (1 << 20):
            return i
        payload = NULL
        if last > first:
            payload = <const char*>&data[0] + first
        put_append(out, &head, seq + i, payload, <size_t>(last - first))
    return count
