"""The input half of a connection."""

from collections.abc import Callable

from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import ClientSink, SubjectMapper
from penstock.kernels.wire.frames import FrameParser, PyFrame
from penstock.kernels.wire.ticks import TickTrigger

class Ingress:
    """The input half of a connection.

    index -- the account's subscriptions; set it before the first publish.
    verbose, pedantic, no_responders -- as in CONNECT; all False at first.
    publish_check -- callable(subject), False = drop (it has sent its -ERR), True = allowed, cached until
    restrict(); any other number = allowed this time. None = all allowed.
    mapper -- changes the subjects of publishes before any check. None = no mapping.
    fed_slow -- has it delivered to a sink above its stall_threshold? Set it False to watch again.
    on_control -- called by received() with the Op of a frame other than a publish; it handles the frame.
    on_fed_slow -- called by received() when fed_slow is set.
    trigger -- runs the tick that a read may end, and has the time budget. None = no tick and no budget.
    is_direct -- reads come directly from the socket: only such reads end a tick.
    socket -- descriptor that go_on() may read; -1 (the default) = only the event loop reads.
    is_broken -- such a read has failed.
    on_wait -- callable(): the budget is used up, and the input waits for go_on() in a later iteration of the
    loop; None = no time limit. waiting -- input waits for go_on().
    paused -- while True, input is not processed.
    on_traced -- callable(subject, reply, header, payload) -> number of receivers: routes publishes whose
    headers request a trace; with trace_parent, `traceparent` does. None = they are routed like others.
    active -- has read something since it was set False. read_bytes -- of the last read.
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
    socket: int
    on_wait: Callable[[], object] | None
    paused: bool
    active: bool
    @property
    def waiting(self) -> bool: ...
    @property
    def is_broken(self) -> bool: ...
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
        """Processes the `n` bytes that a read put into the parser's buffer, and may end the tick."""

    def go_on(self) -> None:
        """Processes waiting input within the budget of a part."""

    def note_full_read(self) -> None:
        """Notes that a layer below filled its room for a read: there is more input than its bytes tell."""

    def finish(self) -> None:
        """Processes all input without regard to the budget."""

    def control(self) -> PyFrame:
        """The frame process() stopped at. Raises RuntimeError when there is none or more was read since."""

    def configure(
        self,
        *,
        verbose: bool = False,
        pedantic: bool = False,
        no_responders: bool = False,
        echo: bool = True,
        headers: bool = False,
    ) -> None:
        """Applies the options of a CONNECT, to both halves of the connection."""

    def join(
        self,
        index: SubscriptionIndex,
        mapper: SubjectMapper | None = None,
        on_traced: Callable[[bytes, bytes, bytes, bytes], int] | None = None,
        trace_parent: bool = False,
    ) -> None:
        """Routes publishes in this account from now on."""

    def restrict(self, publish_check: Callable[[bytes], int] | None) -> None:
        """Asks publish_check about every subject from now on, cached or not; None = all allowed."""

    def take_activity(self) -> bool:
        """Has it read something since the last call?"""

def asks(header: bytes, parent: bool) -> bool:
    """Does a header block name a trace destination? With `parent`, a `traceparent` counts as well."""
