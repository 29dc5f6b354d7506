"""Atomic batches message by message: both servers answer the same, and store the same."""

from __future__ import annotations

import json
from typing import Any

import nats
import pytest

from tests.support.same_answers import Step, api, change, make, play, pub

pytestmark = pytest.mark.official


def part(
    batch_id: str, seq: Any, commit: str = "", *, subject: str = "a.1", body: Any = b"x", **more: str
) -> Step:
    """A message of a batch; the places without one are left out."""
    header = {"Nats_Batch_Id": batch_id, "Nats_Batch_Sequence": str(seq), "Nats_Batch_Commit": commit, **more}
    return pub(subject, body, **{name: value for name, value in header.items() if value})


def atomic(*subjects: str, **settings: Any) -> Step:
    return make("A", *(subjects or ("a.>",)), allow_atomic=True, **settings)


def stored(upto: int) -> list[Step]:
    return [api("STREAM.INFO.A"), *(api("STREAM.MSG.GET.A", {"seq": seq}) for seq in range(1, upto + 1))]


LIFE = [
    atomic(),
    part("b", 1),
    part("b", 2, body=b"two"),
    part("b", 3, "1", body=b"three"),
    part("one", 1, "1"),
    part("c", 1),
    part("c", 2),
    part("c", 3, "eob", body=b"the end"),
    part("b", 1),
    pub("a.2", b"in between"),
    part("b", 2, "1", subject="a.3"),
    *stored(9),
]
REFUSED_BEFORE_THE_COMMIT = [
    atomic(max_msg_size=200),
    part("b" * 64, 1),
    part("b" * 65, 1),
    part("b", ""),
    part("b", "x"),
    part("b", 2),
    part("b", 1000),
    part("b", 1001),
    part("b", 1001, "eob"),
    part("b", 1002, "eob"),
    part("b", 1, "eob"),
    part("b", 1, "0"),
    part("b", 1, body=b"x" * 300),
    part("b", 1),
    part("b", 2, "2"),
    part("b", 2),
    part("b", 1),
    part("b", 3),
    part("b", 2),
    part("b", 1),
    part("b", 1),
    part("b", 2, "1"),
    part("b", 1, Nats_Required_Api_Level="2"),
    part("b", 2, Nats_Required_Api_Level="99"),
    part("b", 3),
    part("", 1),
    *stored(2),
    change("A", "a.>"),
    part("b", 1),
    part("b" * 65, 1),
    make("B", "b", allow_atomic=True, persist_mode="async"),
    make("C", "c", allow_atomic=True),
    part("b", 1, "1", subject="c"),
    api("STREAM.INFO.C"),
]


def refused(first: dict[str, str], second: dict[str, str], *, batch_id: str, body: Any = b"x") -> list[Step]:
    return [
        part(batch_id, 1, body=body, **first),
        part(batch_id, 2, "1", body=body, **second),
        api("STREAM.INFO.A"),
    ]


