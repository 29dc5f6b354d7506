"""A stream: a state machine that only publishes, requests and time change.

`apply(batch, now)` stores a batch of publishes. Only it, `update`, `purge`, `delete_message` and `expire`
change a stream, and each depends on the stream's state, its arguments and `now` alone. The ingest kernel
stores plain publishes; those whose headers change their behaviour are decided in `publish_checks.py`. Acks
are collected and sent by `acknowledge()`.

Ordering contract, kept by the engine: apply, then write, then acknowledge. A pub ack may leave only after its
record is written.

Rejected: a Python object per ack; assigning sequences before the checks (a rejected publish would leave a
gap).
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING

import msgspec

from penstock.errors import JetStreamApiError
from penstock.jetstream.deadlines import earliest
from penstock.jetstream.durability import Durability
from penstock.jetstream.inflight import BatchContext
from penstock.jetstream.limits import DELETED_DETAILS_MAX, SEQ_MAX
from penstock.jetstream.stream import publish_checks, purge, retention, shrinking, ttl
from penstock.jetstream.stream.atomic_batches import AtomicBatches, bytes_of
from penstock.jetstream.stream.dedupe import recover_ids
from penstock.jetstream.stream.fast_batches import FastIngestBatches, FastOutcome, is_fast
from penstock.jetstream.stream.message_schedules import RETRY_NS, MessageSchedules, ScheduledMessage
from penstock.jetstream.stream.rollups import Allowance, Removal, Rollups
from penstock.jetstream.stream.source_positions import SourcePositions
from penstock.jetstream.stream.source_state import SourceState
from penstock.jetstream.stream.staged import Checked, StagedMessage
from penstock.jetstream.stream.subject_transforms import make_mapper, make_republish_mapper
from penstock.kernels.ingest.batches import StagedBatch, check_staged, store_staged
from penstock.kernels.ingest.ingest import AckBatch, IngestBatch, StreamSink, apply_plain
from penstock.kernels.ingest.publish_headers import MessageIds
from penstock.kernels.ingest.storing import InterestState, PlainLimits, Republisher, store_one
from penstock.kernels.log.stream_log import StreamLog
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.sinks import DirtyList, SinkSubscription
from penstock.protocol import error_codes as codes
from penstock.protocol import headers
from penstock.protocol.api import (
    ApiError,
    ApiStreamConfig,
    Compression,
    DiscardPolicy,
    PubAck,
    RetentionPolicy,
    StorageType,
    StreamState,
    encode,
)
from penstock.protocol.durations import format_time, format_time_or_zero
from penstock.protocol.ids import short_hash
from penstock.protocol.transforms import Below
from penstock.store.interface import StreamStore

if TYPE_CHECKING:
    from penstock.jetstream.consumer.consumer_replica import ConsumerReplica
    from penstock.jetstream.consumer.consumer_subscriptions import ConsumerSubscriptions


NO_LIMITS = PlainLimits()
SCHEDULE_WORK = 32 * 1024  # the cost of a scheduled message, in the units of slices.py
ID_WORK = 64  # ... and of dropping a message id


def _no_chance(n: int) -> int:
    return 0


class StreamMeta(msgspec.Struct, frozen=True):
    """What the store holds about a stream besides its messages.

    restoring: a restore into it is incomplete.
    """

    config: ApiStreamConfig
    created: int  # ns
    restoring: bool = False
    rollups: list[Removal] = []  # to be finished by recovery, if their messages are there


class StreamReplica:
    """A stream and the sink of its subjects.

    store: holds the messages; its log is the stream's state. created: ns. domain: for the pub acks. dirty:
    marked when publishes wait for apply(). full: marked when publishes were rejected (overflow.py).
    api_level: publishes that require a higher one are rejected. below: returns a uniform random number in
    0..n-1, for transforms by chance, before a publish enters a batch. batches: limits shared with other
    streams' batches.
    """

    def __init__(
        self,
        config: ApiStreamConfig,
        store: StreamStore,
        *,
        created: int,
        domain: str,
        api_level: int,
        dirty: DirtyList,
        full: DirtyList | None = None,
        below: Below = _no_chance,
        batches: BatchContext | None = None,
        allowance: Allowance | None = None,
    ) -> None:
        self.config = config
        self.name = config.name
        self.is_memory = config.storage is StorageType.MEMORY
        self.store = store
        self.log: StreamLog = store.log
        self.created = created
        self.domain = domain
        self.api_level = api_level
        self.consumers: dict[str, ConsumerReplica] = {}
        self.offline: dict[str, str] = {}  # consumers that failed or could not be opened, and why
        self.consumer_subscriptions: ConsumerSubscriptions | None = None  # made with the first consumer
        self.interest_state: InterestState | None = None  # only of interest and work-queue streams
        self.ids = MessageIds(config.duplicate_window)
        self.expiry = retention.Expiry(self.log)
        self.schedules = MessageSchedules(self.log)
        batches = batches or BatchContext()
        self.atomic = AtomicBatches(self, batches)
        self.rollups = Rollups(self, allowance)
        self.sink = StreamSink(dirty, self, full)
        self.ack_prefix = _ack_prefix(config.name, domain)
        self.acks = AckBatch(self.ack_prefix)
        self.republisher = Republisher(config.name.encode(), format_time)
        self.fast = FastIngestBatches(self, batches)
        self.below = below
        self.source_states: list[SourceState] = []  # its mirror or sources
        self.positions: SourcePositions | None = None  # of a stream with sources
        self.refuse_all: ApiError | None = None  # see admit()
        self.bytes_end: int | None = None
        self.durability = Durability(self.log)
        self._rest: IngestBatch | None = None  # of the batch whose roll-up is not done
        self._now = created
        self.is_behind = False  # expire() stopped at its limit
        self._configure()
        self._subscriptions: list[SinkSubscription] = []

    @property
    def identity(self) -> str:
        """Identifies this incarnation of the stream: differs after it is deleted and created again."""
        return short_hash(format_time(self.created))

    # --- publishes -----------------------------------------------------------------------------

    def take_waiting(self) -> Iterator[tuple[bytes, bytes, bytes, bytes]]:
        """Removes the publishes that wait to be applied: (subject, reply, header, payload)."""
        rest, self._rest = self._rest, None
        while rest is not None and (publish := rest.take_one()) is not None:
            yield publish
        batch = self.sink.take()  # not before: it reuses the other batch
        while (publish := batch.take_one()) is not None:
            yield publish

    def apply_pending(self, now: int) -> None:
        """Applies the publishes that arrived since the last call."""
        self.log.begin_storing()
        try:
            if self._rest is not None:
                rest, self._rest = self._rest, None
                self.apply(rest, now)
                if self.rollups.unfinished:
                    return
            self.apply(self.sink.take(), now)
            for source_state in self.source_states:
                source_state.apply(now)
        finally:
            self.log.end_storing()

    def apply(self, batch: IngestBatch, now: int) -> None:
        """Stores a batch of publishes at `now` (ns) and collects the responses."""
        # Times never decrease within a stream: seeking by time relies on it.
        ts = max(now, self.log.last_ts)
        while True:
            if self.refuse_all is None and (self.bytes_end is None or self._fits(batch, self.bytes_end)):
                apply_plain(
                    batch, self.log, self.limits, self.ids, now, ts, self.acks, self.republisher,
                    self.fast.batches, self.atomic.staged,
                )  # fmt: skip
            publish = batch.take_one()
            if publish is None:
                break
            if is_fast(publish[1]):
                self.fast.publish(*publish, now, ts)
            else:
                self._apply_one(*publish, now, ts)
            if self.rollups.unfinished:
                self._rest = batch
                return
        if self.fast.batches.has_due:
            self.fast.acknowledge(batch.size)

    def _fits(self, batch: IngestBatch, end: int) -> bool:
        """Whether the whole batch fits the account's limit, whatever each message takes."""
        return self.log.bytes + batch.size + batch.count * self.log.cost_of(0, 0, 0) <= end

    def _apply_one(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, now: int, ts: int
    ) -> None:
        answers = bool(reply) and not self.config.no_ack
        batch_id = headers.value_of(header, headers.BATCH_ID) if header else None
        try:
            if batch_id and self.config.allow_atomic:
                if self.refuse_all is not None:
                    raise self.refuse_all.exception()
                answer = self.atomic.take(batch_id, StagedMessage(subject, header, payload), now)
                if answers:
                    self.acks.add(reply, answer)
                return
            stored = self.store_publish(subject, header, payload, now, ts)
        except JetStreamApiError as error:
            if answers:
                self.acks.add(reply, self.refusal(ApiError.from_exception(error)))
            return
        if answers and stored.value:
            self.acks.add(reply, b'%s%d,"val":"%s"}' % (self.ack_prefix, stored.seq, stored.value.encode()))
        elif answers:
            self.acks.add_ack(reply, stored.seq, stored.duplicate)

    def admit(self, refuse_all: ApiError | None, bytes_end: int | None) -> None:
        """Sets what the account admits at present. refuse_all: the error for every publish. bytes_end: the
        size up to which the stream may grow; None: no limit."""
        self.refuse_all, self.bytes_end = refuse_all, bytes_end

    def check_admitted(self, subject: bytes, header: bytes, payload_len: int) -> None:
        """Raises JetStreamApiError when publishes are rejected at present, and 10002 when this message would
        exceed the account's limit. As on the official server, messages that the stream would remove for it do
        not count."""
        if self.refuse_all is not None:
            raise self.refuse_all.exception()
        if self.bytes_end is None:
            return
        if self.log.bytes + self.log.cost_of(len(subject), len(header), payload_len) > self.bytes_end:
            raise codes.ACCOUNT_RESOURCES_EXCEEDED.exception()

    def store_publish(
        self,
        subject: bytes,
        header: bytes,
        payload: bytes,
        now: int,
        ts: int,
        *,
        in_fast_batch: bool = False,
    ) -> FastOutcome:
        """Checks one publish and stores it. Raises JetStreamApiError when it is rejected."""
        self.check_admitted(subject, header, len(payload))
        decision = publish_checks.check(self, subject, header, len(payload), now, in_fast_batch=in_fast_batch)
        if decision.duplicate_of:
            return FastOutcome(decision.duplicate_of, duplicate=True, value="")
        if decision.payload is not None:
            payload = decision.payload
        if self.is_wanted(subject):
            publish_checks.check_room(self, subject, decision.header, len(payload))
        seq = self.store_decided(subject, decision, payload, ts)
        if decision.msg_id:
            self.ids.add(decision.msg_id, seq, ts)
        return FastOutcome(seq, duplicate=False, value=decision.value)

    def store_staged(self, batch: StagedBatch, now: int) -> int:
        """Stores a batch of ordinary messages as a unit, unchanged, and returns the last sequence."""
        ts = max(now, self.log.last_ts)
        return store_staged(batch, self.log, self.limits, self.ids, ts, self.republisher)

    def may_store_staged(self, batch: StagedBatch, now: int) -> bool:
        """Whether store_staged() may store the batch: no message is rejected or needs other checks."""
        return check_staged(batch, self.log, self.limits, self.ids, now)

    def store_batch(self, checked: list[Checked], now: int) -> int:
        """Stores messages as a unit and returns the last sequence."""
        ts = max(now, self.log.last_ts)
        seq = 0
        self.log.begin_batch(bytes_of(checked), len(checked))
        for subject, decision, payload in checked:
            seq = self.store_decided(subject, decision, payload, ts)
            if decision.msg_id:
                self.ids.add(decision.msg_id, seq, ts)
        self.log.end_batch()
        return seq

    def store_decided(
        self, subject: bytes, decision: publish_checks.Decision, payload: bytes, ts: int
    ) -> int:
        wanted = self.is_wanted(subject)
        seq = self._store(subject, decision.header, payload, ts) if wanted else self.log.skip(ts)
        self.ids.note_last(decision.msg_id)
        if decision.ttl_ns and wanted:
            self.expiry.ttls.add(seq, ts, decision.ttl_ns)
        if decision.rollup:
            self.rollups.replace(
                subject if decision.rollup == publish_checks.ROLLUP_SUBJECT else b"", seq, seq
            )
        if decision.schedule_due and wanted:
            self.schedules.add(subject, seq, decision.schedule_due)
        if decision.purged_schedule:
            self.rollups.replace(decision.purged_schedule, seq + 1, seq)
        return seq

    def _store(self, subject: bytes, header: bytes, payload: bytes, ts: int) -> int:
        limits = self.limits
        if self.rollups.unfinished:
            self.rollups.stored_unlimited()
            limits = NO_LIMITS
        return store_one(self.log, limits, subject, header, payload, ts, self.republisher)

    def write(self) -> None:
        """Hands new records to the operating system. Raises StoreWriteError."""
        self.store.write()
        if self.positions is not None:
            self.positions.note(self.source_states, self.log)

    def acknowledge(self, index: SubscriptionIndex) -> None:
        """Sends republished messages, then the responses. Call only after the write. While roll-ups are
        unfinished, they wait: no read after an ack returns a replaced message."""
        if not self.durability.may_acknowledge:
            return
        if self.republisher.count and self.durability.failure is None:
            self.republisher.route(index)
        if self.acks.count:
            self.acks.route(index)
        if self.fast.behind:
            self.fast.end_tick()

    def write_failed(self, reason: str) -> None:
        """Handles a failed write: publishes that wait for an ack get error 10077 with the reason.

        What was applied stays in the log and is written once writing works again, like a publish whose ack
        was lost. Until then every publish is rejected.
        """
        failure = codes.STREAM_STORE_FAILED.format(err=reason)
        self.durability.failed(failure)
        text = self.refusal(failure)
        replies = [reply for reply, _ in self.acks.items()]
        self.acks.clear()
        for reply in replies:
            self.acks.add(reply, text)

    def refusal(self, error: ApiError) -> bytes:
        """The response to a rejected publish."""
        return encode(PubAck(error=error, stream=self.name))

    # --- requests ------------------------------------------------------------------------------

    def ids_after(self, config: ApiStreamConfig, now: int) -> Generator[int, None, MessageIds | None]:
        """The ids for update() when a mirror without ids becomes a stream that detects duplicates itself, or
        None. Yields work. The stream remains a mirror meanwhile, and the ids of what it copies are
        included; the caller updates as soon as this ends, so that none is missing. A crash leaves either the
        mirror or a stream that finds its ids at the start."""
        if self.config.mirror is None or config.mirror is not None or len(self.ids):
            return None
        ids = MessageIds(config.duplicate_window)
        yield from recover_ids(ids, self.log, now)
        return ids

    def update(self, config: ApiStreamConfig, now: int, ids: MessageIds | None = None) -> None:
        """Changes to a (checked) configuration; shrinking.py enforces limits that it lowers.

        ids: replace the present ones. Raises StoreError when it cannot be stored; the present one then
        remains.
        """
        self.store.save_meta(encode(StreamMeta(config, self.created, rollups=[*self.rollups.unfinished])))
        was_mirror, present = self.config.mirror is not None, self.source_states
        self.config = config
        self._configure()
        if self.positions is not None:
            self.positions.leave(
                [one for one in present if one not in self.source_states and not one.is_mirror]
            )
        added = [source_state for source_state in self.source_states if source_state not in present]
        deque(self._resume_sources(added), maxlen=0)
        if ids is not None and was_mirror:  # else another update came first
            self.ids = ids
        self.ids.resize(config.duplicate_window, now)
        if not config.allow_atomic:
            self.atomic.drop()

    def purge(self, filter_subject: bytes, upto_seq: int, keep: int) -> Generator[int, None, int]:
        """Removes messages (of a filter, below a sequence, except the newest `keep`), in slices (slices.py);
        returns how many. Messages stored after the first slice stay.

        Raises JetStreamApiError: 10109 when sealed, 10110 when purging is denied.
        """
        self._check_purge()
        log = self.log
        if upto_seq > max(SEQ_MAX, log.last_seq + 1):
            raise codes.STREAM_PURGE_FAILED.exception(err=f"sequences cannot continue after {upto_seq}")
        if filter_subject in (b"", b">") and not keep and not 0 < upto_seq <= log.last_seq:
            purged = log.purge(None, upto_seq)
        else:
            purged = 0
            for gone in purge.slices(log, filter_subject, upto_seq or log.last_seq + 1, keep):
                purged += gone
                yield purge.SLICE_WORK
                self._check_purge()
        for consumer in list(self.consumers.values()):
            if not consumer.closed:
                consumer.purged()
                yield purge.CONSUMER_WORK + purge.PENDING_WORK * consumer.state.num_pending
        return purged

    def _check_purge(self) -> None:
        if self.config.sealed:
            raise codes.STREAM_SEALED.exception()
        if self.config.deny_purge:
            raise codes.STREAM_PURGE_FAILED.exception(err="stream purge not permitted")

    def delete_message(self, seq: int, *, erase: bool) -> None:
        """Removes one message; erase: also overwrites its bytes.

        Raises JetStreamApiError: 10109 when sealed, 10057 when deleting is denied, 10043 when it does not
        exist.
        """
        if self.config.sealed:
            raise codes.STREAM_SEALED.exception()
        if self.config.deny_delete:
            raise codes.STREAM_MSG_DELETE_FAILED.exception(err="message delete not permitted")
        if seq < 1 or not self.log.remove(seq, erase):
            raise codes.SEQUENCE_NOT_FOUND.exception(seq=seq)

    def state(self, *, deleted: bool = False) -> StreamState:
        """The state for responses. deleted: also list removed sequences (the first 100,000)."""
        log = self.log
        empty = not log.messages
        return StreamState(
            messages=log.messages,
            bytes=log.bytes,
            first_seq=0 if empty and not log.last_seq and not self.config.first_seq else log.first_seq,
            first_ts=format_time_or_zero(0 if empty else log.first_ts),
            last_seq=log.last_seq,
            last_ts=format_time_or_zero(log.last_ts),
            num_subjects=log.num_subjects,
            num_deleted=log.num_deleted,
            deleted=log.deleted(DELETED_DETAILS_MAX) if deleted else [],
            consumer_count=len(self.consumers),
        )

    # --- time ----------------------------------------------------------------------------------

    def keep_rollups(self) -> None:
        """Records unfinished roll-ups in the store: after a crash, those of copies and schedules would not be
        repeated. The record stays until an update or other roll-ups replace it: finishing roll-ups twice is
        harmless. Raises StoreError."""
        self.store.save_meta(
            encode(StreamMeta(self.config, self.created, rollups=[*self.rollups.unfinished]))
        )

    def recover(self, now: int, rollups: list[Removal] | None = None) -> Generator[int, None, None]:
        """Rebuilds message ids, TTLs and schedules from the log after the store was opened. Yields work in
        the units of slices.py; the stream must not be used before it ends."""
        self.number_from_first()
        if rollups:
            self._finish_rollups(rollups)
        if not self.config.sealed:
            # A crash between a message and the tombstone of the one it replaced leaves both.
            yield from shrinking.enforce(self)
        yield from recover_ids(self.ids, self.log, now)
        yield from self._resume_sources(self.source_states)
        if self.config.allow_msg_ttl:
            yield from self.expiry.ttls.recover(self.log)
        if self.config.allow_msg_schedules:
            yield from self.schedules.recover()

    def _finish_rollups(self, rollups: list[Removal]) -> None:
        """Finishes roll-ups that a crash interrupted. A message that was lost replaces nothing, and the next
        one gets its sequence."""
        stored = [one for one in rollups if one.seq <= self.log.last_seq]
        for one in stored:
            self.log.purge(one.filter, one.end_seq)
        if len(stored) < len(rollups):
            self.store.save_meta(encode(StreamMeta(self.config, self.created)))

    def number_from_first(self) -> None:
        """Sets the first sequence of a stream without messages to the configured one."""
        if self.config.first_seq > 1 and self.log.last_seq == 0:
            self.log.set_first_seq(self.config.first_seq)

    def expire(self, now: int, work: int = sys.maxsize) -> int:
        """Expires message ids and messages, and stores scheduled messages.

        Each stops after `work` units (of slices.py), or little more; if anything may be left, the stream is
        due again at once. A crash in between is harmless: recovery expires the rest. Returns the work done.
        """
        done = self.ids.prune(now, work // ID_WORK + 1) * ID_WORK
        self.fast.expire(now)
        self.atomic.expire(now)
        if self.config.sealed:
            return done
        self._now = now
        done += self.expiry.run(self.config.max_age, now, work - done)
        done += self._run_schedules(now, work - done)
        self.is_behind = done >= work
        return done

    def _run_schedules(self, now: int, work: int) -> int:
        """Stores messages of due schedules; returns the work done."""
        if self.refuse_all is not None or self.durability.failure is not None:
            self.schedules.postpone(now + RETRY_NS)
            return 0
        ts = max(now, self.log.last_ts)
        made = self.schedules.take_due(now, max(0, work) // SCHEDULE_WORK + 1)
        # Schedules, and messages that theirs replace, were acked: on a full disk they stay until the
        # replacements are written. Expired messages are removed regardless, which frees space.
        self.log.begin_storing()
        try:
            for produced in made:
                self._store_scheduled(produced, ts)
        finally:
            self.log.end_storing()
        return len(made) * SCHEDULE_WORK

    def _store_scheduled(self, produced: ScheduledMessage, ts: int) -> None:
        mapper = self.sink.mapper
        subject = mapper.map(produced.subject) if mapper is not None else produced.subject
        ttl_ns, header = publish_checks.own_ttl(self, produced.header)
        decision = publish_checks.Decision(
            header,
            ttl_ns=ttl_ns,
            rollup=publish_checks.ROLLUP_SUBJECT if headers.value_of(header, headers.ROLLUP) else "",
            purged_schedule=b"" if produced.next_due else produced.scheduler,
        )
        self.store_decided(subject, decision, produced.payload, ts)

    def _leave_marker(self, subject: bytes) -> None:
        """Stores a delete marker for a subject whose last message expired.

        A stream with discard policy new discards the marker when it does not fit: a marker can be larger than
        the message, and max_bytes is a hard limit for its owner.
        """
        if not self.is_wanted(subject):
            return
        ttl_ns = self.config.subject_delete_marker_ttl
        header = ttl.marker_header(ttl_ns)
        try:
            publish_checks.check_room(self, subject, header, 0)
        except JetStreamApiError:
            return
        ts = max(self._now, self.log.last_ts)
        seq = self._store(subject, header, b"", ts)
        self.expiry.ttls.add(seq, ts, ttl_ns)
        self.ids.note_last(b"")

    def next_deadline(self) -> int | None:
        """When (ns) `expire` is due, or None."""
        ids, fast, atomic = self.ids.next_deadline(), self.fast.next_deadline(), self.atomic.next_deadline()
        if self.config.sealed:
            return earliest(ids, fast, atomic)
        if self.is_behind:
            return self._now  # not earlier, so that others that are due run first
        expiry = self.expiry.next_deadline(self.config.max_age)
        return earliest(ids, fast, atomic, expiry, self.schedules.next_deadline())

    # --- wiring --------------------------------------------------------------------------------

    def subscribe(self, index: SubscriptionIndex) -> None:
        """Subscribes to the stream's subjects, also after an update changed them."""
        wanted = dict.fromkeys(subject.encode() for subject in self.config.subjects)
        present = {subscription.subject: subscription for subscription in self._subscriptions}
        for subject, subscription in present.items():
            if subject not in wanted:
                index.remove(subscription)
        for subject in wanted:
            if subject not in present:
                present[subject] = SinkSubscription(self.sink, subject)
                index.insert(present[subject])
        self._subscriptions = [present[subject] for subject in wanted]

    def serve_consumers(self, make: Callable[[str], ConsumerSubscriptions]) -> ConsumerSubscriptions:
        """The subscriptions for its consumers, which `make` constructs from the stream's name for the first
        one."""
        if self.consumer_subscriptions is None:
            self.consumer_subscriptions = make(self.name)
        return self.consumer_subscriptions

    def is_wanted(self, subject: bytes) -> bool:
        """Whether a message of this subject is stored. An interest stream needs a matching consumer."""
        return self.limits.interest_state is None or self.limits.interest_state.wants(subject)

    def is_to_be_reviewed(self, *, held_back: bool) -> bool:
        """Whether messages may remain that only a removed consumer needed.

        held_back: it may have blocked messages that others acked, as the consumer of a mirror or source does,
        and one that is offline. Otherwise a work queue needs no review: unacked messages stay for the next
        consumer.
        """
        return self.interest_state is not None and (held_back or not self.interest_state.work_queue)

    def _configure(self) -> None:
        self._choose_needs()
        self._choose_sources()
        self.store.set_compression(self.config.compression is Compression.S2)
        self.limits = _plain_limits(self.config, self.interest_state)
        if not self.config.allow_batched:
            self.fast.clear()
        self.sink.map_subjects(make_mapper(self.config.subject_transform, self.below))
        republish = self.config.republish
        self.republisher.configure(
            make_republish_mapper(republish, self.below), republish is not None and republish.headers_only
        )
        self.expiry.configure(self._leave_marker if self.config.subject_delete_marker_ttl else None)

    def _choose_sources(self) -> None:
        """Creates the source states of the configuration. Origins that remain keep their position."""
        mirror, sources = self.config.mirror, self.config.sources
        if mirror is not None:
            self.source_states = self.source_states or [SourceState(self, mirror, is_mirror=True)]
            return
        present = {
            source_state.index_name: source_state
            for source_state in self.source_states
            if not source_state.is_mirror
        }
        self.source_states = [SourceState(self, source, is_mirror=False) for source in sources]
        for at, source_state in enumerate(self.source_states):
            if source_state.index_name in present:
                self.source_states[at] = present[source_state.index_name]
                self.source_states[at].reconfigure(source_state.source)
        if sources and self.positions is None:
            self.positions = SourcePositions(self.store)

    def _resume_sources(self, source_states: list[SourceState]) -> Generator[int, None, None]:
        """Restores the positions of sources that existed before."""
        if self.positions is not None and source_states:
            yield from self.positions.recover(source_states, self.log)

    def _choose_needs(self) -> None:
        if self.config.retention is RetentionPolicy.LIMITS:
            if self.interest_state is not None:
                for consumer in self.consumers.values():
                    self.interest_state.remove(consumer.pump)
            self.interest_state = None
        elif self.interest_state is None:
            self.interest_state = InterestState(
                self.log, work_queue=self.config.retention is RetentionPolicy.WORKQUEUE
            )
            self.interest_state.keep_all(bool(self.offline))
            for consumer in self.consumers.values():
                self.interest_state.add(consumer.pump, consumer.since)

    def unsubscribe(self, index: SubscriptionIndex) -> None:
        """Unsubscribes from the stream's subjects."""
        for subscription in self._subscriptions:
            index.remove(subscription)
        self._subscriptions.clear()


def _ack_prefix(name: str, domain: str) -> bytes:
    head = encode({"stream": name, "domain": domain} if domain else {"stream": name})
    return head[:-1] + b',"seq":'


def _plain_limits(config: ApiStreamConfig, interest_state: InterestState | None) -> PlainLimits:
    return PlainLimits(
        msgs_max=config.max_msgs,
        bytes_max=config.max_bytes,
        msg_size_max=config.max_msg_size,
        per_subject_max=config.max_msgs_per_subject,
        discard_new=config.discard is DiscardPolicy.NEW,
        per_message=config.sealed or config.discard_new_per_subject or config.allow_msg_counter,
        no_ack=config.no_ack,
        interest_state=interest_state if config.retention is RetentionPolicy.INTEREST else None,
        stream=config.name.encode(),
    )
