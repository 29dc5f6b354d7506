"""`max_ha_assets`: how many replicated streams a server takes, on penstock and on the official server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.testing import SyncProcessCluster
from tests.support.nats_servers import KINDS, until
from tests.support.replicated_clusters import ClusterTalk, replicated_cluster

pytestmark = pytest.mark.feature("stream.placement")

FULL = "no suitable peers for placement, miscellaneous issue"


@pytest.fixture(params=KINDS)
def crowded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A cluster whose servers take two replicated streams each."""
    directory = tmp_path_factory.mktemp(request.param)
    with replicated_cluster(request.param, directory, "limits { max_ha_assets: 2 }") as made:
        yield made


async def test_full_servers_get_no_replicated_stream(crowded: SyncProcessCluster) -> None:
    talk = ClusterTalk(crowded)

    async def create(name: str, replicas: int, verb: str = "CREATE") -> tuple[int, str]:
        body = {"name": name, "subjects": [f"{name}.>"], "num_replicas": replicas}
        error = (await talk.ask(f"STREAM.{verb}.{name}", body)).get("error", {})
        return error.get("err_code", 0), error.get("description", "")

    try:
        assert [await create(name, 3) for name in ("ONE", "TWO")] == [(0, ""), (0, "")]

        async def is_counted() -> bool:
            page = await talk.do_page(0, "jsz")
            assert page["limits"]["max_ha_assets"] == 2
            return bool(page["ha_assets"] == 3)  # with the meta group

        await until(is_counted, 30)

        async def is_full() -> bool:
            # The official server counts by reports of the servers, which it asks for when one refuses.
            code, text = await create("MORE", 3)
            assert code, "a third replicated stream was created"
            return (code, text) == (10005, FULL)

        await until(is_full, 30)
        assert await create("LONELY", 1) == (0, ""), "a stream with one replica is no such asset"
        assert await create("LONELY", 3, "UPDATE") == (10023, "insufficient resources")
        assert (await talk.ask("STREAM.DELETE.ONE")).get("success")

        async def has_room() -> bool:
            return await create("MORE", 3) == (0, "")

        await until(has_room, 30)
    finally:
        await talk.close()
