"""`penstock store`: damage is found and named with its place, and a repair leaves the rest as it was."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.cli.store import store as store_command
from penstock.errors import StoreError
from penstock.store import disk, keys
from penstock.store.file import FileStore
from penstock.store.journal import read_entries
from penstock.store.keys import StoreKey
from penstock.store.store_check import StoreChecker, StoreReport
from tests.support.examples import examples

pytestmark = pytest.mark.feature("cli.store")

KEY = StoreKey("aes", "correct horse")
KINDS = ["plain", "compressed", "encrypted", "encrypted and compressed"]
BLOCK_SIZE = 900
COUNT = 60
MUTATIONS = int(os.environ.get("PENSTOCK_MUTATIONS", "40"))
STREAM = Path("jetstream/%24G/streams/S")
WORKER = STREAM / "consumers/worker"
STATE, ENTRIES = b"state of the worker", [b"first entry", b"second entry", b"third entry"]


@pytest.fixture(scope="module", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        make_quick(monkeypatch)
        yield


def make_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(disk.os, name, lambda fd: None)
    monkeypatch.setattr(keys, "_stretch", lambda key, salt: hashlib.sha256(salt + key.encode()).digest())


def key_of(kind: str) -> StoreKey | None:
    return KEY if "encrypted" in kind else None


def write_store(root: Path, kind: str) -> None:
    """Two streams; S has four blocks and more, removed messages, and a consumer with snapshot and journal."""
    store = FileStore(root, block_size=BLOCK_SIZE, key=key_of(kind))
    for name in ("S", "OTHER"):
        stream = store.account("$G").create_stream(name, b'{"config":"of %s"}' % name.encode(), "file")
        stream.set_compression("compressed" in kind)
        for i in range(COUNT):
            stream.log.append(b"s.%d" % (i % 3), b"NATS/1.0\r\n\r\n" if i % 2 else b"", b"payload %d" % i, i)
            if i % 4 == 0:
                stream.write()
        stream.log.remove(7)
        stream.log.remove(30)
        stream.write()
        consumer = stream.create_consumer("worker", b"config of the worker")
        consumer.append(b"forgotten")
        consumer.snapshot(STATE)
        for entry in ENTRIES:
            consumer.append(entry)
            consumer.write()
    store.abandon()


@dataclass(frozen=True)
class Kept:
    """All that a server reads of a store."""

    messages: dict[str, dict[int, tuple[bytes, bytes, bytes, int]]]
    metas: dict[str, bytes]
    consumers: dict[str, tuple[bytes, bytes | None, list[bytes]]]


def read_store(root: Path, kind: str) -> Kept:
    """What a server reads. Raises StoreError where it would leave something out."""
    store = FileStore(root, block_size=BLOCK_SIZE, key=key_of(kind))
    kept = Kept({}, {}, {})
    try:
        for name in store.account("$G").stream_names():
            stream = store.account("$G").open_stream(name)
            found = kept.messages[name] = {}
            seq = stream.log.next_seq(1)
            while seq:
                message = stream.log.load(seq)
                if message is not None:
                    found[seq] = (message.subject, message.header, message.payload, message.ts)
                seq = stream.log.next_seq(seq + 1)
            kept.metas[name] = stream.meta
            for one in stream.consumer_names():
                consumer = stream.open_consumer(one)
                kept.consumers[f"{name}/{one}"] = (consumer.meta, *consumer.load())
    finally:
        store.abandon()
    return kept


@contextmanager
def doctor_of(root: Path, kind: str) -> Iterator[StoreChecker]:
    doctor = StoreChecker(root, key_of(kind))
    try:
        yield doctor
    finally:
        doctor.close()


def check(root: Path, kind: str = "plain") -> StoreReport:
    with doctor_of(root, kind) as doctor:
        return doctor.check()


def repair(root: Path, kind: str = "plain") -> StoreReport:
    with doctor_of(root, kind) as doctor:
        return doctor.repair("now")


def files_of(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.glob("**/*") if path.is_file() and path.name != ".lock"}


def only_fault(report: StoreReport) -> tuple[str, int | None, str]:
    (fault,) = report.faults
    return str(fault.path), fault.offset, fault.what


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    roots = {}
    for kind in KINDS:
        roots[kind] = tmp_path_factory.mktemp("store") / "template"
        write_store(roots[kind], kind)
    return roots


@pytest.fixture
def root(tmp_path: Path, templates: dict[str, Path]) -> Path:
    """A plain store to damage."""
    return Path(shutil.copytree(templates["plain"], tmp_path / "store"))


def block(root: Path, which: int) -> Path:
    """The which-th block of S."""
    return sorted((root / STREAM / "msgs").glob("*.blk"), key=lambda path: int(path.stem))[which]


def flip(path: Path, at: int, mask: int = 1) -> int:
    data = bytearray(path.read_bytes())
    at %= len(data)
    data[at] ^= mask
    path.write_bytes(data)
    return at


@pytest.mark.parametrize("kind", KINDS)
def test_a_sound_store_is_sound_and_checking_it_changes_no_byte(
    tmp_path: Path, templates: dict[str, Path], kind: str
) -> None:
    root = Path(shutil.copytree(templates[kind], tmp_path / "store"))
    before = files_of(root)
    report = check(root, kind)
    assert report.findings == []
    assert [(one.name, one.messages, one.first_seq, one.last_seq) for one in report.streams] == [
        ("OTHER", COUNT - 2, 1, COUNT),
        ("S", COUNT - 2, 1, COUNT),
    ]
    assert files_of(root) == before
    assert repair(root, kind).findings == []
    assert files_of(root) == before


def test_a_torn_end_is_named_cut_and_kept(root: Path) -> None:
    before, last = read_store(root, "plain"), block(root, -1)
    whole = last.stat().st_size
    last.write_bytes(last.read_bytes() + b"torn end of a write")
    path, offset, what = only_fault(check(root))
    assert (path, offset) == (str(last.relative_to(root)), whole)
    assert what.startswith("torn end: 19 bytes are not a record")
    report = repair(root)
    assert report.faults[0].done.startswith("cut there")
    assert last.stat().st_size == whole
    kept = root / "lost+found/now" / last.relative_to(root)
    assert kept.read_bytes().endswith(b"torn end of a write")
    assert check(root).findings == [] and read_store(root, "plain") == before


@pytest.mark.parametrize("with_index", [True, False])
@pytest.mark.parametrize("place", ["length", "inside"])
def test_a_flipped_bit_in_a_closed_block_is_repaired(root: Path, with_index: bool, place: str) -> None:
    before, path = read_store(root, "plain"), block(root, 1)
    good = path.read_bytes()
    size = int.from_bytes(good[:4], "little")  # of the note a block begins with; a message follows
    if not with_index:
        path.with_suffix(".idx").unlink()
    at = flip(path, size + (1 if place == "length" else 40))
    found, offset, what = only_fault(check(root))
    assert (found, offset) == (str(path.relative_to(root)), size)
    assert what.startswith("bad record")
    report = repair(root)
    assert f"byte {at} had one wrong bit" in report.faults[0].done
    assert path.read_bytes() == good
    assert check(root).findings == [] and read_store(root, "plain") == before


def test_a_record_that_can_not_be_proven_is_taken_out_and_kept(root: Path) -> None:
    before, path = read_store(root, "plain"), block(root, 1)
    data = bytearray(path.read_bytes())
    at = data.index(b"payload")
    data[at : at + 7] = b"XXXXXXX"
    path.write_bytes(data)
    assert "is lost" in only_fault(check(root))[2]
    report = repair(root)
    assert "taken out" in report.faults[0].done
    assert (root / "lost+found/now" / path.relative_to(root)).read_bytes() == data
    assert check(root).faults == []
    after = read_store(root, "plain")
    missing = before.messages["S"].keys() - after.messages["S"].keys()
    assert len(missing) == 1 and f"message {missing.pop()}," in report.faults[0].what
    assert after.messages["OTHER"] == before.messages["OTHER"] and after.consumers == before.consumers


def test_a_missing_block_is_named_by_its_index_with_the_sequences_it_held(root: Path) -> None:
    before, path = read_store(root, "plain"), block(root, 1)
    path.unlink()
    found, _, what = only_fault(check(root))
    assert found == str(path.relative_to(root)) and f"block {path.stem} is missing" in what
    low, high = (int(word) for word in what.split("sequences ")[1].split(" are")[0].split(" to "))
    report = repair(root)
    assert "cannot be restored" in report.faults[0].done
    after = check(root)
    assert after.faults == []
    assert [one.what for one in after.findings if f"sequences {low} to {high}" in one.what]
    kept = read_store(root, "plain").messages["S"]
    assert before.messages["S"].keys() - kept.keys() == {
        seq for seq in before.messages["S"] if low <= seq <= high
    }
    assert all(before.messages["S"][seq] == message for seq, message in kept.items())


def test_a_bad_index_is_moved_aside_and_written_again_by_the_next_start(root: Path) -> None:
    before, path = read_store(root, "plain"), block(root, 0).with_suffix(".idx")
    flip(path, 50)
    found, _, what = only_fault(check(root))
    assert found == str(path.relative_to(root)) and "its hash does not match its bytes" in what
    assert "moved to lost+found" in repair(root).faults[0].done
    assert not path.exists() and (root / "lost+found/now" / path.relative_to(root)).exists()
    assert check(root).findings == [] and read_store(root, "plain") == before
    assert path.exists()


@pytest.mark.parametrize("name", [STREAM / "meta", WORKER / "meta", WORKER / "state"])
@pytest.mark.parametrize("kind", ["plain", "encrypted"])
def test_a_flipped_bit_in_a_meta_or_snapshot_is_repaired(
    tmp_path: Path, templates: dict[str, Path], name: Path, kind: str
) -> None:
    root = Path(shutil.copytree(templates[kind], tmp_path / "store"))
    before, good = read_store(root, kind), (root / name).read_bytes()
    flip(root / name, -4)
    assert only_fault(check(root, kind))[0] == str(name)
    assert "had one wrong bit" in repair(root, kind).faults[0].done
    assert (root / name).read_bytes() == good
    assert check(root, kind).findings == [] and read_store(root, kind) == before


def test_a_meta_that_can_not_be_proven_stays_and_all_else_can_be_read(root: Path) -> None:
    path = root / STREAM / "meta"
    path.write_bytes(b"penstock is no meta any more")
    assert only_fault(check(root))[0] == str(STREAM / "meta")
    report = repair(root)
    assert report.faults[0].done == "" and path.read_bytes() == b"penstock is no meta any more"
    with doctor_of(root, "plain") as doctor:
        assert [name for _, name, _ in doctor.streams()] == ["OTHER", "S"]
        found = list(doctor.messages(root / STREAM, on_lost=pytest.fail))
    assert len(found) == COUNT - 2


def test_a_snapshot_that_can_not_be_proven_makes_the_consumer_begin_again(root: Path) -> None:
    (root / WORKER / "state").write_bytes(b"nothing of what was here")
    assert only_fault(check(root))[0] == str(WORKER / "state")
    assert "begins again" in repair(root).faults[0].done
    assert check(root).findings == []
    assert read_store(root, "plain").consumers["S/worker"] == (b"config of the worker", None, [])
    assert (root / "lost+found/now" / WORKER / "journal.1").exists()


def test_a_flipped_bit_in_a_journal_is_repaired(root: Path) -> None:
    before, path = read_store(root, "plain"), root / WORKER / "journal.1"
    whole = path.read_bytes()
    second = len(whole) - len(read_entries(whole, 1)[0][2]) - 12 - len(ENTRIES[1]) - 12
    flip(path, second + 15)
    found, offset, what = only_fault(check(root))
    assert (found, offset) == (str(WORKER / "journal.1"), second) and what.startswith("entry 2 is damaged")
    assert "one wrong bit" in repair(root).faults[0].done
    assert path.read_bytes() == whole and read_store(root, "plain") == before


@pytest.mark.parametrize("kind", ["plain", "encrypted"])
def test_a_bad_journal_is_cut_at_the_bad_entry_and_the_rest_is_kept(
    tmp_path: Path, templates: dict[str, Path], kind: str
) -> None:
    root = Path(shutil.copytree(templates[kind], tmp_path / "store"))
    path = root / WORKER / "journal.1"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + b"half an entry that was begun, and more")
    assert only_fault(check(root, kind))[:2] == (str(WORKER / "journal.1"), size)
    assert "cut there" in repair(root, kind).faults[0].done
    kept = root / "lost+found/now" / WORKER / f"journal.1.from-{size}"
    assert kept.read_bytes() == b"half an entry that was begun, and more"
    assert check(root, kind).findings == []
    assert read_store(root, kind).consumers["S/worker"][2] == ENTRIES


@pytest.mark.parametrize("kind", ["encrypted", "encrypted and compressed"])
def test_a_flipped_bit_in_an_encrypted_block_is_repaired(
    tmp_path: Path, templates: dict[str, Path], kind: str
) -> None:
    root = Path(shutil.copytree(templates[kind], tmp_path / "store"))
    before = read_store(root, kind)
    for which in (0, -1):
        path = block(root, which)
        good = path.read_bytes()
        flip(path, 100)
        found, offset, what = only_fault(check(root, kind))
        assert found == str(path.relative_to(root)) and offset is not None and "bad frame" in what
        assert "the cipher proves it" in repair(root, kind).faults[0].done
        assert path.read_bytes() == good
        assert check(root, kind).findings == [] and read_store(root, kind) == before


@given(
    kind=st.sampled_from(KINDS),
    which=st.integers(0, 10**6),
    at=st.integers(0, 10**6),
    mask=st.integers(1, 255),
)
@settings(
    max_examples=examples(MUTATIONS),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_any_flipped_byte_is_found_or_changes_nothing_that_is_read(
    templates: dict[str, Path], kind: str, which: int, at: int, mask: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(shutil.copytree(templates[kind], Path(directory) / "store"))
        paths = sorted(files_of(root))
        flip(paths[which % len(paths)], at, mask)
        damaged = files_of(root)
        try:
            report = check(root, kind)
        except StoreError:
            return  # the key's file
        assert files_of(root) == damaged
        before = read_store(templates[kind], kind)
        if not report.faults:
            assert read_store(root, kind) == before
            return
        repaired = repair(root, kind)
        left = [one for one in repaired.faults if not one.done]
        if left:
            return
        assert check(root, kind).faults == []
        after = read_store(root, kind)
        assert after.metas == before.metas
        for name, messages in after.messages.items():
            changed = {seq for seq, one in messages.items() if before.messages[name].get(seq, one) != one}
            assert changed == set()


# ---------------------------------------------------------------------- the command


def test_the_command_tells_by_its_status_what_it_found(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert store_command(["check", str(root)]) == 0
    assert "sound" in capsys.readouterr().out
    path = block(root, 1)
    at = flip(path, 60)
    assert store_command(["check", str(root)]) == 1
    out = capsys.readouterr().out
    assert f"{path.relative_to(root)} at byte " in out and "1 found" in out
    assert store_command(["repair", str(root)]) == 1
    out = capsys.readouterr().out
    assert f"repaired: byte {at} had one wrong bit" in out and "lost+found" in out
    assert store_command(["check", str(root)]) == 0
    (root / STREAM / "meta").write_bytes(b"gone")
    assert store_command(["repair", str(root)]) == 2
    assert "left as it is" in capsys.readouterr().out


def test_the_command_refuses_what_it_can_not_do(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = FileStore(root)
    for words in (["check"], ["repair"], ["dump"]):
        assert store_command([*words, str(root)]) == 2
        assert "uses this store directory" in capsys.readouterr().err
    store.close()
    assert store_command(["check", str(root / "nothing")]) == 2
    assert "there is no store in it" in capsys.readouterr().err
    assert store_command(["check"]) == 2
    assert store_command(["check", str(root), "--nonsense"]) == 2
    assert store_command(["dump", str(root), "--stream", "NONE"]) == 2
    assert "it has OTHER (account $G), S (account $G)" in capsys.readouterr().err


def test_a_dump_is_json_lines_of_the_messages_asked_for(
    tmp_path: Path, templates: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(shutil.copytree(templates["encrypted and compressed"], tmp_path / "store"))
    store = FileStore(root, block_size=BLOCK_SIZE, key=KEY)
    store.account("$G").open_stream("S").log.append(b"s.1", b"", b"\xff\x00", 1_500_000_000_123_456_789)
    store.close()
    config = tmp_path / "nats.conf"
    config.write_text('jetstream { key: "correct horse", cipher: aes }')
    words = ["dump", str(root), "--stream", "S", "--subject", "s.1", "--from-seq", "50", "--to-seq", "70"]
    for secret in (
        ["--key", "correct horse"],
        ["--config", str(config)],
        ["--key", "n", "--prev-key", KEY.key],
    ):
        assert store_command([*words, *secret]) == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [line["seq"] for line in lines] == [50, 53, 56, 59, 61]
        assert lines[0] == {
            "account": "$G", "stream": "S", "seq": 50, "time": "1970-01-01T00:00:00.000000049Z",
            "subject": "s.1", "header": "NATS/1.0\r\n\r\n", "payload": "payload 49",
        }  # fmt: skip
        assert lines[-1]["payload_base64"] == "/wA=" and "payload" not in lines[-1]
        assert lines[-1]["time"] == "2017-07-14T02:40:00.123456789Z"
    assert store_command([*words, "--key", "wrong"]) == 2
    assert store_command(words) == 2
    assert "no key is configured" in capsys.readouterr().err


def test_a_dump_goes_on_behind_what_it_can_not_read(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(block(root, 1), 60)
    assert store_command(["dump", str(root), "--stream", "S"]) == 1
    reported = capsys.readouterr()
    assert len(reported.out.splitlines()) == COUNT - 3 and "is lost" in reported.err
