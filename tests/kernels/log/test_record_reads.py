"""Records read without their blocks: a consumer of few messages, or a get of one, gets what a reader of whole
blocks would get, whatever became of the messages and of the files in the meantime."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from penstock.kernels.consumer.ack_state import AckPolicy, AckState
from penstock.kernels.consumer.endpoints import Target
from penstock.kernels.consumer.pump import Pump, RunEnd
from penstock.kernels.log.stream_log import StreamLog
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import ServiceSink
from penstock.kernels.wire.sinks import SinkSubscription
from penstock.store import keys
from penstock.store.disk import RecordReads
from penstock.store.file import FileStore
from penstock.store.interface import StreamStore
from penstock.store.keys import StoreKey
from penstock.testing.sim.sim_disk import SimDisk
from tests.reference.filter_cursor import FilterCursorModel
from tests.reference.stream_log import LogModel
from tests.support.examples import examples

SUBJECTS = [b"a.b", b"a.c", b"b.c", b"x.y.z"]
FILTERS = [[b"a.b"], [b"a.*"], [b"x.>", b"b.c"], [b">"]]
KEY = StoreKey("aes", "correct horse")
SINGLE_READS = 256  # gets of a block's messages before it is loaded


class Receiver:
    """A pump's one target: sequence and payload of each message."""

    def __init__(self, log: StreamLog, filters: list[bytes], position: int = 1) -> None:
        self.got: list[tuple[int, bytes]] = []
        index = SubscriptionIndex()
        index.insert(SinkSubscription(ServiceSink(self._take), b"deliver"))
        self.pump = Pump(log, AckState(AckPolicy.ACK_NONE), index, b"$JS.ACK.S.C.", filters, position)

    def _take(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: object) -> None:
        self.got.append((int(reply.split(b".")[5]), payload))

    def run(self, budget: int = 1_000_000) -> list[tuple[int, bytes]]:
        self.got = []
        while len(self.got) < budget:
            if self.pump.run([Target(b"deliver")], 1, budget - len(self.got)) != RunEnd.RUN_BUDGET:
                break
        return self.got


