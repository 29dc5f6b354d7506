"""Queries of a log: direct gets, and the counts of subjects."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from penstock.kernels.log.stream_log import StreamLog
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import ServiceSink
from penstock.kernels.wire.sinks import DirtyList, Sink

class Streams(Protocol):
    """The owner of the streams. The lists and flags below say whether earlier publishes wait: while none
    does, a direct get needs no call of may_answer(), which would take a tenth of its time."""

    dirty_streams: DirtyList
    dirty_consumers: DirtyList
    commit: Any  # `in_flight`: syncs that requests wait for
    deferrals: Any  # `ready`: streams to apply
    pending: Any  # `routing`: a RoutingGuard; `deferred`: work for the next tick

    @property
    def streams(self) -> Mapping[str, Any]:
        """By name; direct gets use `log` and `config.allow_direct` of each."""

    def may_answer(self) -> bool:
        """Applies earlier publishes. False: this request can't be answered now."""

class DirectGets(ServiceSink):
    """The service of `$JS.API.>`, which answers plain direct gets by itself.

    callback, before -- of ServiceSink: receives every other request. engine -- the streams.
    not_found -- header block of the response when there is no such message. prefix -- bytes of `$JS.API.`,
    for subscriptions to the direct gets of one stream.
    """

    def __init__(
        self,
        callback: Callable[[bytes, bytes, bytes, bytes, Sink | None], object],
        before: Callable[[], object],
        engine: Streams,
        index: SubscriptionIndex,
        not_found: bytes,
        prefix: int = 0,
    ) -> None: ...

class RequestsButDirectGets(ServiceSink):
    """The service of `$JS.API.>` where direct gets of some streams have subscriptions of their own: it
    ignores those.

    answered -- has the names of these streams; may change.
    """

    def __init__(
        self,
        callback: Callable[[bytes, bytes, bytes, bytes, Sink | None], object],
        before: Callable[[], object],
        answered: dict[str, Any],
    ) -> None: ...

def send_run(
    index: SubscriptionIndex,
    reply: bytes,
    name: bytes,
    log: StreamLog,
    *,
    filter: bytes,
    seq: int,
    pending: int,
    most: int,
    room: int,
    bare: bool,
) -> tuple[int, int, int]:
    """Sends the messages at or after `seq` that the filter (b"" = all) matches, for a batched direct get.

    name -- of the stream. pending -- how many there are. most -- messages, 0 = all. room -- bytes of
    subjects, headers and payloads; ends after the message that exceeds it. bare -- without headers.
    Returns how many were sent, the last one's sequence (0 = none) and how many are left.
    """

def send_these(
    index: SubscriptionIndex,
    reply: bytes,
    name: bytes,
    log: StreamLog,
    *,
    seqs: list[int],
    most: int,
    room: int,
) -> tuple[int, int, int]:
    """The same with the messages of these ascending sequences; skips removed ones."""

class SubjectCounts:
    """A snapshot of the subjects that match a filter, and their counts."""

    def __init__(self, log: StreamLog, filter: bytes) -> None: ...
    def __len__(self) -> int:
        """Number of subjects."""

    def sort(self, work: int) -> int:
        """Continues to sort the subjects, with at most about `work` comparisons; returns how many of these
        are left. The subjects are in order when that is more than 0."""

    def rows(self, start: int, stop: int) -> list[tuple[bytes, int]]:
        """Subjects and counts of a range of indexes. Before sorting is complete, the order is arbitrary."""
