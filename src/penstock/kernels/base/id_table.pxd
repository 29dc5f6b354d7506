"""A hash table of 4-byte ids that grows in steps, for millions of entries."""
from libc.stdint cimport uint32_t

# One array of cells: id + 1; 0 is a free cell.
cdef struct IdCells:
    uint32_t* cells         # NULL: no array
    size_t mask             # cells - 1; their number is a power of two

# All zeros is an empty table. It owns its arrays, which id_free() frees.
cdef struct IdTable:
    IdCells cells
    IdCells old             # of a table that has grown: what is not moved yet
    size_t next             # cell of `old` to move next
    size_t left             # cells of `old` to look at
    size_t count

# The hash of an id that the table has. owner: see the functions below.
ctypedef uint32_t (*HashOf)(void* owner, uint32_t id) noexcept

# Adds an id that the table does not have. hash_of(owner, id) is called for other ids, which move.
cdef int id_put(IdTable* t, uint32_t id, uint32_t h, HashOf hash_of, void* owner) except -1
# Removes an id that the table has.
cdef void id_drop(IdTable* t, uint32_t id, uint32_t h, HashOf hash_of, void* owner) noexcept
# Gives the table fewer cells if it has far more than it needs, in steps; moves cells while it grows.
cdef int id_shrink(IdTable* t, HashOf hash_of, void* owner) except -1
cdef void id_free(IdTable* t) noexcept nogil
cdef size_t id_bytes(const IdTable* t) noexcept nogil


# Lookup: all cells from id_first() on, with id_next(), of `cells` and then of `old` may have the hash. The caller
# compares.
cdef inline const uint32_t* id_first(const IdCells* c, uint32_t h) noexcept nogil:
    """The cell of the first candidate, or NULL."""
    cdef const uint32_t* cell
    if c.cells == NULL:
        return NULL
    cell = &c.cells[h & c.mask]
    return cell if cell[0] else NULL


cdef inline const uint32_t* id_next(const IdCells* c, const uint32_t* cell) noexcept nogil:
    """The cell of the next candidate, or NULL."""
    cell = &c.cells[(<size_t>(cell - c.cells) + 1) & c.mask]
    return cell if cell[0] else NULL


# A table as an object, for tests and fuzzers.
cdef class IdSet:
    cdef IdTable table
    cdef uint32_t* hashes
    cdef size_t used, capacity
    cdef int _collect(self, const IdCells* c, uint32_t h, list found) except -1
