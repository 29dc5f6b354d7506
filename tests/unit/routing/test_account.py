"""Accounts: closed worlds, each with its own index."""

from __future__ import annotations

import pytest

from penstock.kernels.wire.dispatch import ClientSink
from penstock.kernels.wire.sinks import DirtyList, Sink, SinkSubscription
from penstock.routing.account import Account

pytestmark = pytest.mark.feature("security.accounts")


def subscribed(account: Account, subject: bytes) -> ClientSink:
    sink = ClientSink(DirtyList())
    sink.headers = True
    account.index.insert(SinkSubscription(sink, subject, b"", b"1"))
    return sink


def test_a_message_stays_in_its_account() -> None:
    one, two = Account("one"), Account("two")
    first, second = subscribed(one, b">"), subscribed(two, b">")
    assert one.publish(b"a", b"hi", reply=b"r", header=b"NATS/1.0\r\n\r\n") == 1
    assert first.take() == b"HMSG a 1 r 12 14\r\nNATS/1.0\r\n\r\nhi\r\n"
    assert second.take() == b""


def test_a_service_is_called_with_everything_after_what_must_come_before() -> None:
    account = Account("one")
    calls: list[object] = []

    def callback(subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None) -> None:
        calls.append((subject, reply, header, payload, origin))

    account.subscribe_service(b"svc.*", callback, lambda: calls.append("before"))
    account.publish(b"svc.x", b"hi", reply=b"r")
    assert calls == ["before", (b"svc.x", b"r", b"", b"hi", None)]


def test_an_ended_subscription_gets_nothing() -> None:
    account, calls = Account("one"), []
    subscription = account.subscribe_service(b"svc", lambda *message: calls.append(message))
    account.unsubscribe(subscription)
    assert account.publish(b"svc", b"") == 0
    assert calls == []
    assert account.index.count == 0
