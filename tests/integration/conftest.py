"""What the integration tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pytest

import penstock.client
from penstock.client import Client, JetStream
from tests.support.nats_servers import KINDS, running_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.spark import Feed


@pytest.fixture(scope="module", params=KINDS)
def server_kind(request: pytest.FixtureRequest) -> str:
    """Each kind of server in turn."""
    return str(request.param)


@pytest.fixture(scope="module")
def url(server_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of each kind, with nothing configured."""
    with running_server(server_kind, tmp_path_factory.mktemp(server_kind)) as server:
        yield server.url


@pytest.fixture
async def client(url: str) -> AsyncIterator[Client]:
    async with penstock.client.connect(url, request_timeout=10) as client:
        yield client


@pytest.fixture
def js(client: Client) -> JetStream:
    return client.jetstream(timeout=10)


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
