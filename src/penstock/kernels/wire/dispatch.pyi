"""Python interface of the hot path of routing."""

from collections.abc import Callable

from typing_extensions import Buffer

from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.output import OutBuffer
from penstock.kernels.wire.sinks import DirtyList, Sink

class DeliveryGuard:
    """Enforces a receiver's permissions on deliveries.

    may_receive -- callable(subject) -> bool, called once for a subject; False = not delivered.
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
    """Reports the messages of a connection, for a log that shows them.

    tell -- callable(received, subject, sid, reply, body, header_len); sid is b"" for a publish, body the
    header block and the payload as the receiver gets them.
    """

    def __init__(self, tell: Callable[[bool, bytes, bytes, bytes, bytes, int], object]) -> None: ...

class ClientSink(Sink):
    """The output half of a connection: encodes messages into `out` and marks itself in `dirty_list`.

    echo -- does it get its own publishes? (CONNECT echo; default True)
    headers -- does the client take HMSG? Otherwise the header block is stripped. (default False)
    closed -- refuses deliveries, and Ingress.process() stops.
    owner -- has on_auto_unsubscribe(sub), called when a subscription reached its maximum (sub.closed is
    set by then; the owner removes it from the index).
    guard -- the permissions of this receiver; None = it may receive everything.
    tracer -- called for its publishes and deliveries; None (the default) = no calls.
    brief, detail -- cached client info for services in other accounts; None = not built yet.
    stall_threshold -- bytes waiting in `out` above which a publisher's Ingress.fed_slow is set.
    pending_max -- most bytes in `out`, 0 (the default) for no bound; a delivery that exceeds it closes the
    sink and sets overflowed: the owner ends the connection.
    socket -- descriptor of a socket that `out` may be sent to directly, -1 (the default) = owner.flush()
    sends it. When the socket doesn't accept all of it, owner.flush() is called for the rest.
    sent_bytes -- sent directly to the socket.
    active_ns -- monotonic time of the last message to or from the client, or of note_active(); 0 = none yet.
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
    def active_ns(self) -> int: ...
    @property
    def overflowed(self) -> bool: ...
    guard: DeliveryGuard | None
    tracer: Tracer | None
    brief: bytes | None
    detail: bytes | None
    def __init__(self, dirty_list: DirtyList, owner: object = None) -> None: ...
    @property
    def out(self) -> OutBuffer: ...
    def restrict(self, guard: DeliveryGuard | None) -> None:
        """Enforces these permissions on deliveries; None = it may receive everything."""

    def trace(self, tracer: Tracer | None) -> None:
        """Reports publishes and deliveries to this tracer; None = to none."""

    def bound(self, pending_max: int) -> None:
        """Limits the bytes in `out`; 0 = no bound."""

    def forget_client_info(self) -> None:
        """Drops the cached client info: identity or round trip time have changed."""

    def write(self, data: Buffer) -> None:
        """Appends protocol text (INFO, PONG, -ERR, ...) and marks the sink dirty."""

    def note_active(self) -> None:
        """Notes that the client did something other than to publish."""

    def when_drained(self, callback: Callable[[], object]) -> None:
        """Calls callback() once, when the receiver has taken all pending output."""

    def drained(self) -> None:
        """Notes that the receiver can take more (or is gone), and runs the callbacks of when_drained()."""

    def take(self) -> bytes:
        """Returns the output to send and clears the dirty mark."""

class ServiceSink(Sink):
    """A Python callable as a sink: before(), then callback(subject, reply, header, payload, origin)."""

    def __init__(
        self,
        callback: Callable[[bytes, bytes, bytes, bytes, Sink | None], object],
        before: Callable[[], object] | None = None,
    ) -> None: ...

class SubjectMapper:
    """Caches subject mappings; one for all connections of an account.

    decide -- callable(subject) -> (subject to route, cacheable). Called once for a subject whose mapping is
    cacheable, and for every message otherwise.
    prefix -- what every subject begins with that decide() changes; publishes of others don't call it.
    """

    prefix: bytes
    def __init__(self, decide: Callable[[bytes], tuple[bytes, bool]], prefix: bytes = b"") -> None: ...
    def map(self, subject: bytes) -> bytes:
        """The subject to route. Raises ValueError when decide() gives one with whitespace."""

def publish(
    index: SubscriptionIndex,
    subject: bytes,
    reply: bytes,
    header: bytes,
    payload: bytes,
    origin: Sink | None = None,
) -> int:
    """Routes one message; b"" for an absent reply or header. Returns how many receivers accepted it.

    A subject with empty tokens reaches no receiver. Raises ValueError for whitespace in subject or reply.
    """
