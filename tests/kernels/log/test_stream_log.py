"""The stream log compared with a dict: in memory, and on disk with recoveries in between."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.jetstream.stream import purge
from penstock.kernels.log.compaction import compact
from penstock.kernels.log.stream_log import StoredRecord, StreamLog
from penstock.store.file import FileStore
from penstock.store.interface import StreamStore
from tests.reference.stream_log import LogModel, Message
from tests.support.examples import examples

pytestmark = pytest.mark.feature("stream.recovery")

SUBJECTS = [b"a", b"a.b", b"a.c", b"b.c", b"a.b.c", b"x.y.z.w", b"a.*x"]
FILTERS = [b"", b">", b"a", b"a.*", b"a.>", b"*", b"*.c", b"b.c", b"*.*", b"x.>", b"none", b"a.b.>", b"*.b.*"]


def plain(message: StoredRecord | None) -> Message | None:
    if message is None:
        return None
    return Message(message.seq, message.ts, message.subject, message.header, message.payload)


def expect_same(log: StreamLog, model: LogModel) -> None:
    """Every counter and every message."""
    assert (log.first_seq, log.last_seq) == (model.first_seq, model.last_seq)
    assert (log.messages, log.bytes) == (len(model.live), model.live_bytes)
    assert (log.first_ts, log.last_ts) == (model.first_ts, model.last_ts)
    assert log.num_subjects == len(model.subjects(b">"))
    assert log.subjects() == model.subjects(b">")
    assert log.deleted() == model.deleted()
    assert log.num_deleted == len(model.deleted())
    for seq in range(max(0, model.first_seq - 2), model.last_seq + 2):
        assert plain(log.load(seq)) == model.live.get(seq)


def along(log: StreamLog, subject: bytes) -> list[int]:
    """The sequences of a subject, from each one to the next."""
    found, seq = [], 0
    while seq := log.next_seq(seq + 1, subject):
        found.append(seq)
    return found


class LogMachine(RuleBasedStateMachine):
    """Small blocks, few subjects: everything that can meet, meets."""

    @initialize(block_size=st.sampled_from([64, 200, 500, 4000]), storage=st.sampled_from(["file", "memory"]))
    def begin(self, block_size: int, storage: str) -> None:
        self.log = StreamLog(block_size, storage=storage)
        self.model = LogModel(storage=storage)
        self.now = 100

    @rule(
        subject=st.sampled_from(SUBJECTS),
        header=st.sampled_from([b"", b"NATS/1.0\r\nA: b\r\n\r\n"]),
        size=st.integers(0, 60),
        copies=st.integers(1, 12),
    )
    def append(self, subject: bytes, header: bytes, size: int, copies: int) -> None:
        for _ in range(copies):
            self.now += 3
            payload = bytes([self.now % 256]) * size
            expected = self.log.bytes + self.log.cost_of(len(subject), len(header), size)
            assert self.log.append(subject, header, payload, self.now) == self.model.append(
                subject, header, payload, self.now
            )
            assert self.log.bytes == expected

    @rule(copies=st.integers(1, 30))
    def skip(self, copies: int) -> None:
        for _ in range(copies):
            self.now += 3
            assert self.log.skip(self.now) == self.model.skip(self.now)

    @rule(data=st.data(), secure=st.booleans())
    def remove(self, data: st.DataObject, secure: bool) -> None:
        seq = data.draw(st.integers(0, self.model.last_seq + 1))
        assert self.log.remove(seq, secure) == self.model.remove(seq)

    @rule(data=st.data())
    def remove_the_last_of_a_subject(self, data: st.DataObject) -> None:
        subject = data.draw(st.sampled_from(SUBJECTS))
        found = [seq for seq in self.model.live if self.model.live[seq].subject == subject]
        if found:
            assert self.log.remove(max(found)) and self.model.remove(max(found))

    @rule(data=st.data(), filter=st.sampled_from(FILTERS), keep=st.integers(0, 3))
    def purge(self, data: st.DataObject, filter: bytes, keep: int) -> None:
        upto = data.draw(st.integers(0, self.model.last_seq + 3)) if keep == 0 else 0
        assert self.log.purge(filter, upto, keep) == self.model.purge(filter, upto, keep)

    @rule(data=st.data(), filter=st.sampled_from(FILTERS), keep=st.integers(0, 3), slice=st.integers(1, 9))
    def purge_in_slices(self, data: st.DataObject, filter: bytes, keep: int, slice: int) -> None:
        last_seq = self.model.last_seq
        end_seq = data.draw(st.integers(1, last_seq + 1)) if keep == 0 else last_seq + 1
        expected = self.model.purge(filter, end_seq, keep)
        self.model.last_seq = last_seq  # the sequence moves on where all is purged at once
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(purge, "SLICE", slice)
            assert sum(purge.slices(self.log, self.log.purge_part, filter, end_seq, keep)) == expected

    @rule(msgs_max=st.integers(-1, 40), bytes_max=st.integers(-1, 3000))
    def limit(self, msgs_max: int, bytes_max: int) -> None:
        assert self.log.limit(msgs_max, bytes_max) == self.model.limit(msgs_max, bytes_max)

    @rule(subject=st.sampled_from(SUBJECTS), keep=st.integers(0, 5))
    def limit_subject(self, subject: bytes, keep: int) -> None:
        assert self.log.limit_subject(subject, keep) == self.model.limit_subject(subject, keep)

    @rule(back=st.integers(0, 60), most=st.integers(0, 20))
    def age(self, back: int, most: int) -> None:
        assert self.log.enforce_age(self.now - back, most) == self.model.enforce_age(self.now - back, most)

    @rule(data=st.data(), filter=st.sampled_from(FILTERS))
    def look(self, data: st.DataObject, filter: bytes) -> None:
        seq = data.draw(st.integers(0, self.model.last_seq + 2))
        found = self.model.matching(filter, seq)
        assert self.log.next_seq(seq, filter) == (found[0] if found else 0)
        assert plain(self.log.load_next(filter, seq)) == (self.model.live[found[0]] if found else None)
        assert self.log.count_from(seq, filter) == len(found)
        everything = self.model.matching(filter)
        assert self.log.last_seq_of(filter) == (everything[-1] if everything else 0)
        assert self.log.count_matching(filter) == len(everything)
        if filter:
            assert self.log.subjects(filter) == self.model.subjects(filter)
            upto = data.draw(st.integers(0, self.model.last_seq + 2))
            assert self.log.last_seqs(filter, upto) == self.model.last_seqs(filter, upto)

    @rule(most=st.integers(1, 5))
    def compact(self, most: int) -> None:
        if not self.log.durable:
            compact(self.log, most)

    @rule(back=st.integers(-5, 300))
    def look_by_time(self, back: int) -> None:
        assert self.log.seq_at_time(self.now - back) == self.model.seq_at_time(self.now - back)

    @invariant()
    def same_as_the_model(self) -> None:
        if hasattr(self, "log"):
            expect_same(self.log, self.model)


class FileLogMachine(LogMachine):
    """The same on disk: written now and then, reopened with and without indexes and a clean close."""

    @initialize(block_size=st.sampled_from([64, 200, 500, 4000]))
    def begin(self, block_size: int) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="penstock-log-"))
        self.block_size = block_size
        self.store = FileStore(self.directory, block_size=block_size)
        self.stream: StreamStore = self.store.account("$G").create_stream("S", b"meta", "file")
        self.log = self.stream.log
        self.model = LogModel()
        self.now = 100

    @rule()
    def write(self) -> None:
        self.stream.write()

    @rule(kill=st.booleans(), drop_indexes=st.booleans())
    def reopen(self, kill: bool, drop_indexes: bool) -> None:
        self.stream.write()
        if kill:
            self.store.abandon()
        else:
            self.store.close()
        if drop_indexes:
            for path in self.directory.glob("**/*.idx"):
                path.unlink()
        self.store = FileStore(self.directory, block_size=self.block_size)
        self.stream = self.store.account("$G").open_stream("S")
        self.log = self.stream.log

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.directory)


TestLogInMemory = LogMachine.TestCase
TestLogInMemory.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestLogOnDisk = FileLogMachine.TestCase
TestLogOnDisk.settings = settings(
    max_examples=examples(40),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def test_a_long_chain_is_followed_from_anywhere() -> None:
    log = StreamLog(2000)
    for i in range(3000):
        log.append(b"rare" if i % 500 == 0 else b"often.%d" % (i % 3), b"", b"x", i)
    rare = [seq for seq in range(1, 3001) if (seq - 1) % 500 == 0]
    for seq in range(1, 3001, 37):
        expected = next((r for r in rare if r >= seq), 0)
        assert log.next_seq(seq, b"rare") == expected
        assert log.next_seq(seq, b"often.1") == next(
            (s for s in range(seq, seq + 9) if (s - 1) % 3 == 1 and (s - 1) % 500 and s <= 3000), 0
        )


def test_a_subject_seen_again_after_it_was_gone_starts_from_zero() -> None:
    log = StreamLog()
    log.append(b"a", b"", b"", 1)
    log.append(b"b", b"", b"", 2)
    log.remove(1)
    assert log.next_seq(1, b"a") == 0 and log.subjects(b"a") == {}
    assert log.append(b"a", b"", b"", 3) == 3
    assert log.next_seq(1, b"a") == 3 and log.subjects() == {b"a": 1, b"b": 1}


def test_the_subject_of_the_last_message_is_not_mistaken_for_others() -> None:
    log = StreamLog()
    log.append(b"s.1", b"", b"", 1)
    log.append(b"s.2", b"", b"", 2)
    log.remove(2)  # the last subject is gone; another one takes its place in the table
    assert log.last_seq_of(b"s.2") == 0
    for seq, subject in enumerate((b"s.3", b"s.2", b"t.2", b"s.22", b"s.2"), 3):
        assert log.append(subject, b"", b"", seq) == seq
        assert log.last_seq_of(subject) == seq
    assert log.subjects() == {b"s.1": 1, b"s.3": 1, b"s.2": 2, b"t.2": 1, b"s.22": 1}
    log.purge()
    assert log.subjects() == {} and log.last_seq_of(b"s.2") == 0
    log.append(b"u.2", b"", b"", 9)
    assert log.subjects() == {b"u.2": 1} and log.last_seq_of(b"s.2") == 0


def test_the_first_sequence_of_an_empty_log_can_be_set() -> None:
    log = StreamLog()
    log.set_first_seq(1000)
    assert (log.first_seq, log.last_seq, log.num_deleted) == (1000, 999, 0)
    assert log.append(b"a", b"", b"", 1) == 1000
    with pytest.raises(ValueError, match="empty log"):
        log.set_first_seq(5000)


def test_purging_above_the_last_sequence_moves_the_sequence_on() -> None:
    """As the official server does."""
    log = StreamLog()
    for i in range(6):
        log.append(b"a", b"", b"x", i)
    assert log.purge(None, 100, 0) == 6
    assert (log.first_seq, log.last_seq, log.messages, log.last_ts) == (100, 99, 0, 5)


def test_skipping_for_ever_fills_no_disk(tmp_path: Path) -> None:
    store = FileStore(tmp_path, block_size=500)
    stream = store.account("$G").create_stream("S", b"meta", "file")
    for live in (b"", b"x"):
        if live:
            stream.log.append(b"a", b"", live, 1)
        for ts in range(2, 300):
            stream.log.skip(ts)
            stream.write()
        assert sum(path.stat().st_size for path in tmp_path.rglob("*.blk")) < 1200
        assert len(stream.log.block_list()) <= 3
    expected = (stream.log.first_seq, stream.log.last_seq, stream.log.messages, stream.log.last_ts)
    store.close()
    store = FileStore(tmp_path, block_size=500)
    log = store.account("$G").open_stream("S").log
    assert (log.first_seq, log.last_seq, log.messages, log.last_ts) == expected
    assert log.append(b"a", b"", b"y", 400) == log.last_seq == expected[1] + 1
    store.close()


def test_removals_out_of_order_are_noted_as_few_ranges() -> None:
    log = StreamLog(durable=True)
    for ts in range(1000):
        log.append(b"a", b"", b"", ts)
    log.flush_tombstones()
    [block] = log.block_list()
    size = block.size
    for seq in [*range(900, 2, -2), *range(3, 900, 2)]:
        log.remove(seq)
    log.flush_tombstones()
    assert block.size - size < 100
    assert log.deleted() == list(range(3, 901))


def test_a_message_larger_than_a_block_gets_one_of_its_own() -> None:
    log = StreamLog(100)
    log.append(b"a", b"", b"s", 1)
    log.append(b"a", b"", b"x" * 1000, 2)
    log.append(b"a", b"", b"t", 3)
    assert len(log.block_list()) == 3
    assert [len(m.payload) for m in map(log.load, (1, 2, 3)) if m] == [1, 1000, 1]


def test_a_message_without_subject_is_refused() -> None:
    with pytest.raises(ValueError, match="can't be stored"):
        StreamLog().append(b"", b"", b"x", 1)


def test_a_wildcard_that_matches_little_is_found_from_anywhere() -> None:
    log = StreamLog(20_000)
    model = LogModel()
    for i in range(6000):
        subject = b"rare.%d" % (i // 900 % 3) if i % 900 == 0 else b"often.%d" % (i % 5)
        log.append(subject, b"", b"x", i)
        model.append(subject, b"", b"x", i)
    for filter in (b"rare.*", b"*.1", b"rare.>", b"none.*", b"often.*"):
        matching = model.matching(filter)
        for seq in range(1, 6002, 151):
            assert log.next_seq(seq, filter) == next((found for found in matching if found >= seq), 0)


def test_a_chain_leads_through_blocks_that_were_rewritten() -> None:
    log = StreamLog(400)
    model = LogModel()
    for i in range(300):
        subject = b"s.%d" % (i % 3)
        log.append(subject, b"", b"x" * 10, i)
        model.append(subject, b"", b"x" * 10, i)
    for seq in range(2, 295):
        if seq % 40:
            assert log.remove(seq) and model.remove(seq)
    while compact(log, 5):
        pass
    assert log.rewrites > 20 and len(log.block_list()) < 8
    for subject in (b"s.0", b"s.1", b"s.2"):
        hops, seq = [], log.next_seq(1, subject)
        while seq:
            hops.append(seq)
            seq = log.next_seq(seq + 1, subject)
        assert hops == model.matching(subject)
        while hops:  # the last one goes: the one before is the last
            assert log.last_seq_of(subject) == hops[-1]
            assert log.remove(hops.pop())
        assert log.last_seq_of(subject) == 0


def test_many_subjects_come_and_go() -> None:
    log = StreamLog(5000)
    model = LogModel()
    for i in range(4000):
        subject = b"dev.%d.%d" % (i % 700, i % 3)
        log.append(subject, b"", b"", i)
        model.append(subject, b"", b"", i)
        if i % 5 == 0:
            log.limit_subject(subject, 1)
            model.limit_subject(subject, 1)
        if i % 997 == 0:
            assert log.subjects(b"dev.*.1") == model.subjects(b"dev.*.1")
            log.purge(b"dev.5.>")
            model.purge(b"dev.5.>", 0, 0)
    log.limit(50, 0)
    model.limit(50, 0)
    for filter in (b">", b"dev.*.2", b"dev.699.>", b"dev.698.2"):
        assert log.subjects(filter) == model.subjects(filter)
    log.purge()
    assert log.subjects() == {} and log.num_subjects == 0


TOKENS = st.sampled_from([b"a", b"b", b"aa", b"c"])
MANY_SUBJECTS = st.lists(st.lists(TOKENS, min_size=1, max_size=4).map(b".".join), max_size=30)
ANY_FILTER = st.lists(st.one_of(TOKENS, st.just(b"*")), max_size=4).flatmap(
    lambda tokens: st.sampled_from([b".".join(tokens), b".".join([*tokens, b">"])])
)


@given(MANY_SUBJECTS, st.lists(ANY_FILTER, min_size=1), st.lists(st.integers(0, 30)), MANY_SUBJECTS)
def test_filters_find_the_subjects_that_match(
    first: list[bytes], filters: list[bytes], removed: list[int], second: list[bytes]
) -> None:
    log, model = StreamLog(), LogModel()

    def compare_with_model() -> None:
        for filter in filters:
            if filter:
                assert log.subjects(filter) == model.subjects(filter)

    for subjects in (first, second):
        for subject in subjects:
            log.append(subject, b"", b"", 0)
            model.append(subject, b"", b"", 0)
        compare_with_model()
        for seq in removed:
            assert log.remove(seq) == model.remove(seq)
        compare_with_model()


def test_a_subject_costs_at_most_about_a_hundred_bytes_beside_its_text() -> None:
    log = StreamLog()
    text = 0
    for i in range(30000):
        subject = b"device.%05d.state" % i
        text += len(subject)
        log.append(subject, b"", b"", i)
    assert len(log.subjects(b"device.*.state")) == 30000
    # Arrays double, so that the momentary room can be twice what is used.
    assert log.subject_memory() - text < 30000 * 150


def test_mapped_bytes_in_a_cycle_of_garbage_are_not_freed() -> None:
    # In a process of its own: freeing what is not ours ends it.
    program = """
