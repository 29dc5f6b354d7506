"""Mirrors and sources of replicated streams: the leader reads, and commits its position with the copies."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.jetstream.external import ExternalReader
from penstock.jetstream.sourcing import LocalReader
from penstock.protocol.api import DiscardPolicy, StreamSource
from penstock.testing.sim.following_replica import messages_of, state_of
from tests.support.examples import examples
from tests.support.replicated_engines import ReplicatedEngines

pytestmark = pytest.mark.feature("sourcing.mirror", "sourcing.sources")

SECOND_NS = 1_000_000_000


def copied(**fields: Any) -> ReplicatedEngines:
    """O: an origin; M: its mirror; T: takes it as a source. All on two engines."""
    js = ReplicatedEngines(2)
    js.open("O", "o.>", **fields)
    js.open("M", mirror=StreamSource(name="O"))
    js.open("T", sources=[StreamSource(name="O", filter_subject="o.a")])
    return js


def payloads(js: ReplicatedEngines, name: str, at: int = 0) -> list[bytes]:
    return [one[4] for one in messages_of(js.replicas[name][at].stream)]


def send(js: ReplicatedEngines, *numbers: int, subject: bytes = b"o.a") -> None:
    at = js.groups["O"].leader
    for number in numbers:
        js.publish(subject, b"%d" % number, at=at)
    js.tick()
    js.commit("O")


def equal(js: ReplicatedEngines) -> None:
    for name, replicas in js.replicas.items():
        first, *others = [state_of(one.stream) for one in replicas]
        assert all(one == first for one in others), name


def test_copies_reach_every_replica_of_the_mirror_and_of_the_stream_with_a_source() -> None:
    js = copied()
    send(js, 1, 2)
    send(js, 3, subject=b"o.b")
    js.settle()
    for at in (0, 1):
        assert payloads(js, "M", at) == [b"1", b"2", b"3"]
        assert payloads(js, "T", at) == [b"1", b"2"]
    equal(js)


def test_only_the_leader_reads() -> None:
    js = copied()
    assert sorted(js.engines[0].engine.sourcing.readers) == ["M", "T"]
    assert not js.engines[1].engine.sourcing.readers
    js.lead("M", 1)
    assert sorted(js.engines[0].engine.sourcing.readers) == ["T"]
    assert sorted(js.engines[1].engine.sourcing.readers) == ["M"]


def proposed(js: ReplicatedEngines, name: str) -> int:
    return len(js.groups[name].entries) - js.groups[name].committed


def test_copies_in_flight_are_not_read_again_before_they_are_committed() -> None:
    js = copied()
    for number in range(4):
        send(js, number)
        js.tick()
    assert proposed(js, "M") == 1
    js.settle()
    assert payloads(js, "M") == payloads(js, "M", 1) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("keeps", [0, 1])
def test_a_new_leader_continues_behind_what_was_committed(keeps: int) -> None:
    js = copied()
    send(js, 1, 2)
    js.settle()
    send(js, 3, 4)
    js.tick()
    js.tick()
    for name in ("M", "T"):
        assert proposed(js, name) == 1
        js.lead(name, 1, keeps=keeps)
    js.settle()
    send(js, 5)
    js.settle()
    assert payloads(js, "M") == payloads(js, "T") == [b"1", b"2", b"3", b"4", b"5"]
    equal(js)


@given(st.lists(st.integers(0, 9), max_size=40))
@settings(max_examples=examples(60))
def test_whatever_becomes_of_leaders_nothing_is_left_out_or_doubled(does: list[int]) -> None:
    js = copied()
    for number, what in enumerate(does):
        if what < 4:
            send(js, number)
        elif what == 4:
            js.tick()
        elif what < 8:
            js.commit(("O", "M", "T")[what - 5], 1)
        else:
            name = ("M", "T")[what - 8]
            in_flight = len(js.groups[name].entries) - js.groups[name].committed
            js.lead(name, 1 - js.groups[name].leader, keeps=number % (in_flight + 1))
    js.settle()
    assert payloads(js, "M") == payloads(js, "O") == payloads(js, "T")
    equal(js)


def test_a_rejected_copy_is_read_again_and_not_overtaken() -> None:
    js = ReplicatedEngines(2)
    js.open("O", "o.>")
    js.open("M", mirror=StreamSource(name="O"), max_msgs=1, discard=DiscardPolicy.NEW)
    send(js, 1, 2)
    js.settle()
    send(js, 3)
    js.settle()
    assert payloads(js, "M") == [b"1"]
    stream = js.leader("M").engine.streams["M"]
    stream.update(replace(stream.config, max_msgs=-1), js.engines[0].now)
    js.settle()
    for one in js.engines:
        one.wait_until(one.now + 3 * SECOND_NS)
    js.settle()
    assert payloads(js, "M") == [b"1", b"2", b"3"]
    equal(js)


def test_an_origin_that_was_created_again_is_read_from_its_start() -> None:
    js = ReplicatedEngines(2)
    js.engines[0].create("P", "p")
    js.open("T", sources=[StreamSource(name="P")])
    js.publish(b"p", b"1")
    js.settle()
    js.engines[0].api("STREAM.DELETE.P")
    js.settle()
    js.engines[0].now += SECOND_NS
    js.engines[0].create("P", "p")
    js.publish(b"p", b"2")
    js.settle()
    js.engines[0].wait_until(js.engines[0].now + SECOND_NS)
    js.settle()
    assert payloads(js, "T") == payloads(js, "T", 1) == [b"1", b"2"]
    equal(js)


def test_a_source_that_is_added_again_continues_where_it_was() -> None:
    js = copied()
    send(js, 1, 2)
    js.settle()
    config = js.replicas["T"][0].stream.config
    for sources in ([], config.sources):
        js.leader("T").engine.streams["T"].update(replace(config, sources=sources), js.engines[0].now)
        send(js, 3)
        js.settle()
        js.lead("T", 1 - js.groups["T"].leader)
    js.settle()
    assert payloads(js, "T") == [b"1", b"2", b"3", b"3"]
    equal(js)


def test_a_work_queue_is_read_by_a_consumer_which_acks_what_is_committed() -> None:
    js = ReplicatedEngines(2)
    js.engines[0].create("Q", "q", retention="workqueue")
    js.open("T", sources=[StreamSource(name="Q")])
    js.settle()
    [reader] = js.engines[0].engine.sourcing.readers["T"]
    assert isinstance(reader, ExternalReader)
    for number in range(3):
        js.publish(b"q", b"%d" % number)
    js.settle()
    for _ in range(5):
        js.engines[0].wait_until(js.engines[0].now + SECOND_NS)
        js.settle()
    assert payloads(js, "T", 1) == [b"0", b"1", b"2"]
    assert js.engines[0].state("Q")["messages"] == 0
    equal(js)


def test_a_reader_changes_when_its_origin_comes_to_this_server() -> None:
    js = ReplicatedEngines(2)
    js.open("M", mirror=StreamSource(name="O"))
    assert isinstance(js.engines[0].engine.sourcing.readers["M"][0], ExternalReader)
    js.open("O", "o.>")
    assert isinstance(js.engines[0].engine.sourcing.readers["M"][0], LocalReader)
    send(js, 1)
    js.settle()
    assert payloads(js, "M", 1) == [b"1"]
    js.engines[0].engine.replicated.close("O")
    assert isinstance(js.engines[0].engine.sourcing.readers["M"][0], ExternalReader)
