"""The same requests to penstock and to the official server: the same answers.

What is compared is every field of every answer, but for times, versions, names of servers and the wording of
JSON errors. Left out is where we differ on purpose: an unknown API subject is answered (10003), a purge whose
body is no JSON is refused, a deleted sequence above the last is "not found", a publish that requires a higher
API level is refused.
"""

from __future__ import annotations

import pytest

from tests.support.same_answers import SECOND, answer_the_same, api, change, make, pub

pytestmark = [pytest.mark.official, pytest.mark.feature("stream.api")]

CREATING = [
    api("STREAM.CREATE.A", {"name": "A"}),
    api("STREAM.CREATE.A", {"name": "A"}),
    make("A", max_msgs=5),
    api("STREAM.CREATE.A"),
    api("STREAM.CREATE.A", b"{"),
    api("STREAM.CREATE.A", {"name": "A", "bogus": 1}),
    api("STREAM.CREATE.A", {"name": "B"}),
    make("B", "A"),
    make("B", "b.>", "b.*"),
    make("B", "b..x"),
    make("B", ">"),
    make("B", "*.x"),
    make("B", "$JS.API.>"),
    make("B", "$SYS.>"),
    make("B", num_replicas=3),
    make("B", num_replicas=7),
    make("B", num_replicas=-1),
    make("B", max_age=1000),
    make("B", max_age=SECOND, duplicate_window=2 * SECOND),
    make("B", duplicate_window=-1),
    make("B", max_msgs=-7, pedantic=True),
    make("B", storage="tape"),
    make("B", discard_new_per_subject=True),
    make("B", deny_purge=True, allow_rollup_hdrs=True),
    make("B", sealed=True),
    make("B", description="x" * 5000),
    make("B", subject_delete_marker_ttl=1000),
    make("B", subject_delete_marker_ttl=SECOND, pedantic=True),
    make("B", subject_delete_marker_ttl=SECOND, deny_purge=True),
    make("C", max_msgs=-7, max_bytes=-3, max_msg_size=-9, max_consumers=-4, max_msgs_per_subject=-4),
    make("D", max_age=SECOND, metadata={"k": "v", "_nats.x": "y"}, placement={"cluster": "c"}),
    make("E", first_seq=10, no_ack=True, allow_direct=True),
    api("STREAM.CREATE.a>", {"name": "a>"}),
    api("STREAM.CREATE.a/b", {"name": "a/b"}),
    api("STREAM.INFO.E"),
    api("STREAM.INFO.E", {"deleted_details": True, "subjects_filter": ">"}),
    api("STREAM.INFO.NOPE"),
    api("STREAM.NAMES", {"subject": "A"}),
    api("STREAM.NAMES", {"offset": 1}),
    api("STREAM.LIST", {"offset": 2}),
    api("STREAM.LIST", {"subject": "zzz"}),
    api("STREAM.INFO.E", Nats_Required_Api_Level="99"),
    api("STREAM.LEADER.STEPDOWN.A"),
    api("STREAM.PEER.REMOVE.A"),
    api("STREAM.DELETE.A", b"x"),
    api("STREAM.DELETE.A", {}),
    api("STREAM.DELETE.A"),
    api("INFO"),
]

