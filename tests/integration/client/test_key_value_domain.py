"""Buckets of a JetStream domain: requests and writes go below the domain's API prefix."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock.client
from tests.support.conf_servers import running_as_configured
from tests.support.nats_servers import KINDS

pytestmark = [
    pytest.mark.feature("key-value.client"),
    pytest.mark.feature("key-value.operations"),
]


@pytest.fixture(scope="module", params=KINDS)
def port(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    conf = "server_name: s1\njetstream { domain: hub }\n"
    with running_as_configured(request.param, conf, tmp_path_factory.mktemp(request.param)) as port:
        yield port


@pytest.mark.parametrize("context", [{"domain": "hub"}, {"prefix": "$JS.hub.API"}, {}])
async def test_a_bucket_is_written_and_read_in_its_domain(port: int, context: dict[str, str]) -> None:
    async with penstock.client.connect(f"nats://127.0.0.1:{port}") as client:
        js = client.jetstream(**context)  # type: ignore[arg-type]
        kv = await js.create_key_value("B", storage="memory", history=5, allow_atomic=True)
        revision = await kv.create("x", b"1")
        assert await kv.update("x", b"2", last_revision=revision) == revision + 1
        assert (await kv.get("x")).value == b"2"
        assert [one.value for one in (await kv.get_many(["x"])).values()] == [b"2"]
        assert [entry.value for entry in await kv.history("x")] == [b"1", b"2"]
        await kv.purge("x")
        assert [key async for key in kv.keys(">")] == []
        await js.delete_key_value("B")
