"""The whole of an ack state as bytes, all numbers little endian.

    u8 version | u8 policy | u64 delivered consumer, stream | u64 ack floor consumer, stream | u64 entries | u64 dead
    for each entry, ascending: u64 stream seq | u64 first consumer seq | i64 ts | u32 deliveries (0 = parked)
    for each dead one, ascending: u64 stream seq | u32 deliveries
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from penstock.kernels.consumer.ack_window cimport Entry, Window, entry_at, window_clear, window_push, window_reserve

cdef enum:
    VERSION = 1
    HEAD_SIZE = 1 + 1 + 4 * 8 + 8 + 8
    ENTRY_SIZE = 8 + 8 + 8 + 4
    DEAD_SIZE = 8 + 4


cdef bytes write_snapshot(int policy, const Position* position, const Window* w, size_t held, dict dead):
    cdef size_t size = HEAD_SIZE + held * ENTRY_SIZE + len(dead) * DEAD_SIZE
    cdef bytes result = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>size)
    cdef char* d = PyBytes_AS_STRING(result)
    cdef uint64_t number
    cdef uint32_t count
    cdef size_t i
    cdef Entry* e
    d[0] = VERSION
    d[1] = <char>policy
    d += 2
    for number in (position.delivered_consumer, position.delivered_stream, position.ack_floor_consumer,
                   position.ack_floor_stream, held, len(dead)):
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
    cdef uint64_t numbers[6]
    cdef uint64_t number, last = 0
    cdef uint32_t count
    cdef Entry e
    if n < HEAD_SIZE or p[0] != VERSION or p[1] != policy:
        raise ValueError(f"consumer snapshot: {n} bytes, version and policy {snapshot[:2]!r} instead of "
                         f"{bytes((VERSION, policy))!r}")
    memcpy(numbers, p + 2, 6 * 8)
    n -= HEAD_SIZE
    if numbers[4] > n // ENTRY_SIZE or numbers[4] * ENTRY_SIZE + numbers[5] * DEAD_SIZE != n or numbers[5] > n:
        raise ValueError(f"consumer snapshot: {numbers[4]} pending and {numbers[5]} dead in {n} bytes")
    p += HEAD_SIZE
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
    """What snapshot() of such a state returns; see the .pyi."""
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
