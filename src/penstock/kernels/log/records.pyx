"""Record layout of message blocks, and the 8-byte hash: encode and decode.

Invariant: a record that decode_record() accepts is inside the given bytes, even if they are corrupt.
Rejected: a faster, non-standard hash (XXH64 is known, tested against a package, and not the bottleneck);
tombstones in a separate file (two files to keep consistent).
"""
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.string cimport memset

cdef uint64_t SEQ_MASK = (<uint64_t>1 << SEQ_BITS) - 1

# The five primes of XXH64, as C constants: a module variable would be loaded from memory each round.
cdef extern from *:
    """
    #define XXH_P1 11400714785074694791ULL
    #define XXH_P2 14029467366897019727ULL
    #define XXH_P3 1609587929392839161ULL
    #define XXH_P4 9650029242287828579ULL
    #define XXH_P5 2870177450012600261ULL
    """
    const uint64_t P1 "XXH_P1"
    const uint64_t P2 "XXH_P2"
    const uint64_t P3 "XXH_P3"
    const uint64_t P4 "XXH_P4"
    const uint64_t P5 "XXH_P5"


cdef inline uint64_t rotl(uint64_t v, int by) noexcept nogil:
    return (v << by) | (v >> (64 - by))


cdef inline uint64_t load64(const char* p) noexcept nogil:
    cdef uint64_t v
    memcpy(&v, p, 8)
    return v


cdef inline uint32_t load32(const char* p) noexcept nogil:
    cdef uint32_t v
    memcpy(&v, p, 4)
    return v


cdef inline uint64_t mix(uint64_t acc, uint64_t lane) noexcept nogil:
    return rotl(acc + lane * P2, 31) * P1


cdef inline uint64_t merge(uint64_t acc, uint64_t lane) noexcept nogil:
    return (acc ^ mix(0, lane)) * P1 + P4


cdef uint64_t xxh64(const char* p, size_t n, uint64_t seed) noexcept nogil:
    cdef const char* end = p + n
    cdef uint64_t h, a, b, c, d
    if n >= 32:
        a = seed + P1 + P2
        b = seed + P2
        c = seed
        d = seed - P1
        while end - p >= 32:
            a = mix(a, load64(p))
            b = mix(b, load64(p + 8))
            c = mix(c, load64(p + 16))
            d = mix(d, load64(p + 24))
            p += 32
        h = rotl(a, 1) + rotl(b, 7) + rotl(c, 12) + rotl(d, 18)
        h = merge(merge(merge(merge(h, a), b), c), d)
    else:
        h = seed + P5
    return finished(h + n, p, end)


cdef inline uint64_t finished(uint64_t h, const char* p, const char* end) noexcept nogil:
    """Finishes the hash with the last bytes, fewer than 32."""
    while end - p >= 8:
        h = rotl(h ^ mix(0, load64(p)), 27) * P1 + P4
        p += 8
    if end - p >= 4:
        h = rotl(h ^ (<uint64_t>load32(p) * P1), 23) * P2 + P3
        p += 4
    while p < end:
        h = rotl(h ^ (<uint64_t>(<unsigned char>p[0]) * P5), 11) * P1
        p += 1
    h = (h ^ (h >> 33)) * P2
    h = (h ^ (h >> 29)) * P3
    return h ^ (h >> 32)


cdef uint64_t copy_hashed(char* d, size_t front, const char* body, size_t n) noexcept nogil:
    """Copies n bytes of body after the `front` ones at d and hashes all of them in one pass, which saves a third of
    the time of copying and hashing."""
    cdef size_t size = front + n
    cdef size_t whole = (front + 31) & ~<size_t>31      # the lanes' next round begins there
    cdef const char* end = body + n
    cdef const char* p = d
    cdef uint64_t a = P1 + P2, b = P2, c = 0, e = 0 - P1
    cdef uint64_t v, w, x, y, h
    if whole + 32 > size:
        memcpy(d + front, body, n)
        return xxh64(d, size, 0)
    memcpy(d + front, body, whole - front)
    body += whole - front
    while p < d + whole:
        a, b, c, e = mix(a, load64(p)), mix(b, load64(p + 8)), mix(c, load64(p + 16)), mix(e, load64(p + 24))
        p += 32
    d += whole
    while end - body >= 32:
        v, w, x, y = load64(body), load64(body + 8), load64(body + 16), load64(body + 24)
        memcpy(d, body, 32)
        a, b, c, e = mix(a, v), mix(b, w), mix(c, x), mix(e, y)
        body += 32
        d += 32
    memcpy(d, body, end - body)
    h = rotl(a, 1) + rotl(b, 7) + rotl(c, 12) + rotl(e, 18)
    h = merge(merge(merge(merge(h, a), b), c), e)
    return finished(h + size, d, d + (end - body))


