"""What the integration tests share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.nats_servers import KINDS, running_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.spark import Feed


@pytest.fixture(scope="module", params=KINDS)
def feed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Feed]:
    """Streams and messages on a server of each kind."""
    from tests.support.spark import Feed

    with running_server(request.param, tmp_path_factory.mktemp("store")) as server:
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
