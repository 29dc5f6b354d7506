"""Header blocks of publishes, and the message ids of a stream's dedupe window."""
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t

from penstock.kernels.base.id_table cimport IdCells, IdTable
from penstock.kernels.log.stream_log cimport StreamLog
from penstock.kernels.wire.output cimport OutBuffer
from penstock.kernels.wire.sinks cimport Message


cdef enum:
    PUBLISH_HAS_REPLY = 1
    PUBLISH_IS_SPECIAL = 2          # its header block may change behaviour: left to Python
    PUBLISH_HAS_ID = 4              # it has a Nats-Msg-Id
    PUBLISH_EXPECTS = 8             # it has expectations of the stream's state (Nats-Expected-...)
    PUBLISH_IS_FAST = 16            # its reply subject is one of a fast batch
    PUBLISH_IS_BATCHED = 32         # it belongs to an atomic batch (Nats-Batch-Id), and has a sequence there
    PUBLISH_COMMITS = 64            # it has a header about that batch's commit
    ID_NAME_SIZE = 12               # "Nats-Msg-Id:"

    # Larger than any max_payload the server accepts; keeps every length within 32 bits.
    BODY_MAX = 0x7fff0000
    SUBJECT_MAX = 0xffff            # a record stores the length of its subject in 16 bits

    # Expectations of a publish.
    EXPECTS_STREAM = 1
    EXPECTS_SEQ = 2
    EXPECTS_SUBJECT_SEQ = 4
    EXPECTS_LAST_ID = 8

# The header of a publish in a batch; subject, reply and body follow, padded to 8 bytes.
cdef struct PublishHead:
    uint32_t size                   # head, subject, reply, body and padding
    uint32_t header_len
    uint32_t body_len               # header and payload together
    uint32_t batch_seq              # PUBLISH_IS_BATCHED: its sequence in the atomic batch
    uint16_t flags
    uint16_t subject_len
    uint16_t reply_len
    uint16_t id_start               # PUBLISH_HAS_ID: offset of the id in the header block
    uint16_t id_len
    uint16_t batch_start            # PUBLISH_IS_BATCHED: offset of the batch's id
    uint16_t batch_len
    uint16_t unused

# Sets the flags of `head` for the block of head.header_len bytes at p: nothing special (0), dedupe
# (PUBLISH_HAS_ID), expectations (PUBLISH_EXPECTS), an atomic batch (PUBLISH_IS_BATCHED), or anything else
# (PUBLISH_IS_SPECIAL: another name, a repeated name, an unusual form).
cdef void classify_header(const char* p, PublishHead* head) noexcept nogil
# The expectations that fail; empty ones are ignored. The block passed classify_header.
cdef uint32_t failed_expectations(
    const Message* m, StreamLog log, bytes stream, MessageIds ids
) except? 0xFFFFFFFF
# The expectations of the block; empty ones are ignored.
cdef uint32_t present_expectations(const char* p, size_t n) noexcept nogil
# The value without the space around it, and its size.
cdef const char* trim(const char* value, const char* end, size_t* size) noexcept nogil
# Do all lengths fit the fields of heads and records?
cdef bint fits(const Message* m) noexcept nogil
# Appends a publish that fits() to `buf`, with its header block classified; returns its head.
cdef PublishHead* put_publish(OutBuffer buf, const Message* m) except NULL
# Converts a publish in a batch to a Message; its pointers refer to the batch.
cdef void message_of(const PublishHead* head, Message* m) noexcept nogil


# One id; its bytes follow, padded to 8.
cdef struct IdEntry:
    uint64_t seq
    int64_t ts
    uint32_t hash
    uint32_t size                   # bytes of the id

cdef class MessageIds:
    cdef readonly int64_t window_ns
    cdef readonly size_t count
    # Entries in order of time, between head and tail. A place is an offset from the first entry ever stored, so
    # that moving the entries to the front of the arena changes no place.
    cdef char* arena
    cdef size_t capacity
    cdef uint64_t base              # place of the arena's first byte
    cdef uint64_t head, tail        # places of the oldest entry and of the next one
    cdef IdTable table              # slots: places / 8, modulo SLOTS
    cdef uint64_t seed
    cdef char* last                 # the id of the last message stored
    cdef size_t last_size, last_capacity
    cdef int64_t forgotten          # ids stored up to this time (ns) are not found, dropped or not
    # The hash h of an id, for the functions below.
    cdef uint32_t hash_of(self, const char* id, size_t n) noexcept
    # Lookups of several ids: first the cells of all, then the entries that their cells name. A prefetch changes no
    # state, and a lookup without one finds the same.
    cdef void fetch_cells(self, uint32_t h) noexcept
    cdef void fetch_entries(self, uint32_t h) noexcept
    # The sequence under an id within the window before `now`, or 0.
    cdef uint64_t seq_of(self, const char* id, size_t n, uint32_t h, int64_t now) except? 0
    # Adds an id that seq_of() has not found. ts must not be earlier than the previous one.
    cdef int remember(self, const char* id, size_t n, uint32_t h, uint64_t seq, int64_t ts) except -1
    cdef int set_last(self, const char* id, size_t n) except -1
    cdef bint is_last(self, const char* id, size_t n) noexcept
    cdef IdEntry* _at(self, uint64_t place) noexcept
    cdef uint64_t _place(self, uint32_t slot) noexcept
    cdef IdEntry* _find(self, const char* id, size_t n, uint32_t h) noexcept
    cdef IdEntry* _find_in(self, const IdCells* cells, const char* id, size_t n, uint32_t h) noexcept
    cdef int _make_room(self, size_t size) except -1
    cdef int _shrink(self) except -1
    cpdef Py_ssize_t prune(self, int64_t now, Py_ssize_t most=*) except -1
