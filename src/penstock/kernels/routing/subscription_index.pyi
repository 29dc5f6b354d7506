"""Python interface of the subscription index."""

from collections.abc import Callable
from typing import Protocol

from penstock.kernels.wire.sinks import SinkSubscription

class MatchResult:
    """The receivers of a subject: an immutable snapshot; do not modify the lists."""

    @property
    def plain(self) -> list[SinkSubscription]:
        """Subscriptions of this server without a queue group: each gets the message."""

    @property
    def groups(self) -> list[list[SinkSubscription]]:
        """One list a queue group, never empty: one member of each gets the message. Members on other servers
        are not listed."""

    @property
    def elsewhere(self) -> list[bytes]:
        """The queue groups in which other servers are interested, b"" for interest outside of groups."""

class Announcer:
    """Announces the subscriptions of this server to others; see `route_links.LocalInterest`."""

class AwaitedReplies:
    """Receivers of the replies to open requests; see `account_imports.ReplyTable`."""

class IndexWatcher(Protocol):
    def inserted(self, sub: SinkSubscription) -> object: ...
    def removed(self, sub: SinkSubscription) -> object: ...

class SubscriptionIndex:
    """All subscriptions of one account.

    random_state -- seeds the choice of queue group members (64 bits; 0 = the default).
    replies -- None, or the receivers of replies to open requests, in addition to the subscriptions.
    watcher -- None, or notified of each inserted and removed subscription of this server.
    announcer -- None, or announces the subscriptions of this server to others.
    """

    random_state: int
    replies: AwaitedReplies | None
    watcher: IndexWatcher | None
    announcer: Announcer | None
    @property
    def on_insert(self) -> Callable[[SinkSubscription], object] | None: ...
    @property
    def on_remove(self) -> Callable[[SinkSubscription], object] | None: ...
    @property
    def generation(self) -> int:
        """Grows at every insert and remove."""

    @property
    def count(self) -> int: ...
    @property
    def num_lookups(self) -> int:
        """Lookups since creation."""

    @property
    def num_walks(self) -> int:
        """Of those, cache misses."""

    def cache_fanout(self) -> tuple[int, int, int]:
        """(entries in the cache, receivers of all of them, receivers of the one that has most)."""
    def __len__(self) -> int: ...
    def call_after(
        self,
        on_insert: Callable[[SinkSubscription], object] | None,
        on_remove: Callable[[SinkSubscription], object] | None,
    ) -> None:
        """Calls these with the subscription after every insert or removal, instead of those of the last call;
        None: no calls. A consumer waits for interest, or for its end."""

    def insert(self, sub: SinkSubscription) -> int:
        """Adds a subscription. Raises ValueError for an invalid filter and for one that is in an index."""

    def remove(self, sub: SinkSubscription) -> bool:
        """Removes a subscription; False when it isn't in this index."""

    def match(self, subject: bytes) -> MatchResult:
        """The receivers of a message on this literal subject."""

    def has_interest(self, subject: bytes) -> bool:
        """Does a message on this literal subject have a receiver?"""

    def subscriptions(self) -> list[SinkSubscription]:
        """All subscriptions, in the order in which they were inserted."""
