"""Prefetch hints: bring memory that is needed soon into the processor's cache."""


cdef extern from *:
    """
    #if defined(__GNUC__) || defined(__clang__)
    #define fetch_to_read(p) __builtin_prefetch(p)
    #define fetch_to_write(p) __builtin_prefetch(p, 1)
    #else
    #define fetch_to_read(p) ((void)(p))
    #define fetch_to_write(p) ((void)(p))
    #endif
    """
    void fetch_to_read(const void* p) noexcept nogil
    void fetch_to_write(const void* p) noexcept nogil
