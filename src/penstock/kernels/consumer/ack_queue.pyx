"""The redelivery queue of a consumer: a ring of stream sequences in the order in which they became due.

Items may be stale (their message was settled meanwhile): whoever reads the front asks the window about it.
"""
from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc

cdef enum:
    CAPACITY_MIN = 64


cdef int queue_make(Queue* q) except -1:
    q.items = <uint64_t*>malloc(CAPACITY_MIN * sizeof(uint64_t))
    if q.items == NULL:
        raise MemoryError("no memory for the redeliveries of a consumer")
    q.capacity = CAPACITY_MIN
    q.head = q.count = 0
    return 0


cdef void queue_free(Queue* q) noexcept:
    free(q.items)
    q.items = NULL


cdef int queue_push(Queue* q, uint64_t seq) except -1:
    cdef uint64_t* items
    cdef size_t i
    if q.count == q.capacity:
        items = <uint64_t*>malloc(q.capacity * 2 * sizeof(uint64_t))
        if items == NULL:
            raise MemoryError(f"no memory for {q.capacity * 2} redeliveries")
        for i in range(q.count):
            items[i] = q.items[(q.head + i) & (q.capacity - 1)]
        free(q.items)
        q.items = items
        q.head = 0
        q.capacity *= 2
    q.items[(q.head + q.count) & (q.capacity - 1)] = seq
    q.count += 1
    return 0


cdef void queue_remove(Queue* q, uint64_t seq) noexcept:
    cdef size_t i, mask = q.capacity - 1
    for i in range(q.count):
        if q.items[(q.head + i) & mask] == seq:
            break
    else:
        return
    while i:
        q.items[(q.head + i) & mask] = q.items[(q.head + i - 1) & mask]
        i -= 1
    queue_drop_front(q)
