"""The pytest fixtures of an installed package: tools/wheels.py runs this away from the checkout, too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import penstock
from penstock.testing import EmbeddedServer


async def published(url: str) -> int:
    async with penstock.connect(url) as nc:
        js = nc.jetstream()
        await js.create_stream("S", subjects=["s"])
        return (await js.publish("s", b"text")).seq


def test_a_server_with_jetstream_is_there_for_the_test(nats_server: EmbeddedServer) -> None:
    assert asyncio.run(published(nats_server.url)) == 1


def test_a_test_starts_as_many_servers_as_it_wants(
    nats_server_factory: Callable[..., EmbeddedServer],
) -> None:
    servers = [nats_server_factory(jetstream=True) for _ in range(2)]
    assert [asyncio.run(published(server.url)) for server in servers] == [1, 1]
