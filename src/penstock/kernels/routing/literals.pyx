# cython: auto_pickle=False
"""The table of literal filters: a subject finds its entry, and many find theirs at once.

Theory of operation. With a hundred thousand subjects, what a publish touches on its way from the subject to
the receiver is in no cache: its cell here, and the entry, which is the Interest of the filter's only
subscription, all that a delivery needs to know (sinks.pxd). So a connection that has several publishes in its
read buffer takes a handful and asks for the cells of all, then for the entries; the waits of one step overlap,
and delivering them one after the other then finds everything close by.

Invariants: seeking ahead changes nothing. What it found holds for the index's generation of that moment: after
any insert or remove a publish is looked up anew at its turn. The table frees no entries.

Rejected: cells with the whole hash beside the address (twice the memory, for a look at another subject in 64
that tell nothing apart); huge pages (slab.pyx).
"""
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport calloc, free

from penstock.kernels.routing.prefetch cimport fetch_to_read, fetch_to_write

cdef enum:
    TABLE_FIRST = 8
    WORDS_IN_FIRST_LINE = LINE - sizeof(SubscriptionEntry)
    SID_USUAL = 8               # bytes, with both blanks


cdef inline uintptr_t cell_of(const SubscriptionEntry* entry, uintptr_t tag) noexcept nogil:
    return <uintptr_t>entry | tag


cdef void place(LiteralTable* t, uintptr_t cell) noexcept nogil:
    cdef size_t i = entry_in(cell).hash & (t.capacity - 1)
    while t.cells[i] != 0:
        i = (i + 1) & (t.capacity - 1)
    t.cells[i] = cell


cdef int literal_put(LiteralTable* t, SubscriptionEntry* entry, uint64_t key_hash) except -1:
    """Adds an entry whose subject isn't there yet."""
    cdef LiteralTable larger
    cdef size_t i
    if 2 * (t.count + 1) > t.capacity:
        larger.capacity = 2 * t.capacity if t.capacity else TABLE_FIRST
        larger.count = t.count
        larger.cells = <uintptr_t*>calloc(larger.capacity, sizeof(uintptr_t))
        if larger.cells == NULL:
            raise MemoryError(f"no memory for a table of {larger.capacity} subjects")
        for i in range(t.capacity):
            if t.cells[i] != 0:
                place(&larger, t.cells[i])
        free(t.cells)
        t[0] = larger
    entry.hash = <uint32_t>key_hash
    place(t, cell_of(entry, tag_of(key_hash)))
    t.count += 1
    return 0


cdef size_t position(const LiteralTable* t, const SubscriptionEntry* entry, uint64_t key_hash) noexcept nogil:
    cdef size_t i = key_hash & (t.capacity - 1)
    while entry_in(t.cells[i]) != entry:
        i = (i + 1) & (t.capacity - 1)
    return i


cdef void literal_replace(LiteralTable* t, SubscriptionEntry* entry, SubscriptionEntry* by, uint64_t key_hash) noexcept:
    by.hash = entry.hash
    t.cells[position(t, entry, key_hash)] = cell_of(by, tag_of(key_hash))


cdef void literal_drop(LiteralTable* t, SubscriptionEntry* entry, uint64_t key_hash) noexcept:
    """Closes the gap, so that probing never meets a tombstone."""
    cdef size_t mask = t.capacity - 1
    cdef size_t gap = position(t, entry, key_hash)
    cdef size_t i = gap
    while True:
        i = (i + 1) & mask
        if t.cells[i] == 0:
            break
        # An entry may move into the gap unless its own place lies behind the gap (cyclically).
        if ((i - (entry_in(t.cells[i]).hash & mask)) & mask) >= ((i - gap) & mask):
            t.cells[gap] = t.cells[i]
            gap = i
    t.cells[gap] = 0
    t.count -= 1


cdef void literals_free(LiteralTable* t) noexcept:
    free(t.cells)


cdef void literals_seek(const LiteralTable* t, Lookup* sought, size_t count, uint64_t seed) noexcept:
    cdef size_t mask = t.capacity - 1
    cdef size_t i, at
    cdef uintptr_t tag, cell
    cdef const char* p
    for i in range(count):
        sought[i].hash = hash_bytes(sought[i].subject, sought[i].n, seed)
        fetch_to_read(&t.cells[sought[i].hash & mask])
    for i in range(count):
        at = sought[i].hash & mask
        tag = tag_of(sought[i].hash)
        cell = t.cells[at]
        while cell != 0 and cell & (LINE - 1) != tag:
            at = (at + 1) & mask
            cell = t.cells[at]
        sought[i].cell = cell
        if cell != 0:
            p = <const char*>entry_in(cell)
            fetch_to_write(p)
            if sought[i].n + SID_USUAL > WORDS_IN_FIRST_LINE:
                fetch_to_write(p + LINE)