class RecordReadsMachine(RuleBasedStateMachine):
    """A stream on disk; a consumer with filters, one of listed messages, and gets. Between their reads blocks
    leave memory."""

    @initialize(
        block_size=st.sampled_from([200, 700, 5000]),
        filters=st.sampled_from(FILTERS),
        compress=st.booleans(),
        encrypt=st.booleans(),
    )
    def begin(self, block_size: int, filters: list[bytes], compress: bool, encrypt: bool) -> None:
        self.stretch = keys._stretch
        keys._stretch = lambda key, salt: hashlib.sha256(salt + key.encode()).digest()
        self.directory = Path(tempfile.mkdtemp(prefix="penstock-reads-"))
        self.block_size, self.filters, self.compress = block_size, filters, compress
        self.key = KEY if encrypt else None
        self.model = LogModel()
        self.now = 0
        self.position = 1
        self.fetched = 0
        self.store = FileStore(self.directory, block_size=block_size, key=self.key)
        self.took_on(self.store.account("$G").create_stream("S", b"", "file"))

    def took_on(self, stream: StreamStore) -> None:
        self.stream, self.log = stream, stream.log
        stream.set_compression(self.compress)
        self.receiver = Receiver(self.log, self.filters, self.position)
        self.listed: list[int] = []
        self.lister = Receiver(self.log, [], 1 << 40)

    @rule(subject=st.sampled_from(SUBJECTS), size=st.integers(0, 90), copies=st.integers(1, 12))
    def append(self, subject: bytes, size: int, copies: int) -> None:
        for _ in range(copies):
            self.now += 1
            payload = b"%d." % self.now + b"p" * size
            self.log.append(subject, b"", payload, self.now)
            self.model.append(subject, b"", payload, self.now)

    @rule(data=st.data(), secure=st.booleans())
    def remove(self, data: st.DataObject, secure: bool) -> None:
        seq = data.draw(st.integers(0, self.model.last_seq + 1))
        assert self.log.remove(seq, secure) == self.model.remove(seq)

    @rule(many=st.integers(1, 3))
    def remove_what_comes_next(self, many: int) -> None:
        for seq in self.listed[:many]:
            assert self.log.remove(seq) == self.model.remove(seq)

    @rule(filter=st.sampled_from([b"", b"a.*", b"a.b"]), keep=st.integers(0, 3))
    def purge(self, filter: bytes, keep: int) -> None:
        assert self.log.purge(filter, 0, keep) == self.model.purge(filter, 0, keep)

    @rule(msgs_max=st.integers(1, 40))
    def limit(self, msgs_max: int) -> None:
        assert self.log.limit(msgs_max, 0) == self.model.limit(msgs_max, 0)

    @rule()
    def rest(self) -> None:
        """All that can be goes to the disk, rewritten blocks too, and leaves memory."""
        self.stream.write()
        self.stream.trim_cache()

    @rule(kill=st.booleans())
    def reopen(self, kill: bool) -> None:
        self.stream.write()
        if kill:
            self.store.abandon()
        else:
            self.store.close()
        self.store = FileStore(self.directory, block_size=self.block_size, key=self.key)
        self.took_on(self.store.account("$G").open_stream("S"))

    @rule(budget=st.integers(1, 20))
    def deliver(self, budget: int) -> None:
        wanted = FilterCursorModel(self.model, self.filters).from_seq(self.position)[:budget]
        assert self.receiver.run(budget) == [(seq, self.model.live[seq].payload) for seq in wanted]
        if wanted:
            self.position = wanted[-1] + 1

    @rule()
    def begin_again(self) -> None:
        self.position = 1
        self.receiver = Receiver(self.log, self.filters)

    @rule(data=st.data())
    def list_some(self, data: st.DataObject) -> None:
        """As deliver_policy last_per_subject begins."""
        seqs = st.integers(1, max(self.model.last_seq, 1))
        self.listed = sorted(data.draw(st.sets(seqs, max_size=30 if self.model.last_seq else 0)))
        self.lister = Receiver(self.log, [])
        self.lister.pump.start_with(self.listed, 1 << 40)

    @rule(budget=st.integers(1, 6))
    def deliver_listed(self, budget: int) -> None:
        """Some of them may have gone meanwhile, and after they were read ahead."""
        wanted = [seq for seq in self.listed if seq in self.model.live][:budget]
        assert self.lister.run(budget) == [(seq, self.model.live[seq].payload) for seq in wanted]
        if wanted:
            self.listed = [seq for seq in self.listed if seq > wanted[-1]]

    @rule(data=st.data())
    def get(self, data: st.DataObject) -> None:
        seqs = st.integers(0, self.model.last_seq + 1)
        for seq in data.draw(st.lists(seqs, max_size=8)):
            found, stored = self.log.load(seq), self.model.live.get(seq)
            assert (found and found.payload) == (stored and stored.payload)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            keys._stretch = self.stretch
            self.store.close()
            shutil.rmtree(self.directory)


