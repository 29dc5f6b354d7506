"""The same nats.conf on a running official server and on ours."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from penstock.server.config.directives import load
from penstock.server.config.server_options import ServerOptions
from penstock.testing import server as penstock_server
from tests.support.nats_servers import OfficialServer, PenstockServer, official_binary
from tests.support.rawnats import RawNats

_OWN = {"host", "port", "jetstream", "config_file"}  # what the test's server decides


@contextmanager
def running_conf(kind: str, conf: str, directory: Path) -> Iterator[int]:
    """The port of a server of a kind of KINDS with this configuration, and JetStream."""
    path = write_conf(conf, directory)
    server: OfficialServer | PenstockServer
    if kind == "official":
        server = official_with(path)
    else:
        options = load(str(path))
        settings = {
            name: getattr(options, name) for name in ServerOptions.__struct_fields__ if name not in _OWN
        }
        server = PenstockServer(directory, settings)
    server.start()
    try:
        yield server.port
    finally:
        server.stop()


@contextmanager
def running_as_configured(kind: str, conf: str, directory: Path) -> Iterator[int]:
    """The same, where what the configuration says of JetStream holds for ours as well."""
    path = write_conf(conf, directory)
    if kind == "official":
        server = official_with(path)
        server.start()
        try:
            yield server.port
        finally:
            server.stop()
        return
    with penstock_server(options=replace(load(str(path)), host="127.0.0.1", port=-1)) as running:
        yield running.port


def write_conf(conf: str, directory: Path) -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / "nats.conf"
    path.write_text(conf, encoding="utf-8")
    return path


def official_with(conf: Path) -> OfficialServer:
    """An official server with this configuration, not yet started. Skips the test where there is none."""
    return OfficialServer(official_binary(), conf.parent, ("-c", str(conf)))


def official_verdict(conf: Path) -> str:
    """What the official server says when it only tests this configuration."""
    ran = subprocess.run(
        [official_binary(), "-t", "-c", str(conf)], capture_output=True, text=True, timeout=30, check=False
    )
    return ran.stdout + ran.stderr


def login(port: int, user: str, **connect: object) -> RawNats:
    """A connection of a user whose password is its name."""
    return RawNats(port, user=user, **{"pass": user}, **connect)


def answers(client: RawNats, line: str) -> list[str]:
    """What a server sends because of one line, INFO aside."""
    client.send(line.encode() + b"\r\nPING\r\n")
    found = []
    while (answer := client.line()) != b"PONG":
        if not answer.startswith(b"INFO"):
            found.append(answer.decode())
    return found


def received(client: RawNats) -> list[str]:
    """Subjects and sids of the messages that have arrived."""
    client.send(b"PING\r\n")
    found = []
    while (line := client.line()) != b"PONG":
        if line.startswith(b"MSG "):
            words = line.decode().split()
            found.append(f"{words[1]} {words[2]}")
            client.exactly(int(words[-1]) + 2)
    return sorted(found)
