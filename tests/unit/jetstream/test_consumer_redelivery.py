"""Acks in all their forms, and when a message comes again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.errors import StoreWriteError
from tests.support.consumers import MS, SECOND, ConsumerHarness, Delivered, Inbox


class Acking:
    """Five messages delivered to an inbox that wants more."""

    def __init__(self, count: int = 5, **config: Any) -> None:
        self.bench = ConsumerHarness()
        self.bench.store_messages(*[f"s.{i}" for i in range(count)])
        self.bench.consumer("x", **config)
        self.inbox: Inbox = self.bench.pull("x", {"batch": 1000})
        self.messages: list[Delivered] = self.inbox.take()

    def ack(self, n: int, body: bytes = b"", reply: bytes = b"") -> None:
        """Of the nth message, from 1."""
        self.bench.ack(self.messages[n - 1], body, reply)

    def again(self) -> list[tuple[int, int]]:
        """[(stream sequence, deliveries)] of what came since."""
        self.bench.tick()
        return [(one.seq, one.numbers[0]) for one in self.inbox.take()]


@pytest.mark.feature("consumer.ack")
def test_the_floor_moves_when_the_oldest_message_is_acked() -> None:
    acking = Acking()
    acking.ack(2)
    assert acking.bench.floors("x") == (5, 5, 0, 0)
    acking.ack(1)
    assert acking.bench.floors("x") == (5, 5, 2, 2)
    for n in (3, 4, 5):
        acking.ack(n)
    info = acking.bench.info("x")
    assert info["ack_floor"]["stream_seq"] == 5
    assert info["num_ack_pending"] == 0
    assert info["ack_floor"]["last_active"] == info["ts"]


@pytest.mark.feature("consumer.ack-policy")
def test_an_ack_of_all_takes_everything_before_it() -> None:
    acking = Acking(ack_policy="all")
    acking.ack(3)
    info = acking.bench.info("x")
    assert (info["num_ack_pending"], info["ack_floor"]["stream_seq"]) == (2, 3)
    acking.bench.pass_time(30 * SECOND)
    assert acking.again() == [(4, 2), (5, 2)]


@pytest.mark.feature("consumer.ack-policy")
def test_without_acks_what_is_delivered_is_done() -> None:
    acking = Acking(ack_policy="none")
    assert acking.bench.floors("x") == (5, 5, 5, 5)
    acking.bench.pass_time(SECOND)
    assert acking.again() == []


@pytest.mark.feature("consumer.ack-wait")
def test_what_is_not_acked_in_time_comes_again_before_new_messages() -> None:
    acking = Acking(ack_wait=SECOND, max_ack_pending=5)
    acking.ack(2)
    acking.ack(4)
    acking.bench.tick()
    acking.bench.pass_time(SECOND - 1)
    assert acking.again() == []
    acking.bench.store_messages("s.new")
    assert acking.again() == [(6, 1)]
    acking.bench.pass_time(1)
    assert acking.again() == [(1, 2), (3, 2), (5, 2)]
    info = acking.bench.info("x")
    assert (info["num_redelivered"], info["num_ack_pending"]) == (3, 4)


@pytest.mark.feature("consumer.ack-wait")
def test_a_redelivered_message_acked_once_is_acked() -> None:
    acking = Acking(count=1, ack_wait=SECOND)
    acking.bench.pass_time(SECOND)
    assert acking.again() == [(1, 2)]
    acking.ack(1)
    assert acking.bench.floors("x") == (2, 1, 2, 1)
    assert acking.bench.info("x")["num_redelivered"] == 0


@pytest.mark.feature("consumer.backoff")
def test_a_backoff_gives_each_delivery_its_own_wait() -> None:
    acking = Acking(count=1, backoff=[SECOND, 3 * SECOND])
    acking.bench.pass_time(SECOND)
    assert acking.again() == [(1, 2)]
    acking.bench.pass_time(3 * SECOND - 1)
    assert acking.again() == []
    acking.bench.pass_time(1)
    assert acking.again() == [(1, 3)]
    acking.bench.pass_time(3 * SECOND)
    assert acking.again() == [(1, 4)]


@pytest.mark.feature("consumer.nak")
def test_a_nak_brings_it_again_at_once() -> None:
    acking = Acking()
    acking.ack(3, b"-NAK")
    acking.ack(2, b"-NAK")
    assert acking.again() == [(3, 2), (2, 2)]


@pytest.mark.feature("consumer.nak")
@pytest.mark.parametrize("body", [b'-NAK {"delay": 2000000000}', b"-NAK 2s"])
@pytest.mark.parametrize("config", [{}, {"backoff": [5 * SECOND, 9 * SECOND]}])
def test_a_nak_with_a_delay_brings_it_again_after_the_delay(body: bytes, config: dict[str, Any]) -> None:
    acking = Acking(count=1, **config)
    acking.ack(1, body)
    assert acking.again() == []
    acking.bench.pass_time(2 * SECOND - 1)
    assert acking.again() == []
    acking.bench.pass_time(1)
    assert acking.again() == [(1, 2)]


@pytest.mark.feature("consumer.nak")
def test_a_nak_whose_delay_can_not_be_read_is_a_plain_one() -> None:
    acking = Acking(count=1)
    acking.ack(1, b"-NAK soon")
    assert acking.again() == [(1, 2)]


@pytest.mark.feature("consumer.in-progress")
def test_progress_begins_the_wait_again() -> None:
    acking = Acking(count=2, ack_wait=SECOND)
    acking.bench.pass_time(900 * MS)
    acking.ack(1, b"+WPI")
    acking.bench.tick()
    acking.bench.pass_time(100 * MS)
    assert acking.again() == [(2, 2)]
    acking.bench.pass_time(900 * MS)
    assert acking.again() == [(1, 2)]


@pytest.mark.feature("consumer.term")
def test_a_term_settles_it_for_good() -> None:
    acking = Acking(count=1, ack_wait=SECOND)
    heard = acking.bench.listen(b"$JS.EVENT.ADVISORY.CONSUMER.>")
    acking.ack(1, b"+TERM it is broken")
    assert acking.bench.floors("x") == (1, 1, 1, 1)
    acking.bench.pass_time(SECOND)
    assert acking.again() == []
    [(subject, _, payload)] = heard
    assert subject == b"$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.S.x"
    assert (
        json.loads(payload).items()
        >= {
            "type": "io.nats.jetstream.advisory.v1.terminated",
            "stream": "S",
            "consumer": "x",
            "stream_seq": 1,
            "consumer_seq": 1,
            "deliveries": 1,
            "reason": "it is broken",
        }.items()
    )


@pytest.mark.feature("consumer.nak")
def test_a_nak_is_announced() -> None:
    acking = Acking(count=1)
    heard = acking.bench.listen(b"$JS.EVENT.ADVISORY.CONSUMER.MSG_NAKED.S.x")
    acking.ack(1, b"-NAK")
    acking.bench.tick()
    assert json.loads(heard[0][2]).items() >= {"stream_seq": 1, "consumer_seq": 1, "deliveries": 1}.items()


@pytest.mark.feature("consumer.ack-next")
@pytest.mark.parametrize("body", [b"+NXT", b"+NXT 2", b'+NXT {"batch": 2}'])
def test_an_ack_may_ask_for_the_next_messages(body: bytes) -> None:
    bench = ConsumerHarness()
    bench.store_messages("s.1", "s.2", "s.3", "s.4")
    bench.consumer("x")
    inbox = bench.pull("x", b"1")
    [first] = inbox.take()
    bench.ack(first, body, inbox.subject)
    bench.tick()
    assert inbox.seqs() == ([2] if body == b"+NXT" else [2, 3])
    assert bench.floors("x")[3] == 1


@pytest.mark.feature("consumer.ack-sync")
def test_a_confirmation_leaves_only_after_the_ack_is_written() -> None:
    acking = Acking()
    confirmed = acking.bench.listen(b"_SURE")
    engine = acking.bench.engine
    for n, body in ((1, b""), (2, b"+ACK"), (3, b"+WPI"), (4, b"-NAK"), (5, b"+TERM")):
        acking.ack(n, body, b"_SURE")
    engine.tick.apply(acking.bench.now)
    assert confirmed == []
    engine.tick.write()
    assert confirmed == []
    engine.tick.acknowledge()
    assert confirmed == [(b"_SURE", b"", b"")] * 5


@pytest.mark.feature("consumer.ack-sync")
def test_nothing_is_confirmed_while_the_journal_can_not_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    acking = Acking(count=1)
    consumer = acking.bench.engine.streams["S"].consumers["x"]
    confirmed = acking.bench.listen(b"_SURE")

    def fail() -> None:
        raise StoreWriteError("disk full")

    with monkeypatch.context() as broken:
        broken.setattr(consumer.store, "write", fail)
        acking.ack(1, b"", b"_SURE")
        acking.bench.tick()
    assert confirmed == []
    acking.bench.engine.pending.touch_consumer(consumer)
    acking.bench.tick()
    assert confirmed == [(b"_SURE", b"", b"")]
    assert acking.bench.restarted().floors("x")[3] == 1


@pytest.mark.feature("consumer.ack-sync")
def test_what_a_delivery_writes_after_a_failed_write_is_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    acking = Acking(count=1)
    engine = acking.bench.engine
    consumer = engine.streams["S"].consumers["x"]
    confirmed = acking.bench.listen(b"_SURE")

    def fail() -> None:
        raise StoreWriteError("disk full")

    acking.ack(1, b"", b"_SURE")
    engine.tick.apply(acking.bench.now)
    with monkeypatch.context() as broken:
        broken.setattr(consumer.store, "write", fail)
        engine.tick.write()
    engine.tick.acknowledge()
    assert confirmed == []
    engine.tick.deliver(acking.bench.now)
    assert confirmed == [(b"_SURE", b"", b"")]
    acking.bench.tick()
    assert confirmed == [(b"_SURE", b"", b"")]


@pytest.mark.feature("consumer.ack-sync")
def test_an_ack_of_what_was_never_delivered_is_not_confirmed() -> None:
    acking = Acking()
    confirmed = acking.bench.listen(b"_SURE")
    late = acking.messages[0]._replace(reply=b"$JS.ACK.S.x.1.999.999.1.0")
    acking.bench.ack(late, b"", b"_SURE")
    acking.bench.tick()
    assert confirmed == []


@pytest.mark.feature("consumer.max-deliver")
def test_after_max_deliver_it_is_given_up_once_and_blocks_no_other() -> None:
    acking = Acking(count=3, ack_wait=SECOND, max_deliver=2, max_ack_pending=3)
    heard = acking.bench.listen(b"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.S.x")
    acking.ack(1)
    acking.bench.tick()
    acking.bench.pass_time(SECOND)
    assert acking.again() == [(2, 2), (3, 2)]
    acking.bench.pass_time(SECOND)
    assert acking.again() == []
    reported = [json.loads(payload) for _, _, payload in heard]
    assert [(one["stream_seq"], one["deliveries"]) for one in reported] == [(2, 2), (3, 2)]
    info = acking.bench.info("x")
    assert (info["num_ack_pending"], info["num_redelivered"]) == (0, 2)
    acking.bench.store_messages("s.new")
    assert acking.again() == [(4, 1)]
    acking.bench.pass_time(5 * SECOND)
    assert len(heard) == 3  # the new one, and no second time for the others


@pytest.mark.feature("consumer.max-deliver")
def test_a_nak_of_the_last_delivery_gives_it_up() -> None:
    acking = Acking(count=1, max_deliver=1)
    heard = acking.bench.listen(b"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.S.x")
    acking.ack(1, b"-NAK")
    assert acking.again() == []
    assert len(heard) == 1
    assert acking.bench.info("x")["num_redelivered"] == 0


def test_a_message_that_left_the_stream_does_not_come_again() -> None:
    acking = Acking(count=3, ack_wait=SECOND)
    acking.bench.api("STREAM.MSG.DELETE.S", {"seq": 2})
    acking.bench.pass_time(SECOND)
    assert acking.again() == [(1, 2), (3, 2)]
    assert acking.bench.info("x")["num_ack_pending"] == 2


def test_messages_that_limits_removed_are_settled() -> None:
    bench = ConsumerHarness(stream={"max_msgs": 3})
    bench.store_messages("s.1", "s.2", "s.3")
    bench.consumer("x", ack_wait=SECOND)
    inbox = bench.pull("x", b"3")
    assert inbox.seqs() == [1, 2, 3]
    bench.store_messages("s.4", "s.5")
    info = bench.info("x")
    assert (info["num_ack_pending"], info["ack_floor"]["stream_seq"]) == (1, 2)


@pytest.mark.feature("consumer.ack-wait")
def test_a_shorter_ack_wait_holds_for_what_is_pending() -> None:
    acking = Acking(count=1, ack_wait=60 * SECOND)
    acking.bench.pass_time(2 * SECOND)
    acking.bench.define("x", ack_policy="explicit", ack_wait=SECOND)
    acking.bench.pass_time(1)
    assert acking.again() == [(1, 2)]
