"""Arrow columns built directly from the frames of a pull consumer or a direct-get batch."""
from libc.stdint cimport int64_t, uint64_t
from penstock.kernels.wire.frames cimport Frame, FrameParser

# Why ColumnBuilder.feed() returned.
cpdef enum Event:
    EVENT_NEED_MORE = 0     # every buffered byte is used up: read the socket
    EVENT_FULL = 1          # the batch reached a bound: take() it, then feed again
    EVENT_END = 2           # the end of the range is reached; nothing more will be appended
    EVENT_STATUS = 3        # a status message of the subscription: see status, message
    EVENT_MESSAGE = 4       # a message of another subscription: see message
    EVENT_CONTROL = 5       # PING, PONG, INFO, +OK, -ERR: see op, body
    EVENT_GAP = 6           # a delivery is missing or out of order: restart at next_seq
    EVENT_ERROR = 7         # the peer broke the protocol; the parser stays stopped

# One buffer of a column while it grows.
cdef struct Column:
    char* data
    size_t size
    size_t capacity

# One header line; pointers refer to the frame.
cdef struct HeaderLine:
    const char* name
    size_t name_len
    const char* value
    size_t value_len
    bint grouped

# Memory of a finished column: what pyarrow wraps without a copy.
cdef class ColumnBuffer:
    cdef char* data
    cdef readonly size_t size

# Metadata of a message.
cdef struct Position:
    uint64_t seq
    uint64_t consumer_seq
    uint64_t pending
    int64_t time_us
    const char* subject
    size_t subject_len

cdef class ColumnBuilder:
    cdef Column subject_offsets, subject_data, seqs, times, data_offsets, data_data
    cdef Column map_offsets, key_offsets, key_data, list_offsets, value_offsets, value_data
    cdef HeaderLine* lines
    cdef size_t lines_capacity
    cdef bytes sid
    cdef bint direct, want_subject, want_seq, want_time, want_headers, want_data
    cdef size_t rows_max, bytes_max
    cdef uint64_t consumer_seq          # of the last delivery since restart()
    cdef readonly size_t rows           # in the current batch
    cdef readonly size_t batch_bytes    # in the current batch: subjects, headers and payloads
    cdef readonly uint64_t delivered    # messages seen since restart(), including those past the end
    cdef readonly uint64_t next_seq     # the first sequence not yet seen
    cdef readonly uint64_t end_seq      # exclusive
    cdef readonly uint64_t pending      # matching messages after the last one, as the server reported
    cdef readonly int op                # of the frame that caused the event
    cdef readonly int status            # 0 when the message has no status line
    cdef readonly bytes body
    cdef readonly tuple message         # (sid, subject, reply, header, payload)
    cpdef int feed(self, FrameParser parser) except -1
    cdef int append(
        self, const Position* p, const char* header, size_t header_len, const char* payload, size_t payload_len
    ) except -1
    cdef int append_headers(self, const char* p, size_t n) except -1
    cdef int hand_over(self, const Frame* f, int event) except -1
    cdef int start_batch(self) except -1
