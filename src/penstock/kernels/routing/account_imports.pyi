"""Python interface of messages across accounts."""

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Protocol

from penstock.kernels.routing.subscription_index import AwaitedReplies, SubscriptionIndex
from penstock.kernels.wire.dispatch import SubjectMapper
from penstock.kernels.wire.sinks import Sink, SinkSubscription

class ReplyEnd(IntEnum):
    REPLY_DONE = 0
    REPLY_UNDELIVERED = 1
    REPLY_EXPIRED = 2
    REPLY_UNWANTED = 3

class Measurement(Protocol):
    def answered(self, origin: Sink | None) -> object: ...
    def ended(self, why: int) -> object: ...

class Rewriter:
    """Rewrites subjects that match a source filter.

    source, destination -- the tokens of two filters; equal numbers stand for the same `*`.
    """

    def __init__(self, source: Sequence[str | int], destination: Sequence[str | int]) -> None: ...
    def apply(self, subject: bytes) -> bytes:
        """Rewrites a subject, or a filter that the source covers."""

class ServiceImportSink(Sink):
    """Requests to a service of another account.

    index, home -- of the exporting and of the importing account; both have a ReplyTable as `replies`.
    rewriter -- from the importing account's subjects to the exporting one's; None = the same.
    mapper -- mappings of the exporting account, or None.
    share -- send the requester's details to the service? streamed -- may a request have several replies?
    threshold_ns -- how long to wait for a reply.
    describe -- callable(origin, share) -> JSON of the header that identifies the requester, b"" for none.
    chain -- callable(header block, origin, share) -> the same for a request that was imported before.
    measure -- None, or callable(origin, header block, has a reply subject) -> None or a measurement.
    allow_trace -- do traces of messages go on in the exporting account?
    """

    mapper: SubjectMapper | None
    @property
    def index(self) -> SubscriptionIndex: ...
    @property
    def share(self) -> bool: ...
    @property
    def streamed(self) -> bool: ...
    @property
    def threshold_ns(self) -> int: ...
    def __init__(
        self,
        index: SubscriptionIndex,
        home: SubscriptionIndex,
        *,
        rewriter: Rewriter | None,
        mapper: SubjectMapper | None,
        share: bool,
        streamed: bool,
        threshold_ns: int,
        describe: Callable[[Sink | None, bool], bytes],
        chain: Callable[[bytes, Sink | None, bool], bytes],
        measure: Callable[[Sink | None, bytes, bool], Measurement | None] | None = None,
        allow_trace: bool = False,
    ) -> None: ...

class ReplySink(Sink):
    """Forwards the replies to one request.

    subscription -- its subject receives the replies. to -- the requester's reply subject, in `index`.
    at -- ns: time of the request, or of the last reply.
    """

    @property
    def subscription(self) -> SinkSubscription: ...
    @property
    def to(self) -> bytes: ...
    @property
    def index(self) -> SubscriptionIndex: ...
    @property
    def at(self) -> int: ...
    @property
    def threshold_ns(self) -> int: ...
    @property
    def streamed(self) -> bool: ...
    @property
    def measurement(self) -> Measurement | None: ...

class ReplyTable(AwaitedReplies):
    """The open requests to an account's services.

    index -- of the account. clock -- ns since 1970. seed -- 64 bits, for subjects that cannot be guessed.
    on_first -- None, or called when the table stops being empty.
    """

    on_first: Callable[[], object] | None
    @property
    def prefix(self) -> bytes: ...
    def __init__(self, index: SubscriptionIndex, clock: Callable[[], int], seed: int) -> None: ...
    def __len__(self) -> int: ...
    def sinks(self) -> list[ReplySink]:
        """All open requests, oldest first."""

    def close(self, sink: ReplySink, why: int) -> int:
        """Closes a request: later replies are dropped. why: a ReplyEnd."""

    def expire(self, now: int) -> int:
        """Closes requests past their threshold; returns how many stay open."""

class StreamImportSink(Sink):
    """Delivers messages of this account to a subscription of another account.

    target -- the subscription. rewriter -- from this account's subjects to the other's, None = the same.
    allow_trace -- do traces of messages go on in the other account?
    """

    @property
    def target(self) -> SinkSubscription: ...
    def __init__(
        self, target: SinkSubscription, rewriter: Rewriter | None, allow_trace: bool = False
    ) -> None: ...
