"""Copies messages from one stream's log to another stream, for mirrors and sources.

A batch is gathered from the origin's log, after its messages were written, and applied by the target like a
batch of publishes. A message is copied twice, block to batch to block, without a Python object. The
target depends only on the batch, so that applying it can be replayed.

gather() edits header blocks: it removes expectations and batch headers (for sources also the lines that name an
earlier origin), and for sources adds the line that names the origin. Applying stops before messages
whose headers change behaviour (COPY_IS_SPECIAL), which are left to Python, and before those that exceed a limit.

Invariants: `position` moves past a message only after it was stored, was a duplicate, or was passed to Python;
`reached` is the origin's sequence of the last of those. A mirror's sequences are the origin's, and ascend.
Rejected: the consumer protocol inside one server (each message as text with an ack subject to parse);
copying records as they are (their sequence is part of the hash, and sources change header and sequence).
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memchr, memcmp, memcpy, memset

from penstock.kernels.base.memory cimport array_new
from penstock.kernels.consumer.ack_state cimport AckState
from penstock.kernels.wire.output cimport RunBuffer, put_uint
from penstock.kernels.wire.dispatch cimport SubjectMapper
from penstock.kernels.ingest.storing cimport PlainLimits, Republisher, enforce
from penstock.kernels.ingest.publish_headers cimport ID_NAME_SIZE, MessageIds, trim
from penstock.kernels.log.records cimport Record, cost_of, record_size
from penstock.kernels.wire.sinks cimport Message, Sink, SinkSubscription, is_closed
from penstock.kernels.log.stream_log cimport StreamLog

from penstock.faults import note

cdef enum:
    SEQ_END = 0x1000000000000       # 2**48: sequences of records are lower
    NUMBER_MAX = 20
    STATUS_LINE_SIZE = 10           # "NATS/1.0\r\n"
    COPY_FLAGS = 7                  # all of COPY_...


cdef inline bint begins(const char* line, size_t n, const char* name, size_t size) noexcept nogil:
    return n >= size and memcmp(line, name, size) == 0


cdef inline bint is_dropped(const char* line, size_t n, bint sourced) noexcept nogil:
    """Is it a header line that applies only to the origin?"""
    return begins(line, n, b"Nats-Expected-", 14) or begins(line, n, b"Nats-Batch-", 11) or (
        sourced and begins(line, n, b"Nats-Stream-Source:", 19)
    )


cdef inline bint is_special(const char* line, size_t n) noexcept nogil:
    """Is it a header line that changes how the message is stored?"""
    return begins(line, n, b"Nats-TTL:", 9) or begins(line, n, b"Nats-Rollup:", 12) or begins(
        line, n, b"Nats-Incr:", 10
    ) or begins(line, n, b"Nats-Schedule-Next:", 19)


cdef class CopyBatch(RunBuffer):
    def __cinit__(self, line=None):
        self.line = self.line_middle = self.line_end = b""
        if line is not None:
            self.line, self.line_middle, self.line_end = line

    cdef int put(
        self, uint64_t seq, int64_t ts, const Message* m, const char* origin_subject, size_t origin_subject_len
    ) except -1:
        cdef size_t line_max = 0
        cdef size_t size, header_len
        cdef char* d
        cdef CopyHead* head
        if PyBytes_GET_SIZE(self.line):
            line_max = (
                PyBytes_GET_SIZE(self.line) + NUMBER_MAX + PyBytes_GET_SIZE(self.line_middle)
                + origin_subject_len + PyBytes_GET_SIZE(self.line_end) + STATUS_LINE_SIZE + 4
            )
        d = self.buf.reserve(sizeof(CopyHead) + m.subject_len + line_max + m.body_len + 8)
        head = <CopyHead*>d
        head.seq = seq
        head.ts = ts
        head.flags = head.id_start = head.id_len = head.unused = 0
        head.subject_len = <uint32_t>m.subject_len
        d += sizeof(CopyHead)
        memcpy(d, m.subject, m.subject_len)
        d += m.subject_len
        header_len = self._put_header(d, m, seq, origin_subject, origin_subject_len, head)
        d += header_len
        memcpy(d, m.body + m.header_len, m.body_len - m.header_len)
        head.header_len = <uint32_t>header_len
        head.body_len = <uint32_t>(header_len + m.body_len - m.header_len)
        size = sizeof(CopyHead) + m.subject_len + head.body_len
        memset(<char*>head + size, 0, (8 - size) & 7)
        size = (size + 7) & ~<size_t>7
        head.size = <uint32_t>size
        self.buf.size += size
        self.count += 1
        return 0

    cdef size_t _put_header(
        self, char* d, const Message* m, uint64_t seq, const char* origin_subject, size_t origin_subject_len,
        CopyHead* head
    ) except? 0xFFFFFFFF:
        """Writes the header block of the copy and sets the flags of `head`; returns its size."""
        cdef bint sourced = PyBytes_GET_SIZE(self.line) > 0
        cdef size_t n = 0, size = 0
        cdef const char* line = m.body
        cdef const char* end = m.body + m.header_len
        cdef const char* stop
        cdef const char* value
        while line < end:
            stop = <const char*>memchr(line, c"\n", end - line)
            stop = end if stop == NULL else stop + 1
            if stop - line >= 2 and (stop - 1)[0] == c"\n" and (stop - 2)[0] != c"\r":
                head.flags |= COPY_IS_SPECIAL   # a line without CRLF: left to Python
            if begins(line, stop - line, b"Nats-", 5) and line > m.body:
                if is_dropped(line, stop - line, sourced):
                    line = stop
                    continue
                if is_special(line, stop - line):
                    head.flags |= COPY_IS_SPECIAL
                elif begins(line, stop - line, b"Nats-Msg-Id:", ID_NAME_SIZE) and not head.flags & COPY_HAS_ID:
                    value = trim(line + ID_NAME_SIZE, stop - 2 if stop - line > ID_NAME_SIZE + 2 else stop, &size)
                    if size:
                        head.flags |= COPY_HAS_ID
                        head.id_start = <uint32_t>(n + (value - line))
                        head.id_len = <uint32_t>size
            memcpy(d + n, line, stop - line)
            n += stop - line
            line = stop
        if n == STATUS_LINE_SIZE + 2 and m.header_len > n:
            n = 0                               # no line is left
        if not sourced:
            return n
        if n > 2:
            n -= 2
        else:
            memcpy(d, b"NATS/1.0\r\n", STATUS_LINE_SIZE)
            n = STATUS_LINE_SIZE
        size = <size_t>PyBytes_GET_SIZE(self.line)
        memcpy(d + n, PyBytes_AS_STRING(self.line), size)
        n += size
        n += put_uint(d + n, seq)
        size = <size_t>PyBytes_GET_SIZE(self.line_middle)
        memcpy(d + n, PyBytes_AS_STRING(self.line_middle), size)
        n += size
        memcpy(d + n, origin_subject, origin_subject_len)
        n += origin_subject_len
        size = <size_t>PyBytes_GET_SIZE(self.line_end)
        memcpy(d + n, PyBytes_AS_STRING(self.line_end), size)
        n += size
        memcpy(d + n, b"\r\n\r\n", 4)
        return n + 4

    def append(self, uint64_t seq, int64_t ts, bytes subject not None, bytes header not None,
               bytes payload not None, bytes origin_subject not None=b""):
        """Adds one message as if it had been gathered."""
        cdef bytes body = header + payload
        cdef Message m
        m.subject = PyBytes_AS_STRING(subject)
        m.subject_len = <size_t>PyBytes_GET_SIZE(subject)
        m.reply = NULL
        m.reply_len = 0
        m.body = PyBytes_AS_STRING(body)
        m.header_len = <size_t>PyBytes_GET_SIZE(header)
        m.body_len = <size_t>PyBytes_GET_SIZE(body)
        if (
            m.subject_len == 0 or record_size(m.subject_len, m.header_len, m.body_len) == 0
            or seq == 0 or seq >= <uint64_t>SEQ_END
        ):
            raise ValueError(
                f"no record holds sequence {seq}, a subject of {len(subject)} and a body of {len(body)} bytes"
            )
        if not origin_subject:
            origin_subject = subject
        self.put(seq, ts, &m, PyBytes_AS_STRING(origin_subject), <size_t>PyBytes_GET_SIZE(origin_subject))

    def place(self, uint64_t seq):
        cdef CopyHead* head = <CopyHead*>self.buf.reserve(sizeof(CopyHead))
        memset(head, 0, sizeof(CopyHead))
        head.seq = seq
        head.flags = COPY_IS_PLACE
        head.size = sizeof(CopyHead)
        self.buf.size += sizeof(CopyHead)
        self.count += 1

    def gather(self, StreamLog origin not None, uint64_t from_seq, list filters not None, list mappers not None,
               size_t enough):
        cdef size_t count = <size_t>len(filters)
        cdef uint64_t* upcoming
        if count == 0:
            return self._gather(origin, from_seq, filters, mappers, enough, NULL)
        upcoming = <uint64_t*>array_new(count, sizeof(uint64_t), b"filters")
        try:
            return self._gather(origin, from_seq, filters, mappers, enough, upcoming)
        finally:
            free(upcoming)

    cdef uint64_t _gather(self, StreamLog origin, uint64_t from_seq, list filters, list mappers, size_t enough,
                          uint64_t* upcoming) except? 0:
        """upcoming: room for the next sequence of each filter."""
        cdef size_t count = <size_t>len(filters), i
        cdef uint64_t seq, at = from_seq
        cdef bytes one
        for i in range(count):
            one = <bytes>filters[i]
            upcoming[i] = origin.next_matching(from_seq, PyBytes_AS_STRING(one), <size_t>PyBytes_GET_SIZE(one))
        while self.buf.size < enough:
            seq = 0
            if count == 0:
                seq = origin.next_matching(at, NULL, 0)
            for i in range(count):
                if upcoming[i] and (seq == 0 or upcoming[i] < seq):
                    seq = upcoming[i]
            if seq == 0:
                return origin.last_seq if origin.last_seq >= from_seq else from_seq - 1
            self._copy(origin, seq, mappers)
            at = seq + 1
            for i in range(count):
                if upcoming[i] == seq:
                    one = <bytes>filters[i]
                    upcoming[i] = origin.next_matching(at, PyBytes_AS_STRING(one), <size_t>PyBytes_GET_SIZE(one))
        return at - 1

    cdef int _copy(self, StreamLog origin, uint64_t seq, list mappers) except -1:
        cdef Record r
        cdef Message m
        cdef bytes subject
        cdef SubjectMapper mapper
        if not origin.read(seq, &r):
            return 0                            # the record is damaged on disk
        m.subject = r.subject
        m.subject_len = r.subject_len
        m.reply = NULL
        m.reply_len = 0
        m.body = r.body
        m.header_len = r.header_len
        m.body_len = r.body_len
        if mappers:
            subject = PyBytes_FromStringAndSize(r.subject, <Py_ssize_t>r.subject_len)
            for mapper in mappers:
                subject = mapper.map(subject)
            m.subject = PyBytes_AS_STRING(subject)
            m.subject_len = <size_t>PyBytes_GET_SIZE(subject)
        return self.put(seq, r.ts, &m, r.subject, r.subject_len)

    def take_one(self):
        """(seq, ts, subject, header, payload) at `position`, which moves past it; None at the end."""
        cdef const CopyHead* head
        cdef const char* p
        if self.position >= self.buf.size:
            return None
        head = <const CopyHead*>(self.buf.data + self.position)
        p = <const char*>head + sizeof(CopyHead)
        subject = PyBytes_FromStringAndSize(p, head.subject_len)
        p += head.subject_len
        header = PyBytes_FromStringAndSize(p, head.header_len)
        p += head.header_len
        payload = PyBytes_FromStringAndSize(p, head.body_len - head.header_len)
        self.position += head.size
        self.reached = head.seq
        return head.seq, head.ts, subject, header, payload

    def encode(self, bytes head not None=b""):
        """`head`, and the messages from `position` on, as decode() reads them."""
        cdef size_t at = self.position, size = <size_t>PyBytes_GET_SIZE(head), n
        cdef const CopyHead* one
        cdef CopyEntry entry
        cdef bytes encoded
        cdef char* d
        while at < self.buf.size:
            one = <const CopyHead*>(self.buf.data + at)
            size += sizeof(CopyEntry) + one.subject_len + one.body_len
            at += one.size
        encoded = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>size)
        d = PyBytes_AS_STRING(encoded)
        memcpy(d, PyBytes_AS_STRING(head), <size_t>PyBytes_GET_SIZE(head))
        d += PyBytes_GET_SIZE(head)
        at = self.position
        while at < self.buf.size:
            one = <const CopyHead*>(self.buf.data + at)
            entry.seq = one.seq
            entry.ts = one.ts
            entry.flags = one.flags
            entry.subject_len = one.subject_len
            entry.header_len = one.header_len
            entry.body_len = one.body_len
            entry.id_start = one.id_start
            entry.id_len = one.id_len
            n = <size_t>one.subject_len + one.body_len
            memcpy(d, &entry, sizeof(CopyEntry))
            memcpy(d + sizeof(CopyEntry), <const char*>one + sizeof(CopyHead), n)
            d += sizeof(CopyEntry) + n
            at += one.size
        assert d == PyBytes_AS_STRING(encoded) + size
        return encoded

    @staticmethod
    def decode(bytes data not None, size_t start=0, size_t end=<size_t>-1):
        """The batch that was encoded as the bytes of `data` from offset `start` to `end`. Raises ValueError when it is
        malformed."""
        cdef CopyBatch batch = CopyBatch()
        cdef const char* p = PyBytes_AS_STRING(data)
        cdef size_t at = start, n
        cdef CopyEntry entry
        end = min(end, <size_t>PyBytes_GET_SIZE(data))
        if at < end:
            batch.buf.reserve(end - at + (end - at) // 8)   # the heads are larger in memory
        while at < end:
            if end - at < sizeof(CopyEntry):
                raise ValueError(f"the head of a copy at {at} ends at {end}")
            memcpy(&entry, p + at, sizeof(CopyEntry))
            at += sizeof(CopyEntry)
            n = <size_t>entry.subject_len + entry.body_len
            if n > end - at or not is_whole(&entry):
                raise ValueError(f"a copy at {at} of {n} bytes, flags {entry.flags}, does not fit {end - at} bytes")
            batch._put_entry(&entry, p + at)
            at += n
        return batch

    cdef int _put_entry(self, const CopyEntry* entry, const char* text) except -1:
        cdef size_t size = sizeof(CopyHead) + entry.subject_len + entry.body_len
        cdef size_t padded = (size + 7) & ~<size_t>7
        cdef CopyHead* head = <CopyHead*>self.buf.reserve(padded)
        memset(head, 0, sizeof(CopyHead))
        head.seq = entry.seq
        head.ts = entry.ts
        head.size = <uint32_t>padded
        head.flags = entry.flags
        head.subject_len = entry.subject_len
        head.header_len = entry.header_len
        head.body_len = entry.body_len
        head.id_start = entry.id_start
        head.id_len = entry.id_len
        memcpy(<char*>head + sizeof(CopyHead), text, size - sizeof(CopyHead))
        memset(<char*>head + size, 0, padded - size)
        self.buf.size += padded
        self.count += 1
        return 0


cdef bint is_whole(const CopyEntry* entry) noexcept:
    """Does a record hold it, and do its offsets stay inside? What the kernels trust is checked here."""
    if entry.seq == 0 or entry.seq >= <uint64_t>SEQ_END or entry.ts < 0 or entry.flags & ~<uint32_t>COPY_FLAGS:
        return False
    if entry.flags & COPY_IS_PLACE:
        return entry.flags == COPY_IS_PLACE and entry.subject_len == 0 and entry.body_len == 0
    if entry.subject_len == 0 or entry.header_len > entry.body_len:
        return False
    if not record_size(entry.subject_len, entry.header_len, entry.body_len):
        return False
    if entry.flags & COPY_HAS_ID:
        return entry.id_len != 0 and <uint64_t>entry.id_start + entry.id_len <= entry.header_len
    return entry.id_start == 0 and entry.id_len == 0


def settle_upto(AckState state not None, StreamLog log not None, list filters not None, uint64_t upto_seq, int64_t ts):
    """Marks all matching messages as delivered; see the .pyi."""
    cdef bytes one
    cdef uint64_t seq, found, at = state.delivered_stream + 1
    cdef size_t count = 0
    while True:
        seq = 0
        if not filters:
            seq = log.next_matching(at, NULL, 0)
        for one in filters:
            found = log.next_matching(at, PyBytes_AS_STRING(one), <size_t>PyBytes_GET_SIZE(one))
            if found and (seq == 0 or found < seq):
                seq = found
        if seq == 0 or seq > upto_seq:
            return count
        state.deliver(seq, ts)
        count += 1
        at = seq + 1


cdef class DeliverySink(Sink):
    """A Python callable that receives a consumer's deliveries, also in another account: callback(subject, reply,
    header, payload) with the subject that a message was stored with."""

    def __cinit__(self, callback not None):
        self.callback = callback
        self.shows_stored = True

    cdef int deliver(self, SinkSubscription sub, const Message* m, Sink origin) except -1:
        if is_closed(sub):
            return 0
        try:
            self.callback(
                PyBytes_FromStringAndSize(m.subject, <Py_ssize_t>m.subject_len),
                PyBytes_FromStringAndSize(m.reply, <Py_ssize_t>m.reply_len) if m.reply_len else b"",
                PyBytes_FromStringAndSize(m.body, <Py_ssize_t>m.header_len),
                PyBytes_FromStringAndSize(m.body + m.header_len, <Py_ssize_t>(m.body_len - m.header_len)),
            )
        except Exception as error:
            note("delivery of an external origin", error)
        return 1


cdef const CopyHead* next_of(CopyBatch batch, Message* m) noexcept:
    """The message at the batch's position; NULL at its end."""
    cdef const CopyHead* head
    if batch.position >= batch.buf.size:
        return NULL
    head = <const CopyHead*>(batch.buf.data + batch.position)
    m.subject = <const char*>head + sizeof(CopyHead)
    m.subject_len = head.subject_len
    m.reply = NULL
    m.reply_len = 0
    m.body = m.subject + head.subject_len
    m.header_len = head.header_len
    m.body_len = head.body_len
    return head


