"""Questions about a log: direct gets, and the counts of subjects."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from penstock.kernels.log.stream_log import StreamLog
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import ServiceSink
from penstock.kernels.wire.sinks import Sink

class Streams(Protocol):
    """Whose streams are asked for."""

    @property
    def streams(self) -> Mapping[str, Any]:
        """By name; of each, `log` and `config.allow_direct` are looked at."""

    def may_answer(self) -> bool:
        """Applies what arrived before. False: this request can't be answered just now."""

class DirectGets(ServiceSink):
    """The service of `$JS.API.>`, which answers plain direct gets by itself.

    callback, before -- of ServiceSink: who gets every other request. engine -- the streams.
    not_found -- header block of the answer when there is no such message.
    """

    def __init__(
        self,
        callback: Callable[[bytes, bytes, bytes, bytes, Sink | None], object],
        before: Callable[[], object],
        engine: Streams,
        index: SubscriptionIndex,
        not_found: bytes,
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
    """Sends the messages at or after `seq` that the filter (b"" = all) matches, as a batched direct get does.

    name -- of the stream. pending -- how many there are. most -- messages, 0 = all. room -- ends after the
    message that uses it up, bytes of subjects, headers and payloads. bare -- without headers.
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
    """The same with the messages of these sequences, ascending; the ones that are gone are passed over."""

class SubjectCounts:
    """Taken when it is made; what happens to the log afterwards changes nothing."""

    def __init__(self, log: StreamLog, filter: bytes) -> None: ...
    def __len__(self) -> int:
        """How many subjects."""

    def sort(self, work: int) -> int:
        """Goes on putting them in order, for about so many comparisons; returns how many of them it did not
        need. They are in order when that is more than 0."""

    def rows(self, start: int, stop: int) -> list[tuple[bytes, int]]:
        """Subjects and counts of a part. Before they are in order: each of them is at some place."""
