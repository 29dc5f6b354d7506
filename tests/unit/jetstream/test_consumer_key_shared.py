"""Key-shared delivery: one message of a key at a time and in order, different keys side by side."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.support.consumers import SECOND, ConsumerHarness, Delivered, Inbox

pytestmark = pytest.mark.feature("consumer.key-shared")

METADATA = {"penstock.key_token": "2"}


def key_shared(bench: ConsumerHarness, **config: Any) -> Any:
    return bench.consumer("c", durable_name="c", **{"metadata": METADATA, **config})


def pull(bench: ConsumerHarness, batch: int = 100) -> Inbox:
    return bench.pull("c", {"batch": batch, "expires": 60 * SECOND})


def test_a_key_has_one_message_in_flight_and_others_go_out_meanwhile() -> None:
    bench = ConsumerHarness()
    key_shared(bench)
    bench.store_messages("s.joe.1", "s.joe.2", "s.ann.1", "s.joe.3", "s.bob.1", "s.ann.2")
    inbox = pull(bench)
    got = inbox.take()
    assert [one.seq for one in got] == [1, 3, 5]
    info = bench.info("c")
    assert (info["num_ack_pending"], info["num_pending"]) == (3, 3)
    bench.ack(got[0])
    bench.tick()
    (second,) = inbox.take()
    assert (second.seq, second.subject) == (2, b"s.joe.2")
    bench.ack(second)
    bench.ack(got[1])
    bench.tick()
    assert sorted(inbox.seqs()) == [4, 6]


def test_a_message_that_comes_again_keeps_its_key_busy() -> None:
    bench = ConsumerHarness()
    key_shared(bench, ack_wait=SECOND)
    bench.store_messages("s.joe.1", "s.joe.2")
    inbox = pull(bench)
    assert inbox.seqs() == [1]
    bench.pass_time(1100 * 1_000_000)
    (again,) = inbox.take()
    assert again.numbers[:2] == (2, 1)
    bench.ack(again, b"-NAK")
    bench.tick()
    assert inbox.seqs() == [1]
    bench.ack(again, b"+TERM")
    bench.tick()
    assert inbox.seqs() == [2]


def test_a_message_given_up_frees_its_key() -> None:
    bench = ConsumerHarness()
    key_shared(bench, ack_wait=SECOND, max_deliver=1)
    bench.store_messages("s.joe.1", "s.joe.2")
    inbox = pull(bench)
    assert inbox.seqs() == [1]
    bench.pass_time(1100 * 1_000_000)
    assert inbox.seqs() == [2]


def test_what_waits_for_its_key_survives_a_restart() -> None:
    bench = ConsumerHarness()
    key_shared(bench)
    bench.store_messages("s.joe.1", "s.joe.2", "s.ann.1", "s.joe.3")
    got = pull(bench).take()
    assert [one.seq for one in got] == [1, 3]
    after = bench.restarted()
    assert after.info("c")["num_pending"] == 2
    inbox = pull(after)
    after.store_messages("s.joe.4", "s.bob.1")
    assert inbox.seqs() == [6]
    for seq in (1, 2, 4):
        after.ack(Delivered(b"", b"$JS.ACK.S.c.1.%d.%d.1.0" % (seq, seq), b"", b""))
        after.tick()
    assert inbox.seqs() == [2, 4, 5]


def test_removed_messages_free_their_keys() -> None:
    bench = ConsumerHarness()
    key_shared(bench)
    bench.store_messages("s.joe.1", "s.joe.2", "s.joe.3", "s.ann.1")
    inbox = pull(bench)
    assert inbox.seqs() == [1, 4]
    bench.request("$JS.API.STREAM.MSG.DELETE.S", {"seq": 2})
    bench.request("$JS.API.STREAM.PURGE.S", {"seq": 2})
    bench.tick()
    assert inbox.seqs() == [3]


def test_taking_the_keys_away_delivers_what_waited() -> None:
    bench = ConsumerHarness()
    key_shared(bench)
    bench.store_messages("s.joe.1", "s.joe.2", "s.joe.3")
    inbox = pull(bench)
    assert inbox.seqs() == [1]
    key_shared(bench, metadata={})
    bench.tick()
    assert inbox.seqs() == [2, 3]


def test_a_hot_key_holds_at_most_so_many_messages_back() -> None:
    bench = ConsumerHarness()
    consumer = key_shared(bench)
    consumer.pump.parked_max = 10
    bench.store_messages(*["s.hot.x"] * 20, "s.cold.x")
    inbox = pull(bench)
    assert inbox.seqs() == [1]
    assert consumer.state.num_parked == 10
    for seq in range(1, 12):
        bench.ack(Delivered(b"", b"$JS.ACK.S.c.1.%d.%d.1.0" % (seq, seq), b"", b""))
        bench.tick()
    assert 21 in inbox.seqs()


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_keys_are_in_order_and_everything_arrives(seed: int) -> None:
    """Two pullers, acks in any order, NAKs, restarts: at most one message of a key is in flight."""
    chance = random.Random(seed)
    bench = ConsumerHarness()
    key_shared(bench, ack_wait=3600 * SECOND)
    total = 150
    bench.store_messages(*[f"s.k{chance.randrange(6)}.x" for _ in range(total)])
    subjects = {seq: bench.engine.streams["S"].log.load(seq).subject for seq in range(1, total + 1)}
    inboxes = [pull(bench, 1000), pull(bench, 1000)]
    in_flight: dict[int, Delivered] = {}
    done: dict[bytes, list[int]] = {}
    for _ in range(5000):
        for inbox in inboxes:
            for message in inbox.take():
                assert not any(
                    subjects[message.seq] == subjects[seq] for seq in in_flight if seq != message.seq
                )
                in_flight[message.seq] = message
        if not in_flight:
            break
        seq = chance.choice(sorted(in_flight))
        what = chance.random()
        if what < 0.7:
            bench.ack(in_flight.pop(seq))
            done.setdefault(subjects[seq], []).append(seq)
        elif what < 0.95:
            bench.ack(in_flight[seq], b"-NAK")
        else:
            bench = bench.restarted()
            inboxes = [pull(bench, 1000), pull(bench, 1000)]
        bench.tick()
    assert sum(map(len, done.values())) == total
    assert all(seqs == sorted(seqs) for seqs in done.values())
    assert bench.info("c")["num_pending"] == 0


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"metadata": {"penstock.key_token": "0"}}, "is not the position of a subject token"),
        ({"metadata": {"penstock.key_token": "two"}}, "is not the position of a subject token"),
        ({"ack_policy": "none"}, "needs ack policy explicit"),
    ],
)
def test_keys_that_can_not_work_are_refused(config: dict[str, Any], text: str) -> None:
    bench = ConsumerHarness()
    answer = bench.define("c", **{"ack_policy": "explicit", "metadata": METADATA, **config})
    assert answer["error"]["err_code"] == 10012
    assert text in answer["error"]["description"]
