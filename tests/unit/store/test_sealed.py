"""Encrypted and compressed stores: unreadable without the key, the same with it, whole after any crash."""

from __future__ import annotations

import hashlib
import logging
import shutil
from pathlib import Path

import pytest

from penstock.errors import StoreError, StoreWriteError
from penstock.kernels.log.stream_log import StreamLog
from penstock.store import disk, keys
from penstock.store.file import FileStore
from penstock.store.interface import StreamStore
from penstock.store.keys import StoreKey

pytestmark = pytest.mark.feature("stream.encryption", "stream.compression")

SECRET = b"the payload nobody may read " * 3
KEY = StoreKey("aes", "correct horse")
BLOCK_SIZE = 2000


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process's death leaves doesn't depend on syncs; guessing a key may be quick here."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(disk.os, name, lambda fd: None)
    monkeypatch.setattr(keys, "_stretch", lambda key, salt: hashlib.sha256(salt + key.encode()).digest())


def opened(root: Path, key: StoreKey | None = KEY) -> FileStore:
    return FileStore(root, block_size=BLOCK_SIZE, key=key)


def fill(store: FileStore, count: int = 60, *, compress: bool = False) -> StreamStore:
    stream = store.account("$G").create_stream("S", b"meta of the stream", "file")
    stream.set_compression(compress)
    for i in range(count):
        stream.log.append(b"secret.subject.%d" % (i % 5), b"", SECRET + b"%d" % i, i)
        stream.write()
    consumer = stream.create_consumer("worker", b"meta of the consumer")
    consumer.append(b"entry of the consumer")
    consumer.write()
    consumer.snapshot(b"state of the consumer")
    consumer.append(b"later entry of the consumer")
    consumer.write()
    return stream


def payloads(log: StreamLog) -> dict[int, bytes]:
    found = {}
    seq = log.next_seq(1)
    while seq:
        message = log.load(seq)
        assert message is not None
        found[seq] = message.payload
        seq = log.next_seq(seq + 1)
    return found


def files_of(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.glob("**/*") if path.is_file() and path.name != ".lock"}


@pytest.mark.parametrize("cipher", ["chacha", "aes"])
@pytest.mark.parametrize("compress", [False, True])
def test_nothing_is_readable_without_the_key(tmp_path: Path, cipher: str, compress: bool) -> None:
    key = StoreKey(cipher, "correct horse")
    store = opened(tmp_path, key)
    before = payloads(fill(store, compress=compress).log)
    store.abandon()
    for path, data in files_of(tmp_path).items():
        for plain in (b"payload", b"secret.subject", b"of the consumer", b"of the stream", b"penstock"):
            assert plain not in data, path
    store = opened(tmp_path, key)
    stream = store.account("$G").open_stream("S")
    consumer = stream.open_consumer("worker")
    assert payloads(stream.log) == before and len(before) == 60
    assert (stream.meta, consumer.meta) == (b"meta of the stream", b"meta of the consumer")
    assert consumer.load() == (b"state of the consumer", [b"later entry of the consumer"])
    store.close()


@pytest.mark.parametrize(
    ("key", "why"),
    [
        (None, "no key is configured"),
        (StoreKey("aes", "wrong"), "the configured key does not decrypt"),
        (StoreKey("aes", "wrong", "wrong too"), "neither key nor prev_key decrypts"),
    ],
)
def test_another_key_is_refused_and_changes_nothing(tmp_path: Path, key: StoreKey | None, why: str) -> None:
    store = opened(tmp_path)
    fill(store)
    store.close()
    before = files_of(tmp_path)
    with pytest.raises(StoreError, match=why):
        opened(tmp_path, key)
    assert files_of(tmp_path) == before
    opened(tmp_path).close()


def test_a_new_key_opens_the_store_once_prev_key_did(tmp_path: Path) -> None:
    store = opened(tmp_path)
    before = payloads(fill(store).log)
    store.close()
    store = opened(tmp_path, StoreKey("chacha", "new", "correct horse"))
    stream = store.account("$G").open_stream("S")
    assert payloads(stream.log) == before
    stream.log.append(b"secret.subject.1", b"", SECRET, 100)  # with the other cipher
    stream.write()
    store.close()
    with pytest.raises(StoreError, match="does not decrypt"):
        opened(tmp_path, KEY)
    store = opened(tmp_path, StoreKey("chacha", "new"))
    assert len(payloads(store.account("$G").open_stream("S").log)) == 61
    store.close()


def test_a_store_that_gets_a_key_later_is_encrypted_by_the_next_start(tmp_path: Path) -> None:
    store = opened(tmp_path, None)
    before = payloads(fill(store).log)
    store.abandon()
    blocks = tmp_path / "jetstream" / "%24G" / "streams" / "S" / "msgs"
    last = max(blocks.glob("*.blk"), key=lambda path: int(path.stem))
    last.write_bytes(last.read_bytes() + b"torn")
    store = opened(tmp_path)
    stream = store.account("$G").open_stream("S")
    stream.open_consumer("worker").load()
    assert payloads(stream.log) == before
    store.close()
    for path, data in files_of(tmp_path).items():
        assert b"payload" not in data and b"consumer" not in data, path
    store = opened(tmp_path)
    assert payloads(store.account("$G").open_stream("S").log) == before
    store.close()


