"""This server's replica of the meta group: the owner of the group, and who proposes to it.

Followers forward their commands to the leader by the group's mail, which may be lost: who wants something
looks at the state again after a while. The leader gives each command its time.

The server that proposed the command of a request answers it, also when it leads no more: one answer, and a
leader that hands over loses none. What cannot be proposed because the leadership is being handed over is
held, and goes to the next leader, which proposes and answers it. After HOLD_NS it is given up.

A read of the state is current when the leader has confirmed, after the question, that it leads, and this
server has applied what was committed then (`confirm`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from penstock import faults
from penstock.errors import MalformedCommandError
from penstock.jetstream.meta.meta_commands import MetaCommand, decode_command, encode_command
from penstock.jetstream.meta.meta_effects import MetaEffect
from penstock.jetstream.meta.meta_machine import MetaMachine
from penstock.jetstream.meta.meta_tables import MetaTables
from penstock.raft.membership import Membership
from penstock.raft.raft_messages import ReplicaId
from penstock.raft.raft_replica import Role
from penstock.replication.group_port import MAIL_BYTES_MAX, ProposalId
from penstock.replication.replica_group import ReplicaGroup

META_GROUP = "_meta_"
QUESTIONS_MAX = 256
QUESTION_NS = 5_000_000_000
HOLD_NS = 1_500_000_000
"""So long commands and requests wait for the next leader."""
HELD_MAX = 1000
LATE_NS = 200_000_000
"""So long after its end a leader passes on requests that it still gets."""


class _Mail(msgspec.Struct, frozen=True, array_like=True):
    """Between the replicas. kind: "command", "request", "question" or "answer". command: also a request of a
    client, as its server encoded it. number: of the question. index: up to which the asking server must have
    applied. left_ns: for how long a command may wait; 0: for HOLD_NS."""

    kind: str
    command: bytes = b""
    number: int = 0
    index: int = 0
    left_ns: int = 0


class _Held(msgspec.Struct, frozen=True):
    """A command, or a client's request (is_request), that waits for a leader until `until`."""

    data: bytes
    until: int
    is_request: bool


class _PendingRead(msgspec.Struct):
    """A read that waits to be current. lost: called when it will not be. index: to be applied first; -1 while
    the leader has not answered."""

    done: Callable[[], object]
    lost: Callable[[], object]
    asked: int
    index: int = -1

    def answered(self, index: int) -> None:
        """The leader has confirmed it."""
        self.index = index


