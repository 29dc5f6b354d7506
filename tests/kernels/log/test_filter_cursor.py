"""The cursor of a consumer's filters against its model: looking, merging and following, while messages come
and go."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.kernels.consumer.ack_state import AckPolicy, AckState
from penstock.kernels.consumer.endpoints import Target
from penstock.kernels.consumer.pump import Pump, RunEnd, ready
from penstock.kernels.log.compaction import compact
from penstock.kernels.log.filter_cursor import FilterCursor, heaps_memory
from penstock.kernels.log.stream_log import StreamLog
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import ServiceSink
from penstock.kernels.wire.sinks import SinkSubscription
from penstock.store.file import FileStore
from tests.reference.filter_cursor import FilterCursorModel
from tests.reference.stream_log import LogModel
from tests.support.examples import examples

pytestmark = pytest.mark.feature("consumer.filters")

PREFIX = b"$JS.ACK.S.C."
SUBJECTS = [b"a", b"a.b", b"a.c", b"b.c", b"a.b.c", b"x.y.z.w", b"a.d", b"n.o", b"n.p"]
FILTERS = [
    [b"a.b"],
    [b"a.*"],
    [b"a.>"],
    [b">"],
    [b"none"],
    [b"a.b", b"x.>"],
    [b"a.*", b"*.c", b"a.>"],
    [b"a.b", b"b.c", b"none"],
    [b"none.%d" % i for i in range(20)] + [b"x.y.z.w"],
]
BOUNDS = [
    {},
    {"patience": -1},
    {"patience": -1, "run_fill": 2},
    {"patience": -1, "run_fill": 6},
    {"patience": 3, "run_fill": 3, "look_once": 5},
    {"patience": -1, "heaps_max": 16, "look_once": 4},
    {"run_max": 2, "patience": 2, "run_fill": 2},
    {"run_max": 1, "patience": -1, "heaps_max": 0},
]


class Receiver:
    """A pump's one target: the stream sequences it got, and what each ack subject said was pending then."""

    def __init__(self, log: StreamLog, filters: list[bytes], position: int) -> None:
        self.got: list[tuple[int, int]] = []
        index = SubscriptionIndex()
        index.insert(SinkSubscription(ServiceSink(self._take), b"deliver"))
        self.pump = Pump(log, AckState(AckPolicy.ACK_NONE), index, PREFIX, filters, position)

    def _take(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: object) -> None:
        numbers = reply.removeprefix(PREFIX).split(b".")
        self.got.append((int(numbers[1]), int(numbers[4])))

    def run(self, budget: int) -> list[tuple[int, int]]:
        """What it delivers of up to `budget` messages; searches to the end where it has to."""
        self.got = []
        while len(self.got) < budget:
            end = self.pump.run([Target(b"deliver")], 1, budget - len(self.got))
            if end != RunEnd.RUN_BUDGET:
                assert end == RunEnd.RUN_EMPTY
                break
        return self.got


