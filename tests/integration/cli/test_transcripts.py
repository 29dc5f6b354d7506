"""The transcripts of the specification, with `penstock` in place of `nats`, against both servers."""

from __future__ import annotations

import asyncio
import re
import shlex
import time
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from pathlib import Path

import pytest

from penstock.testing import cluster
from tests.support.command_line import CommandLine
from tests.support.transcript_replay import TranscriptReplay, parse_transcript, shows

pytestmark = pytest.mark.feature("cli.commands", "consumer.counters")

TRANSCRIPTS = Path(__file__).parent / "transcripts"
NEEDS_A_CLUSTER = "placement"
SINGLE = sorted(one.stem for one in TRANSCRIPTS.glob("*.txt") if one.stem != NEEDS_A_CLUSTER)
SOURCES = """{
  "name": "SOURCE_TARGET",
  "subjects": [
    "foo1.ext.*",
    "foo2.ext.*"
  ],
  "sources": [
    { "name": "SOURCE1_ORIGIN", },
  ],
  "storage": "file",
}"""
"""As the document has it; JSON has no commas at the end."""
CLUSTER = """
server_tags: ["sync:always"]
no_auth_user: app
system_account: SYS
accounts {
  SYS: {users: [{user: admin, password: admin}]}
  APP: {jetstream: enabled, users: [{user: app, password: app}]}
}
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "Movies").mkdir()
    (tmp_path / "Movies" / "NATS-logo.mov").write_bytes(b"a film" * 1000)
    (tmp_path / "stream_with_sources.json").write_text(re.sub(r",(\s*[}\]])", r"\1", SOURCES))
    return tmp_path


@pytest.fixture(autouse=True)
def nothing_stays(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "url" in request.fixturenames:
        run = CommandLine(request.getfixturevalue("url"))
        for name in run("stream", "ls", "-n", "--json", "--all").json:
            run("stream", "rm", name, "-f")


@pytest.mark.parametrize("name", SINGLE)
def test_a_transcript_shows_the_values_of_its_document(
    name: str, url: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = parse_transcript((TRANSCRIPTS / f"{name}.txt").read_text())
    assert TranscriptReplay(url, home, monkeypatch).play(commands) >= 1


@pytest.fixture
async def cluster_url(tmp_path: Path) -> AsyncIterator[str]:
    async with cluster(
        3, config=CLUSTER, jetstream="sync_interval: always", directory=tmp_path / "c"
    ) as three:
        yield three.servers[0].url


async def test_a_stream_is_placed_on_the_servers_with_its_tag(
    cluster_url: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = parse_transcript((TRANSCRIPTS / f"{NEEDS_A_CLUSTER}.txt").read_text())
    replay = TranscriptReplay(cluster_url, home, monkeypatch)
    assert await asyncio.to_thread(replay.play, commands) >= 5


def test_messages_are_replayed_at_their_pace(run: CommandLine) -> None:
    run(*shlex.split("stream add ORDERS --subjects ORDERS.* --defaults"))
    for number in range(1, 3):
        run("pub", "ORDERS.processed", f"order {number}")
    times = [run("stream", "get", "ORDERS", seq, "--json").json["time"] for seq in "12"]
    line = "consumer add ORDERS REPLAY --filter ORDERS.processed --ack none --deliver all --sample 100"
    run(*shlex.split(f"{line} --replay original --target out.original"))
    apart_s = (datetime.fromisoformat(times[1]) - datetime.fromisoformat(times[0])).total_seconds()
    started = time.monotonic()
    ran = run("consumer", "sub", "ORDERS", "REPLAY", "--raw", "--count", "2")
    assert ran.out == "order 1\norder 2\n"
    assert time.monotonic() - started >= apart_s * 0.9


def test_a_stream_places_its_replicas_by_tag(run: CommandLine) -> None:
    """One server can't hold three replicas; it refuses the placement, and not the command line."""
    ran = run.run(*shlex.split("stream add R3 --subjects r3 --replicas 3 --tag sync:always"))
    assert ran.status == 1
    assert "replicas" in ran.err or "peers" in ran.err or "placement" in ran.err


@pytest.mark.parametrize(
    ("output", "line", "is_there"),
    [
        ("   Messages: 1\n  Bytes: 2", "Messages: 1", True),
        ("   Messages: 10\n  Bytes: 1", "Messages: 1", False),
        ("First Sequence: 1 @ 2026-11-24", "FirstSeq: 1", True),
        ("Messages: 2\nFirst Sequence: 1", "Messages: 1", False),
        ('[#1] @ 10:00 Received on "a.b"\no 1', "2020/01/03 15:17:26 [#1] Received on [a.b]: 'o 1'", True),
        ('[#1] @ 10:00 Received on "a.b"\no 2', "2020/01/03 15:17:26 [#1] Received on [a.b]: 'o 1'", False),
        ('Published 7 bytes to "a"', "Published 7 bytes to a", True),
        ('{"type": 1, "id": 2}', "JSON: type, id", True),
        ('{"type": 1}', "JSON: type, id", False),
    ],
)  # fmt: skip
def test_values_are_compared_and_not_layout(output: str, line: str, is_there: bool) -> None:
    assert shows(output, line) is is_there
