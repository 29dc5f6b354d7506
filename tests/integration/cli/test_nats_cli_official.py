"""Backups and restores by the `nats` command line, against both servers.

It asks for a snapshot, waits for the response and only then subscribes to the deliver subject, which its
inbox for all answers covers by a wildcard all the time.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.support.nats_cli import nats_cli, run_nats
from tests.support.nats_servers import KINDS, AnyServer, running_server
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