class CursorMachine(RuleBasedStateMachine):
    """One log; a cursor that searches by itself, and a pump that is notified of appends."""

    @initialize(
        block_size=st.sampled_from([64, 300, 4000]),
        filters=st.sampled_from(FILTERS),
        bounds=st.sampled_from(BOUNDS),
        before=st.integers(0, 30),
        position=st.integers(1, 40),
    )
    def begin(
        self, block_size: int, filters: list[bytes], bounds: dict[str, int], before: int, position: int
    ) -> None:
        self.log = StreamLog(block_size)
        self.model = FilterCursorModel(LogModel(), filters)
        self.now = 1
        for i in range(before):
            self.append(SUBJECTS[i * 7 % len(SUBJECTS)], 1)
        self.cursor = FilterCursor(self.log, filters)
        self.cursor.set_bounds(**bounds)
        self.receiver = Receiver(self.log, filters, position)
        assert self.receiver.pump.cursor is not None
        self.receiver.pump.cursor.set_bounds(**bounds)
        self.bounds = bounds
        self.filters = filters
        self.position = self.delivered_to = position

    @rule(subject=st.sampled_from(SUBJECTS), copies=st.integers(1, 9))
    def append(self, subject: bytes, copies: int) -> None:
        for _ in range(copies):
            self.now += 1
            self.log.append(subject, b"", b"x", self.now)
            self.model.log.append(subject, b"", b"x", self.now)

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        seq = data.draw(st.integers(0, self.model.log.last_seq + 1))
        assert self.log.remove(seq) == self.model.log.remove(seq)

    @rule(data=st.data())
    def remove_the_last_of_a_subject(self, data: st.DataObject) -> None:
        subject = data.draw(st.sampled_from(SUBJECTS))
        live = self.model.log.live
        found = [seq for seq in live if live[seq].subject == subject]
        if found:
            assert self.log.remove(max(found)) and self.model.log.remove(max(found))

    @rule(filter=st.sampled_from([b"", b"a.*", b"a.b", b">"]), keep=st.integers(0, 2))
    def purge(self, filter: bytes, keep: int) -> None:
        assert self.log.purge(filter, 0, keep) == self.model.log.purge(filter, 0, keep)

    @rule(msgs_max=st.integers(1, 40))
    def limit(self, msgs_max: int) -> None:
        assert self.log.limit(msgs_max, 0) == self.model.log.limit(msgs_max, 0)

    @rule(subject=st.sampled_from(SUBJECTS), keep=st.integers(0, 3))
    def limit_subject(self, subject: bytes, keep: int) -> None:
        assert self.log.limit_subject(subject, keep) == self.model.log.limit_subject(subject, keep)

    @rule(most=st.integers(1, 4))
    def compact(self, most: int) -> None:
        compact(self.log, most)

    @rule(ahead=st.integers(0, 6))
    def look(self, ahead: int) -> None:
        expected = self.model.from_seq(self.position)
        found = self.cursor.peek(self.position)
        while found is None:
            found = self.cursor.peek(self.position)
        assert found == (expected[0] if expected else 0)
        self.position = (found or self.position) + ahead

    @rule(budget=st.integers(1, 12))
    def deliver(self, budget: int) -> None:
        expected = self.model.from_seq(self.delivered_to)
        reported = [(seq, len(expected) - 1 - i) for i, seq in enumerate(expected)]
        assert self.receiver.run(budget) == reported[:budget]
        if reported:
            self.delivered_to = max(self.delivered_to, reported[:budget][-1][0] + 1)

    @rule(data=st.data(), filters=st.sampled_from(FILTERS))
    def refilter(self, data: st.DataObject, filters: list[bytes]) -> None:
        pump = self.receiver.pump
        pump.set_filters(filters)
        assert pump.cursor is not None
        pump.cursor.set_bounds(**self.bounds)
        self.model.filters = filters
        self.cursor = FilterCursor(self.log, filters)
        self.cursor.set_bounds(**self.bounds)

    @rule(data=st.data())
    def count(self, data: st.DataObject) -> None:
        seq = data.draw(st.integers(0, self.model.log.last_seq + 2))
        assert self.cursor.num_from(seq) == len(self.model.from_seq(seq))

    @invariant()
    def the_pump_knows_what_is_pending(self) -> None:
        if hasattr(self, "receiver"):
            expected = self.model.from_seq(self.delivered_to)
            assert self.receiver.pump.num_pending == len(expected)

    @precondition(lambda self: hasattr(self, "receiver") and "look_once" not in self.bounds)
    @rule()
    def has_news(self) -> None:
        assert ready([self.receiver.pump]) == ([0] if self.model.from_seq(self.delivered_to) else [])


TestCursor = CursorMachine.TestCase
TestCursor.settings = settings(max_examples=examples(200), stateful_step_count=40, deadline=None)


def filled(subjects: int, messages: int, seed: int = 1) -> tuple[StreamLog, LogModel]:
    """Messages on `wide.<tenth>.<number>`, in a random order."""
    rng = random.Random(seed)
    log, model = StreamLog(1 << 16), LogModel()
    for _ in range(messages):
        number = rng.randrange(subjects)
        subject = b"wide.%d.%d" % (number % 10, number)
        log.append(subject, b"", b"", 1)
        model.append(subject, b"", b"", 1)
    return log, model


def drained(cursor: FilterCursor, position: int = 1) -> list[int]:
    found: list[int] = []
    while (seq := cursor.peek(position)) != 0:
        if seq is not None:
            found.append(seq)
            position = seq + 1
    return found


