# cython: auto_pickle=False
"""One hash table: from 64-bit keys to 64-bit values.

A key is a mixed number, or the hash of an entry's name. In the second case the value is a pointer or an index of
the entry, and the caller compares names while it iterates with table_first() and table_next(). A cell stores the
whole hash: only one lookup in 2^64 reads the entry of another name, and growing reads no entry.

Theory of operation. Open addressing, linear probing, at most half full. A removal moves later cells into the gap
if they may, so that there are no tombstones, and a probe ends at the first free cell. A table keeps its capacity
when entries are removed.

Invariants: between the home of an occupied cell and the cell itself no cell is free; count is the number of occupied
cells. A caller that hashes input of a peer seeds the hash per process, so that a peer cannot construct collisions.

Four tables of the kernels are separate, each for a reason given in its module: filters of literal subjects
(routing/literals.pxd: a cell is the entry's address with a tag in its low bits, and is prefetched), subjects of a log
and the edges of their trie (log/subject_state.pyx) and message ids (ingest/publish_headers.pyx: a quarter of the
memory per cell, with millions of entries).

Rejected: chains (a pointer and an allocation per entry); a callback for comparing (a call per probe); one cell size
for all (16 bytes for millions of 4-byte numbers).
"""
from libc.stdint cimport uint64_t
from libc.stdlib cimport free

from penstock.kernels.base.memory cimport array_zeroed

cdef enum:
    CAPACITY_FIRST = 8


cdef int table_enlarge(HashTable* t, size_t count) except -1:
    cdef HashTable larger
    cdef size_t i
    larger.capacity = t.capacity if t.capacity else CAPACITY_FIRST
    while larger.capacity // 2 < count:
        larger.capacity *= 2
    larger.cells = <Cell*>array_zeroed(larger.capacity, sizeof(Cell), b"cells of a hash table")
    larger.count = t.count
    for i in range(t.capacity):
        if t.cells[i].value != 0:
            table_place(&larger, t.cells[i].key, t.cells[i].value)
    free(t.cells)
    t[0] = larger
    return 0


cdef void table_drop(HashTable* t, Cell* cell) noexcept nogil:
    cdef size_t mask = t.capacity - 1
    cdef size_t gap = <size_t>(cell - t.cells)
    cdef size_t i = gap
    while True:
        i = (i + 1) & mask
        if t.cells[i].value == 0:
            break
        # A cell may move into the gap unless its home lies after the gap (cyclically).
        if ((i - home_of(t, t.cells[i].key)) & mask) >= ((i - gap) & mask):
            t.cells[gap] = t.cells[i]
            gap = i
    t.cells[gap].value = 0
    t.count -= 1


cdef void table_free(HashTable* t) noexcept nogil:
    free(t.cells)
    t.cells = NULL
    t.capacity = t.count = 0


cdef uint64_t unmixed(uint64_t h) noexcept nogil:
    """The inverse of mixed()."""
    h ^= h >> 32
    return h * <uint64_t>0xF1DE83E19937733D


cdef class NumberMap:
    """Maps each number to one nonzero value."""

    def __dealloc__(self):
        table_free(&self.table)

    cdef int get(self, uint64_t key, uint64_t* value) noexcept:
        cdef Cell* cell = table_first(&self.table, mixed(key))
        if cell == NULL:
            return 0
        value[0] = cell.value
        return 1

    cdef int put(self, uint64_t key, uint64_t value) except -1:
        cdef Cell* cell = table_first(&self.table, mixed(key))
        if cell == NULL:
            return table_put(&self.table, mixed(key), value)
        cell.value = value
        return 0

    cdef void remove(self, uint64_t key) noexcept:
        cdef Cell* cell = table_first(&self.table, mixed(key))
        if cell != NULL:
            table_drop(&self.table, cell)

    # --- for Python: tests and fuzzers

    def __len__(self):
        return self.table.count

    def __getitem__(self, key):
        cdef uint64_t value = 0
        if not self.get(key, &value):
            raise KeyError(key)
        return value

    def __setitem__(self, key, uint64_t value):
        if value == 0:
            raise ValueError("0 marks a free cell")
        self.put(key, value)

    def __delitem__(self, key):
        if table_first(&self.table, mixed(key)) == NULL:
            raise KeyError(key)
        self.remove(key)

    def add(self, uint64_t key, uint64_t value):
        """Adds another value for a key."""
        if value == 0:
            raise ValueError("0 marks a free cell")
        table_put(&self.table, mixed(key), value)

    def drop(self, uint64_t key, uint64_t value):
        """Removes one value of a key. Raises KeyError when it is not there."""
        cdef Cell* cell = table_first(&self.table, mixed(key))
        while cell != NULL and cell.value != value:
            cell = table_next(&self.table, cell)
        if cell == NULL:
            raise KeyError((key, value))
        table_drop(&self.table, cell)

    def all(self, uint64_t key):
        """The values of a key."""
        cdef Cell* cell = table_first(&self.table, mixed(key))
        cdef list found = []
        while cell != NULL:
            found.append(cell.value)
            cell = table_next(&self.table, cell)
        return found

    def items(self):
        """[(key, value)], in no order."""
        cdef size_t i
        return [
            (unmixed(self.table.cells[i].key), self.table.cells[i].value)
            for i in range(self.table.capacity) if self.table.cells[i].value
        ]

    def reserve(self, size_t count):
        """Makes room for that many entries."""
        table_reserve(&self.table, count)

    @property
    def capacity(self):
        return self.table.capacity
