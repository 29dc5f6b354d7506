"""Serialised ack states: snapshots, and journals of later changes."""
from libc.stdint cimport int64_t, uint64_t, uint8_t

from penstock.kernels.consumer.ack_window cimport Window


# The position of a consumer; the last line is that of AckState.
cdef struct Position:
    uint64_t delivered_consumer, delivered_stream
    uint64_t ack_floor_consumer, ack_floor_stream
    uint64_t resets, since, start_seq

# `held`: how many entries of the window are pending or parked. dead: {stream seq: deliveries}.
cdef bytes write_snapshot(int policy, const Position* position, const Window* w, size_t held, dict dead)
# Replaces the contents of window and dead; leaves position.start_seq as it is in a state that was never reset. Raises
# ValueError when it is no snapshot of that policy.
cdef int read_snapshot(bytes snapshot, int policy, Position* position, Window* w, dict dead) except -1


cdef struct Journal:
    char* data
    size_t size, capacity
    int run_kind            # 'D' or 'A' while a run is open, otherwise 0
    uint64_t run_first, run_count
    int64_t ts              # time of the following records; -1: none written yet

# One decoded record.
cdef struct Record:
    int op
    uint64_t a, b           # b is 0 without a second number
    int64_t ts

cdef void journal_free(Journal* j) noexcept
# Writes the open run, if any.
cdef int journal_close_run(Journal* j) except -1
cdef int journal_op(Journal* j, int op, uint64_t a) except -1
cdef int journal_op2(Journal* j, int op, uint64_t a, uint64_t b) except -1
cdef int journal_new_ts(Journal* j, int64_t ts) except -1
# Returns the entry and empties the journal; b"" without records.
cdef bytes journal_take(Journal* j)
cdef void journal_forget(Journal* j) noexcept
# Reads the next record of an entry of n bytes at `at`, and advances it; False at the end. Raises ValueError.
cdef bint read_record(const char* p, size_t n, size_t* at, Record* record) except -1


cdef inline int journal_ts(Journal* j, int64_t ts) except -1:
    return 0 if ts == j.ts else journal_new_ts(j, ts)


cdef inline int journal_run(Journal* j, int kind, uint64_t seq) except -1:
    """Adds seq to the open run, or starts another run with it."""
    if j.run_kind == kind and seq == j.run_first + j.run_count:
        j.run_count += 1
        return 0
    journal_close_run(j)
    j.run_kind = kind
    j.run_first = seq
    j.run_count = 1
    return 0


cdef inline uint64_t zigzag(int64_t v) noexcept:
    return (<uint64_t>v << 1) ^ (<uint64_t>0 - <uint64_t>(v < 0))


cdef inline int64_t unzigzag(uint64_t v) noexcept:
    return <int64_t>((v >> 1) ^ (<uint64_t>0 - (v & 1)))


cdef enum:
    VARINT_MAX = 10         # bytes of a LEB128 number of 64 bits


cdef inline size_t put_varint(char* d, uint64_t v) noexcept:
    cdef size_t n = 0
    while v >= 0x80:
        d[n] = <char>(<uint8_t>(v & 0x7F) | 0x80)
        v >>= 7
        n += 1
    d[n] = <char>v
    return n + 1


cdef inline Py_ssize_t get_varint(const char* p, size_t n, uint64_t* v) noexcept:
    """Returns the bytes read, or -1 when the number is truncated or has more than 64 bits."""
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
