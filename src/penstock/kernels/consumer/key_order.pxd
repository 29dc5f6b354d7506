"""Key-shared delivery: the keys with a message in flight, and the messages that wait for their key."""
from libc.stdint cimport uint32_t, uint64_t

from penstock.kernels.base.hash_table cimport NumberMap
from penstock.kernels.base.memory cimport Ring

cdef struct Key:
    uint64_t hash
    uint32_t busy                       # messages in flight or ready
    uint32_t head, tail                 # waiting messages: node index + 1, 0 = none

cdef struct Node:
    uint64_t seq
    uint32_t next                       # node index + 1; in the free list for free nodes

# A message whose key has become free.
cdef struct Ready:
    uint64_t seq
    uint32_t key

cdef class KeyOrder:
    cdef readonly uint32_t token        # index of the subject token, from 1; 0: every message is its own key
    cdef NumberMap by_hash              # hash -> key + 1
    cdef NumberMap in_flight            # stream seq -> key + 1
    cdef Key* keys
    cdef size_t key_capacity, key_count
    cdef uint32_t free_key
    cdef Node* nodes
    cdef size_t node_capacity, node_count
    cdef uint32_t free_node
    cdef Ring ready                     # of Ready
    cdef readonly size_t waiting        # messages that wait for their key
    cdef uint64_t hash_of(self, const char* subject, size_t n, uint64_t seq) noexcept
    cdef bint is_busy(self, uint64_t hash) noexcept
    cdef int start(self, uint64_t hash, uint64_t seq) except -1     # seq is in flight now
    cdef int wait(self, uint64_t hash, uint64_t seq) except -1      # seq waits, its key is busy
    cdef int settle(self, uint64_t seq) except -1                   # seq was settled
    cdef uint64_t next_ready(self) noexcept                         # 0 when none
    cdef int take_ready(self) except -1                             # the next ready message is in flight now
    cdef int drop_ready(self) except -1                             # the next ready message was removed
    cdef uint32_t key_slot(self, uint64_t hash) except 0
    cdef int advance(self, uint32_t key) except -1
    cdef int push_ready(self, uint64_t seq, uint32_t key) except -1
