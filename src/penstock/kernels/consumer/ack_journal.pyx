"""The journal of an ack state: what changed since the last snapshot.

In runs: a thousand deliveries in sequence are one record of a few bytes. Applied to the snapshot, it gives the
same state, at every cut between records (`AckState.replay`). The redelivery queue is not in it: after a
restart queued messages are simply due (a NAK sets its timestamp far into the past).

    T <ts>             time of what follows (8 bytes LE)
    D <first> <count>  first deliveries at consecutive stream sequences
    R <seq>            redelivery
    A <first> <count>  acks at consecutive stream sequences
    L <seq> <cseq>     ack of everything up to seq
    W <seq> <ts>       new timestamp (+WPI, NAK)
    X <seq>            given up at max_deliver
    B <seq>            everything below seq is gone from the stream
    S <seq>            skip: nothing up to seq will be delivered
    P <seq>            parked
(numbers are LEB128; W's ts is zigzag)

Rejected: writing the whole state at every ack (the official server's way, quadratic under many pending); the
fields in an object of its own (a reference counted up and down for each message).
"""
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

cdef enum:
    CAPACITY_FIRST = 4096
    CAPACITY_KEPT = 1 << 20         # an empty journal gives back what is above
    RECORD_MAX = 1 + 2 * 10


cdef inline char* reserve(Journal* j) except NULL:
    """Room for one more record."""
    cdef size_t capacity = 2 * j.capacity if j.capacity else CAPACITY_FIRST
    cdef char* data
    if j.capacity - j.size < RECORD_MAX:
        data = <char*>realloc(j.data, capacity)
        if data == NULL:
            raise MemoryError(f"no memory for a consumer's journal of {capacity} bytes")
        j.data = data
        j.capacity = capacity
    return j.data + j.size


cdef inline size_t put_varint(char* d, uint64_t v) noexcept:
    cdef size_t n = 0
    while v >= 0x80:
        d[n] = <char>(<uint8_t>(v & 0x7F) | 0x80)
        v >>= 7
        n += 1
    d[n] = <char>v
    return n + 1


cdef inline Py_ssize_t get_varint(const char* p, size_t n, uint64_t* v) noexcept:
    """Bytes read, or -1 when the number is cut off or over 64 bits."""
    cdef uint64_t value = 0, byte
    cdef size_t i = 0
    while i < n and i < 10:
        byte = <uint8_t>p[i]
        if i == 9 and byte > 1:
            return -1
        value |= (byte & 0x7F) << (7 * i)
        i += 1
        if byte < 0x80:
            v[0] = value
            return <Py_ssize_t>i
    return -1


cdef void journal_free(Journal* j) noexcept:
    free(j.data)
    j.data = NULL


cdef int journal_close_run(Journal* j) except -1:
    cdef int kind = j.run_kind
    if kind:
        j.run_kind = 0
        journal_op2(j, kind, j.run_first, j.run_count)
    return 0


cdef int journal_op(Journal* j, int op, uint64_t a) except -1:
    cdef char* d
    journal_close_run(j)
    d = reserve(j)
    d[0] = <char>op
    j.size += 1 + put_varint(d + 1, a)
    return 0


cdef int journal_op2(Journal* j, int op, uint64_t a, uint64_t b) except -1:
    cdef char* d
    cdef size_t n = 1
    journal_close_run(j)
    d = reserve(j)
    d[0] = <char>op
    n += put_varint(d + n, a)
    n += put_varint(d + n, b)
    j.size += n
    return 0


cdef int journal_new_ts(Journal* j, int64_t ts) except -1:
    cdef char* d
    journal_close_run(j)
    d = reserve(j)
    d[0] = c"T"
    memcpy(d + 1, &ts, 8)
    j.size += 9
    j.ts = ts
    return 0


cdef bytes journal_take(Journal* j):
    cdef bytes taken
    journal_close_run(j)
    j.ts = -1       # every entry stands alone: it begins with its own time
    if j.size == 0:
        return b""
    taken = PyBytes_FromStringAndSize(j.data, <Py_ssize_t>j.size)
    journal_forget(j)
    return taken


cdef void journal_forget(Journal* j) noexcept:
    cdef char* data
    j.run_kind = 0
    j.ts = -1
    j.size = 0
    if j.capacity > CAPACITY_KEPT:
        data = <char*>realloc(j.data, CAPACITY_KEPT)
        if data != NULL:  # a failed shrink leaves the larger buffer as it is
            j.data = data
            j.capacity = CAPACITY_KEPT


cdef bint read_record(const char* p, size_t n, size_t* at, Record* record) except -1:
    cdef size_t i = at[0]
    cdef Py_ssize_t used
    record.a = record.b = 0
    while i < n and p[i] == c"T":
        i += 1
        if n - i < 8:
            raise ValueError(f"consumer journal: cut off at byte {i}")
        memcpy(&record.ts, p + i, 8)
        i += 8
    if i == n:
        return False
    record.op = p[i]
    i += 1
    used = get_varint(p + i, n - i, &record.a)
    if used < 0:
        raise ValueError(f"consumer journal: bad number at byte {i}")
    i += <size_t>used
    if record.op == c"D" or record.op == c"A" or record.op == c"L" or record.op == c"W":
        used = get_varint(p + i, n - i, &record.b)
        if used < 0:
            raise ValueError(f"consumer journal: bad number at byte {i}")
        i += <size_t>used
    at[0] = i
    return True
