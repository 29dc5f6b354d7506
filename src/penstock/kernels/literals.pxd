"""The table of literal filters: a subject finds its entry, and many find theirs at once."""
from libc.stdint cimport uint64_t
from libc.string cimport memcmp, memcpy

# One literal filter. Its subject stands behind it in the same piece of memory.
cdef struct Literal:
    void* state             # FilterState, owned by SubscriptionIndex.states
    void* sole              # its only Subscription, when that is in no queue group; else NULL
    size_t key_len

# The hash stands beside the pointer: a probe that meets another subject's cell costs no look at that subject.
cdef struct LiteralCell:
    uint64_t hash
    Literal* literal        # NULL: nothing here

# Open addressing, linear probing, at most half full.
cdef struct LiteralTable:
    LiteralCell* cells
    size_t capacity         # a power of two
    size_t count

# A subject that is about to be looked up.
cdef struct Sought:
    const char* subject
    size_t n
    uint64_t hash
    void* found             # what of it is on its way into the processor's cache

cdef int literal_put(LiteralTable* t, Literal* literal, uint64_t key_hash) except -1
cdef Literal* literal_new(const char* key, size_t n) except NULL
# Takes out an entry that is there, and frees it.
cdef void literal_drop(LiteralTable* t, Literal* literal, uint64_t key_hash) noexcept nogil
cdef void literals_free(LiteralTable* t) noexcept nogil
# Has what looking them up and delivering to a sole subscription will read fetched, for all of them at once.
# Changes nothing but the time it takes.
cdef void literals_fetch(const LiteralTable* t, Sought* sought, size_t count, uint64_t seed) noexcept


cdef inline uint64_t mix(uint64_t h) noexcept nogil:
    h ^= h >> 32
    h *= <uint64_t>0x9E3779B97F4A7C15
    h ^= h >> 29
    return h


cdef inline uint64_t hash_bytes(const char* p, size_t n, uint64_t seed) noexcept nogil:
    """Eight bytes a step; made for keys of 5 to 100 bytes."""
    cdef uint64_t h = seed ^ (<uint64_t>n * <uint64_t>0xD6E8FEB86659FD93)
    cdef uint64_t word
    while n >= 8:
        memcpy(&word, p, 8)
        h = (h ^ word) * <uint64_t>0xFF51AFD7ED558CCD
        h ^= h >> 32
        p += 8
        n -= 8
    if n:
        word = 0
        while n:
            n -= 1
            word = (word << 8) | <unsigned char>p[n]
        h = (h ^ word) * <uint64_t>0xC4CEB9FE1A85EC53
    return mix(h)


cdef inline char* literal_key(const Literal* literal) noexcept nogil:
    return <char*>literal + sizeof(Literal)


cdef inline Literal* literal_get(
    const LiteralTable* t, uint64_t key_hash, const char* key, size_t n
) noexcept nogil:
    cdef size_t i
    cdef const LiteralCell* cell
    if t.count == 0:
        return NULL
    i = key_hash & (t.capacity - 1)
    while True:
        cell = &t.cells[i]
        if cell.literal == NULL:
            return NULL
        if (
            cell.hash == key_hash and cell.literal.key_len == n
            and memcmp(literal_key(cell.literal), key, n) == 0
        ):
            return cell.literal
        i = (i + 1) & (t.capacity - 1)