cdef void encode_record(char* d, size_t size, int kind, uint64_t seq, int64_t ts, const char* subject,
                        size_t subject_len, const char* body, size_t header_len, size_t body_len) noexcept nogil:
    cdef size_t front = encode_front(d, size, kind, seq, ts, subject, subject_len, header_len)
    cdef uint64_t digest
    if body_len:
        digest = copy_hashed(d, front, body, body_len)
    else:
        digest = xxh64(d, front, 0)
    memcpy(d + size - 8, &digest, 8)


cdef void encode_unhashed(char* d, size_t size, int kind, uint64_t seq, int64_t ts, const char* subject,
                          size_t subject_len, const char* body, size_t header_len, size_t body_len) noexcept nogil:
    cdef size_t front = encode_front(d, size, kind, seq, ts, subject, subject_len, header_len)
    if body_len:
        memcpy(d + front, body, body_len)
    memset(d + size - 8, 0, 8)


cdef inline size_t encode_front(char* d, size_t size, int kind, uint64_t seq, int64_t ts, const char* subject,
                                size_t subject_len, size_t header_len) noexcept nogil:
    """Writes everything before the body; returns its size."""
    cdef uint32_t length = <uint32_t>size
    cdef uint64_t tagged = seq | (<uint64_t>kind << SEQ_BITS)
    cdef uint16_t short_len = <uint16_t>subject_len
    cdef uint32_t long_len = <uint32_t>header_len
    cdef size_t at = RECORD_SUBJECT_AT + subject_len
    if header_len:
        length |= <uint32_t>RECORD_HAS_HEADER
    memcpy(d, &length, 4)
    memcpy(d + 4, &tagged, 8)
    memcpy(d + 12, &ts, 8)
    memcpy(d + 20, &short_len, 2)
    if subject_len:
        memcpy(d + RECORD_SUBJECT_AT, subject, subject_len)
    if header_len:
        memcpy(d + at, &long_len, 4)
        at += 4
    return at


cdef int decode_record(const char* p, size_t n, Record* r, int* kind, bint verify) noexcept nogil:
    cdef uint32_t length
    cdef uint32_t long_len
    cdef uint16_t short_len
    cdef uint64_t tagged
    cdef size_t rest
    if n == 0:
        return RECORD_END
    if n < 4:
        return RECORD_SHORT
    length = load32(p)
    r.size = length & <uint32_t>RECORD_SIZE_MAX
    if r.size < RECORD_OVERHEAD:
        return RECORD_BAD_LENGTH
    if r.size > n:
        return RECORD_SHORT
    if verify and load64(p + r.size - 8) != xxh64(p, r.size - 8, 0):
        return RECORD_BAD_HASH
    tagged = load64(p + 4)
    r.seq = tagged & SEQ_MASK
    if tagged >> SEQ_BITS > KIND_BATCH:
        return RECORD_BAD_KIND
    kind[0] = <int>(tagged >> SEQ_BITS)
    memcpy(&r.ts, p + 12, 8)
    memcpy(&short_len, p + 20, 2)
    r.subject = p + RECORD_SUBJECT_AT
    r.subject_len = short_len
    rest = r.size - RECORD_OVERHEAD
    if r.subject_len > rest:
        return RECORD_BAD_LENGTH
    rest -= r.subject_len
    r.body = r.subject + r.subject_len
    r.header_len = 0
    if length & <uint32_t>RECORD_HAS_HEADER:
        if rest < RECORD_HEADER_OVERHEAD:
            return RECORD_BAD_LENGTH
        long_len = load32(r.body)
        rest -= RECORD_HEADER_OVERHEAD
        if long_len > rest:
            return RECORD_BAD_LENGTH
        r.header_len = long_len
        r.body += RECORD_HEADER_OVERHEAD
    r.body_len = rest
    return RECORD_OK


def xxh64_digest(const unsigned char[:] data not None, uint64_t seed=0):
    if data.shape[0] == 0:
        return xxh64(NULL, 0, seed)
    return xxh64(<const char*>&data[0], data.shape[0], seed)


