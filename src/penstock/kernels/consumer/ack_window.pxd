"""The deliveries above a consumer's ack floor: a ring of entries ordered by stream sequence."""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

cdef struct Entry:
    uint64_t seq            # stream sequence
    uint64_t cseq           # consumer sequence of the first delivery: what the ack floor speaks of
    int64_t ts              # last delivery (or +WPI), ns; its ack wait runs from here
    uint32_t deliveries     # 0 = parked
    uint8_t pending         # 0 = acked, kept only until it leaves the front of the window
    uint8_t queued          # waits in the redelivery queue

cdef struct Window:
    Entry* ring
    size_t capacity         # a power of two
    size_t head             # place of the oldest entry
    size_t count

cdef int window_make(Window* w) except -1
cdef void window_free(Window* w) noexcept
cdef int window_grow(Window* w) except -1
# Leaves only the pending entries.
cdef void window_compact(Window* w) noexcept
# The first of the entries whose sequence isn't below seq; `count` when all are.
cdef size_t window_search(const Window* w, uint64_t seq) noexcept


cdef inline Entry* entry_at(const Window* w, size_t i) noexcept:
    return &w.ring[(w.head + i) & (w.capacity - 1)]


cdef inline Py_ssize_t window_find(const Window* w, uint64_t seq, uint64_t cseq) noexcept:
    """Index of the pending entry of seq, or -1. cseq is a hint."""
    cdef Entry* e
    cdef uint64_t guess
    cdef size_t i
    if w.count == 0:
        return -1
    e = entry_at(w, 0)
    if seq < e.seq:
        return -1
    guess = cseq - e.cseq
    if cseq >= e.cseq and guess < w.count and entry_at(w, <size_t>guess).seq == seq:
        i = <size_t>guess
    else:
        guess = seq - e.seq
        if guess < w.count and entry_at(w, <size_t>guess).seq == seq:
            i = <size_t>guess
        else:
            i = window_search(w, seq)
            if i == w.count:
                return -1
    e = entry_at(w, i)
    return <Py_ssize_t>i if e.seq == seq and e.pending else -1


cdef inline int window_reserve(Window* w) except -1:
    """Room for one more entry."""
    if w.count == w.capacity:
        window_grow(w)
    return 0


cdef inline Entry* window_push(Window* w) noexcept:
    """A new entry behind the others, in the room reserved; the caller fills it."""
    w.count += 1
    return entry_at(w, w.count - 1)


cdef inline void window_drop_front(Window* w) noexcept:
    w.head = (w.head + 1) & (w.capacity - 1)
    w.count -= 1


cdef inline void window_trim(Window* w) noexcept:
    """The window begins with a pending entry."""
    while w.count and not entry_at(w, 0).pending:
        window_drop_front(w)


cdef inline void window_clear(Window* w) noexcept:
    w.count = w.head = 0
