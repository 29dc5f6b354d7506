"""What both stores promise: accounts, streams, consumers, names."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from penstock.errors import StoreCorruptError, StoreError, StoreLockedError, StoreWriteError
from penstock.store.disk import SYNC_THREADS, Disk, LocalDisk
from penstock.store.file import FileStore
from penstock.store.files import OpenFiles, quote_name, unquote_name
from penstock.store.interface import Store
from penstock.store.memory import MemoryStore
from penstock.testing.sim.sim_disk import SimDisk

Opener = Callable[[], Store]


@pytest.fixture(params=["memory", "file"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Opens the store, or opens it again as the next process would."""
    state: dict[str, Store] = {}

    def open_store() -> Store:
        if request.param == "memory":
            return state.setdefault("store", MemoryStore())
        if "store" in state:
            state["store"].close()
        state["store"] = FileStore(tmp_path)
        return state["store"]

    yield open_store
    state["store"].close()


def test_what_is_created_is_listed_and_opened(opened: Opener) -> None:
    account = opened().account("$G")
    assert account.stream_names() == []
    for name in ("ORDERS", "a", "Z-9_x"):
        account.create_stream(name, b"meta of " + name.encode(), "file")
    account = opened().account("$G")
    assert account.stream_names() == ["ORDERS", "Z-9_x", "a"]
    assert [account.has_stream(name) for name in ("ORDERS", "Z-9_x", "a", "b")] == [True, True, True, False]
    stream = account.open_stream("ORDERS")
    assert (stream.name, stream.meta) == ("ORDERS", b"meta of ORDERS")
    assert account.open_stream("ORDERS") is stream


def test_a_new_stream_is_on_the_disk_after_three_syncs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name, its meta, the meta's name: a request waits for them."""
    store = FileStore(tmp_path)
    account = store.account("$G")
    account.create_stream("FIRST", b"", "file")  # has to make the account's directories too
    synced: list[Path] = []
    sync_directory, sync = LocalDisk.sync_directory, LocalDisk.sync

    def note_directory(self: LocalDisk, path: Path) -> None:
        synced.append(path)
        sync_directory(self, path)

    def note_file(self: LocalDisk, fd: int) -> None:
        synced.append(Path("file"))
        sync(self, fd)

    monkeypatch.setattr(LocalDisk, "sync_directory", note_directory)
    monkeypatch.setattr(LocalDisk, "sync", note_file)
    account.create_stream("SECOND", b"", "file")
    streams = tmp_path / "jetstream" / "%24G" / "streams"
    assert synced == [streams, Path("file"), streams / "SECOND"]
    store.close()


def test_a_meta_whose_name_could_not_be_synced_is_the_old_one_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore(tmp_path)
    stream = store.account("$G").create_stream("S", b"old", "file")

    def refuse(self: LocalDisk, path: Path) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as failing:
        failing.setattr(LocalDisk, "sync_directory", refuse)
        with pytest.raises(StoreWriteError, match="Input/output error"):
            stream.save_meta(b"new")
    assert stream.meta == b"old"
    store.abandon()
    store = FileStore(tmp_path)
    assert store.account("$G").open_stream("S").meta == b"old"
    store.close()


def test_a_name_is_taken_once(opened: Opener) -> None:
    account = opened().account("$G")
    account.create_stream("S", b"", "file").create_consumer("c", b"")
    with pytest.raises(StoreError, match="keeps a stream 'S' already"):
        account.create_stream("S", b"", "file")
    with pytest.raises(StoreError, match="keeps a consumer 'c' already"):
        account.open_stream("S").create_consumer("c", b"")
    with pytest.raises(StoreError, match="keeps no consumer 'd'"):
        account.open_stream("S").open_consumer("d")


def test_accounts_do_not_see_each_other(opened: Opener) -> None:
    store = opened()
    store.account("A").create_stream("S", b"of A", "file")
    store.account("B").create_stream("S", b"of B", "file")
    store = opened()
    assert [store.account(name).open_stream("S").meta for name in ("A", "B")] == [b"of A", b"of B"]
    assert store.account_names() == ["A", "B"]


def test_meta_is_replaced(opened: Opener) -> None:
    stream = opened().account("$G").create_stream("S", b"one", "file")
    consumer = stream.create_consumer("c", b"eins")
    stream.save_meta(b"two\n\x00")
    consumer.save_meta(b"zwei")
    stream = opened().account("$G").open_stream("S")
    assert stream.meta == b"two\n\x00" and stream.open_consumer("c").meta == b"zwei"


def test_what_is_deleted_is_gone(opened: Opener) -> None:
    account = opened().account("$G")
    stream = account.create_stream("S", b"", "file")
    stream.log.append(b"a", b"", b"x", 1)
    stream.write()
    stream.create_consumer("c", b"")
    stream.create_consumer("d", b"", memory=True)
    stream.open_consumer("c").delete()
    assert stream.consumer_names() == ["d"]
    stream.delete()
    assert account.stream_names() == [] and not account.has_stream("S")
    account = opened().account("$G")
    assert account.stream_names() == []
    again = account.create_stream("S", b"new", "file")
    assert again.log.last_seq == 0 and again.consumer_names() == []


def test_a_deleted_consumer_leaves_its_stream_alone(opened: Opener) -> None:
    stream = opened().account("$G").create_stream("S", b"", "file")
    consumer = stream.create_consumer("c", b"")
    consumer.append(b"entry")
    consumer.write()
    consumer.delete()
    stream.write()
    stream.sync()
    again = stream.create_consumer("c", b"second life")
    assert again.load() == (None, [])
    stream.sync()
    assert opened().account("$G").open_stream("S").open_consumer("c").meta == b"second life"


