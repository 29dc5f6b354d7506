"""Incremental parser of NATS protocol frames, both directions, and the encoders."""
from libc.stdint cimport uint64_t
from penstock.kernels.buffers cimport OutBuffer

cpdef enum Op:
    OP_NEED_MORE = 0
    OP_PUB = 1
    OP_HPUB = 2
    OP_SUB = 3
    OP_UNSUB = 4
    OP_CONNECT = 5
    OP_INFO = 6
    OP_PING = 7
    OP_PONG = 8
    OP_MSG = 9
    OP_HMSG = 10
    OP_OK = 11
    OP_ERR = 12
    OP_ERROR = 13       # the peer broke the protocol; parser.error says how; the parser stays stopped

cpdef enum ParseError:
    ERROR_NONE = 0
    ERROR_UNKNOWN_OPERATION = 1     # -ERR 'Unknown Protocol Operation'
    ERROR_MALFORMED = 2             # bad arguments of a known verb: close without -ERR
    ERROR_CONTROL_LINE = 3          # -ERR 'maximum control line exceeded'
    ERROR_PAYLOAD = 4               # -ERR 'Maximum Payload Violation'

# One parsed frame. Pointers reach into the parser's buffer and die at the next get_buffer/feed.
cdef struct Frame:
    int op
    const char* subject         # PUB HPUB MSG HMSG SUB
    size_t subject_len
    const char* reply           # PUB HPUB MSG HMSG reply; SUB: the queue group. NULL when absent
    size_t reply_len
    const char* sid             # MSG HMSG SUB UNSUB
    size_t sid_len
    const char* body            # header block followed by payload; CONNECT/INFO JSON; -ERR text without quotes
    size_t header_len           # 0 for PUB and MSG
    size_t body_len             # header and payload together, without the closing CRLF
    uint64_t max_msgs           # UNSUB; 0 when absent

cdef class FrameParser:
    cdef char* data
    cdef size_t start           # first byte not yet consumed
    cdef size_t end             # one past the last byte read
    cdef size_t capacity
    cdef size_t need            # total bytes from `start` the frame under way needs; 0 when unknown
    cdef Py_ssize_t exports     # live views handed out by get_buffer
    cdef public size_t max_control_line
    cdef public size_t max_payload
    cdef readonly int error     # ParseError
    # Next frame into f, or OP_NEED_MORE, or OP_ERROR. The one call the hot loops make.
    cdef int next(self, Frame* f) except -1
