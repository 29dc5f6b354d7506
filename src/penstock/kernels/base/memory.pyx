# cython: auto_pickle=False
"""Memory of the kernels: growing arrays, rings, and a slab allocator in whole cache lines.

Arrays and rings grow by doubling. Sizes are checked before they are multiplied, so a count that came from a peer
or a file raises MemoryError instead of wrapping around. An array has no struct of its own: its owner has a typed
pointer and a capacity, so that the compiler knows the type of the items, and indexing costs what it costs in C.

Rejected: a struct of void pointer, count and width (an indirection, a multiplication and a cast per access);
C++ containers (exceptions through C frames, and every kernel linked with its library).

The slab allocator provides blocks of whole cache lines, for large numbers of objects with random access.

Theory of operation. Blocks of one to LINES_MAX lines are cut from chunks, each chunk for one size. A chunk
is aligned to its size, so that masking a block's address gives its chunk. The chunks of a size that have
free blocks form a list; a chunk without allocated blocks is freed.

Invariants: two blocks never share a line; a chunk is freed with its last block, so memory shrinks as far as the
blocks of a chunk are freed together. Needs the GIL, like all kernels.

Rejected: malloc (its header puts nearly every block across two lines); posix_memalign for each block (a
hundred thousand of one line took twice the memory); huge pages (they save a tenth of the waiting for random accesses
to 8 MiB, and an idle process takes 2 MiB more).
"""
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy

cdef enum:
    NUMBERS_FIRST = 16

cdef size_t BYTES_MAX = (<size_t>-1) >> 1


# --- arrays

cdef int refuse(size_t count, size_t width, const char* what) except -1:
    raise MemoryError(f"no memory for {count} {what.decode()} of {width} bytes")


cdef void* array_new(size_t count, size_t width, const char* what) except NULL:
    cdef void* p = NULL
    if count <= BYTES_MAX // width:
        p = malloc(count * width if count else width)
    if p == NULL:
        refuse(count, width, what)
    return p


cdef void* array_zeroed(size_t count, size_t width, const char* what) except NULL:
    cdef void* p = NULL
    if count <= BYTES_MAX // width:
        p = calloc(count if count else 1, width)
    if p == NULL:
        refuse(count, width, what)
    return p


cdef size_t capacity_for(size_t capacity, size_t count, size_t width, size_t first) noexcept nogil:
    """The capacity to which array_grow() grows; 0: the size would overflow."""
    if count > BYTES_MAX // width:
        return 0
    if capacity == 0:
        capacity = first
    while capacity < count:
        if capacity > BYTES_MAX // width // 2:
            return count
        capacity *= 2
    return capacity


cdef void* array_enlarge(
    void* p, size_t* capacity, size_t count, size_t width, size_t first, const char* what
) except NULL:
    cdef size_t wanted = capacity_for(capacity[0], count, width, first)
    cdef void* grown = NULL
    if wanted:
        grown = realloc(p, wanted * width)
    if grown == NULL:
        refuse(count, width, what)
    capacity[0] = wanted
    return grown


cdef void* array_shrink(void* p, size_t* capacity, size_t count, size_t width) noexcept:
    cdef void* smaller
    if capacity[0] <= count:
        return p
    smaller = realloc(p, count * width)
    if smaller == NULL:
        return p
    capacity[0] = count
    return smaller


def capacity_after(size_t capacity, size_t count, size_t width, size_t first):
    """The capacity of an array that grows for `count` items; 0: its size would overflow. For tests."""
    return capacity if count <= capacity else capacity_for(capacity, count, width, first)


# --- rings

cdef int ring_make(Ring* r, size_t capacity, size_t width, const char* what) except -1:
    r.items = array_new(capacity, width, what)
    r.capacity = capacity
    r.head = r.count = 0
    return 0


cdef void ring_free(Ring* r) noexcept:
    free(r.items)
    r.items = NULL


cdef int ring_grow(Ring* r, size_t width, const char* what) except -1:
    """Doubles the capacity and moves the oldest item to index 0, so that the items are contiguous."""
    cdef size_t first = r.capacity - r.head
    cdef void* items
    if r.capacity > BYTES_MAX // width // 2:
        refuse(r.capacity, 2 * width, what)
    items = array_new(r.capacity * 2, width, what)
    if first > r.count:
        first = r.count
    memcpy(items, <char*>r.items + r.head * width, first * width)
    memcpy(<char*>items + first * width, r.items, (r.count - first) * width)
    free(r.items)
    r.items = items
    r.head = 0
    r.capacity *= 2
    return 0


