"""The meta state: the peers, streams and consumers of a cluster, and what is derived from them.

Derived: claimed subjects, what each account has reserved, what each server carries. It changes with the
assignments and is never encoded; a restored state builds it again.

Invariants: only `commit` changes the state; the encoding of a state depends on its content alone, and not on
the order in which it came about.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, field

from penstock.errors import MalformedCommandError
from penstock.jetstream.consumer.consumer_config import filters_of
from penstock.jetstream.meta.assignments import (
    ConsumerAssignment,
    PeerRecord,
    PeerStatus,
    StreamAssignment,
    Tombstone,
)
from penstock.jetstream.meta.placement import PeerOffer
from penstock.jetstream.subject_claims import ALL, SubjectClaims
from penstock.protocol import error_codes as codes
from penstock.protocol.api import ApiStreamConfig, RetentionPolicy, StorageType

T = TypeVar("T")

SNAPSHOT_VERSION = 1
UNLIMITED = 2**62  # bytes of a server without a limit

StreamKey = tuple[str, str]
"""Account and name of a stream."""


class MetaChanges(Struct):
    """What a command changes. Values replace those with the same key.

    dropped_streams also drop their consumers. dropped_tombstones: incarnations.
    """

    cluster_id: str = ""
    peers: list[PeerRecord] = field(default_factory=list)
    dropped_peers: list[str] = field(default_factory=list)
    streams: list[StreamAssignment] = field(default_factory=list)
    dropped_streams: list[StreamKey] = field(default_factory=list)
    consumers: list[ConsumerAssignment] = field(default_factory=list)
    dropped_consumers: list[tuple[str, str, str]] = field(default_factory=list)
    tombstones: list[Tombstone] = field(default_factory=list)
    dropped_tombstones: list[int] = field(default_factory=list)


class MetaSnapshot(Struct, frozen=True, array_like=True):
    """The encoded state; everything sorted."""

    cluster_id: str
    applied: int
    now: int
    peers: list[PeerRecord]
    streams: list[StreamAssignment]
    consumers: list[ConsumerAssignment]
    tombstones: list[Tombstone]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(MetaSnapshot)


class PeerLoad:
    """What a server carries: streams, those with several replicas, and bytes that they reserve."""

    def __init__(self) -> None:
        self.keys: set[StreamKey] = set()
        self.replicated = 0
        self.reserved: Counter[StorageType] = Counter()

    def count(self, stream: StreamAssignment, sign: int) -> None:
        """Adds (1) or removes (-1) a stream."""
        key = (stream.account, stream.name)
        if sign > 0:
            self.keys.add(key)
        else:
            self.keys.discard(key)
        self.replicated += sign * (stream.config.num_replicas > 1)
        self.reserved[stream.config.storage] += sign * max(0, stream.config.max_bytes)


def is_counted(consumer: ConsumerAssignment) -> bool:
    """Whether a consumer counts towards limits: those of mirrors and sources do not."""
    return not (consumer.config.direct or consumer.config.sourcing)


class AccountAssets:
    """The streams and consumers of one account."""

    def __init__(self) -> None:
        self.streams: dict[str, StreamAssignment] = {}
        self.consumers: dict[str, dict[str, ConsumerAssignment]] = {}
        self.claims = SubjectClaims()
        self.mirrors: defaultdict[str, set[str]] = defaultdict(set)  # of streams of this account
        self.queue_claims: dict[str, SubjectClaims] = {}  # filters of the consumers of work queues
        self._counts: Counter[int] = Counter()  # streams by replicas
        self._counted: Counter[str] = Counter()  # consumers by stream, those that is_counted()
        self._reserved: Counter[tuple[int, StorageType]] = Counter()  # max_bytes by replicas and storage

    def put_stream(self, stream: StreamAssignment) -> StreamAssignment | None:
        """Adds or replaces a stream; returns the one before."""
        before = self.streams.get(stream.name)
        if before is not None:
            self._count(before.config, -1)
            self._drop_mirror(before)
        self.streams[stream.name] = stream
        self._count(stream.config, 1)
        origin = _origin_of(stream)
        if origin:
            self.mirrors[origin].add(stream.name)
        if before is None or before.config.subjects != stream.config.subjects:
            self.claims.claim(stream.name, stream.config.subjects)
        return before

    def drop_stream(self, name: str) -> StreamAssignment:
        stream = self.streams.pop(name)
        self._count(stream.config, -1)
        self._drop_mirror(stream)
        self.claims.release(name)
        self.consumers.pop(name, None)
        self._counted.pop(name, None)
        self.queue_claims.pop(name, None)
        return stream

    def _drop_mirror(self, stream: StreamAssignment) -> None:
        origin = _origin_of(stream)
        if origin:
            self.mirrors[origin].discard(stream.name)
            if not self.mirrors[origin]:
                del self.mirrors[origin]

    def put_consumer(self, consumer: ConsumerAssignment) -> None:
        present = self.consumers.setdefault(consumer.stream, {})
        before = present.get(consumer.name)
        if before is not None:
            self._counted[consumer.stream] -= is_counted(before)
        self._counted[consumer.stream] += is_counted(consumer)
        present[consumer.name] = consumer
        is_queue = self.streams[consumer.stream].config.retention is RetentionPolicy.WORKQUEUE
        if is_queue and is_counted(consumer):
            claims = self.queue_claims.setdefault(consumer.stream, SubjectClaims())
            claims.claim(consumer.name, filters_of(consumer.config) or [ALL])

    def drop_consumer(self, stream: str, name: str) -> None:
        self._counted[stream] -= is_counted(self.consumers[stream].pop(name))
        if not self.consumers[stream]:
            del self.consumers[stream]
        if stream in self.queue_claims:
            self.queue_claims[stream].release(name)

    def streams_of_tier(self, replicas: int | None) -> int:
        """The number of streams; of those with so many replicas, if not None."""
        return self._counts[replicas] if replicas is not None else sum(self._counts.values())

    def consumers_of(self, stream: str) -> int:
        """The number of consumers of a stream without those of mirrors and sources."""
        return self._counted[stream]

    def reserved(self, storage: StorageType, replicas: int | None) -> int:
        """Reserved bytes: of a tier, each stream once; of the account (None), each replica."""
        if replicas is not None:
            return self._reserved[replicas, storage]
        return sum(size * count for (count, kind), size in self._reserved.items() if kind is storage)

    def _count(self, config: ApiStreamConfig, sign: int) -> None:
        replicas = max(1, config.num_replicas)
        self._counts[replicas] += sign
        self._reserved[replicas, config.storage] += sign * max(0, config.max_bytes)


def _origin_of(stream: StreamAssignment) -> str:
    """The stream of the same account that a mirror copies; "" for a stream that is none."""
    mirror = stream.config.mirror
    return mirror.name if mirror is not None and mirror.external is None else ""


_NO_ASSETS = AccountAssets()  # of an account without any; never changed


class MetaTables:
    """The state. Readers use its methods and mappings; `commit` alone writes.

    applied: index of the last command. now: its time (ns), which never runs backwards. short: streams with
    fewer servers than replicas.
    """

    def __init__(self) -> None:
        self.cluster_id = ""
        self.applied = 0
        self.now = 0
        self.peers: dict[str, PeerRecord] = {}
        self.tombstones: dict[int, Tombstone] = {}
        self.short: set[StreamKey] = set()
        self._accounts: dict[str, AccountAssets] = {}
        self._loads: defaultdict[str, PeerLoad] = defaultdict(PeerLoad)
        self._leads: Counter[str] = Counter()
        self._leaving: defaultdict[str, set[StreamKey]] = defaultdict(set)

    # --- reading ---------------------------------------------------------------------------------

    @property
    def accounts(self) -> Mapping[str, AccountAssets]:
        return self._accounts

    def assets(self, account: str) -> AccountAssets:
        """The assets of an account, which may have none."""
        return self._accounts.get(account, _NO_ASSETS)

    def find_stream(self, account: str, name: str) -> StreamAssignment | None:
        return self.assets(account).streams.get(name)

    def stream(self, account: str, name: str) -> StreamAssignment:
        """Raises JetStreamApiError 10059."""
        found = self.find_stream(account, name)
        if found is None:
            raise codes.STREAM_NOT_FOUND.exception(stream=name)
        return found

    def consumers(self, account: str, stream: str) -> Mapping[str, ConsumerAssignment]:
        return self.assets(account).consumers.get(stream, {})

    def consumer(self, account: str, stream: str, name: str) -> ConsumerAssignment:
        """Raises JetStreamApiError 10059, 10014."""
        self.stream(account, stream)
        found = self.consumers(account, stream).get(name)
        if found is None:
            raise codes.CONSUMER_NOT_FOUND.exception(stream=stream)
        return found

    def streams_on(self, peer: str) -> set[StreamKey]:
        """The streams that a server runs or is to run."""
        return self._loads[peer].keys if peer in self._loads else set()

    def streams_leaving(self, peer: str) -> set[StreamKey]:
        """The streams that a server has left, and whose files it may still have."""
        return self._leaving.get(peer, set())

    def is_offline(self, stream: StreamAssignment) -> bool:
        """Whether none of its members is online."""
        return not any(self.is_online(peer) for peer in stream.group.peers)

    def is_online(self, peer: str) -> bool:
        record = self.peers.get(peer)
        return record is not None and record.online

    def peer_named(self, name_or_id: str) -> PeerRecord | None:
        """A server by its id or name."""
        found = self.peers.get(name_or_id)
        if found is not None:
            return found
        return next((one for one in self.peers.values() if one.name == name_or_id), None)

    def retired_peers(self) -> set[str]:
        """The servers that get no streams any more: evacuated ones, those to be removed, and those that are
        removed and still have some."""
        retired = {one.peer for one in self.peers.values() if one.status is not PeerStatus.MEMBER}
        return retired.union(peer for peer in self._loads if peer not in self.peers)

    def offers(self, storage: StorageType) -> list[PeerOffer]:
        """What the servers could take. Retired ones are included: the caller avoids them."""
        return [self._offer(one, storage) for one in self.peers.values()]

    def leads(self) -> dict[str, int]:
        """How many streams prefer each server as their leader."""
        return dict(self._leads)

    def load(self, peer: str) -> PeerLoad:
        """What a server carries."""
        return self._loads[peer] if peer in self._loads else PeerLoad()

    def _offer(self, record: PeerRecord, storage: StorageType) -> PeerOffer:
        load = self.load(record.peer)
        is_memory = storage is StorageType.MEMORY
        limit = record.max_memory if is_memory else record.max_storage
        used = record.used_memory if is_memory else record.used_storage
        free = UNLIMITED if limit < 0 else max(0, limit - max(used, load.reserved[storage]))
        return PeerOffer(
            peer=record.peer,
            name=record.name,
            cluster=record.cluster,
            tags=record.tags,
            online=record.online,
            current=record.current,
            free=free,
            streams=len(load.keys),
            ha_streams=load.replicated,
        )

    # --- changing --------------------------------------------------------------------------------

    def begin(self, index: int, now: int) -> None:
        """Begins a command. The time does not run backwards when another server leads."""
        assert index > self.applied, f"command {index} after {self.applied}"
        self.applied = index
        self.now = max(self.now, now)

    def commit(self, changes: MetaChanges) -> None:
        """Makes the changes. It must not fail: the caller has checked them."""
        if changes.cluster_id:
            self.cluster_id = changes.cluster_id
        for peer in changes.peers:
            self.peers[peer.peer] = peer
        for gone in changes.dropped_peers:
            del self.peers[gone]
        for account, name in changes.dropped_streams:
            self._count(self._accounts[account].drop_stream(name), -1)
            self._drop_if_empty(account)
        for stream in changes.streams:
            before = self._accounts.setdefault(stream.account, AccountAssets()).put_stream(stream)
            if before is not None:
                self._count(before, -1)
            self._count(stream, 1)
        for account, name, consumer in changes.dropped_consumers:
            self._accounts[account].drop_consumer(name, consumer)
        for one in changes.consumers:
            self._accounts[one.account].put_consumer(one)
        for tombstone in changes.tombstones:
            self.tombstones[tombstone.incarnation] = tombstone
        for incarnation in changes.dropped_tombstones:
            del self.tombstones[incarnation]

    def _drop_if_empty(self, account: str) -> None:
        if not self._accounts[account].streams:
            del self._accounts[account]

    def _count(self, stream: StreamAssignment, sign: int) -> None:
        for peer in stream.hosts:
            self._loads[peer].count(stream, sign)
            if not self._loads[peer].keys:
                del self._loads[peer]
        for peer in stream.leaving:
            if sign > 0:
                self._leaving[peer].add((stream.account, stream.name))
            else:
                self._leaving[peer].discard((stream.account, stream.name))
        if stream.group.preferred:
            self._leads[stream.group.preferred] += sign
        key = (stream.account, stream.name)
        if sign > 0 and stream.is_short:
            self.short.add(key)
        else:
            self.short.discard(key)

    # --- snapshots -------------------------------------------------------------------------------

    def encode(self) -> bytes:
        """The state as bytes: equal states have equal bytes."""
        assets = [self._accounts[name] for name in sorted(self._accounts)]
        snapshot = MetaSnapshot(
            self.cluster_id,
            self.applied,
            self.now,
            _sorted(self.peers),
            [stream for one in assets for stream in _sorted(one.streams)],
            [
                consumer
                for one in assets
                for name in sorted(one.consumers)
                for consumer in _sorted(one.consumers[name])
            ],
            _sorted(self.tombstones),
        )
        return bytes([SNAPSHOT_VERSION]) + _encoder.encode(snapshot)

    @classmethod
    def decode(cls, data: bytes) -> MetaTables:
        """The state of an encoding. Raises MalformedCommandError."""
        if data[:1] != bytes([SNAPSHOT_VERSION]):
            raise MalformedCommandError(
                f"a meta snapshot of version {data[:1].hex() or 'none'}: unknown here"
            )
        try:
            snapshot = _decoder.decode(memoryview(data)[1:])
        except (ValueError, msgspec.DecodeError, RecursionError) as error:
            raise MalformedCommandError(f"a malformed meta snapshot: {error}") from error
        known = {(one.account, one.name) for one in snapshot.streams}
        for consumer in snapshot.consumers:
            if (consumer.account, consumer.stream) not in known:
                raise MalformedCommandError(f"a meta snapshot with consumer {consumer.name} of no stream")
        tables = cls()
        try:
            tables._fill(snapshot)
        except ValueError as error:  # a subject that is none
            raise MalformedCommandError(f"a meta snapshot with an invalid stream: {error}") from error
        return tables

    def _fill(self, snapshot: MetaSnapshot) -> None:
        self.applied, self.now = snapshot.applied, snapshot.now
        self.commit(
            MetaChanges(
                cluster_id=snapshot.cluster_id,
                peers=snapshot.peers,
                streams=snapshot.streams,
                consumers=snapshot.consumers,
                tombstones=snapshot.tombstones,
            )
        )


def _sorted(values: Mapping[Any, T]) -> list[T]:
    return [value for _, value in sorted(values.items())]
