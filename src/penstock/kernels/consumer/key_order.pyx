"""Key-shared delivery: messages whose subjects have the same n-th token are delivered one at a time and in order,
those of different keys concurrently.

A key is the hash of that token. It is busy while one of its messages is in flight (delivered, not settled), or
ready. Messages of a busy key wait in its queue, in the order of the stream; when the one in flight is
settled, the first of them becomes ready.

Invariants: a key exists exactly while it is busy; messages that wait for a key have higher sequences than those in
flight; a message is in flight, ready, waiting or unknown.
Two tokens with the same hash (2^-64) share a key: they are delivered one at a time, but never wrongly.
Rejected: dicts of bytes (three Python objects per message); an index of the log by key (every stream would have to
maintain it, used or not).
"""
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memchr

from penstock.kernels.base.hash_table cimport NumberMap
from penstock.kernels.base.memory cimport array_grow, ring_at, ring_drop_front, ring_free, ring_make, ring_push
from penstock.kernels.log.records cimport xxh64

cdef enum:
    READY_FIRST = 16


cdef class KeyOrder:
    """token: index of the subject token that is the key, from 1. Messages without it share a key; 0: no keys, every
    message may be delivered."""

    def __cinit__(self, uint32_t token):
        self.token = token
        self.by_hash = NumberMap()
        self.in_flight = NumberMap()
        ring_make(&self.ready, READY_FIRST, sizeof(Ready), b"ready messages")

    def __dealloc__(self):
        free(self.keys)
        free(self.nodes)
        ring_free(&self.ready)

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
        """Index + 1 of the key of a hash; creates the key if needed."""
        cdef uint64_t found
        cdef uint32_t key
        if self.by_hash.get(hash, &found):
            return <uint32_t>found
        if self.free_key:
            key = self.free_key
            self.free_key = self.keys[key - 1].head
        else:
            self.keys = <Key*>array_grow(self.keys, &self.key_capacity, self.key_count + 1, sizeof(Key), 16, b"keys")
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
        if self.free_node:
            node = self.free_node
            self.free_node = self.nodes[node - 1].next
        else:
            self.nodes = <Node*>array_grow(
                self.nodes, &self.node_capacity, self.node_count + 1, sizeof(Node), 64, b"waiting messages"
            )
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
        """Called when no message of the key is in flight: makes its next message ready, or frees the key."""
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
        cdef Ready* ready = <Ready*>ring_push(&self.ready, sizeof(Ready), b"ready messages")
        ready.seq, ready.key = seq, key
        return 0

    cdef uint64_t next_ready(self) noexcept:
        return (<Ready*>ring_at(&self.ready, 0, sizeof(Ready))).seq if self.ready.count else 0

    cdef int take_ready(self) except -1:
        cdef Ready* ready = <Ready*>ring_at(&self.ready, 0, sizeof(Ready))
        self.in_flight.put(ready.seq, ready.key)
        ring_drop_front(&self.ready)
        return 0

    cdef int drop_ready(self) except -1:
        cdef uint32_t key = (<Ready*>ring_at(&self.ready, 0, sizeof(Ready))).key
        ring_drop_front(&self.ready)
        self.keys[key - 1].busy -= 1
        if self.keys[key - 1].busy == 0:
            self.advance(key)
        return 0

    # --- for Python callers: after a restart, and tests --------------------------------------------------

    def delivered(self, bytes subject not None, uint64_t seq):
        """Notes that a message of that subject is in flight."""
        cdef const char* p = subject
        self.start(self.hash_of(p, <size_t>len(subject), seq), seq)

    def parked(self, bytes subject not None, uint64_t seq):
        """Queues a message of that subject for its key; it is ready immediately if the key is free."""
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
        """Puts the next ready message in flight and returns its sequence; 0 when there is none."""
        cdef uint64_t seq = self.next_ready()
        if seq:
            self.take_ready()
        return seq

    @property
    def key_total(self):
        """Number of busy keys."""
        return len(self.by_hash)
