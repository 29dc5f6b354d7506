"""What a start imports, and when: before the port listens, and before clients get INFO.

Time is not asserted: a busy machine takes longer. What takes the time is what is imported, and that is the
same everywhere (docs/decisions/0019-start-up.md).
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import penstock
from penstock.server.config.server_options import JetStreamOptions
from tests.support.processes import ENVIRONMENT
from tests.support.wire import wait_until

pytestmark = pytest.mark.feature("operations.start-up")

TIMEOUT_S = 60.0

# A start as it is; the modules that are loaded at two moments go to the file OUT.
RECORDER = """
import gc, os, sys
import penstock.cli.main
from penstock.net import sockets
out = open(os.environ["OUT"], "w", buffering=1)
listen, enable = sockets.listen_for_clients, gc.enable
def listening(*address):
    out.write("listening " + " ".join(sys.modules) + "\\n")
    return listen(*address)
def ready():  # the last step of a start
    enable()
    out.write("ready " + " ".join(sys.modules) + "\\n")
sockets.listen_for_clients, gc.enable = listening, ready
sys.exit(penstock.cli.main.main(["serve", *sys.argv[1:]]))
"""

BEFORE_LISTENING = {
    "penstock",
    "penstock.cli",
    "penstock.cli.flags",
    "penstock.cli.main",
    "penstock.cli.serve",
    "penstock.errors",
    "penstock.net",
    "penstock.net.sockets",
}
NOT_BEFORE_LISTENING = {
    "asyncio", "dataclasses", "encodings.idna", "inspect", "logging", "msgspec", "pathlib", "ssl",
    "threading", "typing", "uvloop",
}  # fmt: skip
NOT_BEFORE_INFO = {
    "argparse", "bcrypt", "cryptography", "dataclasses", "email", "h11", "http", "importlib.metadata", "json",
    "nacl", "prometheus_client", "random", "rich", "starlette", "tempfile", "typer", "unittest", "uvicorn",
    "wsproto", "zstandard",
    "penstock.client", "penstock.net.tls", "penstock.net.websocket", "penstock.server.config.conf_parser",
    "penstock.server.config.directives", "penstock.server.monitoring.monitor",
    "penstock.server.auth.operators",
    "penstock.server.monitoring.pages", "penstock.server.reload",
    "penstock.jetstream.engine", "penstock.protocol.api", "penstock.server.engines", "penstock.store.blocks",
    "penstock.store.journal",
}  # fmt: skip


@contextmanager
def started(tmp_path: Path, *arguments: str) -> Iterator[dict[str, str]]:
    """The modules loaded when the port is about to listen and when the server is ready, and its log."""
    out, log = tmp_path / "modules", tmp_path / "log"
    environment = {**ENVIRONMENT, "OUT": str(out)}
    command = [sys.executable, "-c", RECORDER, "-l", str(log), *arguments]
    process = subprocess.Popen(command, env=environment)
    try:
        wait_until(
            lambda: process.poll() is not None or (out.exists() and "\nready" in out.read_text()),
            "the server",
            TIMEOUT_S,
        )
        found = dict(line.split(" ", 1) for line in out.read_text().splitlines())
        yield {**found, "log": log.read_text()}
    finally:
        process.kill()
        process.wait()


def own(modules: set[str]) -> set[str]:
    return {name for name in modules if name.split(".")[0] == "penstock"}


def test_flags_alone_need_next_to_nothing_before_the_port_listens(tmp_path: Path) -> None:
    with started(tmp_path, "-a", "127.0.0.1", "-p", "-1", "-js", "-sd", str(tmp_path / "store")) as found:
        modules = set(found["listening"].split())
    assert own(modules) == BEFORE_LISTENING
    assert modules & NOT_BEFORE_LISTENING == set()


def test_an_address_in_a_file_is_bound_before_the_server_is_imported(tmp_path: Path) -> None:
    conf = tmp_path / "nats.conf"
    conf.write_text(f"host: 127.0.0.1\nport: -1\njetstream {{ store_dir: {tmp_path}/store }}\n")
    with started(tmp_path, "-c", str(conf)) as found:
        modules = set(found["listening"].split())
    assert (
        modules & {"asyncio", "uvloop", "ssl", "penstock.server.server", "penstock.routing.mapping"} == set()
    )


def test_a_port_in_use_is_reported_after_what_is_wrong_with_the_options(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = subprocess.run(
            [sys.executable, "-m", "penstock", "serve", "-a", "127.0.0.1", "-p", port, "-m", "70000"],
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    assert ended.returncode == 1
    assert "http_port" in ended.stderr
    assert "Error listening" not in ended.stderr


def test_clients_get_info_before_what_a_plain_server_does_not_need_is_imported(tmp_path: Path) -> None:
    with started(tmp_path, "-a", "127.0.0.1", "-p", "-1", "-js", "-sd", str(tmp_path / "store")) as found:
        modules = set(found["ready"].split())
    assert modules & NOT_BEFORE_INFO == set()


@pytest.mark.parametrize("prefix", ["$JS.API", "$JS.hub.API"])
async def test_an_account_with_nothing_stored_has_no_engine_before_its_first_request(
    prefix: str, tmp_path: Path
) -> None:
    options = JetStreamOptions(store_dir=str(tmp_path), domain="hub")
    async with penstock.Server(jetstream=options) as server:
        assert server.jetstream is not None
        assert server.jetstream.is_enabled("$G")
        assert server.jetstream.running == {}
        async with penstock.connect(server.url) as nc:
            answer = await nc.request(f"{prefix}.STREAM.CREATE.S", b'{"name":"S","subjects":["a"]}')
            assert json.loads(answer.data)["did_create"] is True
            assert list(server.jetstream.running) == ["$G"]
            again = await nc.request("$JS.API.STREAM.NAMES", b"")
        assert json.loads(again.data)["streams"] == ["S"]
    async with penstock.Server(jetstream=options) as server:
        assert server.jetstream is not None
        assert list(server.jetstream.running["$G"].streams) == ["S"]


async def test_pages_wake_accounts_that_sleep(tmp_path: Path) -> None:
    async with penstock.Server(jetstream=True, store_dir=tmp_path) as server:
        assert server.jetstream is not None
        assert list(server.jetstream.engines) == ["$G"]
        async with penstock.connect(server.url) as nc:
            answer = await nc.request("$JS.API.INFO", b"")
        assert json.loads(answer.data)["streams"] == 0


async def test_a_server_that_stops_before_a_first_request_leaves_its_store_free(tmp_path: Path) -> None:
    for _ in range(2):
        async with penstock.Server(jetstream=True, store_dir=tmp_path) as server:
            assert server.jetstream is not None
            assert server.jetstream.running == {}
