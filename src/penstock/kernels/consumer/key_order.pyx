"""Key-shared delivery: messages whose subjects have the same n-th token go out one at a time and in order,
different ones side by side.

A key is the hash of that token. It is busy while a message of it is in flight (delivered, not settled), or
ready to be. Messages of a busy key wait in its queue, in the order of the stream; when the one in flight is
settled, the first of them becomes ready.

Invariants: a key exists exactly while it is busy; what waits for a key has higher sequences than what is in
flight of it; a message is in flight, ready, waiting or unknown.
Two tokens with one hash (2^-64) share a key: they would be delivered in turn, never wrongly.
Rejected: dicts of bytes (three Python objects a message); an index of the log by key (it would have to be kept
for every stream, asked for or not).
"""
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memchr

from penstock.kernels.log.records cimport xxh64

cdef enum:
    MAP_CAPACITY_MIN = 16
    READY_CAPACITY_MIN = 16

cdef uint64_t MIX = 0x9E3779B97F4A7C15ULL


cdef class NumberMap:
    def __cinit__(self):
        self.resize(MAP_CAPACITY_MIN)

    def __dealloc__(self):
        free(self.cells)

    cdef size_t slot_of(self, uint64_t key) noexcept:
        """Where the key is, or the empty cell where it would go."""
        cdef size_t mask = self.capacity - 1
        cdef size_t i = <size_t>((key * MIX) >> 32) & mask
        while self.cells[2 * i] and self.cells[2 * i] != key:
            i = (i + 1) & mask
        return i

    cdef int get(self, uint64_t key, uint64_t* value) noexcept:
        cdef size_t i = self.slot_of(key)
        if not self.cells[2 * i]:
            return 0
        value[0] = self.cells[2 * i + 1]
        return 1

    cdef int put(self, uint64_t key, uint64_t value) except -1:
        cdef size_t i
        if (self.count + 1) * 2 > self.capacity:
            self.resize(self.capacity * 2)
        i = self.slot_of(key)
        if not self.cells[2 * i]:
            self.cells[2 * i] = key
            self.count += 1
        self.cells[2 * i + 1] = value
        return 0

    cdef void remove(self, uint64_t key) noexcept:
        cdef size_t mask = self.capacity - 1
        cdef size_t hole = self.slot_of(key), i, home
        if not self.cells[2 * hole]:
            return
        self.count -= 1
        i = hole
        while True:
            i = (i + 1) & mask
            if not self.cells[2 * i]:
                break
            home = <size_t>((self.cells[2 * i] * MIX) >> 32) & mask
            if ((i - home) & mask) >= ((i - hole) & mask):  # it may move back into the hole
                self.cells[2 * hole] = self.cells[2 * i]
                self.cells[2 * hole + 1] = self.cells[2 * i + 1]
                hole = i
        self.cells[2 * hole] = 0

    cdef int resize(self, size_t capacity) except -1:
        cdef uint64_t* old = self.cells
        cdef size_t old_capacity = self.capacity, i, at
        cdef uint64_t* cells = <uint64_t*>calloc(capacity, 2 * sizeof(uint64_t))
        if cells == NULL:
            raise MemoryError(f"no memory for a map of {capacity} cells")
        self.cells = cells
        self.capacity = capacity
        for i in range(old_capacity):
            if old[2 * i]:
                at = self.slot_of(old[2 * i])
                self.cells[2 * at] = old[2 * i]
                self.cells[2 * at + 1] = old[2 * i + 1]
        free(old)
        return 0


