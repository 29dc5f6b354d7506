"""What Python sees of the budget of a turn of the event loop."""

from collections.abc import Callable

SHORT_NS: int
LONG_NS: int
CROWD_NS: int
CROWDED_READ: int

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
