"""One stream of this server between consensus and its engine.

The group hands over what is committed, and the engine's replica applies it; what the replica's leader wants
to change is proposed to the group. `StreamGroup` is the owner of the one (replication.group_port.GroupOwner)
and the port of the other (jetstream.group_commands.StreamGroupPort).

Invariants:
- Entries reach the replica in the order of the log, each once, and only while the replica is open.
- A read is answered by `read_ready` or lost by `read_lost`; a request whose read is lost goes to the next
  leader (deferred_requests.py).
- While a state is loaded (group_states.py), entries wait in their order, and the stream does not serve.
- A replica that cannot apply an entry stops its group on this server (`on_failed`). Its files stay, and no
  other group notices.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import msgspec

from penstock.errors import ProtocolError, ServerError
from penstock.jetstream.engine import JetStreamEngine
from penstock.jetstream.meta.assignments import StreamAssignment
from penstock.jetstream.replicated_stream import ReplicatedStream
from penstock.jetstream.stream.replica_state import ReplicaState
from penstock.raft.membership import Membership
from penstock.raft.raft_messages import ReplicaId
from penstock.raft.raft_replica import Role
from penstock.replication.group_port import (
    MAIL_BYTES_MAX,
    PROPOSAL_BYTES_MAX,
    GroupPort,
    InstallDone,
    ProposalId,
    SnapshotDone,
)
from penstock.server.replicated.deferred_requests import ELECTION_NS, HOLD_NS, Confirmation, DeferredRequests
from penstock.server.replicated.group_states import GroupStates, StatePorts, text_of
from penstock.server.replicated.hand_over import (
    LATE_NS,
    WAIT_NS,
    LeavingConsumers,
    is_progress,
    progress_of,
    sending_late,
)
from penstock.server.replicated.request_tickets import PassedRequest, SeenRequests
from penstock.server.replicated.stream_catch_up import (
    CatchUpBudget,
    CatchUpProgress,
    FetchFiles,
    HandedOver,
    Passed,
    Publishes,
    decode_mail,
    encode_mail,
)
from penstock.server.replicated.stream_checkpoints import CheckpointRecord, StreamCheckpoints
from penstock.server.replicated.waiting_publishes import WaitingPorts, WaitingPublishes
from penstock.server.replicated.work_turns import SHORT_PAUSE_NS, CallLater, WorkJob, WorkTurns

log = logging.getLogger("penstock.jetstream")


def _nothing() -> None:
    """No part waits for this checkpoint."""


PASS_NS = 50_000_000
"""How often deferred requests are looked at."""


@dataclass(frozen=True, slots=True)
class OwnerPorts:
    """What a stream's group uses of its server.

    engine: of the stream's account. checkpoints: of this group. turns: for long work. budget: of all groups
    that catch up. watcher: learns of roles, members and failures. clock: monotonic ns. call_later: calls
    after so many ns. member: this server. applied: called after each entry, and after a state was loaded.
    """

    engine: JetStreamEngine
    checkpoints: StreamCheckpoints
    turns: WorkTurns
    budget: CatchUpBudget
    watcher: GroupWatcher
    clock: Callable[[], int]
    call_later: CallLater
    member: ReplicaId
    applied: Callable[[ReplicatedStream], None] | None = None


class GroupWatcher(Protocol):
    """What supervises the stream groups of a server. The calls come from within a pump of the node."""

    def on_role(self, group: StreamGroup) -> None:
        """Its role, its term or its leader is another one, or it has begun to serve."""

    def on_membership(self, group: StreamGroup) -> None:
        """A change of its members is committed."""

    def on_failed(self, group: StreamGroup, text: str) -> None:
        """It has stopped on this server, for the reason that `text` gives."""

    def on_deferred(self, group: StreamGroup, request: PassedRequest) -> None:
        """A request that waited for a leader is this server's to answer."""

    def on_consumer_dropped(self, group: StreamGroup, name: str) -> None:
        """The group has dropped a consumer; this server leads it."""


