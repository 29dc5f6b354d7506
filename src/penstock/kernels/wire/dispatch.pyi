"""What Python sees of the hot path of routing."""

from collections.abc import Callable

from typing_extensions import Buffer

from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.buffers import OutBuffer
from penstock.kernels.wire.frames import FrameParser, PyFrame
from penstock.kernels.wire.sinks import DirtyList, Sink
from penstock.kernels.wire.ticks import TickTrigger

class DeliveryGuard:
    """What a receiver's permissions mean for what is delivered to it.

    may_receive -- callable(subject) -> bool, asked once about a subject; False = it is not delivered.
    on_reply -- callable(reply), called for every message with a reply before it is delivered.
    """

    may_receive: Callable[[bytes], bool] | None
    on_reply: Callable[[bytes], object] | None
    def __init__(
        self,
        may_receive: Callable[[bytes], bool] | None = None,
        on_reply: Callable[[bytes], object] | None = None,
    ) -> None: ...

class Tracer:
    """Tells what passes a connection, for a log that shows messages.

    tell -- callable(received, subject, sid, reply, body, header_len); sid is b"" for a publish, body the
    header block and the payload as the receiver gets them.
    """

    def __init__(self, tell: Callable[[bool, bytes, bytes, bytes, bytes, int], object]) -> None: ...

class ClientSink(Sink):
    """The output half of a connection: encodes messages into `out` and marks itself in `dirty_list`.

    echo -- does it get its own publishes? (CONNECT echo; default True)
    headers -- does the client take HMSG? Otherwise the header block is stripped. (default False)
    closed -- nothing is delivered any more, and Ingress.process() stops.
    owner -- has on_auto_unsubscribe(sub), called when a subscription reached its maximum (sub.closed is
    set by then; the owner removes it from the index).
    guard -- keeps messages from this receiver; None = nothing does.
    tracer -- is called for its publishes and for what is delivered to it; None (the default) = no calls.
    brief, detail -- what services in other accounts are told of it; None = not made yet.
    stall_threshold -- bytes waiting in `out` above which a publisher's Ingress.fed_slow is set.
    pending_max -- bytes that may wait in `out`, 0 (the default) for no bound; what goes above it closes the
    sink and sets overflowed: the owner ends the connection.
    socket -- descriptor of a socket that `out` may go straight to, -1 (the default) = owner.flush() sends it.
    When the socket doesn't take all, owner.flush() is called for the rest.
    sent_bytes -- what went straight to the socket.
    out_bytes, in_bytes -- header and payload, without the protocol around them.
    """

    echo: bool
    headers: bool
    closed: bool
    out_msgs: int
    out_bytes: int
    in_msgs: int
    in_bytes: int
    owner: object
    stall_threshold: int
    pending_max: int
    socket: int
    @property
    def sent_bytes(self) -> int: ...
    @property
    def overflowed(self) -> bool: ...
    guard: DeliveryGuard | None
    tracer: Tracer | None
    brief: bytes | None
    detail: bytes | None
    def __init__(self, dirty_list: DirtyList, owner: object = None) -> None: ...
    @property
    def out(self) -> OutBuffer: ...
    def write(self, data: Buffer) -> None:
        """Appends protocol text (INFO, PONG, -ERR, ...) and marks the sink dirty."""

    def when_drained(self, callback: Callable[[], object]) -> None:
        """Calls callback() once, as soon as the receiver has taken what it was sent."""

    def drained(self) -> None:
        """The receiver can take more (or is gone): tells those who wait for it."""

    def take(self) -> bytes:
        """What is to be sent; the sink is clean afterwards and will mark itself anew."""

class ServiceSink(Sink):
    """A Python callable as a sink: before(), then callback(subject, reply, header, payload, origin)."""

    def __init__(
        self,
        callback: Callable[[bytes, bytes, bytes, bytes, Sink | None], object],
        before: Callable[[], object] | None = None,
    ) -> None: ...

class SubjectMapper:
    """Remembers what became of subjects; one for all connections of an account.

    decide -- callable(subject) -> (subject to route, is it always so?). It is asked once about a subject
    that always becomes the same one, and for every message about others.
    """

    def __init__(self, decide: Callable[[bytes], tuple[bytes, bool]]) -> None: ...
    def map(self, subject: bytes) -> bytes:
        """The subject to route. Raises ValueError when decide() gives one with whitespace."""

class Ingress:
    """The input half of a connection.

    index -- the account's subscriptions; set it before the first publish.
    verbose, pedantic, no_responders -- as in CONNECT; all False at first.
    publish_check -- callable(subject), False = drop (it has sent its -ERR), True = allowed, remembered until
    forget_permissions(); any other number = allowed this time. None = all allowed.
    mapper -- changes the subjects of publishes before anything checks them. None = nothing does.
    fed_slow -- has it delivered to a sink above its stall_threshold? Set it False to watch anew.
    on_control, on_fed_slow, trigger -- for received(): what is called with the Op of a frame that is none of
    a publish, and goes on with it; what is called when fed_slow is set; and whose tick a read may end, and
    whose budget it has (None: it ends no tick and has no budget). is_direct -- reads come straight from the
    socket: only they end a tick.
    on_wait -- callable(): the budget is used up, and what was read waits for go_on() in a later turn of the
    loop; None = it works for as long as there is something. waiting -- for go_on().
    held -- while True nothing is worked on.
    on_traced -- callable(subject, reply, header, payload) -> how many took it: routes publishes whose headers
    ask for a trace, as with trace_parent a `traceparent` does. None = they are routed like others.
    active -- has read something since somebody set it False. read_bytes -- of the last read.
    """

    index: SubscriptionIndex | None
    verbose: bool
    pedantic: bool
    no_responders: bool
    publish_check: Callable[[bytes], int] | None
    mapper: SubjectMapper | None
    on_traced: Callable[[bytes, bytes, bytes, bytes], int] | None
    trace_parent: bool
    fed_slow: bool
    on_control: Callable[[int], object]
    on_fed_slow: Callable[[], object]
    trigger: TickTrigger | None
    is_direct: bool
    on_wait: Callable[[], object] | None
    held: bool
    active: bool
    @property
    def waiting(self) -> bool: ...
    @property
    def read_bytes(self) -> int: ...
    def __init__(
        self, sink: ClientSink, index: SubscriptionIndex | None = None, parser: FrameParser | None = None
    ) -> None: ...
    @property
    def parser(self) -> FrameParser: ...
    @property
    def sink(self) -> ClientSink: ...
    def process(self) -> int:
        """Dispatches publishes; OP_NEED_MORE, or the Op of the frame it stopped at, or OP_ERROR."""

    def received(self, n: int) -> None:
        """Works on the `n` bytes that a read put into the parser's buffer, and may end the tick."""

    def go_on(self) -> None:
        """Works on what waits, for as long as the budget of a part allows."""

    def finish(self) -> None:
        """Works through all that was read, whatever it takes."""

    def control(self) -> PyFrame:
        """The frame process() stopped at. Raises RuntimeError when there is none or more was read since."""

    def forget_permissions(self) -> None:
        """Asks publish_check anew about every subject."""

def publish(
    index: SubscriptionIndex,
    subject: bytes,
    reply: bytes,
    header: bytes,
    payload: bytes,
    origin: Sink | None = None,
) -> int:
    """Routes one message; b"" for an absent reply or header. Returns how many took it.

    A subject with empty tokens reaches no receiver. Raises ValueError for whitespace in subject or reply.
    """
