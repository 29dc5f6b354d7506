"""Second instances of streams with batches, schedules, counters, roll-ups and origins."""

from __future__ import annotations

import contextlib
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.jetstream import commands
from penstock.jetstream.commands import decode
from penstock.jetstream.consumer.standby import NO_PIN
from penstock.kernels.ingest.storing import SettledRuns
from penstock.kernels.wire.dispatch import publish
from penstock.protocol.durations import format_time
from tests.support.examples import examples
from tests.unit.jetstream.test_commands import SECOND_NS, Followed

FEATURES = {
    "allow_atomic": True, "allow_batched": True, "allow_rollup_hdrs": True, "allow_msg_ttl": True,
    "allow_msg_schedules": True,
}  # fmt: skip


def streams(**settings: Any) -> Followed:
    """A: everything; C: a counter; T: sources A and C; M: mirrors A."""
    js = Followed(**settings)
    js.engine.allowance.most = 2  # roll-ups take slices
    js.create("A", "a.>", subject_transform={"src": "a.>", "dest": "a.>"}, **FEATURES)
    js.create("C", "c.>", allow_msg_counter=True)
    sources = [{"name": "A"}, {"name": "C"}]
    for name, origins in (("T", {"sources": sources}), ("M", {"mirror": {"name": "A"}})):
        answer = js.api(f"STREAM.CREATE.{name}", {"name": name, "allow_rollup_hdrs": True, **origins})
        assert "error" not in answer, answer
    return js


def atomic(js: Followed, batch: int, seq: int, *, commit: bool) -> None:
    headers: dict[str, object] = {"Nats_Batch_Id": f"b{batch}", "Nats_Batch_Sequence": seq}
    if commit:
        headers["Nats_Batch_Commit"] = 1
    js.send(b"a.batch", b"%d" % seq, **headers)


def fast(js: Followed, batch: int, seq: int, *, commit: bool) -> None:
    operation = 2 if commit else int(seq > 1)
    js.send(b"a.fast", b"%d" % seq, b"_IN.f%d.2.ok.%d.%d.$FI" % (batch, seq, operation))


def test_an_open_atomic_batch_is_staged_on_the_follower_too() -> None:
    js = streams()
    for seq in (1, 2):
        atomic(js, 1, seq, commit=False)
    js.tick()
    js.check()
    assert [batch.count for batch in js.follower("A").atomic.staged.all()] == [2]
    atomic(js, 1, 3, commit=True)
    js.tick()
    js.check()
    assert (js.follower("A").log.last_seq, js.follower("A").atomic.staged.count) == (3, 0)


def test_batches_of_other_streams_are_in_the_limits_of_this_one() -> None:
    js = streams(batch_inflight_total_max=2)
    js.create("B", "b", allow_atomic=True)
    for batch in range(3):
        atomic(js, batch, 1, commit=False)
        js.send(b"b", Nats_Batch_Id=f"x{batch}", Nats_Batch_Sequence=1)
        js.tick()
        js.check()
    assert js.follower("A").atomic.staged.count + js.follower("B").atomic.staged.count == 2
    assert commands.LimitBatches in js.kinds("A") & js.kinds("B")


def test_a_rollup_in_slices_is_in_slices_on_the_follower_too() -> None:
    js = streams()
    for _ in range(300):
        js.send(b"a.1")
    js.tick()
    js.send(b"a.2", Nats_Rollup="all")
    js.send(b"a.1")
    js.engine.tick.apply(js.now)
    js.check()
    assert js.follower("A").rollups.unfinished and js.follower("A").rest is not None
    for _ in range(3):
        js.tick()
        js.check()
    assert js.follower("A").log.messages == 2
    assert {commands.RollUp, commands.Resume, commands.LimitRollups} <= js.kinds("A")


def test_schedules_choose_the_same_subject_by_chance() -> None:
    js = Followed()
    js.create(
        "R", "r.>", "s.>", allow_msg_schedules=True, allow_rollup_hdrs=True,
        subject_transform={"src": "s.*", "dest": "s.{{random(1000)}}.{{wildcard(1)}}"},
    )  # fmt: skip
    for i in range(5):
        js.send(b"r.%d" % i, Nats_Schedule="@every 1s", Nats_Schedule_Target=f"s.{i}")
    js.tick()
    js.wait_until(js.now + 5 * SECOND_NS)
    js.check()
    assert len({js.follower("R").log.load(seq).subject for seq in range(6, 26)}) > 15  # type: ignore[union-attr]


