"""Memory of the kernels: arrays that grow, rings, and pieces in whole cache lines.

Ownership: the caller of array_new(), array_zeroed() or array_grow() owns the memory and passes it to free();
a ring is freed by ring_free(). Pointers into an array or a ring die when it grows. A failed allocation raises
MemoryError and leaves the old memory as it was, with its owner.
"""
from libc.stdint cimport uint64_t

cdef enum:
    LINE = 64       # bytes that come from memory at once

# `what` of all of these is plural, for the text of the MemoryError.
# Memory for `count` items of `width` bytes, uninitialised; never NULL, for no items neither.
cdef void* array_new(size_t count, size_t width, const char* what) except NULL
# The same, all zeros.
cdef void* array_zeroed(size_t count, size_t width, const char* what) except NULL
# `p` (NULL: nothing yet, and capacity 0) with a capacity of `count` items at least; doubles from `first` on. `p` is
# the caller's no more. Nothing happens while the capacity is enough.
cdef inline void* array_grow(
    void* p, size_t* capacity, size_t count, size_t width, size_t first, const char* what
) except NULL:
    return p if p != NULL and count <= capacity[0] else array_enlarge(p, capacity, count, width, first, what)

# array_grow() where the capacity is not enough.
cdef void* array_enlarge(
    void* p, size_t* capacity, size_t count, size_t width, size_t first, const char* what
) except NULL
# Gives back what is above `count` items, which is not 0; where that fails, the larger memory stays.
cdef void* array_shrink(void* p, size_t* capacity, size_t count, size_t width) noexcept

# A queue whose items lie around the end of its memory; ring_at() finds them, with the width it was made with.
cdef struct Ring:
    void* items
    size_t capacity         # a power of two
    size_t head             # place of the oldest
    size_t count

cdef int ring_make(Ring* r, size_t capacity, size_t width, const char* what) except -1
cdef void ring_free(Ring* r) noexcept
cdef int ring_grow(Ring* r, size_t width, const char* what) except -1


cdef inline void* ring_at(const Ring* r, size_t i, size_t width) noexcept nogil:
    """The i-th item from the oldest on."""
    return <char*>r.items + ((r.head + i) & (r.capacity - 1)) * width


cdef inline void* ring_push(Ring* r, size_t width, const char* what) except NULL:
    """Room for an item behind the others, which counts already; the caller fills it."""
    if r.count == r.capacity:
        ring_grow(r, width, what)
    r.count += 1
    return ring_at(r, r.count - 1, width)


cdef inline void ring_drop_front(Ring* r) noexcept nogil:
    r.head = (r.head + 1) & (r.capacity - 1)
    r.count -= 1


cdef inline void ring_clear(Ring* r) noexcept nogil:
    r.count = r.head = 0

# Memory for n bytes that begins with a line; NULL when there is none.
cdef void* slab_alloc(size_t n) noexcept
# Gives back what slab_alloc(n) gave, n the same.
cdef void slab_free(void* p, size_t n) noexcept

# A ring of numbers as an object.
cdef class NumberQueue:
    cdef Ring ring
