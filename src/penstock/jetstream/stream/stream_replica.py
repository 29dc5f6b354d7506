"""A stream: a state machine that only commands change.

`apply(command, now)` applies a batch of publishes or another command (commands.py), depending on the stream's
state, the command and `now` alone; applying.py has what each kind does. `update`, `purge`, `delete_message`
and `expire` make commands. The ingest kernel stores plain publishes; those whose headers change their
behaviour are decided in `publish_checks.py`. What commands cause outside of the stream is collected in
`effects`, which only the owner of the stream releases: a replica that follows drops it.

Ordering contract, kept by the engine: apply, then write, then release the effects. A pub ack may leave only
after its record is written; in a group, after a majority of the servers has it.

Rejected: a Python object per ack; assigning sequences before the checks (a rejected publish would leave a
gap).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.errors import JetStreamApiError
from penstock.jetstream import commands
from penstock.jetstream.commands import (
    Admit,
    Command,
    CommandSink,
    DeleteMessage,
    Expire,
    LimitBatches,
    Resume,
    StandbyStates,
    Update,
)
from penstock.jetstream.durability import Durability
from penstock.jetstream.group_commands import PART_BYTES, GroupCommands, parts_of
from penstock.jetstream.inflight import BatchContext
from penstock.jetstream.limits import (
    ATOMIC_INFLIGHT_PER_STREAM,
    DELETED_DETAILS_MAX,
    FAST_INFLIGHT_PER_STREAM,
    EngineConfig,
)
from penstock.jetstream.stream import publish_checks, retention, shrinking
from penstock.jetstream.stream.applying import APPLIERS, check_delete
from penstock.jetstream.stream.atomic_batches import AtomicBatches, bytes_of
from penstock.jetstream.stream.effects import StreamEffects
from penstock.jetstream.stream.fast_batches import FastIngestBatches, FastOutcome, is_fast
from penstock.jetstream.stream.message_schedules import MessageSchedules
from penstock.jetstream.stream.rollups import Allowance, Removal, Rollups
from penstock.jetstream.stream.staged import Checked, StagedMessage
from penstock.jetstream.stream.stream_sources import StreamSources
from penstock.jetstream.stream.stream_timers import StreamTimers
from penstock.jetstream.stream.subject_transforms import make_mapper, make_republish_mapper
from penstock.kernels.ingest.batches import StagedBatch, check_staged, store_staged
from penstock.kernels.ingest.ingest import IngestBatch, StreamSink, apply_plain
from penstock.kernels.ingest.publish_headers import MessageIds
from penstock.kernels.ingest.storing import (
    InterestState,
    PlainLimits,
    SettledRuns,
    enforce_part,
    store_one,
)
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
# Before the first LimitBatches: as an engine alone on its server with the default configuration.
BATCH_LIMITS = LimitBatches(
    atomic_end=ATOMIC_INFLIGHT_PER_STREAM,
    staged_end=EngineConfig().batch_bytes_max,
    fast_end=FAST_INFLIGHT_PER_STREAM,
    messages_max=EngineConfig().batch_messages_max,
    timeout_ns=EngineConfig().batch_timeout_ns,
)
RESUME = Resume()
SEQ_END = 2**48  # sequences of records are lower


def _no_chance(n: int) -> int:
    return 0


class StreamMeta(msgspec.Struct, frozen=True):
    """What the store holds about a stream besides its messages.

    restoring: a restore into it is incomplete. replicated: its group has its commands, and opens it.
    """

    config: ApiStreamConfig
    created: int  # ns
    restoring: bool = False
    rollups: list[Removal] = []  # to be finished by recovery, if their messages are there
    replicated: bool = False


class StreamReplica:
    """A stream and the sink of its subjects.

    Args:
        store: holds the messages; its log is the stream's state.
        created: ns.
        domain: for the pub acks.
        dirty: marked when publishes wait for apply().
        full: marked when publishes were rejected (overflow.py).
        api_level: publishes that require a higher one are rejected.
        below: below(n) gives a random number from 0 to n - 1, for subject transforms that choose at random;
            called before a publish becomes part of a command.
        batches: limits shared with other streams' batches.
        commands: takes every command before it is applied; None: none is encoded.
        standby: the consumers as the commands have them; None: only this server has the stream.
        group: takes commands to the other replicas; None: there are none, and apply() applies at once.

    Attributes:
        now: ns, of the last command. It never runs backwards, whatever the clock does.
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
        commands: CommandSink | None = None,
        standby: StandbyStates | None = None,
        group: GroupCommands | None = None,
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
        self.retains_all = False  # see commands.RetainMessages
        self.ids = MessageIds(config.duplicate_window)
        self.expiry = retention.Expiry(self.log)
        self.schedules = MessageSchedules(self.log)
        batches = batches or BatchContext()
        self.atomic = AtomicBatches(self, batches)
        self.rollups = Rollups(self, allowance, is_recorded=group is None)
        self.sink = StreamSink(dirty, self, full)
        self.ack_prefix = _ack_prefix(config.name, domain)
        self.durability = Durability(self.log)
        self.effects = StreamEffects(config.name, self.ack_prefix, self.durability, batches.abandoned)
        self.acks = self.effects.acks
        self.republisher = self.effects.republisher
        self.fast = FastIngestBatches(self, batches)
        self.below = below
        self.sources = StreamSources(self)
        self.refuse_all: ApiError | None = None  # see commands.Admit
        self.bytes_end: int | None = None
        self.batch_limits = BATCH_LIMITS  # see commands.LimitBatches
        self.rest: IngestBatch | None = None  # of the batch whose roll-up is not done
        self.next_ids: dict[int, MessageIds] = {}  # see commands.RecoverIds
        self.now = created
        self._commands = commands
        self.standby = standby
        self.group = group
        self.timers = StreamTimers(self)
        self._configure()
        self._subscriptions: list[SinkSubscription] = []

    @property
    def identity(self) -> str:
        """Identifies this incarnation of the stream: differs after it is deleted and created again."""
        return short_hash(format_time(self.created))

    # --- publishes -----------------------------------------------------------------------------

    def take_waiting(self) -> Iterator[tuple[bytes, bytes, bytes, bytes]]:
        """Removes the publishes that wait to be applied, or to be submitted: (subject, reply, header,
        payload)."""
        rest = None
        if self.group is None:  # else it is committed
            rest, self.rest = self.rest, None
        while rest is not None and (publish := rest.take_one()) is not None:
            yield publish
        batch = self.sink.take()  # not before: it reuses the other batch
        while (publish := batch.take_one()) is not None:
            yield publish

    def apply(self, command: Command, now: int) -> Any:
        """Applies one command at `now` (ns) and returns its result. Raises JetStreamApiError when the command
        is refused, on every replica alike.

        In a group, the command is submitted, and applied when it is committed; the result is 0. See change().
        """
        if self.group is not None:
            return self.group.submit(command, now)
        if now > self.now:  # noqa: PLR1730  # a call of max() for every tick
            self.now = now
        if self._commands is not None:
            self._commands.record(self, commands.encode(command, self.now))
        return _APPLIERS[type(command)](self, command, self.now)

    def change(self, command: Command, now: int) -> Generator[int, None, Any]:
        """apply() for a caller that needs the result: in a group, yields work until the command is applied.
        Raises LeadershipLostError too: it may be applied or not."""
        if self.group is None:
            return self.apply(command, now)
        return (yield from self.group.change(command, now))

    def apply_committed(self, command: Command, now: int) -> Any:
        """Applies a command that the group committed. Raises JetStreamApiError like apply()."""
        self.now = max(self.now, now)
        if type(command) is not IngestBatch:
            return _APPLIERS[type(command)](self, command, self.now)
        self.log.begin_storing()
        try:
            self.store_publishes(command, self.now)
        finally:
            self.log.end_storing()
        return None

    def store_committed_rest(self) -> None:
        """The same for what is left of a batch in whose middle a roll-up stopped."""
        self.log.begin_storing()
        try:
            self.store_rest(self.now)
        finally:
            self.log.end_storing()

    def restore(
        self,
        ids: MessageIds,
        now: int,
        refuse_all: ApiError | None,
        bytes_end: int | None,
        batch_limits: LimitBatches,
    ) -> None:
        """Takes over what another replica's commands made of these; the messages are there."""
        self.ids = ids
        self.now = now
        self.limit_admission(refuse_all, bytes_end)
        self.limit_batches(batch_limits)

    @property
    def is_recorded(self) -> bool:
        """Whether its commands are recorded."""
        return self._commands is not None or self.group is not None

    def apply_pending(self, now: int) -> None:
        """Applies the publishes and copies that arrived since the last call; in a group, submits them."""
        if self.group is not None:
            if not self.group.is_full:
                batch = self.sink.take()  # also an empty one: the sink can be marked again then
                if batch.size > PART_BYTES:
                    for part in parts_of(batch, self._refuse_large):
                        self.group.submit(part, now)
                elif batch.size:
                    self.group.submit(batch, now)
                for source_state in self.sources.states:
                    source_state.submit(self.group, now)
            return
        self.log.begin_storing()
        try:
            if self.rest is not None:
                self.apply(RESUME, now)
                if self.rollups.unfinished:
                    return
            self.apply(self.sink.take(), now)
            for source_state in self.sources.states:
                source_state.apply(now)
        finally:
            self.log.end_storing()

    def _refuse_large(self, reply: bytes) -> None:
        if reply and not self.config.no_ack:
            self.acks.add(reply, self.refusal(codes.STREAM_MESSAGE_EXCEEDS_MAXIMUM))

    @property
    def has_input(self) -> bool:
        """Whether publishes or copies wait to be applied, or submitted."""
        return bool(self.sink.batch.size or any(one.may_submit for one in self.sources.states))

    def store_publishes(self, batch: IngestBatch, now: int) -> None:
        """Stores a batch of publishes at `now` (ns) and collects the responses; stops in the middle behind a
        roll-up that is not done."""
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
                self.rest = batch
                return
        if self.fast.batches.has_due:
            self.fast.acknowledge(batch.size)

    def store_rest(self, now: int) -> None:
        """Stores what is left of the batch in whose middle a roll-up stopped."""
        rest, self.rest = self.rest, None
        if rest is not None:
            self.store_publishes(rest, now)

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
        """Sets what the account admits from now on. refuse_all: the error for every publish. bytes_end: the
        size up to which the stream may grow; None: no limit."""
        self.apply(Admit(refuse_all, bytes_end), self.now)

    def limit_admission(self, refuse_all: ApiError | None, bytes_end: int | None) -> None:
        """The effect of the command `Admit`: refuses all publishes, or those of which no room is left."""
        self.refuse_all, self.bytes_end = refuse_all, bytes_end

    def limit_batches(self, limits: LimitBatches) -> None:
        """Sets the limits of open batches."""
        self.batch_limits = limits
        self.atomic.total.limit(limits.staged_end)

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
        seq = self.store_unchecked(subject, decision.header, payload, ts) if wanted else self.log.skip(ts)
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

    def store_unchecked(self, subject: bytes, header: bytes, payload: bytes, ts: int) -> int:
        """Stores a message, enforces the limits, and returns its sequence."""
        limits = self.limits
        if self.rollups.unfinished:
            self.rollups.stored_unlimited()
            limits = NO_LIMITS
        return store_one(self.log, limits, subject, header, payload, ts, self.republisher)

    def write(self) -> None:
        """Hands new records to the operating system. Raises StoreWriteError."""
        self.store.write()
        sources = self.sources
        if sources.positions is not None:
            sources.positions.note(sources.states, self.log)

    def write_failed(self, reason: str) -> None:
        """Handles a failed write: publishes that wait for an ack get error 10077 with the reason.

        What was applied stays in the log and is written once writing works again, like a publish whose ack
        was lost. Until then every publish is rejected.
        """
        failure = codes.STREAM_STORE_FAILED.format(err=reason)
        self.durability.failed(failure)
        # Schedules that are due wait too: only commands tell a replica that the disk of another one is full.
        self.admit(failure, self.bytes_end)
        text = self.refusal(failure)
        for reply in self.effects.take_replies():
            self.acks.add(reply, text)

    def refusal(self, error: ApiError) -> bytes:
        """The response to a rejected publish."""
        return encode(PubAck(error=error, stream=self.name))

    # --- requests ------------------------------------------------------------------------------

    def update(self, config: ApiStreamConfig, now: int, ids: int = 0) -> None:
        """Changes to a (checked) configuration; shrinking.py enforces limits that it lowers.

        ids: number of the prepared ids that replace the present ones. Raises StoreError when the
        configuration cannot be stored; the present one then remains.
        """
        # First: a command that was applied cannot be refused by the disk any more.
        positions = self.sources.positions_before(config)
        if shrinking.enforced(config) != shrinking.enforced(self.config):
            # Before they are stored: a start enforces them. If a crash could undo earlier removals, a message
            # that expired would come back, count as one of its subject, and make an older one go.
            self.write()
            self.store.sync()
        self.save_meta(config)
        self.apply(Update(config, ids, positions), now)

    def configure(
        self,
        config: ApiStreamConfig,
        now: int,
        positions: dict[str, tuple[int, str]],
        ids: MessageIds | None = None,
    ) -> None:
        """Changes to a configuration that is stored. positions: of added sources. ids: replace the present
        ones."""
        was_mirror, sources_before = self.config.mirror is not None, self.sources.states
        self.config = config
        self._configure()
        self.sources.continue_at(positions, sources_before)
        if ids is not None and was_mirror:  # else another update came first
            self.ids = ids
        self.ids.resize(config.duplicate_window, now)
        if not config.allow_atomic:
            self.atomic.drop()

    def check_purge(self) -> None:
        """Raises JetStreamApiError 10109 when sealed, 10110 when purging is denied."""
        if self.config.sealed:
            raise codes.STREAM_SEALED.exception()
        if self.config.deny_purge:
            raise codes.STREAM_PURGE_FAILED.exception(err="stream purge not permitted")

    def delete_message(self, seq: int, *, erase: bool) -> None:
        """Removes one message; erase: also overwrites its bytes.

        Raises JetStreamApiError: 10109 when sealed, 10057 when deleting is denied, 10043 when it does not
        exist.
        """
        if not 0 < seq < SEQ_END:
            check_delete(self)
            raise codes.SEQUENCE_NOT_FOUND.exception(seq=seq)
        self.apply(DeleteMessage(seq, erase), self.now)

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

    def begin_rollups(self) -> None:
        """Blocks the stream until its roll-ups are done, and records them for a crash that would undo
        some: those of copies and schedules are not repeated. The record stays until an update or other
        roll-ups replace it: to finish roll-ups twice is harmless. Raises StoreError, after blocking."""
        self.durability.rollup_started()
        self.save_meta(self.config)

    def save_meta(self, config: ApiStreamConfig) -> None:
        """Stores the configuration, with the unfinished roll-ups. Raises StoreError."""
        self.store.save_meta(encode(self._meta(config)))

    def _meta(self, config: ApiStreamConfig) -> StreamMeta:
        is_replicated = self.group is not None
        return StreamMeta(config, self.created, rollups=self.rollups.record(), replicated=is_replicated)

    def enforce_limits(self, at: int, work: int) -> tuple[int, int]:
        """Removes what is above the limits, from place `at` on: (work done, where to continue; 0: end)."""
        return enforce_part(self.log, self.limits, at, work)

    def number_from_first(self) -> None:
        """Sets the first sequence of a stream without messages to the configured one."""
        if self.config.first_seq > 1 and self.log.last_seq == 0:
            self.log.set_first_seq(self.config.first_seq)

    def expire(self, now: int, work: int = sys.maxsize) -> int:
        """Expires message ids and messages, and stores scheduled messages.

        Each stops after `work` units (of slices.py), or little more; if anything may be left, the stream is
        due again at once. A crash in between is harmless: recovery expires the rest. Returns the work done.
        """
        self.timers.asked(now)
        if self.group is not None:
            return self.group.submit_expire(Expire(work), now)
        done: int = self.apply(Expire(work), now)
        return done

    # --- subscriptions ---------------------------------------------------------------------------

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

    def retain_messages(self, retained: bool) -> None:
        """While retained, stores every message and removes none by interest: a consumer is missing."""
        self.retains_all = retained
        if self.interest_state is not None:
            self.interest_state.keep_all(retained)

    def remove_settled(self, runs: SettledRuns) -> int:
        """Removes messages that no consumer needs any more; returns how many."""
        gone: int = self.apply(runs, self.now)
        return gone

    def is_to_be_reviewed(self, *, held_back: bool) -> bool:
        """Whether messages may remain that only a removed consumer needed.

        held_back: it may have blocked messages that others acked, as the consumer of a mirror or source does,
        and one that is offline. Otherwise a work queue needs no review: unacked messages stay for the next
        consumer.
        """
        return self.interest_state is not None and (held_back or not self.interest_state.work_queue)

    def _configure(self) -> None:
        self.takes_batches = self.config.allow_atomic or self.config.allow_batched
        self._choose_needs()
        self.sources.configure()
        self.store.set_compression(self.config.compression is Compression.S2)
        self.limits = _plain_limits(self.config, self.interest_state)
        if not self.config.allow_batched:
            self.fast.clear()
        self.sink.map_subjects(make_mapper(self.config.subject_transform, self.below))
        republish = self.config.republish
        self.republisher.configure(
            make_republish_mapper(republish, self.below), republish is not None and republish.headers_only
        )
        self.timers.configure()

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
            self.interest_state.keep_all(self.retains_all)
            for consumer in self.consumers.values():
                self.interest_state.add(consumer.pump, consumer.since)
            for name, filters in self.standby.filters().items() if self.standby is not None else ():
                self.interest_state.expect(name, filters)

    def unsubscribe(self, index: SubscriptionIndex) -> None:
        """Unsubscribes from the stream's subjects."""
        for subscription in self._subscriptions:
            index.remove(subscription)
        self._subscriptions.clear()

    def free_messages(self) -> None:
        """Frees the messages of a deleted stream. It is part of a cycle of objects that stays until a garbage
        collection finds it, and those count objects, not bytes: a few streams kept hundreds of MiB."""
        self.log.purge()


# Publishes have no function of their own in between: a tick often applies a single one.
_APPLIERS: dict[type[Any], Callable[[StreamReplica, Any, int], Any]] = {
    **APPLIERS,
    IngestBatch: StreamReplica.store_publishes,
}


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