def test_messages_and_consumer_states_are_kept(opened: Opener) -> None:
    stream = opened().account("$G").create_stream("S", b"", "file")
    stream.log.append(b"a.b", b"NATS/1.0\r\n\r\n", b"x", 7)
    consumer = stream.create_consumer("c", b"")
    consumer.snapshot(b"state")
    consumer.append(b"entry")
    consumer.write()
    stream.write()
    stream.sync()
    stream = opened().account("$G").open_stream("S")
    message = stream.log.load(1)
    assert message is not None and (message.subject, message.payload, message.ts) == (b"a.b", b"x", 7)
    assert stream.open_consumer("c").load() == (b"state", [b"entry"])
    assert stream.consumer_names() == ["c"]


def test_streams_in_memory_live_beside_those_on_disk(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    account = store.account("$G")
    account.create_stream("disk", b"", "file").create_consumer("held", b"", memory=True)
    memory = account.create_stream("memory", b"", "memory")
    assert memory.storage == "memory" and account.stream_names() == ["disk", "memory"]
    assert account.has_stream("disk") and account.has_stream("memory")
    assert account.open_stream("memory") is memory
    store.close()
    store = FileStore(tmp_path)
    assert store.account("$G").stream_names() == ["disk"]
    assert store.account("$G").open_stream("disk").consumer_names() == []
    store.close()


@pytest.mark.parametrize(
    "name", ["plain", "with space", "dot.dot", "..", "a/b\\c", "%41", "ünï", "$G", "x" * 255, ""]
)
def test_any_name_makes_a_safe_directory(name: str, tmp_path: Path) -> None:
    quoted = quote_name(name)
    assert "/" not in quoted and not quoted.startswith(".") and len(quoted) <= 200
    if len(name) < 100:
        assert unquote_name(quoted) == name


def test_long_names_that_begin_alike_stay_apart(tmp_path: Path) -> None:
    first, second = "n" * 250 + "1", "n" * 250 + "2"
    store = FileStore(tmp_path)
    store.account("$G").create_stream(first, b"1", "file")
    store.account("$G").create_stream(second, b"2", "file")
    store.close()
    store = FileStore(tmp_path)
    assert store.account("$G").stream_names() == [first, second]
    assert store.account("$G").open_stream(second).meta == b"2"
    store.close()


def test_another_process_cannot_use_the_directory(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    code = f"from penstock.store.file import FileStore; FileStore({str(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "StoreLockedError" in done.stderr
    with pytest.raises(StoreLockedError, match="another one"):
        FileStore(tmp_path)
    store.close()
    FileStore(tmp_path).close()


def test_a_creation_that_was_interrupted_is_nothing(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    directory = tmp_path / "jetstream" / "%24G" / "streams" / "S"
    (directory / "msgs").mkdir(parents=True)
    (directory / "msgs" / "1.blk").write_bytes(b"left over")
    assert store.account("$G").stream_names() == []
    stream = store.account("$G").create_stream("S", b"", "file")
    assert stream.log.last_seq == 0
    store.close()


def test_a_deletion_that_was_interrupted_is_finished(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.account("$G").create_stream("S", b"", "file")
    store.close()
    streams = tmp_path / "jetstream" / "%24G" / "streams"
    (streams / "S").rename(streams / ".deleted-S")
    store = FileStore(tmp_path)
    assert store.account("$G").stream_names() == [] and list(streams.iterdir()) == []
    store.close()


def test_a_damaged_meta_is_reported_with_its_file(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.account("$G").create_stream("S", b"meta", "file")
    store.close()
    path = tmp_path / "jetstream" / "%24G" / "streams" / "S" / "meta"
    whole = path.read_bytes()
    for damaged in (b"", b"penstock", whole[:-1], whole[:-1] + b"?", whole.replace(b" 2 ", b" x ")):
        path.write_bytes(damaged)
        store = FileStore(tmp_path)
        assert store.account("$G").stream_names() == ["S"]
        with pytest.raises(StoreCorruptError) as caught:
            store.account("$G").open_stream("S")
        assert caught.value.path == str(path)
        store.abandon()


def test_open_files_are_bounded(tmp_path: Path) -> None:
    files = OpenFiles(4)
    for round_ in range(3):
        for i in range(10):
            path = tmp_path / f"{i}"
            assert files.write(path, b"%d" % round_, round_) == 1
            assert len(files) <= 4
    files.close()
    assert all((tmp_path / f"{i}").read_bytes() == b"012" for i in range(10))


# -- many syncs


def test_a_local_disk_works_on_many_paths_at_once() -> None:
    together = threading.Barrier(SYNC_THREADS)
    met: list[int] = []

    def sync(path: Path) -> None:
        met.append(together.wait(10))

    LocalDisk().for_each(sync, [Path(str(n)) for n in range(2 * SYNC_THREADS)])
    assert len(met) == 2 * SYNC_THREADS


@pytest.mark.parametrize("count", [1, 5 * SYNC_THREADS])
@pytest.mark.parametrize("disk", [LocalDisk(), SimDisk(Random(1))])
def test_an_error_of_one_path_is_raised_when_no_call_runs_any_more(disk: Disk, count: int) -> None:
    running, called = set[Path](), list[Path]()

    def sync(path: Path) -> None:
        running.add(path)
        called.append(path)
        running.discard(path)
        if path.name in ("0", "7"):
            raise StoreWriteError("cannot sync", path=str(path))

    with pytest.raises(StoreWriteError) as caught:
        disk.for_each(sync, [Path(str(n)) for n in range(count)])
    assert caught.value.path == "0" and not running and called
