"""Stream groups of servers: opening, serving, failing and closing them."""

from __future__ import annotations

import json

import pytest

from penstock.errors import MisuseError
from penstock.jetstream.engine import JetStreamEngine
from penstock.kernels.ingest.ingest import IngestBatch
from penstock.server.replicated.deferred_requests import DEFERRED_MAX, HOLD_NS, Confirmation, DeferredRequests
from penstock.server.replicated.request_tickets import PassedRequest
from penstock.server.replicated.stream_catch_up import Publishes, encode_mail
from penstock.server.replicated.stream_groups import group_name, stored_name, stored_of
from tests.support.stream_group_servers import ACCOUNT, StreamServers, StreamServerUnderTest, assigned


@pytest.fixture
def servers() -> StreamServers:
    servers = StreamServers()
    servers.begin(assigned())
    return servers


def test_the_preferred_member_leads_a_new_group_at_once(servers: StreamServers) -> None:
    assert servers.leader() is servers["a"]
    servers.pass_time(50)
    assert all(one.stream().leader == "a.d" and one.stream().is_current for one in servers.streams.values())
    assert servers["a"].stream().lags == {"b.d": 0, "c.d": 0}
    assert servers["b"].stream().lags == {}


@pytest.mark.parametrize("is_first", [False, True], ids=["as the others", "before the others"])
def test_a_new_group_has_a_leader_before_the_next_tick(is_first: bool) -> None:
    servers = StreamServers()
    for one in servers.streams.values():
        one.start()
    servers.link()
    servers.pass_time(50)
    now = servers.now
    servers["a"].assign(assigned())
    if is_first:
        servers["a"].pump()  # what it sends to the others concerns no group of theirs
    for name in "bc":
        servers[name].assign(assigned())
    servers.settle()
    assert (servers.leader() is servers["a"], servers.now) == (True, now)


def test_a_group_of_one_serves_at_once() -> None:
    servers = StreamServers("a")
    servers.begin(assigned(servers="a"))
    assert servers.request(servers["a"], "S.1", b"x")["seq"] == 1


def test_a_publish_is_acknowledged_when_a_majority_has_it(servers: StreamServers) -> None:
    servers["b"].is_slow = servers["c"].is_slow = True
    heard = servers["a"].engine.listen(b"_ANSWER.x")
    servers["a"].engine.send("S.1", b"_ANSWER.x", b"", b"x")
    servers.settle()
    assert heard == []
    servers["b"].is_slow = False
    servers.pass_time(50)
    assert [payload for _, _, payload in heard] == [b'{"stream":"S","seq":1}']


def test_every_replica_has_the_messages(servers: StreamServers) -> None:
    for number in range(5):
        assert servers.request(servers.leader(), "S.1", b"%d" % number)["seq"] == number + 1
    assert [one.replica().stream.log.last_seq for one in servers.streams.values()] == [5, 5, 5]


def test_another_member_leads_when_the_leader_is_gone(servers: StreamServers) -> None:
    servers.request(servers["a"], "S.1", b"x")
    servers["a"].stop(loses_power=True)
    for name in "bc":
        servers[name].node.peer_unlinked("a.d")
    servers.pass_time(3000)
    assert servers.leader() is not servers["a"]
    assert servers.request(servers.leader(), "S.1", b"y")["seq"] == 2


def publish(server: StreamServerUnderTest, inbox: bytes, payload: bytes) -> None:
    """Publishes to the stream at a server, which takes it in its next tick."""
    server.engine.send("S.1", inbox, b"", payload)


def test_what_is_proposed_when_a_leader_steps_down_is_answered_by_it(servers: StreamServers) -> None:
    heard = servers["a"].engine.listen(b"_ANSWER.x")
    servers["b"].is_slow = servers["c"].is_slow = True
    publish(servers["a"], b"_ANSWER.x", b"x")
    servers.settle()
    assert servers["a"].stream().port.step_down("c.d")
    servers.settle()
    assert heard == []
    servers["b"].is_slow = servers["c"].is_slow = False
    servers.pass_time(200)
    assert servers.leader() is servers["c"]
    assert [payload for _, _, payload in heard] == [b'{"stream":"S","seq":1}']


