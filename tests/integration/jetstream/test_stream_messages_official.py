"""What streams do with messages (transform, republish, count, schedule): both servers say the same."""

from __future__ import annotations

import asyncio
import json
import re
from base64 import b64decode
from pathlib import Path
from typing import Any

import nats
import pytest

from tests.support.nats_servers import KINDS, running_server, until
from tests.support.same_answers import SECOND, Step, answer_the_same, api, change, make, play, pub

pytestmark = pytest.mark.official


def transform(src: str, dest: str) -> dict[str, Any]:
    return {"subject_transform": {"src": src, "dest": dest}}


def republish(src: str, dest: str, **more: Any) -> dict[str, Any]:
    return {"republish": {"src": src, "dest": dest, **more}}


def last(stream: str, subject: str) -> Step:
    return api(f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject})


TRANSFORM = [
    make("A", "a.>", **transform("a..x", "b")),
    make("A", "a.>", **transform("a.*", "b.{{wildcard(3)}}")),
    make("A", "a.>", **transform("a.*", "b.{{nope(1)}}")),
    make("A", "a.>", **transform("a.>", "b")),
    make("A", "a.>", **transform("a.*", "b.*")),
    make("A", "a.>", **transform("", "")),
    change("A", "a.>", **transform("a.*.*", "b.$2.$1")),
    pub("a.1.2"),
    pub("a.1"),
    pub("a.3.4", Nats_Msg_Id="x"),
    pub("a.3.4", Nats_Msg_Id="x"),
    pub("a.1.2", Nats_Expected_Last_Subject_Sequence="1"),
    pub("a.1.2", Nats_Expected_Last_Subject_Sequence="1"),
    pub(
        "a.1.2", Nats_Expected_Last_Subject_Sequence="1", Nats_Expected_Last_Subject_Sequence_Subject="b.*.3"
    ),
    pub(
        "a.1.2", Nats_Expected_Last_Subject_Sequence="0", Nats_Expected_Last_Subject_Sequence_Subject="a.1.2"
    ),
    api("STREAM.INFO.A", {"subjects_filter": ">"}),
    last("A", "b.2.1"),
    change("A", "a.>", **transform("a.>", "{{partition(7)}}.x.>")),
    pub("a.1.2"),
    change("A", "a.>"),
    pub("a.1.2"),
    change("A", "a.>", max_msgs_per_subject=1, **transform(">", "one.>")),
    pub("a.1.2"),
    pub("a.1.2"),
    api("STREAM.INFO.A", {"subjects_filter": ">"}),
    api("STREAM.PURGE.A", {"filter": "one.>"}),
    api("STREAM.INFO.A", {"subjects_filter": ">"}),
    make("L", "l.>", **transform("l.*", "m.{{left(1,2)}}.{{split(1,-)}}")),
    pub("l.ab-cd"),
    api("STREAM.INFO.L", {"subjects_filter": ">"}),
]

REPUBLISH = [
    make("E", "e.>", **republish("", "")),
    make("R", "r.>", **republish("r.*", "x.{{wildcard(2)}}")),
    make("R", "r.>", **republish("r.>", "r.copy.>")),
    make("R", "r.>", **republish(">", ">")),
    make("R", "r.>", **republish("r.*", "x.>")),
    make("R", "r.>", **republish("", "copy.>"), pedantic=True),
    make("R", "r.>", **republish("", "copy.>")),
    make("I", "i.>", **transform("i.>", "j.>"), **republish(">", ">"), pedantic=True),
    make("I", "i.>", **transform("i.>", "j.>"), **republish(">", ">")),
    change("R", "r.>", **republish("r.*", "$X.{{wildcard(1)}}", headers_only=True)),
    change("R", "r.>"),
]

