"""The time budget of connections, and when the end of a tick runs."""

from collections.abc import Callable

from penstock.kernels.wire.sinks import DirtyList

SHORT_BUDGET_NS: int
LONG_BUDGET_NS: int
CROWD_PERIOD_NS: int
HEAVY_PERIOD_NS: int
CROWDED_READ_BYTES: int
CROWDED_SMALL_READ_BYTES: int

class LoopBudget:
    """How long the loop works for connections with much to do before all others are served.

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
        """Was a connection with little to do active within CROWD_PERIOD_NS?"""

    @property
    def waiting(self) -> int:
        """Number of callables that wait to be called."""

    def wait(self, work: Callable[[], object], failed: Callable[[Exception], object] | None = None) -> None:
        """Calls work() once, in a later iteration of the loop, after those that wait already. It should stop
        when is_over() and wait() again when work is left. failed: called with an exception of work(), which
        the event loop handles otherwise."""

    def begin_part(self) -> None:
        """Begins a part. A part that begins within another one shares its budget."""

    def end_part(self) -> None:
        """Ends the part that began last."""

    def is_over(self) -> bool:
        """Has the current part used up its budget?"""

AT_ONCE_MAX: int
WORK_MAX: int
WORK_MAX_CROWDED: int
MESSAGE_WORK: int

class TickTrigger:
    """Decides when the end of a tick runs.

    call_soon -- the event loop's.
    end -- the end of the tick. It calls begin() first, done() after the engines ran, and
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
        """How long a connection may work before others are served."""

    @property
    def dirty_sinks(self) -> DirtyList:
        """Sinks with output to send."""

    @property
    def engines_due(self) -> bool: ...
    @property
    def scheduled(self) -> bool: ...
    @property
    def at_once(self) -> int:
        """How many more reads may end the tick themselves."""

    def schedule(self) -> None:
        """Schedules the end of this tick for work other than sinks with output to send."""

    def begin(self) -> bool:
        """Begins the end of the tick; True when there is work other than sinks."""

    def done(self) -> None:
        """Ends the tick: later marks belong to the next one."""

    def flush(self) -> bool:
        """Flushes all dirty sinks; True when a receiver among them is congested."""

    def read(
        self,
        work: Callable[[], object],
        n: int = 0,
        messages: int = 0,
        full: bool = False,
        light: bool = False,
    ) -> None:
        """Calls `work` as the processing of one read of a socket: `n` bytes, that many messages; full: the
        read filled its buffer; light: the connection has little to do."""
