# cython: auto_pickle=False
"""Growable output buffer: what kernels write frames, acks and records into.

Invariants: size <= capacity; `data` is NULL only while capacity is 0. A taken buffer keeps at most
`CAPACITY_KEPT` bytes, so that one burst does not stay in memory for the life of a connection.

Rejected: growing a bytes object in place and handing it out (the next write then starts on cold memory,
which costs more than the one copy made here).
"""
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

cdef enum:
    CAPACITY_FIRST = 4096
    CAPACITY_KEPT = 1 << 20
    SMALL_RUNS_MAX = 64

cdef size_t SIZE_MAX_HALF = (<size_t>-1) >> 1


# "00".."99": two digits a division. Every delivery writes about fifty digits of ack subject; one digit a
# division was 18 % of an ordered consumer's time.
cdef const char* DIGIT_PAIRS = (
    b"00010203040506070809101112131415161718192021222324252627282930313233343536373839404142434445464748"
    b"49505152535455565758596061626364656667686970717273747576777879808182838485868788899091929394959697"
    b"9899"
)


cdef inline size_t digits_of(uint64_t v) noexcept nogil:
    cdef size_t n = 1
    while v >= 10000:
        v = v // 10000
        n += 4
    return n + (v >= 10) + (v >= 100) + (v >= 1000)


# Into their place at once: digits copied from elsewhere as a whole wait until each of them was stored.
cdef size_t put_uint(char* d, uint64_t v) noexcept nogil:
    cdef size_t n = digits_of(v)
    cdef size_t at = n
    cdef size_t pair
    while v >= 100:
        pair = <size_t>(v % 100) * 2
        v = v // 100
        at -= 2
        memcpy(d + at, DIGIT_PAIRS + pair, 2)
    if v >= 10:
        memcpy(d, DIGIT_PAIRS + <size_t>v * 2, 2)
    else:
        d[0] = <char>(c'0' + <int>v)
    return n


cdef class OutBuffer:
    """Bytes on their way out; grows by doubling."""

    def __dealloc__(self):
        free(self.data)

    def __len__(self):
        return <Py_ssize_t>self.size

    cdef int grow(self, size_t n) except -1:
        """Makes the capacity at least size + n, doubling."""
        cdef size_t capacity = self.capacity if self.capacity else CAPACITY_FIRST
        cdef char* data
        if n > SIZE_MAX_HALF - self.size:
            raise MemoryError(f"an output buffer of {self.size} bytes can't take {n} more")
        while capacity < self.size + n:
            capacity *= 2
        data = <char*>realloc(self.data, capacity)
        if data == NULL:
            raise MemoryError(f"no memory for an output buffer of {capacity} bytes")
        self.data = data
        self.capacity = capacity
        return 0

    cdef char* reserve(self, size_t n) except NULL:
        if n > self.capacity - self.size or self.data == NULL:
            self.grow(n)
        return self.data + self.size

    cdef int append(self, const char* p, size_t n) except -1:
        if n:
            memcpy(self.reserve(n), p, n)
            self.size += n
        return 0

    cpdef int write(self, const unsigned char[:] data) except -1:
        """Appends `data`, any contiguous or strided buffer of bytes."""
        cdef Py_ssize_t n, i
        cdef char* d
        if data is None:
            raise TypeError("write() takes a buffer of bytes, not None")
        n = data.shape[0]
        if n == 0:
            return 0
        d = self.reserve(<size_t>n)
        if data.strides[0] == 1:
            memcpy(d, &data[0], <size_t>n)
        else:
            for i in range(n):
                d[i] = <char>data[i]
        self.size += <size_t>n
        return 0

    cpdef bytes take(self):
        """Everything written since the last take; the buffer is empty afterwards."""
        cdef bytes taken = PyBytes_FromStringAndSize(self.data, <Py_ssize_t>self.size)
        self.clear()
        return taken

    cpdef clear(self):
        """Drops what was written, and the memory above what is worth keeping."""
        cdef char* data
        self.size = 0
        if self.capacity > CAPACITY_KEPT:
            data = <char*>realloc(self.data, CAPACITY_KEPT)
            if data != NULL:  # a failed shrink leaves the larger buffer as it is
                self.data = data
                self.capacity = CAPACITY_KEPT


cdef class RunBuffer:
    """What waits in one buffer, taken from its front on: the batches of streams."""

    def __cinit__(self):
        self.buf = OutBuffer()

    cpdef clear(self):
        """Empties the run; its memory stays for the next one, unless the last ones used little of it: what is
        given back and asked for again comes page by page, each with a fault."""
        if self.buf.capacity > CAPACITY_KEPT and self.buf.size < self.buf.capacity // 4:
            self.small_runs += 1
        else:
            self.small_runs = 0
        self.buf.size = 0
        if self.small_runs > SMALL_RUNS_MAX:
            self.buf = OutBuffer()
            self.small_runs = 0
        self.count = 0
        self.position = 0

    def rewind(self):
        """Back to the first one."""
        self.position = 0

    @property
    def size(self):
        """Bytes the run holds."""
        return self.buf.size

    def __len__(self):
        return self.count