LAST, OF_SUBJECT = "Nats_Expected_Last_Sequence", "Nats_Expected_Last_Subject_Sequence"
OTHER = "Nats_Expected_Last_Subject_Sequence_Subject"
CHECKED_AT_THE_COMMIT = [
    atomic(allow_rollup_hdrs=True, max_msgs_per_subject=10),
    pub("a.1", Nats_Msg_Id="known"),
    pub("a.2"),
    *refused({LAST: "2", OF_SUBJECT: "1"}, {}, batch_id="1"),
    *refused({LAST: "2"}, {}, batch_id="2"),
    *refused({}, {LAST: "4"}, batch_id="3"),
    *refused({}, {LAST: "5"}, batch_id="4"),
    *refused({}, {OF_SUBJECT: "4"}, batch_id="5"),
    *refused({}, {OF_SUBJECT: "2", OTHER: "a.2"}, batch_id="6"),
    *refused({}, {OF_SUBJECT: "2", OTHER: "a.1"}, batch_id="7"),
    *refused({OF_SUBJECT: "2", OTHER: "a.2"}, {OF_SUBJECT: "9", OTHER: "a.2"}, batch_id="8"),
    *refused({}, {OTHER: "a.2"}, batch_id="9"),
    *refused({}, {"Nats_Expected_Last_Msg_Id": "known"}, batch_id="10"),
    *refused({"Nats_Msg_Id": "x"}, {"Nats_Msg_Id": "x"}, batch_id="11"),
    *refused({"Nats_Msg_Id": "x"}, {"Nats_Msg_Id": "known"}, batch_id="12"),
    *refused({"Nats_Msg_Id": "x"}, {"Nats_Msg_Id": "y"}, batch_id="13"),
    pub("a.1", Nats_Msg_Id="y"),
    *refused({}, {"Nats_Expected_Stream": "B"}, batch_id="14"),
    *refused({}, {"Nats_TTL": "5"}, batch_id="15"),
    *refused({}, {"Nats_TTL": "x"}, batch_id="16"),
    *refused({}, {"Nats_Incr": "5"}, batch_id="17"),
    *refused({}, {"Nats_Schedule": "@every 5s"}, batch_id="18"),
    *refused({}, {"Nats_Stream_Source": "B 1"}, batch_id="19"),
    *refused({}, {"Nats_Rollup": "sub"}, batch_id="20"),
    *refused({}, {"Nats_Rollup": "all"}, batch_id="21"),
    *refused({"Nats_Rollup": "nope"}, {}, batch_id="22"),
    *refused({"Nats_Rollup": "sub"}, {}, batch_id="23"),
    *refused({"Nats_Rollup": "all"}, {}, batch_id="24"),
    *stored(20),
]
COUNTERS = [
    atomic(allow_msg_counter=True),
    pub("a.1", b"", Nats_Incr="5"),
    part("b", 1, body=b"", Nats_Incr="1"),
    part("b", 2, body=b"", Nats_Incr="-3", subject="a.2"),
    part("b", 3, "1", body=b"", Nats_Incr="2"),
    part("c", 1, body=b"", Nats_Incr="x"),
    part("c", 2, "1", body=b""),
    part("d", 1, "1", body=b""),
    part("e", 1, "1", body=b"x", Nats_Incr="1"),
    *stored(5),
]
LIFETIMES_AND_SCHEDULES = [
    atomic(allow_msg_ttl=True, allow_msg_schedules=True),
    part("b", 1, Nats_TTL="60"),
    part("b", 2, Nats_Schedule="@at 2100-01-01T00:00:00Z", Nats_Schedule_Target="a.out", subject="a.2"),
    part("b", 3, "1", Nats_TTL="never", subject="a.3"),
    part("c", 1, Nats_TTL="0"),
    part("c", 2, "1"),
    part("d", 1, subject="a.plain"),
    part("d", 2, "1", Nats_Schedule_Next="purge", Nats_Scheduler="a.plain"),
    part("e", 1, Nats_Schedule="@at 2100-01-01T00:00:00Z", Nats_Schedule_Target="a.out", subject="a.4"),
    part("e", 2, "1", Nats_Schedule_Next="purge", Nats_Scheduler="a.4", subject="a.5"),
    *stored(6),
]
DISCARD_NEW = [
    atomic(discard="new", max_msgs=3),
    part("b", 1),
    part("b", 2),
    part("b", 3, "1"),
    part("c", 1, "1"),
    api("STREAM.INFO.A"),
    change(
        "A", "a.>", allow_atomic=True, discard="new", max_msgs_per_subject=2, discard_new_per_subject=True
    ),
    part("d", 1, subject="a.2"),
    part("d", 2, subject="a.2"),
    part("d", 3, "1", subject="a.2"),
    part("e", 1, subject="a.2"),
    part("e", 2, "1", subject="a.2"),
    *stored(6),
]
RENAMED = [
    atomic(subject_transform={"src": "a.*", "dest": "b.{{wildcard(1)}}"}),
    part("b", 1, Nats_Expected_Last_Subject_Sequence="0"),
    part(
        "b",
        2,
        "1",
        Nats_Expected_Last_Subject_Sequence="0",
        Nats_Expected_Last_Subject_Sequence_Subject="b.1",
    ),
    part("c", 1),
    part("c", 2, "1", subject="a.2"),
    *stored(3),
]


@pytest.mark.feature(
    "atomic.start",
    "atomic.allow-atomic",
    "atomic.id-length",
    "atomic.sequence",
    "atomic.append",
    "atomic.gaps",
    "atomic.commit",
    "atomic.commit-eob",
    "atomic.commit-value",
    "atomic.max-messages",
    "atomic.checks-at-commit",
    "atomic.expected-last-seq",
    "atomic.expected-subject-seq",
    "atomic.expected-msg-id",
    "atomic.deduplication",
    "atomic.api-level",
    "atomic.persist-mode",
    "atomic.level",
)
@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(steps, id=name)
        for name, steps in {
            "life": LIFE,
            "refused": REFUSED_BEFORE_THE_COMMIT,
            "checked": CHECKED_AT_THE_COMMIT,
            "counters": COUNTERS,
            "lifetimes": LIFETIMES_AND_SCHEDULES,
            "discard": DISCARD_NEW,
            "renamed": RENAMED,
        }.items()
    ],
)
async def test_both_servers_answer_the_same(urls: dict[str, str], steps: list[Step]) -> None:
    official, penstock = [await play(url, steps) for url in urls.values()]
    for step, one, other in zip(steps, official, penstock, strict=True):
        assert other == one, step


@pytest.mark.feature(
    "atomic.gaps", "atomic.max-messages", "atomic.inflight", "atomic.api-level", "atomic.advisory"
)
@pytest.mark.parametrize("case", ["incomplete", "unsupported", "large", "inflight"])
async def test_both_servers_tell_why_a_batch_was_abandoned(urls: dict[str, str], case: str) -> None:
    said = [await abandoned(url, case) for url in urls.values()]
    assert said[0] == said[1]


async def abandoned(url: str, case: str) -> list[Any]:
    await play(url, [atomic(storage="memory")])
    nc = await nats.connect(url)
    reported = await nc.subscribe("$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.A")
    steps = {
        "incomplete": [part("b", 1), part("b", 3)],
        "unsupported": [part("b", 1), part("b", 2, Nats_Required_Api_Level="99")],
        "large": [part("b", seq) for seq in range(1, 1002)],
        "inflight": [part(f"b{n}", 1) for n in range(51)] + [part("b7", 3)],
    }[case]
    answers = []
    for subject, body, header in steps:
        answers.append((await nc.request(subject, body, headers=header, timeout=5)).data)
    advisory = json.loads((await reported.next_msg(timeout=5)).data)
    await nc.close()
    last = json.loads(answers[-1]), [json.loads(answer) for answer in answers[-2:-1] if answer]
    assert all(answer == b"" for answer in answers[:-2])
    return [last, {name: advisory.get(name) for name in ("stream", "batch", "reason")}]
