"""`penstock object` on both servers, and beside the official command line."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_runs import CommandShell
from tests.support.nats_servers import KINDS, running_server

pytestmark = pytest.mark.feature("cli.buckets")


@pytest.fixture(params=KINDS)
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CommandShell]:
    with running_server(request.param, tmp_path / "store") as server:
        yield CommandShell(tmp_path, server.url)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "logo.mov"
    path.write_bytes(random.Random(1).randbytes(300_000))
    return path


def test_a_file_is_stored_listed_fetched_and_removed(shell: CommandShell, file: Path, tmp_path: Path) -> None:
    shell.ok("object", "add", "FILES")
    stored = shell.ok("object", "put", "FILES", str(file)).text
    assert f"Object information for FILES > {file}" in stored
    assert "Size: 293.0 KiB" in stored
    assert shell.json("object", "ls", "FILES", "--names") == [str(file)]
    assert "Bucket Contents" in shell.ok("object", "ls", "FILES").text
    target = tmp_path / "copy"
    wrote = shell.ok("object", "get", "FILES", str(file), "-O", str(target))
    assert wrote.text.startswith(f"Wrote: 293.0 KiB to {target} in ")
    assert target.read_bytes() == file.read_bytes()
    shell.ok("object", "rm", "FILES", str(file), "--force")
    assert "No entries found" in shell.ok("object", "ls", "FILES").text
    gone = shell.run("object", "get", "FILES", str(file))
    assert (gone.status, "deleted" in gone.err) == (1, True), gone.err


def test_an_object_has_the_name_description_headers_and_chunks_of_the_flags(
    shell: CommandShell, file: Path
) -> None:
    shell.ok("object", "add", "FILES")
    shell.ok(
        "object", "put", "FILES", str(file), "--name", "a b", "--description", "mine", "-H", "A:1",
        "--chunk-size", "100000", "--no-progress",
    )  # fmt: skip
    info = shell.json("object", "info", "FILES", "a b")
    assert (info["description"], info["chunks"], info["size"]) == ("mine", 3, 300_000)
    assert info["headers"] == {"A": ["1"]}
    text = shell.ok("object", "info", "FILES", "a b").text
    assert "Description: mine" in text
    assert "Digest: SHA-256 " in text


def test_stdin_and_stdout_hold_objects_too(shell: CommandShell) -> None:
    data = bytes(range(256)) * 1000
    shell.ok("object", "add", "FILES")
    shell.ok("object", "put", "FILES", "--name", "x", stdin=data)
    assert shell.ok("object", "get", "FILES", "x", "-O", "-").out == data
    nameless = shell.run("object", "put", "FILES", stdin=data)
    assert (nameless.status, "--name is missing" in nameless.err) == (2, True)


def test_nothing_is_replaced_without_force(shell: CommandShell, file: Path, tmp_path: Path) -> None:
    shell.ok("object", "add", "FILES")
    shell.ok("object", "put", "FILES", "--name", "x", stdin=b"old")
    refused = shell.run("object", "put", "FILES", "--name", "x", stdin=b"new")
    assert (refused.status, "Replace existing file FILES > x" in refused.err) == (2, True)
    shell.ok("object", "put", "FILES", "--name", "x", "--force", stdin=b"new")
    kept = tmp_path / "kept"
    kept.write_bytes(b"mine")
    refused = shell.run("object", "get", "FILES", "x", "-O", str(kept))
    assert (refused.status, kept.read_bytes()) == (2, b"mine")
    shell.ok("object", "get", "FILES", "x", "-O", str(kept), "-f")
    assert kept.read_bytes() == b"new"


def test_a_store_has_the_settings_of_the_flags_until_it_is_sealed(shell: CommandShell) -> None:
    shell.ok("object", "add", "FILES", "--ttl", "1h", "--max-bucket-size", "1G", "--description", "mine",
             "--storage", "memory", "--metadata", "a=b")  # fmt: skip
    config = shell.json("object", "info", "FILES")["config"]
    assert (config["ttl"], config["max_bytes"], config["storage"]) == (3600, 1 << 30, "memory")
    shell.ok("object", "edit", "FILES", "--ttl", "2h")
    assert shell.json("object", "info", "FILES")["config"] == {**config, "ttl": 7200}
    shell.ok("object", "put", "FILES", "--name", "x", stdin=b"data")
    assert "Object Store Buckets" in shell.ok("object", "ls").text
    shell.ok("object", "seal", "FILES", "--force")
    assert "Sealed: true" in shell.ok("object", "info", "FILES").text
    refused = shell.run("object", "put", "FILES", "--name", "y", stdin=b"data")
    assert (refused.status, "sealed" in refused.err) == (1, True), refused.err
    shell.ok("object", "rm", "FILES", "--force")
    assert shell.json("object", "ls", "--names") == []


def test_a_watch_prints_puts_and_deletes(shell: CommandShell) -> None:
    shell.ok("object", "add", "FILES")
    for name in ("a", "b"):
        shell.ok("object", "put", "FILES", "--name", name, stdin=b"data")
    shell.ok("object", "rm", "FILES", "a", "--force")
    lines = shell.ok("object", "watch", "FILES", "--count", "2").text.splitlines()
    assert [line.split("] ")[1] for line in lines] == [
        "PUT FILES > b: 4 B bytes in 1 chunks", "DEL FILES > a",
    ]  # fmt: skip
    assert [one["name"] for one in shell.ok("object", "watch", "FILES", "--count", "2", "-j").json_lines] == [
        "b", "a",
    ]  # fmt: skip


@pytest.mark.feature("cli.nats")
def test_both_command_lines_read_what_the_other_wrote(
    shell: CommandShell, file: Path, tmp_path: Path
) -> None:
    shell.official("object", "add", "THEIRS")
    shell.official("object", "put", "THEIRS", str(file), "--no-progress")
    assert shell.ok("object", "get", "THEIRS", str(file), "-O", "-").out == file.read_bytes()
    shell.ok("object", "add", "OURS")
    shell.ok("object", "put", "OURS", str(file))
    target = tmp_path / "theirs"
    shell.official("object", "get", "OURS", str(file), "-O", str(target), "--no-progress")
    assert target.read_bytes() == file.read_bytes()
