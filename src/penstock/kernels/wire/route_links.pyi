"""Python interface of messages and interest between servers."""

from collections.abc import Callable

from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import ClientSink
from penstock.kernels.wire.ingress import Ingress
from penstock.kernels.wire.route_frames import RouteParser
from penstock.kernels.wire.sinks import DirtyList

class RouteSink(ClientSink):
    """The output half of a route.

    pending_max -- bytes in `out` above which messages are dropped and counted; 0 = no bound. Interest is
    never dropped: beyond twice the bound the sink closes, with `overflowed`.
    """

    @property
    def dropped_msgs(self) -> int: ...
    @property
    def dropped_bytes(self) -> int: ...
    def __init__(self, dirty_list: DirtyList, owner: object = None) -> None: ...
    def report_drops(self, on_dropped: Callable[[], object] | None) -> None:
        """Calls on_dropped() at the first message that is dropped, and again after take_dropped()."""

    def accept_headers(self, headers: bool) -> None:
        """Does the server take headers? They are cut off otherwise."""

    def accept_traces(self, traces: bool) -> None:
        """Does the server report the steps of messages that ask for it?"""

    @property
    def traces(self) -> bool:
        """Whether the server does."""

    def accept_origins(self, names_origins: bool) -> None:
        """Does the server take the origin of messages and interest of leaf nodes?"""

    @property
    def cluster(self) -> bytes:
        """The leaf node cluster behind it; b"" = none, or without a name."""

    def take_dropped(self) -> tuple[int, int]:
        """(messages, bytes) dropped so far; on_dropped() is called again for the next one."""

    def move_interest(self, account: bytes, index: SubscriptionIndex) -> None:
        """Keeps the server's interest in this account in another index from now on."""

    def forget(self, account: bytes) -> None:
        """Removes the server's interest in this account."""

    def forget_all(self) -> None:
        """Removes the server's interest in all accounts."""

    def interest(self) -> list[tuple[bytes, bytes, bytes, int, int]]:
        """[(account, subject, queue, weight, delivered), ...] of the server's subscriptions."""

    @property
    def num_interest(self) -> int:
        """Number of the server's subscriptions."""

class RoutedReplies:
    """What a server knows of replies that gateways have routed."""

class RouteIngress(Ingress):
    """The input half of a route."""

    @property
    def unknown(self) -> int:
        """Messages and interest of unknown accounts."""

    def __init__(
        self, sink: RouteSink, index: SubscriptionIndex | None = None, parser: RouteParser | None = None
    ) -> None: ...
    def serve(self, open_account: Callable[[bytes], SubscriptionIndex | None]) -> None:
        """Finds the accounts of frames with open_account(name), which returns None for an unknown one."""

    def note_replies(self, replies: RoutedReplies | None) -> None:
        """Gives routed replies to local receivers without their prefix, and sends the answers with it."""

    def report_traces(
        self,
        on_traced: Callable[
            [SubscriptionIndex, bytes, bytes, bytes, bytes, frozenset[bytes] | None], int | bytes | None
        ],
        trace_parent: bool,
    ) -> None:
        """Gives messages that ask for a trace to on_traced(index, subject, reply, header, payload, queues).

        queues are the groups that the other server chose, None for all. on_traced returns the number of
        receivers, or None if the message is to be routed as it is, or the header with which it is.

        trace_parent -- does a `traceparent` header ask for a trace?
        """

    def limit_exports(self, may_export: Callable[[bytes], bool] | None) -> None:
        """Accepts interest in these subjects, and removes what was accepted before; None = in all."""

    def forget_accounts(self) -> None:
        """Looks all accounts up again: some were removed or made."""
