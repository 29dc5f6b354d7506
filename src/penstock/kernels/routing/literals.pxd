"""The table of literal filters: a subject finds its entry, and many find theirs at once."""
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.string cimport memcmp, memcpy

from penstock.kernels.wire.slab cimport LINE
from penstock.kernels.wire.sinks cimport SubscriptionEntry, interest_words

# Open addressing, linear probing, at most half full. A cell is 0, or the address of an Interest, whose last bits,
# which are none of it (an Interest begins with a line), hold some of the hash: a probe that meets another subject's
# cell mostly costs no look at that subject.
cdef struct LiteralTable:
    uintptr_t* cells
    size_t capacity         # a power of two
    size_t count

# A subject that is about to be looked up, and what was found out about it ahead.
cdef struct Lookup:
    const char* subject
    size_t n
    uint64_t hash
    const void* index           # the SubscriptionIndex that found it out; NULL: nothing is known but subject and n
    uint64_t generation         # of the index, for which `cell` holds
    uintptr_t cell              # the first one with the right tag; 0: the subject isn't in the table

cdef int literal_put(LiteralTable* t, SubscriptionEntry* entry, uint64_t key_hash) except -1
# Another entry for the same subject.
cdef void literal_replace(LiteralTable* t, SubscriptionEntry* entry, SubscriptionEntry* by, uint64_t key_hash) noexcept
# Takes out an entry that is there.
cdef void literal_drop(LiteralTable* t, SubscriptionEntry* entry, uint64_t key_hash) noexcept
cdef void literals_free(LiteralTable* t) noexcept
# Finds out hashes and cells, and has those and what they lead to fetched, for all of them at once. Changes nothing
# but the time it takes.
cdef void literals_seek(const LiteralTable* t, Lookup* sought, size_t count, uint64_t seed) noexcept


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


cdef inline uintptr_t tag_of(uint64_t key_hash) noexcept nogil:
    return <uintptr_t>(key_hash >> 58)


cdef inline SubscriptionEntry* entry_in(uintptr_t cell) noexcept nogil:
    return <SubscriptionEntry*>(cell & ~<uintptr_t>(LINE - 1))


cdef inline bint is_entry_of(
    const SubscriptionEntry* entry, uint64_t key_hash, const char* key, size_t n
) noexcept nogil:
    return (
        entry.hash == <uint32_t>key_hash and entry.subject_len == n
        and memcmp(interest_words(entry), key, n) == 0
    )


cdef inline SubscriptionEntry* literal_get(
    const LiteralTable* t, uint64_t key_hash, const char* key, size_t n
) noexcept nogil:
    cdef size_t i
    cdef uintptr_t cell
    if t.count == 0:
        return NULL
    i = key_hash & (t.capacity - 1)
    while True:
        cell = t.cells[i]
        if cell == 0:
            return NULL
        if cell & (LINE - 1) == tag_of(key_hash) and is_entry_of(entry_in(cell), key_hash, key, n):
            return entry_in(cell)
        i = (i + 1) & (t.capacity - 1)
