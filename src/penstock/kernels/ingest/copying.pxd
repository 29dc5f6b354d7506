"""Messages on their way from one stream, the origin, into another one that mirrors or sources it."""
from libc.stdint cimport int64_t, uint32_t, uint64_t
from penstock.kernels.wire.output cimport RunBuffer
from penstock.kernels.wire.sinks cimport Message, Sink
from penstock.kernels.log.stream_log cimport StreamLog

# What stands before a message in a batch; subject, header block and payload follow, padded to 8 bytes.
cdef struct CopyHead:
    uint64_t seq                    # in the origin
    int64_t ts                      # there
    uint32_t size                   # head, what follows it, and padding
    uint32_t flags                  # COPY_...
    uint32_t subject_len
    uint32_t header_len
    uint32_t body_len               # header and payload together
    uint32_t id_start               # COPY_HAS_ID: where in the header block the id is
    uint32_t id_len
    uint32_t unused

cdef enum:
    COPY_IS_SPECIAL = 1             # its header block may change behaviour: Python decides
    COPY_HAS_ID = 2                 # it has a Nats-Msg-Id
    COPY_IS_PLACE = 4               # no message: the origin has nothing to copy up to its sequence

# A run of an origin's messages, as the target stores them. This is also what a replicated log carries.
cdef class CopyBatch(RunBuffer):
    cdef readonly uint64_t reached  # the origin's sequence up to which the batch was applied
    cdef bytes line                 # begin of the line that says where a message comes from; b"": there is none
    cdef bytes line_middle          # between sequence and subject
    cdef bytes line_end             # behind the subject
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
    cdef int _copy(self, StreamLog origin, uint64_t seq, list mappers) except -1

# What reads an origin of another account by a consumer listens with.
cdef class DeliverySink(Sink):
    cdef object callback
