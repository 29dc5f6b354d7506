"""What a consumer causes besides deliveries leaves once, when its owner releases it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.errors import StoreWriteError
from penstock.jetstream.advisories import Advisories
from penstock.jetstream.consumer.consumer_effects import ConsumerEffects
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import ServiceSink, publish
from penstock.kernels.wire.sinks import Sink, SinkSubscription
from tests.support.consumers import SECOND, ConsumerHarness

pytestmark = pytest.mark.feature("consumer.ack-sync")

NAKED = "$JS.EVENT.ADVISORY.CONSUMER.MSG_NAKED.S.x"


class Effects:
    """Effects of a consumer x of a stream S without either; `left` is what was released."""

    def __init__(self, listens_at: bytes) -> None:
        self.left: list[Any] = []
        self.index = SubscriptionIndex()
        self.index.insert(SinkSubscription(ServiceSink(self._heard), listens_at))
        self.effects = ConsumerEffects(
            self.index, Advisories(self.index, clock=lambda: 5, new_id=lambda: "id1")
        )

    def _heard(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None
    ) -> None:
        self.left.append((subject, header, payload))
        if subject == b"reply.again":
            self.effects.status(b"reply.2", b"status")


def test_what_was_collected_leaves_once_and_in_its_order() -> None:
    one = Effects(b">")
    one.effects.status(b"reply.1", b"status")
    one.effects.advisory("CONSUMER.MSG_NAKED.S.x", "nak", {"stream": "S"})
    one.effects.status(b"reply.2", b"status")
    assert one.left == []
    one.effects.release()
    one.effects.release()
    assert [subject for subject, _, _ in one.left] == [b"reply.1", NAKED.encode(), b"reply.2"]
    event = {"type": "io.nats.jetstream.advisory.v1.nak", "id": "id1", "stream": "S"}
    assert event.items() <= json.loads(one.left[1][2]).items()


def test_a_confirmation_waits_for_the_write_and_no_release_sends_it_before() -> None:
    one = Effects(b"reply.>")
    one.effects.confirmation(b"reply.1")
    one.effects.release()
    assert one.left == []
    assert one.effects.unwritten
    one.effects.written()
    assert one.left == []
    one.effects.release()
    assert one.left == [(b"reply.1", b"", b"")]


def test_an_owner_that_stops_confirms_nothing_that_is_not_written() -> None:
    one = Effects(b"reply.>")
    one.effects.confirmation(b"reply.1")
    one.effects.drop_unwritten()
    one.effects.written()
    one.effects.release()
    assert one.left == []


def test_an_advisory_without_a_subscriber_is_not_collected() -> None:
    one = Effects(b"reply.>")
    one.effects.advisory("CONSUMER.MSG_NAKED.S.x", "nak", {})
    assert one.effects.waiting == []


def test_what_a_release_leads_to_waits_for_the_next_one() -> None:
    one = Effects(b"reply.>")
    one.effects.status(b"reply.again", b"status")
    one.effects.release()
    assert [subject for subject, _, _ in one.left] == [b"reply.again"]
    one.effects.release()
    assert [subject for subject, _, _ in one.left] == [b"reply.again", b"reply.2"]


def test_a_dead_letter_that_finds_no_stream_is_reported() -> None:
    one = Effects(b"reply.>")
    unheard: list[str] = []
    for subject in (b"reply.1", b"nothing"):
        one.effects.dead_letter(subject, b"", b"", b"payload", lambda: unheard.append("no stream"))
    one.effects.release()
    assert one.left == [(b"reply.1", b"", b"payload")]
    assert unheard == ["no stream"]


@pytest.mark.parametrize("body", [b'{"no_wait":true}', b"{", b'{"batch":5,"min_pending":1}'])
def test_a_refused_pull_request_gets_its_status_at_the_end_of_the_tick(body: bytes) -> None:
    bench = ConsumerHarness()
    bench.consumer("x")
    inbox = bench.inbox()
    publish(bench.index, b"$JS.API.CONSUMER.MSG.NEXT.S.x", inbox.subject, b"", body)
    assert inbox.take() == []
    bench.tick()
    assert len(inbox.statuses()) == 1


def test_requests_that_an_info_finds_expired_get_their_status_in_the_same_tick() -> None:
    bench = ConsumerHarness()
    bench.consumer("x")
    inbox = bench.pull("x", {"batch": 1, "expires": SECOND})
    bench.now += 2 * SECOND
    assert bench.info("x")["num_waiting"] == 0
    assert inbox.statuses() == ["408 Request Timeout"]


def test_a_consumer_taken_offline_confirms_no_ack_that_its_store_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = ConsumerHarness()
    consumer = bench.consumer("x")
    bench.store_messages("s.1")
    message = bench.pull("x").take()[0]
    waiting = bench.pull("x", {"batch": 1, "expires": 9 * SECOND})
    confirmed = bench.listen(b"_SURE")

    def fail() -> None:
        raise StoreWriteError("disk full")

    with monkeypatch.context() as broken:
        broken.setattr(consumer.store, "write", fail)
        bench.ack(message, b"", b"_SURE")
        bench.tick()
    consumer.abandon()
    assert waiting.statuses() == ["409 Leadership Change"]
    bench.tick()
    assert confirmed == []
