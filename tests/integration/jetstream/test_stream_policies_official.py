"""Configurations, updates, pages and reads: the same answers from both servers.

Left out is where we differ on purpose: an empty list is a list (the official server writes null), a request
whose body is no JSON is refused, a batch without headers counts what is pending as one with headers does, a
batch of less than one message is refused, message 0 can't be deleted (10003).
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import nats
import nats.errors
import pytest

from tests.support.nats_servers import find_official_server
from tests.support.same_answers import SECOND, Step, answer_the_same, api, change, make, pub

pytestmark = [
    pytest.mark.official,
    pytest.mark.skipif(find_official_server() is None, reason="no official nats-server"),
]

PAST, FUTURE = "2020-01-01T00:00:00Z", "2120-01-01T00:00:00Z"


def consumer(stream: str, name: str, **config: Any) -> Step:
    body = {"stream_name": stream, "config": {"name": name, "ack_policy": "explicit", **config}}
    return api(f"CONSUMER.CREATE.{stream}.{name}", body)


CONFIGURING = [
    make("A", max_age=SECOND),
    make("A2", "a2", max_age=SECOND, pedantic=True),
    make("A3", "a3", max_age=300 * SECOND, pedantic=True),
    *[
        make("B", "b", **{limit: -2}, pedantic=True)
        for limit in ("max_msgs", "max_bytes", "max_msg_size", "max_consumers", "max_msgs_per_subject")
    ],
    make("B", "b", max_msgs=0, max_bytes=0, pedantic=True),
    make("C", "c", placement={}),
    make("C2", "c2", placement={"preferred": "x"}),
    make("C3", "c3", placement={"tags": ["a", "b"]}),
    make("C4", "c4", placement={"cluster": "x", "tags": ["a"]}),
    *[make("D", *subjects) for subjects in (("d", "d"), ("d.*", "d.>"), ("",), (" d",), ("d d",), ("d\td",))],
    make("D", "d*"),
    make("D1", "d1.*x"),
    make("E", "e", num_replicas=5),
    make("F", "f", mirror_direct=True),
    make("G", "g", persist_mode="async", storage="memory"),
    make("G2", "g2", persist_mode="default"),
    make("G3", "g3", persist_mode="bogus"),
    *[make("H", "h", **{name: "bogus"}) for name in ("retention", "discard", "compression", "storage")],
    make("x" * 255, "two"),
    make("x" * 256, "twox"),
    make("ä", "aum"),
    make("I", "i", description="x" * 4096),
    make("I2", "i2", description="x" * 4097),
    make("I3", "i3", metadata={"k": "v" * (128 * 1024 - 1)}),
    make("I4", "i4", metadata={"k": "v" * (128 * 1024)}),
    make("J", "j", metadata={"_nats.level": "9", "_nats.ver": "x", "_nats.req.level": "7", "a": "b"}),
    api("STREAM.INFO.J"),
    change("J", "j", metadata={"a": "c"}),
    change("J", "j", metadata={"_nats.req.level": "9"}),
    change("J", "j"),
    make("K", "k", first_seq=5),
    change("K", "k", first_seq=9),
    pub("k"),
    api("STREAM.INFO.K"),
    change("K", "k"),
    make("K1", "k1", first_seq=0),
    make("K2", "k2", first_seq=1),
    pub("k2"),
    api("STREAM.INFO.K2"),
    *[
        make(f"L{n}", subject)
        for n, subject in enumerate(
            ("$SYS.ACCOUNT.>", "$JSC.x", "$NRG.x", "$KV.x.>", "*.>", "$SYS.x", "$JS.>")
        )
    ],
    make("M", "m", duplicate_window=50),
    make("M", "m", duplicate_window=SECOND // 10),
    make("M2", "m2", max_age=SECOND, duplicate_window=SECOND),
    change("M2", "m2", max_age=SECOND // 2),
    change("M2", "m2", max_age=10 * SECOND, duplicate_window=5 * SECOND),
    change("M2", "m2", max_age=20 * SECOND, duplicate_window=30 * SECOND),
    change("M2", "m2"),
    make("N", "n", max_msgs=2**62),
    make("N1", "n1", max_msgs=2**63),
    make("N2", "n2", max_msg_size=2**31),
    make("N3", "n3", max_msg_size=2**31 - 1),
    make("N4", "n4", max_age=2**62),
    make("N5", "n5", first_seq=-1),
    make("N6", "n6", first_seq=2**64),
]

UPDATING = [
    make("S", "s", consumer_limits={"max_ack_pending": 10, "inactive_threshold": 5 * SECOND}),
    consumer("S", "c", durable_name="c"),
    consumer("S", "d", max_ack_pending=11),
    consumer("S", "e", inactive_threshold=6 * SECOND),
    change("S", "s", consumer_limits={"max_ack_pending": 5, "inactive_threshold": 5 * SECOND}),
    change("S", "s", consumer_limits={"max_ack_pending": 50, "inactive_threshold": 4 * SECOND}),
    change("S", "s", consumer_limits={"max_ack_pending": 50, "inactive_threshold": 50 * SECOND}),
    change("S", "s", consumer_limits={"max_ack_pending": -5}),
    change("S", "s"),
    make("T", "t", max_consumers=2),
    *[consumer("T", name) for name in "abc"],
    change("T", "t", max_consumers=1),
    change("T", "t", max_consumers=3),
    consumer("T", "c"),
    change("T", "t", max_consumers=-4),
    change("T", "t", max_consumers=-4, pedantic=True),
    make("V", "v", discard="new", max_msgs_per_subject=1, discard_new_per_subject=True),
    change("V", "v", max_msgs_per_subject=1, discard_new_per_subject=True),
    change("V", "v", discard="new", discard_new_per_subject=True),
    change("V", "v"),
    make("W", "w", allow_rollup_hdrs=True),
    change("W", "w", allow_rollup_hdrs=True, deny_purge=True),
    change("W", "w", deny_purge=True),
    change("W", "w", allow_rollup_hdrs=True),
    make("X", "x", storage="memory"),
    change("X", "x"),
    change("X", "x", storage="memory", no_ack=True),
    api("STREAM.INFO.X"),
    make("Y", "y"),
    pub("y"),
    change("Y", "y", sealed=True),
    change("Y", "y", sealed=True),
    change("Y", "y", sealed=True, max_age=5 * SECOND, discard="old", allow_rollup_hdrs=True),
    pub("y"),
    api("STREAM.MSG.DELETE.Y", {"seq": 1}),
    api("STREAM.PURGE.Y"),
    api("STREAM.INFO.Y"),
    change("Y", "y"),
    api("STREAM.DELETE.Y"),
    make("Z", "z"),
    change("Z", "z", "s"),
    change("Z", " "),
    change("Z", "z", retention="interest"),
    change("Z", "z", retention="limits"),
    api("STREAM.UPDATE.Z", {"name": "Z"}),
    api("STREAM.UPDATE.Z", {"name": "Q"}),
    api("STREAM.UPDATE.Q", {"name": "Q"}),
    api("STREAM.UPDATE.Z"),
    api("STREAM.UPDATE.Z", b"{"),
    *[
        change("Z", "z", **changes)
        for changes in (
            {"persist_mode": "async"},
            {"allow_direct": True},
            {"mirror_direct": True},
            {"placement": {"cluster": "q"}},
            {"description": "d"},
            {"num_replicas": 2},
            {"num_replicas": 6},
            {"num_replicas": -6},
            {"bogus": 1},
        )
    ],
    make("R", "r", discard="new"),
    *[pub("r") for _ in range(4)],
    change("R", "r", discard="new", max_msgs=2),
    api("STREAM.INFO.R"),
    pub("r"),
    change("R", "r", max_msgs=2),
    api("STREAM.INFO.R"),
    pub("r"),
    api("STREAM.INFO.R"),
]

PAGING = [
    *[make(f"S{n:02}", f"p.{n}.>") for n in range(12)],
    *[api("STREAM.NAMES", body) for body in (b"", {"offset": 5}, {"offset": -4}, {"subject": "p.*.x"})],
    *[api("STREAM.LIST", body) for body in ({"offset": 10}, {"offset": 50}, {"subject": "p.1.>"})],
    api("STREAM.NAMES", {"offsets": 3}),
    *[pub(f"p.1.{n % 5}.{n % 3}") for n in range(20)],
    pub("p.2.a"),
    pub("p.2.b"),
    pub("p.2.a"),
    *[
        api("STREAM.INFO.S01", body)
        for body in (
            {"subjects_filter": ">"},
            {"subjects_filter": "p.1.*.1"},
            {"subjects_filter": "p.1.1.>", "offset": 1},
            {"subjects_filter": ">", "offset": 99},
            {"subjects_filter": ">", "offset": -9},
            {"subjects_filter": "nope"},
            {"subjects_filter": "a..b"},
            {"subjects_filter": "p.1.0.0"},
            {"deleted_details": True},
            {"offset": 4},
            {"bogus": 1},
        )
    ],
    *[api("STREAM.MSG.DELETE.S01", {"seq": seq}) for seq in (3, 1, 20, -1)],
    api("STREAM.INFO.S01", {"deleted_details": True, "subjects_filter": "p.1.2.>"}),
    *[api(f"STREAM.{verb}.NO") for verb in ("DELETE", "INFO", "PURGE")],
    *[
        api("STREAM.PURGE.S01", body)
        for body in (
            {"filter": "p.1.0.*", "keep": 2},
            {"filter": "p.1.1.1", "seq": 10},
            {"seq": 5, "keep": 1},
            {"keep": 99},
            {"keep": 8},
            {"filter": "p.2.>"},
            {"filter": "a..b"},
            {"seq": 1},
            {"seq": 8},
            {"filter": ">", "keep": 3},
            {"filter": "p.1.>", "seq": 21},
            {"filters": "x"},
            {"seq": -1},
            {},
        )
    ],
    api("STREAM.INFO.S01"),
    api("STREAM.PURGE.S02", {"seq": 100}),
    api("STREAM.INFO.S02"),
    *[pub("p.2.z") for _ in range(3)],
    api("STREAM.PURGE.S02", {"seq": 101, "filter": "p.2.>"}),
    api("STREAM.PURGE.S02", {"keep": 1, "filter": "p.2.z"}),
    api("STREAM.INFO.S02", {"deleted_details": True}),
]

READING = [
    make("A", "a.>", allow_direct=True),
    *[pub(f"a.{n % 3}.{n % 2}", b"m%d" % n) for n in range(10)],
    pub("a.h", b"", X="y"),
    api("STREAM.MSG.DELETE.A", {"seq": 4}),
    *[
        api("STREAM.MSG.GET.A", body)
        for body in (
            {"seq": 4},
            {"seq": 0},
            {"seq": -1},
            {"seq": 5, "next_by_subj": "a.*.1"},
            {"seq": 4, "next_by_subj": ">"},
            {"next_by_subj": "a.1.1", "start_time": PAST},
            {"start_time": FUTURE, "next_by_subj": ">"},
            {"start_time": "x"},
            {"last_by_subj": "a.0.*"},
            {"last_by_subj": "a..x"},
            {"next_by_subj": "zz"},
            {"last_by_subj": "a.h", "no_hdr": True},
            {"last_by_subj": "a.h"},
            {"seq": 1, "start_time": PAST},
            {"last_by_subj": "a", "next_by_subj": "a"},
            {"multi_last": ["a.>"]},
            {"batch": 1},
            {"max_bytes": 1, "seq": 1},
            {"up_to_seq": 3, "seq": 1},
        )
    ],
    *[
        api("DIRECT.GET.A", body)
        for body in (
            {"seq": 4},
            {"next_by_subj": "a.*.1", "seq": 5},
            {"next_by_subj": "a.1.1", "start_time": PAST},
            {"start_time": FUTURE},
            {"start_time": "x"},
            {"last_by_subj": "a.>"},
            {"last_by_subj": "a.h", "next_by_subj": "a"},
            {"next_by_subj": "a", "multi_last": ["a"]},
            {"multi_last": ["a.>"], "up_to_seq": 5, "up_to_time": FUTURE},
            {"seq": 2**63},
            {"batch": 2, "seq": 3},
            {"batch": 3, "seq": 9},
            {"batch": 4, "seq": 1, "next_by_subj": "a.0.>"},
            {"batch": 2, "next_by_subj": "zz", "seq": 1},
            {"batch": 100, "seq": 1, "max_bytes": 30},
            {"batch": 5, "start_time": PAST, "next_by_subj": "a.2.*"},
            {"batch": 3, "start_time": FUTURE},
            {"batch": 2, "last_by_subj": "a.h"},
            {"multi_last": ["a.0.*", "a.>"]},
            {"multi_last": ["a.>"], "up_to_seq": 4},
            {"multi_last": ["a.>"], "up_to_time": FUTURE},
            {"multi_last": ["a.>"], "up_to_time": PAST},
            {"multi_last": ["a.>"], "seq": 6, "batch": 2},
            {"multi_last": ["a.>"], "max_bytes": 40},
            {"multi_last": ["a.>"], "no_hdr": True},
            {"multi_last": [""]},
            {"multi_last": ["a.>"], "start_time": PAST},
            {"up_to_seq": 5, "seq": 1},
            {"up_to_seq": 3, "batch": 9, "seq": 1},
        )
    ],
    api("DIRECT.GET.A.a.*.0"),
    api("DIRECT.GET.A.a.h", {"max_bytes": 1}),
    api("DIRECT.GET.A.a.h", {"start_time": PAST}),
    change("A", "a.>"),
    api("DIRECT.GET.A", {"seq": 1}),
    make("B", "b.*", allow_direct=True),
    *[pub(f"b.{n}", b"") for n in range(1026)],
    api("DIRECT.GET.B", {"multi_last": ["b.*"]}),
    api("DIRECT.GET.B", {"multi_last": ["b.*"], "batch": 3}),
    api("STREAM.PURGE.B", {"keep": 1024}),
    api("DIRECT.GET.B", {"multi_last": ["b.*"], "batch": 2}),
]


@pytest.mark.feature(
    "stream.api",
    "stream.max-consumers",
    "stream.subjects",
    "stream.replicas",
    "stream.duplicate-window",
    "stream.deny-delete-purge",
    "stream.purge",
    "stream.message-get-delete",
    "stream.direct-get",
    "stream.direct-get-batch",
    "stream.first-seq",
    "stream.sealed",
    "stream.placement",
    "stream.metadata",
)
@pytest.mark.parametrize("name", ["CONFIGURING", "UPDATING", "PAGING", "READING"])
async def test_both_servers_give_the_same_answers(urls: dict[str, str], name: str) -> None:
    await answer_the_same(urls, globals()[name])


ANNOUNCED = [
    make("A", "a.>"),
    make("A", max_msgs=5),
    change("A", "a.>", max_msgs=9),
    change("Q"),
    pub("a.x"),
    api("STREAM.INFO.A"),
    api("STREAM.NAMES"),
    api("STREAM.LIST"),
    api("INFO"),
    api("STREAM.INFO.NO"),
    api("STREAM.MSG.GET.A", {"seq": 1}),
    api("STREAM.MSG.GET.A", {"seq": 9}),
    consumer("A", "c", durable_name="c"),
    api("CONSUMER.INFO.A.c"),
    api("CONSUMER.NAMES.A"),
    api("CONSUMER.LIST.A"),
    api("CONSUMER.INFO.A.zz"),
    consumer("A", "c", durable_name="c", max_deliver=5),
    api("CONSUMER.DELETE.A.c"),
    api("STREAM.MSG.DELETE.A", {"seq": 1}),
    api("STREAM.MSG.DELETE.A", {"seq": 1}),
    api("STREAM.PURGE.A"),
    api("STREAM.DELETE.A"),
    api("STREAM.DELETE.A"),
    api("STREAM.CREATE.A", b"{"),
]


@pytest.mark.feature("stream.api", "consumer.api")
async def test_both_servers_announce_the_same(urls: dict[str, str]) -> None:
    """Advisories about streams, consumers and requests: subjects, types and fields."""

    async def heard_from(url: str) -> list[str]:
        listener = await nats.connect(url, allow_reconnect=False)
        subscription = await listener.subscribe("$JS.EVENT.ADVISORY.>")
        await listener.flush()
        heard: list[str] = []
        for step in ANNOUNCED:
            await play_one(url, step)
        while True:
            try:
                message = await subscription.next_msg(timeout=0.3)
            except nats.errors.TimeoutError:
                break
            body = json.loads(message.data)
            heard.append(f"{message.subject} {described(body)}")
        await listener.close()
        return sorted(heard)

    official, ours = await asyncio.gather(*(heard_from(url) for url in urls.values()))
    assert ours == official
    assert len(ours) > 25


async def play_one(url: str, step: Step) -> None:
    client = await nats.connect(url, allow_reconnect=False)
    payload = step[1] if isinstance(step[1], bytes) else json.dumps(step[1]).encode()
    await client.request(step[0], payload, timeout=5)
    await client.close()


def described(body: dict[str, Any]) -> str:
    """The type with its fields, and the values that do not depend on time and place."""
    client = body.get("client", {})
    fields = {name: body.get(name) for name in ("stream", "consumer", "action", "subject", "request")}
    return f"{body['type']} {sorted(set(body))} {sorted(set(client) - {'rtt'})} {fields}"
