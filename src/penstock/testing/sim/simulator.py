"""The simulated machine: engine, store, disk and clock, and the clients' side.

Pub acks, confirmations and deliveries count as seen by clients once they are routed; responses leave with the
flush at the end of the tick, as their contract says. A crash can happen at any disk operation and between the
steps of a tick.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from penstock.jetstream.api import ApiService
from penstock.jetstream.commit import Commit, CommitPorts
from penstock.jetstream.engine import JetStreamEngine
from penstock.jetstream.limits import EngineConfig
from penstock.jetstream.stream.stream_replica import StreamReplica
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import ServiceSink, publish
from penstock.kernels.wire.sinks import Sink, SinkSubscription
from penstock.protocol import headers
from penstock.protocol.acks import parse_reply
from penstock.protocol.api import RetentionPolicy, encode
from penstock.store.file import FileStore
from penstock.store.keys import StoreKey
from penstock.testing.sim import Violation, check_committed, require
from penstock.testing.sim.atomic_checks import MESSAGES_MAX
from penstock.testing.sim.batch_publishers import BatchBook
from penstock.testing.sim.consumer_checks import ConsumerRecord
from penstock.testing.sim.copy_checks import Copies
from penstock.testing.sim.counter_checks import Counters
from penstock.testing.sim.dead_letter_checks import LETTERS, DeadLetterChecks
from penstock.testing.sim.erasure_checks import Erased
from penstock.testing.sim.feature_checks import Feature, feature
from penstock.testing.sim.logtap import LogTap
from penstock.testing.sim.observed_commit import ObservedCommit
from penstock.testing.sim.opened_streams import OpenedStreams
from penstock.testing.sim.oracle import Incarnation, Origins
from penstock.testing.sim.pin_checks import Pins, has_pins
from penstock.testing.sim.quorum_commit import QuorumCommit
from penstock.testing.sim.recovery_checks import check_recovery, dump, note_holes
from penstock.testing.sim.removal_checks import Removals
from penstock.testing.sim.replicas import Replicas
from penstock.testing.sim.retention_model import note_kept, note_settled
from penstock.testing.sim.schedule_checks import Schedules
from penstock.testing.sim.sim_disk import Killed, SimDisk
from penstock.testing.sim.sim_executor import SimExecutor
from penstock.testing.sim.source_model import TARGETS
from penstock.testing.sim.stream_checks import (
    SimPublish,
    SimSnapshot,
    StreamRecord,
    is_produced,
    tag_in,
)
from penstock.testing.sim.transform_checks import PREFIX, Republished

START_NS = 1_700_000_000_000_000_000
SECOND_NS = 1_000_000_000
RETRY_NS = 1_000_000_000
FEATURES: tuple[type[Feature], ...] = (Incarnation, Republished, Counters, Schedules)


class RecoveryKill(NamedTuple):
    """When a recovery is killed: at an operation on the disk or, `at_sync`, at a sync of a file, counted from
    its start. loses_power: by a power loss."""

    at: int
    at_sync: bool = False
    loses_power: bool = False


class Simulator:
    """One simulated server and its clients.

    random: for disk failures. say: takes the lines of the event log. always: `sync: always`. lazy: background
    work takes time. key: the store's encryption key. has_copies: some streams are mirrors or have sources.
    by_quorum: commits take the answer of a majority. has_groups: some consumers have pinned clients.
    """

    def __init__(
        self,
        random: Random,
        say: Callable[[str], None],
        *,
        always: bool,
        block_size: int,
        lazy: bool = False,
        key: StoreKey | None = None,
        has_copies: bool = False,
        slices_rollups: bool = False,
        by_quorum: bool = False,
        has_groups: bool = False,
    ) -> None:
        self.say = say
        self.always = always
        self.lazy = lazy
        self._pace = random.choice([0.05, 0.5])  # of background work
        self.background = SimExecutor(self._on_finished)
        self._key = key
        self.has_copies = has_copies
        self.has_groups = has_groups
        self._slices_rollups = slices_rollups
        self._by_quorum = by_quorum
        self.minority_rate = 0.03  # the share of commits that fail, where they take the answer of a majority
        self._is_up = False  # the server runs, and is not recovering
        self._is_open = False  # the tick has not ended: syncs are in flight
        self._syncs: list[tuple[StreamRecord, SimSnapshot]] = []  # what the syncs in flight make durable
        self._sync_faults = 0
        self._failed_syncs: set[str] = set()  # streams whose last periodic sync failed
        self.now = START_NS
        self.disk = SimDisk(random)
        self.streams: dict[str, StreamRecord] = {}
        self._former: dict[tuple[str, str], set[int]] = {}  # tags of deleted streams
        self.consumers: dict[tuple[str, str], ConsumerRecord] = {}
        self.publishes: dict[int, SimPublish] = {}  # those that wait for an ack
        # Those sent while writes failed: a request may apply them, and then write the stream again.
        self._sent_in_fault: set[int] = set()
        self.batches = BatchBook(self._committed)
        self.dead_letters = DeadLetterChecks()
        self.removals = Removals()
        self.erased = Erased()
        self.pins = Pins()
        self.origins = Origins()
        self.opened: dict[str, int] = {}  # last sequences of the streams that the last crash left
        self.in_flight: set[tuple[str, str]] = set()  # what requests of this tick create, delete or update
        self.indeterminate: set[str] = set()  # streams whose creation or deletion failed halfway
        self.half_updated: set[str] = set()  # streams whose update did: it may apply after a restart
        self.flipped = False  # a bit was flipped since the last recovery
        self.damaged = False  # ... or before: anything may be lost
        self.kill_phase: str | None = None
        self.crashes = self.ticks = self.acks = self.deliveries = 0
        self.commands = self.power_losses = 0
        self.store: FileStore
        self.engine: JetStreamEngine
        self.index: SubscriptionIndex
        self._block_size = block_size
        self._tags = itertools.count(1)
        self._ids = itertools.count(1)
        self._answers: dict[bytes, bytes] = {}
        self._read: list[tuple[bytes, bytes]] = []  # headers and payloads that a direct get returned
        self._confirmations: dict[int, tuple[ConsumerRecord, list[int]]] = {}
        self._ended: set[bytes] = set()  # inboxes of pull requests that got their last status
        self._was_faulty = False
        self._awake = False  # the server requested another tick
        self._bound: dict[str, SinkSubscription] = {}
        self.log_tap = LogTap(self)
        self.replicas = Replicas(self)
        self._boot()

    # --- life

    def _boot(self) -> None:
        self.index = SubscriptionIndex()
        self.index.insert(SinkSubscription(ServiceSink(self._on_pub_ack), b"_IN.p.*"))
        self.index.insert(SinkSubscription(ServiceSink(self._on_answer), b"_IN.a.*"))
        self.index.insert(SinkSubscription(ServiceSink(self._on_confirmation), b"_IN.c.*"))
        self.index.insert(SinkSubscription(ServiceSink(self._on_message), b"_IN.d.>"))
        self.index.insert(SinkSubscription(ServiceSink(self._on_read), b"_IN.r.*"))
        self.index.insert(SinkSubscription(ServiceSink(self.batches.on_atomic_answer), b"_IN.b.*"))
        self.index.insert(SinkSubscription(ServiceSink(self.batches.on_fast_answer), b"_IN.f.>"))
        self.index.insert(SinkSubscription(ServiceSink(self._on_republished), f"{PREFIX}.>".encode()))
        self._is_up = False
        self.replicas.restart()
        self._answers.clear()
        self._confirmations.clear()
        self._bound.clear()
        self.pins.crashed()
        self.publishes.clear()
        self._sent_in_fault.clear()
        self.in_flight.clear()
        self.background = SimExecutor(self._on_finished)
        self._syncs.clear()
        self._is_open = False
        with self.log_tap:
            self.store = FileStore(
                "/sim", block_size=self._block_size, disk=self.disk, key=self._key,
                executor=self.background if self.lazy else None,
            )  # fmt: skip
            self.engine = JetStreamEngine(
                self.index,
                OpenedStreams(self.store.account("$G"), self.opened),
                api=ApiService,
                config=EngineConfig(
                    server_name="sim", version="2.14.0", sync_always=self.always,
                    sync_interval_ns=20 * SECOND_NS, write_retry_ns=RETRY_NS, journal_min_bytes=300,
                    batch_messages_max=MESSAGES_MAX,
                ),
                clock=lambda: self.now,
                new_id=lambda: f"id{next(self._ids):08d}",
                wake=self._wake, commands=self.replicas, commit=self._new_commit,
            )  # fmt: skip
            if self._slices_rollups:
                self.engine.allowance.most = 1
            self.engine.recover(self.now)
        self._is_up = True

    def _new_commit(self, config: EngineConfig, ports: CommitPorts) -> Commit:
        failed = self._failed_syncs.add
        if not self._by_quorum:
            return ObservedCommit(config, ports, sync_failed=failed)
        return QuorumCommit(
            config, ports, sync_failed=failed, executor=self.background, fails=self._loses_majority
        )

    def _loses_majority(self) -> bool:
        is_lost = self.disk.random.random() < self.minority_rate
        self.disk.faults += is_lost
        return is_lost

    def _committed(self, name: str) -> int | None:
        """The last sequence of a stream that a majority has; None where commits do not take one."""
        commit, stream = self.engine.commit, self.engine.streams.get(name)
        return commit.committed.get(stream) if isinstance(commit, QuorumCommit) and stream else None

    def crash(self, *, power: bool) -> None:
        """Kills the process, or cuts the power, now."""
        self.crashes += 1
        self.say(f"{'POWER LOSS' if power else 'KILL'} after {self.disk.ops} operations on the disk")
        self.kill_phase = None
        self.opened.clear()
        self.batches.died(self.now)
        for record in self.streams.values():
            for one in record.features:
                one.crashed()
        if power:
            self._lose_power()
        else:
            self.disk.restart()

    def _lose_power(self) -> None:
        self.power_losses += 1
        self.disk.lose_power()
        note_holes(self)
        self.erased.lost_power(self)

    def recover(self, *, power: bool, twice: bool, kill: RecoveryKill | None = None) -> None:
        """Restarts the server and checks what it found.

        twice: restarts again, which must find the same. kill: the recovery itself is killed first.
        """
        if kill is not None:
            if kill.at_sync:
                self.disk.syncs_left = kill.at
            else:
                self.disk.kill_at = self.disk.ops + kill.at
            in_flight = set(self.in_flight)
            try:
                self._boot()
            except Killed:
                self.say(f"killed in recovery, at operation {self.disk.ops}")
            self.in_flight = in_flight
            if kill.loses_power:
                self.say("POWER LOSS in recovery")
                self._lose_power()
                power = True
            else:
                self.disk.restart()
        in_flight = set(self.in_flight)
        self._boot()
        first = dump(self) if twice else None
        check_recovery(self, in_flight, power=power)
        if twice:
            self.disk.restart()
            self._boot()
            second = dump(self)
            if first != second:
                raise Violation("idempotent recovery", f"first {first}, then {second}")
            self.bind_all()
        self.tick(whole=True)

    def bind_all(self) -> None:
        """Subscribes to all deliver subjects of push consumers."""
        for known in self.consumers.values():
            if known.push:
                self.bind(known.push)

    def meet_unknown(self, stream: str, name: str) -> ConsumerRecord:
        """Creates the record of a consumer from the server's state."""
        consumer = self.engine.streams[stream].consumers[name]
        config = json.loads(encode(consumer.config))
        record = self.consumers[stream, name] = ConsumerRecord(stream, name, config, consumer.created)
        record.adopt(consumer)
        record.recovered = 0
        if not record.simple_start:
            record.starts_with_lasts(consumer.meta.resume_seq, self.streams[stream])
        return record

    def bind(self, subject: str) -> None:
        """Subscribes to a deliver subject."""
        if subject not in self._bound:
            self._bound[subject] = SinkSubscription(ServiceSink(self._on_message), subject.encode())
            self.index.insert(self._bound[subject])

    def unbind(self, subject: str) -> None:
        """Unsubscribes from a deliver subject."""
        if subject in self._bound:
            self.index.remove(self._bound.pop(subject))

    def configure(self, record: ConsumerRecord) -> None:
        """Handles a request in flight that may change the configuration."""
        stream = self.engine.streams.get(record.stream)
        consumer = stream.consumers.get(record.name) if stream is not None else None
        if consumer is not None:
            config = json.loads(encode(consumer.config))
            record.update(config, consumer, self.streams[record.stream])

    def forget(self, name: str) -> None:
        """Records that a stream is gone, with its consumers. If the disk kept files, a restart may find
        it."""
        record = self.streams.pop(name)
        self._former[name, record.identity] = record.tags
        for key in [key for key in self.consumers if key[0] == name]:
            del self.consumers[key]

    # --- the tick

    def tick(self, *, whole: bool = False) -> None:
        """Runs the end of a tick as the server does; the records observe it.

        While syncs are in flight or long work is done in slices, the tick spans several of the server's;
        clients may continue meanwhile, unless it is `whole`.
        """
        commit, deferrals = self.engine.commit, self.engine.deferrals
        if not self._is_open:
            self._was_faulty = False
        self._tick()
        while commit.in_flight or deferrals.ready or self.engine.slices or (self._is_open and self._awake):
            self._is_open = True
            if not whole and self.disk.random.random() < 0.25:
                return
            self._finish_work(1.0)
            if self._awake:
                self._tick()
        self._end_tick()
        self._is_open = False

    def _tick(self) -> None:
        self.ticks += 1
        engine = self.engine
        self._awake = False
        self._was_faulty = self.faulty()
        self._finish_work(0.5)
        self._was_faulty = self.faulty()  # a commit may have failed meanwhile
        note_kept(self, is_over=False)
        failed = self._failed_streams()
        with self.log_tap:
            engine.tick.apply(self.now)
            self._note_applied(failed)
            self._phase("apply")
            engine.tick.write()
            self.look()
            self._phase("write")
            engine.tick.acknowledge()
            self._phase("acknowledge")
            engine.tick.deliver(self.now)
            self._phase("deliver")
        self._finish_work(0.5)
        self._was_faulty = self.faulty()  # likewise; a request may write again before the next tick
        note_kept(self, is_over=True)

    def _finish_work(self, rate: float) -> None:
        """Delivers results of background work."""
        background, random = self.background, self.disk.random
        background.random = random
        with self.log_tap:
            while not background.is_idle and random.random() < rate:
                rate /= 2
                background.finish()
        if self._syncs and background.is_idle:
            if self._sync_faults == self.disk.faults:
                for record, picture in self._syncs:
                    if record.name not in self._failed_syncs:
                        record.was_synced(picture)
            self._syncs.clear()

    def _on_finished(self) -> None:
        """Called for a delivered result, maybe within a tick while a request waited for the disk: what became
        durable may be copied, and removed, in the same tick."""
        if self._is_up:
            note_kept(self, is_over=False)

    def _phase(self, phase: str) -> None:
        if self.lazy and self.disk.random.random() < self._pace:
            self.background.random = self.disk.random
            self.background.work()
        if self.kill_phase == phase:
            self.kill_phase = None
            self.disk.dead = True
            raise Killed

    def look(self, *, written: bool = True) -> None:
        """Lets the records follow the streams; what is written now must survive a killed process."""
        if LETTERS in self.engine.streams:
            self.dead_letters.look(self.stream(LETTERS), self.streams, self.consumers)
        for name, stream in self.engine.streams.items():
            record = self.streams.get(name)
            if record is None:
                record = self.streams[name] = self.new_record(stream)
            if record.config.retention is not RetentionPolicy.LIMITS:
                note_settled(self, record, self.in_flight)
            record.look(stream, self.now)
            if written and stream.durability.failure is None and not self.engine.commit.is_unwritten(stream):
                record.wrote()
                if record.copies is not None:
                    record.copies.wrote(stream)
                if self.always and not stream.durability.is_syncing:
                    record.was_synced(record.kept)
        for name in [name for name in self.streams if name not in self.engine.streams]:
            require(("delete", name) in self.in_flight, "acked means kept", f"stream {name} vanished")
            self.forget(name)

    def new_record(self, stream: StreamReplica) -> StreamRecord:
        """A record that has yet to look at its stream."""
        record = StreamRecord(stream.name, stream.config, stream.identity)
        record.tags = self._former.pop((stream.name, stream.identity), set())
        record.features = [kind(record) for kind in FEATURES]
        if stream.name in TARGETS:
            record.copies = Copies(record, self)
            record.features.append(record.copies)
        return record

    def _end_tick(self) -> None:
        engine = self.engine
        self.replicas.look()
        for key in list(self.consumers):
            stream = engine.streams.get(key[0])
            consumer = stream.consumers.get(key[1]) if stream is not None else None
            known = self.consumers[key]
            if consumer is None:
                require(
                    known.may_vanish or key in self.in_flight, "consumers stay", f"consumer {key} vanished"
                )
                del self.consumers[key]
                self.removals.vanished(known, expired=key not in self.in_flight, faulty=self.faulty())
            elif consumer not in engine.pending.lagging:
                known.wrote(stream_too=consumer.stream.durability.failure is None)
        self._check_answered()
        self.publishes.clear()
        self._sent_in_fault.clear()
        self.in_flight.clear()
        faulty = self.faulty()
        for record in self.streams.values():
            self.batches.end_tick(record, self.now, faulty=faulty)
            for one in record.features:
                one.end_tick(self.now, faulty=faulty)
            record.end_tick()

    def _check_answered(self) -> None:
        """Checks that every publish has its answer, also when writes fail, and every ack that is written."""
        engine = self.engine
        for waiting in self.publishes.values():
            record = self.streams.get(waiting.stream)
            if record is None or record.limits_changed or record.config.no_ack:
                continue
            if record.name in engine.streams:
                raise Violation("answers", f"publish {waiting.tag} to {waiting.stream} was not answered")
        for number, (known, seqs) in list(self._confirmations.items()):
            stream = engine.streams.get(known.stream)
            consumer = stream.consumers.get(known.name) if stream is not None else None
            if consumer in engine.pending.lagging or consumer in engine.pending.active:
                continue  # it is written again when the disk works, or has its turn in the next tick
            del self._confirmations[number]
            if self.consumers.get(known.key) is known and consumer is not None:
                text = f"acks of {seqs} by {known.stream} > {known.name} were not confirmed"
                raise Violation("answers", text)

    def _wake(self) -> None:
        self._awake = True

    def _settle(self) -> None:
        """Runs the ticks that the server requested; no time passes before."""
        for _ in range(100):
            if not self._awake:
                return
            self.tick(whole=True)
        raise Violation("progress", "a hundred ticks, and it wants another one")

    def finish_tick(self) -> bool:
        """Ends the tick if syncs are in flight; returns whether there were any."""
        was_open = self._is_open
        if was_open:
            self.tick(whole=True)
        return was_open

    def pass_time(self, ns: int) -> None:
        """Lets time pass, with every deadline on the way."""
        self.finish_tick()
        until = self.now + ns
        engine = self.engine
        self._settle()
        for _ in range(1000):
            due = engine.tick.next_deadline()
            if due is None or due > until:
                break
            self.now = max(self.now, due)
            sync_due, faults = engine.commit.sync_due, self.disk.faults
            if sync_due is not None and sync_due <= self.now:
                self._failed_syncs.clear()
            with self.log_tap:
                engine.tick.on_time(self.now)
            if sync_due is not None and sync_due <= self.now:
                self._sync_faults = faults
                self._syncs = [
                    (record, record.kept)
                    for name, record in self.streams.items()
                    if name in engine.streams and engine.streams[name].durability.failure is None
                ]
                self._finish_work(0.0)
            self.tick(whole=True)
            self._settle()
        else:
            raise Violation("progress", f"a thousand deadlines within {ns} ns")
        self.now = until

    # --- clients

    def publish(self, one: SimPublish, header: bytes, size: int, *, reply: bool) -> None:
        """Sends a publish; its payload starts with its tag."""
        if reply:
            self.publishes[one.tag] = one
            if self.faulty():
                self._sent_in_fault.add(one.tag)
        payload = b"%08d" % one.tag + b"." * size if not one.increment else b""
        inbox = b"_IN.p.%d" % one.tag if reply else b""
        self.send(one.sent, inbox, header, payload, [one], self.streams[one.stream])

    def send(
        self,
        subject: str,
        inbox: bytes,
        header: bytes,
        payload: bytes,
        what: list[SimPublish],
        to: StreamRecord,
    ) -> None:
        """Sends a message that may store any of these publishes."""
        for one in what:
            to.published[one.tag] = one
            to.tags.add(one.tag)
            to.lost_tags.discard(one.tag)
        self.commands += 1
        self._route(subject.encode(), inbox, header, payload)

    def _route(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """Routes a client's message to the server, which may apply earlier ones to respond."""
        failed = self._failed_streams()
        with self.log_tap:
            publish(self.index, subject, reply, header, payload)
        self._note_applied(failed)

    def _failed_streams(self) -> set[str]:
        """Those that reject publishes because a write failed."""
        return {one.name for one in self.engine.streams.values() if one.durability.failure is not None}

    def _note_applied(self, failed: set[str]) -> None:
        """What has arrived is applied. failed: the streams that had failed before.

        Publishes are applied before the change of a request that follows them is written: where only that
        write failed, they were not rejected.
        """
        now_failed = self._failed_streams() - failed
        for name, stream in self.engine.streams.items():
            if name in self.streams and not stream.sink.batch.size:
                refusing = stream.refuse_all is not None and name not in now_failed
                self.batches.applied(self.streams[name], self.now, refusing=refusing)

    def read(self, subject: bytes, body: bytes) -> set[int] | None:
        """A direct get of several messages: their tags, or None when it was rejected."""
        self._read.clear()
        self.commands += 1
        self._route(subject, b"_IN.r.1", b"", body)
        if not self._read or not self._read[-1][0].startswith(b"NATS/1.0 204"):
            return None
        return {tag_in(header, payload) for header, payload in self._read[:-1] if not is_produced(header)}

    def next_tag(self) -> int:
        return next(self._tags)

    def api(self, request: str, body: Any = b"", *intents: tuple[str, str]) -> Any:
        """Sends a request and runs the tick with the response; {} without one."""
        inbox = b"_IN.a.%d" % next(self._ids)
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.in_flight.update(intents)
        self.commands += 1
        self.now += not self._is_open  # creation times are unique
        self._route(b"$JS.API." + request.encode(), inbox, b"", payload)
        kept = set(self.in_flight)
        self.tick(whole=True)
        if inbox not in self._answers:
            raise Violation("answers", f"{request} was not answered")
        answer = json.loads(self._answers.pop(inbox))
        error = answer.get("error")
        self.say(f"{request} {payload.decode()} -> {error or 'ok'}")
        if error and not self.faulty():
            harmless = error["code"] < 500 or error["err_code"] in _HARMLESS
            require(harmless or self.damaged, "answers", f"{request}: {error}")
        present = self.engine.streams
        if error and self.faulty():
            made = {name for what, name in kept if what in ("create", "delete")}
            self.indeterminate |= made - present.keys()
            self.half_updated.update(name for what, name in kept if what == "update")
        elif not error:
            self.indeterminate -= {name for what, name in kept if what == "delete"} - present.keys()
            self.half_updated.difference_update(name for what, name in kept if what == "update")
            for name in [name for what, name in kept if what == "create" and name in self.streams]:
                self.streams[name].is_promised = True
        return answer

    def faulty(self) -> bool:
        """Whether the disk fails now, or writes waited for a retry when the tick started."""
        return self._was_faulty or bool(
            self.disk.fail_rate or self.disk.room is not None or self.engine.commit.has_failing
        )

    def ack(self, record: ConsumerRecord, reply: str, seq: int, body: bytes, *, double: bool) -> None:
        """Acks a delivery."""
        inbox = b""
        how = body[:4].decode()
        self.commands += 1
        if how in ("+ACK", "+TER", "+NXT"):
            seqs = record.ack(seq, how)
            if how == "+NXT":
                inbox = b"_IN.d.%d" % next(self._ids)
            elif double:
                number = next(self._ids)
                inbox = b"_IN.c.%d" % number
                self._confirmations[number] = (record, seqs)
        self._route(reply.encode(), inbox, b"", body)

    def pull(self, stream: str, name: str, body: dict[str, Any], random: Random | None = None) -> None:
        """Sends a pull request. random: chooses the client of a consumer with pinned clients; None: the
        pinned one."""
        inbox = b"_IN.d.%d" % next(self._ids)
        self.commands += 1
        record = self.consumers.get((stream, name))
        if record is not None and has_pins(record):
            body = {**body, **self.pins.request(record, inbox, random, self.now)}
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}".encode()
        self._route(subject, inbox, b"", json.dumps(body).encode())

    def meet(self, stream: str, name: str, answer: dict[str, Any]) -> ConsumerRecord:
        """Records a consumer that was created or updated."""
        key = (stream, name)
        consumer = self.engine.streams[stream].consumers[name]
        known = self.consumers.get(key)
        if known is not None and known.created == consumer.created:
            known.update(answer["config"], consumer, self.streams[stream])
            if not has_pins(known):
                self.pins.unpinned(known)
            return known
        return self.meet_unknown(stream, name)

    def start_over(self, record: ConsumerRecord) -> ConsumerRecord:
        """Replaces the record of a consumer that was reset."""
        consumer = self.engine.streams[record.stream].consumers[record.name]
        fresh = ConsumerRecord(record.stream, record.name, record.config, record.created)
        fresh.start_over(record, consumer, self.streams[record.stream])
        self.consumers[record.key] = fresh
        self.dead_letters.started_over(record)
        return fresh

    # --- what arrives

    def _on_pub_ack(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None
    ) -> None:
        number = int(subject.rpartition(b".")[2])
        one = self.publishes.pop(number, None)
        if one is None:
            raise Violation("answers", f"{subject!r} got a second answer: {payload!r}")
        answer = json.loads(payload)
        record = self.streams[one.stream]
        error = answer.get("error")
        self.acks += 1
        if error is not None:
            self.say(f"publish {one.tag} refused: {error['err_code']} {error['description']}")
            if not record.may_refuse(one) and number not in self._sent_in_fault and not self.faulty():
                raise Violation("answers", f"publish {one.tag} to {one.stream} was refused: {error}")
            return
        check_committed(one.stream, answer["seq"], "acked", self._committed(one.stream))
        self._catch_up(record, answer["seq"])
        duplicate = answer.get("duplicate", False)
        one.value = answer.get("val")
        self.say(f"publish {one.tag} acked: {one.stream} {answer['seq']}{' again' * duplicate}")
        record.ack(one, answer["seq"], duplicate, self.now)

    def _on_answer(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None
    ) -> None:
        self._answers[subject] = payload

    def _on_read(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None
    ) -> None:
        self._read.append((header, payload))

    def _on_confirmation(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None
    ) -> None:
        waiting = self._confirmations.pop(int(subject.rpartition(b".")[2]), None)
        if waiting is None:
            raise Violation("answers", f"an ack got a second confirmation: {subject!r}")
        record, seqs = waiting
        self.say(f"acks of {seqs} confirmed by {record.stream} > {record.name}")
        record.confirm(seqs)

    def _on_republished(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None
    ) -> None:
        stream = (headers.value_of(header, headers.STREAM) or b"").decode()
        self.say(f"{subject.decode()} from {stream}")
        if stream in self.streams:  # else it was created in this tick
            # A request that waits for a sync can see others complete, in the middle of the write.
            looked = not (self.lazy and self.always)
            feature(self.streams[stream], Republished).arrived(
                subject.decode(), header, payload, looked=looked
            )

    def _on_message(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None
    ) -> None:
        text = reply.decode()
        about = parse_reply(text)
        if subject in self._ended:
            raise Violation("answers", f"pull request {subject!r} had ended, and gets {header[:40]!r}")
        if about is None:
            if header.startswith(b"NATS/1.0 4"):
                self._ended.add(subject)
            if text.startswith("$JS.FC."):
                self.engine.pending.defer(lambda: publish(self.index, reply, b"", b"", b""))
            return
        record = self.consumers.get((about.stream, about.consumer))
        if record is None:
            return  # of one that was created in this tick
        if record.key in self.in_flight:
            # Number 1 may also be the first one before the reset.
            consumer = self.engine.streams[record.stream].consumers[record.name]
            has_reset = consumer.state.resets > record.resets
            self.configure(record)
            if record.is_resetting and about.consumer_seq == 1 and has_reset:
                record = self.start_over(record)
                record.is_resetting = self.faulty()  # else it is written
        check_committed(about.stream, about.stream_seq, "delivered", self._committed(about.stream))
        self._catch_up(self.streams[about.stream], about.stream_seq)
        self.deliveries += 1
        self.say(f"{about.stream} > {about.consumer} delivers {about.stream_seq} ({about.delivered})")
        if has_pins(record):
            self.pins.delivered(record, subject, header, self.now)
        record.deliver(about, text, payload, self.streams[about.stream])

    def _catch_up(self, record: StreamRecord, seq: int) -> None:
        """Handles a sequence that a client sees. When the record does not know it, the stream's sync ended
        while another one was in flight, in the middle of the write."""
        if self.lazy and self.always and seq > record.last_seq:
            record.look(self.stream(record.name), self.now)

    def has_dead_letters_due(self) -> bool:
        """Whether dead letters are in flight."""
        streams = self.engine.streams.values()
        return any(one.dead_letters.is_busy for stream in streams for one in stream.consumers.values())

    def stream(self, name: str) -> StreamReplica:
        return self.engine.streams[name]


# Named 500, but the request is not allowed.
_HARMLESS = frozenset({10012, 10013, 10025, 10052, 10057, 10074, 10110})
