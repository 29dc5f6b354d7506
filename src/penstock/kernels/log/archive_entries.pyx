"""The messages of a stream as entries of a stream archive, and back into a log.

    entry = name length | time (zigzag) | sequence | header length | payload length | name | header | payload
    (numbers are LEB128)

The name is the subject. The entry whose fields are all empty ends the archive; entries of sequence 0 before
the messages are read elsewhere (protocol/snapshot_archive.py).

Invariants: an entry is taken as a whole or not at all; what is appended could have been published: a
literal subject, a header block that is one, sequences that go up and stay within what a log can hold.
"""
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcmp, memcpy

from penstock.kernels.wire.buffers cimport OutBuffer
from penstock.kernels.routing.grammar cimport is_literal_subject
from penstock.kernels.log.records cimport RECORD_SUBJECT_MAX, SEQ_BITS, Record
from penstock.kernels.wire.sinks cimport Message
from penstock.kernels.log.stream_log cimport StreamLog

cdef enum:
    VARINT_MAX = 10
    FIELDS = 5

# What unpack_messages() stopped at.
ENTRY_CUT = 0                       # the next entry is not there as a whole
ENTRY_MORE = 1                      # it took as many as it should
ENTRY_LAST = 2                      # the entry that ends the archive

# Where take_fields() puts which number.
cdef enum:
    NAME = 0
    TIME = 1
    SEQ = 2
    HEADER = 3
    PAYLOAD = 4

cdef uint64_t SEQ_END = <uint64_t>1 << SEQ_BITS


cdef inline size_t put_varint(uint8_t* d, uint64_t v) noexcept nogil:
    cdef size_t n = 0
    while v >= 0x80:
        d[n] = <uint8_t>(v & 0x7F) | 0x80
        v >>= 7
        n += 1
    d[n] = <uint8_t>v
    return n + 1


cdef Py_ssize_t take_varint(const uint8_t* p, size_t n, uint64_t* v) noexcept nogil:
    """Bytes read; 0 when more are needed, -1 when it is over 64 bits."""
    cdef size_t i = 0
    v[0] = 0
    while i < n:
        if i == VARINT_MAX - 1 and p[i] > 1:
            return -1
        v[0] |= <uint64_t>(p[i] & 0x7F) << <uint64_t>(7 * i)
        i += 1
        if p[i - 1] < 0x80:
            return <Py_ssize_t>i
    return 0


def pack_messages(StreamLog log not None, uint64_t seq, uint64_t last_seq, size_t enough):
    """Entries of the live messages seq..last_seq; see the .pyi."""
    cdef OutBuffer out = OutBuffer()
    cdef Record r
    cdef uint8_t* d
    cdef uint8_t* start
    cdef uint64_t fields[FIELDS]
    cdef size_t i
    while out.size < enough:
        seq = log.next_matching(seq, NULL, 0)
        if seq == 0 or seq > last_seq:
            return out.take(), 0
        if log.read(seq, &r) == 0:
            seq += 1                    # it was lost just now, and counts as removed
            continue
        fields[NAME] = r.subject_len
        fields[TIME] = (<uint64_t>r.ts << 1) ^ <uint64_t>(r.ts >> 63)
        fields[SEQ] = r.seq
        fields[HEADER] = r.header_len
        fields[PAYLOAD] = r.body_len - r.header_len
        start = d = <uint8_t*>out.reserve(FIELDS * VARINT_MAX + r.subject_len + r.body_len)
        for i in range(FIELDS):
            d += put_varint(d, fields[i])
        memcpy(d, r.subject, r.subject_len)
        memcpy(d + r.subject_len, r.body, r.body_len)
        out.size += <size_t>(d - start) + r.subject_len + r.body_len
        seq += 1
    return out.take(), seq


cdef Py_ssize_t take_fields(const uint8_t* p, size_t n, uint64_t* fields) except -1:
    """The numbers an entry begins with; returns their bytes, 0 when more are needed."""
    cdef size_t at = 0, i
    cdef Py_ssize_t step
    for i in range(FIELDS):
        step = take_varint(p + at, n - at, &fields[i])
        if step < 0:
            raise ValueError("a number of an entry is over 64 bits")
        if step == 0:
            return 0
        at += <size_t>step
    return <Py_ssize_t>at


cdef int check_fields(const uint64_t* fields, uint64_t last_seq, size_t size_max) except -1:
    if fields[SEQ] == 0:
        raise ValueError("expected message sequence")
    if fields[SEQ] <= last_seq:
        raise ValueError(f"message sequence {fields[SEQ]} out of order")
    if fields[SEQ] >= SEQ_END - 1:
        raise ValueError(f"sequences can not go on from {fields[SEQ]}")
    if fields[NAME] == 0 or fields[NAME] > <uint64_t>RECORD_SUBJECT_MAX:
        raise ValueError(f"message sequence {fields[SEQ]}: a subject of {fields[NAME]} bytes")
    if fields[HEADER] > size_max or fields[PAYLOAD] > size_max - fields[HEADER]:
        raise ValueError(f"message sequence {fields[SEQ]} exceeds maximum message size")
    return 0


cdef int check_message(const Message* m, uint64_t seq) except -1:
    if not is_literal_subject(m.subject, m.subject_len):
        raise ValueError(f"message sequence {seq}: its subject is none")
    if m.header_len and (
        m.header_len < 12 or memcmp(m.body, b"NATS/1.0", 8) != 0
        or memcmp(m.body + m.header_len - 4, b"\r\n\r\n", 4) != 0
    ):
        raise ValueError(f"message sequence {seq}: its header is none")
    return 0


def unpack_messages(StreamLog log not None, const uint8_t[::1] data not None, size_t at, size_t size_max, size_t most):
    """Appends the messages of the entries in data[at:]; see the .pyi."""
    cdef size_t n = <size_t>data.shape[0]
    cdef const uint8_t* p = &data[0] if n else NULL
    cdef uint64_t fields[FIELDS]
    cdef Py_ssize_t head
    cdef int64_t ts
    cdef Message m
    cdef size_t taken = 0
    m.reply = NULL
    m.reply_len = 0
    if at > n:
        raise ValueError(f"{at} is beyond the {n} bytes there are")
    while taken < most:
        head = take_fields(p + at, n - at, fields)
        if head == 0:
            return at, taken, ENTRY_CUT
        if (fields[NAME] | fields[TIME] | fields[SEQ] | fields[HEADER] | fields[PAYLOAD]) == 0:
            return at + <size_t>head, taken, ENTRY_LAST
        check_fields(fields, log.last_seq, size_max)
        if fields[NAME] + fields[HEADER] + fields[PAYLOAD] > n - at - <size_t>head:
            return at, taken, ENTRY_CUT
        m.subject = <const char*>p + at + head
        m.subject_len = fields[NAME]
        m.body = m.subject + m.subject_len
        m.header_len = fields[HEADER]
        m.body_len = fields[HEADER] + fields[PAYLOAD]
        check_message(&m, fields[SEQ])
        # Times never go backwards within a stream.
        ts = <int64_t>(fields[TIME] >> <uint64_t>1) ^ -<int64_t>(fields[TIME] & <uint64_t>1)
        if ts < log.last_ts:
            ts = log.last_ts
        if fields[SEQ] > log.last_seq + 1:
            log.skip_to(fields[SEQ] - 1, ts)
        log.append_message(&m, ts)
        at += <size_t>head + m.subject_len + m.body_len
        taken += 1
    return at, taken, ENTRY_MORE