COUNTERS = [
    make("C", "c.>", allow_msg_counter=True, discard="new"),
    make("C", "c.>", allow_msg_counter=True, allow_msg_ttl=True),
    make("C", "c.>", allow_msg_counter=True, allow_msg_schedules=True),
    make("C", "c.>", allow_msg_counter=True, retention="workqueue"),
    make("C", "c.>", allow_msg_counter=True),
    change("C", "c.>"),
    pub("c.1", b"", Nats_Incr="1"),
    pub("c.1", b"", Nats_Incr="+41"),
    pub("c.1", b"", Nats_Incr="-100"),
    pub("c.1", b"", Nats_Incr="0"),
    pub("c.2", b"", Nats_Incr="9" * 5000),
    pub("c.2", b"", Nats_Incr="1"),
    pub("c.2", b"", Nats_Incr="-" + "9" * 5000, X="y"),
    last("C", "c.2"),
    pub("c.1", b"x", Nats_Incr="1"),
    pub("c.1", b""),
    pub("c.1", b"", X="y"),
    *[pub("c.1", b"", Nats_Incr=value) for value in ("", "x", "1.5", "0x1", "+", "1_000", "--1")],
    *[
        pub("c.1", b"", Nats_Incr="1", **{name: value})
        for name, value in (
            ("Nats_Rollup", "sub"),
            ("Nats_Expected_Stream", "C"),
            ("Nats_Expected_Last_Msg_Id", "x"),
            ("Nats_Expected_Last_Sequence", "1"),
            ("Nats_Expected_Last_Subject_Sequence", "1"),
            ("Nats_Expected_Last_Subject_Sequence_Subject", "c.1"),
            ("Nats_TTL", "5"),
        )
    ],
    pub("c.3", b"", Nats_Incr="2", Nats_Msg_Id="i"),
    pub("c.3", b"", Nats_Incr="2", Nats_Msg_Id="i"),
    pub("c.3", b"", Nats_Incr="2", Nats_Counter_Sources='{"S":{"c.3":"1"}}'),
    pub("c.3", b"", Nats_Incr="3"),
    last("C", "c.3"),
    change("C", "c.>", allow_msg_counter=True, max_msg_size=30),
    pub("c.3", b"", Nats_Incr="5"),
    pub("c.4", b"", Nats_Incr="5"),
    change("C", "c.>", allow_msg_counter=True, **transform("c.*", "d.$1")),
    pub("c.1", b"", Nats_Incr="7"),
    pub("c.1", b"", Nats_Incr="7"),
    api("STREAM.INFO.C", {"subjects_filter": ">"}),
    make("N", "n.>"),
    pub("n.1", b"", Nats_Incr="x"),
    pub("n.1", b"", Nats_Incr="1"),
]


def schedule(subject: str, pattern: str, target: str = "s.target", **more: str) -> Step:
    return pub(subject, Nats_Schedule=pattern, Nats_Schedule_Target=target, **more)


FAR = "@at 2099-01-01T00:00:00Z"

SCHEDULES = [
    make("S", "s.>", allow_msg_schedules=True, discard="new"),
    make("S", "s.>", allow_msg_schedules=True, pedantic=True),
    make("S", "s.>", allow_msg_schedules=True, deny_purge=True),
    change("S", "s.>"),
    change("S", "s.>", allow_msg_schedules=True),
    *[
        schedule(f"s.p{n}", pattern)
        for n, pattern in enumerate(
            (
                *("", "x", "@at", "@at tomorrow", FAR, "@at 2099-01-01T00:00:00.123+02:00", "@at 2099-01-01"),
                *("@every 1h", "@every 999ms", "@every 1", "@every -1h", "@every 1h30m"),
                *(
                    "@yearly",
                    "@annually",
                    "@monthly",
                    "@weekly",
                    "@daily",
                    "@midnight",
                    "@hourly",
                    "@hourly ",
                ),
                *("* * * * *", "0 0 0 1 1 *", "0 0 0 31 2 *", "0 0 0 1-5 JAN mon-fri", "60 0 0 1 1 *"),
                *("0 0 0 1 1 7", "0 0 0 1 13 *", "0 0 0 0 1 *", "0 5/10 0 1 1 ?", "0 */0 0 1 1 *"),
                *("0 5-1 0 1 1 *", "0 1-2-3 0 1 1 *", "0 1/2/3 0 1 1 *", "0 , 0 1 1 *", "0 +5 0 1 1 *"),
                *("0 0 0 1 foo *", "0 1,2,3 0 1 1 *", "0 *-9 0 1 1 *", "0 -1 0 1 1 *", "@every 1h 1m"),
            )
        )
    ],
    *[
        schedule(f"s.z{n}", pattern, Nats_Schedule_Time_Zone=zone)
        for n, (pattern, zone) in enumerate(
            (
                *(("0 0 0 1 1 *", zone) for zone in ("Europe/Berlin", "UTC", "", "Mars/Olympus", "../x")),
                ("@hourly", "Asia/Kolkata"),
                ("@every 1h", "UTC"),
                (FAR, "UTC"),
            )
        )
    ],
    pub("s.x", Nats_Schedule_Time_Zone="Mars/Olympus"),
    *[
        schedule("s.t", FAR, target)
        for target in ("s.t", "other", "s.*", "s.>", "s..x", "", "s.ok", "s.with.more")
    ],
    *[schedule("s.t", FAR, Nats_Schedule_Source=x) for x in ("s.t", "s.target", "s.*", "other", "", "s.src")],
    *[schedule("s.t", FAR, Nats_Schedule_TTL=value) for value in ("5", "0", "x", "")],
    *[schedule("s.t", FAR, Nats_Schedule_Rollup=value) for value in ("sub", "all", "SUB", "")],
    *[schedule("s.t", FAR, Nats_Rollup=value) for value in ("sub", "all", "SUB", "zz")],
    schedule("s.t", FAR, Nats_TTL="5"),
    last("S", "s.t"),
    api("STREAM.INFO.S"),
    *[
        pub("s.c", Nats_Scheduler=scheduler, Nats_Schedule_Next=following)
        for scheduler, following in (
            ("s.t", "2099-01-01T00:00:00Z"),
            ("", "purge"),
            ("s.*", "purge"),
            ("s.c", "purge"),
            ("s.t", ""),
            ("s.nothing", "purge"),
            ("s.c", "purge"),
            ("s.t", "purge"),
        )
    ],
    pub("s.d", Nats_Scheduler="s.c", Nats_Schedule_Next="purge"),
    pub("s.d", Nats_Schedule_Next="purge"),
    last("S", "s.t"),
    api("STREAM.PURGE.S"),
    schedule("s.a", FAR),
    pub("s.a"),
    schedule("s.a", FAR, Nats_Expected_Last_Subject_Sequence="1"),
    api("STREAM.PURGE.S"),
    schedule("s.a", FAR, Nats_Msg_Id="i"),
    schedule("s.a", FAR, Nats_Msg_Id="i"),
    make("N", "n.>"),
    schedule("n.1", FAR, "n.2"),
    schedule("n.1", "nonsense", "n.2"),
    pub("n.1", Nats_Schedule_Target="n.2"),
]


