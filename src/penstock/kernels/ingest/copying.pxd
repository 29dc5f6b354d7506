"""Messages in transit from one stream, the origin, to another one that mirrors or sources it."""
from libc.stdint cimport int64_t, uint32_t, uint64_t
from penstock.kernels.wire.output cimport RunBuffer
from penstock.kernels.wire.sinks cimport Message, Sink
from penstock.kernels.log.stream_log cimport StreamLog

# The header of a message in a batch; subject, header block and payload follow, padded to 8 bytes.
cdef struct CopyHead:
    uint64_t seq                    # in the origin
    int64_t ts                      # in the origin
    uint32_t size                   # including subject, header block, payload and padding
    uint32_t flags                  # COPY_...
    uint32_t subject_len
    uint32_t header_len
    uint32_t body_len               # header and payload together
    uint32_t id_start               # COPY_HAS_ID: offset of the id in the header block
    uint32_t id_len
    uint32_t unused

# A message in an encoded batch, little-endian; subject, header block and payload follow without padding.
cdef packed struct CopyEntry:
    uint64_t seq
    int64_t ts
    uint32_t flags
    uint32_t subject_len
    uint32_t header_len
    uint32_t body_len
    uint32_t id_start
    uint32_t id_len

cdef enum:
    COPY_IS_SPECIAL = 1             # its header block may change behaviour: left to Python
    COPY_HAS_ID = 2                 # it has a Nats-Msg-Id
    COPY_IS_PLACE = 4               # not a message: the origin has nothing to copy up to its sequence

# A run of an origin's messages, as the target stores them. encode() makes a command's body of it.
cdef class CopyBatch(RunBuffer):
    cdef readonly uint64_t reached  # the origin's sequence up to which the batch was applied
    cdef bytes line                 # start of the header line that names a message's origin; b"": no such line
    cdef bytes line_middle          # between sequence and subject
    cdef bytes line_end             # after the subject
    cdef int put(
        self, uint64_t seq, int64_t ts, const Message* m, const char* origin_subject, size_t origin_subject_len
    ) except -1
    cdef size_t _put_header(
        self, char* d, const Message* m, uint64_t seq, const char* origin_subject, size_t origin_subject_len,
        CopyHead* head
    ) except? 0xFFFFFFFF
    cdef uint64_t _gather(
        self, StreamLog origin, uint64_t from_seq, list filters, list mappers, size_t enough, uint64_t* upcoming
    ) except? 0
    cdef int _put_entry(self, const CopyEntry* entry, const char* text) except -1
    cdef int _copy(self, StreamLog origin, uint64_t seq, list mappers) except -1

# Receives deliveries of a consumer that reads an origin in another account.
cdef class DeliverySink(Sink):
    cdef object callback
