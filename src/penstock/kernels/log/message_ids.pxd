"""The message ids of a stream's dedupe window."""
from libc.stdint cimport int64_t, uint32_t, uint64_t

# One id; its bytes follow, the whole padded to 8.
cdef struct IdEntry:
    uint64_t seq
    int64_t ts
    uint32_t hash
    uint32_t size                   # bytes of the id

cdef class MessageIds:
    cdef readonly int64_t window_ns
    cdef readonly size_t count
    # Entries in order of time, between head and tail; a place is an offset since the first entry ever, so
    # that moving the entries to the front of the arena changes nobody's place.
    cdef char* arena
    cdef size_t capacity
    cdef uint64_t base              # place of the arena's first byte
    cdef uint64_t head, tail        # places of the oldest entry and of the next one
    cdef uint32_t* table            # place / 8 (modulo) by hash, open addressing
    cdef size_t table_size          # a power of two; 0: no table yet
    cdef uint64_t seed
    cdef char* last                 # the id of the last message stored
    cdef size_t last_size, last_capacity
    # The sequence under an id within the window before `now`, or 0.
    cdef uint64_t seq_of(self, const char* id, size_t n, int64_t now) except? 0
    # Remembers an id that seq_of just didn't find. ts is no earlier than the one before.
    cdef int remember(self, const char* id, size_t n, uint64_t seq, int64_t ts) except -1
    cdef int set_last(self, const char* id, size_t n) except -1
    cdef bint is_last(self, const char* id, size_t n) noexcept
    cdef IdEntry* _at(self, uint64_t place) noexcept
    cdef uint64_t _place(self, uint32_t slot) noexcept
    cdef size_t _slot(self, const char* id, size_t n, uint32_t h) noexcept
    cdef size_t _slot_of_place(self, uint64_t place, uint32_t h) noexcept
    cdef int _make_room(self, size_t size) except -1
    cdef int _resize_table(self, size_t size) except -1
    cdef void _insert(self, uint64_t place, uint32_t h) noexcept
    cdef void _empty(self, size_t slot) noexcept
    cdef int _shrink(self) except -1
    cpdef int prune(self, int64_t now) except -1
