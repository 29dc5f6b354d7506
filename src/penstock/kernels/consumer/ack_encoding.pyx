"""Serialised ack states: snapshots, and journals of later changes.

A snapshot is a complete ack state, all numbers little endian:

    u8 version | u8 policy | u64 delivered consumer, stream | u64 ack floor consumer, stream | u64 entries | u64 dead
    version 2, of a state that was reset: u64 resets | u64 since | u64 start seq (those of AckState)
    for each entry, ascending: u64 stream seq | u64 first consumer seq | i64 ts | u32 deliveries (0 = parked)
    for each dead one, ascending: u64 stream seq | u32 deliveries

A journal has the changes since the last snapshot. It is run-length encoded: a thousand consecutive deliveries are
one record of a few bytes. Applied to the snapshot, any prefix of whole records gives the state at that time
(`AckState.replay`). The redelivery queue is not in it: after a restart queued messages are due immediately (a NAK
sets its timestamp far into the past).

    T <ts>             time of the following records (8 bytes LE)
    D <first> <count>  first deliveries at consecutive stream sequences
    R <seq>            redelivery
    A <first> <count>  acks at consecutive stream sequences
    L <seq> <cseq>     ack of everything up to seq
    W <seq> <ts>       new timestamp (+WPI, NAK)
    X <seq>            given up at max_deliver
    B <seq>            everything below seq was removed from the stream
    S <seq>            skip: nothing up to seq will be delivered
    P <seq>            parked
    F <seq> <start>    reset: the state begins from seq; start is AckState's start_seq
(numbers are LEB128; W's ts is zigzag)

A reset is one record, because a crash must not leave a part of it: the new position with the acks of the old one
would let a work queue remove messages that no client got.

Rejected: writing the whole state at every ack (as the official server does; quadratic with many pending); the
journal as an object of its own (an incref and a decref per message); version 2 for every state (an older server
could read none of them).
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy

from penstock.kernels.base.memory cimport array_grow, array_shrink
from penstock.kernels.consumer.ack_window cimport (
    Entry, Window, entry_at, window_clear, window_push, window_reserve,
)


# --- ack snapshot

cdef enum:
    VERSION = 1
    VERSION_RESET = 2               # its head has RESET_SIZE more bytes
    HEAD_SIZE = 1 + 1 + 4 * 8 + 8 + 8
    RESET_SIZE = 3 * 8
    ENTRY_SIZE = 8 + 8 + 8 + 4
    DEAD_SIZE = 8 + 4


cdef bytes write_snapshot(int policy, const Position* position, const Window* w, size_t held, dict dead):
    cdef size_t size = HEAD_SIZE + held * ENTRY_SIZE + len(dead) * DEAD_SIZE + (RESET_SIZE if position.resets else 0)
    cdef bytes result = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>size)
    cdef char* d = PyBytes_AS_STRING(result)
    cdef uint64_t number
    cdef uint32_t count
    cdef size_t i
    cdef Entry* e
    d[0] = VERSION_RESET if position.resets else VERSION
    d[1] = <char>policy
    d += 2
    for number in (position.delivered_consumer, position.delivered_stream, position.ack_floor_consumer,
                   position.ack_floor_stream, held, len(dead)):
        memcpy(d, &number, 8)
        d += 8
    if position.resets:
        for number in (position.resets, position.since, position.start_seq):
            memcpy(d, &number, 8)
            d += 8
    for i in range(w.count):
        e = entry_at(w, i)
        if e.pending:
            memcpy(d, &e.seq, 8)
            memcpy(d + 8, &e.cseq, 8)
            memcpy(d + 16, &e.ts, 8)
            memcpy(d + 24, &e.deliveries, 4)
            d += ENTRY_SIZE
    for number, count in sorted(dead.items()):
        memcpy(d, &number, 8)
        memcpy(d + 8, &count, 4)
        d += DEAD_SIZE
    return result


cdef int read_snapshot(bytes snapshot, int policy, Position* position, Window* w, dict dead) except -1:
    cdef const char* p = PyBytes_AS_STRING(snapshot)
    cdef size_t n = <size_t>PyBytes_GET_SIZE(snapshot)
    cdef size_t head = HEAD_SIZE + (RESET_SIZE if n and p[0] == VERSION_RESET else 0)
    cdef uint64_t numbers[6]
    cdef uint64_t reset[3]
    cdef uint64_t number, last = 0
    cdef uint32_t count
    cdef Entry e
    if n < head or (p[0] != VERSION and p[0] != VERSION_RESET) or p[1] != policy:
        raise ValueError(f"consumer snapshot: {n} bytes, version and policy {snapshot[:2]!r} instead of "
                         f"{bytes((VERSION, policy))!r} or {bytes((VERSION_RESET, policy))!r}")
    memcpy(numbers, p + 2, 6 * 8)
    position.resets = position.since = 0
    if p[0] == VERSION_RESET:
        memcpy(reset, p + HEAD_SIZE, RESET_SIZE)
        position.resets, position.since, position.start_seq = reset[0], reset[1], reset[2]
    n -= head
    if numbers[4] > n // ENTRY_SIZE or numbers[4] * ENTRY_SIZE + numbers[5] * DEAD_SIZE != n or numbers[5] > n:
        raise ValueError(f"consumer snapshot: {numbers[4]} pending and {numbers[5]} dead in {n} bytes")
    p += head
    position.delivered_consumer, position.delivered_stream = numbers[0], numbers[1]
    position.ack_floor_consumer, position.ack_floor_stream = numbers[2], numbers[3]
    window_clear(w)
    dead.clear()
    e.pending = 1
    e.queued = 0
    for _ in range(<size_t>numbers[4]):
        memcpy(&e.seq, p, 8)
        memcpy(&e.cseq, p + 8, 8)
        memcpy(&e.ts, p + 16, 8)
        memcpy(&e.deliveries, p + 24, 4)
        if e.seq <= last or e.seq > position.delivered_stream or (e.deliveries == 0) != (e.cseq == 0):
            raise ValueError(
                f"consumer snapshot: entry {e.seq} after {last}, delivered {position.delivered_stream}"
            )
        last = e.seq
        window_reserve(w)
        window_push(w)[0] = e
        p += ENTRY_SIZE
    for _ in range(<size_t>numbers[5]):
        memcpy(&number, p, 8)
        memcpy(&count, p + 8, 4)
        dead[number] = count
        p += DEAD_SIZE
    return 0


def make_snapshot(int policy, tuple delivered, tuple floor, list pending, list given_up):
    """Builds a snapshot from imported state; see the .pyi."""
    cdef size_t size = HEAD_SIZE + len(pending) * ENTRY_SIZE + len(given_up) * DEAD_SIZE
    cdef bytes result = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>size)
    cdef char* d = PyBytes_AS_STRING(result)
    cdef uint64_t number, consumer_number
    cdef uint32_t count
    cdef int64_t at
    d[0] = VERSION
    d[1] = <char>policy
    d += 2
    for number in (*delivered, *floor, len(pending), len(given_up)):
        memcpy(d, &number, 8)
        d += 8
    for number, consumer_number, at, count in pending:
        memcpy(d, &number, 8)
        memcpy(d + 8, &consumer_number, 8)
        memcpy(d + 16, &at, 8)
        memcpy(d + 24, &count, 4)
        d += ENTRY_SIZE
    for number, count in given_up:
        memcpy(d, &number, 8)
        memcpy(d + 8, &count, 4)
        d += DEAD_SIZE
    return result


# --- ack journal

cdef enum:
    CAPACITY_FIRST = 4096
    CAPACITY_KEPT = 1 << 20         # an empty journal frees memory above this
    RECORD_MAX = 1 + 2 * VARINT_MAX


cdef inline char* reserve(Journal* j) except NULL:
    """Makes room for one more record."""
    j.data = <char*>array_grow(j.data, &j.capacity, j.size + RECORD_MAX, 1, CAPACITY_FIRST, b"bytes of a journal")
    return j.data + j.size


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
    j.ts = -1       # every entry is self-contained: it begins with its own time
    if j.size == 0:
        return b""
    taken = PyBytes_FromStringAndSize(j.data, <Py_ssize_t>j.size)
    journal_forget(j)
    return taken


cdef void journal_forget(Journal* j) noexcept:
    j.run_kind = 0
    j.ts = -1
    j.size = 0
    if j.capacity > CAPACITY_KEPT:
        j.data = <char*>array_shrink(j.data, &j.capacity, CAPACITY_KEPT, 1)


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
    if record.op == c"D" or record.op == c"A" or record.op == c"L" or record.op == c"W" \
            or record.op == c"F":
        used = get_varint(p + i, n - i, &record.b)
        if used < 0:
            raise ValueError(f"consumer journal: bad number at byte {i}")
        i += <size_t>used
    at[0] = i
    return True
