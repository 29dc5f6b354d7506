"""What the integration tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from nats.aio.client import DEFAULT_FLUSH_TIMEOUT
from nats.aio.client import Client as NatsPy

import penstock.client
from penstock.client import Client, JetStream, Stream
from tests.support.conf_servers import running_conf
from tests.support.nats_servers import KINDS, AnyServer, running_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.spark import Feed


_flush_of_nats_py = NatsPy.flush


async def _flush_twice(client: NatsPy, timeout: int = DEFAULT_FLUSH_TIMEOUT) -> None:
    await _flush_of_nats_py(client, timeout)
    await _flush_of_nats_py(client, timeout)


@pytest.fixture(scope="session", autouse=True)
def flushed_nats_py() -> Iterator[None]:
    """Lets nats-py's `flush` mean what its documentation says.

    It writes its PING past what waits for its flusher task. A SUB sent just before may reach the server
    after a message that another client publishes once `flush` has returned. What a second PING follows
    has been written.
    """
    NatsPy.flush = _flush_twice
    yield
    NatsPy.flush = _flush_of_nats_py


@pytest.fixture(scope="module", params=KINDS)
def server_kind(request: pytest.FixtureRequest) -> str:
    """Each kind of server in turn."""
    return str(request.param)


@pytest.fixture(scope="module")
def server(server_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnyServer]:
    """One of each kind, with nothing configured."""
    with running_server(server_kind, tmp_path_factory.mktemp(server_kind)) as running:
        yield running


@pytest.fixture(scope="module")
def url(server: AnyServer) -> str:
    return server.url


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Servers of both kinds at once, with nothing configured, to be compared with each other."""
    with ExitStack() as stack:
        yield {
            kind: stack.enter_context(running_server(kind, tmp_path_factory.mktemp(kind))).url
            for kind in ("official", "penstock")
        }


@pytest.fixture(scope="module")
def port(
    request: pytest.FixtureRequest, server_kind: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[int]:
    """Of a server of each kind, with the configuration that is the test module's CONF."""
    with running_conf(server_kind, request.module.CONF, tmp_path_factory.mktemp(server_kind)) as port:
        yield port


@pytest.fixture
async def client(url: str) -> AsyncIterator[Client]:
    async with penstock.client.connect(url, request_timeout=10) as client:
        yield client


@pytest.fixture
def js(client: Client) -> JetStream:
    return client.jetstream(timeout=10)


@pytest.fixture
async def stream(js: JetStream) -> AsyncIterator[Stream]:
    """A fresh stream `S` on `s.>` that takes batches, deleted afterwards."""
    stream = await js.create_stream(
        "S",
        subjects=["s.>"],
        storage="memory",
        allow_atomic=True,
        allow_batched=True,
        allow_direct=True,
    )
    try:
        yield stream
    finally:
        await js.delete_stream("S")


@pytest.fixture(scope="module")
def feed(server_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Feed]:
    """Streams and messages on a server of each kind."""
    from tests.support.spark import Feed

    with running_server(server_kind, tmp_path_factory.mktemp("store")) as server:
        feed = Feed(server.port)
        yield feed
        feed.close()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark session for all tests: a JVM takes seconds to start and half a gigabyte to keep."""
    from tests.support.spark import start_spark

    session = start_spark(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()