import gc
from penstock.kernels.log.message_block import MessageBlock
from penstock.kernels.log.stream_log import StreamLog

class Mapped(bytearray):
    pass

log = StreamLog(400, True)
log.append(b"a", b"", b"x" * 50, 1)
for _ in range(20):
    block = MessageBlock(1, 1)
    mapped = Mapped(bytes(log.block_list()[0]))
    mapped.block = block
    block.scan(memoryview(mapped), copy=False)
    del block, mapped
    gc.collect()
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_wildcards_are_answered_while_the_subject_index_is_still_being_built() -> None:
    """It takes in 16,384 subjects at a time; the others are compared one by one."""
    log, model = StreamLog(), LogModel()
    for i in range(40_000):
        subject = b"wide.%d.%d" % (i % 100, i)
        log.append(subject, b"", b"", 1)
        model.append(subject, b"", b"", 1)
    for index, wanted in enumerate((b"wide.7.>", b"wide.*.39907", b"*.99.*", b"wide.>", b"wide.7.*")):
        assert log.subjects(wanted) == model.subjects(wanted)
        for seq in (index * 9_000 + 8, index * 700 + 100):
            assert log.remove(seq) == model.remove(seq)
        subject = b"wide.7.new%d" % index
        assert log.append(subject, b"", b"", 1) == model.append(subject, b"", b"", 1)
        assert log.subjects(wanted) == model.subjects(wanted)


