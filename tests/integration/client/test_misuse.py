"""What the client says when it is not closed, when a callback raises and when its connection is lost."""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import Any

import pytest

import penstock.client
from tests.support.client_fakes import ScriptedPeer, scripted_server
from tests.support.nats_servers import until

pytestmark = pytest.mark.feature("client.misuse")

FAST: dict[str, Any] = {"reconnect_wait": 0.005, "reconnect_wait_max": 0.02}


async def serve(peer: ScriptedPeer, number: int) -> None:
    await peer.handshake()
    while line := await peer.line():
        if line == b"PING":
            peer.send(b"PONG\r\n")


async def test_subscribe_names_the_keyword_that_was_meant() -> None:
    async with scripted_server(serve) as url, penstock.client.connect(url) as client:
        with pytest.raises(TypeError, match="instead of nats-py's cb use callback"):
            await client.subscribe("a", cb=print)  # type: ignore[arg-type]


def test_a_client_never_closed_warns() -> None:
    async def main() -> None:
        async with scripted_server(serve) as url:
            await penstock.client.connect(url, reconnect_wait=60, reconnect_wait_max=60)

    def run_and_collect() -> None:
        asyncio.run(main())
        gc.collect()

    with pytest.warns(ResourceWarning, match=r"unclosed <Client .*: await client.close\(\)"):
        run_and_collect()


async def test_a_callback_that_raises_is_logged_with_its_subject_and_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def script(peer: ScriptedPeer, number: int) -> None:
        await peer.handshake()
        await peer.lines_until(b"PING")
        peer.send(b"MSG orders.7 1 0\r\n\r\nPONG\r\n")
        await peer.line()

    def fail(msg: object) -> None:
        raise ZeroDivisionError("in the callback")

    async with scripted_server(script) as url, penstock.client.connect(url) as client:
        await client.subscribe("orders.*", callback=fail)
        await client.flush()
        await until(lambda: bool(caplog.records))
    record = caplog.records[0]
    assert record.levelno == logging.ERROR
    assert "orders.7" in record.getMessage()
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ZeroDivisionError)
    assert record.exc_info[2] is not None


async def test_a_lost_connection_is_a_warning_and_the_next_one_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "penstock.client")
    back = asyncio.Event()

    async def script(peer: ScriptedPeer, number: int) -> None:
        await peer.handshake()
        if number == 0:
            peer.hang_up()
            return
        while line := await peer.line():
            if line == b"PING":
                peer.send(b"PONG\r\n")

    async with (
        scripted_server(script) as url,
        penstock.client.connect(url, on_reconnected=lambda _: back.set(), **FAST),
    ):
        await asyncio.wait_for(back.wait(), 10)
    said = [(record.levelname, record.getMessage().partition(" ")[0]) for record in caplog.records]
    assert said == [("WARNING", "lost"), ("INFO", "reconnected")]
