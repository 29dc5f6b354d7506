# cython: auto_pickle=False
"""The table of literal filters: a subject finds its entry, and many find theirs at once.

Theory of operation. With a hundred thousand subjects, what a publish touches on its way from the subject to
the receiver (cell, entry, Subscription, sid) is in no cache: each step waits for memory, and the next one
can't begin before. So a connection that has several publishes in its read buffer takes a handful and asks
for the cells of all, then for the entries, then for the subscriptions; the waits of one step overlap, and
delivering them one after the other then finds everything close by.

Invariants: fetching ahead is a hint. It reads the table as it is, keeps nothing, and every publish is looked
up anew at its turn, so that whatever a delivery changes is seen by the next one.

Rejected: keeping the found entries for the delivery (a subscriber that goes in between would leave them
dangling; the second probe costs 10 ns); a prepared `MSG <subject> <sid> ` beside each entry (one copy instead
of two, for 40 bytes more a subscription).
"""
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from penstock.kernels.sinks cimport Subscription

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

cdef enum:
    TABLE_FIRST = 8
    LINE = 64                   # bytes that come from memory at once


cdef Literal* literal_new(const char* key, size_t n) except NULL:
    cdef Literal* literal = <Literal*>malloc(sizeof(Literal) + n)
    if literal == NULL:
        raise MemoryError(f"no memory for a subject of {n} bytes")
    literal.state = literal.sole = NULL
    literal.key_len = n
    memcpy(literal_key(literal), key, n)
    return literal


cdef void place(LiteralTable* t, Literal* literal, uint64_t key_hash) noexcept nogil:
    cdef size_t i = key_hash & (t.capacity - 1)
    while t.cells[i].literal != NULL:
        i = (i + 1) & (t.capacity - 1)
    t.cells[i].hash = key_hash
    t.cells[i].literal = literal


cdef int literal_put(LiteralTable* t, Literal* literal, uint64_t key_hash) except -1:
    """Adds an entry whose key isn't there yet."""
    cdef LiteralTable larger
    cdef size_t i
    if 2 * (t.count + 1) > t.capacity:
        larger.capacity = 2 * t.capacity if t.capacity else TABLE_FIRST
        larger.count = t.count
        larger.cells = <LiteralCell*>calloc(larger.capacity, sizeof(LiteralCell))
        if larger.cells == NULL:
            raise MemoryError(f"no memory for a table of {larger.capacity} subjects")
        for i in range(t.capacity):
            if t.cells[i].literal != NULL:
                place(&larger, t.cells[i].literal, t.cells[i].hash)
        free(t.cells)
        t[0] = larger
    place(t, literal, key_hash)
    t.count += 1
    return 0


cdef void literal_drop(LiteralTable* t, Literal* literal, uint64_t key_hash) noexcept nogil:
    """Closes the gap, so that probing never meets a tombstone."""
    cdef size_t mask = t.capacity - 1
    cdef size_t gap = key_hash & mask
    cdef size_t i
    while t.cells[gap].literal != literal:
        gap = (gap + 1) & mask
    i = gap
    while True:
        i = (i + 1) & mask
        if t.cells[i].literal == NULL:
            break
        # An entry may move into the gap unless its own place lies behind the gap (cyclically).
        if ((i - (t.cells[i].hash & mask)) & mask) >= ((i - gap) & mask):
            t.cells[gap] = t.cells[i]
            gap = i
    t.cells[gap].literal = NULL
    t.count -= 1
    free(literal)


cdef void literals_free(LiteralTable* t) noexcept nogil:
    cdef size_t i
    for i in range(t.capacity):
        free(t.cells[i].literal)
    free(t.cells)


cdef void literals_fetch(const LiteralTable* t, Sought* sought, size_t count, uint64_t seed) noexcept:
    cdef size_t mask = t.capacity - 1
    cdef size_t i, at
    cdef const LiteralCell* cell
    cdef const Literal* literal
    cdef const char* p
    for i in range(count):
        sought[i].hash = hash_bytes(sought[i].subject, sought[i].n, seed)
        fetch_to_read(&t.cells[sought[i].hash & mask])
    for i in range(count):
        at = sought[i].hash & mask
        cell = &t.cells[at]
        while cell.literal != NULL and cell.hash != sought[i].hash:
            at = (at + 1) & mask
            cell = &t.cells[at]
        p = <const char*>cell.literal
        sought[i].found = <void*>p
        if p != NULL:
            fetch_to_read(p)
            fetch_to_read(p + sizeof(Literal) + sought[i].n - 1)
    for i in range(count):
        literal = <const Literal*>sought[i].found
        if literal != NULL:
            p = <const char*>literal.sole
            sought[i].found = <void*>p
            if p != NULL:
                fetch_to_write(p)
                fetch_to_write(p + LINE)
    for i in range(count):
        if sought[i].found != NULL:
            p = <const char*>(<void*>(<Subscription>sought[i].found).sid)
            fetch_to_write(p)
            fetch_to_read(PyBytes_AS_STRING((<Subscription>sought[i].found).sid) + 7)