CHANGING = [
    change("A"),
    make("A", "a.>", max_msgs=10),
    change("A", "a.>", storage="memory"),
    change("A", "a.>", num_replicas=3),
    change("A", "a.>", max_consumers=5, allow_msg_ttl=True),
    change("A", "a.>"),
    change("A", "a.>", deny_delete=True, deny_purge=True, allow_msg_ttl=True),
    change("A", "a.>", deny_purge=True, allow_msg_ttl=True),
    change("A", "a.>", deny_delete=True, allow_msg_ttl=True),
    change("A", "a.>", deny_delete=True, deny_purge=True, allow_msg_ttl=True, persist_mode="async"),
    change(
        "A", "a.>", deny_delete=True, deny_purge=True, allow_msg_ttl=True, sealed=True, max_age=10 * SECOND
    ),
    change("A", "a.>", deny_delete=True, deny_purge=True, allow_msg_ttl=True),
    change("A", "a.>", deny_delete=True, deny_purge=True, allow_msg_ttl=True, sealed=True, description="x"),
    api("STREAM.PURGE.A"),
    pub("a.x"),
    api("STREAM.MSG.DELETE.A", {"seq": 1}),
    make("B", "b.>"),
    make("C", "c.>"),
    change("B", "b.>", "c.x"),
    *[pub(f"b.{n % 2}", b"m%d" % n) for n in range(5)],
    api("STREAM.INFO.B", {"subjects_filter": ">"}),
    api("STREAM.INFO.B", {"subjects_filter": "b.0", "offset": 1}),
    *[
        api("STREAM.MSG.GET.B", body)
        for body in (
            {"seq": 1},
            {"seq": 100},
            {"last_by_subj": "b.1"},
            {"last_by_subj": "b.*"},
            {"next_by_subj": "b.1"},
            {"next_by_subj": "b.1", "seq": 3},
            {"seq": 3, "last_by_subj": "b.1"},
            {"batch": 3, "seq": 1},
            {},
            {"start_time": "2020-01-01T00:00:00Z"},
            {"start_time": "2120-01-01T00:00:00Z"},
            b"x",
        )
    ],
    api("STREAM.MSG.DELETE.B", {"seq": 2}),
    api("STREAM.MSG.DELETE.B", {"seq": 2}),
    api("STREAM.MSG.DELETE.B"),
    api("STREAM.MSG.DELETE.B", {"seq": 3, "no_erase": True}),
    api("STREAM.INFO.B", {"deleted_details": True}),
    api("STREAM.PURGE.B", {"filter": "b.1"}),
    api("STREAM.PURGE.B", {"seq": 3, "keep": 2}),
    api("STREAM.PURGE.B", {"keep": 1}),
    api("STREAM.PURGE.B", {"filter": "zz"}),
    api("STREAM.PURGE.B", {"seq": 20}),
    api("STREAM.INFO.B"),
    pub("b.1"),
    api("STREAM.PURGE.B"),
    api("STREAM.INFO.B"),
]

LIMITS = [
    make("D", "d.>", deny_delete=True, deny_purge=True, max_msg_size=10),
    pub("d.x", b"hello"),
    pub("d.x", b"hellohellox"),
    api("STREAM.PURGE.D"),
    api("STREAM.MSG.DELETE.D", {"seq": 1}),
    make("E", "e.>", discard="new", max_msgs=2, max_msgs_per_subject=1),
    *[pub(f"e.{n}") for n in (1, 2, 3, 1)],
    api("STREAM.INFO.E", {"subjects_filter": ">"}),
    make("F", "f.>", discard="new", max_bytes=70),
    *[pub(f"f.1{n}") for n in (1, 1, 2)],
    make("G", "g.>", discard="new", discard_new_per_subject=True, max_msgs_per_subject=2),
    *[pub(f"g.{n}") for n in (1, 1, 1, 2)],
    make("M", "m.>", max_bytes=1000),
    *[pub("m.1", b"x" * size) for size in (1100, 10, 1100, 10)],
    api("STREAM.INFO.M"),
    change("M", "m.>", max_msgs=1),
    api("STREAM.INFO.M"),
]

