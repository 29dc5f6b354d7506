"""What the engines of one server share: limits of the server, and its queues of API requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from penstock.jetstream.api.waiting import WaitingRequests
from penstock.jetstream.inflight import Inflight
from penstock.jetstream.transfers import RestoreMemory
from penstock.kernels.wire.sinks import Sink

if TYPE_CHECKING:
    from penstock.jetstream.engine import JetStreamEngine


def _unknown(sink: Sink) -> dict[str, Any] | None:
    return None


class SharedState(Struct, frozen=True, kw_only=True):
    """Every engine of a server takes the same one. The defaults are for an engine on its own.

    engines: a live view of the running engines, whose accounts share the server's storage and batches; an
    engine may be missing until it has recovered. inflight: open atomic batches. restore_memory: memory of
    restores. requests: waiting API requests. describe_client: returns the `client` object of an advisory, or
    None for a sink that is not a client.
    """

    engines: Iterable[JetStreamEngine] = ()
    inflight: Inflight = field(default_factory=Inflight)
    restore_memory: RestoreMemory = field(default_factory=RestoreMemory)
    requests: WaitingRequests = field(default_factory=WaitingRequests)
    describe_client: Callable[[Sink], dict[str, Any] | None] = _unknown
