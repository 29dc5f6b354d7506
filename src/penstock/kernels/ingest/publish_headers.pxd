"""What the header block of a publish asks of a stream."""
from libc.stdint cimport uint16_t, uint32_t
from penstock.kernels.wire.buffers cimport OutBuffer
from penstock.kernels.log.message_ids cimport MessageIds
from penstock.kernels.wire.sinks cimport Message
from penstock.kernels.log.stream_log cimport StreamLog

cdef enum:
    PUBLISH_HAS_REPLY = 1
    PUBLISH_IS_SPECIAL = 2          # its header block may change behaviour: Python decides
    PUBLISH_HAS_ID = 4              # it has a Nats-Msg-Id
    PUBLISH_EXPECTS = 8             # it says what must hold of the stream (Nats-Expected-...)
    PUBLISH_IS_FAST = 16            # its reply subject is one of a fast batch
    PUBLISH_IS_BATCHED = 32         # it belongs to an atomic batch (Nats-Batch-Id), and has its place there
    PUBLISH_COMMITS = 64            # it says something about that batch's commit
    ID_NAME_SIZE = 12               # "Nats-Msg-Id:"

    # Larger than any max_payload the server accepts; keeps every length within 32 bits.
    BODY_MAX = 0x7fff0000
    SUBJECT_MAX = 0xffff            # a record stores the length of its subject in 16 bits

    # What a publish may expect.
    EXPECTS_STREAM = 1
    EXPECTS_SEQ = 2
    EXPECTS_SUBJECT_SEQ = 4
    EXPECTS_LAST_ID = 8

# What stands before a publish in a batch; subject, reply and body follow, the whole padded to 8 bytes.
cdef struct PublishHead:
    uint32_t size                   # head, subject, reply, body and padding
    uint32_t header_len
    uint32_t body_len               # header and payload together
    uint32_t batch_seq              # PUBLISH_IS_BATCHED: its place in the atomic batch
    uint16_t flags
    uint16_t subject_len
    uint16_t reply_len
    uint16_t id_start               # PUBLISH_HAS_ID: where in the header block the id is
    uint16_t id_len
    uint16_t batch_start            # PUBLISH_IS_BATCHED: where the batch's id is
    uint16_t batch_len
    uint16_t unused

# Gives `head` what the block (of head.header_len bytes, at p) may change: nothing (flags 0), dedupe
# (PUBLISH_HAS_ID), what must hold (PUBLISH_EXPECTS), an atomic batch (PUBLISH_IS_BATCHED), or anything
# (PUBLISH_IS_SPECIAL: another name, one that comes twice, an odd form).
cdef void classify_header(const char* p, PublishHead* head) noexcept nogil
# Which expectations do not hold; empty ones are none. The block passed classify_header.
cdef uint32_t failed_expectations(
    const Message* m, StreamLog log, bytes stream, MessageIds ids
) except? 0xFFFFFFFF
# Which expectations the block has; empty ones are none.
cdef uint32_t present_expectations(const char* p, size_t n) noexcept nogil
# The value without the space around it, and its size.
cdef const char* trim(const char* value, const char* end, size_t* size) noexcept nogil
# Does a batch take it: no length beyond what heads and records hold?
cdef bint fits(const Message* m) noexcept nogil
# Writes a publish that fits behind what `buf` holds, its header block classified; returns its head.
cdef PublishHead* put_publish(OutBuffer buf, const Message* m) except NULL
# What a publish in a batch is as a message; its pointers are into the batch.
cdef void message_of(const PublishHead* head, Message* m) noexcept nogil