cdef class NumberQueue:
    """Numbers, first in, first out; a Ring for Python."""

    def __cinit__(self):
        ring_make(&self.ring, NUMBERS_FIRST, sizeof(uint64_t), b"numbers")

    def __dealloc__(self):
        ring_free(&self.ring)

    def __len__(self):
        return self.ring.count

    def __getitem__(self, size_t i):
        if i >= self.ring.count:
            raise IndexError(f"item {i} of {self.ring.count}")
        return (<uint64_t*>ring_at(&self.ring, i, sizeof(uint64_t)))[0]

    def push(self, uint64_t number):
        """Appends a number."""
        (<uint64_t*>ring_push(&self.ring, sizeof(uint64_t), b"numbers"))[0] = number

    def pop(self):
        """Removes and returns the oldest number. Raises IndexError when the queue is empty."""
        cdef uint64_t number
        if self.ring.count == 0:
            raise IndexError("the queue is empty")
        number = (<uint64_t*>ring_at(&self.ring, 0, sizeof(uint64_t)))[0]
        ring_drop_front(&self.ring)
        return number

    def clear(self):
        ring_clear(&self.ring)

    @property
    def capacity(self):
        return self.ring.capacity


# --- slab

cdef extern from *:
    """
    #ifdef _WIN32
    #include <malloc.h>
    static void* alloc_aligned(size_t n) { return _aligned_malloc(n, n); }
    static void free_aligned(void* p) { _aligned_free(p); }
    #else
    #include <stdlib.h>
    static void* alloc_aligned(size_t n) { void* p; return posix_memalign(&p, n, n) == 0 ? p : NULL; }
    static void free_aligned(void* p) { free(p); }
    #endif
    """
    void* alloc_aligned(size_t n) noexcept nogil
    void free_aligned(void* p) noexcept nogil

cdef enum:
    CHUNK = 64 * 1024       # bytes
    LINES_MAX = 4           # of a block that comes from a chunk

# The header of a chunk, in its first line.
cdef struct Chunk:
    Chunk* before           # in the list of chunks with free blocks; NULL: the first, or not in it
    Chunk* after
    void* free              # the first free block; each contains the address of the next one
    uint32_t used           # allocated blocks
    uint32_t cut            # bytes of the chunk that were ever allocated

cdef Chunk* with_room[LINES_MAX + 1]
cdef size_t num_blocks = 0
cdef size_t num_chunks = 0


cdef inline bint is_full(const Chunk* chunk, size_t size) noexcept nogil:
    return chunk.free == NULL and chunk.cut + size > CHUNK


cdef void link(Chunk* chunk, size_t lines) noexcept:
    chunk.before = NULL
    chunk.after = with_room[lines]
    if chunk.after != NULL:
        chunk.after.before = chunk
    with_room[lines] = chunk


cdef void unlink(Chunk* chunk, size_t lines) noexcept:
    if chunk.before != NULL:
        chunk.before.after = chunk.after
    else:
        with_room[lines] = chunk.after
    if chunk.after != NULL:
        chunk.after.before = chunk.before


cdef void* alloc_large(size_t n) noexcept:
    """Over-allocates with malloc and stores the original pointer before the aligned block, for free()."""
    cdef void* whole = malloc(n + LINE + sizeof(void*))
    cdef void** begin
    if whole == NULL:
        return NULL
    begin = <void**>(((<uintptr_t>whole) + sizeof(void*) + LINE - 1) & ~<uintptr_t>(LINE - 1))
    begin[-1] = whole
    return begin


cdef void* slab_alloc(size_t n) noexcept:
    cdef size_t lines = (n + LINE - 1) // LINE
    cdef size_t size = lines * LINE
    cdef Chunk* chunk
    cdef void* block
    global num_blocks, num_chunks
    if lines > LINES_MAX:
        return alloc_large(n)
    chunk = with_room[lines]
    if chunk == NULL:
        chunk = <Chunk*>alloc_aligned(CHUNK)
        if chunk == NULL:
            return NULL
        chunk.free = NULL
        chunk.used, chunk.cut = 0, LINE
        link(chunk, lines)
        num_chunks += 1
    block = chunk.free
    if block != NULL:
        chunk.free = (<void**>block)[0]
    else:
        block = <char*>chunk + chunk.cut
        chunk.cut += <uint32_t>size
    chunk.used += 1
    num_blocks += 1
    if is_full(chunk, size):
        unlink(chunk, lines)
    return block


cdef void slab_free(void* p, size_t n) noexcept:
    cdef size_t lines = (n + LINE - 1) // LINE
    cdef Chunk* chunk
    cdef bint was_full
    global num_blocks, num_chunks
    if lines > LINES_MAX:
        free((<void**>p)[-1])
        return
    chunk = <Chunk*>(<uintptr_t>p & ~<uintptr_t>(CHUNK - 1))
    was_full = is_full(chunk, lines * LINE)
    (<void**>p)[0] = chunk.free
    chunk.free = p
    chunk.used -= 1
    num_blocks -= 1
    if was_full:
        link(chunk, lines)
    if chunk.used == 0:
        unlink(chunk, lines)
        num_chunks -= 1
        free_aligned(chunk)


def blocks_in_use():
    """Allocated blocks of up to LINES_MAX lines."""
    return num_blocks


def chunks_in_use():
    """Chunks that contain those blocks."""
    return num_chunks