def test_an_encrypted_block_torn_at_every_byte_keeps_its_whole_frames(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "template"
    store = FileStore(root, key=KEY)
    stream = store.account("$G").create_stream("S", b"", "file")
    path = Path("jetstream") / "%24G" / "streams" / "S" / "msgs" / "1.blk"
    ends = []
    for i in range(4):
        stream.log.append(b"a", b"", b"%d" % i, i)
        stream.write()
        ends.append((root / path).stat().st_size)
    store.abandon()
    whole = (root / path).read_bytes()
    for cut in [*range(0, 40, 5), *range(ends[2] - 1, len(whole) + 1)]:
        copy = tmp_path / f"{cut}"
        shutil.copytree(root, copy)
        (copy / path).write_bytes(whole[:cut])
        store = FileStore(copy, key=KEY)
        stream = store.account("$G").open_stream("S")
        kept = sum(end <= cut for end in ends)
        assert list(payloads(stream.log).values()) == [b"%d" % i for i in range(kept)]
        stream.log.append(b"a", b"", b"next", 9)
        stream.write()
        store.abandon()
        store = FileStore(copy, key=KEY)
        assert len(payloads(store.account("$G").open_stream("S").log)) == kept + 1
        store.close()


def test_a_changed_byte_in_an_encrypted_block_is_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(tmp_path)
    fill(store, 100)
    store.close()
    blocks = tmp_path / "jetstream" / "%24G" / "streams" / "S" / "msgs"
    first = min(blocks.glob("*.blk"), key=lambda path: int(path.stem))
    data = bytearray(first.read_bytes())
    data[len(data) // 2] ^= 1
    first.write_bytes(data)
    store = opened(tmp_path)
    log = store.account("$G").open_stream("S").log
    with caplog.at_level(logging.ERROR, "penstock.store"):
        seq, found = 1, 0
        while seq := log.next_seq(seq):
            found += log.load(seq) is not None
            seq += 1
    assert log.lost > 0 and found + log.lost == 100
    assert any("does not decrypt" in text for text in caplog.messages)
    store.close()


class HalvesOnAFullDisk:
    """os.pwrite with so much room; takes half of what it is given at a time."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.pwrite = disk.os.pwrite

    def __call__(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        if self.room == 0:
            raise OSError(28, "No space left on device")
        count = min(self.room, max(len(data) // 2, 1))
        self.room -= count
        return self.pwrite(fd, bytes(data[:count]), offset)


def test_a_frame_that_a_full_disk_cut_is_finished_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore(tmp_path, key=KEY)
    stream = store.account("$G").create_stream("S", b"", "file")
    consumer = stream.create_consumer("c", b"")
    full = HalvesOnAFullDisk(0)
    with monkeypatch.context() as patch:
        patch.setattr(disk.os, "pwrite", full)
        for i in range(20):
            stream.log.append(b"a", b"", b"%d" % i, i)
            consumer.append(b"%d" % i)
            for write in (stream.write, consumer.write):
                with pytest.raises(StoreWriteError, match="No space left"):
                    write()
                full.room = 17
        full.room = 1 << 20
        stream.write()
        consumer.write()
    store.abandon()
    store = FileStore(tmp_path, key=KEY)
    stream = store.account("$G").open_stream("S")
    assert list(payloads(stream.log).values()) == [b"%d" % i for i in range(20)]
    assert stream.open_consumer("c").load()[1] == [b"%d" % i for i in range(20)]
    store.close()


@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize("compress", [False, True])
def test_an_erased_message_leaves_nothing_in_the_files(
    tmp_path: Path, key: StoreKey | None, compress: bool
) -> None:
    store = opened(tmp_path, key)
    stream = fill(store, compress=compress)
    assert stream.log.remove(2, secure=True) and stream.log.remove(60, secure=True)
    stream.write()
    stream.log.append(b"after", b"", b"after", 200)
    stream.write()
    kept = payloads(stream.log)
    file_cipher = store._files.file_cipher
    for path in tmp_path.glob("**/*.blk"):
        data = path.read_bytes()
        plain = bytes(file_cipher.decode(memoryview(data), path).data) if data[:8] == b"PENSFILE" else data
        assert SECRET + b"1\x00" not in plain and SECRET + b"59" not in plain
    store.abandon()
    store = opened(tmp_path, key)
    log = store.account("$G").open_stream("S").log
    assert payloads(log) == kept and 2 not in kept and 60 not in kept and 61 in kept
    store.close()


def test_closed_blocks_are_compressed_and_read_the_same(tmp_path: Path) -> None:
    store = opened(tmp_path, None)
    stream = fill(store, 200, compress=True)
    before, size = payloads(stream.log), stream.log.bytes
    on_disk = sum(path.stat().st_size for path in tmp_path.glob("**/*.blk"))
    assert on_disk < size / 3
    stream.set_compression(False)
    for i in range(50):
        stream.log.append(b"plain", b"", SECRET, 300 + i)
    stream.write()
    store.abandon()
    for with_index in (True, False):
        if not with_index:
            for path in tmp_path.glob("**/*.idx"):
                path.unlink()
        store = opened(tmp_path, None)
        log = store.account("$G").open_stream("S").log
        assert log.messages == 250 and {s: p for s, p in payloads(log).items() if s <= 200} == before
        store.abandon()


def test_a_compressed_last_block_stays_closed(tmp_path: Path) -> None:
    """As after a power failure that took the open block's file."""
    store = opened(tmp_path, None)
    fill(store, 60, compress=True)
    store.close()
    blocks = sorted(tmp_path.glob("**/*.blk"), key=lambda path: int(path.stem))
    blocks[-1].unlink()
    store = opened(tmp_path, None)
    stream = store.account("$G").open_stream("S")
    kept = payloads(stream.log)
    seq = stream.log.append(b"a", b"", b"next", 99)
    stream.write()
    store.abandon()
    store = opened(tmp_path, None)
    assert payloads(store.account("$G").open_stream("S").log) == {**kept, seq: b"next"}
    store.close()
