"""Stream archives: the entries of messages, and the S2 blocks and checksums around them.

Entries: packs the messages of a log into a stream archive, and unpacks them:

    entry = name length | time (zigzag) | sequence | header length | payload length | name | header | payload
    (numbers are LEB128)

The name is the subject. The entry whose fields are all empty ends the archive; entries of sequence 0 before
the messages are read elsewhere (protocol/snapshot_archive.py).

Invariants: an entry is processed completely or not at all; unpacked messages are valid publishes: a
literal subject, a valid header block, sequences that ascend and are in the range of a log.

S2: blocks of the S2 format (an extension of Snappy) and the checksum of its frames.

The output is plain Snappy, which every reader of either accepts. The input may also have S2's repeats: a
copy with offset 0 uses the offset of the previous copy, and its length may take up to three more bytes.

Invariants: decode_block() writes only into the announced number of bytes and reads only those already written; for any
input it returns that many bytes or raises ValueError.
Rejected: writing repeats and long offsets (a few percent smaller, twice the code).
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from libc.string cimport memcmp, memcpy, memset

from penstock.kernels.log.records cimport RECORD_SUBJECT_MAX, SEQ_BITS, Record
from penstock.kernels.log.stream_log cimport StreamLog
from penstock.kernels.routing.grammar cimport is_literal_subject
from penstock.kernels.wire.output cimport OutBuffer
from penstock.kernels.wire.sinks cimport Message


# --- archive entries

cdef enum:
    VARINT_MAX = 10
    FIELDS = 5

# Why unpack_messages() stopped.
ENTRY_CUT = 0                       # the next entry is incomplete
ENTRY_MORE = 1                      # it processed the requested number
ENTRY_LAST = 2                      # the entry that ends the archive

# Indexes of the numbers in the result of take_fields().
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
    """Returns the bytes read; 0 when more are needed, -1 when the number has more than 64 bits."""
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
    """Packs the live messages seq..last_seq; see the .pyi."""
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
            seq += 1                    # the read found it damaged; it counts as removed
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
    """Reads the numbers at the start of an entry; returns their size, 0 when more bytes are needed."""
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
        raise ValueError(f"message sequence {seq}: its subject is invalid")
    if m.header_len and (
        m.header_len < 12 or memcmp(m.body, b"NATS/1.0", 8) != 0
        or memcmp(m.body + m.header_len - 4, b"\r\n\r\n", 4) != 0
    ):
        raise ValueError(f"message sequence {seq}: its header is invalid")
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


# --- s2

cdef enum:
    FRAGMENT_MAX = 65536            # uncompressed bytes of a block
    TABLE_BITS = 14
    TAG_LITERAL = 0
    TAG_COPY1 = 1
    TAG_COPY2 = 2
    MATCH_MIN = 4
    COPY_MAX = 64                   # bytes of one copy tag
    LITERAL_SHORT = 60              # longer literals have separate length bytes
    SIZE_VARINT_MAX = 5
    CRC_POLYNOMIAL = 0x82F63B78     # Castagnoli, reflected

cdef uint32_t[8][256] crc_table


cdef void make_crc_table() noexcept:
    cdef uint32_t i, k, c
    for i in range(256):
        c = i
        for _ in range(8):
            c = (c >> 1) ^ (<uint32_t>CRC_POLYNOMIAL if c & 1 else 0)
        crc_table[0][i] = c
    for k in range(1, 8):
        for i in range(256):
            c = crc_table[k - 1][i]
            crc_table[k][i] = (c >> 8) ^ crc_table[0][c & 0xFF]


make_crc_table()


cdef uint32_t crc32c(const uint8_t* p, size_t n) noexcept nogil:
    cdef uint32_t c = 0xFFFFFFFF, low, high
    while n >= 8:
        memcpy(&low, p, 4)
        memcpy(&high, p + 4, 4)
        low ^= c
        c = (
            crc_table[7][low & 0xFF] ^ crc_table[6][(low >> 8) & 0xFF]
            ^ crc_table[5][(low >> 16) & 0xFF] ^ crc_table[4][low >> 24]
            ^ crc_table[3][high & 0xFF] ^ crc_table[2][(high >> 8) & 0xFF]
            ^ crc_table[1][(high >> 16) & 0xFF] ^ crc_table[0][high >> 24]
        )
        p += 8
        n -= 8
    while n:
        c = (c >> 8) ^ crc_table[0][(c ^ p[0]) & 0xFF]
        p += 1
        n -= 1
    return ~c


def checksum(bytes data not None):
    """The masked CRC-32C of a frame."""
    cdef uint32_t c = crc32c(<const uint8_t*>PyBytes_AS_STRING(data), <size_t>PyBytes_GET_SIZE(data))
    return <uint32_t>(((c >> 15) | (c << 17)) + <uint32_t>0xA282EAD8)


# --- writing -----------------------------------------------------------------------------------------------


cdef inline uint32_t load32(const uint8_t* p) noexcept nogil:
    cdef uint32_t v
    memcpy(&v, p, 4)
    return v


cdef inline uint32_t hash32(uint32_t v) noexcept nogil:
    return (v * <uint32_t>0x1E35A7BD) >> (32 - TABLE_BITS)


cdef uint8_t* put_literal(uint8_t* d, const uint8_t* p, size_t n) noexcept nogil:
    cdef size_t m = n - 1
    if n == 0:
        return d
    if m < LITERAL_SHORT:
        d[0] = <uint8_t>(m << 2) | TAG_LITERAL
        d += 1
    elif m < 256:
        d[0] = <uint8_t>(LITERAL_SHORT << 2) | TAG_LITERAL
        d[1] = <uint8_t>m
        d += 2
    else:
        d[0] = <uint8_t>((LITERAL_SHORT + 1) << 2) | TAG_LITERAL
        d[1] = <uint8_t>(m & 0xFF)
        d[2] = <uint8_t>(m >> 8)
        d += 3
    memcpy(d, p, n)
    return d + n


cdef uint8_t* put_copy(uint8_t* d, size_t offset, size_t n) noexcept nogil:
    cdef size_t part
    while n:
        # The rest after a part must be empty, or long enough for another copy.
        part = n if n <= COPY_MAX else (COPY_MAX if n >= COPY_MAX + MATCH_MIN else COPY_MAX - MATCH_MIN)
        d[0] = <uint8_t>((part - 1) << 2) | TAG_COPY2
        d[1] = <uint8_t>(offset & 0xFF)
        d[2] = <uint8_t>(offset >> 8)
        d += 3
        n -= part
    return d


cdef uint8_t* put_block(uint8_t* d, const uint8_t* p, size_t n, uint16_t* table) noexcept nogil:
    """Writes the tags of at most FRAGMENT_MAX bytes."""
    cdef size_t at = 0, literal_at = 0, candidate, length, misses = 0
    cdef uint32_t key
    memset(table, 0, sizeof(uint16_t) << TABLE_BITS)
    while at + MATCH_MIN <= n:
        key = hash32(load32(p + at))
        candidate = table[key]
        table[key] = <uint16_t>at
        if candidate >= at or load32(p + candidate) != load32(p + at):
            misses += 1
            at += 1 + (misses >> 5)     # skips incompressible data with increasing steps
            continue
        misses = 0
        length = MATCH_MIN
        while at + length < n and p[candidate + length] == p[at + length]:
            length += 1
        d = put_literal(d, p + literal_at, at - literal_at)
        d = put_copy(d, at - candidate, length)
        at += length
        literal_at = at
    return put_literal(d, p + literal_at, n - literal_at)


def encode_block(bytes data not None):
    """Compresses a block of 1 to 65536 bytes. Raises ValueError for any other size."""
    cdef size_t n = <size_t>PyBytes_GET_SIZE(data)
    cdef uint16_t[1 << TABLE_BITS] table
    cdef size_t v = n
    cdef bytes out
    cdef uint8_t* start
    cdef uint8_t* d
    if n == 0 or n > FRAGMENT_MAX:
        raise ValueError(f"an S2 block is made of 1 to {FRAGMENT_MAX} bytes, not of {n}")
    out = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>(SIZE_VARINT_MAX + 3 + n + n // 6 + 32))
    start = d = <uint8_t*>PyBytes_AS_STRING(out)
    while v >= 0x80:
        d[0] = <uint8_t>(v & 0x7F) | 0x80
        d += 1
        v >>= 7
    d[0] = <uint8_t>v
    d = put_block(d + 1, <const uint8_t*>PyBytes_AS_STRING(data), n, table)
    return out[: d - start]


# --- reading -----------------------------------------------------------------------------------------------


cdef inline uint32_t take_uint(const uint8_t* p, size_t n) noexcept nogil:
    cdef uint32_t v = 0
    cdef size_t i
    for i in range(n):
        v |= <uint32_t>p[i] << <uint32_t>(8 * i)
    return v


cdef Py_ssize_t literal(const uint8_t* p, const uint8_t* end, size_t* length) noexcept nogil:
    """The length of the literal whose tag is at p; returns the bytes of tag and length, or -1."""
    cdef size_t x = p[0] >> 2, more
    if x < LITERAL_SHORT:
        length[0] = x + 1
        return 1
    more = x - LITERAL_SHORT + 1
    if <size_t>(end - p) < 1 + more:
        return -1
    length[0] = <size_t>take_uint(p + 1, more) + 1
    return <Py_ssize_t>(1 + more)


cdef Py_ssize_t copy(const uint8_t* p, const uint8_t* end, size_t* offset, size_t* length) noexcept nogil:
    """Reads the copy tag at p (a repeat leaves `offset` unchanged); returns the size of the tag, or -1."""
    cdef size_t kind = p[0] & 3, n = <size_t>(end - p), x, more
    if kind == TAG_COPY1:
        if n < 2:
            return -1
        x = (p[0] >> 2) & 7
        if p[0] & 0xE0 or p[1]:
            offset[0] = (<size_t>(p[0] & 0xE0) << 3) | p[1]
            length[0] = x + MATCH_MIN
            return 2
        if x < 5:
            length[0] = x + MATCH_MIN
            return 2
        more = x - 4
        if n < 2 + more:
            return -1
        length[0] = <size_t>take_uint(p + 2, more) + MATCH_MIN
        length[0] += <size_t>4 if x == 5 else (<size_t>256 if x == 6 else <size_t>65536)
        return <Py_ssize_t>(2 + more)
    more = 2 if kind == TAG_COPY2 else 4
    if n < 1 + more:
        return -1
    offset[0] = take_uint(p + 1, more)
    length[0] = (<size_t>p[0] >> 2) + 1
    return <Py_ssize_t>(1 + more)


cdef bint take_block(const uint8_t* p, size_t n, uint8_t* d, size_t size) noexcept nogil:
    """Decodes the tags at p into d; True when the result has exactly `size` bytes."""
    cdef const uint8_t* end = p + n
    cdef size_t at = 0, offset = 0, length = 0, i
    cdef Py_ssize_t step
    while p < end:
        if p[0] & 3 == TAG_LITERAL:
            step = literal(p, end, &length)
            if step < 0 or length > size - at or length > <size_t>(end - p - step):
                return False
            memcpy(d + at, p + step, length)
            p += step + <Py_ssize_t>length
        else:
            step = copy(p, end, &offset, &length)
            if step < 0 or offset == 0 or offset > at or length > size - at:
                return False
            if offset >= length:
                memcpy(d + at, d + at - offset, length)
            else:
                for i in range(length):
                    d[at + i] = d[at + i - offset]
            p += step
        at += length
    return at == size


def decode_block(bytes data not None, size_t size_max):
    """Decompresses a block. Raises ValueError for an invalid one, or one of more than size_max bytes."""
    cdef const uint8_t* p = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef size_t n = <size_t>PyBytes_GET_SIZE(data), at = 0
    cdef uint64_t size = 0
    cdef bytes out
    while True:
        if at == n or at == SIZE_VARINT_MAX:
            raise ValueError("S2 block: its length is truncated or too large")
        size |= <uint64_t>(p[at] & 0x7F) << <uint64_t>(7 * at)
        at += 1
        if p[at - 1] < 0x80:
            break
    if size > size_max:
        raise ValueError(f"S2 block: {size} bytes, at most {size_max} are allowed")
    out = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>size)
    if not take_block(p + at, n - at, <uint8_t*>PyBytes_AS_STRING(out), <size_t>size):
        raise ValueError(f"S2 block: its {n} bytes do not decode to the announced {size}")
    return out
