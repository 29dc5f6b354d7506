"""Memory in whole cache lines, for what is read and written at random places in very large numbers.

Theory of operation. Pieces of one to LINES_MAX lines are cut from chunks, each chunk for one size. A chunk
begins at a multiple of its size, so that a piece finds its chunk by masking its address. A size's chunks with
free pieces hang in a list; one that is all free goes back to the system.

Invariants: a piece never shares a line with another one; memory follows what is in use, as far as pieces of
one chunk go together. Under the GIL, like all kernels.

Rejected: malloc (its header puts nearly every piece across two lines); posix_memalign for each piece (a
hundred thousand of one line took twice the memory); huge pages (a tenth of the waiting at random places of
8 MiB, for 2 MiB at rest).
"""
from libc.stdint cimport uint32_t, uintptr_t
from libc.stdlib cimport free, malloc


cdef extern from *:
    """
    #ifdef _WIN32
    #include <malloc.h>
    static void* take_aligned(size_t n) { return _aligned_malloc(n, n); }
    static void give_aligned(void* p) { _aligned_free(p); }
    #else
    #include <stdlib.h>
    static void* take_aligned(size_t n) { void* p; return posix_memalign(&p, n, n) == 0 ? p : NULL; }
    static void give_aligned(void* p) { free(p); }
    #endif
    """
    void* take_aligned(size_t n) noexcept nogil
    void give_aligned(void* p) noexcept nogil

cdef enum:
    CHUNK = 64 * 1024       # bytes
    LINES_MAX = 4           # of a piece that comes from a chunk

# Lies in the first line of its chunk.
cdef struct Chunk:
    Chunk* before           # in the list of those with free pieces; NULL: the first, or none
    Chunk* after
    void* free              # the first free piece; each holds the address of the next one
    uint32_t used           # pieces that are taken
    uint32_t cut            # bytes of the chunk that are, or were, in use

cdef Chunk* with_room[LINES_MAX + 1]
cdef size_t num_pieces = 0
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


cdef void* take_large(size_t n) noexcept:
    """From malloc; where that began stands just before the first line."""
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
    cdef void* piece
    global num_pieces, num_chunks
    if lines > LINES_MAX:
        return take_large(n)
    chunk = with_room[lines]
    if chunk == NULL:
        chunk = <Chunk*>take_aligned(CHUNK)
        if chunk == NULL:
            return NULL
        chunk.free = NULL
        chunk.used, chunk.cut = 0, LINE
        link(chunk, lines)
        num_chunks += 1
    piece = chunk.free
    if piece != NULL:
        chunk.free = (<void**>piece)[0]
    else:
        piece = <char*>chunk + chunk.cut
        chunk.cut += <uint32_t>size
    chunk.used += 1
    num_pieces += 1
    if is_full(chunk, size):
        unlink(chunk, lines)
    return piece


cdef void slab_free(void* p, size_t n) noexcept:
    cdef size_t lines = (n + LINE - 1) // LINE
    cdef Chunk* chunk
    cdef bint was_full
    global num_pieces, num_chunks
    if lines > LINES_MAX:
        free((<void**>p)[-1])
        return
    chunk = <Chunk*>(<uintptr_t>p & ~<uintptr_t>(CHUNK - 1))
    was_full = is_full(chunk, lines * LINE)
    (<void**>p)[0] = chunk.free
    chunk.free = p
    chunk.used -= 1
    num_pieces -= 1
    if was_full:
        link(chunk, lines)
    if chunk.used == 0:
        unlink(chunk, lines)
        num_chunks -= 1
        give_aligned(chunk)


def lines_in_use():
    """Pieces of up to LINES_MAX lines that are taken and not given back."""
    return num_pieces


def chunks_in_use():
    """Chunks that those lie in."""
    return num_chunks