cdef inline void pass_by(CopyBatch batch, const CopyHead* head) noexcept:
    batch.position += head.size
    batch.reached = head.seq


cdef bint has_room(StreamLog log, PlainLimits limits, const Message* m) noexcept:
    """Is there certainly room for it under limits that refuse? Otherwise Python checks exactly."""
    if limits.msg_size_max >= 0 and <int64_t>m.body_len > limits.msg_size_max:
        return False
    if not limits.discard_new:
        return True
    if limits.msgs_max > 0 and log.messages >= <uint64_t>limits.msgs_max:
        return False
    return limits.bytes_max <= 0 or (
        log.bytes + cost_of(&log.cost, m.subject_len, m.header_len, m.body_len) <= <uint64_t>limits.bytes_max
    )


cdef uint64_t store(
    const CopyHead* head, const Message* m, StreamLog log, PlainLimits limits, MessageIds ids, int64_t ts,
    Republisher republisher,
) except 0:
    """Stores one message at the log's end, enforces the limits, and returns its sequence."""
    cdef uint64_t seq
    cdef const char* id = m.body + head.id_start
    if limits.interest_state is not None and not limits.interest_state.is_wanted(m.subject, m.subject_len):
        seq = log.skip_message(ts)
    else:
        if republisher is not None:
            republisher.before(m, log)
        seq = log.append_message(m, ts)
        if republisher is not None:
            republisher.after(m, seq, ts)
        enforce(log, limits, m)
    ids.set_last(id, head.id_len)
    if head.flags & COPY_HAS_ID:
        ids.remember(id, head.id_len, ids.hash_of(id, head.id_len), seq, ts)
    return seq


