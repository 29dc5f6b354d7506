"""Files of replicated streams are kept when the log of their groups is gone."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from penstock.jetstream.stream.stream_replica import StreamMeta
from penstock.protocol.api import ApiStreamConfig
from penstock.server.logging.logs import Log
from penstock.server.replicated.lost_log import has_log, set_aside
from penstock.store.disk import LOCAL_DISK
from penstock.store.file import FileStore


class Stored:
    """A store with streams S (of a cluster), O (a server's own) and M (of a cluster, another account)."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "jetstream"
        self.lines: list[str] = []
        self.log = Log(lambda label, text: self.lines.append(f"{label} {text}"))
        self.store = FileStore(directory)
        for account, name, replicated in (("A", "S", True), ("A", "O", False), ("B.x", "M", True)):
            config = ApiStreamConfig(name=name, subjects=[name])
            meta = msgspec.json.encode(StreamMeta(config, 1, replicated=replicated))
            self.store.account(account).create_stream(name, meta, "file").abandon()
        (self.directory / "A/streams/S/note").write_bytes(b"kept")

    def set_aside(self) -> list[str]:
        found = set_aside(self.store, LOCAL_DISK, self.directory, {("A", "O")}, self.log)
        return [str(one.relative_to(self.directory)) for one in found]

    def names(self) -> list[str]:
        return [f"{one}/{name}" for one in "AB" for name in self.store.account(one).stream_names()]


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    return Stored(tmp_path)


def test_streams_of_a_cluster_are_moved_away_with_what_they_hold(stored: Stored) -> None:
    assert stored.set_aside() == ["_set_aside/1/A/S", "_set_aside/1/B%2Ex/M"]
    assert (stored.directory / "_set_aside/1/A/S/note").read_bytes() == b"kept"
    assert stored.names() == ["A/O"]
    assert [line[:3] for line in stored.lines] == ["ERR", "ERR"]
    assert "_set_aside/1/A/S;" in stored.lines[0]


def test_what_was_moved_away_once_stays_when_the_log_is_lost_again(stored: Stored) -> None:
    stored.set_aside()
    meta = msgspec.json.encode(StreamMeta(ApiStreamConfig(name="S", subjects=["S"]), 1, replicated=True))
    stored.store.account("A").create_stream("S", meta, "file").abandon()
    assert stored.set_aside() == ["_set_aside/2/A/S"]
    assert (stored.directory / "_set_aside/1/A/S/note").read_bytes() == b"kept"
    assert stored.set_aside() == []
    assert sorted(one.name for one in (stored.directory / "_set_aside").iterdir()) == ["1", "2"]


def test_what_was_moved_away_is_no_account_of_the_store(stored: Stored) -> None:
    stored.set_aside()
    assert stored.store.account_names() == ["A", "B.x"]


def test_a_log_is_recognized_by_its_segments(tmp_path: Path) -> None:
    assert not has_log(LOCAL_DISK, tmp_path / "none")
    (tmp_path / "states").mkdir()
    assert not has_log(LOCAL_DISK, tmp_path)
    (tmp_path / "0000000000000001.wal").touch()
    assert has_log(LOCAL_DISK, tmp_path)


def test_one_of_several_replicas_stays_where_it_is_because_it_is_no_copy(stored: Stored) -> None:
    account = stored.store.account("A")
    meta = msgspec.json.encode(
        StreamMeta(ApiStreamConfig(name="R", subjects=["R"], num_replicas=3), 1, replicated=True)
    )
    account.create_replica("R", meta, "file").abandon()
    assert "_set_aside/1/A/R" not in stored.set_aside()
    assert stored.names() == ["A/O", "A/R"]
