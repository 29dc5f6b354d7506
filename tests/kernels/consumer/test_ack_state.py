"""AckState against its dict model, and the journal against the state it describes."""

import mmap
import random
import struct
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.kernels.consumer.ack_state import AckPolicy, AckState
from tests.reference.ack_state import AckStateModel
from tests.support.examples import examples

MS = 1_000_000

# Deliveries are more frequent than acks, so that windows grow.
KINDS = (
    "new",
    "new",
    "new",
    "new",
    "new",
    "gap",
    "again",
    "again",
    "ack",
    "ack",
    "ack_first",
    "nak",
    "wpi",
    "term",
    "expire",
    "below",
    "skip",
    "park",
    "unpark",
    "reset",
)
steps = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 50)), min_size=10, max_size=80)
# Truncation is not in the journal: a snapshot follows it.
steps_and_losses = st.lists(
    st.tuples(st.sampled_from((*KINDS, "truncate")), st.integers(0, 50)), min_size=10, max_size=80
)


class Pair:
    """The kernel and the model, doing the same."""

    def __init__(self, policy: int, start: int, waits: list[int], max_deliver: int) -> None:
        self.state = AckState(policy, start)
        self.model = AckStateModel(policy, start, waits)
        self.state.set_waits(waits)
        self.max_deliver = max_deliver
        self.now = 1_000 * MS
        self.next = start

    def step(self, what: str, n: int) -> None:
        state, model = self.state, self.model
        self.now += n * MS
        known = sorted(model.pending)
        chosen = known[n % len(known)] if known else self.next + n
        if what in ("new", "gap"):
            seq = self.next + (n if what == "gap" else 0)
            self.next = seq + 1
            assert state.delivered(seq, self.now) == model.deliver(seq, self.now)
        elif what == "again":
            assert state.peek_queued() == (model.queue[0] if model.queue else 0)
            if model.queue:
                seq = model.queue[0]
                assert state.delivered(seq, self.now) == model.deliver(seq, self.now)
        elif what in ("ack", "ack_first"):
            seq = known[0] if what == "ack_first" and known else chosen
            if n % 7 == 0:
                seq = n
            cseq = max(0, model.delivered[0] - n % 5)
            if model.policy == AckPolicy.ACK_ALL:
                assert state.acked(seq, cseq) == model.ack_all(seq, cseq)
            else:
                assert state.acked(seq, cseq) == model.ack(seq)
        elif what == "nak":
            assert state.requeue(chosen) == model.requeue(chosen)
        elif what == "wpi":
            state.touch(chosen, self.now)
            model.touch(chosen, self.now)
        elif what == "term":
            assert state.drop(chosen) == model.ack(chosen)
        elif what == "expire":
            self.now += 40 * MS
            queued, given_up, earliest = state.expire(self.now, self.max_deliver)
            assert (queued, given_up) == model.expire(self.now, self.max_deliver)
            assert earliest == model.deadline()
        elif what == "below":
            assert state.drop_below(chosen) == model.drop_below(chosen)
        elif what == "truncate":
            last = max(0, model.delivered[1] - n % 4)
            state.truncate(last)
            model.truncate(last)
            self.next = min(self.next, model.delivered[1] + 1)
        elif what == "park" and model.policy == AckPolicy.ACK_EXPLICIT:
            state.park(self.next)
            model.park(self.next)
            self.next += 1
        elif what == "unpark" and model.parked:
            seq = sorted(model.parked)[n % len(model.parked)]
            for forged in (state.requeue, state.is_pending, state.acked, state.deliveries):
                assert not forged(seq)
            assert state.touch(seq, self.now) == 0
            if n % 3:
                assert state.delivered(seq, self.now) == model.deliver(seq, self.now)
            else:
                assert not state.drop(seq)
                model.parked.remove(seq)
                model.move_floor()
        elif what == "reset":
            seq = max(1, self.next + n % 9 - 5)
            start = seq if n % 2 else 0
            state.reset(seq, start)
            model.reset(seq, start)
            self.next = seq
        elif what == "skip":
            state.skip(self.next + n)
            model.skip(self.next + n)
            self.next = max(self.next, self.next + n + 1)
        self.check()

    def check(self) -> None:
        state, model = self.state, self.model
        assert [state.delivered_consumer, state.delivered_stream] == model.delivered
        assert [state.ack_floor_consumer, state.ack_floor_stream] == model.floor
        held = [(s, e.cseq, e.ts, e.deliveries) for s, e in model.pending.items()]
        assert (state.resets, state.since, state.start_seq) == (model.resets, model.since, model.start_seq)
        assert state.pending() == sorted(held + [(s, 0, 0, 0) for s in model.parked])
        assert state.num_parked == len(model.parked)
        assert state.num_pending == len(model.pending)
        assert state.num_queued == len(model.queue)
        assert state.num_redelivered == model.num_redelivered
        assert state.earliest_deadline() == model.deadline()


