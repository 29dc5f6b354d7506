"""What a stream stored, published again under another subject."""

from collections.abc import Callable

from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import SubjectMapper

class Republisher:
    """Takes what is stored (`apply_plain` and `store_one` give it to it) and sends it when told to.

    stream -- its name. format_time -- ns as text for headers.
    """

    def __init__(self, stream: bytes, format_time: Callable[[int], str]) -> None: ...
    def configure(self, mapper: SubjectMapper | None, headers_only: bool) -> None:
        """From now on; what waits stays as it is.

        mapper -- from the stored subject to the one to publish under, b"" for "not this one"; None: none.
        headers_only -- no payload, but its size in `Nats-Msg-Size`.
        """

    @property
    def count(self) -> int:
        """Messages that wait."""

    def route(self, index: SubscriptionIndex) -> int:
        """Sends what waits on its way; returns how many found a taker."""

    def clear(self) -> None:
        """Drops what waits."""
