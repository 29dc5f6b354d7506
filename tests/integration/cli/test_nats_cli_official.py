"""The `nats` command line against both servers: backups and restores, and its daily uses.

For a backup it asks for a snapshot, waits for the response and only then subscribes to the deliver subject,
which its inbox for all answers covers by a wildcard all the time.
"""

from __future__ import annotations

import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.nats_cli import RUN_TIMEOUT_S, nats_cli, run_nats
from tests.support.nats_servers import KINDS, AnyServer, running_server
from tests.support.official_uses import USES, without_changing
from tests.support.rawnats import RawNats
from tests.support.transfers import contents, stored

pytestmark = pytest.mark.feature("cli.nats", "stream.backup-restore")

# Messages of a stream, and the bytes of each: nothing, less than a chunk, more than the window of 8 MiB.
SIZES = {"EMPTY": (0, 0), "SMALL": (3, 10), "LARGE": (300, 60_000)}


@pytest.fixture(scope="module", autouse=True)
def _the_command() -> None:
    nats_cli()


def fill(nats: RawNats, name: str) -> dict[str, Any]:
    """A stream and what it holds."""
    count, size = SIZES[name]
    numbers = random.Random(name)
    made = nats.request(f"$JS.API.STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.*"]})
    assert "error" not in made, made
    for i in range(count):
        nats.publish(f"{name}.{i % 3}", numbers.randbytes(size))
    stored(nats, name, count)
    return facts(nats, name)


def facts(nats: RawNats, name: str) -> dict[str, Any]:
    state = nats.request(f"$JS.API.STREAM.INFO.{name}")["state"]
    found = {key: state.get(key, 0) for key in ("messages", "last_seq", "num_subjects")}
    found["contents"] = contents(nats, name, state) if state["messages"] else []
    return found


def remove_all(nats: RawNats) -> None:
    for name in SIZES:
        assert nats.request(f"$JS.API.STREAM.DELETE.{name}")["success"]


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    with running_server(request.param, tmp_path / "store") as running:
        yield running


@pytest.mark.parametrize("name", SIZES)
def test_a_stream_backed_up_by_the_command_line_is_restored_by_it(
    server: AnyServer, name: str, tmp_path: Path
) -> None:
    nats = RawNats(server.port)
    before = fill(nats, name)
    assert before["messages"] == SIZES[name][0]
    run_nats(server.url, "stream", "backup", name, str(tmp_path / "backup"), "--no-progress")
    assert nats.request(f"$JS.API.STREAM.DELETE.{name}")["success"]
    run_nats(server.url, "stream", "restore", str(tmp_path / "backup"), "--no-progress")
    assert facts(nats, name) == before
    nats.close()


def test_an_account_backed_up_by_the_command_line_is_restored_by_it(
    server: AnyServer, tmp_path: Path
) -> None:
    nats = RawNats(server.port)
    before = {name: fill(nats, name) for name in SIZES}
    run_nats(server.url, "account", "backup", str(tmp_path / "backup"), "--force")
    remove_all(nats)
    run_nats(server.url, "account", "restore", str(tmp_path / "backup"))
    assert {name: facts(nats, name) for name in SIZES} == before
    nats.close()


def test_daily_uses_of_the_command_line_print_the_same_on_both_servers(
    urls: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "file.txt").write_text("contents of a file\n")
    for line in USES.strip().splitlines():
        text, _, status = line.partition(" => ")
        words = [word.format(home=tmp_path) for word in text.split()]
        printed = {}
        for kind, url in urls.items():
            done = subprocess.run(
                [nats_cli(), "--server", url, "--no-context", "--timeout", "10s", *words],
                capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            assert done.returncode == int(status or 0), f"{kind}: nats {line}\n{done.stdout}{done.stderr}"
            printed[kind] = without_changing(done.stdout + done.stderr)
        assert printed["penstock"] == printed["official"], f"nats {line}"
