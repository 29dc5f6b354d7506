"""The `Nats-Msg-Id` values a stream stored lately, and under which sequence.

Ids lie one behind the other in one piece of memory, oldest first; a hash table leads to them. An id of 22
bytes takes 48 bytes there and 6 to 12 in the table, and no Python object; at most a third more waits for
reuse. Finding one costs one hash and, nearly always, one comparison.

Invariants: the entries between head and tail are exactly those of the table, in order of time; an id older
than the window is never found, whether or not it was dropped already. Ids are kept whole and compared: a hash
in their place would some day take a message for another one's duplicate.

Rejected: a dict and a queue of Python objects (260 bytes an id, and 0.3 us); comparing with the header in the
log (the message may be gone while its id still counts).
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memmove, memset

from penstock.kernels.log.records cimport xxh64

cdef enum:
    TABLE_MIN = 64
    ARENA_MIN = 1024
    EMPTY = 0xFFFFFFFF              # also what slots count modulo, so that none says this by chance
    NO_SLOT = 0xFFFFFFFFFFFFFFFF
    SPAN_MAX = 0x7FFFFFFF8          # bytes between head and tail; a slot tells places apart within it
    LAZINESS = 4                    # ids may stay this power of two's part of the window longer than needed


cdef inline size_t entry_size(size_t id_size) noexcept nogil:
    return (sizeof(IdEntry) + id_size + 7) & ~<size_t>7


cdef inline uint32_t slot_of(uint64_t place) noexcept nogil:
    return <uint32_t>((place >> 3) % <uint64_t>EMPTY)


cdef class MessageIds:
    def __cinit__(self, int64_t window_ns):
        self.window_ns = window_ns
        # Python's hash is seeded per process, so that nobody can prepare ids that collide.
        self.seed = <uint64_t>hash(b"penstock.messageids")

    def __dealloc__(self):
        free(self.arena)
        free(self.table)
        free(self.last)

    # ------------------------------------------------------------------ for the kernels

    cdef uint64_t seq_of(self, const char* id, size_t n, int64_t now) except? 0:
        cdef size_t slot
        if self.count == 0:
            return 0
        if self._at(self.head).ts <= now - self.window_ns:
            self.prune(now)
            if self.count == 0:
                return 0
        slot = self._slot(id, n, <uint32_t>xxh64(id, n, self.seed))
        return 0 if slot == <size_t>NO_SLOT else self._at(self._place(self.table[slot])).seq

    cdef int remember(self, const char* id, size_t n, uint64_t seq, int64_t ts) except -1:
        cdef size_t size = entry_size(n)
        cdef uint32_t h = <uint32_t>xxh64(id, n, self.seed)
        cdef IdEntry* entry
        if self.window_ns <= 0:
            return 0
        if self.tail - self.head + size > <uint64_t>SPAN_MAX:
            raise MemoryError("the ids of one dedupe window take more than 32 GiB")
        if self.tail - self.base + size > self.capacity:
            self._make_room(size)
        if (self.count + 1) * 3 > self.table_size * 2:
            self._resize_table(self.table_size * 2 if self.table_size else <size_t>TABLE_MIN)
        entry = self._at(self.tail)
        entry.seq = seq
        entry.ts = ts
        entry.hash = h
        entry.size = <uint32_t>n
        memcpy(<char*>entry + sizeof(IdEntry), id, n)
        self._insert(self.tail, h)
        self.tail += size
        self.count += 1
        return 0

    cdef int set_last(self, const char* id, size_t n) except -1:
        cdef char* grown
        if n > self.last_capacity:
            grown = <char*>realloc(self.last, n)
            if grown == NULL:
                raise MemoryError()
            self.last = grown
            self.last_capacity = n
        if n:
            memcpy(self.last, id, n)
        self.last_size = n
        return 0

    cdef bint is_last(self, const char* id, size_t n) noexcept:
        return n == self.last_size and memcmp(id, self.last, n) == 0

    # ------------------------------------------------------------------ for Python

    def find(self, bytes msg_id not None, int64_t now):
        """The sequence stored under the id within the window before `now` (ns), or 0."""
        return self.seq_of(PyBytes_AS_STRING(msg_id), <size_t>PyBytes_GET_SIZE(msg_id), now)

    def add(self, bytes msg_id not None, uint64_t seq, int64_t ts):
        """Remembers that `seq` was stored under the id at `ts` (ns), no earlier than the one before.

        An id that is known stays what it is.
        """
        cdef const char* id = PyBytes_AS_STRING(msg_id)
        cdef size_t n = <size_t>PyBytes_GET_SIZE(msg_id)
        if self._slot(id, n, <uint32_t>xxh64(id, n, self.seed)) == <size_t>NO_SLOT:
            self.remember(id, n, seq, ts)

    @property
    def last_id(self):
        return PyBytes_FromStringAndSize(self.last, <Py_ssize_t>self.last_size)

    @last_id.setter
    def last_id(self, bytes msg_id not None):
        self.set_last(PyBytes_AS_STRING(msg_id), <size_t>PyBytes_GET_SIZE(msg_id))

    cpdef int prune(self, int64_t now) except -1:
        """Forgets what is older than the window."""
        cdef int64_t cutoff = now - self.window_ns
        cdef IdEntry* entry
        while self.count:
            entry = self._at(self.head)
            if entry.ts > cutoff:
                break
            self._empty(self._slot_of_place(self.head, entry.hash))
            self.head += entry_size(entry.size)
            self.count -= 1
        return self._shrink()

    def resize(self, int64_t window_ns, int64_t now):
        """Another window from now on; what a shorter one excludes is forgotten."""
        self.window_ns = window_ns
        self.prune(now)

    def next_deadline(self):
        """When (ns) prune() has something to do; None when there is nothing to forget.

        A little later than the oldest id could go: nobody finds it any more, and a stream with thousands of
        ids a second must not wake the server for each.
        """
        if self.count == 0:
            return None
        return self._at(self.head).ts + self.window_ns + (self.window_ns >> LAZINESS)

    @property
    def memory(self):
        """Bytes held."""
        return self.capacity + self.table_size * sizeof(uint32_t)

    def __len__(self):
        return self.count

    # ------------------------------------------------------------------ inside

    cdef IdEntry* _at(self, uint64_t place) noexcept:
        return <IdEntry*>(self.arena + (place - self.base))

    cdef uint64_t _place(self, uint32_t slot) noexcept:
        """The place a slot means: the first one from head on."""
        cdef uint64_t first = slot_of(self.head)
        cdef uint64_t distance = slot - first if slot >= first else slot + <uint64_t>EMPTY - first
        return self.head + (distance << 3)

    cdef size_t _slot(self, const char* id, size_t n, uint32_t h) noexcept:
        """The slot of an id; NO_SLOT when it is not there."""
        cdef size_t mask = self.table_size - 1
        cdef size_t at = h & mask
        cdef IdEntry* entry
        if self.count == 0:
            return <size_t>NO_SLOT
        while self.table[at] != <uint32_t>EMPTY:
            entry = self._at(self._place(self.table[at]))
            if entry.hash == h and entry.size == n and memcmp(<char*>entry + sizeof(IdEntry), id, n) == 0:
                return at
            at = (at + 1) & mask
        return <size_t>NO_SLOT

    cdef size_t _slot_of_place(self, uint64_t place, uint32_t h) noexcept:
        cdef uint32_t wanted = slot_of(place)
        cdef size_t mask = self.table_size - 1
        cdef size_t at = h & mask
        while self.table[at] != wanted:
            at = (at + 1) & mask
        return at

    cdef void _insert(self, uint64_t place, uint32_t h) noexcept:
        cdef size_t mask = self.table_size - 1
        cdef size_t at = h & mask
        while self.table[at] != <uint32_t>EMPTY:
            at = (at + 1) & mask
        self.table[at] = slot_of(place)

    cdef void _empty(self, size_t slot) noexcept:
        """Empties a slot; those behind it that could not be reached any more move up."""
        cdef size_t mask = self.table_size - 1
        cdef size_t at = slot
        cdef size_t home
        while True:
            at = (at + 1) & mask
            if self.table[at] == <uint32_t>EMPTY:
                break
            home = self._at(self._place(self.table[at])).hash & mask
            if ((at - home) & mask) >= ((at - slot) & mask):
                self.table[slot] = self.table[at]
                slot = at
        self.table[slot] = <uint32_t>EMPTY

    cdef int _make_room(self, size_t size) except -1:
        """Room for one more entry: what is free at the front is used again, if it is a quarter."""
        cdef size_t live = <size_t>(self.tail - self.head)
        cdef size_t wanted = live + size
        cdef size_t capacity = self.capacity
        cdef char* grown
        if self.head > self.base:
            memmove(self.arena, self.arena + (self.head - self.base), live)
            self.base = self.head
        if wanted + wanted // 4 > capacity:
            capacity = max(wanted + wanted // 2, <size_t>ARENA_MIN)
            grown = <char*>realloc(self.arena, capacity)
            if grown == NULL:
                raise MemoryError()
            self.arena = grown
            self.capacity = capacity
        return 0

    cdef int _resize_table(self, size_t size) except -1:
        cdef uint32_t* table = <uint32_t*>malloc(size * sizeof(uint32_t))
        cdef uint64_t place = self.head
        cdef IdEntry* entry
        if table == NULL:
            raise MemoryError()
        memset(table, 0xFF, size * sizeof(uint32_t))
        free(self.table)
        self.table = table
        self.table_size = size
        while place < self.tail:
            entry = self._at(place)
            self._insert(place, entry.hash)
            place += entry_size(entry.size)
        return 0

    cdef int _shrink(self) except -1:
        """Gives memory back when little of it is used."""
        cdef size_t live = <size_t>(self.tail - self.head)
        cdef size_t size = self.table_size
        cdef char* smaller
        if self.count == 0:
            free(self.arena)
            free(self.table)
            self.arena = NULL
            self.table = NULL
            self.capacity = self.table_size = 0
            self.base = self.head = self.tail
            return 0
        if self.capacity > <size_t>ARENA_MIN and live < self.capacity // 4:
            memmove(self.arena, self.arena + (self.head - self.base), live)
            self.base = self.head
            smaller = <char*>realloc(self.arena, max(live * 2, <size_t>ARENA_MIN))
            if smaller != NULL:
                self.arena = smaller
                self.capacity = max(live * 2, <size_t>ARENA_MIN)
        while size > <size_t>TABLE_MIN and self.count * 4 < size:
            size //= 2
        if size * 2 < self.table_size:
            self._resize_table(size)
        return 0
