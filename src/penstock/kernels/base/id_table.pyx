# cython: auto_pickle=False
"""A hash table of 4-byte ids: the owner has the entries, and compares them.

With millions of entries, a cell of 16 bytes as in hash_table would be too large, and moving all entries at once when
the table grows would hold up everything else: 60 ms for 1.6 million, which lie scattered in memory.

Theory of operation. Open addressing, linear probing, at most half full: each occupied cell that a lookup passes costs
a cache miss at the owner's entry, about one of them for a new id; three if the table were filled to three quarters. To
grow, the table gets a second array of twice the size, and each id_put() moves some cells of the old one. A lookup
searches both. Only whole runs of occupied cells are moved, so that every probe in the old array still ends at a free
cell or at its entry. A removal moves later cells of its array into the gap if they may, so that there are no
tombstones.

Invariants: an id is in one of the arrays; in each, no cell is free between the home of an occupied cell and the cell
itself. The next cell to move lies behind a free cell. A caller that hashes input of a peer seeds the hash per
process, so that a peer cannot construct collisions, and runs stay short.

Rejected: hashes in the cells (twice the memory, to save one cache miss for each entry of a growing table); moving
everything at once with prefetches (two thirds of the time).
"""
from libc.stdint cimport uint32_t
from libc.stdlib cimport free

from penstock.kernels.base.memory cimport array_grow, array_zeroed

cdef enum:
    CELLS_FIRST = 16
    CELLS_MOVED = 16            # by each id_put(): growing ends long before the new array is full
    CELLS_SHRUNK = 1 << 18      # by each id_shrink(): most are free, so that this takes less than a millisecond


cdef void place(IdCells* c, uint32_t cell, uint32_t h) noexcept nogil:
    cdef size_t at = h & c.mask
    while c.cells[at]:
        at = (at + 1) & c.mask
    c.cells[at] = cell


cdef int start_moving(IdTable* t, size_t cells) except -1:
    """Makes a new array; what is in the present one becomes `old`."""
    cdef uint32_t* larger = <uint32_t*>array_zeroed(cells, sizeof(uint32_t), b"cells of a hash table")
    assert t.old.cells == NULL
    if t.cells.cells != NULL:
        t.old = t.cells
        t.next = 0
        t.left = t.old.mask + 1
        while t.old.cells[t.next]:      # behind a free cell: the run around the array's end stays whole
            t.next += 1
    t.cells.cells = larger
    t.cells.mask = cells - 1
    return 0


cdef void move_some(IdTable* t, size_t most, HashOf hash_of, void* owner) noexcept:
    """Moves `most` cells, and the rest of the run that it ends in."""
    cdef uint32_t cell = 1
    while t.left and (most or cell):
        cell = t.old.cells[t.next]
        if cell:
            place(&t.cells, cell, hash_of(owner, cell - 1))
            t.old.cells[t.next] = 0
        t.next = (t.next + 1) & t.old.mask
        t.left -= 1
        if most:
            most -= 1
    if t.left == 0:
        free(t.old.cells)
        t.old.cells = NULL


cdef int id_put(IdTable* t, uint32_t id, uint32_t h, HashOf hash_of, void* owner) except -1:
    if t.cells.cells == NULL:
        start_moving(t, CELLS_FIRST)
    elif (t.count + 1) * 2 > t.cells.mask + 1:
        if t.old.cells != NULL:         # only after id_shrink(): the old array is mostly free
            move_some(t, t.left, hash_of, owner)
        start_moving(t, (t.cells.mask + 1) * 2)
    if t.old.cells != NULL:
        move_some(t, CELLS_MOVED, hash_of, owner)
    place(&t.cells, id + 1, h)
    t.count += 1
    return 0


cdef uint32_t* cell_of(IdCells* c, uint32_t id, uint32_t h) noexcept nogil:
    """The cell of an id, or NULL."""
    cdef const uint32_t* cell = id_first(c, h)
    while cell != NULL and cell[0] != id + 1:
        cell = id_next(c, cell)
    return <uint32_t*>cell


cdef void id_drop(IdTable* t, uint32_t id, uint32_t h, HashOf hash_of, void* owner) noexcept:
    cdef IdCells* c = &t.cells
    cdef uint32_t* cell = cell_of(c, id, h)
    cdef size_t gap, at, home
    if cell == NULL:
        c = &t.old
        cell = cell_of(c, id, h)
    assert cell != NULL
    gap = <size_t>(cell - c.cells)
    at = (gap + 1) & c.mask
    while c.cells[at]:
        home = hash_of(owner, c.cells[at] - 1) & c.mask
        # A cell may move into the gap unless its home lies after the gap (cyclically).
        if ((at - home) & c.mask) >= ((at - gap) & c.mask):
            c.cells[gap] = c.cells[at]
            gap = at
        at = (at + 1) & c.mask
    c.cells[gap] = 0
    t.count -= 1


cdef int id_shrink(IdTable* t, HashOf hash_of, void* owner) except -1:
    cdef size_t cells = t.cells.mask + 1
    if t.count == 0:
        id_free(t)
        return 0
    if t.old.cells != NULL:
        move_some(t, CELLS_SHRUNK, hash_of, owner)
        return 0
    while cells > CELLS_FIRST and t.count * 4 < cells:
        cells //= 2
    if t.cells.cells != NULL and cells * 2 < t.cells.mask + 1:
        start_moving(t, cells)
        move_some(t, CELLS_SHRUNK, hash_of, owner)
    return 0


cdef void id_free(IdTable* t) noexcept nogil:
    free(t.cells.cells)
    free(t.old.cells)
    t.cells.cells = t.old.cells = NULL
    t.count = t.left = 0


cdef size_t id_bytes(const IdTable* t) noexcept nogil:
    return (
        (t.cells.mask + 1 if t.cells.cells != NULL else 0) + (t.old.mask + 1 if t.old.cells != NULL else 0)
    ) * sizeof(uint32_t)


cdef uint32_t hash_in(void* owner, uint32_t id) noexcept:
    return (<IdSet>owner).hashes[id]


cdef class IdSet:
    """A table whose entries are hashes alone; see the .pyi."""

    def __dealloc__(self):
        id_free(&self.table)
        free(self.hashes)

    def __len__(self):
        return self.table.count

    def add(self, uint32_t h):
        cdef uint32_t id = <uint32_t>self.used
        self.hashes = <uint32_t*>array_grow(self.hashes, &self.capacity, id + 1, 4, 16, b"hashes")
        self.hashes[id] = h
        id_put(&self.table, id, h, hash_in, <void*>self)
        self.used += 1
        return id

    def drop(self, uint32_t id):
        if id not in self.all(self.hashes[id] if id < self.used else 0):
            raise KeyError(id)
        id_drop(&self.table, id, self.hashes[id], hash_in, <void*>self)

    def shrink(self):
        id_shrink(&self.table, hash_in, <void*>self)

    def all(self, uint32_t h):
        cdef list found = []
        self._collect(&self.table.cells, h, found)
        self._collect(&self.table.old, h, found)
        return sorted(found)

    cdef int _collect(self, const IdCells* c, uint32_t h, list found) except -1:
        cdef const uint32_t* cell = id_first(c, h)
        while cell != NULL:
            if self.hashes[cell[0] - 1] == h:
                found.append(cell[0] - 1)
            cell = id_next(c, cell)
        return 0

    @property
    def unmoved(self):
        return self.table.left if self.table.old.cells != NULL else 0

    @property
    def memory(self):
        return id_bytes(&self.table)
