"""The subjects that a filter matches in a log, with their counts, as they were at one moment."""
from libc.stdint cimport uint32_t, uint64_t

cdef struct SubjectCount:
    uint64_t count
    size_t text                 # offset of its text
    uint32_t text_len

cdef class SubjectCounts:
    cdef SubjectCount* items
    cdef size_t total
    cdef char* texts
    cdef uint32_t* order        # places in items: runs of `width` of them are in order
    cdef uint32_t* merged       # the same with runs twice as long, up to `left`
    cdef size_t width           # 0 = runs of the first length are being made
    cdef size_t at              # where the pair of runs begins that is being worked on
    cdef size_t left, right     # how far its two runs are merged
    cdef bint in_pair
    cdef bint _is_before(self, uint32_t one, uint32_t other) noexcept nogil
    cdef size_t _sort_run(self) noexcept
    cdef size_t _merge(self, size_t most) noexcept
