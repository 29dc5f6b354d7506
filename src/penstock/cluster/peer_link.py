"""One connection to another server: what routes, leaf nodes and gateways have in common.

A link is a state machine over control frames. Its table says which frames a state allows; any other frame
closes the connection, so a peer that has not proved itself can cause no work but parsing a line. Messages and
interest never come here: the compiled ingress takes them, and refuses them before the link is registered.

States; each kind of link uses some of them:

    GREETING    accepted, before CONNECT
    CHECKING    the login is being checked; nothing is read
    EXPECTING   before the peer's INFO
    CONNECTING  CONNECT is sent, and an answer expected
    REGISTERED  messages and interest flow
    CLOSED      nothing is read

Invariant: `closed` is the last call, and comes once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from penstock.cluster import compression
from penstock.errors import ProtocolError
from penstock.kernels.wire.frames import Op, ParseError, PyFrame
from penstock.kernels.wire.route_frames import RouteParser
from penstock.net.reasons import CloseReason

if TYPE_CHECKING:
    from penstock.kernels.wire.route_links import RouteIngress, RouteSink

PING = b"PING\r\n"
PONG = b"PONG\r\n"
INVALID_SUBSCRIPTION = "Invalid Subscription"


class LinkState(Enum):
    GREETING = "greeting"
    CHECKING = "checking"
    EXPECTING = "expecting"
    CONNECTING = "connecting"
    REGISTERED = "registered"
    CLOSED = "closed"


class Address(NamedTuple):
    """Where a server is dialled, and as whom."""

    host: str
    port: int
    user: str = ""
    password: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def is_same(self, other: Address) -> bool:
        return self.host.lower() == other.host.lower() and self.port == other.port


class Wire(Protocol):
    """What a link uses of its connection."""

    @property
    def peer(self) -> tuple[str, int]:
        """Address of the other end."""

    def close(self, reason: CloseReason) -> None:
        """Sends what is in the out buffer, then closes. `PeerLink.closed` follows."""

    def compress(self, mode: str) -> None:
        """Sends what is in the out buffer in clear. Everything after that, and everything not yet parsed, is
        compressed."""

    def change_level(self, mode: str) -> None:
        """Compresses output in this mode from now on."""

    def hand_over(self) -> bool:
        """Another protocol, that of replicated groups, takes over the connection with what is not parsed yet.
        The link is not used any more. Returns False, and does nothing, where there is none."""

    def registered(self) -> None:
        """The peer has proved itself: pings begin."""

    def ponged(self) -> None:
        """The peer has answered a ping."""


class LinkRegistry(Protocol):
    """What a link uses of the object that has all links of its kind."""

    @property
    def clock(self) -> Callable[[], int]:
        """Returns ns since 1970."""

    def log_error(self, link: Any, text: str) -> None: ...
    def log_debug(self, link: Any, text: str) -> None: ...


Handler = Callable[[Any, PyFrame], None]


class PeerLink:
    """One connection to another server.

    Args:
        registry: the links of this kind.
        cid: connection number.
        wire: the connection.
        sink: its output half.
        ingress: its input half.
        state: the first one.
    """

    HANDLERS: ClassVar[Mapping[LinkState, Mapping[int, Handler]]] = {}
    KIND: ClassVar[str] = ""
    """The kind of link in log lines."""
    TAG: ClassVar[str] = ""
    """Before the connection number in log lines."""

    def __init__(
        self,
        registry: LinkRegistry,
        cid: int,
        wire: Wire,
        sink: RouteSink,
        ingress: RouteIngress,
        state: LinkState,
    ) -> None:
        self._registry = registry
        self.cid = cid
        self._wire = wire
        self._ingress = ingress
        self._sink = sink
        assert isinstance(ingress.parser, RouteParser)
        self.parser = ingress.parser
        self.state = state
        self.compression = ""
        self.rtt_ns = 0
        self.started_ns = registry.clock()
        self._ping_sent_ns = 0
        self._negotiated = False

    @property
    def shown(self) -> str:
        """Prefix of log lines."""
        host, port = self._wire.peer
        return f"{host}:{port} - {self.TAG}:{self.cid}"

    # -- from the connection

    def control(self, op: int) -> None:
        """Handles the frame at which the ingress stopped, and those that follow."""
        while op != Op.OP_NEED_MORE and self.state is not LinkState.CLOSED:
            handler = None if op == Op.OP_ERROR else self.HANDLERS[self.state].get(op)
            if handler is None:
                self._on_broken_protocol()
                return
            try:
                handler(self, self._ingress.control())
            except ProtocolError as error:
                self.refuse(str(error), CloseReason.PROTOCOL_VIOLATION)
                return
            if self.state is LinkState.CHECKING:
                return  # the wire continues
            op = self._ingress.process()

    # -- for its registry

    def send(self, data: bytes) -> None:
        self._sink.write(data)

    def ping(self) -> None:
        """Measures the round trip time; the answer also proves that the peer accepted this server."""
        self._ping_sent_ns = self._registry.clock()
        self.send(PING)

    def close(self, reason: CloseReason) -> None:
        if self.state is not LinkState.CLOSED:
            self.state = LinkState.CLOSED
            self._wire.close(reason)

    def refuse(self, text: str, reason: CloseReason) -> None:
        """Sends -ERR and closes."""
        self._registry.log_error(self, text)
        self.send(f"-ERR '{text}'\r\n".encode())
        self.close(reason)

    # -- compression

    @property
    def mode(self) -> str:
        """The configured mode of compression."""
        return self._compression_options()[0]

    def _compression_options(self) -> tuple[str, tuple[int, ...]]:
        """(mode, round trip times of its levels)."""
        return compression.NOT_SUPPORTED, ()

    def _agree(self, theirs: str) -> bool:
        """Agrees on compression; returns whether the stream is compressed from now on."""
        self._negotiated = True
        mode, thresholds = self._compression_options()
        rtt_ns = self.rtt_ns or max(1, self._registry.clock() - self.started_ns)
        self.compression = compression.agreed(mode, theirs, rtt_ns, thresholds)
        return compression.compresses(self.compression)

    def _adapt_level(self) -> None:
        mode, thresholds = self._compression_options()
        if mode != compression.AUTO or not compression.compresses(self.compression):
            return
        level = compression.level_for(self.rtt_ns, thresholds)
        if level != self.compression:
            self.compression = level
            self._wire.change_level(level)

    # -- frames that every kind of link has

    def _on_ping(self, frame: PyFrame) -> None:
        self.send(PONG)

    def _on_pong(self, frame: PyFrame) -> None:
        if self._ping_sent_ns:
            self.rtt_ns = max(1, self._registry.clock() - self._ping_sent_ns)
            self._ping_sent_ns = 0
            self._adapt_level()
        self._wire.ponged()

    def _on_error(self, frame: PyFrame) -> None:
        text = (frame.payload or b"").decode("utf-8", "replace")
        self._note_error(text)
        self._registry.log_error(self, f"{self.KIND} Error '{text}'")
        if text != INVALID_SUBSCRIPTION:
            self.close(CloseReason.PARSE_ERROR)

    def _note_error(self, text: str) -> None:
        """The peer sent -ERR with this text."""

    def _on_ignored(self, frame: PyFrame) -> None:
        """+OK, and a second CONNECT."""

    def _on_broken_protocol(self) -> None:
        if self.state is LinkState.GREETING:
            self._registry.log_error(self, "authentication error")
            self.refuse("Authorization Violation", CloseReason.AUTHENTICATION_FAILURE)
            return
        error = ParseError(self.parser.error).name.removeprefix("ERROR_").replace("_", " ").lower()
        self._registry.log_error(self, f"{self.KIND} parser ERROR in state {self.state.value}: {error}")
        self.close(CloseReason.PROTOCOL_VIOLATION)


ANY: dict[int, Handler] = {
    Op.OP_PING: PeerLink._on_ping,
    Op.OP_PONG: lambda link, frame: link._on_pong(frame),
    Op.OP_OK: PeerLink._on_ignored,
    Op.OP_ERR: PeerLink._on_error,
}
"""What a peer may send once it is known."""
