"""Checkpoints of stream groups, and members that catch up from them."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.testing.sim.following_replica import messages_of, state_of
from tests.support.stream_group_servers import StreamServers, StreamServerUnderTest, assigned


@pytest.fixture
def servers() -> StreamServers:
    servers = StreamServers(keep_bytes=0)
    servers.begin(assigned())
    return servers


def publish(servers: StreamServers, count: int, subject: str = "S.1") -> None:
    for number in range(count):
        header = b"NATS/1.0\r\nNats-Msg-Id: %b-%d\r\n\r\n" % (subject.encode(), number)
        assert "seq" in servers.request(servers.leader(), subject, b"%d" % number, header)


def checkpoint(servers: StreamServers, names: str = "abc") -> None:
    for name in names:
        servers[name].stream().port.checkpoint()
    servers.pass_time(100)
    for name in names:
        log = servers[name].group().replica.log
        assert log.snapshot.index > 0
        assert log.last_index == log.snapshot.index


def state(server: StreamServerUnderTest) -> Any:
    replica = server.replica()
    return state_of(replica.stream), list(messages_of(replica.stream)), replica.standby.dump()


def files(server: StreamServerUnderTest) -> dict[str, bytes]:
    return {path: bytes(one.data) for path, one in server.disk.files() if path.startswith("/states")}


def restart(servers: StreamServers, name: str, *, loses_power: bool = True) -> StreamServerUnderTest:
    server = servers[name]
    if server.is_up:
        server.stop(loses_power=loses_power)
    server.start()
    server.assign(assigned())
    servers.link()
    return server


def test_a_start_continues_from_the_checkpoint_and_the_log_behind_it(servers: StreamServers) -> None:
    publish(servers, 10)
    checkpoint(servers)
    publish(servers, 5, "S.2")
    before = state(servers["b"])
    again = restart(servers, "b")
    servers.pass_time(500)
    assert state(again) == before
    assert again.stream().catch_up is None
    assert again.stream().is_current


@pytest.mark.parametrize(("behind", "missed"), [(0, 0), (0, 5), (5, 0), (5, 5)])
def test_a_member_is_current_when_it_has_what_the_leader_committed_and_not_before(
    servers: StreamServers, behind: int, missed: int
) -> None:
    """behind: messages in the log after the checkpoint. missed: stored while the member is away."""
    publish(servers, 10)
    checkpoint(servers)
    publish(servers, behind, "S.2")
    servers["b"].stop()
    publish(servers, missed, "S.3")
    again = restart(servers, "b")
    for _ in range(100):
        if again.stream().is_current:
            break
        servers.pass_time(5)
    assert again.stream().is_current
    assert state(again) == state(servers["a"])


@pytest.mark.parametrize("storage", ["memory", "file"])
def test_all_servers_of_a_stream_may_lose_their_power(storage: str) -> None:
    servers = StreamServers(keep_bytes=0)
    servers.begin(assigned())
    publish(servers, 10)
    checkpoint(servers)
    publish(servers, 3, "S.2")
    before = state(servers["a"])[1]
    for name in "abc":
        servers[name].stop(loses_power=True)
    for name in "abc":
        restart(servers, name)
    servers.pass_time(3000)
    assert [state(servers[name])[1] for name in "abc"] == [before] * 3
    publish(servers, 10)  # all of them known
    assert servers.leader().replica().stream.log.last_seq == 13


def test_a_checkpoint_writes_only_chunks_that_have_changed(servers: StreamServers) -> None:
    publish(servers, 10)
    checkpoint(servers)
    before = files(servers["a"])
    publish(servers, 2, "S.2")
    checkpoint(servers)
    after = files(servers["a"])
    assert len(after) == len(before) == 5  # three chunks of messages, one of ids, and the manifest
    assert len(after.keys() & before.keys()) == 2  # the whole chunks


def test_files_of_the_last_checkpoint_stay_until_the_log_has_the_next_one(servers: StreamServers) -> None:
    publish(servers, 10)
    checkpoint(servers)
    publish(servers, 2, "S.2")
    expected = state(servers["b"])
    servers["b"].is_slow = True  # the log's writes do not end
    servers["b"].stream().port.checkpoint()
    servers.pass_time(100)
    again = restart(servers, "b")
    again.is_slow = False
    servers.pass_time(500)
    assert state(again) == expected


def test_a_member_that_fell_behind_gets_the_leaders_state(servers: StreamServers) -> None:
    servers["c"].stop()
    publish(servers, 10)
    checkpoint(servers, "ab")
    publish(servers, 2, "S.2")
    restart(servers, "c")
    servers.pass_time(500)
    assert state(servers["c"]) == state(servers["a"])
    assert servers["c"].stream().is_current
    publish(servers, 3, "S.3")
    assert state(servers["c"]) == state(servers["a"])


def test_a_member_that_fell_behind_fetches_only_what_it_does_not_have(servers: StreamServers) -> None:
    publish(servers, 40)
    checkpoint(servers)
    servers["c"].stop()
    publish(servers, 3, "S.2")
    checkpoint(servers, "ab")
    sent: list[bytes] = []
    server = restart(servers, "c")
    take = server.node.receive_mail

    def note(sender: str, group: str, payload: bytes) -> None:
        sent.append(payload)
        take(sender, group, payload)

    server.node.receive_mail = note  # type: ignore[method-assign]
    servers.pass_time(1000)
    assert state(server) == state(servers["a"])
    assert 0 < sum(map(len, sent)) < 2500  # a chunk of three messages, and the manifest with all ids


def test_a_catch_up_survives_lost_mail_and_shows_how_far_it_is(servers: StreamServers) -> None:
    servers["c"].stop()
    publish(servers, 20)
    checkpoint(servers, "ab")
    server = restart(servers, "c")
    take = server.node.receive_mail
    server.node.receive_mail = lambda sender, group, payload: None  # type: ignore[method-assign]
    servers.pass_time(500)
    progress = server.stream().catch_up
    assert progress is not None
    assert (progress.files, progress.percent) == (0, 0.0)
    assert not server.stream().is_current
    server.node.receive_mail = take  # type: ignore[method-assign]
    servers.pass_time(5000)
    assert server.stream().catch_up is None
    assert state(server) == state(servers["a"])


def test_a_catch_up_goes_on_after_a_restart_with_what_it_has(servers: StreamServers) -> None:
    servers["c"].stop()
    publish(servers, 20)
    checkpoint(servers, "ab")
    server = restart(servers, "c")
    take = server.node.receive_mail
    count = 0

    def some(sender: str, group: str, payload: bytes) -> None:
        nonlocal count
        count += 1
        if count < 2:  # the manifest
            take(sender, group, payload)

    server.node.receive_mail = some  # type: ignore[method-assign]
    servers.pass_time(300)
    server.stop(loses_power=True)
    assert len(files(server)) == 1
    server = restart(servers, "c")
    servers.pass_time(1000)
    assert state(server) == state(servers["a"])


def test_another_member_helps_out_when_the_leader_is_gone(servers: StreamServers) -> None:
    servers["c"].stop()
    publish(servers, 20)
    checkpoint(servers, "ab")
    server = restart(servers, "c")
    take = server.node.receive_mail
    server.node.receive_mail = lambda sender, group, payload: None  # type: ignore[method-assign]
    servers.pass_time(200)
    servers["a"].stop()
    for name in "bc":
        servers[name].node.peer_unlinked("a.d")
    server.node.receive_mail = take  # type: ignore[method-assign]
    servers.pass_time(8000)
    assert servers.leader() is servers["b"]
    assert state(server) == state(servers["b"])


def test_the_own_checkpoint_is_loaded_when_the_leaders_state_cannot_be_had(servers: StreamServers) -> None:
    publish(servers, 10)
    checkpoint(servers)
    servers["c"].stop()
    publish(servers, 5, "S.2")
    checkpoint(servers, "a")
    servers["c"].is_paused = True  # it is still loading its own when the leader sends another one
    server = restart(servers, "c")
    servers.pass_time(300)
    assert server.group().is_installing
    servers["a"].stop()
    for name in "bc":
        servers[name].node.peer_unlinked("a.d")
    server.is_paused = False
    servers.pass_time(25_000)  # c waits 20 s for another member to have the files
    assert servers.leader() is servers["b"]  # which has the entries instead
    publish(servers, 3, "S.3")
    servers.pass_time(500)
    assert state(server) == state(servers["b"])
    assert server.stream().is_current


def test_a_damaged_file_of_a_checkpoint_is_fetched_from_another_member(servers: StreamServers) -> None:
    publish(servers, 40)
    checkpoint(servers)
    expected = state(servers["b"])
    servers["b"].stop()
    for number, (path, file) in enumerate(servers["b"].disk.files()):
        if path.startswith("/states") and len(file.data) < 1000 and number % 2:
            file.data[20] ^= 1
            file.sync_all()
    server = restart(servers, "b")
    servers.pass_time(1000)
    assert state(server) == expected
    assert server.stream().failure == ""


def test_a_stream_whose_checkpoint_is_damaged_for_good_costs_nothing_else(
    noted_faults: list[BaseException],
) -> None:
    servers = StreamServers("a", keep_bytes=0)
    both = [assigned("S", "a"), assigned("T", "a", incarnation=8)]
    servers.begin(*both)
    publish(servers, 10)
    servers.request(servers["a"], "T.1", b"x")
    checkpoint(servers, "a")
    servers["a"].stop()
    for path, file in servers["a"].disk.files():
        if path.startswith("/states"):
            file.data[20] ^= 1
            file.sync_all()
    servers["a"].start()
    for one in both:
        servers["a"].assign(one)
    servers.pass_time(500)
    assert "checkpoint cannot be read" in servers["a"].stream("S").failure
    assert servers.request(servers["a"], "T.1", b"y")["seq"] == 2
    assert [name for name, kind, _ in servers["a"].events if kind == "failed"] == ["S"]
    assert len(noted_faults) == 1
    noted_faults.clear()
    assert files(servers["a"])  # the data stays


def test_removing_a_stream_removes_its_files(servers: StreamServers) -> None:
    publish(servers, 10)
    checkpoint(servers)
    gone: list[str] = []
    servers["c"].groups.close("$G", "S", remove=True, gone=lambda: gone.append("gone"))
    servers.settle()
    assert gone == ["gone"]
    assert files(servers["c"]) == {}


def test_a_full_disk_postpones_the_checkpoint(servers: StreamServers) -> None:
    publish(servers, 10)
    servers["b"].disk.room = 100
    servers["b"].stream().port.checkpoint()
    servers.pass_time(100)
    assert servers["b"].group().replica.log.snapshot.index == 0
    servers["b"].disk.room = None
    servers.pass_time(6000)
    checkpoint(servers, "b")
    publish(servers, 3, "S.2")
    again = restart(servers, "b")
    servers.pass_time(500)
    assert state(again) == state(servers["a"])
