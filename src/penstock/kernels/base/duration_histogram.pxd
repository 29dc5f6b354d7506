"""Counts of durations in buckets, as a metrics page shows them."""
from libc.stdint cimport uint64_t

cdef enum:
    BOUNDS_MAX = 32

cdef class DurationHistogram:
    cdef uint64_t bounds[BOUNDS_MAX]        # upper bounds of the buckets, ns, ascending
    cdef uint64_t counts[BOUNDS_MAX + 1]    # by bucket; the last one is above all bounds
    cdef size_t size                        # number of bounds
    cdef uint64_t sum_ns
    # Counts `n` events that each took this time.
    cdef void add(self, uint64_t duration_ns, uint64_t n) noexcept
