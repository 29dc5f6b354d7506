"""The time budget of connections, and when the end of a tick runs."""

from collections.abc import Callable

from penstock.kernels.wire.sinks import DirtyList

SHORT_NS: int
LONG_NS: int
CROWD_NS: int
HEAVY_NS: int
CROWDED_READ: int
CROWDED_SMALL_READ: int

class LoopBudget:
    """How long the loop works for connections with much to do before all others have a turn.

    call_soon -- the event loop's.
    clock -- ns, never going back; None = the monotonic clock.
    """

    def __init__(
        self,
        call_soon: Callable[[Callable[[], object]], object],
        clock: Callable[[], int] | None = None,
    ) -> None: ...
    @property
    def crowded(self) -> bool:
        """Has a connection with little work been there a moment ago?"""

    @property
    def waiting(self) -> int:
        """How many wait for a turn."""

    def wait(self, work: Callable[[], object], failed: Callable[[Exception], object] | None = None) -> None:
        """Calls work() once, in a later turn of the loop, after those that wait already. It works until
        is_over() and asks for another turn when something is left. failed: called with what work() raises,
        which the event loop gets otherwise."""

    def begin_part(self) -> None:
        """Begins a part; what it is made of counts together. Parts that begin within it are in it."""

    def end_part(self) -> None:
        """The part that began last is over."""

    def is_over(self) -> bool:
        """Has the part that runs used up its budget?"""

AT_ONCE_MAX: int
WORK_MAX: int
WORK_MAX_CROWDED: int
MESSAGE_WORK: int

class TickTrigger:
    """Decides when the end of a tick runs.

    call_soon -- the event loop's.
    end -- the end of the tick. It calls begin() first, done() once the engines have had their turn, and
    flush() last.
    clock -- of the budget, ns; None = the monotonic clock.
    """

    def __init__(
        self,
        call_soon: Callable[[Callable[[], object]], object],
        end: Callable[[], object],
        clock: Callable[[], int] | None = None,
    ) -> None: ...
    @property
    def budget(self) -> LoopBudget:
        """How long a connection may work before others have a turn."""

    @property
    def dirty_sinks(self) -> DirtyList:
        """Sinks that have something to send."""

    @property
    def engines_due(self) -> bool: ...
    @property
    def scheduled(self) -> bool: ...
    @property
    def at_once(self) -> int:
        """How many more reads may end the tick themselves."""

    def schedule(self) -> None:
        """There is work for the end of this tick besides sinks that have something to send."""

    def begin(self) -> bool:
        """The end of the tick has begun; is there work besides sinks?"""

    def done(self) -> None:
        """What is marked from now on is for the next tick."""

    def flush(self) -> bool:
        """All dirty sinks hand on what they hold; True when a receiver among them is congested."""

    def read(
        self,
        work: Callable[[], object],
        n: int = 0,
        messages: int = 0,
        full: bool = False,
        light: bool = False,
    ) -> None:
        """Does `work` as what came in by one read of a socket: `n` bytes, so many messages; full: there was
        no room for more, which is perhaps waiting; light: the connection has little to do."""
