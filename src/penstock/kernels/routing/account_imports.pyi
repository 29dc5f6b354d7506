"""What Python sees of messages across accounts."""

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
    """Subjects that a source filter matches, under other names.

    source, destination -- the tokens of two filters; a number is a `*`, the same one in both.
    """

    def __init__(self, source: Sequence[str | int], destination: Sequence[str | int]) -> None: ...
    def apply(self, subject: bytes) -> bytes:
        """What a subject, or a filter that the source covers, is called."""

class ImportSink(Sink):
    """Requests to a service of another account.

    index, home -- of the exporting and of the importing account; both have a ReplyTable as `replies`.
    rewriter -- from the importing account's subjects to the exporting one's; None = the same.
    mapper -- mappings of the exporting account, or None.
    share -- does the service learn who asks? streamed -- may a request have more than one answer?
    threshold_ns -- how long an answer is waited for.
    describe -- callable(origin, share) -> JSON of the header that says who asks, b"" for none.
    chain -- callable(header block, origin, share) -> the same for a request that was imported before.
    measure -- None, or callable(origin, header block, has it a reply) -> None or a measurement.
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
    """Answers to one request.

    subscription -- its subject is where answers go. to -- the reply subject of who asked, in `index`.
    at -- ns: the request, or the last answer.
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
    """Requests that an account's services have not answered.

    index -- of the account. clock -- ns since 1970. seed -- 64 bits, for subjects that cannot be guessed.
    on_first -- None, or called when the first one waits.
    """

    on_first: Callable[[], object] | None
    @property
    def prefix(self) -> bytes: ...
    def __init__(self, index: SubscriptionIndex, clock: Callable[[], int], seed: int) -> None: ...
    def __len__(self) -> int: ...
    def sinks(self) -> list[ReplySink]:
        """All that wait, oldest request first."""

    def close(self, sink: ReplySink, why: int) -> int:
        """Awaits no more answers for it. why: a ReplyEnd."""

    def expire(self, now: int) -> int:
        """Ends what has waited for its threshold; returns how many still wait."""

class ShadowSink(Sink):
    """Gives a subscription of another account what this account publishes.

    target -- the subscription. rewriter -- from this account's subjects to the other's, None = the same.
    allow_trace -- do traces of messages go on in the other account?
    """

    @property
    def target(self) -> SinkSubscription: ...
    def __init__(
        self, target: SinkSubscription, rewriter: Rewriter | None, allow_trace: bool = False
    ) -> None: ...
