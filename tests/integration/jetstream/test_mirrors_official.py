"""Mirrors, on both servers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import nats
import nats.errors
import pytest

from tests.support.nats_servers import AnyServer, until
from tests.support.origins import Streams, streams_on
from tests.support.talk import code, text

pytestmark = pytest.mark.feature("sourcing.mirror")

SECOND = 1_000_000_000


@pytest.fixture
async def streams(url: str) -> AsyncIterator[Streams]:
    async with streams_on(url) as streams:
        yield streams


async def test_a_mirror_has_its_origins_messages_under_their_sequences_and_times(streams: Streams) -> None:
    await streams.make("O", "o.>")
    for n in range(6):
        await streams.pub(f"o.{n % 2}", b"%d" % n, Own="h")
    await streams.api("STREAM.MSG.DELETE.O", {"seq": 2})
    await streams.api("STREAM.MSG.DELETE.O", {"seq": 6})
    made = await streams.make("M", mirror={"name": "O"})
    assert made["mirror"] == {"name": "O", "lag": 0, "active": -1}
    assert "subjects" not in made["config"] and "duplicate_window" not in made["config"]
    await streams.reaches("M", 5)
    assert await streams.all("M") == await streams.all("O")
    assert (await streams.info("M", deleted_details=True))["state"]["deleted"] == [2]
    for n in range(3):
        await streams.pub("o.new", b"%d" % n)
    await streams.reaches("M", 9)
    assert await streams.all("M") == await streams.all("O")
    info = await streams.info("M")
    mirror = info["mirror"]
    assert (mirror["name"], mirror["lag"], "error" in mirror) == ("O", 0, False)
    assert 0 <= mirror["active"] < 5 * SECOND
    listed = {one["config"]["name"]: one for one in (await streams.api("STREAM.LIST"))["streams"]}
    assert listed["M"]["mirror"]["name"] == "O" and "mirror" not in listed["O"]
    assert info["state"]["bytes"] == (await streams.info("O"))["state"]["bytes"]


REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({"mirror": {"name": "O"}, "subjects": ["x"]}, 10034, "stream mirrors can not contain subjects"),
    (
        {"mirror": {"name": "O"}, "sources": [{"name": "O"}]},
        10031,
        "stream mirrors can not also contain other sources",
    ),
    (
        {"mirror": {"name": "O"}, "first_seq": 5},
        10143,
        "stream mirrors can not have first sequence configured",
    ),
    ({"mirror": {"name": "a.b"}}, 10142, "mirrored stream name is invalid"),
    ({"mirror": {"name": ""}}, 10142, "mirrored stream name is invalid"),
    ({"mirror": {"name": "C"}}, 10052, "detected cycle"),
    ({"mirror": {"name": "BACK"}}, 10052, "detected cycle"),
    (
        {"mirror": {"name": "O"}, "pedantic": True},
        10157,
        "pedantic mode: origin stream has direct get set, mirror has it disabled",
    ),
    (
        {"mirror": {"name": "O"}, "allow_msg_counter": True},
        10173,
        "stream mirrors can not also calculate counters",
    ),
    (
        {"mirror": {"name": "O"}, "allow_msg_schedules": True},
        10186,
        "stream mirrors can not also schedule messages",
    ),
    (
        {"mirror": {"name": "O"}, "allow_atomic": True},
        10198,
        "stream mirrors can not also use atomic publishing",
    ),
    (
        {"mirror": {"name": "O"}, "allow_batched": True},
        10209,
        "stream mirrors can not also use batch publishing",
    ),
    (
        {"mirror": {"name": "O"}, "max_msg_size": 10},
        10030,
        "stream mirror must have max message size >= source",
    ),
    (
        {"mirror": {"name": "O"}, "subject_delete_marker_ttl": SECOND},
        10052,
        "subject delete markers forbidden on mirrors",
    ),
    (
        {
            "mirror": {
                "name": "O",
                "filter_subject": "o.1",
                "subject_transforms": [{"src": "o.>", "dest": "x.>"}],
            }
        },
        10150,
        "mirror with multiple subject transforms cannot also have a single subject filter",
    ),
    (
        {
            "mirror": {
                "name": "O",
                "subject_transforms": [{"src": "o.>", "dest": "x.>"}, {"src": "o.1", "dest": "y"}],
            }
        },
        10152,
        "mirror subject filters can not overlap",
    ),
    (
        {"mirror": {"name": "O", "filter_subject": "o..1"}},
        10049,
        "subject filter 'o..1' for the mirror invalid subject",
    ),
    (
        {"mirror": {"name": "O", "consumer": {"name": "x.y", "deliver_subject": "y"}}},
        10213,
        "stream mirror consumer config is invalid",
    ),
    (
        {"mirror": {"name": "O", "external": {"api": "$JS.API", "deliver": "x"}}},
        10021,
        "stream external api prefix $JS.API must not overlap with $JS.API",
    ),
    (
        {"mirror": {"name": "O", "external": {"api": "a.*", "deliver": "x"}}},
        10052,
        'stream external api prefix "a.*" must be a valid subject without wildcards',
    ),
    (
        {"mirror": {"name": "O", "external": {"api": "a.b", "deliver": "x.>"}}},
        10024,
        "stream external delivery prefix x.> must not contain wildcards",
    ),
]


@pytest.mark.feature(
    "stream.first-seq",
    "atomic.mirrors-sources",
    "fast-ingest.settings",
    "sourcing.filters-transforms",
    "sourcing.external",
)
async def test_what_a_mirror_can_not_be_is_refused_by_name(streams: Streams) -> None:
    """The errors of mirrors."""
    await streams.make("O", "o.>", allow_direct=True, max_msg_size=100)
    await streams.make("BACK", mirror={"name": "C"})
    for config, number, words in REFUSED:
        refused = await streams.create("C", **config)
        assert (code(refused), text(refused)) == (number, words), config


@pytest.mark.feature("sourcing.filters-transforms")
async def test_a_mirror_starts_where_its_configuration_says(streams: Streams) -> None:
    """By `opt_start_seq` or `opt_start_time`, with `filter_subject` and `subject_transforms`."""
    await streams.make("O", "o.>")
    for n in range(1, 9):
        await streams.pub(f"o.{n}", b"%d" % n)
    since = (await streams.get("O", 6)).time  # type: ignore[union-attr]
    await streams.make("SEQ", mirror={"name": "O", "opt_start_seq": 5})
    await streams.make("TIME", mirror={"name": "O", "opt_start_time": since})
    await streams.make("FILTER", mirror={"name": "O", "filter_subject": "o.3"})
    transforms = [{"src": "o.2", "dest": "t.two"}, {"src": "o.4", "dest": ""}]
    await streams.make("CHANGED", mirror={"name": "O", "subject_transforms": transforms})
    await streams.make("LATER", mirror={"name": "O", "opt_start_seq": 20})
    await streams.reaches("SEQ", 8)
    await streams.reaches("TIME", 8)
    await streams.reaches("FILTER", 3)
    await streams.reaches("CHANGED", 4)
    await streams.reaches("LATER", 19)
    assert await streams.state("SEQ") == (4, 5, 8)
    assert await streams.state("TIME") == (3, 6, 8)
    assert [(one.seq, one.subject) for one in await streams.all("FILTER")] == [(3, "o.3")]
    assert [(one.seq, one.subject) for one in await streams.all("CHANGED")] == [(2, "t.two"), (4, "o.4")]
    assert await streams.state("LATER") == (0, 20, 19)
    assert (await streams.info("FILTER"))["mirror"]["filter_subject"] == "o.3"
    assert (await streams.info("CHANGED"))["mirror"]["subject_transforms"] == transforms


async def test_a_mirror_follows_a_purge_and_keeps_what_it_has(streams: Streams) -> None:
    await streams.make("O", "o")
    for n in range(4):
        await streams.pub("o", b"%d" % n)
    await streams.make("M", mirror={"name": "O"})
    await streams.reaches("M", 4)
    await streams.api("STREAM.PURGE.O", {"seq": 10})
    await streams.pub("o", b"ten")
    await streams.reaches("M", 10)
    assert [one.payload for one in await streams.all("M")] == [b"0", b"1", b"2", b"3", b"ten"]
    await streams.make("LATE", mirror={"name": "O"})
    await streams.reaches("LATE", 10)
    assert await streams.state("LATE") == (1, 10, 10)


async def test_a_mirror_may_be_purged_and_limited_but_not_published_to(streams: Streams) -> None:
    """It has no subjects of its own."""
    await streams.make("O", "o.>")
    await streams.make("M", mirror={"name": "O"}, max_msgs_per_subject=1)
    for n in range(4):
        await streams.pub(f"o.{n % 2}", b"%d" % n)
    await streams.reaches("M", 4)
    assert [one.seq for one in await streams.all("M")] == [3, 4]
    assert (await streams.api("STREAM.PURGE.M", {"filter": "o.0"}))["purged"] == 1
    assert (await streams.api("STREAM.MSG.DELETE.M", {"seq": 4}))["success"]
    with pytest.raises(nats.errors.NoRespondersError):
        await streams.pub("M")
    await streams.pub("o.0", b"again")
    await streams.reaches("M", 5)
    assert await streams.state("M") == (1, 5, 5)


@pytest.mark.feature("atomic.mirrors-sources")
async def test_headers_of_batches_and_expectations_stay_behind(streams: Streams) -> None:
    """What speaks of the origin's own state is left out of a mirror's messages."""
    await streams.make("O", "o", allow_atomic=True)
    await streams.client.request(
        "o", b"1", headers={"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1"}, timeout=5
    )
    last = {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "2", "Nats-Batch-Commit": "1", "Own": "h"}
    await streams.client.request("o", b"2", headers=last, timeout=5)
    await streams.pub("o", b"3", Nats_Expected_Last_Sequence="2", Nats_Msg_Id="i")
    await streams.make("M", mirror={"name": "O"})
    await streams.reaches("M", 3)
    assert [one.header for one in await streams.all("M")] == [
        b"",
        b"NATS/1.0\r\nOwn: h\r\n\r\n",
        b"NATS/1.0\r\nNats-Msg-Id: i\r\n\r\n",
    ]


async def test_rollups_and_ttls_reach_a_mirror_that_allows_them(streams: Streams) -> None:
    await streams.make("O", "o.>", allow_rollup_hdrs=True, allow_msg_ttl=True)
    await streams.make("PLAIN", mirror={"name": "O"})
    await streams.make("SAME", mirror={"name": "O"}, allow_rollup_hdrs=True, allow_msg_ttl=True)
    await streams.pub("o.1")
    await streams.pub("o.2")
    await streams.reaches("SAME", 2)
    await streams.reaches("PLAIN", 2)
    await streams.pub("o.1", Nats_Rollup="sub")
    await streams.pub("o.3", Nats_TTL="1s")
    await streams.reaches("SAME", 4)
    await streams.reaches("PLAIN", 4)
    assert [one.seq for one in await streams.all("PLAIN")] == [1, 2, 3, 4]

    async def expired() -> bool:
        return [one.seq for one in await streams.all("SAME")] == [2, 3]

    await until(expired)
    assert (await streams.state("PLAIN"))[0] == 4


@pytest.mark.feature("sourcing.catch-up")
async def test_a_missing_origin_is_said_and_waited_for(streams: Streams) -> None:
    await streams.make("M", mirror={"name": "O"})

    async def reported() -> bool:
        error = (await streams.info("M"))["mirror"].get("error", {})
        return bool(error.get("err_code") == 10059 and error["description"] == "stream not found")

    await until(reported)
    assert (await streams.info("M"))["mirror"]["active"] == -1


async def test_a_mirror_changes_only_by_ending(streams: Streams) -> None:
    """Error 10055; a mirror whose origin is left out of an update goes on as an ordinary stream."""
    await streams.make("O", "o", duplicate_window=100 * SECOND)
    await streams.pub("o", b"1", Nats_Msg_Id="i")
    await streams.make("M", mirror={"name": "O"})
    await streams.reaches("M", 1)
    for mirror in ({"name": "P"}, {"name": "O", "filter_subject": "o"}):
        refused = await streams.update("M", mirror=mirror)
        assert (code(refused), text(refused)) == (10055, "stream mirror configuration can not be updated")
    assert code(await streams.update("O", mirror={"name": "P"})) == 10055
    same = await streams.update("M", mirror={"name": "O"}, description="d")
    assert same["config"]["description"] == "d" and same["mirror"]["name"] == "O"
    promoted = await streams.update("M", "m")
    assert promoted["config"]["duplicate_window"] == 120 * SECOND and "mirror" not in promoted
    await streams.pub("o", b"2")
    assert (await streams.pub("m", b"own"))["seq"] == 2
    assert [one.payload for one in await streams.all("M")] == [b"1", b"own"]


@pytest.mark.feature("stream.mirror-direct")
async def test_a_mirror_answers_direct_gets_for_an_origin_that_is_gone(streams: Streams) -> None:
    """`mirror_direct` follows the origin's `allow_direct`; answers have the mirror's name."""
    await streams.make("O", "o.>", allow_direct=True)
    made = await streams.make("M", mirror={"name": "O"})
    assert (made["config"]["mirror_direct"], made["config"]["allow_direct"]) == (True, False)
    await streams.pub("o.1", b"kept")
    await streams.reaches("M", 1)
    await streams.delete("O")
    for subject, body in (("O.o.1", b""), ("O", b'{"seq":1}'), ("O", b'{"last_by_subj":"o.1"}')):
        answer = await streams.client.request(f"$JS.API.DIRECT.GET.{subject}", body, timeout=5)
        assert (answer.data, answer.headers["Nats-Stream"], answer.headers["Nats-Subject"]) == (
            b"kept",
            "M",
            "o.1",
        )
    with pytest.raises(nats.errors.NoRespondersError):
        await streams.client.request("$JS.API.DIRECT.GET.M.o.1", b"", timeout=5)


@pytest.mark.feature("sourcing.catch-up")
async def test_a_mirror_goes_on_after_a_restart(server: AnyServer, streams: Streams) -> None:
    """It resumes from its last sequence."""
    await streams.make("O", "o")
    await streams.make("M", mirror={"name": "O"})
    for n in range(5):
        await streams.pub("o", b"%d" % n)
    await streams.reaches("M", 5)
    await streams.client.close()
    server.stop()
    server.start()
    streams.client = await nats.connect(server.url, allow_reconnect=False)
    await streams.pub("o", b"5")
    await streams.reaches("M", 6)
    assert await streams.all("M") == await streams.all("O")