ROLLUP = [
    make("N", "n.>"),
    *[pub("n.1", Nats_Rollup=value) for value in ("sub", "all", "zz", "")],
    make("D", "d.>", allow_rollup_hdrs=True, deny_purge=True),
    make("R", "r.>", allow_rollup_hdrs=True),
    *[pub(f"r.{n % 3}", b"%d" % n) for n in range(9)],
    *[pub("r.1", Nats_Rollup=value) for value in ("SUB", "zz", "sub ", "")],
    api("STREAM.INFO.R", {"subjects_filter": ">", "deleted_details": True}),
    pub("r.2", Nats_Rollup="sub", Nats_Msg_Id="a"),
    pub("r.2", Nats_Rollup="all", Nats_Msg_Id="a"),
    api("STREAM.INFO.R", {"subjects_filter": ">"}),
    pub("r.9", Nats_Rollup="All", Nats_Expected_Last_Sequence="1"),
    pub("r.9", Nats_Rollup="All"),
    api("STREAM.INFO.R", {"subjects_filter": ">", "deleted_details": True}),
    change("R", "r.>", allow_rollup_hdrs=True, **transform("r.*", "one")),
    pub("r.1", Nats_Rollup="sub"),
    pub("r.2", Nats_Rollup="sub"),
    api("STREAM.INFO.R", {"subjects_filter": ">"}),
]