def test_a_source_that_is_added_again_continues_where_it_was() -> None:
    js = streams()
    js.send(b"a.1")
    js.tick()
    js.tick()
    js.api("STREAM.PURGE.T")
    for sources in ([{"name": "C"}], [{"name": "A"}, {"name": "C"}]):
        answer = js.api("STREAM.UPDATE.T", {"name": "T", "allow_rollup_hdrs": True, "sources": sources})
        assert "error" not in answer, answer
        js.tick()
        js.check()
    js.send(b"a.2")
    js.tick()
    js.tick()
    js.check()
    assert js.follower("T").log.messages == 1  # a.1 is not copied again
    assert {commands.MoveSource, commands.StoreCopies} <= js.kinds("T")


def test_a_follower_knows_what_consumers_delivered_and_what_was_acked() -> None:
    js = Followed()
    js.create("S", "s")
    config = {"durable_name": "c", "ack_policy": "explicit", "ack_wait": SECOND_NS, "max_deliver": 2}
    js.api("CONSUMER.DURABLE.CREATE.S.c", {"stream_name": "S", "config": config})
    for _ in range(4):
        js.send(b"s")
    got = js.listen(b"_IN.got")
    publish(js.index, b"$JS.API.CONSUMER.MSG.NEXT.S.c", b"_IN.got", b"", b"3")
    js.tick()
    js.check()
    assert len(got) == 3
    assert len(js.following["S"].standby.by_name["c"].state.pending()) == 3
    publish(js.index, b"$JS.ACK.S.c.1.2.2.0.0", b"", b"", b"+ACK")
    publish(js.index, b"$JS.ACK.S.c.1.1.1.0.0", b"", b"", b"-NAK")
    js.tick()
    js.check()
    js.wait_until(js.now + 3 * SECOND_NS)
    js.check()
    assert "error" not in js.api("CONSUMER.RESET.S.c", {"seq": 2})
    js.api("CONSUMER.DURABLE.CREATE.S.d", {"stream_name": "S", "config": {"durable_name": "d"}})
    js.check()
    assert "error" not in js.api("CONSUMER.DELETE.S.c")
    js.check()
    assert list(js.following["S"].standby.by_name) == ["d"]
    kinds = {commands.SetConsumer, commands.ProgressConsumer, commands.DropConsumer}
    assert kinds <= js.kinds("S")


STEPS = st.one_of(
    st.tuples(st.just("atomic"), st.integers(1, 2), st.integers(1, 3), st.booleans()),
    st.tuples(st.just("fast"), st.integers(1, 2), st.integers(1, 4), st.booleans()),
    st.tuples(st.just("tick")),
    st.tuples(st.just("wait"), st.sampled_from([1, SECOND_NS, 11 * SECOND_NS])),
    st.tuples(
        st.just("send"),
        st.sampled_from([b"a.1", b"a.2", b"c.1", b"c.2"]),
        st.sampled_from(
            [
                {},
                {"Nats_Incr": "+5"},
                {"Nats_Rollup": "all"},
                {"Nats_Rollup": "sub"},
                {"Nats_TTL": "1s"},
                {"Nats_Schedule": "@every 1s", "Nats_Schedule_Target": "a.3"},
                {"Nats_Schedule": "@at 2023-11-14T22:13:22Z", "Nats_Schedule_Target": "a.4"},
                {"Nats_Msg_Id": 1},
            ]
        ),
    ),
    st.tuples(st.just("purge"), st.sampled_from("ACT")),
    st.tuples(st.just("sources"), st.sampled_from([["A"], ["C"], ["A", "C"]])),
)


@settings(max_examples=examples(120))
@given(st.lists(STEPS, max_size=30))
def test_followers_of_every_feature_equal_their_leaders(steps: list[tuple[Any, ...]]) -> None:
    js = streams(batch_inflight_total_max=3)
    for what, *about in steps:
        if what == "atomic":
            atomic(js, about[0], about[1], commit=about[2])
        elif what == "fast":
            fast(js, about[0], about[1], commit=about[2])
        elif what == "tick":
            js.tick()
        elif what == "wait":
            js.wait_until(js.now + about[0])
        elif what == "send":
            js.send(about[0], b"" if "Nats_Incr" in about[1] else b"x", **about[1])
        elif what == "purge":
            js.api(f"STREAM.PURGE.{about[0]}")
        else:
            sources = [{"name": name} for name in about[0]]
            js.api("STREAM.UPDATE.T", {"name": "T", "allow_rollup_hdrs": True, "sources": sources})
        js.check()


