"""Sources, on both servers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import nats
import pytest

from tests.support.nats_servers import AnyServer, until
from tests.support.origins import Streams, streams_on
from tests.support.talk import code, text

pytestmark = pytest.mark.feature("sourcing.sources")

SECOND = 1_000_000_000


@pytest.fixture
async def streams(url: str) -> AsyncIterator[Streams]:
    async with streams_on(url) as streams:
        yield streams


async def test_many_streams_and_local_publishes_come_together(streams: Streams) -> None:
    """N to 1 plus local writes; `Nats-Stream-Source` says where each message is from."""
    await streams.make("A", "a.>")
    await streams.make("B", "b.>")
    made = await streams.make("S", "s", sources=[{"name": "A"}, {"name": "B", "filter_subject": "b.*"}])
    assert sorted(made["sources"], key=str) == [
        {"name": "A", "lag": 0, "active": -1},
        {"name": "B", "lag": 0, "active": -1, "filter_subject": "b.*"},
    ]
    await streams.pub("s", b"own")
    for n in range(3):
        await streams.pub(f"a.{n}", b"a%d" % n, Own="h")
        await streams.pub(f"b.{n}", b"b%d" % n)
        await streams.pub(f"b.{n}.deep", b"left out")
    await streams.reaches("S", 7)
    got = await streams.all("S")
    assert (got[0].subject, got[0].payload, got[0].header) == ("s", b"own", b"")
    of_a = [one for one in got if one.subject.startswith("a")]
    assert [(one.subject, one.payload, one.source) for one in of_a] == [
        (f"a.{n}", b"a%d" % n, ["A", f"{n + 1}", ">", ">", f"a.{n}"]) for n in range(3)
    ]
    assert of_a[0].header.startswith(b"NATS/1.0\r\nOwn: h\r\nNats-Stream-Source: A 1 > > a.0 ")
    of_b = [(one.subject, one.source) for one in got if one.subject.startswith("b")]
    assert of_b == [(f"b.{n}", ["B", f"{2 * n + 1}", "b.*", ">", f"b.{n}"]) for n in range(3)]
    infos = {one["name"]: one for one in (await streams.info("S"))["sources"]}
    assert (infos["A"]["seq"], infos["A"]["lag"], infos["B"]["seq"]) == (3, 0, 5)
    assert 0 <= infos["A"]["active"] < 5 * SECOND
    assert (await streams.info("S"))["state"]["bytes"] == sum(
        30 + len(one.subject) + len(one.payload) + (4 + len(one.header) if one.header else 0) for one in got
    )


@pytest.mark.feature("sourcing.filters-transforms")
async def test_one_origin_may_be_sourced_by_several_filters_and_transforms(streams: Streams) -> None:
    await streams.make("O", "o.*")
    for n in range(1, 5):
        await streams.pub(f"o.{n}", b"%d" % n)
    transforms = [{"src": "o.2", "dest": "t.two"}, {"src": "o.4", "dest": "t.four"}]
    await streams.make(
        "S",
        sources=[
            {"name": "O", "filter_subject": "o.1"},
            {"name": "O", "subject_transforms": transforms},
            {"name": "O", "subject_transforms": [{"src": "o.*", "dest": "all.{{wildcard(1)}}"}]},
        ],
    )
    await streams.reaches("S", 7)
    got = {one.subject: one.source for one in await streams.all("S")}
    both = ["o.2\fo.4", "t.two\ft.four"]
    assert got == {
        "o.1": ["O", "1", "o.1", ">", "o.1"],
        "t.two": ["O", "2", *both, "o.2"],
        "t.four": ["O", "4", *both, "o.4"],
        **{f"all.{n}": ["O", f"{n}", "o.*", "all.{{wildcard(1)}}", f"o.{n}"] for n in range(1, 5)},
    }


@pytest.mark.feature("sourcing.filters-transforms")
async def test_a_source_starts_where_its_configuration_says(streams: Streams) -> None:
    await streams.make("O", "o")
    for n in range(1, 7):
        await streams.pub("o", b"%d" % n)
    since = (await streams.get("O", 5)).time  # type: ignore[union-attr]
    await streams.make("SEQ", sources=[{"name": "O", "opt_start_seq": 4}])
    await streams.make("TIME", sources=[{"name": "O", "opt_start_time": since}])
    await streams.reaches("SEQ", 3)
    await streams.reaches("TIME", 2)
    assert [one.payload for one in await streams.all("SEQ")] == [b"4", b"5", b"6"]
    assert [one.payload for one in await streams.all("TIME")] == [b"5", b"6"]


REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({"sources": [{"name": "a.b"}]}, 10141, "sourced stream name is invalid"),
    ({"sources": [{"name": "C"}]}, 10052, "detected cycle"),
    ({"sources": [{"name": "BACK"}]}, 10052, "detected cycle"),
    ({"sources": [{"name": "O"}, {"name": "O"}]}, 10140, "duplicate source configuration detected"),
    (
        {"sources": [{"name": "O"}, {"name": "O", "filter_subject": ">"}]},
        10140,
        "duplicate source configuration detected",
    ),
    (
        {
            "sources": [
                {
                    "name": "O",
                    "subject_transforms": [{"src": "o.>", "dest": "x.>"}, {"src": "o.1", "dest": "y"}],
                }
            ]
        },
        10147,
        "source filters can not overlap",
    ),
    (
        {
            "sources": [
                {"name": "O", "filter_subject": "o", "subject_transforms": [{"src": "o.>", "dest": "x.>"}]}
            ]
        },
        10144,
        "source with multiple subject transforms cannot also have a single subject filter",
    ),
    (
        {"sources": [{"name": "O"}], "allow_msg_schedules": True},
        10187,
        "stream source can not also schedule messages",
    ),
    (
        {"sources": [{"name": "O"}], "max_msg_size": 10},
        10046,
        "stream source must have max message size >= target",
    ),
    (
        {"sources": [{"name": "O", "filter_subject": "o..1"}]},
        10049,
        "subject filter 'o..1' for the source: invalid subject",
    ),
    (
        {"sources": [{"name": "O", "consumer": {"name": "x.y", "deliver_subject": "y"}}]},
        10215,
        "stream source consumer config is invalid",
    ),
    (
        {"sources": [{"name": "O"}, {"name": "X", "external": {"api": "a.b", "deliver": "*"}}]},
        10024,
        "stream external delivery prefix * must not contain wildcards",
    ),
]


@pytest.mark.feature("sourcing.filters-transforms", "sourcing.external")
async def test_what_a_source_can_not_be_is_refused_by_name(streams: Streams) -> None:
    """The errors of sources."""
    await streams.make("O", "o.>", max_msg_size=100)
    await streams.make("BACK", sources=[{"name": "C"}])
    for config, number, words in REFUSED:
        refused = await streams.create("C", "c", **config)
        assert (code(refused), text(refused)) == (number, words), config
    # No circle: nothing that EASY has of its own passes the filter.
    await streams.make("EASY", "easy", sources=[{"name": "D", "filter_subject": "d"}])
    await streams.make("D", "d", sources=[{"name": "EASY"}])


@pytest.mark.feature("atomic.mirrors-sources")
async def test_headers_of_batches_expectations_and_earlier_origins_stay_behind(streams: Streams) -> None:
    await streams.make("O", "o", allow_atomic=True)
    last = {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1", "Nats-Batch-Commit": "1"}
    await streams.client.request("o", b"1", headers=last, timeout=5)
    await streams.pub("o", b"2", Nats_Expected_Last_Sequence="1", Own="h")
    await streams.make("MIDDLE", sources=[{"name": "O"}])
    await streams.make("S", sources=[{"name": "MIDDLE"}])
    await streams.reaches("S", 2)
    one, two = await streams.all("S")
    assert one.header.startswith(b"NATS/1.0\r\nNats-Stream-Source: MIDDLE 1 > > o ")
    assert two.header.startswith(b"NATS/1.0\r\nOwn: h\r\nNats-Stream-Source: MIDDLE 2 > > o ")
    assert one.header.count(b"\r\n") == 3 and two.header.count(b"\r\n") == 4


async def test_duplicates_of_several_origins_are_stored_once(streams: Streams) -> None:
    """Message ids hold across sources."""
    await streams.make("A", "a")
    await streams.make("B", "b")
    await streams.make("S", "s", sources=[{"name": "A"}, {"name": "B"}], duplicate_window=100 * SECOND)
    assert (await streams.pub("s", b"own", Nats_Msg_Id="0"))["seq"] == 1
    for n in range(3):
        await streams.pub("a", b"%d" % n, Nats_Msg_Id=f"{n}")
    await streams.reaches("S", 3)
    for n in range(4):
        await streams.pub("b", b"%d" % n, Nats_Msg_Id=f"{n}")
    await streams.reaches("S", 4)
    assert [one.payload for one in await streams.all("S")] == [b"own", b"1", b"2", b"3"]


async def test_counters_add_up_over_sources(streams: Streams) -> None:
    """Sums of several origins make one."""
    for name in ("A", "B"):
        await streams.make(name, f"{name}.*", allow_msg_counter=True)
    transforms = {name: [{"src": f"{name}.*", "dest": "sum.{{wildcard(1)}}"}] for name in ("A", "B")}
    sources = [{"name": name, "subject_transforms": transforms[name]} for name in ("A", "B")]
    await streams.make("S", "sum.*", sources=sources, allow_msg_counter=True)
    for subject, incr in (("A.x", "3"), ("B.x", "10"), ("A.x", "-1"), ("A.y", "5")):
        await streams.pub(subject, b"", Nats_Incr=incr)
    await streams.reaches("S", 4)
    assert (await streams.pub("sum.x", b"", Nats_Incr="100"))["val"] == "112"
    got = await streams.all("S")
    last = {one.subject: json.loads(one.payload)["val"] for one in got}
    assert last == {"sum.x": "112", "sum.y": "5"}
    assert b'Nats-Counter-Sources: {"A":{"A.x":"2"},"B":{"B.x":"10"}}' in got[-1].header
    increments = [line for one in got for line in one.header.split(b"\r\n") if b"Nats-Incr" in line]
    assert sorted(increments) == sorted(b"Nats-Incr: %d" % n for n in (3, 10, -1, 5, 100))


async def test_sources_may_change_and_come_back(streams: Streams) -> None:
    """An origin that is left out and named again goes on where it stopped."""
    await streams.make("A", "a")
    await streams.make("B", "b")
    await streams.make("S", "s", sources=[{"name": "A"}])
    await streams.pub("a", b"a1")
    await streams.pub("b", b"b1")
    await streams.reaches("S", 1)
    await streams.update("S", "s", sources=[{"name": "A"}, {"name": "B"}])
    await streams.reaches("S", 2)
    assert "sources" not in await streams.update("S", "s", sources=[])
    await streams.pub("a", b"a2")
    await streams.pub("s", b"own")
    updated = await streams.update("S", "s", sources=[{"name": "A"}])
    assert updated["sources"][0]["name"] == "A"
    await streams.reaches("S", 4)
    assert [one.payload for one in await streams.all("S")] == [b"a1", b"b1", b"own", b"a2"]


@pytest.mark.feature("sourcing.catch-up")
async def test_an_origin_that_is_made_again_is_read_from_its_beginning(streams: Streams) -> None:
    """Its identity tells it from the one before."""
    await streams.make("O", "o")
    await streams.make("S", sources=[{"name": "O"}])
    for n in range(3):
        await streams.pub("o", b"%d" % n)
    await streams.reaches("S", 3)
    await streams.delete("O")
    await streams.make("O", "o")
    await streams.pub("o", b"new")
    await streams.reaches("S", 4)
    got = await streams.all("S")
    assert [one.payload for one in got] == [b"0", b"1", b"2", b"new"]
    assert got[3].source[:2] == ["O", "1"]
    identities = {one.header.strip().split(b" ")[-1] for one in got}
    assert len(identities) == 2


@pytest.mark.feature("sourcing.catch-up")
async def test_positions_outlive_messages_and_restarts(server: AnyServer, streams: Streams) -> None:
    """What was sourced once does not come again, though the messages that say so are gone."""
    await streams.make("O", "o.*")
    await streams.make(
        "KEPT", sources=[{"name": "O", "filter_subject": "o.1"}, {"name": "O", "filter_subject": "o.2"}]
    )
    await streams.make("GONE", sources=[{"name": "O"}])
    for n in range(4):
        await streams.pub(f"o.{n % 2 + 1}", b"%d" % n)
    await streams.reaches("KEPT", 4)
    await streams.reaches("GONE", 4)
    await streams.api("STREAM.PURGE.GONE")
    await streams.client.close()
    server.stop()
    server.start()
    streams.client = await nats.connect(server.url, allow_reconnect=False)
    await streams.pub("o.1", b"4")
    await streams.reaches("KEPT", 5)
    await streams.reaches("GONE", 5)
    assert [one.payload for one in await streams.all("GONE")] == [b"4"]
    assert sorted(one.payload for one in await streams.all("KEPT")) == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.feature("sourcing.work-queue")
async def test_what_was_sourced_leaves_a_work_queue(server: AnyServer, streams: Streams) -> None:
    """The origin's message goes once it is stored, and not before."""
    await streams.make("WQ", "wq.*", retention="workqueue")
    await streams.make("INT", "int.*", retention="interest")
    await streams.pub("wq.0", b"before")
    await streams.make("S", sources=[{"name": "WQ"}, {"name": "INT"}])
    await streams.make("M", mirror={"name": "INT", "filter_subject": "int.1"})

    async def consumers(name: str) -> Any:
        return sorted((await streams.api(f"CONSUMER.NAMES.{name}"))["consumers"] or [])

    async def followed() -> bool:
        return len(await consumers("WQ")) == 1 and len(await consumers("INT")) == 2

    await until(followed, 60)
    of_mirror, of_source = await consumers("INT")
    assert await consumers("WQ") == [of_source] and of_mirror.startswith("JS_MIRROR_")
    for n in range(3):
        await streams.pub(f"wq.{n}", b"w%d" % n)
        await streams.pub(f"int.{n}", b"i%d" % n)
    await streams.reaches("S", 7)
    await streams.reaches("M", 2)

    async def emptied() -> bool:
        return (await streams.state("WQ"))[0] == (await streams.state("INT"))[0] == 0

    await until(emptied, 60)
    info = (await streams.api(f"CONSUMER.INFO.WQ.{of_source}"))["config"]
    assert (info["ack_policy"], info["sourcing"], info["metadata"]["_nats.src.stream"]) == (
        "flow_control",
        True,
        "S",
    )
    assert [one.payload for one in await streams.all("M")] == [b"i1"]
    # What a full stream refuses stays in the queue.
    full = [{"name": "WQ2"}]
    await streams.make("WQ2", "wq2", retention="workqueue")
    await streams.make("FULL", sources=full, discard="new", max_msgs=2)
    for n in range(4):
        await streams.pub("wq2", b"%d" % n)
    await streams.reaches("FULL", 2)
    assert (await streams.state("WQ2"))[2] == 4
    held = {one.payload for one in [*await streams.all("FULL"), *await streams.all("WQ2")]}
    assert held == {b"0", b"1", b"2", b"3"}
    await streams.client.close()
    server.stop()
    server.start()
    streams.client = await nats.connect(server.url, allow_reconnect=False)
    await streams.pub("wq.9", b"after")
    await streams.reaches("S", 8, 60)
    await until(emptied, 60)
    await streams.delete("S")
    await streams.delete("M")

    async def forgotten() -> bool:
        return await consumers("WQ") == await consumers("INT") == []

    await until(forgotten)


