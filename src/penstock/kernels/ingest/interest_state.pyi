"""Which messages of an interest or work-queue stream some consumer still needs. See interest_state.pyx."""

from penstock.kernels.consumer.pump import Pump
from penstock.kernels.log.stream_log import StreamLog

class InterestState:
    """What the consumers of one stream need.

    work_queue: what nobody acked stays, though no consumer asks for it. held: a consumer that belongs here is
    missing, so everything stays. retired: messages that were removed.
    """

    work_queue: bool
    held: bool
    retired: int
    log: StreamLog
    def __init__(self, log: StreamLog, *, work_queue: bool = False) -> None: ...
    def add(self, pump: Pump, since: int = 0) -> None:
        """A consumer, by its pump. since: the first sequence of which its position says that it was acked."""

    def remove(self, pump: Pump) -> None:
        """A consumer is gone. What only it needed stays until review()."""

    def refilter(self, pump: Pump, since: int) -> None:
        """A consumer's filters changed. since: as in add()."""

    def wants(self, subject: bytes) -> bool:
        """Would any consumer take a message of this subject?"""

    def settle(self, pump: Pump) -> int:
        """Removes what was acked through `pump` since the last time and nobody else needs: how many."""

    def review(self, from_seq: int = 0) -> int:
        """Looks at every message from from_seq on and removes what nobody needs: how many."""

    def review_part(self, from_seq: int, work: int) -> tuple[int, int]:
        """The same until it has done so much work (in the units of jetstream/slices.py). Returns how many
        went, and where it goes on; 0: it has seen all."""
