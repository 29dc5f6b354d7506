"""Memory of the kernels: growing arrays, rings, and a slab allocator in whole cache lines.

Ownership: the caller of array_new(), array_zeroed() or array_grow() owns the memory and passes it to free();
a ring is freed by ring_free(). Pointers into an array or a ring become invalid when it grows. A failed allocation
raises MemoryError; the caller still owns the old memory, unchanged.
"""
from libc.stdint cimport uint64_t

cdef enum:
    LINE = 64       # bytes of a cache line

# `what` of all of these is plural, for the text of the MemoryError.
# Memory for `count` items of `width` bytes, uninitialised; never NULL, not even for no items.
cdef void* array_new(size_t count, size_t width, const char* what) except NULL
# The same, all zeros.
cdef void* array_zeroed(size_t count, size_t width, const char* what) except NULL
# Grows `p` (NULL with capacity 0 at first) to a capacity of at least `count` items, doubling from `first` on. The
# result replaces `p`, which must not be used or freed any more. A no-op while the capacity suffices.
cdef inline void* array_grow(
    void* p, size_t* capacity, size_t count, size_t width, size_t first, const char* what
) except NULL:
    return p if p != NULL and count <= capacity[0] else array_enlarge(p, capacity, count, width, first, what)

# array_grow() for a capacity that does not suffice.
cdef void* array_enlarge(
    void* p, size_t* capacity, size_t count, size_t width, size_t first, const char* what
) except NULL
# Frees the memory above `count` items, which is not 0; if that fails, the larger memory stays.
cdef void* array_shrink(void* p, size_t* capacity, size_t count, size_t width) noexcept

# A queue in a circular buffer; ring_at() returns its items, with the width it was made with.
cdef struct Ring:
    void* items
    size_t capacity         # a power of two
    size_t head             # index of the oldest item
    size_t count

cdef int ring_make(Ring* r, size_t capacity, size_t width, const char* what) except -1
cdef void ring_free(Ring* r) noexcept
cdef int ring_grow(Ring* r, size_t width, const char* what) except -1


cdef inline void* ring_at(const Ring* r, size_t i, size_t width) noexcept nogil:
    """The i-th item, the oldest first."""
    return <char*>r.items + ((r.head + i) & (r.capacity - 1)) * width


cdef inline void* ring_push(Ring* r, size_t width, const char* what) except NULL:
    """Appends an item and returns its memory; the caller fills it."""
    if r.count == r.capacity:
        ring_grow(r, width, what)
    r.count += 1
    return ring_at(r, r.count - 1, width)


cdef inline void ring_drop_front(Ring* r) noexcept nogil:
    r.head = (r.head + 1) & (r.capacity - 1)
    r.count -= 1


cdef inline void ring_clear(Ring* r) noexcept nogil:
    r.count = r.head = 0

# Memory for n bytes, aligned to a cache line; NULL when there is none.
cdef void* slab_alloc(size_t n) noexcept
# Frees memory of slab_alloc(n), with the same n.
cdef void slab_free(void* p, size_t n) noexcept

# A ring of numbers as an object.
cdef class NumberQueue:
    cdef Ring ring
