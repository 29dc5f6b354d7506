"""The kernels' common hash table: from 64-bit keys to 64-bit values."""
from libc.stdint cimport uint64_t

# A value of 0 marks a free cell.
cdef struct Cell:
    uint64_t key
    uint64_t value

# All zeros is an empty table. It owns its cells, which table_free() frees, and nothing that values point to.
cdef struct HashTable:
    Cell* cells
    size_t capacity         # a power of two, or 0
    size_t count

# Removes an occupied cell and closes the gap. Cells move.
cdef void table_drop(HashTable* t, Cell* cell) noexcept nogil
# Grows the table for at least `count` entries.
cdef int table_enlarge(HashTable* t, size_t count) except -1
cdef void table_free(HashTable* t) noexcept nogil


# The low bits of a key decide its home: keys are hashes, or numbers that mixed() has spread.
cdef inline size_t home_of(const HashTable* t, uint64_t key) noexcept nogil:
    return <size_t>key & (t.capacity - 1)


cdef inline uint64_t mixed(uint64_t number) noexcept nogil:
    """A bijection whose low bits depend on all bits of the number (Fibonacci hashing)."""
    cdef uint64_t h = number * <uint64_t>0x9E3779B97F4A7C15
    return h ^ (h >> 32)


cdef inline void table_place(HashTable* t, uint64_t key, uint64_t value) noexcept nogil:
    cdef size_t i = home_of(t, key)
    while t.cells[i].value != 0:
        i = (i + 1) & (t.capacity - 1)
    t.cells[i].key = key
    t.cells[i].value = value


cdef inline int table_reserve(HashTable* t, size_t count) except -1:
    """Makes room for that many entries, so that adding them allocates nothing."""
    if t.capacity // 2 < count:
        table_enlarge(t, count)
    return 0


cdef inline int table_put(HashTable* t, uint64_t key, uint64_t value) except -1:
    """Adds a nonzero value, even if the key has others. Cells move: pointers to them become invalid."""
    table_reserve(t, t.count + 1)
    table_place(t, key, value)
    t.count += 1
    return 0


cdef inline Cell* table_from(const HashTable* t, size_t i, uint64_t key) noexcept nogil:
    while t.cells[i].value != 0:
        if t.cells[i].key == key:
            return &t.cells[i]
        i = (i + 1) & (t.capacity - 1)
    return NULL


cdef inline Cell* table_first(const HashTable* t, uint64_t key) noexcept nogil:
    """The first cell of a key, or NULL."""
    return NULL if t.count == 0 else table_from(t, home_of(t, key), key)


cdef inline Cell* table_next(const HashTable* t, const Cell* cell) noexcept nogil:
    """The next cell of the same key, or NULL: if keys are hashes, two entries may share one."""
    return table_from(t, (<size_t>(cell - t.cells) + 1) & (t.capacity - 1), cell.key)

# A table of numbers as an object: one value per key; its cells contain mixed keys.
cdef class NumberMap:
    cdef HashTable table
    cdef int get(self, uint64_t key, uint64_t* value) noexcept     # 1 when found
    cdef int put(self, uint64_t key, uint64_t value) except -1     # value: not 0
    cdef void remove(self, uint64_t key) noexcept
