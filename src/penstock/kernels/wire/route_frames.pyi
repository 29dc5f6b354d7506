"""Python interface of the parser of route frames."""

from enum import IntEnum

from penstock.kernels.wire.frames import FrameParser, PyFrame

class RouteOp(IntEnum):
    ROUTE_SUB = 32
    ROUTE_UNSUB = 33
    ROUTE_MSG = 34
    ROUTE_ACCOUNT = 35
    ROUTE_NO_ACCOUNT = 36

class PyRouteFrame:
    """One frame: bytes, b"" when absent. `control`: a control frame, of which only `op` is set otherwise."""

    op: int
    control: PyFrame | None
    is_leaf: bool
    origin: bytes
    account: bytes
    subject: bytes
    reply: bytes
    queue: bytes
    body: bytes
    queues: list[bytes]
    header_len: int
    weight: int

class RouteParser(FrameParser):
    """Bytes in, frames of a route out; holds at most 64 KiB until `widen`."""

    @property
    def account(self) -> bytes:
        """Account of a dedicated route, whose frames omit it; b"" = none."""

    @property
    def is_wide(self) -> bool:
        """Does it take messages and interest?"""

    def __init__(self) -> None: ...
    def widen(self, max_control_line: int = 65536) -> None:
        """The peer is registered: it may send messages and interest, and lines and reads may be long."""

    def dedicate(self, account: bytes) -> None:
        """The frames concern this account and omit it."""

    def for_leaf(self) -> None:
        """The frames are those of a leaf node link."""

    def next_route_frame(self) -> PyRouteFrame | None:
        """The next frame, or None while it is incomplete."""
