"""This server's replica of the meta group: the owner of the group, and who proposes to it.

Followers forward their commands to the leader by the group's mail, which may be lost: who wants something
looks at the state again after a while. The leader gives each command its time.

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
from penstock.replication.group_port import ProposalId
from penstock.replication.replica_group import ReplicaGroup

META_GROUP = "_meta_"
QUESTIONS_MAX = 256
QUESTION_NS = 5_000_000_000


class _Mail(msgspec.Struct, frozen=True, array_like=True):
    """Between the replicas. kind: "command", "question" or "answer". number: of the question. index: up to
    which the asking server must have applied."""

    kind: str
    command: bytes = b""
    number: int = 0
    index: int = 0


class _PendingRead(msgspec.Struct):
    """A read that waits to be current. index: to be applied first; -1 while the leader has not answered."""

    done: Callable[[], object]
    asked: int
    index: int = -1

    def answered(self, index: int) -> None:
        """The leader has confirmed it."""
        self.index = index


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Mail)


class MetaListener(Protocol):
    """Who acts on what the meta group decides."""

    def meta_changed(self, effects: list[MetaEffect], *, leads: bool) -> None:
        """A command was applied. leads: this server leads, and answers."""

    def meta_replaced(self) -> None:
        """The state is another one: of a checkpoint, or of another server."""

    def meta_role_changed(self, *, leads: bool) -> None:
        """Another server leads, or this one, or none."""

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
        self.group: ReplicaGroup | None = None
        self.is_serving = False
        self.failure = ""
        self.leaderless_since: int | None = monotonic()
        self.leader: ReplicaId | None = None

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

    def leaderless_ns(self) -> int:
        """For how long no leader is known; 0 with one."""
        return 0 if self.leaderless_since is None else self._monotonic() - self.leaderless_since

    def propose(self, command: MetaCommand) -> bool:
        """Proposes a command; False when this server does not lead, or too much is not committed."""
        if self.group is None or not self.is_serving or self.failure:
            return False
        return self.group.propose(encode_command(command, self._clock())) is not None

    def submit(self, command: MetaCommand) -> bool:
        """Proposes a command here or at the leader. It may be lost on the way; False: no leader is known."""
        if self.is_serving:
            return self.propose(command)
        if self.group is None or self.leader is None or self.failure:
            return False
        mail = _Mail("command", encode_command(command, self._clock()))
        self.group.send(self.leader, _encoder.encode(mail))
        return True

    def confirm(self, done: Callable[[], object]) -> bool:
        """Calls `done` when the state has everything that was committed before this call; never, when the
        question or its answer is lost. False: no leader is known."""
        self._forget_old_questions()
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
        self._questions[number] = _PendingRead(done, self._monotonic())
        return True

    def _forget_old_questions(self) -> None:
        oldest = self._monotonic() - QUESTION_NS
        for number in [number for number, one in self._questions.items() if one.asked < oldest]:
            del self._questions[number]

    def _answer_questions(self) -> None:
        ready = [number for number, one in self._questions.items() if 0 <= one.index <= self._index]
        for number in ready:
            question = self._questions.pop(number, None)
            if question is not None:
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
        self._listener.meta_changed(effects, leads=self.is_serving)
        if self._questions:
            self._answer_questions()

    def proposal_lost(self, proposal: ProposalId, *, is_certain: bool) -> None:
        """Its client asks again, and what this server wants it proposes again."""

    def role_changed(self, role: Role, term: int, leader: ReplicaId | None) -> None:
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

    def membership_changed(self, membership: Membership) -> None:
        """The server compares it with what it wants from time to time."""

    def read_ready(self, context: int, index: int) -> None:
        asked = self._asked_by.pop(context, None)
        if asked is not None:
            who, number = asked
            if self.group is not None:
                self.group.send(who, _encoder.encode(_Mail("answer", number=number, index=self._index)))
            return
        question = self._questions.pop(context, None)
        if question is not None:
            faults.contain(question.done, _reading_failed)

    def read_lost(self, context: int) -> None:
        self._asked_by.pop(context, None)
        self._questions.pop(context, None)

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
                self.propose(decode_command(mail.command)[0])
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
