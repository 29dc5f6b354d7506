"""An account: one closed world of subjects, with its own index of subscriptions.

Invariant: a message leaves its account by an import alone: a subscription of one account whose sink routes
in another (`import_router`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import ServiceSink, SubjectMapper, publish
from penstock.kernels.wire.sinks import Sink, SinkSubscription

if TYPE_CHECKING:
    from penstock.protocol.transforms import Below
    from penstock.routing.mapping import Mappings

ServiceCallback = Callable[[bytes, bytes, bytes, bytes, Sink | None], object]


class Account:
    """A name, what is subscribed under it, and what changes the subjects of its clients' publishes.

    mapper -- for the inlets of its clients; None while there are no mappings.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.index = SubscriptionIndex()
        self.mapper: SubjectMapper | None = None

    def set_mappings(self, mappings: Mappings, below: Below) -> None:
        """Maps what is published by clients that join from now on.

        Args:
            mappings: the account's.
            below: `below(n)` draws evenly from 0..n-1.
        """
        self.mapper = SubjectMapper(lambda subject: mappings.decide(subject, below))

    def publish(self, subject: bytes, payload: bytes, *, reply: bytes = b"", header: bytes = b"") -> int:
        """Publishes for the server itself; returns how many took it."""
        return publish(self.index, subject, reply, header, payload)

    def subscribe_service(
        self, subject: bytes, callback: ServiceCallback, before: Callable[[], object] | None = None
    ) -> SinkSubscription:
        """Subscribes a Python callable.

        Args:
            subject: the filter.
            callback: gets subject, reply, header block, payload and the publisher's sink (None: the server).
            before: runs before each call, e.g. to apply what is pending for streams.
        """
        subscription = SinkSubscription(ServiceSink(callback, before), subject)
        self.index.insert(subscription)
        return subscription

    def unsubscribe(self, subscription: SinkSubscription) -> None:
        """Takes a subscription out; nothing reaches it any more."""
        subscription.closed = True
        self.index.remove(subscription)