def test_publishes_during_a_step_down_are_stored_and_answered_by_the_next_leader(
    servers: StreamServers,
) -> None:
    heard = {name: servers[name].engine.listen(b"_ANSWER.x") for name in "abc"}
    servers["c"].is_slow = True
    publish(servers["a"], b"", b"1")
    servers.settle()
    assert servers["a"].stream().port.step_down("c.d")
    publish(servers["a"], b"_ANSWER.x", b"2")
    publish(servers["a"], b"_ANSWER.x", b"3")
    servers.settle()
    assert heard == {"a": [], "b": [], "c": []}
    servers["c"].is_slow = False
    servers.pass_time(200)
    assert servers.leader() is servers["c"]
    acks = [payload for _, _, payload in heard["c"]]
    assert acks == [b'{"stream":"S","seq":2}', b'{"stream":"S","seq":3}']
    assert heard["a"] == heard["b"] == []
    assert [one.replica().stream.log.last_seq for one in servers.streams.values()] == [3, 3, 3]


def test_publishes_that_no_leader_takes_are_refused_after_a_moment(servers: StreamServers) -> None:
    heard = servers["a"].engine.listen(b"_ANSWER.x")
    servers.isolate("a")
    while servers["a"].stream().is_serving:  # until it notices that no majority answers
        assert servers["a"].stream().port.step_down("c.d") or servers["a"].group().replica.leadership
        servers.pass_time(50)
        if not heard and not servers["a"].replica().commands.has_uncommitted:
            publish(servers["a"], b"_ANSWER.x", b"x")
    servers.pass_time(1000)
    assert heard == []
    servers.pass_time(1000)
    [answer] = [json.loads(payload) for _, _, payload in heard]
    assert answer["error"]["err_code"] == 10008
    servers.cut.clear()
    servers.pass_time(1000)
    assert [one.replica().stream.log.last_seq for one in servers.streams.values()] == [0, 0, 0]


def test_a_member_that_cannot_lead_refuses_publishes_of_another_one(servers: StreamServers) -> None:
    batch = IngestBatch()
    batch.append(b"S.1", b"_ANSWER.x", b"", b"x")
    heard = servers["b"].engine.listen(b"_ANSWER.x")
    for mail in (Publishes(HOLD_NS, batch.encode()), Publishes(HOLD_NS, b"no batch")):
        servers["b"].stream().received("c.d", encode_mail(mail))
    assert [json.loads(payload)["error"]["err_code"] for _, _, payload in heard] == [10008]
    assert servers["a"].replica().stream.log.last_seq == 0


def test_a_read_of_a_deposed_leader_is_not_answered(servers: StreamServers) -> None:
    servers.request(servers["a"], "S.1", b"x")
    servers.isolate("a")
    assert servers.answers(servers["a"], "$JS.API.STREAM.INFO.S") == []
    servers.pass_time(3000)
    assert servers.leader() is not servers["a"]
    servers.cut.clear()
    servers.pass_time(1000)
    assert servers.request(servers.leader(), "$JS.API.STREAM.INFO.S")["state"]["last_seq"] == 1


def test_a_server_continues_with_the_groups_on_its_disk(servers: StreamServers) -> None:
    servers.request(servers["a"], "S.1", b"x")
    servers["b"].stop(loses_power=True)
    servers["b"].start()
    assert [(one.name, one.incarnation) for one in servers["b"].groups.unclaimed] == [("S", 7)]
    servers["b"].assign(assigned())
    servers.link()
    servers.pass_time(500)
    assert servers["b"].groups.unclaimed == []
    assert servers["b"].replica().stream.log.last_seq == 1


def test_an_unclaimed_group_takes_no_part_and_keeps_its_data(servers: StreamServers) -> None:
    servers.request(servers["a"], "S.1", b"x")
    for _ in range(2):
        servers["b"].stop()
        servers["b"].start()
        servers.link()
        servers.pass_time(500)
    [stored] = servers["b"].groups.unclaimed
    assert (stored.account, stored.cluster_id, stored.group) == (ACCOUNT, "c", "")
    gone: list[str] = []
    servers["b"].groups.remove_unclaimed(stored, lambda: gone.append("gone"))
    servers.settle()
    assert gone == ["gone"]
    assert servers["b"].groups.unclaimed == []


def test_opening_an_open_group_changes_its_assignment_only(servers: StreamServers) -> None:
    group = servers["a"].stream()
    scaled = assigned(servers="ab", founders="abc")
    assert servers["a"].assign(scaled) is group
    assert group.assignment is scaled
    assert [one.group for one in servers["a"].groups.stored] == ["S-R2F-x"]


