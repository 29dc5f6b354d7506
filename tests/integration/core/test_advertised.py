"""The addresses that clients get, and how often WebSocket clients are pinged: on both servers."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.conf_servers import running_conf
from tests.support.nats_servers import KINDS, free_port
from tests.support.wire import Wire

pytestmark = pytest.mark.feature("connectivity.advertise")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("reported", "port"), [("nats.example:7", 7), ("nats.example", 0), ("[::1]:9", 9)])
def test_clients_receive_the_advertised_address(kind: str, reported: str, port: int, tmp_path: Path) -> None:
    monitor = free_port()
    conf = f'client_advertise: "{reported}"\nhttp: "127.0.0.1:{monitor}"'
    with running_conf(kind, conf, tmp_path) as bound:
        host = "::1" if "[" in reported else "nats.example"
        with Wire(bound) as wire:
            assert (wire.info["host"], wire.info["port"]) == (host, port or bound)
        with urllib.request.urlopen(f"http://127.0.0.1:{monitor}/varz") as page:
            varz = json.load(page)
        assert (varz["host"], varz["port"]) == (host, port or bound)


async def told_by(port: int) -> tuple[dict[str, Any], int]:
    """INFO of a WebSocket client, and how often it is pinged until the third time, answering."""
    async with (
        asyncio.timeout(20),
        aiohttp.ClientSession() as session,
        session.ws_connect(f"ws://127.0.0.1:{port}") as socket,
    ):
        info = json.loads((await socket.receive_bytes()).split(b" ", 1)[1])
        await socket.send_bytes(b'CONNECT {"verbose":false}\r\nPING\r\n')
        pings = 0
        while pings < 3:
            if b"PING" in (await socket.receive_bytes()):
                pings += 1
                await socket.send_bytes(b"PONG\r\n")
        return info, pings


@pytest.mark.parametrize("kind", KINDS)
def test_websocket_clients_have_a_ping_interval_of_their_own(kind: str, tmp_path: Path) -> None:
    websocket, monitor = free_port(), free_port()
    conf = f"""
    http: "127.0.0.1:{monitor}"
    client_advertise: "nats.example:7"
    websocket {{
      host: 127.0.0.1, port: {websocket}, no_tls: true
      advertise: "ws.example:8", ping_interval: "100ms"
    }}"""
    with running_conf(kind, conf, tmp_path):
        info, pings = asyncio.run(told_by(websocket))
        assert (info["host"], info["port"], pings) == ("127.0.0.1", websocket, 3)
        with urllib.request.urlopen(f"http://127.0.0.1:{monitor}/varz") as page:
            assert json.load(page)["websocket"]["advertise"] == "ws.example:8"
