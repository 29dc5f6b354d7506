"""What Python sees of traced routing."""

from typing import Any, Protocol

from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.ingress import Ingress
from penstock.kernels.wire.sinks import Sink, SinkSubscription

class Steps(Protocol):
    """Receives the steps of a message."""

    def egress(self, shown: SinkSubscription, sub: SinkSubscription, error: str) -> object:
        """A client got it, or did not; shown: the subscription of the account it was routed in."""

    def stream_import(self, sub: SinkSubscription, to: bytes) -> object:
        """It comes to a subscription of another account, under this name."""

    def service_import(self, index: SubscriptionIndex, subject: bytes, to: bytes) -> object:
        """It is routed on in the account of this index."""

    def service(self, subject: bytes) -> bool:
        """A service of the server would get it; does it?"""

    def store(self, stream: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> bool:
        """A stream would get it; does it?"""

class TracedRoute:
    """Routes messages as `route` does, and tells of every step.

    trace -- receives the steps. only -- reports without delivering.
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
        """Routes one message; returns how many took it, or would have."""

def refused_part(ingress: Ingress, subject: bytes, reply: bytes) -> bytes:
    """Which part of a publish the ingress refuses, with its -ERR: the subject, the reply, or none (b"")."""

def nobody_took(ingress: Ingress, subject: bytes, reply: bytes) -> None:
    """Responds to a request without subscribers, if the connection asked for that."""
