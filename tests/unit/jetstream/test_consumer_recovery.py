"""Consumers after a restart: floors, pending messages and delivery counts are as they were written."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.errors import StoreCorruptError
from penstock.jetstream.consumer import state as consumer_state
from penstock.kernels.consumer.ack_state import AckPolicy, AckState
from penstock.store.file import FileStore
from penstock.testing.sim.sim_disk import SimDisk
from tests.support.consumers import SECOND, ConsumerHarness

pytestmark = pytest.mark.feature("consumer.recovery")


def ack_some(bench: ConsumerHarness) -> None:
    """Ten delivered; 1, 2 and 4 acked; 3 redelivered once."""
    bench.store_messages(*[f"s.{i}" for i in range(12)])
    bench.consumer("x", durable_name="x", ack_wait=SECOND)
    inbox = bench.pull("x", {"batch": 10})
    messages = inbox.take()
    for n in (1, 2, 4):
        bench.ack(messages[n - 1])
    bench.ack(messages[2], b"-NAK")
    bench.tick()
    bench.pull("x", b"1", inbox)
    assert inbox.seqs() == [3]


def without_times(info: Any) -> Any:
    for name in ("delivered", "ack_floor"):
        info[name].pop("last_active", None)
    info.pop("ts")
    return info


def test_a_restart_keeps_floor_pending_and_delivery_counts() -> None:
    bench = ConsumerHarness()
    ack_some(bench)
    before = without_times(bench.info("x"))
    again = bench.restarted()
    assert without_times(again.info("x")) == before
    assert (before["ack_floor"]["stream_seq"], before["num_ack_pending"], before["num_redelivered"]) == (
        2,
        7,
        1,
    )
    inbox = again.pull("x", {"batch": 2})
    assert inbox.seqs() == [11, 12]
    again.pass_time(SECOND)
    inbox = again.pull("x", {"batch": 7})
    assert [(one.seq, one.numbers[0]) for one in inbox.take()] == [(3, 3)] + [(n, 2) for n in range(5, 11)]


def test_a_restart_from_files_keeps_it_as_well(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    bench = ConsumerHarness(store.account("$G"))
    ack_some(bench)
    before = without_times(bench.info("x"))
    bench.engine.close()
    store.close()
    store = FileStore(tmp_path)
    again = ConsumerHarness(store.account("$G"), now=bench.now)
    assert without_times(again.info("x")) == before
    again.engine.close()
    store.close()


def test_what_was_delivered_is_written_in_the_same_tick() -> None:
    bench = ConsumerHarness()
    bench.store_messages("s.1", "s.2")
    bench.consumer("x", durable_name="x")
    bench.pull("x", b"2")
    assert bench.restarted().floors("x") == (2, 2, 0, 0)


@pytest.mark.parametrize("ack_policy", ["none", "all", "explicit"])
def test_a_journal_that_has_outgrown_the_state_becomes_a_snapshot(ack_policy: str) -> None:
    bench = ConsumerHarness(journal_min_bytes=100)
    consumer = bench.consumer("x", durable_name="x", ack_policy=ack_policy)
    inbox = bench.inbox()
    sizes = []
    for i in range(60):
        bench.store_messages(f"s.{i}")
        bench.pull("x", b"1", inbox)
        [message] = inbox.take()
        if i % 5:
            bench.ack(message)
            bench.tick()
        sizes.append(consumer.store.journal_bytes)
    assert min(sizes[30:]) < max(sizes) < 3000
    again = bench.restarted()
    assert again.floors("x") == bench.floors("x")
    assert again.engine.streams["S"].consumers["x"].state.pending() == consumer.state.pending()


def test_last_per_subject_goes_on_where_it_was() -> None:
    bench = ConsumerHarness()
    bench.store_messages("s.a", "s.b", "s.a", "s.c")
    bench.consumer("x", durable_name="x", deliver_policy="last_per_subject", filter_subject="s.>")
    assert bench.pull("x", b"1").seqs() == [2]
    bench.store_messages("s.d")
    again = bench.restarted()
    assert again.info("x")["num_pending"] == 3
    assert again.pull("x", b"3").seqs() == [3, 4, 5]


def test_what_was_delivered_beyond_the_end_of_a_damaged_stream_is_forgotten() -> None:
    bench = ConsumerHarness()
    bench.store_messages("s.1", "s.2", "s.3", "s.4", "s.5")
    consumer = bench.consumer("x", durable_name="x")
    bench.pull("x", b"5")
    state = AckState(AckPolicy.ACK_EXPLICIT)
    consumer_state.Recorder(consumer.store, state, 1 << 16).recover(3)
    assert (state.delivered_stream, state.delivered_consumer) == (3, 5)
    assert [seq for seq, _, _, _ in state.pending()] == [1, 2, 3]
    assert state.delivered(4, 1) == 6


def test_a_consumer_stays_at_its_start_when_its_stream_lost_more() -> None:
    bench = ConsumerHarness()
    bench.store_messages("s.1", "s.2", "s.3", "s.4", "s.5")
    consumer = bench.consumer("x", durable_name="x", deliver_policy="by_start_sequence", opt_start_seq=3)
    bench.pull("x", b"2")
    state = AckState(AckPolicy.ACK_EXPLICIT, 3)
    consumer_state.Recorder(consumer.store, state, 1 << 16).recover(1)
    assert (state.delivered_stream, state.ack_floor_stream) == (2, 2)
    assert state.pending() == []


def test_what_was_forgotten_stays_forgotten_when_power_fails_again() -> None:
    disk = SimDisk(Random(1))
    bench = ConsumerHarness(FileStore("/store", disk=disk).account("$G"))
    bench.store_messages("s.1", "s.2", "s.3", "s.4", "s.5")
    consumer = bench.consumer("x", durable_name="x")
    bench.pull("x", b"5")
    consumer.store.sync()
    state = AckState(AckPolicy.ACK_EXPLICIT)
    consumer_state.Recorder(consumer.store, state, 1 << 16).recover(3)
    disk.lose_power(all_of_it=True)
    stream = FileStore("/store", disk=disk).account("$G").open_stream("S")
    found = AckState(AckPolicy.ACK_EXPLICIT)
    consumer_state.Recorder(stream.open_consumer("x"), found, 1 << 16).recover(5)
    assert [seq for seq, _, _, _ in found.pending()] == [1, 2, 3]


def test_acks_with_other_filters_count_where_the_stream_lost_messages() -> None:
    disk = SimDisk(Random(1))

    def opened() -> ConsumerHarness:
        store = FileStore("/store", disk=disk).account("$G")
        return ConsumerHarness(store, stream={"retention": "workqueue"})

    bench = opened()
    bench.consumer("x", durable_name="x", filter_subject="s.a")
    bench.store_messages("s.a", "s.a", "s.a")
    assert bench.pull("x", b"3").seqs() == [1, 2, 3]
    bench.consumer("x", durable_name="x", filter_subject="s.b")
    disk.lose_power(all_of_it=True)
    again = opened()
    again.store_messages("s.b", "s.b")
    stream = again.engine.streams["S"]
    stream.store.sync()
    for message in again.pull("x", b"2").take():
        again.ack(message)
    again.tick()
    stream.consumers["x"].store.sync()
    disk.lose_power(all_of_it=True)  # the acks are there, what they removed is, too
    again = opened()
    again.tick()
    assert again.engine.streams["S"].log.messages == 0


def test_a_given_up_message_stays_given_up() -> None:
    bench = ConsumerHarness()
    bench.store_messages("s.1")
    bench.consumer("x", durable_name="x", ack_wait=SECOND, max_deliver=1)
    bench.pull("x", b"1")
    bench.pass_time(SECOND)
    again = bench.restarted()
    inbox = again.pull("x", b"1")
    again.pass_time(3 * SECOND)
    assert inbox.take() == []


def test_a_consumer_whose_state_can_not_be_read_is_left_out_and_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = ConsumerHarness()
    consumer = bench.consumer("x", durable_name="x")
    consumer.store.append(b"Z nonsense")
    consumer.store.write()
    bench.consumer("y", durable_name="y")
    assert bench.restarted().api("CONSUMER.NAMES.S")["consumers"] == ["y"]
    assert "the state of consumer x cannot be read" in caplog.text


def test_a_state_that_can_not_be_read_is_an_error_not_a_guess() -> None:
    bench = ConsumerHarness()
    consumer = bench.consumer("x", durable_name="x")
    consumer.store.append(b"Z nonsense")
    state = AckState(AckPolicy.ACK_EXPLICIT)
    with pytest.raises(StoreCorruptError, match="the state of consumer x cannot be read"):
        consumer_state.Recorder(consumer.store, state, 1 << 16).recover(0)
