"""The imports of all accounts at work: what `sharing` describes, as sinks in the accounts' indexes.

`ImportRouter.set_up` makes what is there what is configured, at start and at every reload: imports that are
not wanted any more end, those that stay are left alone with the requests they wait for, new ones begin.

Invariants: a service import is one subscription in the importing account. A stream import is one shadow, in
the exporting account, for each subscription of the importing account that overlaps it; shadows come and go
with the subscriptions they stand for.

Streams of JetStream and clients get imported streams; the server's own services and imports don't: a stream
import of `>` must not let another account's requests reach this one's API.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from penstock.kernels.consumer.ack_sink import AckSink
from penstock.kernels.routing.account_imports import ImportSink, ReplyTable, Rewriter, ShadowSink
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import ServiceSink
from penstock.kernels.wire.sinks import Sink, SinkSubscription
from penstock.protocol.subjects import has_wildcard
from penstock.routing.account import Account
from penstock.routing.imports_exports import (
    AccountSharing,
    AnyImport,
    ImportPlan,
    ResponseType,
    ServiceExport,
    ServiceImport,
    StreamImport,
    plan,
    service_export_of,
)

if TYPE_CHECKING:
    from penstock.kernels.routing.account_imports import Measurement

Describe: TypeAlias = "Callable[[Sink | None, bool], bytes]"
Measure: TypeAlias = "Callable[[Sink | None, bytes, bool], Measurement | None]"

_INTERNAL = (ServiceSink, AckSink, ImportSink, ShadowSink)


class _Key(NamedTuple):
    importer: str
    entry: AnyImport
    export: ServiceExport | None


class ImportRouter:
    """The imports of a server's accounts.

    Args:
        clock: ns since 1970.
        seed: callable that gives 64 random bits.
        describe: (origin, share) -> JSON for services about who asks, b"" for nothing.
        chain: (account that asks, header block, origin, share) -> the same where the request came there by an
            import.
        measure: (exporting account, export, import) -> how its requests are measured.
        on_first: called when a request waits for an answer and none did before: `expire` is wanted.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], int],
        seed: Callable[[], int],
        describe: Describe,
        chain: Callable[[str, bytes, Sink | None, bool], bytes],
        measure: Callable[[str, ServiceExport, ServiceImport], Measure],
        on_first: Callable[[], object],
    ) -> None:
        self._clock = clock
        self._seed = seed
        self._describe = describe
        self._chain = chain
        self._measure = measure
        self._on_first = on_first
        self._services: dict[_Key, tuple[Account, Account, SinkSubscription]] = {}
        self._streams: dict[_Key, tuple[ImportShadows, _Stream]] = {}
        self._shadows: dict[str, ImportShadows] = {}
        self._tables: list[ReplyTable] = []

    def set_up(self, accounts: Mapping[str, Account], sharing: Mapping[str, AccountSharing]) -> None:
        """Makes the imports those of `sharing`, which `sharing.check` found right.

        Args:
            accounts: all that take part, by name.
            sharing: their exports and imports.
        """
        wanted: dict[_Key, None] = {}
        for name, own in sharing.items():
            for entry in own.imports:
                exports = sharing[entry.account].exports if entry.account in sharing else ()
                is_service = isinstance(entry, ServiceImport)
                export = service_export_of(exports, entry.subject) if is_service else None
                wanted[_Key(name, entry, export)] = None
        for key in [key for key in (*self._services, *self._streams) if key not in wanted]:
            self._end(key)
        for key in wanted:
            if isinstance(key.entry, StreamImport):
                if key not in self._streams:
                    self._begin_stream(key, key.entry, accounts)
            elif key not in self._services:
                self._begin_service(key, key.entry, accounts)
        self.renew_mappings()

    def renew_mappings(self) -> None:
        """Mappings of accounts may have changed."""
        for _, exporter, subscription in self._services.values():
            sink = subscription.sink
            assert isinstance(sink, ImportSink)
            sink.mapper = exporter.mapper

    @property
    def shortest_threshold_ns(self) -> int:
        """The least time that any imported service has for an answer; 0 when there is none."""
        thresholds = [
            sink.threshold_ns
            for _, _, subscription in self._services.values()
            if isinstance(sink := subscription.sink, ImportSink)
        ]
        return min(thresholds, default=0)

    def expire(self, now: int) -> int:
        """Ends requests that waited too long; returns how many still wait."""
        return sum(table.expire(now) for table in self._tables)

    def _end(self, key: _Key) -> None:
        if key in self._services:
            importer, _, subscription = self._services.pop(key)
            importer.unsubscribe(subscription)
        else:
            shadows, stream = self._streams.pop(key)
            shadows.remove(stream)

    def _begin_service(self, key: _Key, entry: ServiceImport, accounts: Mapping[str, Account]) -> None:
        importer, exporter, made = accounts[key.importer], accounts[entry.account], plan(entry)
        export = key.export or ServiceExport(subject=entry.subject)
        self._table(importer)
        self._table(exporter)
        rewriter = Rewriter(made.local_tokens, made.remote_tokens) if made.renames else None
        sink = ImportSink(
            exporter.index,
            importer.index,
            rewriter=rewriter,
            mapper=exporter.mapper,
            share=entry.share,
            streamed=export.response is not ResponseType.SINGLETON,
            threshold_ns=export.response_threshold_ns,
            describe=self._describe,
            chain=lambda header, origin, share: self._chain(key.importer, header, origin, share),
            measure=None if export.latency is None else self._measure(entry.account, export, entry),
            allow_trace=export.allow_trace,
        )
        subscription = SinkSubscription(sink, made.local.encode())
        importer.index.insert(subscription)
        self._services[key] = (importer, exporter, subscription)

    def _begin_stream(self, key: _Key, entry: StreamImport, accounts: Mapping[str, Account]) -> None:
        importer = accounts[key.importer]
        shadows = self._shadows.get(importer.name)
        if shadows is None:
            shadows = self._shadows[importer.name] = ImportShadows(importer.index)
        stream = _Stream(accounts[entry.account].index, plan(entry), entry.allow_trace)
        shadows.add(stream)
        self._streams[key] = (shadows, stream)

    def _table(self, account: Account) -> None:
        """The account can have requests across accounts."""
        if account.index.replies is None:
            table = ReplyTable(account.index, self._clock, self._seed())
            table.on_first = self._on_first
            account.index.replies = table
            self._tables.append(table)


