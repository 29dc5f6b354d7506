"""A stream whose commands go through a group: this server's replica of it, which follows or leads.

Every replica applies what the group committed, in the order of its log, and nothing else changes the stream.
The leader's part of the engine is as for a stream of one server: subscriptions collect publishes, consumers
deliver, timers run out. But what these decide is submitted (group_commands.py), and takes effect when it
is applied. Only the leader releases effects: pub acks, republished messages, advisories.

Consumers exist twice on the leader. `standby` has their states as the commands made them, like on every
replica. The ConsumerReplicas deliver, and are ahead of that by what is not committed yet. So a leader that
steps down forgets them, and another one begins with its standby: it may deliver again what the old leader had
just sent, and it skips nothing. Waiting pull requests get `409 Leadership Change`.

A leader that steps down answers what is committed of its own proposals, also later. Publishes that it took
and did not propose are held: the next leader gets them (`take_held`), or their publishers hear that there is
none.

A leader serves when its group says that it has handed over everything that earlier leaders committed: then
it has applied everything that was acknowledged before.

Rejected: applying at the proposal and releasing effects at the commit. A leader that steps down would have to
undo what it applied, and its files would have it already.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from typing import NamedTuple

from msgspec import Struct

from penstock import faults
from penstock.errors import JetStreamApiError
from penstock.jetstream.capacity import Capacity
from penstock.jetstream.commands import (
    Admit,
    CheckState,
    Command,
    DropConsumer,
    ProgressConsumer,
    RetainMessages,
    SetConsumer,
    Update,
    decode,
)
from penstock.jetstream.consumer.standby import StandbyConsumers
from penstock.jetstream.consumer_registry import ConsumerRegistry
from penstock.jetstream.containment import Containment
from penstock.jetstream.deferrals import Deferrals
from penstock.jetstream.group_commands import Flight, GroupCommands, parts_of, split
from penstock.jetstream.pending_work import PendingWork
from penstock.jetstream.reviews import Reviews
from penstock.jetstream.state_hash import StateHash
from penstock.jetstream.stream.purge import SLICE, SLICE_WORK
from penstock.jetstream.stream.replica_state import (
    CHUNK_SEQS,
    ChunkNames,
    Keep,
    TakenState,
    take_slices,
    take_state,
)
from penstock.jetstream.stream.shrinking import PART_WORK
from penstock.jetstream.stream.stream_replica import StreamReplica
from penstock.jetstream.stream_table import StreamTable
from penstock.kernels.ingest.ingest import IngestBatch
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import publish
from penstock.protocol import error_codes as codes
from penstock.protocol.api import ApiConsumerInfo

log = logging.getLogger("penstock.jetstream")

HELD_PART_BYTES = 4 << 20
WAIT_WORK = 1000
"""Of a step that finds an entry unfinished, in the units of slices.py."""


class ReplicatedPorts(Struct, frozen=True, eq=False):
    """What replicated streams use of their engine.

    follow_origins: begins to read those of a stream's mirror or sources. forget_origins: stops it; True: for
    good. origin_changed: this server has a stream now, or no more. clock: ns since the epoch. wake: requests
    the end of a tick. rollup_messages: see EngineConfig.
    """

    index: SubscriptionIndex
    table: StreamTable
    capacity: Capacity
    pending: PendingWork
    containment: Containment
    consumers: ConsumerRegistry
    reviews: Reviews
    deferrals: Deferrals
    follow_origins: Callable[[StreamReplica], object]
    forget_origins: Callable[[StreamReplica, bool], object]
    origin_changed: Callable[[str], object]
    clock: Callable[[], int]
    wake: Callable[[], None]
    rollup_messages: int


class _UnfinishedEntry(NamedTuple):
    """An entry that is being applied. place: its index and term. flight: what waits for it, if this server
    led. steps: see ReplicatedStream._apply()."""

    place: tuple[int, int]
    flight: Flight | None
    steps: Generator[int, None, None]


class ReplicatedStream:
    """See the module. stream: takes commands by `commands`. standby: its consumers. applied_index: of the
    last entry in its state. names: of chunks that are known, by the sequences that each covers.

    applied_index, applied_term: the last entry that was applied. is_serving: it leads, and takes commands.
    failure: why it applies no more; "" while it does. difference: how it was found to differ from the
    leader; "" while it was not. hash: of what the entries did.
    """

    def __init__(
        self,
        stream: StreamReplica,
        standby: StandbyConsumers,
        commands: GroupCommands,
        ports: ReplicatedPorts,
        applied_index: int = 0,
        applied_term: int = 0,
        names: dict[int, ChunkNames] | None = None,
        state_hash: bytes = b"",
    ) -> None:
        self.stream = stream
        self.standby = standby
        self.commands = commands
        self._ports = ports
        self.applied_index = applied_index
        self.applied_term = applied_term
        self.failure = self.difference = ""
        self.hash = StateHash(state_hash)
        self._led_term = 0
        self._names = names or {}
        self._held: list[IngestBatch] = []
        self._begun: dict[str, ApiConsumerInfo] = {}
        self._unfinished: _UnfinishedEntry | None = None
        stream.rollups.limit(self._ports.rollup_messages)
        commands.applied(stream.now)

    @property
    def is_serving(self) -> bool:
        """Whether this server leads the stream, and has applied what was acknowledged before."""
        return self.commands.is_leading

    @property
    def led_term(self) -> int:
        """The term in which it serves, or served last; the group itself may be in a later one already."""
        return self._led_term

    # --- what the group says -------------------------------------------------------------------

    def role_changed(self, *, leads: bool, term: int) -> None:
        """Whether this server leads. leads=True comes when everything from before was handed to
        committed(), and leads=False at once; a leader of another term ceased to lead in between."""
        if self.is_serving and not (leads and term == self._led_term):
            self._step_down()
        if leads and not self.is_serving and not self.failure:
            self._led_term = term
            self._begin()

    def committed(self, index: int, term: int, entry: bytes) -> bool:
        """The next entry of the group's log is committed. Indexes ascend, with gaps where the group itself
        used one; an entry that is in the state already is ignored.

        Returns whether it is unfinished, because its roll-ups replace very many messages: finish() is to be
        run to its end then, before anything else is handed here but a role.
        """
        if self.failure or index <= self.applied_index:
            return False
        is_own = self.is_serving and term == self._led_term
        flight = self.commands.take_committed() if is_own else None
        self._unfinished = _UnfinishedEntry((index, term), flight, self._apply(index, entry, flight))
        return self._advance(self._unfinished) > 0

    def finish(self) -> Generator[int, None, None]:
        """Applies what is left of an entry: yields work (of slices.py)."""
        while self._unfinished is not None:
            work = self._advance(self._unfinished)
            if work:
                yield work

    def _advance(self, one: _UnfinishedEntry) -> int:
        """The next slice of an entry. Returns its work, 0 when the entry is applied, or cannot be."""
        try:
            for work in one.steps:
                return work
        except Exception as error:  # noqa: BLE001  # costs this replica, and no other stream
            self._unfinished = None
            self._fail(error, one.place[0])
            return 0
        self._unfinished = None
        self._applied(one)
        return 0

    def _applied(self, one: _UnfinishedEntry) -> None:
        self.applied_index, self.applied_term = one.place
        if one.flight is not None:
            # Before the stream's next deadline is looked up: with an Expire in flight it has none.
            for call in one.flight.calls if self.is_serving else one.flight.late:
                call()
        if self.is_serving:
            self._continue()
        elif one.flight is None:
            self._follow_on(is_own=self.applied_term == self._led_term)
        else:  # it led when the entry was committed
            self.stream.effects.leave(self._ports.index)

    def _follow_on(self, *, is_own: bool) -> None:
        """What follows an entry on another replica. is_own: this server proposed it, and leads no more."""
        late = self.commands.resolve(is_own=is_own)
        if is_own:
            self.stream.effects.leave(self._ports.index)
        else:
            self.stream.effects.drop()
        self._ports.pending.note_stream(self.stream)
        self._ports.wake()
        for call in late:
            call()

    def _apply(self, index: int, entry: bytes, flight: Flight | None) -> Generator[int, None, None]:
        """Applies the commands of an entry; yields work between the slices of a long one. Raises
        MalformedCommandError, and what only a bug raises."""
        stream = self.stream
        moved: dict[str, None] = {}
        refusals: list[int] = []
        if flight is not None and flight.since:
            stream.effects.acks.arrived(flight.since)
        for number, (start, end) in enumerate(split(entry)):
            command, now = decode(entry, start, end)
            outcome: object
            try:
                outcome = stream.apply_committed(command, now)
            except JetStreamApiError as error:  # a refusal is the command's result, on every replica
                outcome = error
                refusals.append(error.err_code)
            else:
                if stream.rollups.unfinished:
                    yield from self._finish_rollups()
                self._follow_change(command)
                if isinstance(command, ProgressConsumer):
                    moved[command.name] = None
                elif isinstance(command, CheckState):
                    self._compare(command)
            stream.rollups.limit(self._ports.rollup_messages)
            if flight is not None:
                flight.settle(number, outcome)
        self.hash.applied(index, stream, self.standby, moved, refusals)
        self.commands.applied(stream.now)

    def _finish_rollups(self) -> Generator[int, None, None]:
        """Removes what roll-ups replace, and stores what follows them in their batch: yields work.

        What was removed so far is written meanwhile, and nothing is acknowledged. Reads and deliveries may
        find messages that are about to go, as they do before the entry is committed.
        """
        stream, rollups = self.stream, self.stream.rollups
        stream.durability.rollup_started()
        try:
            with stream.store.removing():
                while rollups.unfinished:
                    yield max(rollups.run_slice(SLICE, PART_WORK), SLICE_WORK)
                    self._ports.pending.note_stream(stream)
                    self._ports.wake()
                    if not rollups.unfinished:
                        rollups.limit(self._ports.rollup_messages)
                        stream.store_committed_rest()
        finally:
            stream.durability.rollup_ended()

    def _compare(self, command: CheckState) -> None:
        """Compares this replica with the leader that proposed the command. It goes on in either case: which
        of the two is wrong is for an operator to say."""
        if self.hash.differs(command.index, command.value) and not self.difference:
            self.difference = (
                f"this replica of stream {self.stream.name} differs from its leader's: "
                f"noticed at entry {command.index}; compare the replicas, and remove the wrong one"
            )
            log.error("%s", self.difference)

    def _fail(self, error: Exception, index: int) -> None:
        """This replica cannot follow any more: its state is what the entries before made. It is set aside,
        its files stay, and the others continue."""
        where = f"entry {index} of the group of stream {self.stream.name}"
        self.failure = f"{where}: {faults.describe(faults.note(where, error))}"
        log.error("stream %s is set aside on this server: %s", self.stream.name, self.failure)
        self.close()
        self._ports.containment.set_aside(self.stream, self.failure)

    def close(self, *, ended: bool = False) -> None:
        """Ends what this server does for the stream; the replica can be opened again from its state. ended:
        the stream is deleted, so that its origins need not keep messages for it."""
        if self._unfinished is not None:
            self._unfinished.steps.close()
            self._unfinished = None
        if self.is_serving:
            self._step_down(ended=ended)

    def take_begun(self, consumer: str) -> ApiConsumerInfo | None:
        """Removes and returns the info of a consumer as it was created here, before its first delivery. None
        when it was created earlier, or by another leader."""
        return self._begun.pop(consumer, None)

    # --- its state -----------------------------------------------------------------------------

    def take_state(self, chunk_seqs: int = CHUNK_SEQS) -> tuple[bytes, dict[bytes, bytes]]:
        """The state after entry `applied_index`: the manifest, and its chunks by name (replica_state.py)."""
        return take_state(self.stream, self.standby, chunk_seqs, self.hash.value)

    def state_slices(
        self, has: Callable[[bytes], bool], keep: Keep, chunk_seqs: int = CHUNK_SEQS
    ) -> Generator[int, None, TakenState]:
        """The same while entries go on being applied: yields work (about 2 ns a unit, 0.5 ms at most at a
        time), and returns the manifest with the entry after which it is the state.

        has: whether the chunk of a name is kept already. keep: called with the name of one that is not, and
        its bytes in parts. The caller closes the generator when it closes this replica.
        """
        names = self._names.setdefault(chunk_seqs, ChunkNames())
        taking = take_slices(self.stream, self.standby, self._position, names, has, keep, chunk_seqs)
        while True:
            if self._unfinished is not None:  # a state lies between two entries
                yield WAIT_WORK
                continue
            try:
                work = next(taking)
            except StopIteration as end:
                taken: TakenState = end.value
                return taken
            yield work

    def _position(self) -> tuple[int, int, bytes]:
        return self.applied_index, self.applied_term, self.hash.value

    def propose(self) -> bool:
        """Proposes what was submitted. Returns False when the group does not take all of it now."""
        was_full = self.commands.is_full
        is_taken = self.commands.flush()
        if was_full and not self.commands.is_full:
            self._ports.pending.activate_all(self.stream)
            self._submit_waiting()
            self._ports.wake()
        return is_taken

    def _submit_waiting(self) -> None:
        """Submits publishes and copies that waited because too much was not proposed, or in flight."""
        if self.stream.has_input and not self.commands.is_full:
            self.stream.apply_pending(self._ports.clock())

    # --- publishes without a leader ----------------------------------------------------------------

    @property
    def has_held(self) -> bool:
        """Whether publishes wait for a leader."""
        return bool(self._held)

    def take_held(self) -> list[IngestBatch]:
        """Removes and returns the publishes that wait for a leader, in parts of about 4 MiB. They were never
        proposed."""
        held, self._held = self._held, []
        return held

    def take_over(self, batch: IngestBatch) -> None:
        """Takes publishes that the leader before did not propose: submits them, or holds them while this
        server does not serve."""
        if self.is_serving:
            self.commands.submit(batch, self._ports.clock())
        else:
            self._held.append(batch)

    def refuse(self, batch: IngestBatch) -> None:
        """Answers publishes that were never proposed: there is no leader (10008)."""
        while (one := batch.take_one()) is not None:
            self._refuse_one(one[1])

    def _refuse_one(self, reply: bytes) -> None:
        if reply and not self.stream.config.no_ack:
            text = self.stream.refusal(codes.CLUSTER_NOT_AVAIL)
            publish(self._ports.index, reply, b"", b"", text)

    def _hold(self, unproposed: list[IngestBatch]) -> None:
        """Keeps what was not proposed, and what was not even submitted."""
        waiting = IngestBatch()
        for one in self.stream.take_waiting():
            waiting.append(*one)
        for batch in (*unproposed, waiting):
            self._held += parts_of(batch, self._refuse_one, HELD_PART_BYTES)

    # --- leading -------------------------------------------------------------------------------

    def _begin(self) -> None:
        stream, ports = self.stream, self._ports
        self.commands.lead([Admit(stream.refuse_all, stream.bytes_end), stream.batch_limits])
        for name in self.standby.by_name:
            self._serve_consumer(name)
        if stream.retains_all and not stream.offline:
            stream.apply(RetainMessages(False), stream.now)
        stream.subscribe(ports.index)
        for one in stream.sources.states:
            one.begin_leading()
        ports.follow_origins(stream)
        ports.reviews.begin(stream)  # the old leader's last removals may be lost
        ports.capacity.cluster_use.begin_leading(stream, ports.clock())
        ports.capacity.admit(stream)
        ports.pending.touch_stream(stream)
        for batch in self.take_held():
            self.take_over(batch)

    def _continue(self) -> None:
        """What follows an entry on the leader: the tick releases effects and delivers."""
        stream, ports = self.stream, self._ports
        ports.pending.note_stream(stream)
        ports.wake()
        if self.hash.is_due(self.applied_index):
            stream.apply(CheckState(self.applied_index, self.hash.value), stream.now)
        self._submit_waiting()

    def _step_down(self, *, ended: bool = False) -> None:
        stream, ports = self.stream, self._ports
        unproposed = self.commands.follow()
        ports.forget_origins(stream, ended)
        stream.unsubscribe(ports.index)
        for name, consumer in list(stream.consumers.items()):
            ports.pending.forget_consumer(consumer)
            del stream.consumers[name]
            leave = consumer.end if ended else consumer.abandon  # waiting pull requests hear which of the two
            faults.contain(leave, ports.containment.work_failed)
        stream.offline.clear()
        self._begun.clear()
        self._hold(unproposed)
        if self._unfinished is None:  # else what it caused leaves when it is applied
            stream.effects.leave(ports.index)
        ports.capacity.cluster_use.end_leading(stream)
        ports.deferrals.drop(stream)
        ports.pending.deadlines.set(stream, None)

    # --- changes that concern more than the stream's state --------------------------------------

    def _follow_change(self, command: Command) -> None:
        if isinstance(command, Update):
            self._ports.table.claims.claim(self.stream.name, self.stream.config.subjects)
            if self.is_serving:
                self.stream.subscribe(self._ports.index)
                self._ports.follow_origins(self.stream)
                self._ports.reviews.begin(self.stream)
        elif self.is_serving and isinstance(command, SetConsumer):
            is_new = command.name not in self.stream.consumers
            self._serve_consumer(command.name)
            consumer = self.stream.consumers.get(command.name)
            if is_new and consumer is not None:
                self._begun[command.name] = consumer.info(self._ports.clock())
        elif self.is_serving and isinstance(command, DropConsumer):
            self._drop_consumer(command.name)
            self.commands.consumer_dropped(command.name)

    def _serve_consumer(self, name: str) -> None:
        """Makes the consumer that delivers, or changes it as its standby is."""
        stream, ports = self.stream, self._ports
        standby = self.standby.by_name[name]
        consumer = stream.consumers.get(name)
        if consumer is not None:
            consumer.follow(standby.meta, ports.clock())
        elif name not in stream.offline:
            try:
                ports.consumers.take_over(stream, standby, ports.clock())
            except Exception as error:  # noqa: BLE001  # costs this consumer
                why = faults.describe(faults.note(f"consumer {name} of stream {stream.name}", error))
                log.error("consumer %s of stream %s is left out: %s", name, stream.name, why)
                ports.containment.leave_out(stream, name, why)

    def _drop_consumer(self, name: str) -> None:
        """Ends a consumer that an earlier command in flight made again."""
        self._begun.pop(name, None)
        consumer = self.stream.consumers.pop(name, None)
        if consumer is not None:
            self._ports.pending.forget_consumer(consumer)
            consumer.end()
