"""Python interface of sinks and subscriptions."""

from collections.abc import Callable
from enum import IntEnum
from typing import Any

class Sink:
    """Base class of all receivers of messages; subclasses are compiled."""

class SinkSubscription:
    """Interest of one sink in one subject filter.

    sink -- receives the messages.
    subject -- the filter, wildcards allowed; checked when it is inserted in a SubscriptionIndex.
    queue -- queue group, b"" for none.
    sid -- the client's subscription id.
    max_msgs -- UNSUB max: closes itself after that many messages; 0 = no maximum.
    """

    max_msgs: int
    delivered: int
    closed: bool
    def __init__(
        self, sink: Sink, subject: bytes, queue: bytes = b"", sid: bytes = b"", max_msgs: int = 0
    ) -> None: ...
    @property
    def sink(self) -> Sink: ...
    @property
    def subject(self) -> bytes: ...
    @property
    def queue(self) -> bytes: ...
    @property
    def sid(self) -> bytes: ...
    @property
    def private(self) -> bool:
        """Is it not announced to other servers?"""

    @property
    def remote(self) -> bool:
        """Is it the interest of another server?"""

    def keep_private(self) -> None:
        """Is not announced to other servers. Call it before the subscription is in an index."""

    def close(self) -> None:
        """Accepts no more messages."""

    def close_after(self, max_msgs: int) -> None:
        """Closes itself once `max_msgs` messages were delivered in all; 0 = no maximum."""

class PeerKind(IntEnum):
    """What the other end of a connection is."""

    PEER_CLIENT = 0
    PEER_ROUTE = 1
    """Another server of the cluster."""
    PEER_LEAF = 2
    """A leaf node of this server."""
    PEER_HUB = 3
    """The server whose leaf node this one is."""
    PEER_GATEWAY = 4
    """A server of another cluster."""

class PeerSink(Sink):
    """Another server, as receiver of one account's messages: it gets each message once."""

class RemoteSubscription(SinkSubscription):
    """Interest of another server, whose sink is a PeerSink. weight: its number of members of the queue
    group."""

    weight: int
    @property
    def for_leaf(self) -> bool:
        """Is it the interest of a leaf node or hub, perhaps of another server?"""

    @property
    def for_cluster(self) -> bool:
        """Is it the interest of another cluster?"""

    @property
    def cluster(self) -> bytes:
        """The cluster of that leaf node or hub; b"" = unknown, or it is none."""

class DirtyList:
    """Objects with work left for the end of the tick. The first mark after a take calls `wake()`."""

    wake: Callable[[], object] | None
    def __init__(self, wake: Callable[[], object] | None = None) -> None: ...
    def __len__(self) -> int: ...
    def take(self) -> list[Any]:
        """The objects marked since the last take, in that order."""

class RoutingGuard:
    """Held while kernels send from buffers and blocks: changing those would leave dangling pointers.

    What is sent can lead back to who sends: a message may be delivered to an API subject, and the reply
    subject of a pub ack may be one. Such requests wait for the next tick. Everything that changes streams
    calls require_idle(), so that a caller that does not wait gets an exception, and not freed memory.
    """

    @property
    def is_active(self) -> bool: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...
    def require_idle(self) -> None:
        """Raises RuntimeError while messages are sent."""