# --- interest and work-queue streams


def interest_streams() -> Followed:
    """I: an interest stream; W: a work queue."""
    js = Followed()
    js.create("I", "i.*", retention="interest")
    js.create("W", "w.*", retention="workqueue")
    return js


def consume(js: Followed, stream: str, name: str, *filters: str, policy: str = "explicit") -> None:
    config = {"durable_name": name, "ack_policy": policy, "filter_subjects": list(filters)}
    js.api(f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config, "action": ""})


def pull(js: Followed, stream: str, name: str, count: int) -> None:
    publish(js.index, b"$JS.API.CONSUMER.MSG.NEXT.%s.%s" % (stream.encode(), name.encode()), b"_IN.got",
            b"", b'{"batch":%d,"no_wait":true}' % count)  # fmt: skip


def ack(js: Followed, stream: str, name: str, seq: int, body: bytes = b"+ACK") -> None:
    publish(js.index, b"$JS.ACK.%s.%s.1.%d.%d.0.0" % (stream.encode(), name.encode(), seq, seq), b"",
            b"", body)  # fmt: skip


def test_a_follower_removes_what_the_last_consumer_acked() -> None:
    js = interest_streams()
    consume(js, "I", "a")
    consume(js, "I", "b", "i.1")
    js.listen(b"_IN.got")
    for subject in (b"i.1", b"i.2", b"i.1"):
        js.send(subject)
    for name in "ab":
        pull(js, "I", name, 9)
    js.tick()
    js.check()
    for name, seq in (("a", 1), ("a", 2), ("b", 1)):
        ack(js, "I", name, seq)
        js.tick()
        js.check()
    follower = js.follower("I").log
    assert [seq for seq in range(1, 4) if follower.load(seq)] == [3]
    assert SettledRuns in js.kinds("I")


def test_a_follower_stores_what_its_leaders_consumers_want() -> None:
    js = interest_streams()
    consume(js, "I", "a", "i.1")
    for subject in (b"i.1", b"i.2"):
        js.send(subject)
        js.tick()
        js.check()
    assert js.follower("I").log.messages == 1
    consume(js, "I", "a", "i.2")
    js.send(b"i.2")
    js.tick()
    js.check()
    js.api("CONSUMER.DELETE.I.a")
    js.send(b"i.2")
    js.tick()
    js.check()
    assert (js.follower("I").log.messages, js.follower("I").log.last_seq) == (0, 4)


def test_a_follower_stores_everything_while_a_consumer_of_the_leader_failed(
    noted_faults: list[BaseException],
) -> None:
    js = interest_streams()
    consume(js, "I", "a", "i.1")
    consumer = js.engine.streams["I"].consumers["a"]
    with contextlib.suppress(RuntimeError), js.engine.containment.changing(consumer):
        raise RuntimeError("planted")
    noted_faults.clear()
    js.send(b"i.2")
    js.tick()
    js.check()
    assert js.follower("I").log.messages == 1
    js.api("CONSUMER.DELETE.I.a")
    js.tick()
    js.send(b"i.2")
    js.tick()
    js.check()
    assert js.follower("I").log.messages == 0
    assert commands.RetainMessages in js.kinds("I")


def pin_clients(js: Followed, timeout_ns: int = 5 * SECOND_NS) -> None:
    """Consumer p of stream I serves one client at a time."""
    config = {
        "durable_name": "p", "ack_policy": "explicit", "priority_policy": "pinned_client",
        "priority_groups": ["g"], "priority_timeout": timeout_ns,
    }  # fmt: skip
    answer = js.api("CONSUMER.CREATE.I.p", {"stream_name": "I", "config": config, "action": ""})
    assert "error" not in answer, answer


def pull_pinned(js: Followed) -> None:
    publish(js.index, b"$JS.API.CONSUMER.MSG.NEXT.I.p", b"_IN.got", b"", b'{"batch":2,"group":"g"}')


