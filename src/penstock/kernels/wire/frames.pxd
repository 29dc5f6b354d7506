"""Incremental parser of NATS protocol frames, both directions."""
from libc.stdint cimport uint64_t

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
    ERROR_UNKNOWN_OPERATION = 1     # -ERR 'Unknown Protocol Operation'; also a payload without its CRLF
    ERROR_MALFORMED = 2             # bad arguments of a known verb: close without -ERR
    ERROR_CONTROL_LINE = 3          # -ERR 'maximum control line exceeded'
    ERROR_PAYLOAD = 4               # -ERR 'Maximum Payload Violation'
    ERROR_NO_CONNECT = 5            # connect_only, and the line is no CONNECT: -ERR 'Authorization Violation'

# One parsed frame. Pointers refer to the parser's buffer and are valid until the next get_buffer() or feed().
cdef struct Frame:
    int op
    const char* subject         # PUB HPUB MSG HMSG SUB
    size_t subject_len
    const char* reply           # PUB HPUB MSG HMSG reply; SUB: the queue group. NULL when absent
    size_t reply_len
    const char* sid             # MSG HMSG SUB UNSUB
    size_t sid_len
    const char* body            # header and payload; CONNECT/INFO JSON; -ERR text without quotes
    size_t header_len           # 0 for PUB and MSG
    size_t body_len             # header and payload together, without the closing CRLF
    uint64_t max_msgs           # UNSUB; 0 when absent

cdef class FrameParser:
    cdef char* data
    cdef size_t start           # first byte not yet consumed
    cdef size_t end             # one past the last byte read
    cdef size_t capacity
    cdef size_t need            # size of the incomplete frame at `start`, bytes; 0 when unknown
    cdef Py_ssize_t exports     # live views handed out by get_buffer
    cdef size_t view_max        # most bytes of a view; 0: all of the free room
    cdef size_t offered         # bytes of the last view; after a read that fills it, more is waiting
    cdef bint is_offered        # a view was handed out, and its read is not noted yet
    cdef size_t read_room       # least room for a read
    cdef size_t capacity_first
    cdef public size_t max_control_line
    cdef public size_t max_payload
    cdef public bint connect_only   # accept only CONNECT, until the peer is authenticated
    cdef readonly int error     # ParseError
    # Next frame into f, or OP_NEED_MORE, or OP_ERROR. The only call of the hot loops.
    cdef int next(self, Frame* f) except -1
    # Rewinds to `start` as it was before next(): the frames parsed since then are parsed again.
    cdef void go_back(self, size_t start) noexcept
    cdef readonly int stopped_op        # the Op at which next_batch() stopped
    cdef readonly uint64_t messages     # taken by next_batch()
    cdef readonly uint64_t message_bytes    # of their headers and payloads
    cdef size_t line_scanned    # bytes from `start` already searched for the end of a control line
    cdef uint64_t epoch         # grows whenever pointers of frames become invalid
    cdef bytes last_subject     # of next_batch(): most messages repeat the one before
    cpdef bytes take_rest(self)
    cdef int fail(self, Frame* f, ParseError error) noexcept
    cdef int next_in_line(self, Frame* f) noexcept
    cdef int parse_arguments(self, Frame* f, int op, const char* p, const char* end) noexcept
    cdef int take_body(self, Frame* f, const char* body, size_t header_len, size_t body_len) noexcept
    # Called when the input is processed and no view is used.
    cdef void give_back(self) noexcept
    cdef int make_room(self, size_t room) except -1
    # What get_buffer() does before it returns a view; then the room after `end` that a read may use.
    cdef int make_room_to_read(self, Py_ssize_t size_hint) except -1
    cdef size_t offer_room(self) noexcept
    cdef object view_of_room(self)

# A frame as Python sees it; absent parts are None. For SUB, `reply` is the queue group.
cdef class PyFrame:
    cdef readonly int op
    cdef readonly bytes subject, reply, sid, header, payload
    cdef readonly uint64_t max_msgs

cdef PyFrame to_python(const Frame* f)

# For parsers of other grammars on the same buffer (route_frames.pyx).
cdef struct Span:
    const char* p
    size_t n

cdef bint parse_size(const Span* span, size_t* size) noexcept nogil
