"""Python interface of traced routing."""

from typing import Any, Protocol

from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.ingress import Ingress
from penstock.kernels.wire.route_links import RouteSink
from penstock.kernels.wire.sinks import Sink, SinkSubscription

class Steps(Protocol):
    """Receives the steps of a message."""

    def egress(self, shown: SinkSubscription, sub: SinkSubscription, error: str) -> object:
        """Delivery to a client; `error` is empty or says why it failed. shown: the subscription in the
        account in which the message was routed."""

    def stream_import(self, sub: SinkSubscription, to: bytes) -> object:
        """A stream import passes it to a subscription of another account, under this subject."""

    def service_import(self, index: SubscriptionIndex, subject: bytes, to: bytes) -> object:
        """A service import routes it in the account of this index."""

    def service(self, subject: bytes) -> bool:
        """A service of the server would receive it; True = deliver."""

    def hop(self, header: bytes) -> bytes:
        """Another server would receive it; returns the header for it."""

    def link_egress(self, owner: Any, is_sent: bool) -> object:
        """Delivery to another server. owner: of the connection's sink. Not sent: the server would deliver a
        message that must not be delivered."""

    def store(self, stream: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> bool:
        """A stream would receive it; True = deliver."""

class TracedRoute:
    """Routes messages as `route` does, and reports every step.

    trace -- receives the steps. only -- report without delivering.
    """

    def __init__(self, trace: Steps, only: bool) -> None: ...
    def publish(
        self,
        index: SubscriptionIndex,
        subject: bytes,
        reply: bytes,
        header: bytes,
        payload: bytes,
        origin: Sink | None,
    ) -> int:
        """Routes one message; returns how many receivers accepted it, or would have."""

    def publish_from(
        self,
        index: SubscriptionIndex,
        subject: bytes,
        reply: bytes,
        header: bytes,
        payload: bytes,
        source: RouteSink,
        queues: frozenset[bytes] | None,
    ) -> int:
        """Routes a message of another server, with the queue groups that it chose here, None = all; returns
        how many receivers accepted it, or would have."""

def refused_part(ingress: Ingress, subject: bytes, reply: bytes) -> bytes:
    """Which part of a publish the ingress refuses, with its -ERR: the subject, the reply, or none (b"")."""

def reply_no_responders(ingress: Ingress, subject: bytes, reply: bytes) -> None:
    """Responds to a request without subscribers, if the connection asked for that."""
