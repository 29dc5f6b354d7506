"""The deliveries above a consumer's ack floor.

The window is a ring of entries ordered by stream sequence, from the oldest pending one up to the newest
delivered. An ack finds its entry by an offset guess (consumer sequences are dense where nothing was
redelivered), else by binary search. Acked entries in the middle stay until the front moves over them, or
until whoever owns the window has it compacted.

What an ack and a delivery do with it is inline in the .pxd; here is what happens seldom.
"""
from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

cdef enum:
    CAPACITY_MIN = 64


cdef int window_make(Window* w) except -1:
    w.ring = <Entry*>malloc(CAPACITY_MIN * sizeof(Entry))
    if w.ring == NULL:
        raise MemoryError("no memory for the window of a consumer")
    w.capacity = CAPACITY_MIN
    w.head = w.count = 0
    return 0


cdef void window_free(Window* w) noexcept:
    free(w.ring)
    w.ring = NULL


cdef int window_grow(Window* w) except -1:
    cdef size_t capacity = w.capacity * 2, first
    cdef Entry* ring = <Entry*>malloc(capacity * sizeof(Entry))
    if ring == NULL:
        raise MemoryError(f"no memory for a window of {capacity} deliveries")
    first = w.capacity - w.head
    if first > w.count:
        first = w.count
    memcpy(ring, w.ring + w.head, first * sizeof(Entry))
    memcpy(ring + first, w.ring, (w.count - first) * sizeof(Entry))
    free(w.ring)
    w.ring = ring
    w.capacity = capacity
    w.head = 0
    return 0


cdef void window_compact(Window* w) noexcept:
    cdef size_t i, kept = 0
    cdef Entry* e
    for i in range(w.count):
        e = entry_at(w, i)
        if e.pending:
            if kept != i:
                entry_at(w, kept)[0] = e[0]
            kept += 1
    w.count = kept


cdef size_t window_search(const Window* w, uint64_t seq) noexcept:
    cdef size_t low = 0, high = w.count, middle
    while low < high:
        middle = low + (high - low) // 2
        if entry_at(w, middle).seq < seq:
            low = middle + 1
        else:
            high = middle
    return low
