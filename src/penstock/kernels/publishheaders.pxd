"""What the header block of a publish asks of a stream."""
from libc.stdint cimport uint32_t
from penstock.kernels.messageids cimport MessageIds
from penstock.kernels.sinks cimport Message
from penstock.kernels.streamlog cimport StreamLog

cdef enum:
    PUBLISH_HAS_REPLY = 1
    PUBLISH_IS_SPECIAL = 2          # its header block may change behaviour: Python decides
    PUBLISH_HAS_ID = 4              # it has a Nats-Msg-Id
    PUBLISH_EXPECTS = 8             # it says what must hold of the stream (Nats-Expected-...)
    PUBLISH_IS_FAST = 16            # its reply subject is one of a fast batch
    ID_NAME_SIZE = 12               # "Nats-Msg-Id:"

    # What a publish may expect.
    EXPECTS_STREAM = 1
    EXPECTS_SEQ = 2
    EXPECTS_SUBJECT_SEQ = 4
    EXPECTS_LAST_ID = 8

# What the block may change: nothing (0), dedupe (PUBLISH_HAS_ID, and where the id is), what must hold
# (PUBLISH_EXPECTS), or anything (PUBLISH_IS_SPECIAL: another name, one that comes twice, an odd form).
cdef uint32_t classify_header(const char* p, size_t n, uint32_t* id_start, uint32_t* id_len) noexcept nogil
# Which expectations do not hold; empty ones are none. The block passed classify_header.
cdef uint32_t failed_expectations(
    const Message* m, StreamLog log, bytes stream, MessageIds ids
) except? 0xFFFFFFFF
# The value without the space around it, and its size.
cdef const char* trim(const char* value, const char* end, size_t* size) noexcept nogil
