"""Memory in whole cache lines, for what is read and written at random places in very large numbers."""

cdef enum:
    LINE = 64       # bytes that come from memory at once

# Memory for n bytes that begins with a line; NULL when there is none.
cdef void* lines_take(size_t n) noexcept
# Gives back what lines_take(n) gave, n the same.
cdef void lines_give(void* p, size_t n) noexcept
