"""Memory in whole cache lines, for what is read and written at random places in very large numbers."""


cdef enum:
    LINE = 64       # bytes that come from memory at once

# Memory for n bytes that begins with a line; NULL when there is none.
cdef void* slab_alloc(size_t n) noexcept
# Gives back what lines_take(n) gave, n the same.
cdef void slab_free(void* p, size_t n) noexcept
