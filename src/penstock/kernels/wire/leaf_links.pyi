"""Python interface of messages and interest between a leaf node and its hub."""

from collections.abc import Callable

from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.route_frames import RouteParser
from penstock.kernels.wire.route_links import RouteIngress, RouteSink
from penstock.kernels.wire.sinks import DirtyList

class LeafSink(RouteSink):
    """The output half of a leaf node link. guard -- what it may receive."""

    def __init__(self, dirty_list: DirtyList, owner: object = None) -> None: ...
    def join(self, index: SubscriptionIndex, is_hub: bool, cluster: bytes) -> None:
        """The link belongs to this account from now on. is_hub: the other end is. cluster: its name, b"" =
        none."""

class LeafIngress(RouteIngress):
    """The input half of a leaf node link. mapper -- changes subjects of its messages."""

    def __init__(
        self, sink: LeafSink, index: SubscriptionIndex | None = None, parser: RouteParser | None = None
    ) -> None: ...
    def bind(self, account: bytes) -> None:
        """The link belongs to this account from now on."""

    def watch_loops(self, subject: bytes, on_loop: Callable[[], object]) -> None:
        """Calls on_loop() when this subject comes back from the other side.

        Messages of the other side are dropped from then on, until the subject is retracted.
        """

    @property
    def is_looped(self) -> bool:
        """Has the subject come back, and not been retracted?"""

    def restrict_input(
        self,
        may_take: Callable[[bytes], bool] | None,
        may_accept: Callable[[bytes], bool] | None,
        on_refused: Callable[[bool, bytes], object],
    ) -> None:
        """Takes messages and interest with these subjects only, and calls on_refused(is_message, subject) for
        others.

        may_take -- callable(subject), called once for a subject; None = all.
        may_accept -- callable(subject), for interest; None = all.
        """
