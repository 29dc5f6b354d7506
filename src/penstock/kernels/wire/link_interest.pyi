"""Python interface of what a server announces to others."""

from collections.abc import Callable, Iterable

from penstock.kernels.routing.subscription_index import Announcer, SubscriptionIndex
from penstock.kernels.wire.leaf_links import LeafSink
from penstock.kernels.wire.recent_interest import RecentInterest
from penstock.kernels.wire.route_links import RouteSink

class LocalInterest(Announcer):
    """The interest in one account, and the servers that receive it.

    counts_remote -- counts the interest of other servers too, which leaf nodes and other clusters get.
    """

    def __init__(self, account: bytes, counts_remote: bool = False) -> None: ...
    def __len__(self) -> int: ...
    @property
    def account(self) -> bytes: ...
    def count_all(self, index: SubscriptionIndex) -> None:
        """Counts the subscriptions that are in the index already, once, before there are feeds."""

    def expect(self, subject: bytes) -> None:
        """Announces a subject without a subscription."""

    def expect_from_leafs(self, subjects: Iterable[bytes]) -> None:
        """Announces these subjects to leaf nodes and hubs, in place of those of the last call."""

    def connect(
        self, link: RouteSink, dedicated: bool, may_import: Callable[[bytes], bool] | None = None
    ) -> None:
        """Announces everything to a server, and every change from now on."""

    def disconnect(self, link: RouteSink, retract: bool = False) -> None:
        """Announces nothing more to a server; retract: tells it that there is no interest."""

    def restrict(self, link: RouteSink, may_import: Callable[[bytes], bool] | None) -> None:
        """Applies other permissions, and announces the difference."""

    def repeat(self, link: RouteSink) -> None:
        """Announces everything to a server again, which may accept more than before."""

    def connect_leaf(
        self, link: LeafSink, may_announce: Callable[[bytes], bool] | None = None, isolated: bool = False
    ) -> None:
        """Announces everything to a leaf node or hub, and every change from now on. isolated: it gets no
        interest of other leaf nodes."""

    def disconnect_leaf(self, link: RouteSink) -> None:
        """Announces nothing more to a leaf node, a hub or another cluster."""

    def note_recent(self, recent: RecentInterest) -> None:
        """Notes new subscriptions there."""

    def connect_gateway(self, link: RouteSink) -> None:
        """Announces everything to a server of another cluster, and every change from now on."""

    def restrict_leaf(self, link: LeafSink, may_announce: Callable[[bytes], bool] | None) -> None:
        """Applies other permissions, and announces the difference."""

    def counted(self) -> dict[bytes, int]:
        """{key: count}: subject, or subject and queue; what routes learn of this server's clients."""

    def known_to(self, link: RouteSink) -> dict[bytes, int]:
        """{key: count}: what a leaf node, a hub or another cluster knows."""