@settings(deadline=None, max_examples=examples(300), suppress_health_check=[HealthCheck.too_slow])
@given(
    steps_and_losses,
    st.sampled_from(list(AckPolicy)),
    st.integers(1, 100),
    st.sampled_from([[30 * MS], [5 * MS, 50 * MS]]),
    st.integers(0, 3),
)
def test_ack_state_does_what_its_model_does(
    plan: list[tuple[str, int]], policy: AckPolicy, start: int, waits: list[int], max_deliver: int
) -> None:
    pair = Pair(policy, start, waits, max_deliver)
    for what, n in plan:
        if policy != AckPolicy.ACK_NONE or what in ("new", "gap", "ack", "skip", "reset"):
            pair.step(what, n)


@settings(deadline=None, max_examples=examples(200), suppress_health_check=[HealthCheck.too_slow])
@given(steps, st.sampled_from(list(AckPolicy)), st.integers(1, 4), st.integers(0, 60))
def test_replaying_the_journal_on_a_snapshot_gives_the_same_state_at_every_cut(
    plan: list[tuple[str, int]], policy: AckPolicy, tick: int, snapshot_at: int
) -> None:
    pair = Pair(policy, 1, [30 * MS], 2)
    snapshot, journal = pair.state.snapshot(), []
    for i, (what, n) in enumerate(plan):
        if policy == AckPolicy.ACK_NONE and what not in ("new", "gap", "ack", "skip", "reset"):
            continue
        pair.step(what, n)
        if i == snapshot_at:
            snapshot, journal = pair.state.snapshot(), []
        elif i % tick == 0:
            journal.append(pair.state.take_journal())
            recovered = AckState(policy)
            recovered.restore(snapshot)
            for entry in journal:
                recovered.replay(entry)
            assert (
                recovered.snapshot() == pair.state.snapshot()
            )  # its journal was just taken: nothing is lost by it
            assert recovered.take_journal() == b""


def test_a_thousand_deliveries_and_acks_in_a_row_take_a_few_bytes_of_journal() -> None:
    state = AckState(AckPolicy.ACK_EXPLICIT)
    for seq in range(1, 1001):
        state.delivered(seq, 7)
    for seq in range(1, 1001):
        assert state.acked(seq, seq)
    entry = state.take_journal()
    assert len(entry) < 24
    recovered = AckState(AckPolicy.ACK_EXPLICIT)
    recovered.replay(entry)
    assert recovered.ack_floor_stream == recovered.delivered_consumer == 1000


def test_a_stuck_message_does_not_hold_the_memory_of_those_acked_after_it() -> None:
    state = AckState(AckPolicy.ACK_EXPLICIT)
    order = random.Random(5)
    state.delivered(1, 1)
    for base in range(2, 100_000, 100):
        window = list(range(base, base + 100))
        for seq in window:
            state.delivered(seq, 1)
        order.shuffle(window)
        for seq in window:
            assert state.acked(seq, 0) == 1
    assert (state.ack_floor_stream, state.num_pending) == (0, 1)
    assert state.acked(1, 1) == 1
    assert state.ack_floor_stream == state.delivered_stream


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE


@pytest.mark.parametrize(("wrong", "error"), [("x", TypeError), (None, TypeError), (1 << 63, OverflowError)])
def test_waits_that_are_refused_leave_the_old_ones_and_no_memory_behind(
    wrong: object, error: type[Exception]
) -> None:
    state = AckState(AckPolicy.ACK_EXPLICIT)
    state.set_waits([10])
    waits: list[Any] = [*[20] * 100_000, wrong]
    before = resident_bytes()
    for _ in range(200):
        with pytest.raises(error):
            state.set_waits(waits)
    # Half of what 200 copies take: sanitizers keep some of what was freed.
    assert resident_bytes() - before < 100 * 8 * len(waits)
    state.delivered(1, 0)
    assert state.expire(15, 5)[0] == 1


def test_the_consumer_floor_speaks_of_first_deliveries() -> None:
    state = AckState(AckPolicy.ACK_EXPLICIT)
    state.set_waits([10])
    state.delivered(1, 0)
    state.delivered(2, 0)
    state.requeue(1)
    assert state.delivered(1, 5) == 3
    assert state.acked(1, 3) == 1
    assert (state.ack_floor_consumer, state.ack_floor_stream) == (1, 1)
    assert state.acked(2, 2) == 1
    assert (state.ack_floor_consumer, state.ack_floor_stream) == (3, 2)


