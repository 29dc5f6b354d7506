"""Open batches, found by the bytes that name them."""
from libc.stdint cimport uint64_t

cdef class KeyEntry:
    cdef KeyEntry next              # in its bucket
    cdef uint64_t hash
    cdef bytes key

cdef class KeyTable:
    cdef list buckets
    cdef uint64_t seed, mask
    cdef int make(self, size_t buckets) except -1
    cdef KeyEntry look_up(self, const char* key, size_t n)
    cdef int add(self, KeyEntry entry, bytes key) except -1
    cdef int remove(self, KeyEntry entry) except -1
    cdef list entries(self)