@pytest.mark.parametrize("filters", [[b"wide.3.*"], [b"wide.3.13"], [b"wide.*.13", b"wide.4.>"], [b"wide.>"]])
@pytest.mark.parametrize("position", [1, 15_000])
def test_a_long_stream_yields_exactly_what_matches(filters: list[bytes], position: int) -> None:
    log, model = filled(2000, 30_000)
    expected = FilterCursorModel(model, filters).from_seq(position)
    assert drained(FilterCursor(log, filters), position) == expected


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("compacted", [False, True])
def test_what_is_pending_is_counted_along_many_chains_at_once(indexed: bool, compacted: bool) -> None:
    """Few subjects and most of them, short chains and a long one, with messages gone from all of them."""
    log, model = filled(1500, 12_000)
    for i in range(15_000):
        subject = b"wide.long" if i % 3 == 0 else b"wide.%d.%d" % (i % 10, i % 1500)
        log.append(subject, b"", b"", 1)
        model.append(subject, b"", b"", 1)
    for seq in random.Random(7).sample(range(1, 27_001), 9_000):
        assert log.remove(seq) and model.remove(seq)
    if compacted:
        compact(log, 1000)
    while indexed and log.index_subjects():
        pass
    several = [b"wide.3.*", b"wide.long"]
    for filters in ([b"wide.3.*"], [b"wide.*.*"], [b"*.*.13"], [b"wide.long"], [b"wide.>"], several):
        expected = FilterCursorModel(model, filters).from_seq(0)
        for seq in (0, 1, 2, 40, 9_000, 13_500, 26_000, expected[-1], expected[-1] + 1, 27_001):
            assert FilterCursor(log, filters).num_from(seq) == sum(found >= seq for found in expected)


def test_a_filter_that_matches_little_soon_looks_at_nothing_between_its_messages() -> None:
    log, _ = filled(10, 1)
    for i in range(200_000):
        log.append(b"other.%d" % (i % 100), b"", b"", 1)
    log.append(b"wide.late.x", b"", b"", 1)
    cursor = FilterCursor(log, [b"wide.*.*"])
    assert cursor.peek(2) == 200_002  # in one call, though it may look at 65,536 messages at once only


def test_what_can_not_be_merged_is_looked_for_in_slices() -> None:
    log = StreamLog()
    for i in range(100):
        log.append(b"other.%d" % i, b"", b"", 1)
    log.append(b"wide.x", b"", b"", 1)
    cursor = FilterCursor(log, [b"wide.*"])
    cursor.set_bounds(look_once=10, patience=-1, heaps_max=0)
    assert cursor.peek(1) == 101
    cursor = FilterCursor(log, [b"*.*"])
    cursor.set_bounds(patience=-1, heaps_max=0)
    assert drained(cursor) == list(range(1, 102))


def test_memory_goes_back_when_everything_is_delivered() -> None:
    log, _ = filled(5000, 30_000)
    receiver = Receiver(log, [b"wide.*.*5"], 1)
    receiver.pump.set_filters([b"wide.5.*", b"wide.7.*"])
    cursor = receiver.pump.cursor
    assert cursor is not None
    cursor.set_bounds(patience=-1)
    before = heaps_memory()
    receiver.run(10)
    assert before < heaps_memory() <= before + 16 * 1000
    receiver.run(100_000)
    assert (heaps_memory(), cursor.following) == (before, True)
    assert cursor.memory() <= 64 * 8
    for _ in range(5000):  # more than a run holds: it stops following, and looks again
        log.append(b"wide.5.x", b"", b"", 1)
    assert not cursor.following
    assert cursor.memory() <= 1024 * 8
    assert len(receiver.run(100_000)) == 5000
    assert cursor.following


def test_a_consumer_that_ended_is_notified_no_more() -> None:
    log, _ = filled(10, 100)
    receivers = [Receiver(log, [b"wide.%d.*" % (i % 10)], 1) for i in range(40)]
    for receiver in receivers:
        receiver.run(1000)
        receiver.pump.close()
        receiver.pump.close()
    log.append(b"wide.3.3", b"", b"", 1)
    assert all(receiver.pump.cursor and not receiver.pump.cursor.following for receiver in receivers)


@given(st.lists(st.integers(0, 39), max_size=60), st.integers(0, 40))
@settings(max_examples=examples(50))
def test_many_filters_hear_what_few_do(chosen: list[int], others: int) -> None:
    """Up to sixteen filters are compared one by one, more are looked up."""
    log = StreamLog()
    receivers = [Receiver(log, [b"s.%d" % i, b"s.%d.>" % i, b"*.%d" % i], 1) for i in range(others + 1)]
    for receiver in receivers:
        assert receiver.run(10) == []
    for n in chosen:
        log.append(b"s.%d" % n, b"", b"", 1)
    for i, receiver in enumerate(receivers):
        expected = [seq for seq, n in enumerate(chosen, 1) if n == i]
        assert receiver.pump.num_pending == len(expected)
        assert [seq for seq, _ in receiver.run(100)] == expected


