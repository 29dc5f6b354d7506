"""Infos of streams and consumers for lists: the meta leader asks all servers, and the leaders of the groups
answer.

Invariant: every list is completed once, with what came before its deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from penstock.jetstream.api.consumer_requests import info_of
from penstock.jetstream.api.stream_requests import info_fields
from penstock.protocol.api import ApiStreamInfo, encode
from penstock.protocol.numbers import natural

if TYPE_CHECKING:
    from penstock.jetstream.engine import JetStreamEngine
    from penstock.kernels.wire.sinks import Sink, SinkSubscription
    from penstock.routing.account import Account
    from penstock.server.replicated.stream_group_owner import StreamGroup

SUBJECT = "$SYS.PENSTOCK.INFOS"
TIMEOUT_S = 4.0
GATHERING_MAX = 1000
ANSWER_BYTES_MAX = 256 * 1024


class _InfoQuestion(msgspec.Struct, frozen=True, array_like=True):
    """stream: "" for infos of the named streams, else of the named consumers of this one."""

    account: str
    stream: str
    names: list[str]


class _InfoAnswer(msgspec.Struct, frozen=True, array_like=True):
    """Encoded infos by name."""

    infos: dict[str, bytes]


class _Gathering(msgspec.Struct):
    """A list in progress."""

    missing: set[str]
    infos: dict[str, Any]
    done: Callable[[dict[str, Any]], object]
    timer: asyncio.TimerHandle


_encoder = msgspec.msgpack.Encoder()
_questions = msgspec.msgpack.Decoder(_InfoQuestion)
_answers = msgspec.msgpack.Decoder(_InfoAnswer)


class Leaders(Protocol):
    """What answers need."""

    def find_group(self, account: str, stream: str) -> StreamGroup | None:
        """The group of a stream on this server."""

    def engine_of(self, account: str) -> JetStreamEngine:
        """The engine of an account."""


class InfoGathering:
    """See the module.

    Args:
        account: the system account.
        own_peer: the id of this server.
        leaders: the groups of this server.
        call_later: callable(seconds, callback) of the event loop.
    """

    def __init__(
        self,
        account: Account,
        own_peer: str,
        leaders: Leaders,
        call_later: Callable[..., asyncio.TimerHandle],
    ) -> None:
        self._account = account
        self._own_peer = own_peer
        self._leaders = leaders
        self._call_later = call_later
        self._number = 0
        self._open: dict[int, _Gathering] = {}
        self._subscriptions: list[SinkSubscription] = [
            account.subscribe_service(f"{SUBJECT}.Q".encode(), self._asked),
            account.subscribe_service(f"{SUBJECT}.A.{own_peer}.*".encode(), self._answered),
        ]

    def gather(
        self, account: str, stream: str, names: list[str], done: Callable[[dict[str, Any]], object]
    ) -> None:
        """Asks for infos; calls done({name: encoded info}) when all have come, or after TIMEOUT_S."""
        question = _InfoQuestion(account, stream, names)
        infos = {name: msgspec.Raw(data) for name, data in self._own(question).items()}
        missing = set(names) - set(infos)
        if not missing or len(self._open) >= GATHERING_MAX:
            done(infos)
            return
        self._number += 1
        timer = self._call_later(TIMEOUT_S, self._finish, self._number)
        self._open[self._number] = _Gathering(missing, infos, done, timer)
        reply = f"{SUBJECT}.A.{self._own_peer}.{self._number}".encode()
        self._account.publish(f"{SUBJECT}.Q".encode(), _encoder.encode(question), reply=reply)

    def close(self) -> None:
        """Ends all lists without an answer."""
        for subscription in self._subscriptions:
            self._account.unsubscribe(subscription)
        for one in self._open.values():
            one.timer.cancel()
        self._open.clear()

    def _finish(self, number: int) -> None:
        gathering = self._open.pop(number, None)
        if gathering is not None:
            gathering.timer.cancel()
            gathering.done(gathering.infos)

    def _asked(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None
    ) -> None:
        if not reply or reply.startswith(f"{SUBJECT}.A.{self._own_peer}.".encode()):
            return
        try:
            question = _questions.decode(payload)
        except (msgspec.DecodeError, ValueError):
            return
        part: dict[str, bytes] = {}
        size = 0
        for name, data in self._own(question).items():
            part[name] = data
            size += len(data)
            if size > ANSWER_BYTES_MAX:
                self._account.publish(reply, _encoder.encode(_InfoAnswer(part)))
                part, size = {}, 0
        if part:
            self._account.publish(reply, _encoder.encode(_InfoAnswer(part)))

    def _answered(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None
    ) -> None:
        number = natural(subject.rpartition(b".")[2])
        gathering = self._open.get(number) if number is not None else None
        if number is None or gathering is None:
            return
        try:
            answer = _answers.decode(payload)
        except (msgspec.DecodeError, ValueError):
            return
        for name, data in answer.infos.items():
            if name in gathering.missing:
                gathering.missing.discard(name)
                gathering.infos[name] = msgspec.Raw(data)
        if not gathering.missing:
            self._finish(number)

    def _own(self, question: _InfoQuestion) -> dict[str, bytes]:
        """The infos of what this server leads."""
        found: dict[str, bytes] = {}
        if question.stream:
            group = self._leaders.find_group(question.account, question.stream)
            if group is None or not group.is_serving or group.replica is None:
                return found
            engine = self._leaders.engine_of(question.account)
            consumers = group.replica.stream.consumers
            for name in question.names:
                if name in consumers:
                    found[name] = encode(info_of(engine, consumers[name], engine.clock()))
            return found
        for name in question.names:
            group = self._leaders.find_group(question.account, name)
            if group is not None and group.is_serving and group.replica is not None:
                engine = self._leaders.engine_of(question.account)
                fields = info_fields(engine, group.replica.stream, engine.clock())
                found[name] = encode(ApiStreamInfo(**fields))
        return found