HEADERS = [
    make("A", "a.>"),
    pub("a.1", Nats_Msg_Id="1"),
    pub("a.1", Nats_Msg_Id="1"),
    pub("a.1", Nats_Expected_Stream="A"),
    pub("a.1", Nats_Expected_Stream="B"),
    *[pub("a.1", Nats_Expected_Last_Sequence=value) for value in ("2", "2", "abc", "", "-1")],
    *[pub("a.1", Nats_Expected_Last_Msg_Id=value) for value in ("zz", "1")],
    pub("a.1", Nats_Msg_Id="7"),
    pub("a.1", Nats_Expected_Last_Msg_Id="7"),
    pub("a.1", Nats_Expected_Last_Msg_Id="7"),
    *[pub("a.2", Nats_Expected_Last_Subject_Sequence=value) for value in ("0", "0", "abc")],
    *[
        pub(
            "a.3",
            Nats_Expected_Last_Subject_Sequence="5",
            Nats_Expected_Last_Subject_Sequence_Subject=subject,
        )
        for subject in ("a.2", "a.*", "zz", "a..b")
    ],
    pub("a.3", Nats_Expected_Last_Subject_Sequence_Subject="a.*"),
    *[pub("a.3", Nats_Rollup=value) for value in ("sub", "zz", "")],
    *[
        pub("a.3", **{name: "1"})
        for name in (
            "Nats_TTL",
            "Nats_Incr",
            "Nats_Batch_Id",
            "Nats_Batch_Sequence",
            "Nats_Batch_Commit",
            "Nats_Schedule",
            "Nats_Schedule_Target",
            "Nats_Schedule_TTL",
            "Nats_Stream_Source",
            "Nats_Scheduler",
            "Nats_Schedule_Next",
            "Nats_Marker_Reason",
            "nats_msg_id",
            "Nats_Trace_Dest",
        )
    ],
    api("STREAM.MSG.GET.A", {"last_by_subj": "a.3"}),
    make("B", "b.>", allow_rollup_hdrs=True),
    *[pub(f"b.{n % 2}") for n in range(6)],
    pub("b.1", Nats_Rollup="SUB"),
    api("STREAM.INFO.B", {"subjects_filter": ">", "deleted_details": True}),
    pub("b.1", Nats_Rollup="zz"),
    pub("b.1", Nats_Rollup="ALL"),
    pub("b.1", Nats_Rollup="sub", Nats_Expected_Last_Subject_Sequence="3"),
    api("STREAM.INFO.B", {"subjects_filter": ">", "deleted_details": True}),
    make("T", "t.>", allow_msg_ttl=True, allow_rollup_hdrs=True),
    *[
        pub(f"t.{n}", Nats_TTL=value)
        for n, value in enumerate(
            ("100", "0", "-1", "100s", "500ms", "never", "NEVER", "x", "1.5", "", "9999999999999999999", "+1")
        )
    ],
    change("T", "t.>", subject_delete_marker_ttl=500 * SECOND),
    pub("t.q", Nats_TTL="200", A="b"),
    api("STREAM.MSG.GET.T", {"last_by_subj": "t.q"}),
]

DIRECT = [
    make("C", "c.>", allow_direct=True),
    make("B", "b.>"),
    api("DIRECT.GET.C", {"seq": 1}),
    *[pub(f"c.{n % 2}", b"m%d" % n) for n in range(5)],
    pub("c.h", b"m5", X="y"),
    *[
        api("DIRECT.GET.C", body)
        for body in (
            {"seq": 1},
            {"seq": 6},
            {"seq": 6, "no_hdr": True},
            {"last_by_subj": "c.1"},
            {"next_by_subj": "c.1"},
            {"next_by_subj": "c.1", "seq": 3},
            {},
            b"",
            b"x",
            b"[]",
            {"seq": 1, "last_by_subj": "c.1"},
            {"start_time": "2020-01-01T00:00:00Z"},
            {"last_by_subj": "c.1", "batch": 2},
            {"last_by_subj": "c.zz"},
            {"seq": 99},
            {"batch": 3},
            {"bogus": 1},
            {"batch": 3, "seq": 1},
            {"batch": 9, "seq": 99},
            {"batch": 2, "seq": 1, "next_by_subj": "c.1"},
            {"batch": 10, "seq": 5},
            {"multi_last": ["c.*"]},
            {"multi_last": ["c.*"], "batch": 2},
            {"multi_last": ["c.*"], "up_to_seq": 2},
            {"multi_last": ["zz"]},
            {"batch": 10, "seq": 1, "max_bytes": 1},
            {"multi_last": ["c.1", "c.1", "c.h"], "seq": 5},
            {"batch": 3, "start_time": "2020-01-01T00:00:00Z"},
            {"max_bytes": 3},
            {"max_bytes": 3, "seq": 1},
        )
    ],
    api("DIRECT.GET.C.c.1"),
    api("DIRECT.GET.C.c.zz"),
    api("DIRECT.GET.C.c.*"),
    api("DIRECT.GET.C.c.1", {"seq": 1}),
    api("DIRECT.GET.C.c.1", {"no_hdr": True}),
    api("DIRECT.GET.C.c.1", b"x"),
    api("DIRECT.GET.B", {"seq": 1}),
    api("DIRECT.GET.NOPE", {"seq": 1}),
]


@pytest.mark.parametrize("name", ["CREATING", "CHANGING", "LIMITS", "HEADERS", "DIRECT"])
async def test_both_servers_give_the_same_answers(urls: dict[str, str], name: str) -> None:
    await answer_the_same(urls, globals()[name])
