"""Roll-ups of replicated streams that replace very many messages: each server removes them in slices."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.server.replicated import work_turns
from penstock.testing.sim.following_replica import messages_of, state_of
from tests.support.engine import Message
from tests.support.stream_group_servers import ACCOUNT, StreamServers, StreamServerUnderTest, assigned

pytestmark = [pytest.mark.feature("cluster.raft"), pytest.mark.feature("stream.long-requests")]

MANY = 400
ROLL_UP = b"NATS/1.0\r\nNats-Rollup: all\r\n\r\n"


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> StreamServers:
    monkeypatch.setattr(work_turns, "TURN_WORK", 1)
    monkeypatch.setattr(work_turns, "TURN_WORK_MAX", 1)
    servers = StreamServers(keep_bytes=0)
    for one in servers.streams.values():
        one.settings = {"rollup_messages": 2}
    servers.begin(assigned(allow_rollup_hdrs=True))
    for _ in range(MANY):
        servers["a"].engine.send("S.old", b"", b"", b"x")
    servers.settle()
    return servers


def pause(servers: StreamServers, names: str = "abc", *, is_paused: bool = True) -> None:
    for name in names:
        servers[name].is_paused = is_paused
    servers.settle()


def send(servers: StreamServers, *subjects: str, rolls_up: str = "S.new") -> list[Message]:
    """Publishes in one batch, of which one subject is a roll-up. Returns what is answered."""
    heard = servers["a"].engine.listen(b"_ACK")
    for subject in subjects:
        servers["a"].engine.send(subject, b"_ACK", ROLL_UP if subject == rolls_up else b"", b"y")
    servers.settle()
    return heard


def seqs(heard: list[Message]) -> list[int]:
    return [json.loads(payload)["seq"] for _, _, payload in heard]


def state(server: StreamServerUnderTest) -> Any:
    return state_of(server.replica().stream), list(messages_of(server.replica().stream))


def left(servers: StreamServers) -> list[int]:
    """How many messages each server has, whose states are the same."""
    states = [state(one) for one in servers.streams.values()]
    assert states[1:] == states[:-1]
    return [one.replica().stream.log.messages for one in servers.streams.values()]


def test_a_roll_up_is_acknowledged_when_it_is_done_and_what_follows_waits(servers: StreamServers) -> None:
    pause(servers)
    heard = send(servers, "S.before", "S.new", "S.after")
    later = servers["a"].engine.listen(b"_LATER")
    servers["a"].engine.send("S.later", b"_LATER", b"", b"z")
    servers.settle()
    assert (heard, later) == ([], [])
    assert servers["a"].replica().stream.log.messages > MANY // 2
    pause(servers, is_paused=False)
    assert (seqs(heard), seqs(later)) == ([MANY + 1, MANY + 2, MANY + 3], [MANY + 4])
    assert left(servers) == [3, 3, 3]


def test_each_step_removes_a_few_messages(servers: StreamServers) -> None:
    pause(servers)
    send(servers, "S.new")
    log, steps = servers["b"].replica().stream.log, 0
    while servers["b"].stream().port.is_current is False and steps < 100:
        before = log.messages
        servers["b"].is_paused = False
        servers["b"].pump()
        servers["b"].is_paused = True
        servers.settle()
        assert before - log.messages <= 128
        steps += 1
    assert MANY // 128 <= steps < 100
    pause(servers, is_paused=False)
    assert left(servers) == [1, 1, 1]


def test_a_batch_with_several_roll_ups_is_stored_in_its_order(servers: StreamServers) -> None:
    heard = send(servers, *["S.new", "S.x", "S.y"] * 5)
    assert seqs(heard) == list(range(MANY + 1, MANY + 16))
    assert left(servers) == [3, 3, 3]


def test_an_info_waits_for_a_roll_up_that_was_committed_before(servers: StreamServers) -> None:
    pause(servers)
    send(servers, "S.new")
    heard = servers["a"].engine.listen(b"_INFO")
    servers["a"].engine.send("$JS.API.STREAM.NAMES", b"_INFO", b"", b"")
    confirmed: list[int] = []
    servers["a"].stream().read_index(lambda: confirmed.append(servers["a"].replica().stream.log.messages))
    servers.pass_time(100)
    assert confirmed == []
    pause(servers, is_paused=False)
    assert confirmed == [1]
    assert heard


def test_a_leader_that_steps_down_meanwhile_answers_when_it_has_applied_it(servers: StreamServers) -> None:
    pause(servers, "a")
    heard = send(servers, "S.new", "S.after")
    servers["a"].stream().port.step_down("b.d")
    servers.pass_time(1000)
    assert servers.leader() is servers["b"]
    assert heard == []
    assert servers.request(servers["b"], "S.more", b"x")["seq"] == MANY + 3
    pause(servers, "a", is_paused=False)
    servers.pass_time(500)
    assert seqs(heard) == [MANY + 1, MANY + 2]
    assert left(servers) == [3, 3, 3]


def test_a_server_that_ends_meanwhile_applies_it_when_it_starts(servers: StreamServers) -> None:
    pause(servers, "b")
    send(servers, "S.new", "S.after")
    servers["b"].is_paused = False
    servers["b"].stop(loses_power=True)
    servers["b"].start()
    servers["b"].assign(assigned(allow_rollup_hdrs=True))
    servers.link()
    servers.pass_time(1000)
    assert left(servers) == [2, 2, 2]


def test_a_state_that_is_taken_meanwhile_lies_between_two_entries(servers: StreamServers) -> None:
    pause(servers, "b")
    send(servers, "S.new", "S.after")
    slices = servers["b"].replica().state_slices(lambda name: False, lambda name, parts: None, 4)
    for _ in range(1000):
        next(slices)  # it waits
    pause(servers, "b", is_paused=False)
    while True:
        try:
            next(slices)
        except StopIteration as end:
            taken = end.value
            break
    assert taken.index == servers["b"].replica().applied_index


def test_a_stream_may_be_deleted_meanwhile(servers: StreamServers) -> None:
    pause(servers)
    send(servers, "S.new")
    for one in servers.streams.values():
        one.groups.close(ACCOUNT, "S", remove=True)
    pause(servers, is_paused=False)
    servers.pass_time(200)
    assert [one.engine.engine.streams for one in servers.streams.values()] == [{}, {}, {}]


def test_what_a_slice_raises_stops_this_replica_only(
    servers: StreamServers, noted_faults: list[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    pause(servers, "c")
    send(servers, "S.new")

    def raising(looks: int, work: int) -> int:
        raise RuntimeError("injected")

    monkeypatch.setattr(servers["c"].replica().stream, "rollups", Rollups(raising))
    pause(servers, "c", is_paused=False)
    assert servers["c"].stream().failure
    assert servers.request(servers["a"], "S.more", b"x")["seq"] == MANY + 2
    noted_faults.clear()


class Rollups:
    """Unfinished ones, for ever."""

    unfinished = (1,)

    def __init__(self, run_slice: Any) -> None:
        self.run_slice = run_slice
