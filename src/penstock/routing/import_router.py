"""Routes messages between accounts: the configured imports, as sinks in the accounts' indexes.

`ImportRouter.set_up` compares the active imports with the configured ones, at start and at every reload. It
removes obsolete imports, adds new ones, and leaves unchanged ones alone, with their pending requests.

Invariants: a service import is one subscription in the importing account. A stream import is one forwarding
subscription in the exporting account for each overlapping subscription of the importing account; it is
added and removed together with that subscription.

JetStream streams and clients receive imported streams; the server's own services and imports do not: a stream
import of `>` must not let another account's requests reach this one's API.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from penstock.kernels.consumer.endpoints import AckSink
from penstock.kernels.routing.account_imports import ReplyTable, Rewriter, ServiceImportSink, StreamImportSink
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

_INTERNAL = (ServiceSink, AckSink, ServiceImportSink, StreamImportSink)


class _Key(NamedTuple):
    importer: str
    entry: AnyImport
    export: ServiceExport | None


class ImportRouter:
    """Maintains the imports of all accounts of a server.

    Args:
        clock: returns ns since 1970.
        seed: returns 64 random bits.
        describe: (origin, share) -> JSON about the requesting client, b"" for nothing.
        chain: (requesting account, header block, origin, share) -> the same for a request that reached
            that account through an import.
        measure: (exporting account, export, import) -> the latency measurement of its requests.
        on_first: called when the first request starts to wait for a reply, so that
            `expire` is called periodically.
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
        self._streams: dict[_Key, tuple[ForwardingSubscriptions, _Stream]] = {}
        self._forwarding: dict[str, ForwardingSubscriptions] = {}
        self._tables: list[ReplyTable] = []

    def set_up(self, accounts: Mapping[str, Account], sharing: Mapping[str, AccountSharing]) -> None:
        """Makes the active imports match `sharing`, which `imports_exports.check` has accepted.

        Args:
            accounts: all accounts that import or export, by name.
            sharing: their exports and imports, by account name.
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
        """Takes over the current mappings of the exporting accounts."""
        for _, exporter, subscription in self._services.values():
            sink = subscription.sink
            assert isinstance(sink, ServiceImportSink)
            sink.mapper = exporter.mapper

    @property
    def shortest_threshold_ns(self) -> int:
        """The shortest response threshold of all service imports, ns; 0 when there is none."""
        thresholds = [
            sink.threshold_ns
            for _, _, subscription in self._services.values()
            if isinstance(sink := subscription.sink, ServiceImportSink)
        ]
        return min(thresholds, default=0)

    def expire(self, now: int) -> int:
        """Ends requests whose response threshold has passed; returns the number of pending requests."""
        return sum(table.expire(now) for table in self._tables)

    def _end(self, key: _Key) -> None:
        if key in self._services:
            importer, _, subscription = self._services.pop(key)
            importer.unsubscribe(subscription)
        else:
            forwarding, stream = self._streams.pop(key)
            forwarding.remove(stream)

    def _begin_service(self, key: _Key, entry: ServiceImport, accounts: Mapping[str, Account]) -> None:
        importer, exporter, made = accounts[key.importer], accounts[entry.account], plan(entry)
        export = key.export or ServiceExport(subject=entry.subject)
        self._table(importer)
        self._table(exporter)
        rewriter = Rewriter(made.local_tokens, made.remote_tokens) if made.renames else None
        sink = ServiceImportSink(
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
        forwarding = self._forwarding.get(importer.name)
        if forwarding is None:
            forwarding = self._forwarding[importer.name] = ForwardingSubscriptions(importer.index)
        stream = _Stream(accounts[entry.account].index, plan(entry), entry.allow_trace)
        forwarding.add(stream)
        self._streams[key] = (forwarding, stream)

    def _table(self, account: Account) -> None:
        """Gives the account a reply table, which requests between accounts need."""
        if account.index.replies is None:
            table = ReplyTable(account.index, self._clock, self._seed())
            table.on_first = self._on_first
            account.index.replies = table
            self._tables.append(table)


class _Stream:
    """One stream import: the exporting index, and the translation of subjects in both directions."""

    def __init__(self, index: SubscriptionIndex, made: ImportPlan, allow_trace: bool) -> None:
        self.index = index
        self.allow_trace = allow_trace
        self._plan = made
        # Message subjects go to the importing account's names, filters to the exporting account's names.
        self.inward = Rewriter(made.remote_tokens, made.local_tokens) if made.renames else None
        self._outward = Rewriter(made.local_tokens, made.remote_tokens) if made.renames else None

    def filter_for(self, subject: str) -> str | None:
        """The part of the import that a subscription to `subject` receives, in the exporting account's names.

        None when they do not overlap.
        """
        common = intersection(subject, self._plan.local)
        if common is None:
            return None
        if common == self._plan.local or not has_wildcard(self._plan.remote):
            return self._plan.remote
        return common if self._outward is None else self._outward.apply(common.encode()).decode()


class ForwardingSubscriptions:
    """Keeps forwarding subscriptions in exporting accounts for the subscriptions of one importing account.

    Watches the importing account's index.

    Args:
        index: index of the importing account.
    """

    def __init__(self, index: SubscriptionIndex) -> None:
        self._index = index
        self._streams: list[_Stream] = []
        self._of: dict[SinkSubscription, list[tuple[_Stream, SinkSubscription]]] = {}

    def add(self, stream: _Stream) -> None:
        """Adds an imported stream."""
        self._streams.append(stream)
        self._index.watcher = self
        for subscription in self._index.subscriptions():
            self._forward(subscription, stream)

    def remove(self, stream: _Stream) -> None:
        """Removes an imported stream."""
        self._streams.remove(stream)
        for subscription, forwarding in list(self._of.items()):
            for its, forwarding_one in forwarding:
                if its is stream:
                    _unforward(its, forwarding_one)
            remaining = [pair for pair in forwarding if pair[0] is not stream]
            if remaining:
                self._of[subscription] = remaining
            else:
                del self._of[subscription]
        if not self._streams:
            self._index.watcher = None

    def inserted(self, sub: SinkSubscription) -> None:
        """Index callback: a subscription was added."""
        for stream in self._streams:
            self._forward(sub, stream)

    def removed(self, sub: SinkSubscription) -> None:
        """Index callback: a subscription was removed."""
        for stream, forwarding_one in self._of.pop(sub, ()):
            _unforward(stream, forwarding_one)

    def _forward(self, subscription: SinkSubscription, stream: _Stream) -> None:
        if isinstance(subscription.sink, _INTERNAL):
            return
        subject = stream.filter_for(subscription.subject.decode("utf-8", "surrogateescape"))
        if subject is None:
            return
        sink = StreamImportSink(subscription, stream.inward, stream.allow_trace)
        name = subject.encode("utf-8", "surrogateescape")
        forwarding_one = SinkSubscription(sink, name, subscription.queue, subscription.sid)
        stream.index.insert(forwarding_one)
        self._of.setdefault(subscription, []).append((stream, forwarding_one))


def _unforward(stream: _Stream, forwarding_one: SinkSubscription) -> None:
    forwarding_one.closed = True
    stream.index.remove(forwarding_one)


def intersection(one: str, other: str) -> str | None:
    """The filter of the subjects that both filters match; None when there is none."""
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
