"""What clients and monitoring see of a cluster: `cluster` objects, `meta_cluster`, advisories; and from
requests to commands."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.errors import JetStreamApiError
from penstock.jetstream.advisories import Advisories
from penstock.jetstream.limits import EngineConfig
from penstock.jetstream.meta import cluster_advisories as advisories
from penstock.jetstream.meta import meta_commands as commands
from penstock.jetstream.meta import meta_requests as requests
from penstock.jetstream.meta.cluster_infos import (
    GroupSight,
    MemberSight,
    consumer_cluster,
    meta_cluster,
    stream_alternates,
    stream_cluster,
)
from penstock.jetstream.meta.meta_requests import MetaRequest
from penstock.jetstream.meta.meta_tables import MetaTables
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import ServiceSink
from penstock.kernels.wire.sinks import SinkSubscription
from penstock.protocol.api import (
    AccountLimits,
    ApiConsumerConfig,
    ConsumerCreateRequest,
    DesiredClusterStatus,
    ExternalStream,
    LeaderStepDownRequest,
    PeerRemoveRequest,
    Placement,
    ServerRemoveRequest,
    StreamConfigRequest,
    StreamMoveRequest,
    StreamSource,
    encode,
)
from tests.support.meta_groups import ENGINE, MetaGroup, error_of

pytestmark = pytest.mark.feature("cluster.administration")
SECOND = 10**9
ACCOUNT = "$G"
NOW = 1_800_000_000 * SECOND


def seen(own: str, leader: str, **members: MemberSight) -> GroupSight:
    return GroupSight(own=own, leader=leader, leader_since=NOW - 5 * SECOND, members=members)


def fresh(**fields: Any) -> MemberSight:
    return MemberSight(**{"is_current": True, "heard": NOW - SECOND, **fields})


def shown(value: object) -> Any:
    return json.loads(encode(value))


@pytest.fixture
def group() -> MetaGroup:
    group = MetaGroup(4)
    group.create("S", on="A")
    group.create("ONE", 1, on="B")
    return group


def test_a_stream_and_its_mirrors_are_alternates(group: MetaGroup) -> None:
    def names() -> list[str]:
        return [one.name for one in stream_alternates(group.machine.tables, ACCOUNT, "S", "hub")]

    assert names() == []
    group.create("N", 1, subjects=[], mirror=StreamSource(name="S"))
    group.create("M", subjects=[], mirror=StreamSource(name="S"))
    far = ExternalStream(api="$JS.far.API")
    group.create("FAR", 1, subjects=[], mirror=StreamSource(name="S", external=far))
    assert names() == ["S", "M", "N"]
    assert shown(stream_alternates(group.machine.tables, ACCOUNT, "S", "hub")[1]) == {
        "name": "M", "domain": "hub", "cluster": "c",
    }  # fmt: skip
    assert stream_alternates(group.machine.tables, ACCOUNT, "M", "") == []
    restored = MetaTables.decode(group.machine.tables.encode())
    assert len(stream_alternates(restored, ACCOUNT, "S", "")) == 3
    group.update("N", mirror=None, subjects=["n"])
    assert names() == ["S", "M"]
    group.apply(commands.DeleteStream(ACCOUNT, "M"))
    assert names() == []


def test_a_replicated_stream_shows_its_group(group: MetaGroup) -> None:
    leader, *others = group.stream("S").group.peers
    members = {others[0]: fresh(), others[1]: fresh(heard=NOW - 11 * SECOND, lag=7)}
    info = stream_cluster(group.machine.tables, group.stream("S"), seen(leader, leader, **members), NOW)
    replicas = [
        {"name": others[0].lower(), "current": True, "active": SECOND, "peer": others[0]},
        {"name": others[1].lower(), "current": False, "active": 11 * SECOND, "lag": 7, "peer": others[1]},
    ]
    assert shown(info) == {
        "name": "c",
        "raft_group": group.stream("S").group.name,
        "leader": leader.lower(),
        "leader_since": "2027-01-15T07:59:55Z",
        "system_account": True,
        "traffic_account": "$SYS",
        "replicas": sorted(replicas, key=lambda one: str(one["name"])),
    }


def test_a_stream_with_one_server_shows_its_leader_only(group: MetaGroup) -> None:
    info = stream_cluster(group.machine.tables, group.stream("ONE"), seen("B", "B"), NOW)
    assert shown(info) == {"name": "c", "leader": "b"}


def test_without_a_leader_all_members_are_shown(group: MetaGroup) -> None:
    group.see("A", online=False)
    members = {peer: fresh() for peer in group.stream("S").group.peers}
    info = stream_cluster(group.machine.tables, group.stream("S"), seen("B", "", **members), NOW)
    assert info.leader == ""
    assert info.leader_since is None
    assert len(info.replicas) == 3
    assert [one.offline for one in info.replicas] == [True, False, False]


def test_an_unknown_server_is_named_by_its_id(group: MetaGroup) -> None:
    stream = group.stream("S")
    group.apply(commands.RemoveServer("A"))
    group.apply(commands.PeerGone("A"))
    info = stream_cluster(group.machine.tables, stream, seen("B", "B", A=fresh(lag=3)), NOW)
    (unknown,) = [one for one in info.replicas if one.peer == "A"]
    assert unknown.name == "Server name unknown at this time (peerID: A)"
    assert (unknown.lag, unknown.offline) == (0, True)


def test_a_leader_whose_name_is_not_known_yet_is_shown_as_none(group: MetaGroup) -> None:
    stream, lone = group.stream("S"), group.stream("ONE")
    sight = seen("B", "Z", B=fresh(), Z=fresh())
    assert stream_cluster(group.machine.tables, stream, sight, NOW).leader == ""
    assert stream_cluster(group.machine.tables, lone, sight, NOW).leader == ""
    assert meta_cluster(group.machine.tables, "c", sight, NOW, voters="BZ").leader == ""


def test_a_scale_up_shows_who_is_pending_and_what_is_wanted(group: MetaGroup) -> None:
    created = group.now + 1000
    group.update("ONE", num_replicas=3)
    stream = group.stream("ONE")
    status = DesiredClusterStatus(description="waiting for c.d to catch up", type="catchup")
    learner, other = stream.target[1:]
    sight = GroupSight(
        own="B", leader="B", members={"B": fresh(), learner: fresh(is_voter=False, lag=9)}, status=status
    )
    info = shown(stream_cluster(group.machine.tables, stream, sight, NOW))
    replicas = {one["peer"]: one for one in info["replicas"]}
    assert replicas[learner]["pending"] is True
    assert replicas[learner]["lag"] == 9
    assert replicas[other] == {
        "name": other.lower(), "current": False, "active": 0, "peer": other, "pending": True,
    }  # fmt: skip
    desired = info["desired"]
    assert desired["name"] == "c"
    assert [one["peer"] for one in desired["replicas"]] == sorted(stream.target)
    assert desired["origin"] == {"replicas": 1}
    assert desired["status"] == {"description": "waiting for c.d to catch up", "type": "catchup"}
    assert created == stream.desired.created  # type: ignore[union-attr]


def test_a_scale_down_shows_no_servers_until_they_are_chosen(group: MetaGroup) -> None:
    group.update("S", num_replicas=1)
    members = {peer: fresh() for peer in group.stream("S").group.peers}
    info = shown(stream_cluster(group.machine.tables, group.stream("S"), seen("A", "A", **members), NOW))
    assert "replicas" not in info["desired"]
    assert not any(one.get("pending") for one in info["replicas"])
    assert info["desired"]["origin"] == {"replicas": 3}


def test_a_consumer_shows_the_servers_of_its_stream_under_its_own_name(group: MetaGroup) -> None:
    group.consume("S", "d", durable_name="d")
    group.consume("S", "e")
    tables, stream = group.machine.tables, group.stream("S")
    sight = seen("A", "A", **{peer: fresh() for peer in stream.group.peers})
    info = consumer_cluster(tables, stream, group.consumer("S", "d"), sight, NOW)
    assert info.raft_group.startswith("C-R3F-")
    assert len(info.replicas) == 2
    lone = consumer_cluster(tables, stream, group.consumer("S", "e"), sight, NOW)
    assert shown(lone) == {"name": "c", "leader": "a"}


def test_meta_cluster_shows_all_but_the_server_that_answers(group: MetaGroup) -> None:
    sight = seen("B", "A", A=fresh(), C=fresh(lag=2))
    page = shown(meta_cluster(group.machine.tables, "c", sight, NOW, voters="ABC", pending=1))
    assert page["leader"] == "a"
    assert page["peer"] == "A"
    assert [one["name"] for one in page["replicas"]] == ["a", "c"]
    assert (page["cluster_size"], page["quorum_needed"]) == (3, 2)
    assert page["snapshot"] == {"pending_entries": 0, "pending_size": 0}
    assert {"pending", "pending_requests", "pending_infos"} <= page.keys()
    assert "leader" not in shown(meta_cluster(group.machine.tables, "c", seen("B", ""), NOW, voters="ABC"))


# --- advisories ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("advisory", "suffix", "kind", "names"),
    [
        (
            advisories.stream_leader_elected("$G", "S", "a", []),
            "STREAM.LEADER_ELECTED.S", "stream_leader_elected", "account stream leader replicas",
        ),
        (
            advisories.stream_quorum_lost("$G", "S", []),
            "STREAM.QUORUM_LOST.S", "stream_quorum_lost", "account stream replicas",
        ),
        (
            advisories.consumer_leader_elected("$G", "S", "c", "a", []),
            "CONSUMER.LEADER_ELECTED.S.c", "consumer_leader_elected",
            "account stream consumer leader replicas",
        ),
        (
            advisories.consumer_quorum_lost("$G", "S", "c", []),
            "CONSUMER.QUORUM_LOST.S.c", "consumer_quorum_lost", "account stream consumer replicas",
        ),
        (
            advisories.domain_leader_elected("A", [], "c"),
            "DOMAIN.LEADER_ELECTED", "domain_leader_elected", "leader replicas cluster",
        ),
        (
            advisories.server_removed("a", "ID", "c"),
            "SERVER.REMOVED", "server_removed", "server server_id cluster",
        ),
    ],
)  # fmt: skip
def test_an_advisory_is_published_with_its_fields(
    advisory: advisories.ClusterAdvisory, suffix: str, kind: str, names: str
) -> None:
    index = SubscriptionIndex()
    got: list[tuple[bytes, Any]] = []

    def take(subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: object) -> None:
        got.append((subject, json.loads(payload)))

    index.insert(SinkSubscription(ServiceSink(take), b"$JS.EVENT.ADVISORY.>"))
    publisher = Advisories(index, clock=lambda: NOW, new_id=lambda: "id")
    publisher.publish(advisory.suffix, advisory.kind, advisory.fields)
    ((subject, event),) = got
    assert subject.decode() == f"$JS.EVENT.ADVISORY.{suffix}"
    assert event["type"] == f"io.nats.jetstream.advisory.v1.{kind}"
    assert event.keys() == {"type", "id", "timestamp", *names.split()}
    assert advisory.for_account().keys() == set(names.split()) - {"account"}
    assert advisory.in_account is ("account" in names)


# --- requests ------------------------------------------------------------------------------------


ORIGIN = MetaRequest(account="$G", clusters=("c",), engine=ENGINE, ticket=b"t")


def code(call: Any, *arguments: Any) -> int:
    with pytest.raises(JetStreamApiError) as info:
        call(*arguments)
    return int(info.value.err_code)


def test_a_request_becomes_a_checked_command() -> None:
    command = requests.create_stream(ORIGIN, StreamConfigRequest(name="S", num_replicas=3))
    assert command.config.subjects == ["S"]
    assert command.config.max_msgs == -1
    assert command.rules.limits == {"": AccountLimits()}
    group = MetaGroup()
    assert error_of(group.apply(command)) == 0
    restored = requests.restore_stream(ORIGIN, StreamConfigRequest(name="T", sealed=True), "A")
    assert (restored.is_restore, restored.on, restored.config.sealed) == (True, "A", True)
    assert code(requests.create_stream, ORIGIN, StreamConfigRequest(name="S", num_replicas=6)) == 10052
    alone = MetaRequest(account="$G", clusters=("c",), engine=EngineConfig())
    assert code(requests.create_stream, alone, StreamConfigRequest(name="S", num_replicas=3)) == 10074


def test_an_update_is_checked_against_the_present_configuration(group: MetaGroup) -> None:
    tables = group.machine.tables
    update = requests.update_stream(tables, ORIGIN, StreamConfigRequest(name="S", num_replicas=3, max_msgs=5))
    assert error_of(group.apply(update)) == 0
    assert group.stream("S").config.max_msgs == 5
    assert code(requests.update_stream, tables, ORIGIN, StreamConfigRequest(name="Z")) == 10059
    memory = StreamConfigRequest(name="S", storage=type(update.config.storage)("memory"))
    assert code(requests.update_stream, tables, ORIGIN, memory) == 10052


def test_a_consumer_request_becomes_a_command(group: MetaGroup) -> None:
    body = ConsumerCreateRequest(stream_name="S", config=ApiConsumerConfig(name="c"))
    command = requests.create_consumer(group.machine.tables, ORIGIN, "c", body)
    assert command.from_default
    assert error_of(group.apply(command)) == 0
    many = ConsumerCreateRequest(stream_name="S", config=ApiConsumerConfig(durable_name="d", num_replicas=5))
    assert code(requests.create_consumer, group.machine.tables, ORIGIN, "d", many) == 10126


def test_members_are_removed_by_name_or_id(group: MetaGroup) -> None:
    remove = requests.remove_from_stream(ORIGIN, "S", PeerRemoveRequest(peer="a"))
    assert error_of(group.apply(remove)) == 0
    assert code(requests.remove_from_stream, ORIGIN, "S", PeerRemoveRequest()) == 10003
    move = requests.move_stream(ORIGIN, "$G", "S", StreamMoveRequest(server="b", tags=["x"]))
    assert (move.server, move.tags) == ("b", ("x",))


@pytest.mark.parametrize(
    ("stream", "consumer", "peer", "expected"),
    [
        ("S", "c", "", 10003),
        ("Z", "c", "a", 10059),
        ("S", "z", "a", 10014),
        ("S", "c", "z", 10040),
        ("S", "c", "A", 10075),
    ],
)
def test_a_consumer_has_the_members_of_its_stream(
    group: MetaGroup, stream: str, consumer: str, peer: str, expected: int
) -> None:
    group.consume("S", "c", durable_name="c")
    request = PeerRemoveRequest(peer=peer)
    error = requests.check_consumer_removal(group.machine.tables, "$G", stream, consumer, request)
    assert error.err_code == expected


def test_a_server_is_found_by_name_and_its_id_takes_precedence(group: MetaGroup) -> None:
    tables = group.machine.tables
    assert requests.find_server(tables, ServerRemoveRequest(peer="a")) == "A"
    assert requests.find_server(tables, ServerRemoveRequest(peer="a", peer_id="B")) == "B"
    assert code(requests.find_server, tables, ServerRemoveRequest(peer="A")) == 10044
    assert code(requests.find_server, tables, ServerRemoveRequest(peer="a", peer_id="Z")) == 10044


def test_a_leader_steps_down_for_a_named_member(group: MetaGroup) -> None:
    tables, stream = group.machine.tables, group.stream("S")
    leader, other = stream.group.peers[:2]

    def wish(**fields: Any) -> LeaderStepDownRequest:
        return LeaderStepDownRequest(placement=Placement(**fields))

    assert requests.stream_step_down(tables, stream, leader, LeaderStepDownRequest()) is None
    assert requests.stream_step_down(tables, stream, leader, wish(preferred=other.lower())) == other
    assert code(requests.stream_step_down, tables, stream, leader, wish(preferred=leader.lower())) == 10005
    assert requests.meta_step_down(tables, list("ABCD"), "A", wish(preferred="d")) == "D"
    assert code(requests.meta_step_down, tables, list("ABC"), "A", wish(preferred="d")) == 10005
    assert requests.stream_step_down(tables, group.stream("ONE"), "B", wish(preferred="b")) is None