TTLS = [
    make("N", "n.>"),
    *[pub("n.1", Nats_TTL=value) for value in ("5", "x", "0", "never", "")],
    make("M", "m.>", subject_delete_marker_ttl=-1),
    make("M", "m.>", subject_delete_marker_ttl=SECOND // 2),
    make("M", "m.>", subject_delete_marker_ttl=SECOND, pedantic=True),
    make("M", "m.>", subject_delete_marker_ttl=SECOND, pedantic=True, allow_msg_ttl=True),
    make("M", "m.>", subject_delete_marker_ttl=10 * SECOND),
    change("M", "m.>"),
    change("M", "m.>", allow_msg_ttl=True),
    change("M", "m.>", subject_delete_marker_ttl=10 * SECOND),
    *[
        pub(f"m.{n}", Nats_TTL=value)
        for n, value in enumerate(("1", "9", "10", "11", "1s", "2m", "1h30m", "never", "NEVER", "1500ms"))
    ],
    *[pub("m.x", Nats_TTL=value) for value in ("0", "-1", "999ms", "x", "1.5", "+1", "1d", "s")],
    *[last("M", f"m.{n}") for n in range(10)],
    change("M", "m.>", subject_delete_marker_ttl=10 * SECOND, max_msgs_per_subject=1),
    pub("m.1", Nats_TTL="1"),
    last("M", "m.1"),
]

PERSISTING = [
    make("P", "p.>", persist_mode="async", storage="memory"),
    make("P", "p.>", persist_mode="async", allow_atomic=True),
    make("P", "p.>", persist_mode="nonsense"),
    make("P", "p.>", persist_mode="async"),
    make("Q", "q.>", persist_mode="default"),
    change("P", "p.>"),
    change("Q", "q.>", persist_mode="async"),
    change("P", "p.>", persist_mode="async", description="x"),
    *[pub(f"p.{n}", Nats_Msg_Id=str(n % 2)) for n in range(3)],
    api("STREAM.INFO.P"),
]


@pytest.mark.feature(
    "stream.subject-transform",
    "stream.republish",
    "stream.rollup",
    "stream.message-ttl",
    "stream.persist-mode",
    "stream.counters",
    "stream.schedules",
)
@pytest.mark.parametrize(
    "name", ["TRANSFORM", "REPUBLISH", "COUNTERS", "SCHEDULES", "ROLLUP", "TTLS", "PERSISTING"]
)
async def test_both_servers_give_the_same_answers(urls: dict[str, str], name: str) -> None:
    await answer_the_same(urls, globals()[name])


Heard = tuple[str, dict[str, str], bytes]


async def hear(url: str, listen: str, steps: list[Step], count: int) -> list[Heard]:
    """`count` messages on subjects, after the steps were made; times are left out."""
    nc = await nats.connect(url, max_reconnect_attempts=0)
    try:
        subscription = await nc.subscribe(listen)
        await nc.flush()
        await play(url, steps)
        heard = []
        for _ in range(count):
            message = await subscription.next_msg(timeout=5)
            headers = dict(message.headers or {})
            if "Nats-Time-Stamp" in headers:
                headers["Nats-Time-Stamp"] = headers["Nats-Time-Stamp"][-1]
            heard.append((message.subject, headers, message.data))
        await nc.flush()
        assert subscription.pending_msgs == 0
        return heard
    finally:
        await nc.close()


@pytest.mark.feature("stream.republish")
@pytest.mark.parametrize("headers_only", [False, True])
@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_stored_is_published_again_and_duplicates_are_not(
    kind: str, headers_only: bool, tmp_path: Path
) -> None:
    steps = [
        make("R", "r.>", **republish("r.*", "copy.{{wildcard(1)}}", headers_only=headers_only)),
        pub("r.1", b"one"),
        pub("r.2", b"two", A="b"),
        pub("r.x.y", b"not matched"),
        pub("r.1", b"three", Nats_Msg_Id="i"),
        pub("r.1", b"three", Nats_Msg_Id="i"),
        pub("r.1", b"refused", Nats_Expected_Last_Sequence="99"),
        pub("r.1", b""),
    ]
    with running_server(kind, tmp_path) as server:
        heard = await hear(server.url, "copy.>", steps, 4)

    def expected(subject: str, seq: int, previous: int, body: bytes, **more: str) -> Heard:
        size = {"Nats-Msg-Size": str(len(body))} if headers_only else {}
        return (
            "copy." + subject[2:],
            {name.replace("_", "-"): value for name, value in more.items()}
            | {
                "Nats-Stream": "R",
                "Nats-Subject": subject,
                "Nats-Sequence": str(seq),
                "Nats-Time-Stamp": "Z",
                "Nats-Last-Sequence": str(previous),
            }
            | size,
            b"" if headers_only else body,
        )

    assert heard == [
        expected("r.1", 1, 0, b"one"),
        expected("r.2", 2, 0, b"two", A="b"),
        expected("r.1", 4, 1, b"three", Nats_Msg_Id="i"),
        expected("r.1", 5, 4, b""),
    ]


@pytest.mark.feature("stream.republish")
@pytest.mark.parametrize("kind", KINDS)
async def test_a_republished_message_leaves_before_its_ack(kind: str, tmp_path: Path) -> None:
    with running_server(kind, tmp_path) as server:
        await play(server.url, [make("R", "r", **republish("r", "copy"))])
        nc = await nats.connect(server.url)
        order: list[str] = []

        async def note(message: Any) -> None:
            order.append(message.subject)

        # One wildcard subscription: what a connection hears of one subscription keeps its order.
        await nc.subscribe("*", cb=note)
        for n in range(3):
            await nc.publish("r", b"%d" % n, reply="ack")
        await nc.flush()
        async with asyncio.timeout(5):
            while len(order) < 6 + 3:  # the publishes themselves are heard, too
                await asyncio.sleep(0.005)
        await nc.close()
    for n, at in enumerate([i for i, name in enumerate(order) if name == "ack"], start=1):
        assert order[:at].count("copy") >= n
    assert order.count("copy") == 3


@pytest.mark.parametrize("kind", KINDS)
async def test_counters_say_their_value_and_survive_a_restart(kind: str, tmp_path: Path) -> None:
    """counters"""
    steps = [make("C", "c.>", allow_msg_counter=True), pub("c.1", b"", Nats_Incr="5"), last("C", "c.1")]
    with running_server(kind, tmp_path) as server:
        _, ack, stored = await play(server.url, steps)
        assert ack[0][1] == {"stream": "C", "seq": 1, "val": "5"}
        assert json.loads(b64decode(stored[0][1]["message"]["data"])) == {"val": "5"}
        server.stop()
        server.start()
        nc = await nats.connect(server.url)
        answer = await nc.request("c.1", b"", headers={"Nats-Incr": "-7"}, timeout=5)
        assert json.loads(answer.data) == {"stream": "C", "seq": 2, "val": "-2"}
        await nc.close()


TIMES = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")


async def produced(url: str, steps: list[Step], subjects: list[str]) -> list[Any]:
    """The first message on each subject after the steps, and what the stream then holds; times left out."""
    nc = await nats.connect(url, max_reconnect_attempts=0)
    try:
        heard: dict[str, Any] = {}
        subscription = await nc.subscribe("copy.>")
        await nc.flush()
        answers = await play(url, steps)
        for (_, answer), *_ in answers:
            assert "error" not in answer, answer
        while set(heard) < set(subjects):
            message = await subscription.next_msg(timeout=10)
            subject = message.subject.removeprefix("copy.")
            if subject in subjects and subject not in heard:
                headers = {name: TIMES.sub(r"time\2", text) for name, text in message.headers.items()}
                for name in ("Nats-Sequence", "Nats-Last-Sequence"):
                    del headers[name]
                heard[subject] = (headers, message.data)
        answer = await nc.request(
            "$JS.API.STREAM.INFO.S", json.dumps({"subjects_filter": ">"}).encode(), timeout=5
        )
        held = json.loads(answer.data)["state"]["subjects"]
        return [heard, {subject for subject in held if not subject.startswith("t.")}]
    finally:
        await nc.close()


def making(subject: str, body: bytes, pattern: str, target: str, **more: str) -> Step:
    return pub(subject, body, Nats_Schedule=pattern, Nats_Schedule_Target=target, **more)


PRODUCING = [
    make("S", "s.>", "t.>", allow_msg_schedules=True, allow_msg_ttl=True, **republish("t.>", "copy.t.>")),
    pub("t.source", b"sampled", Nats_Msg_Id="1", Own="kept", Nats_TTL="100"),
    making("s.now", b"now", "@at 2020-01-01T00:00:00Z", "t.now", A="b"),
    making("s.every", b"x", "@every 1s", "t.every", Nats_Schedule_TTL="1m", Nats_Schedule_Rollup="sub"),
    making("s.cron", b"cron", "* * * * * *", "t.cron", Nats_Schedule_Time_Zone="Asia/Kolkata"),
    making("s.copy", b"own", "@every 1s", "t.copy", Nats_Schedule_Source="t.source"),
    making("s.none", b"own", "@every 1s", "t.none", Nats_Schedule_Source="t.zz"),
    making("s.dead", b"dead", "@at 2099-01-01T00:00:00Z", "t.dead"),
    pub("t.any", b"", Nats_Scheduler="s.dead", Nats_Schedule_Next="purge"),
]


async def test_schedules_produce_the_same_messages(urls: dict[str, str]) -> None:
    """schedules"""
    subjects = ["t.now", "t.every", "t.cron", "t.copy", "t.none"]
    official, ours = await asyncio.gather(
        *(produced(urls[kind], PRODUCING, subjects) for kind in ("official", "penstock"))
    )
    for subject in subjects:
        assert ours[0][subject] == official[0][subject], subject
    assert ours[1] == official[1] == {"s.every", "s.cron", "s.copy", "s.none"}


@pytest.mark.parametrize("kind", KINDS)
async def test_schedules_survive_a_restart(kind: str, tmp_path: Path) -> None:
    """schedules"""
    steps = [
        make("S", "s.>", "t.>", allow_msg_schedules=True),
        schedule("s.1", "@every 1s", "t.1"),
        schedule("s.2", "@at 2099-01-01T00:00:00Z", "t.2"),
    ]
    with running_server(kind, tmp_path) as server:
        await play(server.url, steps)
        server.stop()
        server.start()
        nc = await nats.connect(server.url, max_reconnect_attempts=0)
        js = nc.jetstream()

        async def is_produced() -> bool:
            state = (await js.stream_info("S", subjects_filter=">")).state
            return "t.1" in (state.subjects or {})

        await until(is_produced)
        state = (await js.stream_info("S", subjects_filter=">")).state
        assert {"s.1", "s.2", "t.1"} == set(state.subjects or {})
        await nc.close()


async def messages_of(nc: Any, stream: str, subject: str) -> list[Any]:
    """Every message of a subject, times left out: (headers, data)."""
    found: list[Any] = []
    seq = 1
    while True:
        body = json.dumps({"seq": seq, "next_by_subj": subject}).encode()
        answer = json.loads((await nc.request(f"$JS.API.STREAM.MSG.GET.{stream}", body, timeout=5)).data)
        if "error" in answer:
            return found
        message = answer["message"]
        found.append((b64decode(message.get("hdrs", "")), b64decode(message.get("data", ""))))
        seq = message["seq"] + 1


@pytest.mark.feature("stream.message-ttl")
@pytest.mark.parametrize("kind", KINDS)
async def test_what_expires_leaves_a_marker_unless_it_is_one(kind: str, tmp_path: Path) -> None:
    """By its own TTL or by age; TTLs go on counting over a restart."""
    steps = [
        make("T", "t.>", subject_delete_marker_ttl=100 * SECOND, max_msgs_per_subject=1),
        pub("t.gone", b"x", Nats_TTL="1"),
        pub("t.removed", b"", Nats_TTL="1", Nats_Marker_Reason="Remove"),
        pub("t.purged", b"", Nats_TTL="1", KV_Operation="PURGE"),
        pub("t.kept", b"x", Nats_TTL="never"),
        pub("t.later", b"x", Nats_TTL="1h"),
    ]
    with running_server(kind, tmp_path) as server:
        await play(server.url, steps)
        server.stop()
        server.start()
        nc = await nats.connect(server.url, max_reconnect_attempts=0)

        async def is_over() -> bool:
            return not await messages_of(nc, "T", "t.purged") and bool(await messages_of(nc, "T", "t.gone"))

        await until(is_over)
        marker = b"NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\nNats-TTL: 1m40s\r\nNats-Rollup: sub\r\n\r\n"

        async def has_marker() -> bool:
            return await messages_of(nc, "T", "t.gone") == [(marker, b"")]

        await until(has_marker)
        assert await messages_of(nc, "T", "t.removed") == []
        assert [data for _, data in await messages_of(nc, "T", "t.kept")] == [b"x"]
        assert [data for _, data in await messages_of(nc, "T", "t.later")] == [b"x"]
        await nc.close()


@pytest.mark.feature("stream.message-ttl")
@pytest.mark.parametrize("kind", KINDS)
async def test_max_age_leaves_markers_and_spares_what_never_expires(kind: str, tmp_path: Path) -> None:
    steps = [
        make("T", "t.>", subject_delete_marker_ttl=100 * SECOND, max_age=SECOND, duplicate_window=SECOND),
        pub("t.a", b"x"),
        pub("t.a", b"y"),
        pub("t.never", b"x", Nats_TTL="never"),
    ]
    with running_server(kind, tmp_path) as server:
        await play(server.url, steps)
        nc = await nats.connect(server.url, max_reconnect_attempts=0)

        async def is_over() -> bool:
            held = await messages_of(nc, "T", "t.a")
            return len(held) == 1 and b"Nats-Marker-Reason: MaxAge" in held[0][0]

        await until(is_over)
        assert [data for _, data in await messages_of(nc, "T", "t.never")] == [b"x"]
        await nc.close()