cpdef size_t apply_mirrored(
    CopyBatch batch, StreamLog log, PlainLimits limits, MessageIds ids, Republisher republisher=None
) except? 0:
    """Stores messages from `batch.position` on under their own sequences; see the .pyi."""
    cdef size_t taken = 0
    cdef const CopyHead* head
    cdef Message m
    cdef int64_t ts
    while True:
        head = next_of(batch, &m)
        if head == NULL:
            return taken
        if head.flags & COPY_IS_PLACE:
            log.skip_to(head.seq, log.last_ts)
        elif head.seq > log.last_seq:
            # Times never go backwards within a stream: seeking by time relies on it.
            ts = head.ts if head.ts > log.last_ts else log.last_ts
            if head.seq > log.last_seq + 1:
                log.skip_to(head.seq - 1, ts)
            if head.flags & COPY_IS_SPECIAL or limits.per_message or not has_room(log, limits, &m):
                return taken
            store(head, &m, log, limits, ids, ts, republisher)
        pass_by(batch, head)
        taken += 1


cpdef size_t apply_sourced(
    CopyBatch batch, StreamLog log, PlainLimits limits, MessageIds ids, int64_t now, int64_t ts,
    Republisher republisher=None,
) except? 0:
    """Stores messages from `batch.position` on at the end of the log; see the .pyi."""
    cdef size_t taken = 0
    cdef const CopyHead* head
    cdef Message m
    cdef const char* id
    while True:
        head = next_of(batch, &m)
        if head == NULL:
            return taken
        if not head.flags & COPY_IS_PLACE:
            if head.flags & COPY_IS_SPECIAL or limits.per_message:
                return taken
            id = m.body + head.id_start
            if not head.flags & COPY_HAS_ID or not ids.seq_of(id, head.id_len, ids.hash_of(id, head.id_len), now):
                if not has_room(log, limits, &m):
                    return taken
                store(head, &m, log, limits, ids, ts, republisher)
        pass_by(batch, head)
        taken += 1
