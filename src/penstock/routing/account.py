"""An account: an isolated subject namespace with its own subscription index.

Invariant: a message leaves its account only through an import, which is a subscription in one account whose
sink routes in another account (`import_router`).
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
    """A name, a subscription index, and the subject mapper of the clients' publishes.

    `mapper` is None while the account has no mappings.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.index = SubscriptionIndex()
        self.mapper: SubjectMapper | None = None
        self.mapped_subjects: tuple[bytes, ...] = ()
        """The sources of the mappings: leaf nodes send what matches them."""

    def set_mappings(self, mappings: Mappings, below: Below) -> None:
        """Sets the mappings for clients that join the account from now on.

        Args:
            mappings: mappings of the account.
            below: `below(n)` returns a uniformly distributed integer in [0, n).
        """
        self.mapped_subjects = mappings.sources
        self.mapper = SubjectMapper(lambda subject: mappings.decide(subject, below), mappings.prefix)

    def drop_mappings(self) -> None:
        """Maps no subjects of clients that join the account from now on."""
        self.mapper = None
        self.mapped_subjects = ()

    def publish(self, subject: bytes, payload: bytes, *, reply: bytes = b"", header: bytes = b"") -> int:
        """Publishes a message of the server itself; returns the number of receivers."""
        return publish(self.index, subject, reply, header, payload)

    def subscribe_service(
        self,
        subject: bytes,
        callback: ServiceCallback,
        before: Callable[[], object] | None = None,
        *,
        private: bool = False,
    ) -> SinkSubscription:
        """Subscribes a Python callable.

        Args:
            subject: filter to subscribe to.
            callback: called with subject, reply, header block, payload and the publisher's sink (None for
                messages of the server).
            before: runs before each call, for example to apply pending publishes to streams.
            private: serves clients of this server only; not announced to other servers.
        """
        subscription = SinkSubscription(ServiceSink(callback, before), subject)
        if private:
            subscription.keep_private()
        self.index.insert(subscription)
        return subscription

    def unsubscribe(self, subscription: SinkSubscription) -> None:
        """Removes a subscription; it receives no further messages."""
        subscription.close()
        self.index.remove(subscription)
