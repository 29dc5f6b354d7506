"""Python interface of messages and interest between clusters."""

from collections.abc import Callable
from enum import IntEnum

from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.recent_interest import RecentInterest
from penstock.kernels.wire.route_frames import RouteParser
from penstock.kernels.wire.route_links import RoutedReplies, RouteIngress, RouteSink
from penstock.kernels.wire.sinks import DirtyList

class InterestMode(IntEnum):
    """What a cluster tells about its interest in an account."""

    MODE_OPTIMISTIC = 0
    """It wants all messages but those that it refuses."""
    MODE_TRANSITIONING = 1
    """It announces its interest now."""
    MODE_INTEREST_ONLY = 2
    """It wants what it announced."""

class GatewayReplies(RoutedReplies):
    """The routed replies of one server.

    own -- `_GR_.<cluster>.<server>.` of this server; b"" = it has no gateways. relay -- returns (RouteSink,
    word before subjects) of the server of the cluster with this hash, or None. clock -- returns ns, for
    tests.
    """

    def __init__(
        self,
        own: bytes = b"",
        relay: Callable[[bytes, bytes], tuple[RouteSink, bytes] | None] | None = None,
        clock: Callable[[], int] | None = None,
    ) -> None: ...
    def __len__(self) -> int: ...
    def joined(self, cluster: bytes, link: GatewaySink) -> None:
        """The link to the cluster with this hash is there."""

    def left(self, cluster: bytes, link: GatewaySink) -> None:
        """The link is gone."""

    def recent_of(self, account: bytes) -> RecentInterest:
        """The new subscriptions of an account; it must be told of them."""

    def forget_account(self, account: bytes) -> None:
        """The account was removed."""

    def expire(self) -> None:
        """Forgets what is older than two seconds."""

class GatewaySink(RouteSink):
    """The output half of a gateway link."""

    def __init__(self, dirty_list: DirtyList, owner: object = None) -> None: ...
    def route_replies(self, replies: GatewayReplies) -> None:
        """Routes replies by name as this server does."""

    def measured(self, rtt: int) -> None:
        """The round trip time, ns."""

    def assume_interest(self, account: bytes, index: SubscriptionIndex) -> None:
        """The cluster is optimistic: it gets all messages of the account until it says otherwise."""

    def announces(self, account: bytes, index: SubscriptionIndex, complete: bool) -> None:
        """The cluster announces its interest in the account from now on; complete: it has done so."""

    def modes(self) -> dict[bytes, tuple[int, int]]:
        """{account: (InterestMode, number of refused subjects)}"""

class GatewayIngress(RouteIngress):
    """The input half of a gateway link."""

    def __init__(
        self, sink: GatewaySink, index: SubscriptionIndex | None = None, parser: RouteParser | None = None
    ) -> None: ...
    @property
    def is_outbound(self) -> bool:
        """Has this server dialled?"""

    def direct(self, is_outbound: bool) -> None:
        """Says which side dialled."""
