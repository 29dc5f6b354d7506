"""Streams that were stored without a cluster become the beginnings of replicated ones."""

from __future__ import annotations

import pytest

from penstock.errors import MisuseError
from penstock.jetstream.meta import meta_commands as commands
from penstock.jetstream.meta.assignments import StreamAssignment
from penstock.jetstream.standalone import StandaloneStream
from penstock.raft.membership import Membership
from penstock.server.replicated.standalone_adoption import obstacle
from penstock.store.memory import MemoryStore
from tests.support.engine import EngineHarness
from tests.support.meta_groups import MetaGroup
from tests.support.stream_group_servers import StreamServers, assigned


def with_id(msg_id: str) -> bytes:
    return b"NATS/1.0\r\nNats-Msg-Id: %s\r\n\r\n" % msg_id.encode()


def with_stream() -> tuple[StreamServers, StandaloneStream, StreamAssignment]:
    """A cluster of one server, which has a stream from before it, and how it would be assigned."""
    servers = StreamServers("a")
    store = MemoryStore().account("$G")
    alone = EngineHarness(store)
    alone.create("S", "S.>", duplicate_window=120_000_000_000)
    for number in range(10):
        header = with_id(str(number))
        assert alone.request("S.1", b"%d" % number, header)["seq"] == number + 1
    alone.api("STREAM.MSG.DELETE.S", {"seq": 4})
    config = {"durable_name": "d", "ack_policy": "explicit"}
    alone.api("CONSUMER.DURABLE.CREATE.S.d", {"stream_name": "S", "config": config})
    heard = alone.listen(b"PULLED")
    for _ in range(3):
        alone.send("$JS.API.CONSUMER.MSG.NEXT.S.d", b"PULLED")
        alone.tick()
    assert len(heard) == 3
    created = alone.engine.streams["S"].created
    alone.engine.close()
    servers["a"].store = store
    servers.begin()
    stored = servers["a"].engine.engine.table.standalone["S"]
    assignment = assigned(servers="a")
    return servers, stored, assignment_of(assignment, stored, created)


def assignment_of(like: StreamAssignment, stored: StandaloneStream, created: int) -> StreamAssignment:
    return StreamAssignment(like.account, "S", stored.config, created, 7, like.group, adopted=("", created))


def adopt(servers: StreamServers, assignment: StreamAssignment) -> None:
    """Makes the first state of the stream's group."""
    done: list[bool] = []
    failed: list[Exception] = []
    servers["a"].groups.adopt(assignment, lambda: done.append(True), failed.append)
    servers.settle()
    assert (done, failed) == ([True], [])


def test_a_stream_of_before_is_offline_until_the_cluster_takes_it_in() -> None:
    servers, stored, _ = with_stream()
    engine = servers["a"].engine.engine
    assert "without a cluster" in engine.offline["S"]
    assert [name for name, _, _ in stored.consumers] == ["d"]


def test_an_adopted_stream_goes_on_where_it_was() -> None:
    servers, _, assignment = with_stream()
    adopt(servers, assignment)
    servers["a"].assign(assignment)
    servers.pass_time(200)
    replica = servers["a"].replica()
    assert replica.stream.log.messages == 9
    assert servers["a"].engine.engine.offline == {}
    assert servers["a"].engine.engine.table.standalone == {}
    again = with_id("9")
    assert servers.request(servers["a"], "S.1", b"x", again) == {"stream": "S", "seq": 10, "duplicate": True}
    assert servers.request(servers["a"], "S.1", b"x")["seq"] == 11
    info = servers.request(servers["a"], "$JS.API.CONSUMER.INFO.S.d")
    assert (info["delivered"]["stream_seq"], info["num_ack_pending"]) == (3, 3)


def test_the_files_of_before_stay_until_the_group_is_on_disk() -> None:
    servers, _, assignment = with_stream()
    adopt(servers, assignment)
    store = servers["a"].store
    assert store is not None
    servers["a"].is_slow = True
    servers["a"].assign(assignment)
    servers.settle()
    assert servers["a"].stream().replica is None
    found = store.open_stream("S")
    assert found.log.messages == 9
    found.abandon()
    servers["a"].is_slow = False
    servers.pass_time(200)
    assert servers["a"].replica().stream.log.messages == 9


def test_a_server_that_crashed_after_the_group_began_has_the_stream() -> None:
    servers, _, assignment = with_stream()
    adopt(servers, assignment)
    servers["a"].assign(assignment)
    servers.pass_time(200)
    assert servers.request(servers["a"], "S.1", b"x")["seq"] == 11
    servers["a"].stop(loses_power=True)
    servers["a"].store = None
    servers["a"].start()
    assert servers["a"].groups.is_prepared(assignment)
    servers["a"].assign(assignment)
    servers.pass_time(3000)
    assert servers["a"].replica().stream.log.messages == 10
    assert list(servers["a"].replica().standby.by_name) == ["d"]


def test_a_group_of_several_cannot_begin_with_a_state() -> None:
    servers, _, _assignment = with_stream()
    with pytest.raises(MisuseError, match="cannot begin with a state"):
        servers["a"].node.create_group("g", Membership(("a.d", "b.d")), servers["a"].stream, b"x")  # type: ignore[arg-type]


def test_what_keeps_a_stream_out_of_the_cluster_is_said() -> None:
    group = MetaGroup()
    group.create("T", subjects=["t"])
    config = group.stream("T").config
    tables = group.machine.tables

    def found(name: str, subject: str) -> str | None:
        one = StandaloneStream(type(config)(name=name, subjects=[subject]), 5, ())
        return obstacle(tables, "$G", one, "B")

    assert found("S", "s") is None
    assert "subjects" in (found("S", "t") or "")
    assert "another stream 'T'" in (found("T", "u") or "")
    group.apply(commands.AdoptStream("$G", type(config)(name="S", subjects=["s"]), 5, "B", "", 5))
    assert found("S", "s") == ""