def test_another_stream_of_the_same_name_waits_for_the_first_one_to_close(servers: StreamServers) -> None:
    with pytest.raises(MisuseError, match="close it first"):
        servers["a"].assign(assigned(incarnation=9))
    gone: list[str] = []
    servers["a"].groups.close(ACCOUNT, "S", remove=True, gone=lambda: gone.append("gone"))
    assert gone == []
    servers["a"].assign(assigned(incarnation=9))
    servers.settle()
    assert gone == ["gone"]


@pytest.mark.parametrize("remove", [True, False])
def test_only_a_stream_that_is_removed_ends_the_consumers_at_its_origins(
    monkeypatch: pytest.MonkeyPatch, remove: bool
) -> None:
    ended_here: list[bool] = []
    monkeypatch.setattr(
        JetStreamEngine, "_forget_origins", lambda engine, stream, ended: ended_here.append(ended)
    )
    servers = StreamServers()
    servers.begin(assigned())
    servers["a"].groups.close(ACCOUNT, "S", remove=remove)
    servers.settle()
    assert ended_here == [remove]


def test_a_removed_group_is_not_on_the_disk_any_more(servers: StreamServers) -> None:
    servers["c"].groups.close(ACCOUNT, "S", remove=True)
    servers.settle()
    servers["c"].stop(loses_power=True)
    servers["c"].start()
    assert servers["c"].groups.stored == []


def test_a_closed_group_is_on_the_disk_for_the_next_start(servers: StreamServers) -> None:
    servers["c"].groups.close(ACCOUNT, "S", remove=False)
    servers.settle()
    assert servers["c"].engine.engine.streams == {}
    servers["c"].stop()
    servers["c"].start()
    assert [one.name for one in servers["c"].groups.stored] == ["S"]


def test_a_closed_group_can_be_opened_again(servers: StreamServers) -> None:
    servers.request(servers["a"], "S.1", b"x")
    closed: list[str] = []
    servers["c"].groups.close(ACCOUNT, "S", remove=False, gone=lambda: closed.append("closed"))
    assert closed == []
    servers.request(servers["a"], "S.1", b"y")
    assert closed == ["closed"]
    servers["c"].assign(assigned())
    servers.pass_time(1000)
    assert servers["c"].replica().stream.log.last_seq == 2


def test_a_closed_group_can_be_removed(servers: StreamServers) -> None:
    servers["c"].groups.close(ACCOUNT, "S", remove=False)
    servers.settle()
    [stored] = servers["c"].groups.stored
    servers["c"].groups.remove_unclaimed(stored, lambda: None)
    servers.settle()
    assert servers["c"].groups.stored == []


def test_a_server_that_is_no_founder_waits_until_it_is_added() -> None:
    servers = StreamServers()
    servers.begin(assigned(founders="a"))
    assert servers["b"].stream().leader is None
    assert servers.request(servers["a"], "S.1", b"x")["seq"] == 1


def test_an_entry_that_cannot_be_applied_costs_this_replica_only(
    servers: StreamServers, noted_faults: list[BaseException]
) -> None:
    servers.request(servers["a"], "S.1", b"x")
    servers["c"].replica()._fail(ValueError("a mistake"), 3)
    servers.request(servers["a"], "S.1", b"y")
    assert "a mistake" in str(noted_faults)
    assert "set aside" in servers["c"].stream().failure or "entry 3" in servers["c"].stream().failure
    assert servers["c"].events[-1][:2] == ("S", "failed")
    assert servers.request(servers["a"], "S.1", b"z")["seq"] == 3
    noted_faults.clear()


def test_a_stream_that_its_engine_sets_aside_ends_its_group_here(
    servers: StreamServers, noted_faults: list[BaseException]
) -> None:
    engine = servers["c"].engine.engine
    engine.containment.set_aside(servers["c"].replica().stream, "a bug")
    servers.request(servers["a"], "S.1", b"y")
    assert "a bug" in servers["c"].stream().failure
    noted_faults.clear()


def test_the_name_of_a_group_says_which_stream_it_is() -> None:
    name = group_name("cl", assigned(name="ORDERS"))
    stored = stored_of(name)
    assert stored is not None
    assert (stored.account, stored.name, stored.cluster_id, stored.incarnation) == (
        ACCOUNT,
        "ORDERS",
        "cl",
        7,
    )
    assert stored_name(stored) == name
    assert [stored_of(other) for other in ("_meta_", "S/x", "S/c/x/a/b", "")] == [None] * 4


# --- requests without a leader


def waiting_request(number: int = 1) -> PassedRequest:
    return PassedRequest(ACCOUNT, b"$JS.API.STREAM.PURGE.S", b"_INBOX.%d" % number, b"", b"")


