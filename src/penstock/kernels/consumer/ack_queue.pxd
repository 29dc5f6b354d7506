"""The redelivery queue of a consumer: stream sequences, first in, first out."""
from libc.stdint cimport uint64_t

cdef struct Queue:
    uint64_t* items
    size_t capacity         # a power of two
    size_t head             # place of the oldest
    size_t count

cdef int queue_make(Queue* q) except -1
cdef void queue_free(Queue* q) noexcept
cdef int queue_push(Queue* q, uint64_t seq) except -1
# Takes seq out wherever it stands, if it is there.
cdef void queue_remove(Queue* q, uint64_t seq) noexcept


cdef inline uint64_t queue_front(const Queue* q) noexcept:
    return q.items[q.head]


cdef inline void queue_drop_front(Queue* q) noexcept:
    q.head = (q.head + 1) & (q.capacity - 1)
    q.count -= 1


cdef inline void queue_clear(Queue* q) noexcept:
    q.count = q.head = 0