@pytest.mark.feature("sourcing.work-queue")
async def test_a_work_queue_keeps_what_a_source_starts_behind(streams: Streams) -> None:
    await streams.make("WQ", "wq", retention="workqueue")
    for n in range(4):
        await streams.pub("wq", b"%d" % n)
    await streams.make("S", sources=[{"name": "WQ", "opt_start_seq": 3}])
    await streams.reaches("S", 2)

    async def two_left() -> bool:
        return (await streams.state("WQ"))[0] == 2

    await until(two_left, 60)
    assert [one.payload for one in await streams.all("S")] == [b"2", b"3"]
    assert [one.payload for one in await streams.all("WQ")] == [b"0", b"1"]
    [name] = (await streams.api("CONSUMER.NAMES.WQ"))["consumers"]
    config = (await streams.api(f"CONSUMER.INFO.WQ.{name}"))["config"]
    assert (config["deliver_policy"], config["opt_start_seq"]) == ("by_start_sequence", 3)


@pytest.mark.feature("sourcing.catch-up")
async def test_a_full_stream_takes_more_when_it_has_room_again(streams: Streams) -> None:
    await streams.make("O", "o")
    await streams.make("S", sources=[{"name": "O"}], discard="new", max_msgs=2)
    for n in range(4):
        await streams.pub("o", b"%d" % n)
    await streams.reaches("S", 2)
    await streams.api("STREAM.PURGE.S")

    async def went_on() -> bool:
        return (await streams.state("S")) == (2, 3, 4)

    await until(went_on, 20)
    assert [one.payload for one in await streams.all("S")] == [b"2", b"3"]
