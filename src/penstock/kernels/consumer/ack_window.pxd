"""The deliveries above a consumer's ack floor, and the redelivery queue.

The window is a ring of entries ordered by stream sequence, from the oldest pending one up to the newest
delivered. An ack finds its entry by guessing the offset (consumer sequences are dense without
redeliveries), else by binary search. Acked entries in the middle stay until the front moves over them, or
until the owner of the window compacts it.

The redelivery queue is a ring of stream sequences in the order in which they became due. Items may be stale
(their message was settled since): the reader of the front looks it up in the window.

Inline, without an extension of its own; the memory belongs to a Ring (base/memory.pxd).
"""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from penstock.kernels.base.memory cimport (
    Ring, ring_at, ring_clear, ring_drop_front, ring_grow, ring_make, ring_push,
)

cdef enum:
    WINDOW_FIRST = 64

cdef struct Entry:
    uint64_t seq            # stream sequence
    uint64_t cseq           # consumer sequence of the first delivery, for the ack floor
    int64_t ts              # last delivery (or +WPI), ns; start of its ack wait
    uint32_t deliveries     # 0 = parked
    uint8_t pending         # 0 = acked; stays until it leaves the front of the window
    uint8_t queued          # waits in the redelivery queue

ctypedef Ring Window        # of Entry
ctypedef Ring Queue         # of stream sequences


cdef inline int window_make(Window* w) except -1:
    return ring_make(w, WINDOW_FIRST, sizeof(Entry), b"deliveries of a consumer")


cdef inline Entry* entry_at(const Window* w, size_t i) noexcept:
    return <Entry*>ring_at(w, i, sizeof(Entry))


cdef inline size_t window_search(const Window* w, uint64_t seq) noexcept:
    """Index of the first entry whose sequence isn't below seq; `count` when all are."""
    cdef size_t low = 0, high = w.count, middle
    while low < high:
        middle = low + (high - low) // 2
        if entry_at(w, middle).seq < seq:
            low = middle + 1
        else:
            high = middle
    return low


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
    """Makes room for one more entry."""
    if w.count == w.capacity:
        ring_grow(w, sizeof(Entry), b"deliveries of a consumer")
    return 0


cdef inline Entry* window_push(Window* w) noexcept:
    """Appends an entry in the reserved room; the caller fills it."""
    w.count += 1
    return entry_at(w, w.count - 1)


cdef inline void window_drop_front(Window* w) noexcept:
    ring_drop_front(w)


cdef inline void window_trim(Window* w) noexcept:
    """Drops settled entries from the front, so that the window begins with a pending entry."""
    while w.count and not entry_at(w, 0).pending:
        window_drop_front(w)


cdef inline void window_clear(Window* w) noexcept:
    ring_clear(w)


cdef inline void window_compact(Window* w) noexcept:
    """Drops all settled entries."""
    cdef size_t i, kept = 0
    cdef Entry* e
    for i in range(w.count):
        e = entry_at(w, i)
        if e.pending:
            if kept != i:
                entry_at(w, kept)[0] = e[0]
            kept += 1
    w.count = kept


cdef inline int queue_make(Queue* q) except -1:
    return ring_make(q, WINDOW_FIRST, sizeof(uint64_t), b"redeliveries of a consumer")


cdef inline uint64_t queue_front(const Queue* q) noexcept:
    return (<uint64_t*>ring_at(q, 0, sizeof(uint64_t)))[0]


cdef inline int queue_push(Queue* q, uint64_t seq) except -1:
    (<uint64_t*>ring_push(q, sizeof(uint64_t), b"redeliveries of a consumer"))[0] = seq
    return 0


cdef inline void queue_remove(Queue* q, uint64_t seq) noexcept:
    """Removes seq from any position, if present."""
    cdef uint64_t* items = <uint64_t*>q.items
    cdef size_t i, mask = q.capacity - 1
    for i in range(q.count):
        if items[(q.head + i) & mask] == seq:
            break
    else:
        return
    while i:
        items[(q.head + i) & mask] = items[(q.head + i - 1) & mask]
        i -= 1
    ring_drop_front(q)
