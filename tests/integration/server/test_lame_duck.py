"""Lame duck mode, the signals that lead there, and what a user may ask about itself."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.cli import signals
from penstock.errors import ConfigError
from penstock.server import lame_duck
from penstock.server.config.server_options import LAME_DUCK_MIN_NS
from penstock.testing import EmbeddedServer
from tests.support.wire import Wire

pytestmark = pytest.mark.feature("core.lame-duck", "operations.signals")


class Client:
    """A raw client in the same loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @staticmethod
    async def to(server: penstock.Server, **connect: Any) -> Client:
        client = Client(*await asyncio.open_connection(server.host, server.port))
        await client.reader.readuntil(b"\r\n")
        client.writer.write(
            b"CONNECT " + json.dumps({"verbose": False, **connect}).encode() + b"\r\nPING\r\n"
        )
        await client.reader.readuntil(b"PONG\r\n")
        return client

    async def rest(self) -> bytes:
        data = await self.reader.read(-1)
        self.writer.close()
        return data


async def test_clients_are_notified_and_closed_one_after_the_other() -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await asyncio.sleep(0)

    server = penstock.Server(lame_duck_duration_ns=LAME_DUCK_MIN_NS, lame_duck_grace_period_ns=28_500_000_000)
    async with server:
        reported, old = await Client.to(server, protocol=1), await Client.to(server)
        await reported.reader.readuntil(b"\r\n")  # the INFO behind its first PONG
        server.info.lame_duck()
        await lame_duck.leave(server.context, server.sessions, server.info.line, server.process_input, sleep)
        assert b'"ldm":true' in await reported.rest()
        assert await old.rest() == b""
    assert slept == [28.5, 0.75, 0.75]


async def test_a_server_without_clients_stops_at_once_and_accepts_none() -> None:
    server = penstock.Server()
    await server.start()
    port = server.port
    await server.lame_duck()
    await server.wait_stopped()
    with pytest.raises(OSError, match=r"refused|Connect call failed"):
        await asyncio.open_connection(server.host, port)


def test_a_signal_is_sent_to_a_process_or_the_one_of_a_pid_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr("os.kill", lambda pid, number: sent.append((pid, number)))
    pid_file = tmp_path / "x.pid"
    pid_file.write_text("4321\n")
    signals.send("ldm=1234")
    signals.send(f"reload={pid_file}")
    assert sent == [(1234, signals.BY_NAME["ldm"]), (4321, signals.BY_NAME["reload"])]


@pytest.mark.parametrize("wanted", ["nope=1", "ldm", "ldm="])
def test_what_is_no_signal_is_refused(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "running", lambda program: [])  # this machine's servers are others' business
    with pytest.raises(ConfigError):
        signals.send(wanted)


def test_a_user_may_ask_who_it_is(nats_server: EmbeddedServer) -> None:
    with Wire(nats_server.port) as wire:
        wire.connect(user="a")
        wire.send(b"SUB r 1\r\nPUB $SYS.REQ.USER.INFO r 0\r\n\r\n")
        size = int(wire.until(b"\r\n").split()[-1])
        answer = json.loads(wire.until(b"\r\n"))
        assert size > 0
        assert answer["data"] == {"user": "a", "account": "$G", "account_name": "$G"}
        assert answer["server"]["id"] == wire.info["server_id"]