cdef class StreamedHash:
    cdef uint64_t a, b, c, d        # the lanes
    cdef uint64_t total             # bytes so far
    cdef char rest[32]              # the last total % 32 bytes: the lanes have all others

    def __cinit__(self):
        self.a, self.b, self.c, self.d = P1 + P2, P2, 0, 0 - P1

    def update(self, const unsigned char[::1] data not None):
        """Takes more bytes."""
        cdef size_t n = <size_t>data.shape[0]
        if n:
            with nogil:             # a chunk may have hundreds of megabytes
                self.take(<const char*>&data[0], n)

    cdef void take(self, const char* p, size_t n) noexcept nogil:
        cdef size_t held = <size_t>(self.total % 32), missing
        self.total += n
        if held:
            missing = 32 - held
            if n < missing:
                memcpy(self.rest + held, p, n)
                return
            memcpy(self.rest + held, p, missing)
            self.rounds(self.rest, 32)
            p += missing
            n -= missing
        self.rounds(p, n)
        memcpy(self.rest, p + n // 32 * 32, n % 32)

    cdef void rounds(self, const char* p, size_t n) noexcept nogil:
        """Takes whole rounds of 32 bytes; leaves the bytes behind them."""
        cdef uint64_t a = self.a, b = self.b, c = self.c, d = self.d
        while n >= 32:
            a = mix(a, load64(p))
            b = mix(b, load64(p + 8))
            c = mix(c, load64(p + 16))
            d = mix(d, load64(p + 24))
            p += 32
            n -= 32
        self.a, self.b, self.c, self.d = a, b, c, d

    def digest(self):
        """The hash of all bytes so far."""
        cdef uint64_t h = P5
        if self.total >= 32:
            h = rotl(self.a, 1) + rotl(self.b, 7) + rotl(self.c, 12) + rotl(self.d, 18)
            h = merge(merge(merge(merge(h, self.a), self.b), self.c), self.d)
        return finished(h + self.total, self.rest, self.rest + self.total % 32)


def size_of(size_t subject_len, size_t header_len, size_t payload_len):
    return record_size(subject_len, header_len, header_len + payload_len)


def encode(uint64_t seq, int64_t ts, bytes subject not None, bytes header not None, bytes payload not None,
           int kind=KIND_MESSAGE):
    cdef bytes body = header + payload
    cdef size_t size = record_size(len(subject), len(header), len(body))
    cdef bytes out
    if size == 0 or seq > SEQ_MASK or kind < 0 or kind > KIND_BATCH:
        raise ValueError(
            f"no record holds sequence {seq}, kind {kind}, a subject of {len(subject)} and a body of {len(body)} bytes"
        )
    out = PyBytes_FromStringAndSize(NULL, size)
    encode_record(<char*>out, size, kind, seq, ts, <const char*>subject, len(subject),
                  <const char*>body, len(header), len(body))
    return out


WHY = {
    RECORD_SHORT: "the bytes end inside the record",
    RECORD_BAD_LENGTH: "its lengths contradict each other",
    RECORD_BAD_KIND: "its kind is unknown",
    RECORD_BAD_HASH: "its hash does not fit its bytes",
    RECORD_TORN_BATCH: "the batch that begins there is not all there",
}


class Corrupt:
    """The offset at which a reader stopped, and the reason. The reader stays there."""

    __slots__ = ("offset", "why")

    def __init__(self, offset, why):
        self.offset = offset
        self.why = why

    def __repr__(self):
        return f"Corrupt(offset={self.offset}, why={self.why!r})"


cdef class RecordReader:
    cdef const unsigned char[:] data
    cdef readonly size_t offset

    def __init__(self, const unsigned char[:] data not None, size_t offset=0):
        if offset > <size_t>data.shape[0]:
            raise ValueError(f"offset {offset} is beyond the {data.shape[0]} bytes given")
        self.data = data
        self.offset = offset

    def next(self):
        cdef Record r
        cdef int kind = 0
        cdef size_t left = self.data.shape[0] - self.offset
        cdef int status
        if left == 0:
            return None
        status = decode_record(<const char*>&self.data[self.offset], left, &r, &kind, True)
        if status != RECORD_OK:
            return Corrupt(self.offset, WHY[status])
        self.offset += r.size
        return (
            kind, r.seq, r.ts, PyBytes_FromStringAndSize(r.subject, r.subject_len),
            PyBytes_FromStringAndSize(r.body, r.header_len),
            PyBytes_FromStringAndSize(r.body + r.header_len, r.body_len - r.header_len),
        )
