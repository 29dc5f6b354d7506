"""The hash table of literal filters, with prefetched lookups of several subjects.

Inline, without an extension of its own: only subscription_index.pyx uses it.

Theory of operation. With a hundred thousand subjects, the memory that a publish reads between subject and receiver
is in no cache: its cell of this table, and the SubscriptionEntry of the filter's only subscription, which holds
everything that a delivery needs (sinks.pxd). So a connection with several publishes in its read buffer prefetches
the cells of all of them, then the entries. The cache misses of one step overlap, and the deliveries that follow hit
the cache.

Invariants: a prefetch changes no state. Its result is valid for the index's generation at that time: after any
insert or remove, a publish repeats its lookup. The table frees no entries.

It does not use base/hash_table, because here a cell is one word: the address of a cache line has six spare bits,
which hold a tag that excludes 63 of 64 other subjects, and eight cells share a cache line.

Rejected: cells with the whole hash beside the address (twice the memory, to save reading one foreign entry in 64
mismatches); huge pages (base/memory.pyx).
"""
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free
from libc.string cimport memcmp, memcpy

from penstock.kernels.base.memory cimport LINE, array_zeroed
from penstock.kernels.base.prefetch cimport fetch_to_read, fetch_to_write
from penstock.kernels.wire.sinks cimport SubscriptionEntry, entry_words

cdef enum:
    LITERALS_FIRST = 8
    WORDS_IN_FIRST_LINE = LINE - sizeof(SubscriptionEntry)
    SID_USUAL = 8               # bytes, with both blanks

# Open addressing, linear probing, at most half full. A cell is 0, or the address of a SubscriptionEntry. Entries are
# aligned to cache lines, so the low bits of the address are free and hold a tag, some bits of the hash: a probe that
# meets the cell of another subject rarely has to read that entry.
cdef struct LiteralTable:
    uintptr_t* cells
    size_t capacity         # a power of two
    size_t count

# A subject to look up, and the result of its prefetch.
cdef struct Lookup:
    const char* subject
    size_t n
    uint64_t hash
    const void* index           # the SubscriptionIndex of the prefetch; NULL: only subject and n are set
    uint64_t generation         # of the index, for which `cell` is valid
    uintptr_t cell              # the first cell with a matching tag; 0: the subject isn't in the table


cdef inline uint64_t mix(uint64_t h) noexcept nogil:
    h ^= h >> 32
    h *= <uint64_t>0x9E3779B97F4A7C15
    h ^= h >> 29
    return h


cdef inline uint64_t hash_bytes(const char* p, size_t n, uint64_t seed) noexcept nogil:
    """Hashes eight bytes per step; tuned for keys of 5 to 100 bytes."""
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
        and memcmp(entry_words(entry), key, n) == 0
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


cdef inline uintptr_t cell_of(const SubscriptionEntry* entry, uintptr_t tag) noexcept nogil:
    return <uintptr_t>entry | tag


cdef inline void literal_place(LiteralTable* t, uintptr_t cell) noexcept nogil:
    cdef size_t i = entry_in(cell).hash & (t.capacity - 1)
    while t.cells[i] != 0:
        i = (i + 1) & (t.capacity - 1)
    t.cells[i] = cell


cdef inline int literal_put(LiteralTable* t, SubscriptionEntry* entry, uint64_t key_hash) except -1:
    """Adds an entry whose subject isn't in the table yet."""
    cdef LiteralTable larger
    cdef size_t i
    if 2 * (t.count + 1) > t.capacity:
        larger.capacity = 2 * t.capacity if t.capacity else LITERALS_FIRST
        larger.count = t.count
        larger.cells = <uintptr_t*>array_zeroed(larger.capacity, sizeof(uintptr_t), b"literal filters")
        for i in range(t.capacity):
            if t.cells[i] != 0:
                literal_place(&larger, t.cells[i])
        free(t.cells)
        t[0] = larger
    entry.hash = <uint32_t>key_hash
    literal_place(t, cell_of(entry, tag_of(key_hash)))
    t.count += 1
    return 0


cdef inline size_t literal_position(
    const LiteralTable* t, const SubscriptionEntry* entry, uint64_t key_hash
) noexcept nogil:
    cdef size_t i = key_hash & (t.capacity - 1)
    while entry_in(t.cells[i]) != entry:
        i = (i + 1) & (t.capacity - 1)
    return i


cdef inline void literal_replace(
    LiteralTable* t, SubscriptionEntry* entry, SubscriptionEntry* by, uint64_t key_hash
) noexcept:
    by.hash = entry.hash
    t.cells[literal_position(t, entry, key_hash)] = cell_of(by, tag_of(key_hash))


cdef inline void literal_drop(LiteralTable* t, SubscriptionEntry* entry, uint64_t key_hash) noexcept:
    """Removes an entry and closes the gap, so that the table needs no tombstones."""
    cdef size_t mask = t.capacity - 1
    cdef size_t gap = literal_position(t, entry, key_hash)
    cdef size_t i = gap
    while True:
        i = (i + 1) & mask
        if t.cells[i] == 0:
            break
        # An entry may move into the gap unless its home cell lies behind the gap (cyclically).
        if ((i - (entry_in(t.cells[i]).hash & mask)) & mask) >= ((i - gap) & mask):
            t.cells[gap] = t.cells[i]
            gap = i
    t.cells[gap] = 0
    t.count -= 1


cdef inline void literals_free(LiteralTable* t) noexcept:
    free(t.cells)


cdef inline void literals_seek(const LiteralTable* t, Lookup* lookups, size_t count, uint64_t seed) noexcept:
    cdef size_t mask = t.capacity - 1
    cdef size_t i, at
    cdef uintptr_t tag, cell
    cdef const char* p
    for i in range(count):
        lookups[i].hash = hash_bytes(lookups[i].subject, lookups[i].n, seed)
        fetch_to_read(&t.cells[lookups[i].hash & mask])
    for i in range(count):
        at = lookups[i].hash & mask
        tag = tag_of(lookups[i].hash)
        cell = t.cells[at]
        while cell != 0 and cell & (LINE - 1) != tag:
            at = (at + 1) & mask
            cell = t.cells[at]
        lookups[i].cell = cell
        if cell != 0:
            p = <const char*>entry_in(cell)
            fetch_to_write(p)
            if lookups[i].n + SID_USUAL > WORDS_IN_FIRST_LINE:
                fetch_to_write(p + LINE)