def served(server: StreamServerUnderTest) -> list[object]:
    return [what for _, kind, what in server.events if kind == "request"]


def test_a_request_during_a_hand_over_is_served_by_the_next_leader(servers: StreamServers) -> None:
    servers["b"].is_slow = servers["c"].is_slow = True
    publish(servers["a"], b"", b"1")  # the hand-over waits until it is committed
    servers.settle()
    group = servers["a"].stream()
    assert not group.defers_requests
    assert group.port.step_down("c.d")
    assert group.defers_requests
    group.defer(waiting_request())
    servers.pass_time(50)
    assert served(servers["a"]) == []
    servers["b"].is_slow = servers["c"].is_slow = False
    servers.pass_time(200)
    assert servers.leader() is servers["c"]
    assert [served(one) for one in servers.streams.values()] == [[], [], [waiting_request().subject]]


def test_a_request_is_served_where_a_hand_over_failed(servers: StreamServers) -> None:
    servers["a"].stream().port.step_down("c.d")
    servers["c"].stop(loses_power=True)
    servers["a"].stream().defer(waiting_request())
    servers.pass_time(1400)
    assert servers.leader() is servers["a"]
    assert served(servers["a"]) == [waiting_request().subject]


def test_a_read_during_an_election_is_served_by_the_leader_that_it_brings(servers: StreamServers) -> None:
    """One server is gone, and the leader dies: the third one finds it silent before the other is back."""
    servers["c"].stop()
    servers.pass_time(100)
    servers["a"].stop()
    group = servers["b"].stream()
    assert not group.is_electing
    while not group.is_electing:
        servers.pass_time(10)
    group.defer(waiting_request())
    servers["c"].start()
    servers["c"].assign(assigned())
    servers.link()
    servers.pass_time(1400)
    leader = servers.leader()
    assert [served(one) for one in servers.streams.values() if served(one)] == [[waiting_request().subject]]
    assert served(leader) == [waiting_request().subject]
    assert not group.is_electing


def test_a_member_without_a_majority_expects_a_leader_for_a_moment_only(servers: StreamServers) -> None:
    for name in "ac":
        servers[name].stop(loses_power=True)
    group = servers["b"].stream()
    expecting = []
    for _ in range(60):
        servers.pass_time(100)
        expecting.append(group.is_electing)
    assert any(expecting)
    assert not expecting[-1]
    assert group.leader is None


def test_requests_without_a_next_leader_wait_for_a_bounded_time_and_in_bounded_number() -> None:
    now = [0]
    deferred = DeferredRequests(lambda: now[0])
    for number in range(DEFERRED_MAX + 1):
        deferred.add(waiting_request(number), HOLD_NS * 2)
    assert len(deferred) == DEFERRED_MAX
    now[0] = HOLD_NS - 1
    deferred.drop_expired()
    assert len(deferred) == DEFERRED_MAX
    assert deferred.take()[0] == (waiting_request(0), 1)
    deferred.add(waiting_request(), 10)
    now[0] += 10
    assert deferred.take() == []


def test_a_read_that_is_lost_says_so(servers: StreamServers) -> None:
    lost: list[str] = []
    group = servers["a"].stream()
    for name in "bc":
        servers[name].stop(loses_power=True)
        servers["a"].node.peer_unlinked(f"{name}.d")
    assert group.read_index(Confirmation(lambda: lost.append("done"), lambda: lost.append("lost")))
    servers.pass_time(5000)
    assert lost == ["lost"]
    assert not group.read_index(Confirmation(lambda: None, lambda: lost.append("at once")))
    assert lost == ["lost", "at once"]


def test_a_former_leader_takes_late_requests_for_the_next_one_which_serves_each_once(
    servers: StreamServers,
) -> None:
    old, new = servers["a"].stream(), servers["c"].stream()
    assert old.port.step_down("c.d")
    servers.pass_time(50)
    assert servers.leader() is servers["c"]
    assert old.takes_late_requests
    assert not new.takes_late_requests
    assert new.is_first(waiting_request(1), is_late=False)
    assert new.is_first(waiting_request(1), is_late=False), "a client may ask twice"
    assert not new.is_first(waiting_request(1), is_late=True)
    assert new.is_first(waiting_request(2), is_late=True)
    assert not new.is_first(waiting_request(2), is_late=True)
    servers.pass_time(250)
    assert not old.takes_late_requests
    servers.pass_time(2000)
    assert not new.is_changing