TestRecordReads = RecordReadsMachine.TestCase
TestRecordReads.settings = settings(
    max_examples=examples(40),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


class CountingDisk(SimDisk):
    """Counts the blocks that are read as a whole, and the groups of ranges that were requested and taken."""

    def __init__(self) -> None:
        super().__init__(Random(1))
        self.mapped = self.asked = self.taken = 0

    def read_ranges(self, files: list[tuple[bytes, bytes]]) -> RecordReads:
        self.asked += 1
        below = super().read_ranges(files)

        class Counting:
            def take(_) -> bytes:  # noqa: N805
                self.taken += 1
                return below.take()

        return Counting()

    def map(self, path: Path) -> memoryview:
        self.mapped += path.suffix == ".blk"
        return super().map(path)


def filled(disk: SimDisk, every: int, messages: int = 6000, size: int = 500) -> StreamStore:
    """One message in `every` is on `rare`, the blocks are 256 KiB, and none but the last is in memory."""
    store = FileStore("/store", disk=disk, block_size=1 << 18)
    stream = store.account("$G").create_stream("S", b"", "file")
    for seq in range(1, messages + 1):
        stream.log.append(b"rare" if seq % every == 0 else b"other", b"", b"%d:" % seq + b"." * size, seq)
        if seq % 100 == 0:
            stream.write()
    stream.write()
    stream.trim_cache()
    return stream


def test_messages_that_lie_far_apart_are_read_without_their_blocks() -> None:
    disk = CountingDisk()
    log = filled(disk, 100).log
    receiver = Receiver(log, [b"rare"])
    assert [seq for seq, _ in receiver.run()] == list(range(100, 6001, 100))
    in_memory = sum(seq >= log.block_list()[-1].first_seq for seq in range(100, 6001, 100))
    assert (disk.mapped, receiver.pump.reads.fetched) == (0, 60 - in_memory)


def test_the_next_group_is_asked_for_before_the_last_one_is_delivered() -> None:
    disk = CountingDisk()
    receiver = Receiver(filled(disk, 100, messages=90_000).log, [b"rare"])  # some 120 are 64 KiB
    assert len(receiver.run(1)) == 1 and (disk.asked, disk.taken) == (2, 1)
    first = receiver.pump.reads.fetched
    assert len(receiver.run(first - 1)) == first - 1 and (disk.asked, disk.taken) == (2, 1)
    assert len(receiver.run(1)) == 1 and (disk.asked, disk.taken) == (3, 2)
    receiver.run()
    assert disk.asked == disk.taken and disk.mapped == 0


def test_the_next_group_is_known_while_a_filter_of_many_subjects_has_more_to_come() -> None:
    """However long the run: it is filled up before its end."""
    disk = CountingDisk()
    stream = FileStore("/store", disk=disk, block_size=1 << 18).account("$G").create_stream("S", b"", "file")
    for seq in range(1, 80_001):
        rare = seq % 40 == 0
        stream.log.append(
            b"rare.%d" % (seq % 7) if rare else b"other", b"", b"." * (30 if rare else 500), seq
        )
    stream.write()
    stream.trim_cache()
    receiver = Receiver(stream.log, [b"rare.*"])
    ahead = []
    while receiver.run(100):
        ahead.append(disk.asked - disk.taken)
    assert ahead.count(0) < len(ahead) // 4  # at the end of the stream


def test_messages_that_lie_close_together_are_read_by_the_block() -> None:
    disk = CountingDisk()
    log = filled(disk, 3).log
    receiver = Receiver(log, [b"rare"])
    assert [seq for seq, _ in receiver.run()] == list(range(3, 6001, 3))
    assert disk.mapped == len(log.block_list()) - 1
    assert receiver.pump.reads.fetched < 100  # where a run ends soon after a block's beginning


def test_what_was_read_ahead_is_let_go_at_the_end_of_the_stream() -> None:
    log = filled(CountingDisk(), 100).log
    receiver = Receiver(log, [b"rare"])
    assert len(receiver.run(3)) == 3
    fetched = receiver.pump.reads.fetched
    assert fetched >= 3 and receiver.pump.reads.memory() > 3 * 500
    assert len(receiver.run(1)) == 1 and receiver.pump.reads.fetched == fetched
    receiver.run()
    assert receiver.pump.reads.memory() == 0


def test_a_message_that_goes_after_it_was_read_ahead_is_not_delivered() -> None:
    log = filled(CountingDisk(), 100).log
    receiver = Receiver(log, [])
    receiver.pump.start_with([100, 200, 300, 400], 6000)
    assert [seq for seq, _ in receiver.run(1)] == [100]
    fetched = receiver.pump.reads.fetched
    assert fetched == 4 and log.remove(200) and log.remove(300, secure=True)
    assert [seq for seq, _ in receiver.run()] == [400]
    assert receiver.pump.reads.fetched == fetched


@pytest.mark.parametrize("at", [30, 200, -4])
def test_a_damaged_record_is_lost_alone_and_loudly(at: int, caplog: pytest.LogCaptureFixture) -> None:
    disk = CountingDisk()
    stream = filled(disk, 100)
    [file] = [file for path, file in disk.files() if path.endswith("/1.blk")]
    size = file.data.index(b"201:") - file.data.index(b"200:")
    record = file.data.index(b"200:") - 22 - len(b"rare")
    file.data[record + (at if at >= 0 else size + at)] ^= 4
    receiver = Receiver(stream.log, [b"rare"])
    with caplog.at_level(logging.ERROR):
        seqs = [seq for seq, _ in receiver.run()]
    assert seqs == [seq for seq in range(100, 6001, 100) if seq != 200]
    assert stream.log.lost == 1 and disk.mapped == 1
    assert any("200" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("at_once", [True, False])
def test_where_the_disk_refuses_a_piece_the_block_is_read_and_says_what_is_lost(at_once: bool) -> None:
    class Refusing(CountingDisk):
        def read_ranges(self, files: list[tuple[bytes, bytes]]) -> RecordReads:
            if at_once:
                raise OSError(5, os.strerror(5))
            return self

        def take(self) -> bytes:
            raise OSError(5, os.strerror(5))

    disk = Refusing()
    log = filled(disk, 100).log
    receiver = Receiver(log, [b"rare"])
    assert [seq for seq, _ in receiver.run()] == list(range(100, 6001, 100))
    assert disk.mapped == len(log.block_list()) - 1 and log.lost == 0


def test_a_rewritten_file_is_looked_at_again() -> None:
    """Compressed since it was read last."""
    disk = CountingDisk()
    stream = filled(disk, 100)
    assert len(Receiver(stream.log, [b"rare"]).run(3)) == 3
    stream.set_compression(True)
    for seq in range(1, 500):
        if seq % 100:
            stream.log.remove(seq)
    stream.write()
    stream.trim_cache()
    receiver = Receiver(stream.log, [b"rare"])
    asked = disk.asked
    assert [seq for seq, _ in receiver.run(3)] == [100, 200, 300]
    assert disk.asked == asked


def test_gets_all_over_a_stream_load_no_block_until_it_was_read_often() -> None:
    disk = CountingDisk()
    log = filled(disk, 100).log
    blocks = log.block_list()[:-1]
    for turn in range(SINGLE_READS):
        for block in blocks:
            seq = block.first_seq + turn
            assert log.load(seq).payload.startswith(b"%d:" % seq)
    assert (disk.mapped, disk.taken) == (0, SINGLE_READS * len(blocks))
    for count, block in enumerate(blocks, 1):
        for seq in (block.first_seq, block.last_seq):
            assert log.load(seq).payload.startswith(b"%d:" % seq)
        assert (disk.mapped, disk.taken) == (count, SINGLE_READS * len(blocks))


def test_a_block_that_left_memory_is_read_by_the_record_again() -> None:
    disk = CountingDisk()
    stream = filled(disk, 100)
    for _ in range(SINGLE_READS + 1):
        assert stream.log.load(200).seq == 200
    assert (disk.mapped, disk.taken) == (1, SINGLE_READS)
    stream.trim_cache()
    assert stream.log.load(200).seq == 200
    assert (disk.mapped, disk.taken) == (1, SINGLE_READS + 1)


def test_a_get_of_a_damaged_record_loses_that_one_alone_and_loudly(caplog: pytest.LogCaptureFixture) -> None:
    disk = CountingDisk()
    stream = filled(disk, 100)
    [file] = [file for path, file in disk.files() if path.endswith("/1.blk")]
    file.data[file.data.index(b"200:")] ^= 4
    with caplog.at_level(logging.ERROR):
        assert stream.log.load(200) is None
    assert stream.log.load(199).seq == 199 and stream.log.load(201).seq == 201
    assert stream.log.lost == 1 and disk.mapped == 1
    assert any("200" in record.getMessage() for record in caplog.records)