def test_a_follower_knows_the_pinned_client_and_since_when() -> None:
    js = interest_streams()
    pin_clients(js)
    js.listen(b"_IN.got")
    js.send(b"i.1")
    js.wait_until(js.now + SECOND_NS)
    pull_pinned(js)
    js.tick()
    js.check()
    standby = js.following["I"].standby.by_name["p"]
    assert standby.pin.id and standby.pin.since == js.now
    js.wait_until(js.now + 6 * SECOND_NS)
    js.check()
    assert standby.pin == NO_PIN  # it timed out
    js.send(b"i.1")
    pull_pinned(js)
    js.tick()
    js.check()
    assert standby.pin.id and standby.pin.since == js.now
    assert "error" not in js.api("CONSUMER.UNPIN.I.p", {"group": "g"})
    js.check()
    assert standby.pin == NO_PIN
    pins = [one for data in js.commands["I"] if isinstance(one := decode(data)[0], commands.PinConsumer)]
    assert [bool(one.pin) for one in pins] == [True, False, True, False]


def test_a_follower_knows_until_when_a_consumer_is_paused() -> None:
    js = interest_streams()
    consume(js, "I", "a")
    until = format_time(js.now + 9 * SECOND_NS)
    js.wait_until(js.now + SECOND_NS)
    assert js.api("CONSUMER.PAUSE.I.a", {"pause_until": until})["paused"]
    js.check()
    assert js.following["I"].standby.by_name["a"].meta.config.pause_until == until
    paused, at = decode(js.commands["I"][-1])
    assert isinstance(paused, commands.SetConsumer) and at == js.now


CONSUMERS = st.sampled_from([("I", "a"), ("I", "b"), ("W", "c"), ("W", "d")])
FILTERS = st.sampled_from([(), ("{}.1",), ("{}.2",), ("{}.1", "{}.2")])
POLICIES = st.sampled_from(["explicit", "all", "none"])
CONSUMER_STEPS = st.one_of(
    st.tuples(st.just("send"), st.sampled_from([b"i.1", b"i.2", b"w.1", b"w.2"])),
    st.tuples(st.just("create"), CONSUMERS, FILTERS, POLICIES),
    st.tuples(st.just("delete"), CONSUMERS),
    st.tuples(st.just("pull"), CONSUMERS, st.integers(1, 5)),
    st.tuples(st.just("ack"), CONSUMERS, st.integers(1, 9), st.sampled_from([b"+ACK", b"+TERM", b"-NAK"])),
    st.tuples(st.just("purge"), st.sampled_from("IW")),
    st.tuples(st.just("pause"), CONSUMERS, st.integers(0, 9)),
    st.tuples(st.just("reset"), CONSUMERS, st.integers(0, 9)),
    st.tuples(st.just("pin")),
    st.tuples(st.just("unpin")),
    st.tuples(st.just("wait"), st.integers(1, 6 * SECOND_NS)),
    st.tuples(st.just("tick")),
)


@settings(max_examples=examples(120))
@given(st.lists(CONSUMER_STEPS, max_size=40))
def test_followers_of_interest_streams_equal_their_leaders(steps: list[tuple[Any, ...]]) -> None:
    js = interest_streams()
    pin_clients(js)
    js.listen(b"_IN.got")
    for what, *about in steps:
        if what == "send":
            js.send(about[0])
        elif what == "create":
            (stream, name), filters, policy = about
            consume(js, stream, name, *(one.format(stream.lower()) for one in filters), policy=policy)
        elif what == "delete":
            js.api("CONSUMER.DELETE.{}.{}".format(*about[0]))
        elif what == "pull":
            pull(js, *about[0], about[1])
        elif what == "ack":
            ack(js, about[0][0], about[0][1], about[1], about[2])
        elif what == "purge":
            js.api(f"STREAM.PURGE.{about[0]}")
        elif what == "pause":
            until = format_time(js.now + about[1] * SECOND_NS)
            js.api("CONSUMER.PAUSE.{}.{}".format(*about[0]), {"pause_until": until})
        elif what == "reset":
            seq = {"seq": about[1]} if about[1] else {}
            js.messages("$JS.API.CONSUMER.RESET.{}.{}".format(*about[0]), seq, b"")
        elif what == "pin":
            pull_pinned(js)
        elif what == "unpin":
            js.api("CONSUMER.UNPIN.I.p", {"group": "g"})
        elif what == "wait":
            js.wait_until(js.now + about[0])
        else:
            js.tick()
        js.check()