def test_after_a_restart_it_goes_on_in_the_middle_of_every_subject() -> None:
    rng = random.Random(5)
    with tempfile.TemporaryDirectory() as name:
        store = FileStore(Path(name), block_size=3000)
        stream = store.account("$G").create_stream("S", b"", "file")
        model = LogModel()
        for _ in range(3000):
            subject = b"wide.%d.%d" % (rng.randrange(9), rng.randrange(9))
            stream.log.append(subject, b"", b"", 1)
            model.append(subject, b"", b"", 1)
        for seq in rng.sample(range(1, 3001), 1500):
            assert stream.log.remove(seq) and model.remove(seq)
        stream.write()
        store.close()
        store = FileStore(Path(name), block_size=3000)
        log = store.account("$G").open_stream("S").log
        for filters in ([b"wide.3.*"], [b"wide.3.4"], [b"wide.*.3", b"wide.1.>"]):
            expected = FilterCursorModel(model, filters).from_seq(1500)
            for patience in (-1, 100_000):
                cursor = FilterCursor(log, filters)
                cursor.set_bounds(patience=patience)
                assert cursor.num_from(1500) == len(expected)
                assert drained(cursor, 1500) == expected
        store.close()


@given(seed=st.integers(0, 1 << 30), block_size=st.sampled_from([300, 3000, 1 << 20]), reopen=st.booleans())
@settings(max_examples=examples(25), deadline=None)
def test_what_is_pending_is_counted_whatever_became_of_the_messages(
    seed: int, block_size: int, reopen: bool
) -> None:
    """Filters of few messages among many are counted chain by chain, others all at once: with messages gone
    at the front, by ones and by subjects, blocks rewritten or not, and the log as a restart finds it."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        store = FileStore(Path(name), block_size=block_size)
        stream = store.account("$G").create_stream("S", b"", "file")
        log, model = stream.log, LogModel()
        for _ in range(4):
            for _ in range(700):
                kind = rng.random()
                subject = b"few.%d" % rng.randrange(3) if kind < 0.005 else b"long.x"
                if kind > 0.3:
                    subject = b"many.%d.%d" % (rng.randrange(5), rng.randrange(60))
                log.append(subject, b"", b"", 1)
                model.append(subject, b"", b"", 1)
            stream.write()
            for seq in rng.sample(range(1, log.last_seq + 1), rng.choice([0, 5, 500])):
                assert log.remove(seq) == model.remove(seq)
            if rng.random() < 0.3:
                gone = rng.choice([b"many.2.*", b"long.x", b"few.1"])
                assert log.purge(gone) == model.purge(gone, 0, 0)
            most = rng.randrange(1000, 3000)
            assert log.limit(most, 0) == model.limit(most, 0)
        stream.write()
        if reopen:
            store.close()
            store = FileStore(Path(name), block_size=block_size)
            log = store.account("$G").open_stream("S").log
        places = [rng.randrange(log.last_seq + 2) for _ in range(4)]
        for filters in (
            [b"few.*"],
            [b"few.2"],
            [b"long.x"],
            [b"many.3.*"],
            [b"*.*"],
            [b"*.>"],
            [b"many.*.7", b"few.*"],
        ):
            expected = FilterCursorModel(model, filters).from_seq(0)
            for seq in (log.first_seq, log.last_seq, *places, *rng.sample(expected, min(len(expected), 3))):
                assert FilterCursor(log, filters).num_from(seq) == sum(found >= seq for found in expected)
        store.close()


def test_a_cursor_that_has_counted_little_does_not_look_first() -> None:
    log = StreamLog()
    for i in range(5000):
        log.append(b"rare.%d" % i if i % 100 == 0 else b"other", b"", b"", 1)
    before = heaps_memory()
    looking, knowing = FilterCursor(log, [b"rare.*"]), FilterCursor(log, [b"rare.*"])
    assert (looking.peek(1), heaps_memory()) == (1, before)
    knowing.set_bounds(run_fill=10)  # so that the heap outlives the first run
    assert knowing.num_from(1) == 50
    assert (knowing.peek(1), heaps_memory() > before) == (1, True)
    assert drained(looking, 2) == drained(knowing, 2) == list(range(101, 5001, 100))