def test_a_given_up_message_blocks_no_floor_and_counts_as_redelivered_until_acked() -> None:
    state = AckState(AckPolicy.ACK_EXPLICIT)
    state.set_waits([10])
    state.delivered(1, 0)
    state.delivered(2, 95)
    queued, given_up, earliest = state.expire(100, 1)
    assert (queued, given_up, earliest) == (0, [(1, 1)], 105)
    assert (state.ack_floor_stream, state.num_redelivered, state.num_pending) == (1, 1, 1)
    assert state.acked(1) == 0
    assert state.num_redelivered == 0


@pytest.mark.parametrize(
    "entry",
    [
        b"D",
        b"D\x01",
        b"T\x00",
        b"Z\x01",
        b"F\x00\x00",
        b"F\x05\x06",
        b"F\x05",
        b"D\x05\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"R\x09",
        b"A\x01\x7f",
        b"D\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
    ],
)
def test_a_journal_entry_that_cannot_be_ours_is_refused(entry: bytes) -> None:
    with pytest.raises(ValueError, match=r"consumer journal|redelivery"):
        AckState(AckPolicy.ACK_EXPLICIT).replay(entry)


@pytest.mark.parametrize("cut", [0, 1, 20, 49, 60])
def test_a_cut_off_snapshot_is_refused(cut: int) -> None:
    state = AckState(AckPolicy.ACK_EXPLICIT)
    state.delivered(3, 4)
    whole = state.snapshot()
    with pytest.raises(ValueError, match="consumer snapshot"):
        AckState(AckPolicy.ACK_EXPLICIT).restore(whole[:cut])


@pytest.mark.parametrize("cut", [20, 49, 50, 73, 74, 101])
def test_a_cut_off_snapshot_of_a_state_that_was_reset_is_refused(cut: int) -> None:
    state = AckState(AckPolicy.ACK_EXPLICIT)
    state.reset(2)
    state.delivered(3, 4)
    whole = state.snapshot()
    assert len(whole) == 102
    with pytest.raises(ValueError, match="consumer snapshot"):
        AckState(AckPolicy.ACK_EXPLICIT).restore(whole[:cut])


def test_a_snapshot_of_a_version_without_resets_is_read_and_written_as_before() -> None:
    numbers = (7, 12, 5, 10, 1, 1, 11, 6, 400, 3, 9, 2)
    old = bytes((1, AckPolicy.ACK_EXPLICIT)) + struct.pack("<6QQQqIQI", *numbers)
    state = AckState(AckPolicy.ACK_EXPLICIT, 4)
    state.restore(old)
    assert (state.delivered_consumer, state.delivered_stream) == (7, 12)
    assert (state.ack_floor_consumer, state.ack_floor_stream) == (5, 10)
    assert (state.pending(), state.given_up()) == ([(11, 6, 400, 3)], [(9, 2)])
    assert (state.resets, state.since, state.start_seq) == (0, 0, 4)
    assert state.snapshot() == old


def test_a_state_that_was_reset_beyond_the_end_of_its_stream_stays_there() -> None:
    state = AckState(AckPolicy.ACK_EXPLICIT)
    state.reset(8, 8)
    state.truncate(3)
    assert (state.delivered_stream, state.since) == (7, 8)
    state.delivered(8, 1)
    state.truncate(3)
    assert (state.delivered_stream, state.pending()) == (7, [])


def test_a_state_that_was_reset_within_its_stream_follows_the_end() -> None:
    state = AckState(AckPolicy.ACK_EXPLICIT, 6)
    state.reset(8)
    state.truncate(3)
    assert (state.delivered_stream, state.ack_floor_stream, state.since) == (3, 3, 4)


@pytest.mark.parametrize("is_acked", [False, True])
def test_a_sequence_that_is_used_again_has_no_old_place_in_the_queue(is_acked: bool) -> None:
    state = AckState(AckPolicy.ACK_EXPLICIT)
    state.set_waits([MS])
    for seq in (1, 2, 3):
        state.delivered(seq, 0)
    assert state.expire(10**12)[0] == 3
    if is_acked:
        assert state.acked(3)
    state.truncate(2)
    for seq in (3, 1, 2):
        state.delivered(seq, 10**12)
    assert state.expire(2 * 10**12)[0] == 3
    assert state.peek_queued() == 1


def test_changes_are_there_until_the_journal_is_taken() -> None:
    state = AckState(AckPolicy.ACK_EXPLICIT)
    assert not state.has_changes
    state.delivered(1, 5)
    assert state.has_changes
    state.take_journal()
    assert not state.has_changes
    state.acked(1)
    assert state.has_changes
    state.snapshot()
    assert not state.has_changes