cdef class KeyOrder:
    """token: which token of the subject is the key, from 1. Messages without it share a key; 0: there are no
    keys, every message may go."""

    def __cinit__(self, uint32_t token):
        self.token = token
        self.by_hash = NumberMap()
        self.in_flight = NumberMap()

    def __dealloc__(self):
        free(self.keys)
        free(self.nodes)
        free(self.ready)

    cdef uint64_t hash_of(self, const char* subject, size_t n, uint64_t seq) noexcept:
        cdef const char* end = subject + n
        cdef const char* dot
        cdef uint64_t hash
        if self.token == 0:
            return seq
        for _ in range(1, self.token):
            dot = <const char*>memchr(subject, c".", <size_t>(end - subject))
            if dot == NULL:
                return 1
            subject = dot + 1
        dot = <const char*>memchr(subject, c".", <size_t>(end - subject))
        if dot == NULL:
            dot = end
        hash = xxh64(subject, <size_t>(dot - subject), 0)
        return hash if hash > 1 else 2

    cdef bint is_busy(self, uint64_t hash) noexcept:
        cdef uint64_t key
        return self.token != 0 and self.by_hash.get(hash, &key)

    cdef uint32_t key_slot(self, uint64_t hash) except 0:
        """The key of a hash, made when it isn't there; its number + 1."""
        cdef uint64_t found
        cdef uint32_t key
        cdef size_t capacity
        cdef Key* keys
        if self.by_hash.get(hash, &found):
            return <uint32_t>found
        if self.free_key:
            key = self.free_key
            self.free_key = self.keys[key - 1].head
        else:
            if self.key_count == self.key_capacity:
                capacity = self.key_capacity * 2 if self.key_capacity else 16
                keys = <Key*>realloc(self.keys, capacity * sizeof(Key))
                if keys == NULL:
                    raise MemoryError(f"no memory for {capacity} keys")
                self.keys = keys
                self.key_capacity = capacity
            self.key_count += 1
            key = <uint32_t>self.key_count
        self.by_hash.put(hash, key)
        self.keys[key - 1].hash = hash
        self.keys[key - 1].busy = 0
        self.keys[key - 1].head = self.keys[key - 1].tail = 0
        return key

    cdef int start(self, uint64_t hash, uint64_t seq) except -1:
        cdef uint32_t key = self.key_slot(hash)
        self.in_flight.put(seq, key)
        self.keys[key - 1].busy += 1
        return 0

    cdef int wait(self, uint64_t hash, uint64_t seq) except -1:
        cdef uint32_t key = self.key_slot(hash)
        cdef uint32_t node
        cdef size_t capacity
        cdef Node* nodes
        if self.free_node:
            node = self.free_node
            self.free_node = self.nodes[node - 1].next
        else:
            if self.node_count == self.node_capacity:
                capacity = self.node_capacity * 2 if self.node_capacity else 64
                nodes = <Node*>realloc(self.nodes, capacity * sizeof(Node))
                if nodes == NULL:
                    raise MemoryError(f"no memory for {capacity} waiting messages")
                self.nodes = nodes
                self.node_capacity = capacity
            self.node_count += 1
            node = <uint32_t>self.node_count
        self.nodes[node - 1].seq = seq
        self.nodes[node - 1].next = 0
        if self.keys[key - 1].tail:
            self.nodes[self.keys[key - 1].tail - 1].next = node
        else:
            self.keys[key - 1].head = node
        self.keys[key - 1].tail = node
        self.waiting += 1
        if self.keys[key - 1].busy == 0:
            self.advance(key)
        return 0

    cdef int settle(self, uint64_t seq) except -1:
        cdef uint64_t key
        if not self.in_flight.get(seq, &key):
            return 0
        self.in_flight.remove(seq)
        self.keys[key - 1].busy -= 1
        if self.keys[key - 1].busy == 0:
            self.advance(<uint32_t>key)
        return 0

    cdef int advance(self, uint32_t key) except -1:
        """Nothing of the key is in flight: its next message is ready, or the key is free."""
        cdef Key* k = &self.keys[key - 1]
        cdef uint32_t node = k.head
        if node:
            k.head = self.nodes[node - 1].next
            if k.head == 0:
                k.tail = 0
            k.busy = 1
            self.waiting -= 1
            self.push_ready(self.nodes[node - 1].seq, key)
            self.nodes[node - 1].next = self.free_node
            self.free_node = node
        else:
            self.by_hash.remove(k.hash)
            k.head = self.free_key
            self.free_key = key
        return 0

    cdef int push_ready(self, uint64_t seq, uint32_t key) except -1:
        cdef uint64_t* ready
        cdef size_t capacity, i, at
        if self.ready_count == self.ready_capacity:
            capacity = self.ready_capacity * 2 if self.ready_capacity else READY_CAPACITY_MIN
            ready = <uint64_t*>calloc(capacity, 2 * sizeof(uint64_t))
            if ready == NULL:
                raise MemoryError(f"no memory for {capacity} ready messages")
            for i in range(self.ready_count):
                at = (self.ready_head + i) & (self.ready_capacity - 1)
                ready[2 * i] = self.ready[2 * at]
                ready[2 * i + 1] = self.ready[2 * at + 1]
            free(self.ready)
            self.ready = ready
            self.ready_head = 0
            self.ready_capacity = capacity
        at = (self.ready_head + self.ready_count) & (self.ready_capacity - 1)
        self.ready[2 * at] = seq
        self.ready[2 * at + 1] = key
        self.ready_count += 1
        return 0

    cdef uint64_t next_ready(self) noexcept:
        return self.ready[2 * self.ready_head] if self.ready_count else 0

    cdef int take_ready(self) except -1:
        self.in_flight.put(self.ready[2 * self.ready_head], self.ready[2 * self.ready_head + 1])
        self.ready_head = (self.ready_head + 1) & (self.ready_capacity - 1)
        self.ready_count -= 1
        return 0

    cdef int drop_ready(self) except -1:
        cdef uint32_t key = <uint32_t>self.ready[2 * self.ready_head + 1]
        self.ready_head = (self.ready_head + 1) & (self.ready_capacity - 1)
        self.ready_count -= 1
        self.keys[key - 1].busy -= 1
        if self.keys[key - 1].busy == 0:
            self.advance(key)
        return 0

    # --- for Python callers: after a restart, and tests --------------------------------------------------

    def delivered(self, bytes subject not None, uint64_t seq):
        """A message of that subject is in flight."""
        cdef const char* p = subject
        self.start(self.hash_of(p, <size_t>len(subject), seq), seq)

    def parked(self, bytes subject not None, uint64_t seq):
        """A message of that subject waits for its key; it is ready at once when the key is free."""
        cdef const char* p = subject
        self.wait(self.hash_of(p, <size_t>len(subject), seq), seq)

    def busy(self, bytes subject not None):
        """Is a message with this subject's key in flight or ready?"""
        cdef const char* p = subject
        return self.is_busy(self.hash_of(p, <size_t>len(subject), 0))

    def settled(self, uint64_t seq):
        """`settle` for Python callers."""
        self.settle(seq)

    def take(self):
        """The next message whose turn has come, now in flight; 0 when there is none."""
        cdef uint64_t seq = self.next_ready()
        if seq:
            self.take_ready()
        return seq

    @property
    def key_total(self):
        """Keys that are busy."""
        return self.by_hash.count