class _Stream:
    """One imported stream: the exporting index, and how subjects there and here belong together."""

    def __init__(self, index: SubscriptionIndex, made: ImportPlan, allow_trace: bool) -> None:
        self.index = index
        self.allow_trace = allow_trace
        self._plan = made
        # To the importing account's names of messages, to the exporting account's of filters.
        self.inward = Rewriter(made.remote_tokens, made.local_tokens) if made.renames else None
        self._outward = Rewriter(made.local_tokens, made.remote_tokens) if made.renames else None

    def filter_for(self, subject: str) -> str | None:
        """What a subscription to `subject` gets of it, in the exporting account's names; None = nothing."""
        common = intersection(subject, self._plan.local)
        if common is None:
            return None
        if common == self._plan.local or not has_wildcard(self._plan.remote):
            return self._plan.remote
        return common if self._outward is None else self._outward.apply(common.encode()).decode()


class ImportShadows:
    """What stands in other accounts for the subscriptions of one; watches its index.

    Args: index: of the importing account.
    """

    def __init__(self, index: SubscriptionIndex) -> None:
        self._index = index
        self._streams: list[_Stream] = []
        self._of: dict[SinkSubscription, list[tuple[_Stream, SinkSubscription]]] = {}

    def add(self, stream: _Stream) -> None:
        """One more imported stream."""
        self._streams.append(stream)
        self._index.watcher = self
        for subscription in self._index.subscriptions():
            self._cast(subscription, stream)

    def remove(self, stream: _Stream) -> None:
        """The stream is imported no more."""
        self._streams.remove(stream)
        for subscription, shadows in list(self._of.items()):
            for its, shadow in shadows:
                if its is stream:
                    _lift(its, shadow)
            kept = [pair for pair in shadows if pair[0] is not stream]
            if kept:
                self._of[subscription] = kept
            else:
                del self._of[subscription]
        if not self._streams:
            self._index.watcher = None

    def inserted(self, sub: SinkSubscription) -> None:
        """The index has one more subscription."""
        for stream in self._streams:
            self._cast(sub, stream)

    def removed(self, sub: SinkSubscription) -> None:
        """The index has this subscription no more."""
        for stream, shadow in self._of.pop(sub, ()):
            _lift(stream, shadow)

    def _cast(self, subscription: SinkSubscription, stream: _Stream) -> None:
        if isinstance(subscription.sink, _INTERNAL):
            return
        subject = stream.filter_for(subscription.subject.decode("utf-8", "surrogateescape"))
        if subject is None:
            return
        sink = ShadowSink(subscription, stream.inward, stream.allow_trace)
        name = subject.encode("utf-8", "surrogateescape")
        shadow = SinkSubscription(sink, name, subscription.queue, subscription.sid)
        stream.index.insert(shadow)
        self._of.setdefault(subscription, []).append((stream, shadow))


def _lift(stream: _Stream, shadow: SinkSubscription) -> None:
    shadow.closed = True
    stream.index.remove(shadow)


def intersection(one: str, other: str) -> str | None:
    """The filter of the subjects that both filters match; None when there are none."""
    left, right = one.split("."), other.split(".")
    found: list[str] = []
    for i, (a, b) in enumerate(zip(left, right, strict=False)):
        if a == ">":
            return ".".join([*found, *right[i:]])
        if b == ">":
            return ".".join([*found, *left[i:]])
        if a != b and "*" not in (a, b):
            return None
        found.append(b if a == "*" else a)
    return ".".join(found) if len(left) == len(right) else None
