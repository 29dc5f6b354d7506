"""Formats of the store: old ones are read, newer ones named and left alone, other servers' files refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import StoreCorruptError, StoreFormatError
from penstock.kernels.log.records import xxh64_digest
from penstock.store.disk import LOCAL_DISK
from penstock.store.file import META, FileStore
from penstock.store.files import FORMAT, OpenFiles, pack_meta, unpack_meta
from penstock.store.store_check import StoreChecker
from tests.support.engine import EngineHarness

pytestmark = pytest.mark.feature("operations.upgrades")

NAME, CONTENT = "ORDERS", b'{"config":{"name":"ORDERS"}}'


def unpack(tmp_path: Path, data: bytes) -> tuple[str, bytes]:
    path = tmp_path / "meta"
    path.write_bytes(data)
    return unpack_meta(OpenFiles(disk=LOCAL_DISK), path)


def version_1() -> bytes:
    raw = NAME.encode()
    return b"penstock 1 6\nORDERS\n%016x\n" % xxh64_digest(CONTENT, xxh64_digest(raw)) + CONTENT


def newer() -> bytes:
    line = b"penstock %d 6" % (FORMAT + 1)
    digest = xxh64_digest(CONTENT, xxh64_digest(NAME.encode(), xxh64_digest(line)))
    return line + b"\nORDERS\n%016x\n" % digest + CONTENT


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert unpack(tmp_path, pack_meta(NAME, CONTENT)) == (NAME, CONTENT)


def test_version_1_is_still_read(tmp_path: Path) -> None:
    assert unpack(tmp_path, version_1()) == (NAME, CONTENT)


def test_a_newer_format_is_named_as_such(tmp_path: Path) -> None:
    with pytest.raises(StoreFormatError, match=rf"newer penstock \(format {FORMAT + 1}, .* up to {FORMAT}\)"):
        unpack(tmp_path, newer())


@pytest.mark.parametrize("data", [pack_meta(NAME, CONTENT), version_1()], ids=["now", "version 1"])
def test_every_flipped_bit_is_damage_and_never_another_format(tmp_path: Path, data: bytes) -> None:
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            assert unpack(tmp_path, bytes(flipped)) == (NAME, CONTENT), f"bit {bit}"
        except StoreCorruptError:
            continue
        # int() reads some characters like the ones that were written: a digit of the hash in upper case.
        assert bytes(flipped).lower() == data.lower(), f"bit {bit}"


def test_a_stream_of_a_newer_format_is_reported_and_not_repaired(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    stream = store.account("A").create_stream(NAME, CONTENT, "file")
    stream.close()
    store.close()
    directory = tmp_path / "jetstream" / "A" / "streams" / NAME
    (directory / META).write_bytes(newer())
    (directory / "msgs" / "1.blk").write_bytes(b"records of a newer format")
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    doctor = StoreChecker(tmp_path)
    report = doctor.repair("now")
    assert [str(finding.path.name) for finding in report.findings] == [META]
    assert "newer penstock" in report.findings[0].what
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before


def test_a_stream_of_a_newer_format_is_offline_and_the_others_are_served(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    js = EngineHarness(store.account("A"))
    js.create("OLD", "old")
    js.create("ORDERS", "orders")
    js.engine.close()
    store.close()
    meta = tmp_path / "jetstream" / "A" / "streams" / NAME / META
    meta.write_bytes(newer())
    store = FileStore(tmp_path)
    js = EngineHarness(store.account("A"))
    assert js.request("old")["stream"] == "OLD"
    assert "newer penstock" in js.api("STREAM.LIST")["offline"][NAME]
    js.engine.close()
    store.close()
    assert meta.read_bytes() == newer()


def test_the_store_directory_of_an_official_server_is_refused(tmp_path: Path) -> None:
    stream = tmp_path / "jetstream" / "$G" / "streams" / "ORDERS"
    stream.mkdir(parents=True)
    (stream / "meta.inf").write_text("{}")
    with pytest.raises(StoreFormatError, match=r"account \$G: ORDERS.*nats account backup"):
        FileStore(tmp_path)
    (stream / "meta.inf").unlink()
    FileStore(tmp_path).close()


def test_a_server_does_not_start_beside_the_streams_of_an_official_one(tmp_path: Path) -> None:
    stream = tmp_path / "jetstream" / "ACC" / "streams" / "ORDERS"
    stream.mkdir(parents=True)
    (stream / "meta.inf").write_text("{}")
    ended = subprocess.run(
        [sys.executable, "-m", "penstock", "serve", "-js", "-sd", str(tmp_path), "-p", "-1"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert ended.returncode == 1
    assert "streams of an official nats-server (account ACC: ORDERS)" in ended.stderr
    assert "nats account restore" in ended.stderr
