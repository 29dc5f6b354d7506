"""Mirrors and sources of another account, by what it exports, on both servers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from tests.support.conf_servers import running_conf
from tests.support.nats_servers import KINDS, until
from tests.support.origins import Streams, streams_on

pytestmark = pytest.mark.feature("sourcing.external")

CONF = """
accounts {
  E {
    users: [ {user: e, password: e} ]
    jetstream: enabled
    exports: [
      { service: "$JS.API.CONSUMER.>" }
      { service: "$JS.FC.>" }
      { stream: "deliver.>" }
    ]
  }
  I {
    users: [ {user: i, password: i} ]
    jetstream: enabled
    imports: [
      { service: {account: E, subject: "$JS.API.CONSUMER.>"}, to: "JS.E.API.CONSUMER.>" }
      { service: {account: E, subject: "$JS.FC.>"} }
      { stream: {account: E, subject: "deliver.>"} }
    ]
  }
}
"""
EXTERNAL = {"api": "JS.E.API", "deliver": "deliver.i"}


def streams_of(port: int, user: str, *, keep: bool = False) -> AbstractAsyncContextManager[Streams]:
    return streams_on(f"nats://127.0.0.1:{port}", keep=keep, user=user, password=user)


@pytest.fixture
async def there(port: int) -> AsyncIterator[Streams]:
    async with streams_of(port, "e") as streams:
        yield streams


@pytest.fixture
async def here(port: int) -> AsyncIterator[Streams]:
    async with streams_of(port, "i") as streams:
        yield streams


async def test_a_mirror_of_another_accounts_stream(there: Streams, here: Streams) -> None:
    await there.make("O", "o.>")
    for n in range(30):
        await there.pub(f"o.{n % 3}", b"%d" % n, Own="h")
    await there.api("STREAM.MSG.DELETE.O", {"seq": 7})
    await here.make("M", mirror={"name": "O", "external": EXTERNAL})
    await here.reaches("M", 30)
    assert await here.all("M") == await there.all("O")
    for n in range(5):
        await there.pub("o.more", b"%d" % n)
    await here.reaches("M", 35)
    assert await here.all("M") == await there.all("O")
    mirror = (await here.info("M"))["mirror"]
    assert (mirror["external"], mirror["lag"], "error" in mirror) == (EXTERNAL, 0, False)
    assert 0 <= mirror["active"] < 5_000_000_000


async def test_a_source_from_another_account_of_the_same_name(there: Streams, here: Streams) -> None:
    await there.make("S", "s.>")
    for n in range(4):
        await there.pub(f"s.{n}", b"%d" % n)
    transforms = [{"src": "s.1", "dest": "t.one"}, {"src": "s.2", "dest": "t.two"}]
    source = {"name": "S", "external": EXTERNAL}
    sources = [{**source, "subject_transforms": transforms}, {**source, "filter_subject": "s.3"}]
    await here.make("S", sources=sources)
    await here.reaches("S", 3)
    got = {one.subject: one.source for one in await here.all("S")}
    origin = got["s.3"][0]
    assert origin.startswith("S:") and len(origin) == 10
    assert got == {
        "t.one": [origin, "2", "s.1\fs.2", "t.one\ft.two", "s.1"],
        "t.two": [origin, "3", "s.1\fs.2", "t.one\ft.two", "s.2"],
        "s.3": [origin, "4", "s.3", ">", "s.3"],
    }


async def test_starts_and_gaps_hold_across_accounts(there: Streams, here: Streams) -> None:
    await there.make("O", "o")
    for n in range(6):
        await there.pub("o", b"%d" % n)
    await here.make("LATER", mirror={"name": "O", "external": EXTERNAL, "opt_start_seq": 4})
    await here.make("SOURCED", sources=[{"name": "O", "external": EXTERNAL, "opt_start_seq": 5}])
    await here.reaches("LATER", 6)
    await here.reaches("SOURCED", 2)
    assert await here.state("LATER") == (3, 4, 6)
    assert [one.payload for one in await here.all("SOURCED")] == [b"4", b"5"]


async def test_what_is_not_there_is_said(here: Streams) -> None:
    await here.make("M", mirror={"name": "NONE", "external": EXTERNAL})

    async def reported() -> bool:
        return bool((await here.info("M"))["mirror"].get("error", {}).get("err_code") == 10059)

    await until(reported)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_large_origin_comes_whole_and_goes_on_after_a_restart(kind: str, tmp_path: Path) -> None:
    """Flow control crosses as well: 40 MB are more than may be in flight at once."""
    with running_conf(kind, CONF, tmp_path) as port:
        async with streams_of(port, "e", keep=True) as there, streams_of(port, "i", keep=True) as here:
            await there.make("O", "o")
            for _ in range(400):
                await there.client.publish("o", b"x" * 100_000)
            await there.reaches("O", 400)
            await here.make("M", mirror={"name": "O", "external": EXTERNAL})
            await here.make("S", sources=[{"name": "O", "external": EXTERNAL}])
            await here.reaches("M", 400)
            await here.reaches("S", 400)
    with running_conf(kind, CONF, tmp_path) as port:
        async with streams_of(port, "e") as there, streams_of(port, "i") as here:
            await there.pub("o", b"last")
            await here.reaches("M", 401)
            await here.reaches("S", 401)
            assert (await here.get("M", 401)).payload == b"last"  # type: ignore[union-attr]
            assert (await here.get("S", 401)).source[1] == "401"  # type: ignore[union-attr]


async def test_a_durable_consumer_of_another_account_empties_its_work_queue(
    there: Streams, here: Streams
) -> None:
    """The owner of the queue makes the consumer; it delivers here, and the answers go back."""
    await there.make("Q", "q.>", retention="workqueue")
    config = {"durable_name": "c", "ack_policy": "flow_control", "deliver_subject": "deliver.i.q"}
    made = await there.api("CONSUMER.CREATE.Q.c", {"stream_name": "Q", "config": config})
    assert "error" not in made
    consumer = {"name": "c", "deliver_subject": "deliver.i.q"}
    await here.make("S", sources=[{"name": "Q", "external": EXTERNAL, "consumer": consumer}])
    for n in range(10):
        await there.pub(f"q.{n}", b"%d" % n)
    await here.reaches("S", 10)
    assert [one.payload for one in await here.all("S")] == [b"%d" % n for n in range(10)]

    async def emptied() -> bool:
        return (await there.state("Q"))[0] == 0

    await until(emptied, 30)


async def test_a_work_queue_of_another_account_keeps_what_is_not_stored_yet(
    there: Streams, here: Streams
) -> None:
    await there.make("Q", "q.>", retention="workqueue")
    await here.make("S", sources=[{"name": "Q", "external": EXTERNAL}])
    for n in range(10):
        await there.pub(f"q.{n}", b"%d" % n)
    await here.reaches("S", 10, 60)
    assert [one.payload for one in await here.all("S")] == [b"%d" % n for n in range(10)]

    async def emptied() -> bool:
        return (await there.state("Q"))[0] == 0

    await until(emptied, 30)
    (name,) = (await there.api("CONSUMER.NAMES.Q"))["consumers"]
    config = (await there.api(f"CONSUMER.INFO.Q.{name}"))["config"]
    assert (config["ack_policy"], config["sourcing"]) == ("flow_control", True)
    await here.delete("S")

    async def gone() -> bool:
        return not (await there.api("CONSUMER.NAMES.Q"))["consumers"]

    await until(gone, 30)
