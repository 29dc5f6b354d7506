"""An account: one closed world of subjects, with its own index of subscriptions.

Invariant: a message never leaves its account; imports and exports, once they exist, are subscriptions of
one account whose sink publishes in another.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.kernels.dispatch import ServiceSink, publish
from penstock.kernels.sinks import Sink, Subscription
from penstock.kernels.subjects import SubscriptionIndex

ServiceCallback = Callable[[bytes, bytes, bytes, bytes, Sink | None], object]


class Account:
    """A name and what is subscribed under it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.index = SubscriptionIndex()

    def publish(self, subject: bytes, payload: bytes, *, reply: bytes = b"", header: bytes = b"") -> int:
        """Publishes for the server itself; returns how many took it."""
        return publish(self.index, subject, reply, header, payload)

    def subscribe_service(
        self, subject: bytes, callback: ServiceCallback, before: Callable[[], object] | None = None
    ) -> Subscription:
        """Subscribes a Python callable.

        Args:
            subject: the filter.
            callback: gets subject, reply, header block, payload and the publisher's sink (None: the server).
            before: runs before each call, e.g. to apply what is pending for streams.
        """
        subscription = Subscription(ServiceSink(callback, before), subject)
        self.index.insert(subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Takes a subscription out; nothing reaches it any more."""
        subscription.closed = True
        self.index.remove(subscription)
