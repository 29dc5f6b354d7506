"""An ack state as bytes: a snapshot, and the journal of what changed since."""
from libc.stdint cimport int64_t, uint64_t

from penstock.kernels.consumer.ack_window cimport Window


# Where a consumer is.
cdef struct Position:
    uint64_t delivered_consumer, delivered_stream
    uint64_t ack_floor_consumer, ack_floor_stream

# `held`: how many entries of the window are pending or parked. dead: {stream seq: deliveries}.
cdef bytes write_snapshot(int policy, const Position* position, const Window* w, size_t held, dict dead)
# Fills window and dead in place of what they hold. Raises ValueError where it is no snapshot of that policy.
cdef int read_snapshot(bytes snapshot, int policy, Position* position, Window* w, dict dead) except -1


cdef struct Journal:
    char* data
    size_t size, capacity
    int run_kind            # 'D' or 'A' while a run is open, 0 else
    uint64_t run_first, run_count
    int64_t ts              # the time of what follows; -1: none was written yet

# One record as it is read.
cdef struct Record:
    int op
    uint64_t a, b           # b is 0 where there is no second number
    int64_t ts

cdef void journal_free(Journal* j) noexcept
# Writes the run under way.
cdef int journal_close_run(Journal* j) except -1
cdef int journal_op(Journal* j, int op, uint64_t a) except -1
cdef int journal_op2(Journal* j, int op, uint64_t a, uint64_t b) except -1
cdef int journal_new_ts(Journal* j, int64_t ts) except -1
# All of it, which leaves the journal empty; b"" when nothing was noted.
cdef bytes journal_take(Journal* j)
cdef void journal_forget(Journal* j) noexcept
# The next record of an entry of n bytes, from `at` on, which moves; False at the end. Raises ValueError.
cdef bint read_record(const char* p, size_t n, size_t* at, Record* record) except -1


cdef inline int journal_ts(Journal* j, int64_t ts) except -1:
    return 0 if ts == j.ts else journal_new_ts(j, ts)


cdef inline int journal_run(Journal* j, int kind, uint64_t seq) except -1:
    """One more at seq: of the run under way, or the first of another one."""
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
