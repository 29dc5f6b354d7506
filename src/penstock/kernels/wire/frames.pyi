"""Python interface of the frame parser."""

from enum import IntEnum
from typing import Final

from typing_extensions import Buffer

class Op(IntEnum):
    """Kinds of frames, and the outcomes of the parser."""

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
    OP_ERROR = 13

class ParseError(IntEnum):
    """How the peer broke the protocol, and what the official server answers before it closes."""

    ERROR_NONE = 0
    ERROR_UNKNOWN_OPERATION = 1
    ERROR_MALFORMED = 2
    ERROR_CONTROL_LINE = 3
    ERROR_PAYLOAD = 4
    ERROR_NO_CONNECT = 5

OP_NEED_MORE: Final = Op.OP_NEED_MORE
OP_PUB: Final = Op.OP_PUB
OP_HPUB: Final = Op.OP_HPUB
OP_SUB: Final = Op.OP_SUB
OP_UNSUB: Final = Op.OP_UNSUB
OP_CONNECT: Final = Op.OP_CONNECT
OP_INFO: Final = Op.OP_INFO
OP_PING: Final = Op.OP_PING
OP_PONG: Final = Op.OP_PONG
OP_MSG: Final = Op.OP_MSG
OP_HMSG: Final = Op.OP_HMSG
OP_OK: Final = Op.OP_OK
OP_ERR: Final = Op.OP_ERR
OP_ERROR: Final = Op.OP_ERROR
ERROR_NONE: Final = ParseError.ERROR_NONE
ERROR_UNKNOWN_OPERATION: Final = ParseError.ERROR_UNKNOWN_OPERATION
ERROR_MALFORMED: Final = ParseError.ERROR_MALFORMED
ERROR_CONTROL_LINE: Final = ParseError.ERROR_CONTROL_LINE
ERROR_PAYLOAD: Final = ParseError.ERROR_PAYLOAD
ERROR_NO_CONNECT: Final = ParseError.ERROR_NO_CONNECT

class PyFrame:
    """One frame. SUB has its queue group in `reply` (also as `queue`); CONNECT and INFO their JSON and -ERR
    its text, without quotes, in `payload`. Absent parts are None; for OP_ERROR all parts but `op` are."""

    @property
    def op(self) -> int: ...
    @property
    def subject(self) -> bytes | None: ...
    @property
    def reply(self) -> bytes | None: ...
    @property
    def queue(self) -> bytes | None: ...
    @property
    def sid(self) -> bytes | None: ...
    @property
    def header(self) -> bytes | None: ...
    @property
    def payload(self) -> bytes | None: ...
    @property
    def max_msgs(self) -> int: ...

class FrameParser:
    """Bytes in, frames out; one per connection.

    max_control_line -- largest argument part of a control line, bytes (a client reading INFO sets it high).
    max_payload -- largest header and payload together, bytes; 0 = unlimited.
    connect_only -- every line but CONNECT is ERROR_NO_CONNECT, from its first byte on.
    error -- a ParseError; once it is not ERROR_NONE the parser stays stopped.
    stopped_op -- the Op at which next_batch() stopped.
    """

    max_control_line: int
    max_payload: int
    connect_only: bool
    def __init__(self, max_control_line: int = 4096, max_payload: int = 0) -> None: ...
    @property
    def error(self) -> int: ...
    @property
    def stopped_op(self) -> int: ...
    @property
    def held_bytes(self) -> int:
        """Bytes of memory that the read buffer takes; 0 = it has none, as a parser without input."""

    @property
    def pending(self) -> int:
        """Bytes read and not yet consumed."""

    @property
    def messages(self) -> int:
        """Number of messages that next_batch() took."""

    @property
    def message_bytes(self) -> int:
        """Bytes of the headers and payloads of these messages."""
    def take_rest(self) -> bytes:
        """Takes the bytes read and not yet consumed: they belong to another layer of the stream."""

    def release(self) -> None:
        """Frees the buffer, with what was not consumed, of a connection that has ended."""

    def set_limits(self, max_control_line: int, max_payload: int) -> None:
        """Changes the limits for frames that are not parsed yet."""

    def lock(self) -> None:
        """Accepts only CONNECT, until unlock()."""

    def unlock(self) -> None:
        """Accepts all frames: the peer is authenticated."""

    def room_to_read(self, size_hint: int = -1) -> Buffer:
        """`get_buffer` for event loops that only need the buffer protocol: returns the parser itself."""

    def get_buffer(self, size_hint: int = -1) -> memoryview:
        """A writable view of the room for the next read, at least max(size_hint, 64 KiB).

        Raises BufferError when the buffer would have to move while an earlier view is alive.
        """

    def buffer_updated(self, n: int) -> None:
        """Notes that n bytes were read into the last view. Raises ValueError when the view was smaller."""

    def feed(self, data: Buffer) -> None:
        """Appends bytes, for sources other than a BufferedProtocol."""

    def next_frame(self) -> PyFrame | None:
        """The next frame, None when more bytes are needed; op OP_ERROR for a protocol error of the peer."""

    def next_batch(self, limit: int = -1) -> list[tuple[int, bytes, bytes | None, bytes | None, bytes]]:
        """MSG/HMSG up to the first other frame: (sid, subject, reply, header, payload); see stopped_op."""