@given(seed=st.integers(0, 1000), subjects=st.sampled_from([3, 40, 700]))
@settings(max_examples=examples(12), deadline=None)
def test_a_log_of_many_subjects_is_read_from_the_indexes_of_its_blocks(seed: int, subjects: int) -> None:
    """More of them than are merged at once, known from earlier blocks or new, in a table that has to grow."""
    model, draw = LogModel(), Random(seed)
    with tempfile.TemporaryDirectory() as directory:
        store = FileStore(Path(directory), block_size=20_000)
        stream = store.account("$G").create_stream("S", b"", "file")
        for ts in range(1, 2_500):
            subject = b"s.%d" % min(draw.randrange(subjects), ts // 3)
            stream.log.append(subject, b"", b"", ts)
            model.append(subject, b"", b"", ts)
        for seq in draw.sample(range(1, 2_500), 300):
            assert stream.log.remove(seq) == model.remove(seq)
        stream.write()
        store.close()
        assert len(list(Path(directory).glob("**/*.idx"))) > 3
        store = FileStore(Path(directory), block_size=20_000)
        log = store.account("$G").open_stream("S").log
        expect_same(log, model)
        for number in range(0, subjects, max(subjects // 7, 1)):
            subject = b"s.%d" % number
            assert along(log, subject) == model.matching(subject)
        store.close()
