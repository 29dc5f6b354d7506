"""Requests that once stopped the server, for every account and after each restart.

Both servers answer them and go on. Ours refuses subjects that its index does not take, and says so.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client

from penstock.protocol.subjects import FILTER_MAX
from tests.support.nats_servers import KINDS, make_server, running_server

pytestmark = pytest.mark.feature("stream.api-errors")

HUGE = (b'{"a":1e400}', b'{"a":%s}' % (b"1" * 4301))
DEEP = b'{"a":' * 50_000
REQUESTS = (
    "STREAM.INFO.S", "STREAM.PURGE.S", "STREAM.NAMES", "STREAM.LIST", "STREAM.MSG.GET.S", "CONSUMER.NAMES.S",
    "STREAM.MSG.DELETE.S", "CONSUMER.CREATE.S", "STREAM.SNAPSHOT.S", "STREAM.UPDATE.S", "STREAM.RESTORE.S",
)  # fmt: skip


async def ask(nc: Client, subject: str, body: Any = b"") -> Any:
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    return json.loads((await nc.request(subject, payload, timeout=5)).data)


async def make(nc: Client, **config: Any) -> Any:
    return await ask(nc, f"$JS.API.STREAM.CREATE.{config['name']}", config)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("body", [*HUGE, DEEP], ids=["exponent", "digits", "depth"])
async def test_a_body_that_no_type_holds_is_refused_and_the_connection_goes_on(
    kind: str, body: bytes, tmp_path: Path
) -> None:
    with running_server(kind, tmp_path) as server:
        nc = await nats.connect(server.url, max_reconnect_attempts=0)
        await make(nc, name="S", subjects=["s"])
        for request in REQUESTS:
            error = (await ask(nc, f"$JS.API.{request}", body))["error"]
            assert error["err_code"] == 10025, (request, error)
            if body is not DEEP:
                assert error["description"] == 'invalid JSON: json: unknown field "a"', request
        await nc.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_nested_body_of_a_request_about_the_account_is_answered(kind: str, tmp_path: Path) -> None:
    with running_server(kind, tmp_path) as server:
        nc = await nats.connect(server.url, max_reconnect_attempts=0)
        for subject in (
            "$SYS.REQ.ACCOUNT.PING.CONNZ",
            "$SYS.REQ.SERVER.PING.CONNZ",
            "$SYS.REQ.ACCOUNT.PING.STATZ",
        ):
            answer = await ask(nc, subject, DEEP)
            assert answer["error"]["code"] == 400, subject
            assert "data" in await ask(nc, subject), subject
        assert "data" in await ask(nc, "$SYS.REQ.USER.INFO", DEEP)
        await nc.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["push consumer", "republish"])
async def test_such_a_body_that_a_stream_delivers_to_the_api_stops_nothing(
    kind: str, how: str, tmp_path: Path
) -> None:
    server = make_server(kind, tmp_path)
    server.start()
    try:
        nc = await nats.connect(server.url, max_reconnect_attempts=0)
        await make(nc, name="V", subjects=["other"])
        republish = (
            {"republish": {"src": "v", "dest": "$JS.API.STREAM.PURGE.V"}} if how == "republish" else {}
        )
        await make(nc, name="S", subjects=["v"], **republish)
        if how == "push consumer":
            config = {
                "durable_name": "c",
                "deliver_subject": "$JS.API.STREAM.PURGE.V",
                "ack_policy": "explicit",
            }
            config["ack_wait"] = 200_000_000
            body = {"stream_name": "S", "config": config}
            await ask(nc, "$JS.API.CONSUMER.DURABLE.CREATE.S.c", body)
        for body in HUGE:
            assert (await ask(nc, "v", body))["seq"]
        await nc.close()
        for _ in range(2):  # it delivers again after a restart
            server.stop()
            server.start()
            nc = await nats.connect(server.url, max_reconnect_attempts=0)
            for _ in range(50):
                assert (await ask(nc, "other", b"x"))["seq"]
            assert (await ask(nc, "$JS.API.STREAM.INFO.S"))["state"]["messages"] == 2
            await nc.close()
    finally:
        server.stop()


@pytest.mark.parametrize("kind", KINDS)
async def test_long_subjects_and_prefixes_stop_no_server_and_no_restart(kind: str, tmp_path: Path) -> None:
    server = make_server(kind, tmp_path)
    server.start()
    source = {"name": "O", "external": {"api": "$JS.X.API", "deliver": "d" * 40_000}}
    try:
        nc = await nats.connect(server.url, max_reconnect_attempts=0)
        await make(nc, name="S", subjects=["s"])
        answers = [
            await make(nc, name="T", subjects=["t" * (FILTER_MAX + 1)]),
            await make(nc, name="U", sources=[source]),
        ]
        if kind == "penstock":
            assert [answer["error"]["err_code"] for answer in answers] == [10052, 10024]
        await asyncio.sleep(0.2)
        await nc.close()
        server.stop()
        server.start()
        nc = await nats.connect(server.url, max_reconnect_attempts=0)
        assert (await ask(nc, "s", b"x"))["seq"] == 1
        await nc.close()
    finally:
        server.stop()