def _nothing() -> None:
    """A lost read concerns no one."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Mail)


class MetaListener(Protocol):
    """Who acts on what the meta group decides."""

    def meta_changed(self, effects: list[MetaEffect], *, leads: bool, is_own: bool) -> None:
        """A command was applied. leads: this server leads. is_own: it proposed the command, and answers."""

    def meta_replaced(self) -> None:
        """The state is another one: of a checkpoint, or of another server."""

    def meta_role_changed(self, *, leads: bool) -> None:
        """Another server leads, or this one, or none."""

    def meta_request(self, request: bytes) -> None:
        """This server leads, and a request that waited for a leader is to be served."""

    def meta_gave_up(self, command: MetaCommand) -> None:
        """No leader took a command in time. It is not proposed, and will not be."""

    def meta_failed(self, why: str) -> None:
        """The replica applies no more."""


class MetaReplica:
    """Implements replication.group_port.GroupOwner. own_peer: the id of this server. clock: ns since
    1970. monotonic: ns of the node.

    group: None until this server has begun or joined the group. is_serving: it leads, and has applied what
    earlier leaders committed. failure: why it applies no more, "" while it does.
    """

    def __init__(
        self,
        listener: MetaListener,
        own_peer: str,
        clock: Callable[[], int],
        monotonic: Callable[[], int],
    ) -> None:
        self.own_peer = own_peer
        self._listener = listener
        self._clock = clock
        self._monotonic = monotonic
        self._machine = MetaMachine()
        self._index = 0
        self._questions: dict[int, _PendingRead] = {}
        self._asked_by: dict[int, tuple[ReplicaId, int]] = {}  # context: who asked, under which number
        self._number = 0
        self._proposed: dict[int, tuple[int, bytes]] = {}  # term and command of own proposals, by index
        self._held: list[_Held] = []
        self._late_until = 0
        self.group: ReplicaGroup | None = None
        self.is_serving = False
        self.failure = ""
        self.leaderless_since: int | None = monotonic()
        self.leader: ReplicaId | None = None
        self._was_confirmed = False

    # --- for the server

    def use(self, group: ReplicaGroup) -> None:
        """The group has begun here."""
        self.group = group

    @property
    def tables(self) -> MetaTables:
        """The state, for reading."""
        return self._machine.tables

    @property
    def applied_index(self) -> int:
        """The last entry in the state."""
        return self._index

    @property
    def was_current(self) -> bool:
        """Whether the state had everything that was committed at some time since this server started. Before,
        it may be one that this server's own log has left behind."""
        return self._was_confirmed or self.is_serving

    def leaderless_ns(self) -> int:
        """For how long no leader is known; 0 with one."""
        return 0 if self.leaderless_since is None else self._monotonic() - self.leaderless_since

    def propose(self, command: MetaCommand) -> bool:
        """Proposes a command; False when this server does not lead, hands over, or too much is not
        committed."""
        return self._propose(encode_command(command, self._clock()))

    def _propose(self, data: bytes) -> bool:
        if self.group is None or not self.is_serving or self.failure:
            return False
        proposal = self.group.propose(data)
        if proposal is not None:
            self._proposed[proposal.index] = (proposal.term, data)
        return proposal is not None

    def request(self, command: MetaCommand) -> bool:
        """Proposes the command of a request, or holds it for the next leader. False: too much is held."""
        return self.propose(command) or self._defer(encode_command(command, self._clock()), HOLD_NS)

    def defer_request(self, request: bytes) -> bool:
        """Holds a client's request for the next leader, whose listener gets it (`meta_request`). False: too
        much is held."""
        return self._defer(request, HOLD_NS, is_request=True)

    @property
    def awaits_leader(self) -> bool:
        """Whether this server is a member and knows no leader, or was the leader a moment ago: the next one
        may have got a request before it led, and this server after it had ended."""
        if self.group is None or self.is_serving:
            return False
        return self.leader is None or self._monotonic() < self._late_until

    @property
    def _is_handing_over(self) -> bool:
        return self.group is not None and self.group.is_handing_over

    def _defer(self, data: bytes, left_ns: int, *, is_request: bool = False) -> bool:
        if self.failure or len(self._held) >= HELD_MAX or len(data) > MAIL_BYTES_MAX - 64:
            return False
        self._held.append(_Held(data, self._monotonic() + min(left_ns, HOLD_NS), is_request))
        return True

    def tick(self) -> None:
        """Passes on what is held: to the group, which this server leads, or to the leader that there is now.
        Gives up what has waited too long."""
        self._forget_old_questions()
        held, self._held = self._held, []
        now = self._monotonic()
        for one in held:
            if one.until <= now:
                if not one.is_request:
                    self._listener.meta_gave_up(decode_command(one.data)[0])
            elif not self._pass_on(one, now):
                self._held.append(one)

    def _pass_on(self, one: _Held, now: int) -> bool:
        """Returns False while there is no leader."""
        if self.group is None or self._is_handing_over:
            return False
        if self.is_serving:
            if one.is_request:
                self._listener.meta_request(one.data)
                return True
            return self._propose(encode_command(decode_command(one.data)[0], self._clock()))
        if self.leader is None or self.leader == self.group.replica.name:
            return False
        kind = "request" if one.is_request else "command"
        self.group.send(self.leader, _encoder.encode(_Mail(kind, one.data, left_ns=one.until - now)))
        return True

    def submit(self, command: MetaCommand) -> bool:
        """Proposes a command here or at the leader. It may be lost on the way; False: no leader is known."""
        if self.is_serving:
            return self.propose(command)
        if self.group is None or self.leader is None or self.failure:
            return False
        mail = _Mail("command", encode_command(command, self._clock()))
        self.group.send(self.leader, _encoder.encode(mail))
        return True

    def confirm(self, done: Callable[[], object], lost: Callable[[], object] = _nothing) -> bool:
        """Calls `done` when the state has everything that was committed before this call; `lost` when the
        leadership of this server ends before, or nothing is heard for QUESTION_NS. False: no leader is known,
        or it hands over; then neither is called."""
        if self.group is None or self.failure or len(self._questions) >= QUESTIONS_MAX:
            return False
        self._number += 1
        number = self._number
        if self.is_serving:
            if not self.group.read_index(number):
                return False
        elif self.leader is not None and self.leader != self.group.replica.name:
            self.group.send(self.leader, _encoder.encode(_Mail("question", number=number)))
        else:
            return False
        self._questions[number] = _PendingRead(done, lost, self._monotonic())
        return True

    def _forget_old_questions(self) -> None:
        """A question to another server may be lost, or its answer."""
        oldest = self._monotonic() - QUESTION_NS
        while self._questions:
            number, first = next(iter(self._questions.items()))  # the one that was asked first
            if first.asked >= oldest:
                return
            self.read_lost(number)

    def _answer_questions(self) -> None:
        ready = [number for number, one in self._questions.items() if 0 <= one.index <= self._index]
        for number in ready:
            self._confirmed(number)

    def _confirmed(self, number: int) -> None:
        question = self._questions.pop(number, None)
        if question is not None:
            self._was_confirmed = True
            faults.contain(question.done, _reading_failed)

    # --- GroupOwner

    def restored(self, index: int, term: int, data: bytes) -> None:
        self._take(index, data)

    def _take(self, index: int, data: bytes) -> None:
        self._machine = MetaMachine.restore(data) if data else MetaMachine()
        self._index = index
        self._listener.meta_replaced()

    def committed(self, index: int, term: int, payload: bytes) -> None:
        effects = self._machine.apply_entry(payload, index)
        self._index = index
        own = self._proposed.get(index)
        is_own = own is not None and own[0] == term
        if is_own:
            del self._proposed[index]
        self._listener.meta_changed(effects, leads=self.is_serving, is_own=is_own)
        if self._questions:
            self._answer_questions()

    def handing_over(self) -> None:
        """What comes now is kept for the next leader."""

    def proposal_lost(self, proposal: ProposalId, *, is_certain: bool) -> None:
        """A request that was certainly not done goes to the next leader. Else its client asks again, and what
        this server wants it proposes again."""
        own = self._proposed.get(proposal.index)
        if own is not None and own[0] == proposal.term:
            del self._proposed[proposal.index]
            ticket: bytes = getattr(decode_command(own[1])[0], "ticket", b"")
            if is_certain and ticket:
                self._defer(own[1], HOLD_NS)

    def role_changed(self, role: Role, term: int, leader: ReplicaId | None) -> None:
        if self.is_serving and role is not Role.LEADER:
            self._late_until = self._monotonic() + LATE_NS
        self.is_serving = role is Role.LEADER
        self.leader = leader
        if leader is None:
            if self.leaderless_since is None:
                self.leaderless_since = self._monotonic()
        else:
            self.leaderless_since = None
        if not self.is_serving:
            self._asked_by.clear()
        self._listener.meta_role_changed(leads=self.is_serving)
        self.tick()

    def membership_changed(self, membership: Membership) -> None:
        """The server compares it with what it wants from time to time."""

    def read_ready(self, context: int, index: int) -> None:
        asked = self._asked_by.pop(context, None)
        if asked is not None:
            who, number = asked
            if self.group is not None:
                self.group.send(who, _encoder.encode(_Mail("answer", number=number, index=self._index)))
            return
        self._confirmed(context)

    def read_lost(self, context: int) -> None:
        self._asked_by.pop(context, None)
        question = self._questions.pop(context, None)
        if question is not None:
            faults.contain(question.lost, _reading_failed)

    def take_snapshot(self, done: Callable[[bytes | None], None]) -> None:
        done(self._machine.snapshot())

    def install_snapshot(
        self, index: int, term: int, data: bytes, leader: ReplicaId, done: Callable[[bool], None]
    ) -> None:
        self._take(index, data)
        done(True)

    def received(self, sender: ReplicaId, payload: bytes) -> None:
        try:
            mail = _decoder.decode(payload)
            if mail.kind == "command":
                if not self.propose(decode_command(mail.command)[0]):
                    self._defer(mail.command, mail.left_ns or HOLD_NS)
            elif mail.kind == "request":
                self._defer(mail.command, mail.left_ns, is_request=True)
                self.tick()
            elif mail.kind == "question":
                self._asked(sender, mail.number)
            elif mail.kind == "answer":
                self._answered(mail)
        except (msgspec.DecodeError, ValueError, MalformedCommandError) as error:
            faults.note(f"mail of {sender} to the meta group", error)

    def _asked(self, sender: ReplicaId, number: int) -> None:
        if self.group is None or not self.is_serving or len(self._asked_by) >= QUESTIONS_MAX:
            return
        self._number += 1
        if self.group.read_index(self._number):
            self._asked_by[self._number] = (sender, number)

    def _answered(self, mail: _Mail) -> None:
        question = self._questions.get(mail.number)
        if question is not None:
            question.answered(mail.index)
            self._answer_questions()

    def failed(self, error: Exception) -> None:
        self.failure = str(error) or type(error).__name__
        self.is_serving = False
        self._listener.meta_failed(self.failure)


def _reading_failed(error: Exception) -> None:
    faults.note("what waited for the meta group", error)
