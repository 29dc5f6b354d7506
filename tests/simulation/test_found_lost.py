"""What the simulation found about messages whose bytes the disk lost, told as briefly as it can be."""

from __future__ import annotations

from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

from penstock.errors import JetStreamApiError
from penstock.jetstream.stream import publish_checks
from penstock.kernels.log.stream_log import StreamLog
from penstock.protocol.api import ApiStreamConfig, DiscardPolicy
from penstock.store.file import FileStore
from penstock.store.streamfiles import LOST_LOGGED
from penstock.testing.sim.sim_disk import SimDisk

BLOCK = Path("/store/jetstream/%24G/streams/S/msgs/1.blk")
SIZE = len(b"S.1") + 30 + 100  # of a message


def log_of_two_blocks() -> tuple[SimDisk, StreamLog]:
    """A block with messages 1 to 7, four tombstones of the removal of 2 to 5, and message 8; another one with
    9 to 11. The server has restarted since."""
    disk = SimDisk(Random(1))
    stream = FileStore("/store", disk=disk, block_size=1350).account("$G").create_stream("S", b"{}", "file")
    log = stream.log
    for number in range(1, 8):
        log.append(b"S.%d" % number, b"", b"." * 100, number)
    for seq in (2, 4, 3, 5):
        log.remove(seq)
        stream.write()
    for number in range(8, 12):
        log.append(b"S.%d" % (number % 10), b"", b"." * 100, number)
        stream.write()
    assert [len(block) for block in log.block_list()] == [8, 3]
    disk.restart()
    log = FileStore("/store", disk=disk, block_size=1350).account("$G").open_stream("S").log
    log.release_idle()  # recovery read the block to apply its tombstones
    return disk, log


def damage(disk: SimDisk, *seqs: int) -> None:
    """The first block's records of these sequences are zeros."""
    file = disk._file(BLOCK)
    for seq in seqs:
        at = file.data.index(b"S.%d." % seq) - 22  # length, sequence, time and the subject's length
        file.data[at : at + SIZE] = bytes(SIZE)


def test_lost_messages_leave_exactly_the_bytes_of_those_that_can_be_read() -> None:
    disk, log = log_of_two_blocks()
    assert (log.messages, log.bytes) == (7, 7 * SIZE)
    damage(disk, 1, 7)  # the tombstones are between 7 and 8
    assert log.load(7) is None
    assert (log.messages, log.bytes, log.first_seq, log.lost) == (5, 5 * SIZE, 6, 2)


def test_a_limit_of_bytes_removes_no_readable_message_after_others_were_lost() -> None:
    disk, log = log_of_two_blocks()
    damage(disk, 1, 7)
    assert log.load(1) is log.load(7) is None
    for seq in (6, 8, 9, 10, 11):
        log.remove(seq)
    log.append(b"S.x", b"", b"small", 12)
    assert log.limit(-1, 10 * SIZE) == 0
    assert (log.messages, log.bytes) == (1, len(b"S.x") + 30 + len(b"small"))


def test_the_limit_of_a_subject_holds_after_its_oldest_message_was_lost() -> None:
    disk, log = log_of_two_blocks()  # S.1 has messages 1 and 11
    damage(disk, 1)
    assert log.load(1) is None
    assert log.limit_subject(b"S.1", 1) == 0 and log.next_seq(1, b"S.1") == 11
    log.append(b"S.1", b"", b"newer", 12)
    assert log.limit_subject(b"S.1", 1) == 1 and log.next_seq(1, b"S.1") == 12
    assert log.count_matching(b"S.1") == 1


def test_a_subject_does_not_count_its_oldest_message_that_was_lost() -> None:
    disk, log = log_of_two_blocks()
    damage(disk, 1, 6)
    assert log.load(1) is log.load(6) is None
    assert (log.count_matching(b"S.1"), log.count_matching(b"S.6")) == (1, 0)
    assert log.subjects(b"S.6") == {} and log.last_seq_of(b"S.6") == 0


def test_a_publish_meets_a_subject_limit_when_only_lost_messages_reach_it() -> None:
    disk, log = log_of_two_blocks()
    damage(disk, 6)  # the publish that looks for it finds that out
    config = ApiStreamConfig(
        name="S", discard=DiscardPolicy.NEW, max_msgs=log.messages, max_msgs_per_subject=1
    )
    stream = SimpleNamespace(config=config, log=log)
    publish_checks.check_room(stream, b"S.6", b"", 10)  # type: ignore[arg-type]
    log.append(b"S.x", b"", b"", 12)
    with pytest.raises(JetStreamApiError, match="maximum messages exceeded"):
        publish_checks.check_room(stream, b"S.6", b"", 10)  # type: ignore[arg-type]


def test_a_block_of_unreadable_messages_takes_a_few_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimDisk(Random(1))
    stream = FileStore("/store", disk=disk, block_size=16_000).account("$G").create_stream("S", b"{}", "file")
    for number in range(1, 101):
        stream.log.append(b"S.%d" % number, b"", b"." * 100, number)
    stream.log.append(b"S.0", b"", b"." * 5000, 101)  # in the next block
    stream.write()
    disk.restart()
    log = FileStore("/store", disk=disk, block_size=16_000).account("$G").open_stream("S").log
    log.release_idle()
    file = disk._file(BLOCK)
    first = file.data.index(b"S.2.") - 22
    last = file.data.index(b"S.99.") - 22
    file.data[first:last] = bytes(last - first)
    assert log.load(50) is None
    assert log.messages == 4
    lines = [text for text in caplog.messages if " lost" in text]
    assert len(lines) == LOST_LOGGED + 1
    assert "message 2 of stream S is lost" in lines[0]
    assert "87 more messages of stream S are lost, the last one is 98" in lines[-1]