class StreamGroup:
    """See the module.

    Args:
        name: of the consensus group.
        assignment: of the stream. reassign() gives it a newer one.
        ports: of the server.
        is_on_disk: whether the group is. One that begins with a state does not touch other files of its
            stream before founded().

    failure: why it has stopped here; "" while it works.
    applied_all: whether this replica had applied all that it proposed when it last ceased to lead: what got
        no outcome then was never proposed.
    """

    def __init__(
        self, name: str, assignment: StreamAssignment, ports: OwnerPorts, *, is_on_disk: bool = True
    ) -> None:
        self.name = name
        self.assignment = assignment
        self.failure = ""
        self._ports = ports
        self._engine = ports.engine
        self._watcher = ports.watcher
        self._checkpoints = ports.checkpoints
        self._port: GroupPort | None = None
        self._replica: ReplicatedStream | None = None
        self._role = Role.FOLLOWER
        self._term = 0
        self._reads: dict[int, Callable[[], object]] = {}
        self._contexts = itertools.count(1)
        waiting_ports = WaitingPorts(
            assignment.name,
            ports.engine.index,
            ports.clock,
            ports.call_later,
            ports.member,
            lambda: self._replica,
            lambda: self.leader,
            self._send,
        )
        self._publishes = WaitingPublishes(waiting_ports)
        self._deferred = DeferredRequests(ports.clock)
        self._is_passing = False
        self._last_proposal = (0, 0)  # index and term
        self._unproposed: bytes | None = None  # while propose() only looks
        self._parting: HandedOver | None = None  # for the next leader
        self._handed: HandedOver | None = None  # by the leader before
        self._previous: ReplicaId | None = None
        self._told_leader: ReplicaId | None = None
        self._may_serve = False
        self._serve_at = 0  # when this entry is applied
        self._late_until = self._new_until = self._election_until = 0
        self.applied_all = False
        self._seen = SeenRequests()
        self._leaving = LeavingConsumers(self._engine, assignment.name, self._keep_ack)
        state_ports = StatePorts(
            assignment.name,
            ports.checkpoints,
            ports.turns,
            ports.budget,
            ports.clock,
            self._restore,
            self._apply,
            self._members,
            self._send,
        )
        self._states = GroupStates(state_ports, is_on_disk=is_on_disk)
        self._finishing: WorkJob | None = None  # an entry that takes long

    # --- for the server ------------------------------------------------------------------------

    def begin(self, port: GroupPort) -> None:
        """The node has opened the group. Called once."""
        assert self._port is None
        self._port = port

    def founded(self) -> None:
        """The group and the state with which it begins are on disk."""
        self._states.founded()

    def reassign(self, assignment: StreamAssignment) -> None:
        """Takes a newer assignment of the same stream."""
        self.assignment = assignment

    @property
    def port(self) -> GroupPort:
        """The group as its owner sees it. Raises ServerError while the node opens it."""
        if self._port is None:
            raise ServerError(f"group {self.name!r} is not open yet")
        return self._port

    @property
    def key(self) -> tuple[str, str]:
        """Account and name of the stream."""
        return self.assignment.account, self.assignment.name

    @property
    def replica(self) -> ReplicatedStream | None:
        """The stream in its engine; None while its state is read, and after a failure."""
        return self._replica

    @property
    def is_serving(self) -> bool:
        """Whether this server leads the stream and takes requests and publishes."""
        return self._replica is not None and self._replica.is_serving

    @property
    def leader(self) -> ReplicaId | None:
        """The member that leads, as far as this server knows; this one only when it serves."""
        if self._port is None or self.failure:
            return None
        leader = self._port.leader
        return leader if self._role is Role.LEADER or self._port.role is not Role.LEADER else None

    @property
    def has_state(self) -> bool:
        """Whether this replica has a state of the stream, of now or of earlier, and loads no other."""
        return (
            self._port is not None
            and self._replica is not None
            and not (self.failure or self._states.is_loading)
        )

    @property
    def is_current(self) -> bool:
        """Whether there is a leader, and this replica has applied everything that it said to be committed."""
        if self._port is None or not self.has_state or self.leader is None:
            return False
        return self._port.is_current

    @property
    def catch_up(self) -> CatchUpProgress | None:
        """How far this replica is with the state that it loads; None when it loads none."""
        return self._states.progress

    @property
    def lags(self) -> dict[ReplicaId, int]:
        """Entries that each other member lacks on its disk, as the leader knows; empty elsewhere."""
        return {} if self._port is None or self.failure else self._port.lags()

    def close(self, *, ended: bool = False) -> None:
        """The node has closed the group: the stream ends on this server, without its group. ended: the stream
        is deleted, so that the consumers by which it reads its origins end, too."""
        self.stop()
        name, replica = self.assignment.name, self._replica
        was_serving = replica is not None and replica.is_serving
        self._replica = None
        self._engine.replicated.close(name, ended=ended)
        if ended:
            self._engine.replicated.discard(name)
            if was_serving:
                self._engine.advisories.stream_action(name, "delete")

    def stop(self) -> None:
        """Ends the work on its states."""
        self._abandon()
        self._checkpoints.files.close()

    def _abandon(self) -> None:
        self._reads.clear()
        self._leaving.acks.end()
        self._publishes.stop()
        self._deferred.clear()
        self._states.stop()
        if self._finishing is not None:
            self._finishing.cancel()
            self._finishing = None

    def remove_files(self, gone: Callable[[], None]) -> None:
        """Removes the files of its states, then calls `gone`. Call it after close()."""
        self._checkpoints.files.remove_all(gone)

    # --- for the engine (StreamGroupPort) --------------------------------------------------------

    def propose(self, data: bytes) -> int:
        """Returns the entry's index, 0 when it is not taken. An entry above PROPOSAL_BYTES_MAX is not taken:
        its commands come again in smaller entries."""
        if self._unproposed is not None:
            self._unproposed = self._unproposed or data
            return 0
        if self._port is None or self.failure or len(data) > PROPOSAL_BYTES_MAX:
            return 0
        proposal = self._port.propose(data)
        if proposal is None:
            return 0
        self._last_proposal = (proposal.index, proposal.term)
        return proposal.index

    def read_index(self, done: Callable[[], object]) -> bool:
        """See StreamGroupPort."""
        if self._port is None or self.failure:
            return False
        context = next(self._contexts)
        self._reads[context] = done
        if not self._port.read_index(context):
            self.read_lost(context)
            return False
        return True

    def consumer_dropped(self, name: str) -> None:
        """See StreamGroupPort."""
        self._watcher.on_consumer_dropped(self, name)

    # --- from the group (GroupOwner) -------------------------------------------------------------

    def restored(self, index: int, term: int, data: bytes) -> None:
        """Opens the stream in its engine, or begins to load its checkpoint. Raises StoreError,
        MalformedCommandError."""
        if data:
            self._states.load_own(CheckpointRecord.decode(data), self._loaded, self._not_loaded)
        else:
            assignment = self.assignment
            self._replica = self._engine.replicated.open(assignment.config, assignment.created, self)

    def committed(self, index: int, term: int, payload: bytes) -> bool:
        """Applies an entry, or keeps it until the state is loaded. Returns True when the rest of it follows
        in turns. Raises ServerError when the replica cannot apply it, or was set aside before."""
        replica = self._replica
        if replica is None:
            self._states.keep(index, term, payload)
            return False
        if replica.committed(index, term, payload):
            self._finishing = self._ports.turns.start(
                replica.finish(), partial(self._finished, replica, index), self.port.give_up,
                pause_ns=SHORT_PAUSE_NS,
            )  # fmt: skip
            return True
        self._applied(replica, index)
        return False

    def _finished(self, replica: ReplicatedStream, index: int, _: None) -> None:
        self._finishing = None
        try:
            self._applied(replica, index)
        except ServerError as error:
            self.port.give_up(error)
        else:
            self.port.resume()

    def _applied(self, replica: ReplicatedStream, index: int) -> None:
        self._check(replica)
        if self._serve_at and index >= self._serve_at:
            self._serve_now()

    def _apply(
        self, replica: ReplicatedStream, index: int, term: int, payload: bytes
    ) -> Generator[int, None, None]:
        """Applies an entry that was kept; yields work."""
        if replica.committed(index, term, payload):
            yield from replica.finish()
        self._check(replica)

    def _check(self, replica: ReplicatedStream) -> None:
        """An entry was applied. Raises ServerError when it was not, or the stream was set aside."""
        if replica.failure:
            raise ServerError(replica.failure)
        if self._engine.streams.get(replica.stream.name) is not replica.stream:
            why = self._engine.offline.get(replica.stream.name, "it is closed")
            raise ServerError(f"stream {replica.stream.name} is set aside on this server: {why}")
        if self._ports.applied is not None:
            self._ports.applied(replica)

    def proposal_lost(self, proposal: ProposalId, *, is_certain: bool) -> None:
        """The replica forgot it when the leadership of its term ended."""
        assert not (self.is_serving and proposal.term == self._term), "lost in the term of its leadership"

    def role_changed(self, role: Role, term: int, leader: ReplicaId | None) -> None:
        """Begins or ends to serve."""
        replica = self._replica
        if replica is not None and replica.is_serving and not (role is Role.LEADER and term == self._term):
            self._part(replica)
        self._role, self._term = role, term
        self._may_serve, self._serve_at = False, 0
        if self._ports.clock() >= self._late_until:
            self._publishes.end()  # begun by an election
        self._seen.clear()
        self._new_until = self._ports.clock() + HOLD_NS + LATE_NS
        self._told_leader = leader
        if leader is None:
            self._election_until = self._ports.clock() + ELECTION_NS
        if role is Role.LEADER:
            self._prepare_serving()
        self._tell_role()
        self._watcher.on_role(self)
        self._pass_requests()
        if leader is not None and leader != self._ports.member:
            self._previous = leader
            self._hand_over_to(leader)

    def _tell_role(self) -> None:
        if self._replica is not None:
            leads = self._role is Role.LEADER and self._may_serve
            if leads:
                self._publishes.led(self._term)
            self._replica.role_changed(leads=leads, term=self._term)
            self._publishes.pass_on(self._replica)

    def membership_changed(self, membership: Membership) -> None:
        """Tells the watcher."""
        self._watcher.on_membership(self)

    def read_ready(self, context: int, index: int) -> None:
        """Calls what waits for the read."""
        done = self._reads.pop(context, None)
        if done is not None:
            done()

    def read_lost(self, context: int) -> None:
        """Tells what waits for the read."""
        done = self._reads.pop(context, None)
        if isinstance(done, Confirmation):
            done.lost()

    # --- from one leader to the next (hand_over.py)

    def handing_over(self) -> None:
        """Proposes what waits, and keeps acks from now on: nothing is proposed while it hands over."""
        replica = self._replica
        if replica is not None and replica.is_serving:
            self._leaving.settle(replica)
            replica.propose()
            self._leaving.acks.begin(is_late=False)

    def _part(self, replica: ReplicatedStream) -> None:
        """This server leads no more: what it could not propose is for the next leader."""
        self._leaving.settle(replica)
        self._unproposed = b""
        replica.propose()
        progress = progress_of(self._unproposed, sending_late(replica)) if self._unproposed else b""
        self._unproposed = None
        index, term = self._last_proposal
        self.applied_all = index <= replica.applied_index
        if self.applied_all:
            index, term = replica.applied_index, replica.applied_term
        self._parting = HandedOver(0, index, term, progress)
        self._late_until = self._ports.clock() + LATE_NS
        self._leaving.acks.begin(is_late=True)
        self._publishes.begin(replica.stream, takes_remote=True)
        self._ports.call_later(LATE_NS, self._end_taking_late)

    def _end_taking_late(self) -> None:
        if not self.is_serving and self._ports.clock() >= self._late_until:
            self._leaving.acks.end()
            self._publishes.end()

    def _hand_over_to(self, leader: ReplicaId) -> None:
        parting, self._parting = self._parting, None
        if parting is None or self._port is None or self.failure:
            return
        parting = msgspec.structs.replace(parting, term=self._term)
        mail = encode_mail(parting)
        if len(mail) > MAIL_BYTES_MAX:
            mail = encode_mail(msgspec.structs.replace(parting, progress=b""))
        self._port.send(leader, mail)

    def _take_handed(self, handed: HandedOver) -> None:
        if handed.term != self.port.term or self.is_serving or self._may_serve or self._serve_at:
            return
        self._handed = handed
        if self._role is Role.LEADER and self._term == handed.term:
            self._use_handed()
            if self._may_serve:
                self._serve_now()

    def _prepare_serving(self) -> None:
        """Elected, and up to date: what the leader before hands over comes first."""
        handed = self._handed
        if self._previous is None or self.port.membership.voters == (self._ports.member,):
            self._may_serve = True
        elif handed is not None and handed.term == self._term:
            self._use_handed()
        else:
            self._ports.call_later(WAIT_NS, partial(self._end_waiting, self._term))
        if not self._may_serve and self._replica is not None:
            self._publishes.begin(self._replica.stream, takes_remote=False)

    def _use_handed(self) -> None:
        handed, self._handed = self._handed, None
        replica, self._may_serve = self._replica, True
        if handed is None or replica is None or self._states.is_loading or not handed.progress:
            return
        if (replica.applied_index, replica.applied_term) != (handed.index, handed.entry_term):
            return
        if is_progress(handed.progress):
            proposal = self.port.propose(handed.progress)
            if proposal is not None:
                self._may_serve, self._serve_at = False, proposal.index

    def _end_waiting(self, term: int) -> None:
        is_waiting = self._role is Role.LEADER and self._term == term
        if is_waiting and not self._may_serve and not self._serve_at and not self.failure:
            self._serve_now()

    def _serve_now(self) -> None:
        self._may_serve, self._serve_at = True, 0
        self._tell_role()
        self._watcher.on_role(self)
        self._pass_requests()

    def _keep_ack(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        if self.is_serving and not self.defers_requests:
            self._leaving.acks.end()  # it was not handed over after all
        else:
            self.defer(PassedRequest(self.key[0], subject, reply, header, payload))
            self._pass_requests()

    # --- requests without a leader

    @property
    def defers_requests(self) -> bool:
        """Whether requests for the leader wait on this server: it hands over, or is elected and does not
        serve yet."""
        if self._port is None or self.failure:
            return False
        leads = self._port.role is Role.LEADER  # it may have ended, and this owner not be told yet
        return self._port.is_handing_over or not leads if self.is_serving else leads

    @property
    def takes_late_requests(self) -> bool:
        """Whether this server led a moment ago: the next leader may have got a request before it led, and
        this server after it had ended."""
        if self.is_serving or self._ports.clock() >= self._late_until:
            return False
        return self.leader != self._ports.member

    @property
    def is_electing(self) -> bool:
        """Whether this member has known no leader for a moment: it voted, and the one that it voted for has
        not been heard as leader, or it found the last one silent. Without a majority it stays so; then
        requests are refused (10008)."""
        if self.leader is not None or self.is_serving:
            return False
        # The group may have lost its leader just now, and this owner not be told yet.
        return self._told_leader is not None or self._ports.clock() < self._election_until

    @property
    def is_changing(self) -> bool:
        """Whether requests may be deferred or come twice: there was another leader a moment ago."""
        return self._ports.clock() < self._new_until or self.defers_requests

    def is_first(self, request: PassedRequest, *, is_late: bool) -> bool:
        """Notes a request that this server is about to serve. False for one that came late from another
        server (is_late), and was served here already."""
        if self._ports.clock() >= self._new_until:
            return True
        return self._seen.is_new(request.subject, request.reply) or not is_late

    def defer(self, request: PassedRequest, left_ns: int = HOLD_NS) -> None:
        """Keeps a request until this server serves, or another one leads."""
        self._deferred.add(request, left_ns)
        self._pass_later()

    def _pass_later(self) -> None:
        if not self._is_passing and len(self._deferred):
            self._is_passing = True
            self._ports.call_later(PASS_NS, self._pass_again)

    def _pass_again(self) -> None:
        self._is_passing = False
        self._pass_requests()

    def _pass_requests(self) -> None:
        """Has the requests that wait served here, or passes them on to the leader that there is now."""
        if not len(self._deferred) or self._port is None or self.failure:
            return
        leader = self.leader
        if not self.defers_requests and leader is not None:
            if self.is_serving:
                self._leaving.acks.end()
            for request, left_ns in self._deferred.take():
                if leader == self._ports.member:
                    self._watcher.on_deferred(self, request)
                else:
                    self._send_passed(leader, Passed(left_ns, request))
        else:
            self._deferred.drop_expired()
            self._pass_later()

    def _send_passed(self, leader: ReplicaId, message: Passed) -> None:
        mail = encode_mail(message)
        if len(mail) <= MAIL_BYTES_MAX:
            self.port.send(leader, mail)

    # --- states (group_states.py) ----------------------------------------------------------------

    def take_snapshot(self, done: SnapshotDone) -> None:
        """Takes a checkpoint in turns."""
        if self._replica is None:
            done(None)
        else:
            self._states.take(self._replica, partial(self._snapshot_taken, done))

    def _snapshot_taken(
        self, done: SnapshotDone, data: bytes | None, durable: Callable[[], None] = _nothing
    ) -> None:
        done(data, durable)
        if self.is_serving and self._replica is not None:
            self._replica.propose()  # it may have been refused because so much was not in a checkpoint

    def install_snapshot(
        self, index: int, term: int, data: bytes, leader: ReplicaId, done: InstallDone
    ) -> None:
        """Fetches the files that are missing, and replaces the replica. A state that is being loaded gives
        way to this one."""
        self._states.install(CheckpointRecord.decode(data), self._loaded, done)

    def _restore(
        self, state: ReplicaState, chunk_of: Callable[[bytes], bytes], index: int, term: int
    ) -> Generator[int, None, ReplicatedStream]:
        self._replica = None  # its engine closes it
        return self._engine.replicated.restore_slices(state, chunk_of, index, term, self)

    def _loaded(self, replica: ReplicatedStream) -> None:
        self._replica = replica
        if self._ports.applied is not None:
            self._ports.applied(replica)
        self._tell_role()
        self._watcher.on_role(self)

    def _not_loaded(self, error: Exception) -> None:
        """At the start: without its state the replica cannot follow."""
        self.port.give_up(ServerError(f"its checkpoint cannot be read: {text_of(error)}"))

    def _members(self) -> list[ReplicaId]:
        """The other members, the leader first."""
        leader = self.port.leader
        others = [one for one in self.port.membership.members if one != self._ports.member]
        if leader is not None and leader not in others and leader != self._ports.member:
            others.append(leader)
        return sorted(others, key=lambda one: (one != leader, one))

    def _send(self, to: ReplicaId, mail: bytes) -> None:
        if not self.failure:
            self.port.send(to, mail)

    # --- mail --------------------------------------------------------------------------------------

    def received(self, sender: ReplicaId, payload: bytes) -> None:
        """Mail of the stream's group on another server. What cannot be read is dropped."""
        try:
            message = decode_mail(payload)
        except ProtocolError as error:
            log.error("stream %s: from %s: %s", self.assignment.name, sender, error)
            return
        if isinstance(message, FetchFiles):
            self._states.serve(sender, message)
        elif isinstance(message, Publishes):
            self._publishes.take_over(message, self._term)
        elif isinstance(message, HandedOver):
            self._take_handed(message)
        elif isinstance(message, Passed):
            self._deferred.add(message.request, message.left_ns)
            self._pass_requests()
        else:
            self._states.received(sender, message)

    def failed(self, error: Exception) -> None:
        """The group has stopped on this server: its stream is offline here."""
        name = self.assignment.name
        self.failure = text_of(error)
        log.error("the group of stream %s stops on this server: %s", name, self.failure)
        self._abandon()
        if self._replica is not None:
            self._replica.close()
        self._watcher.on_failed(self, self.failure)
