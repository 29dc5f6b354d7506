"""`penstock pub` as its users run it, against both servers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import penstock.client
from penstock.cli.main import main
from penstock.client import Stream

pytestmark = pytest.mark.feature("cli.pub")

KINDS = ["penstock", pytest.param("official", marks=pytest.mark.official)]


def run(url: str, *words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """The command in a process of its own."""
    command = [sys.executable, "-c", "import sys; from penstock.cli.main import main; sys.exit(main())"]
    return subprocess.run(
        [*command, "pub", "-s", url, *words], input=stdin, capture_output=True, timeout=60, check=False
    )


async def stored(url: str) -> tuple[list[bytes], list[str | None]]:
    """Payloads of stream S and the X header of each; the stream is emptied."""
    async with penstock.client.connect(url) as nc:
        stream: Stream = await nc.jetstream().stream("S")
        state = (await stream.info()).state
        found = [await stream.get_message(seq) for seq in range(state.first_seq, state.last_seq + 1)]
        await stream.purge()
        return [m.data for m in found], [m.headers.get("X") if m.headers else None for m in found]


@pytest.fixture(autouse=True)
async def stream(url: str) -> None:
    async with penstock.client.connect(url) as nc:
        await nc.jetstream().create_or_update_stream(
            "S", subjects=["s.>"], storage="memory", allow_atomic=True, allow_batched=True
        )
        await nc.jetstream().create_or_update_stream("N", subjects=["n"], storage="memory")
        await (await nc.jetstream().stream("S")).purge()


@pytest.mark.feature("atomic.start", "atomic.commit-eob", "fast-ingest.final-ack")
@pytest.mark.parametrize("batch", ["none", "atomic", "fast"])
async def test_each_line_is_a_message(url: str, batch: str) -> None:
    """Also an empty line, and a last line without its end."""
    ran = run(url, "s.a", "--batch", batch, stdin=b"one\n\nthree\nfour")
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert ran.stdout.startswith(b"published 4 messages to s.a")
    assert (b"of 4" in ran.stdout) == (batch != "none")
    assert (await stored(url))[0] == [b"one", b"", b"three", b"four"]


@pytest.mark.parametrize("batch", ["none", "atomic", "fast"])
async def test_a_message_may_be_said_with_headers_and_repeated(url: str, batch: str) -> None:
    ran = run(url, "s.a", "hello", "--count", "3", "-H", "X: 1", "-H", "Y:2", "--batch", batch)
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert await stored(url) == ([b"hello"] * 3, ["1"] * 3)


async def test_a_file_goes_into_one_fast_batch_with_progress(url: str, tmp_path: Path) -> None:
    lines = [b"%d" % n for n in range(20_000)]
    (tmp_path / "input").write_bytes(b"\n".join(lines) + b"\n")
    ran = run(url, "s.a", "-i", str(tmp_path / "input"), "--batch", "fast", "--progress")
    assert ran.returncode == 0, ran.stderr
    assert b"20,000 messages" in ran.stderr
    assert b"published 20,000 messages to s.a: stream S, last sequence" in ran.stdout
    async with penstock.client.connect(url) as nc:
        assert (await nc.jetstream().stream_info("S")).state.messages == 20_000


@pytest.mark.feature("atomic.allow-atomic", "atomic.max-messages", "fast-ingest.allow-batched")
async def test_what_the_server_refuses_is_said(url: str) -> None:
    ran = run(url, "n", "x", "--batch", "atomic")
    assert (ran.returncode, ran.stdout) == (1, b"")
    assert b"penstock pub: " in ran.stderr and b"disabled" in ran.stderr
    ran = run(url, "n", "x", "--batch", "fast")
    assert ran.returncode == 1 and b"penstock pub: " in ran.stderr
    ran = run(url, "s.a", "x", "--count", "1001", "--batch", "atomic")
    assert ran.returncode == 1 and b"too large: 1000" in ran.stderr
    ran = run(url, "nowhere", "x", "--batch", "fast")
    assert ran.returncode == 1 and b"nowhere" in ran.stderr
    assert (await stored(url))[0] == []


async def test_nothing_is_no_batch(url: str) -> None:
    for batch in ("none", "atomic", "fast"):
        ran = run(url, "s.a", "--batch", batch)
        assert (ran.returncode, ran.stdout) == (0, b"published 0 messages to s.a\n")


@pytest.mark.parametrize(
    "words",
    [
        ["s.a", "x", "--batch", "some"],
        ["s.a", "x", "-H", "no colon"],
        ["s.a", "x", "-i", "file"],
        ["s.a", "-i", "no-such-file"],
        ["s.a", "x", "--count", "0"],
        [],
    ],
)
def test_what_can_not_be_is_refused(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["pub", *words]) == 2
    assert "penstock pub" in capfd.readouterr().err


def test_no_server_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["pub", "-s", "nats://127.0.0.1:1", "s.a", "x"]) == 1
    assert capfd.readouterr().err.startswith("penstock pub: ")
