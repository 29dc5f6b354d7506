"""What the leader of a stream's group does for the cluster: streams and consumers as the meta state has them,
and answers to the requests that wanted them."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from msgspec import structs

from penstock.errors import JetStreamApiError, LeadershipLostError, ServerError, StoreError
from penstock.jetstream.consumer.consumer_replica import ConsumerReplica
from penstock.jetstream.consumer_registry import ConsumerRegistry
from penstock.jetstream.engine import JetStreamEngine
from penstock.jetstream.meta import meta_commands as commands
from penstock.jetstream.meta.desired_state import ConsumerDifference, consumer_difference
from penstock.jetstream.meta.meta_commands import DeleteConsumer
from penstock.jetstream.meta.meta_effects import ConsumerEffect, MetaEffect, StreamEffect
from penstock.jetstream.replicated_stream import ReplicatedStream
from penstock.jetstream.stream_registry import StreamRegistry
from penstock.protocol.api import (
    AckPolicy,
    ApiConsumerConfig,
    ApiError,
    ConsumerCreateResponse,
    ConsumerPauseResponse,
    StreamCancelMoveResponse,
    StreamCreateResponse,
    StreamUpdateResponse,
    SuccessResponse,
)
from penstock.server.replicated import asset_duties, waiting_tickets
from penstock.server.replicated.asset_duties import AGAIN_NS, AssetDuties
from penstock.server.replicated.request_tickets import RequestTicket
from penstock.server.replicated.waiting_tickets import TICKET_NS
from tests.support.meta_groups import START_NS, MetaGroup, consumer_config_of, no_limits
from tests.support.replicated_engines import ReplicatedEngines
from tests.support.supervised_groups import KnownMeta, ListedGroup, ListedGroups

pytestmark = pytest.mark.feature("cluster.administration")

ACCOUNT = "$G"
SECOND = 1_000_000_000
ERROR = JetStreamApiError(400, 10999, "not possible here")
Steps = Generator[int, None, Any]


def ticket(verbs: str = "STREAM.CREATE", reply: bytes = b"r") -> bytes:
    return RequestTicket(ACCOUNT, verbs, f"$JS.API.{verbs}.S", ("S",), reply).encode()


class DutiesOfA:
    """Server A leads the groups of streams in a cluster of three; two engines have their replicas."""

    def __init__(self) -> None:
        self.cluster = MetaGroup(3)
        self.engines = ReplicatedEngines(2, is_clustered=True, now=START_NS)
        self.meta = KnownMeta(self.cluster.machine, "A")
        self.groups = ListedGroups()
        self.now = START_NS
        self.answers: list[tuple[bytes, Any]] = []
        self.engine = self.engines.engines[0].engine
        ports: dict[str, Any] = {"groups": self.groups, "meta": self.meta}
        self.duties = AssetDuties(
            **ports,
            engine_of=self.engine_of,
            answer=lambda ticket, response: self.answers.append((ticket.reply, response)),
            clock=lambda: self.now,
            monotonic=lambda: self.now,
        )
        self.no_engine: Exception | None = None  # with which the next look for the engine fails

    def engine_of(self, account: str) -> JetStreamEngine:
        error, self.no_engine = self.no_engine, None
        if error is not None:
            raise error
        return self.engine

    def hear(self, effects: list[MetaEffect]) -> None:
        """Commands were applied."""
        for effect in effects:
            if isinstance(effect, StreamEffect):
                self.duties.stream_changed(effect)
            elif isinstance(effect, ConsumerEffect):
                self.duties.consumer_changed(effect)

    def open(self, name: str) -> ListedGroup:
        """The group of an assigned stream is open, and this server leads it."""
        assignment = self.cluster.stream(name)
        fields = structs.asdict(assignment.config)
        del fields["name"]
        self.engines.open(name, *fields.pop("subjects"), **fields)
        group = ListedGroup(assignment, self.engines.replicas[name][0])
        group.serve("a.d", "b.d", "c.d")
        self.groups.add(group)
        self.change(group)
        return group

    def change(self, group: Any) -> None:
        """The group has another leader, or none."""
        self.duties.role_changed(group)

    def create(self, name: str = "S", data: bytes = b"") -> ListedGroup:
        """Creates a stream and opens its group."""
        self.hear(self.cluster.create(name, subjects=[f"{name}.>"], ticket=data))
        return self.open(name)

    def consume(self, name: str, stream: str = "S", data: bytes = b"", **fields: Any) -> None:
        """Creates or changes a durable consumer."""
        config = consumer_config_of(
            self.cluster.stream(stream).config, durable_name=name, ack_policy=AckPolicy.EXPLICIT, **fields
        )
        self.hear(
            self.cluster.apply(
                commands.CreateConsumer(ACCOUNT, stream, name, config, rules=no_limits(), ticket=data)
            )
        )

    def settle(self, later_ns: int = 0) -> None:
        """Lets time pass, and the groups commit."""
        self.now += later_ns
        for _ in range(10):
            self.duties.tick()
            self.engines.settle()
            for name, group in self.engines.groups.items():
                for consumer in group.dropped:
                    self.duties.consumer_dropped((ACCOUNT, name), consumer)
                group.dropped.clear()
            self.now += AGAIN_NS // 50

    def replica(self, name: str = "S") -> ReplicatedStream:
        return self.engines.replicas[name][0]

    def consumers(self, name: str = "S") -> list[str]:
        """The consumers that every replica has."""
        found = [sorted(one.standby.by_name) for one in self.engines.replicas[name]]
        assert found[0] == found[1]
        return found[0]

    def taken_answers(self) -> list[tuple[bytes, Any]]:
        """Removes and returns the answers."""
        answers, self.answers = self.answers, []
        return answers


@pytest.fixture
def it() -> DutiesOfA:
    return DutiesOfA()


# --- answers about streams ------------------------------------------------------------------------


def test_the_leader_of_a_created_stream_answers_its_request_once(it: DutiesOfA) -> None:
    it.create(data=ticket())
    it.settle()
    [(reply, answer)] = it.taken_answers()
    assert isinstance(answer, StreamCreateResponse)
    assert (reply, answer.did_create, answer.config.name) == (b"r", True, "S")
    it.duties.look_at((ACCOUNT, "S"))
    it.settle(AGAIN_NS)
    assert it.answers == []


def test_an_answer_waits_until_the_group_has_confirmed_that_this_server_leads(it: DutiesOfA) -> None:
    it.create(data=ticket())
    it.duties.tick()
    assert (it.answers, len(it.engines.groups["S"].reads)) == ([], 1)
    it.engines.settle()
    assert len(it.answers) == 1


def test_a_request_for_a_stream_that_is_there_is_answered_as_not_created(it: DutiesOfA) -> None:
    it.create()
    it.hear(it.cluster.create("S", subjects=["S.>"], ticket=ticket()))
    it.settle()
    [(_, answer)] = it.answers
    assert isinstance(answer, StreamCreateResponse)
    assert not answer.did_create


@pytest.mark.parametrize(
    ("verbs", "kind"),
    [
        ("STREAM.UPDATE", StreamUpdateResponse),
        ("STREAM.CANCEL_MOVE", StreamCancelMoveResponse),
        ("ACCOUNT.STREAM.CANCEL_MOVE", StreamCancelMoveResponse),
        ("ACCOUNT.STREAM.MOVE", StreamUpdateResponse),
    ],
)
def test_the_answer_is_of_the_kind_of_the_request(it: DutiesOfA, verbs: str, kind: type) -> None:
    it.create()
    it.hear(it.cluster.update("S", description="new", ticket=ticket(verbs)))
    it.settle()
    assert [type(answer) for _, answer in it.answers] == [kind]


def test_an_update_is_answered_when_every_replica_has_the_new_configuration(it: DutiesOfA) -> None:
    it.create()
    it.settle()
    it.hear(it.cluster.update("S", max_msgs=5, ticket=ticket("STREAM.UPDATE")))
    it.duties.tick()
    assert (it.answers, it.replica().stream.config.max_msgs) == ([], -1)
    it.settle()
    assert [one.stream.config.max_msgs for one in it.engines.replicas["S"]] == [5, 5]
    [(_, answer)] = it.answers
    assert answer.config.max_msgs == 5


def test_requests_for_the_same_stream_are_all_answered(it: DutiesOfA) -> None:
    it.create(data=ticket(reply=b"1"))
    for reply in (b"2", b"3"):
        it.hear(it.cluster.create("S", subjects=["S.>"], ticket=ticket(reply=reply)))
    it.settle()
    assert [(reply, answer.did_create) for reply, answer in it.answers] == [
        (b"1", True), (b"2", False), (b"3", False),
    ]  # fmt: skip


def test_a_stream_that_is_not_of_this_server_concerns_others(it: DutiesOfA) -> None:
    it.cluster.join("D")
    effects = it.cluster.create("S", 1, on="D", ticket=ticket())
    it.hear(effects)
    it.hear(it.cluster.consume("S", "c", durable_name="c"))
    assert not it.duties.has_work
    assert it.duties.lost_tickets((ACCOUNT, "S"), it.cluster.stream("S").incarnation) == []


def test_a_ticket_of_a_newer_version_costs_the_answer_and_not_the_work(it: DutiesOfA) -> None:
    it.create()
    it.settle()
    it.hear(it.cluster.update("S", max_msgs=5, ticket=b"\xff\xff"))
    it.settle()
    assert (it.answers, it.replica().stream.config.max_msgs) == ([], 5)


def test_the_tickets_that_wait_for_one_stream_are_bounded(
    it: DutiesOfA, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_tickets, "TICKETS_MAX", 2)
    for reply in (b"1", b"2", b"3"):
        it.hear(it.cluster.create("S", subjects=["S.>"], ticket=ticket(reply=reply)))
    it.open("S")
    it.settle()
    assert [reply for reply, _ in it.answers] == [b"1", b"2"]


# --- who answers ----------------------------------------------------------------------------------


def test_a_request_waits_for_the_group_of_its_stream_and_then_for_a_leader(it: DutiesOfA) -> None:
    it.hear(it.cluster.create("S", subjects=["S.>"], ticket=ticket()))
    it.settle()
    group = it.open("S")
    group.follow(None)
    it.change(group)
    it.settle()
    assert it.answers == []
    group.serve("a.d", "b.d", "c.d")
    it.change(group)
    it.settle()
    assert [reply for reply, _ in it.answers] == [b"r"]


def test_a_server_that_sees_another_one_lead_leaves_the_answer_to_it(it: DutiesOfA) -> None:
    group = it.create(data=ticket())
    group.follow("b.d")
    it.change(group)
    it.settle()
    group.serve("a.d", "b.d", "c.d")
    it.change(group)
    it.settle()
    assert it.answers == []


def test_a_request_is_forgotten_when_no_client_waits_any_more(it: DutiesOfA) -> None:
    it.hear(it.cluster.create("S", subjects=["S.>"], ticket=ticket(reply=b"old")))
    it.now += TICKET_NS - 1
    it.hear(it.cluster.create("S", subjects=["S.>"], ticket=ticket(reply=b"new")))
    it.now += 1
    it.duties.tick()
    it.open("S")
    it.settle()
    assert [reply for reply, _ in it.answers] == [b"new"]


def test_a_request_for_a_deleted_stream_is_not_answered_by_the_next_one_of_its_name(it: DutiesOfA) -> None:
    it.hear(it.cluster.create("S", subjects=["S.>"], ticket=ticket(reply=b"first")))
    it.hear(it.cluster.apply(commands.DeleteStream(ACCOUNT, "S")))
    assert not it.duties.has_work
    it.create(data=ticket(reply=b"second"))
    it.settle()
    assert [reply for reply, _ in it.answers] == [b"second"]


def test_the_group_of_an_earlier_stream_does_not_answer_for_the_one_created_again(it: DutiesOfA) -> None:
    it.create()
    it.settle()
    it.cluster.apply(commands.DeleteStream(ACCOUNT, "S"))
    it.hear(it.cluster.create("S", subjects=["S.>"], max_msgs=5, ticket=ticket()))
    it.settle()
    assert (it.answers, it.replica().stream.config.max_msgs) == ([], -1)


def test_tickets_of_a_creation_that_failed_are_given_back_once(it: DutiesOfA) -> None:
    it.hear(it.cluster.create("S", subjects=["S.>"], ticket=ticket(reply=b"made")))
    it.hear(it.cluster.create("S", subjects=["S.>"], ticket=ticket(reply=b"present")))
    key, incarnation = (ACCOUNT, "S"), it.cluster.stream("S").incarnation
    assert it.duties.lost_tickets(key, incarnation + 1) == []
    assert [one.reply for one in it.duties.lost_tickets(key, incarnation)] == [b"made"]
    assert it.duties.lost_tickets(key, incarnation) == []
    it.open("S")
    it.settle()
    assert [reply for reply, _ in it.answers] == [b"present"]


# --- consumers ------------------------------------------------------------------------------------


def test_the_leader_makes_an_assigned_consumer_with_its_time_of_creation_and_answers(it: DutiesOfA) -> None:
    it.create()
    it.consume("c", data=ticket("CONSUMER.DURABLE.CREATE"))
    it.duties.tick()
    assert it.answers == []
    it.settle()
    assert it.consumers() == ["c"]
    assert it.replica().standby.by_name["c"].meta.created == it.cluster.consumer("S", "c").created
    [(_, answer)] = it.answers
    assert isinstance(answer, ConsumerCreateResponse)
    assert (answer.stream_name, answer.name) == ("S", "c")


def test_a_consumer_that_delivers_at_once_is_shown_as_it_began(it: DutiesOfA) -> None:
    it.create()
    for _ in range(3):
        it.engines.publish(b"S.a")
    it.settle()
    heard = it.engines.engines[0].listen(b"deliver.here")
    it.consume("c", data=ticket("CONSUMER.CREATE"), deliver_subject="deliver.here")
    it.settle()
    [(_, answer)] = it.taken_answers()
    assert len(heard) == 3
    assert (answer.delivered.consumer_seq, answer.num_pending, answer.num_ack_pending) == (0, 3, 0)
    it.consume("c", data=ticket("CONSUMER.CREATE"), deliver_subject="deliver.here")
    it.settle()
    [(_, answer)] = it.taken_answers()
    assert (answer.delivered.consumer_seq, answer.num_pending, answer.num_ack_pending) == (3, 0, 3)


def test_a_changed_consumer_is_changed_in_its_group_and_answered(it: DutiesOfA) -> None:
    it.create()
    it.consume("c")
    it.settle()
    created = it.replica().standby.by_name["c"].meta.created
    it.consume("c", description="new", data=ticket("CONSUMER.CREATE"))
    it.settle()
    for one in it.engines.replicas["S"]:
        meta = one.standby.by_name["c"].meta
        assert (meta.config.description, meta.created) == ("new", created)
    [(_, answer)] = it.answers
    assert answer.config.description == "new"


def test_an_answer_about_a_consumer_waits_until_the_group_has_confirmed_the_leader(it: DutiesOfA) -> None:
    it.create()
    it.consume("c")
    it.settle()
    it.consume("c", data=ticket("CONSUMER.CREATE"))
    it.duties.tick()
    assert (it.answers, len(it.engines.groups["S"].reads)) == ([], 1)
    it.engines.settle()
    assert len(it.answers) == 1


def test_a_request_for_a_deleted_consumer_is_not_answered_by_the_next_one_of_its_name(it: DutiesOfA) -> None:
    it.create()
    it.consume("c", data=ticket("CONSUMER.CREATE", b"first"))
    it.hear(it.cluster.apply(DeleteConsumer(ACCOUNT, "S", "c")))
    it.consume("c", data=ticket("CONSUMER.CREATE", b"second"))
    it.settle()
    assert [reply for reply, _ in it.answers] == [b"second"]


def test_a_request_to_pause_is_answered_as_one(it: DutiesOfA) -> None:
    it.create()
    it.consume("c")
    it.settle()
    until = "2100-01-01T00:00:00Z"
    pause = commands.PauseConsumer(ACCOUNT, "S", "c", until, ticket("CONSUMER.PAUSE"))
    it.hear(it.cluster.apply(pause))
    it.settle()
    [(_, answer)] = it.answers
    assert isinstance(answer, ConsumerPauseResponse)
    assert (answer.paused, answer.pause_until) == (True, until)


def test_a_deleted_consumer_is_dropped_from_its_group(it: DutiesOfA) -> None:
    it.create()
    it.consume("c")
    it.consume("d")
    it.settle()
    assert it.consumers() == ["c", "d"]
    it.hear(it.cluster.apply(DeleteConsumer(ACCOUNT, "S", "c")))
    it.settle()
    assert (it.consumers(), it.meta.submitted) == (["d"], [])


def test_a_request_to_delete_a_consumer_is_answered_when_its_group_has_dropped_it(it: DutiesOfA) -> None:
    """A stream info after that does not count it."""
    it.create()
    it.consume("c")
    it.settle()
    it.hear(it.cluster.apply(DeleteConsumer(ACCOUNT, "S", "c", ticket=ticket("CONSUMER.DELETE"))))
    it.duties.tick()
    assert (it.consumers(), it.answers) == (["c"], [])
    it.settle()
    assert it.consumers() == []
    [(reply, answer)] = it.answers
    assert isinstance(answer, SuccessResponse)
    assert (reply, answer.success, answer.type.rpartition(".")[2]) == (b"r", True, "consumer_delete_response")


def test_the_next_leader_answers_for_a_consumer_that_the_one_before_has_dropped(it: DutiesOfA) -> None:
    group = it.create()
    it.consume("c")
    it.settle()
    group.follow(None)
    it.change(group)
    it.hear(it.cluster.apply(DeleteConsumer(ACCOUNT, "S", "c", ticket=ticket("CONSUMER.DELETE"))))
    it.engine.consumers.delete(it.replica().stream.consumers["c"], sync=False)
    it.settle()
    assert it.consumers() == []
    group.serve("a.d", "b.d", "c.d")
    it.change(group)
    it.settle()
    assert [reply for reply, _ in it.answers] == [b"r"]


def test_a_consumer_that_is_deleted_and_created_again_at_once_answers_both_requests(it: DutiesOfA) -> None:
    it.create()
    it.consume("c")
    it.settle()
    it.hear(it.cluster.apply(DeleteConsumer(ACCOUNT, "S", "c", ticket=ticket("CONSUMER.DELETE", b"1"))))
    it.consume("c", data=ticket("CONSUMER.CREATE", b"2"))
    it.settle()
    assert it.consumers() == ["c"]
    assert [(reply, type(answer)) for reply, answer in it.answers] == [
        (b"1", SuccessResponse), (b"2", ConsumerCreateResponse),
    ]  # fmt: skip


def test_an_offline_consumer_is_deleted_too(it: DutiesOfA) -> None:
    it.create()
    it.consume("c")
    it.settle()
    stream = it.replica().stream
    stream.consumers.pop("c").abandon()
    it.engine.containment.leave_out(stream, "c", "its state cannot be read")
    it.hear(it.cluster.apply(DeleteConsumer(ACCOUNT, "S", "c", ticket=ticket("CONSUMER.DELETE"))))
    it.settle()
    assert (it.consumers(), stream.offline, len(it.answers)) == ([], {}, 1)


def test_a_consumer_that_was_created_again_is_another_one(it: DutiesOfA) -> None:
    it.create()
    it.consume("c")
    it.settle()
    first = it.replica().standby.by_name["c"].meta.created
    it.cluster.apply(DeleteConsumer(ACCOUNT, "S", "c"))
    it.consume("c", data=ticket("CONSUMER.CREATE"))
    it.settle()
    second = it.replica().standby.by_name["c"].meta.created
    assert (second > first, second) == (True, it.cluster.consumer("S", "c").created)
    assert len(it.answers) == 1


@pytest.mark.parametrize("kind", [{"direct": True}, {"sourcing": True}])
def test_consumers_that_mirrors_and_sources_make_are_left_alone(it: DutiesOfA, kind: dict[str, bool]) -> None:
    it.create()
    it.settle()
    config = structs.replace(ApiConsumerConfig(name="m"), **kind)
    stream = it.replica().stream
    it.engine.slices.begin(
        "mirror", it.engine.consumers.propose(stream, config, "m", it.now), lambda _: None, lambda _: None
    )
    it.settle()
    it.consume("c")
    it.settle()
    assert it.consumers() == ["c", "m"]


def test_a_consumer_that_ended_by_itself_is_forgotten_by_the_cluster_and_not_made_again(
    it: DutiesOfA,
) -> None:
    it.create()
    it.consume("c")
    it.settle()
    incarnation = it.cluster.consumer("S", "c").incarnation
    it.engine.consumers.delete(it.replica().stream.consumers["c"], sync=False)
    it.settle()
    forget = DeleteConsumer(ACCOUNT, "S", "c", incarnation)
    assert (it.consumers(), it.meta.submitted) == ([], [forget])
    it.settle(AGAIN_NS)
    assert it.meta.submitted == [forget, forget], "the command may be lost on its way"
    it.hear(it.cluster.apply(forget))
    it.settle(AGAIN_NS)
    assert it.meta.submitted == [forget, forget]


def test_what_a_consumer_costs_does_not_grow_with_the_others(
    it: DutiesOfA, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[str] = []

    def counted(assigned: Any, stored: Any) -> ConsumerDifference:
        compared.extend({one.name for one in (assigned, stored) if one is not None})
        return consumer_difference(assigned, stored)

    it.create()
    names = [f"c{number}" for number in range(200)]
    for name in names:
        it.consume(name)
    it.settle()
    assert it.consumers() == sorted(names)
    entries = len(it.engines.groups["S"].entries)
    assert entries < len(names) // 10, "commands that wait at the same time share an entry"
    monkeypatch.setattr(asset_duties, "consumer_difference", counted)
    it.consume("new", data=ticket("CONSUMER.CREATE"))
    it.settle()
    assert (set(compared), len(it.answers)) == ({"new"}, 1)
    compared.clear()
    it.hear(it.cluster.apply(DeleteConsumer(ACCOUNT, "S", "c7")))
    it.settle()
    assert set(compared) <= {"c7"}
    assert len(it.consumers()) == len(names)


def test_a_leader_compares_consumers_in_slices(it: DutiesOfA) -> None:
    group = it.create()
    for number in range(200):
        it.consume(f"c{number}")
    it.settle()
    group.follow("b.d")
    it.change(group)
    it.hear(it.cluster.apply(DeleteConsumer(ACCOUNT, "S", "c99")))
    group.serve("a.d", "b.d", "c.d")
    it.change(group)
    it.duties.tick()
    it.consume("d", data=ticket("CONSUMER.CREATE"))
    assert len(it.engine.slices) == 1, "the rest of the comparison waits for its turn"
    it.settle()
    assert (len(it.consumers()), len(it.answers)) == (200, 1)


def test_a_leader_that_has_not_seen_a_consumer_makes_it(it: DutiesOfA) -> None:
    group = it.create()
    it.consume("c")
    it.settle()
    group.follow("b.d")
    it.change(group)
    it.engine.consumers.delete(it.replica().stream.consumers["c"], sync=False)
    it.engines.settle()
    assert it.consumers() == []
    group.serve("a.d", "b.d", "c.d")
    it.change(group)
    it.settle()
    assert (it.consumers(), it.meta.submitted) == (["c"], [])


# --- refusals and failures ------------------------------------------------------------------------


def failing(error: Exception) -> Any:
    """A method with steps, which fails."""

    def method(self: object, *args: Any) -> Steps:
        raise error
        yield 0

    return method


def test_a_consumer_that_cannot_be_made_is_forgotten_with_its_error_and_the_others_are_made(
    it: DutiesOfA, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = ConsumerRegistry.propose

    def propose(self: Any, stream: Any, config: ApiConsumerConfig, name: str, now: int) -> Steps:
        return (yield from (failing(ERROR) if name == "bad" else original)(self, stream, config, name, now))

    monkeypatch.setattr(ConsumerRegistry, "propose", propose)
    it.create()
    data = ticket("CONSUMER.CREATE")
    it.consume("bad", data=data)
    it.consume("good", data=ticket("CONSUMER.CREATE", b"good"))
    it.settle()
    assert it.consumers() == ["good"]
    assert [reply for reply, _ in it.answers] == [b"good"]
    incarnation = it.cluster.consumer("S", "bad").incarnation
    failed = ApiError.from_exception(ERROR)
    assert it.meta.submitted == [DeleteConsumer(ACCOUNT, "S", "bad", incarnation, failed, data)]
    it.duties.look_at((ACCOUNT, "S"))
    it.settle(AGAIN_NS)
    assert len(it.meta.submitted) == 1, "one version is tried once"


def test_a_consumer_that_cannot_be_changed_keeps_its_configuration_and_its_request_is_refused(
    it: DutiesOfA, monkeypatch: pytest.MonkeyPatch
) -> None:
    it.create()
    it.consume("c")
    it.settle()
    with monkeypatch.context() as patched:
        patched.setattr(ConsumerReplica, "propose_update", failing(ERROR))
        it.consume("c", description="new", data=ticket("CONSUMER.CREATE"))
        it.settle()
    assert it.taken_answers() == [(b"r", ApiError.from_exception(ERROR))]
    assert (it.meta.submitted, it.consumers()) == ([], ["c"])
    it.duties.look_at((ACCOUNT, "S"))
    it.settle(AGAIN_NS)
    assert not it.replica().standby.by_name["c"].meta.config.description
    it.consume("c", description="newer")
    it.settle()
    assert it.replica().standby.by_name["c"].meta.config.description == "newer"


@pytest.mark.parametrize("error", [LeadershipLostError("gone"), StoreError("full"), ERROR])
def test_work_that_fails_as_expected_is_done_again_after_a_second(
    it: DutiesOfA, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    it.create()
    it.settle()
    it.hear(it.cluster.update("S", max_msgs=5, ticket=ticket("STREAM.UPDATE")))
    with monkeypatch.context() as patched:
        patched.setattr(StreamRegistry, "follow", failing(error))
        it.duties.tick()
    it.now += AGAIN_NS - 1
    it.duties.tick()
    it.engines.settle()
    assert it.replica().stream.config.max_msgs == -1
    it.settle(1)
    assert it.replica().stream.config.max_msgs == 5
    assert len(it.answers) == 1


def test_an_unexpected_exception_at_one_stream_is_noted_and_the_others_are_served(
    it: DutiesOfA, monkeypatch: pytest.MonkeyPatch, noted_faults: list[BaseException]
) -> None:
    it.create("S")
    it.create("T")
    it.settle()
    it.hear(it.cluster.update("S", max_msgs=5, ticket=ticket("STREAM.UPDATE", b"S")))
    it.hear(it.cluster.create("T", subjects=["T.>"], ticket=ticket(reply=b"T")))
    error = ValueError("unforeseen")
    with monkeypatch.context() as patched:
        patched.setattr(StreamRegistry, "follow", failing(error))
        it.duties.tick()
        it.engines.settle()
    assert (noted_faults, [reply for reply, _ in it.answers]) == ([error], [b"T"])
    noted_faults.clear()
    it.settle(AGAIN_NS)
    assert [reply for reply, _ in it.answers] == [b"T", b"S"]


def test_a_stream_whose_work_cannot_begin_does_not_keep_the_others_from_being_served(
    it: DutiesOfA, noted_faults: list[BaseException]
) -> None:
    it.create("S", ticket(reply=b"S"))
    it.create("T", ticket(reply=b"T"))
    error = it.no_engine = ValueError("unforeseen")
    it.duties.tick()
    it.engines.settle()
    assert noted_faults == [error]
    noted_faults.clear()
    assert [reply for reply, _ in it.answers] == [b"T"]
    assert not it.duties.has_work, "the server would ask again and again until it is due"
    it.now += AGAIN_NS
    assert it.duties.has_work, "it is to be looked at again"


@pytest.mark.parametrize("error", [ServerError("account '$G' has no JetStream on this server"), ValueError()])
def test_a_stream_whose_work_could_not_begin_is_served_later(
    it: DutiesOfA, error: Exception, noted_faults: list[BaseException]
) -> None:
    it.create(data=ticket())
    it.no_engine = error
    it.settle()
    it.settle(AGAIN_NS)
    assert len(it.answers) == 1
    assert noted_faults == ([] if isinstance(error, ServerError) else [error])
    noted_faults.clear()


def test_a_run_of_work_goes_on_when_the_stream_is_looked_at_again(it: DutiesOfA) -> None:
    it.create()
    it.settle()
    it.consume("c")
    it.duties.tick()
    for _ in range(3):
        it.duties.look_at((ACCOUNT, "S"))
        it.duties.tick()
    assert not it.duties.has_work, "the run itself compares again"
    it.settle()
    entries = it.engines.groups["S"].entries
    made = sum(data.count(b'"durable_name":"c"') for _, data in entries)
    assert (it.consumers(), made) == (["c"], 1)


def test_a_run_that_ended_with_its_engine_does_not_keep_the_next_one_from_beginning(it: DutiesOfA) -> None:
    group = it.create()
    it.settle()
    it.consume("c")
    it.duties.tick()
    it.engine.slices.stop()  # as when the account loses JetStream; it gets it again
    it.change(group)
    it.consume("d")
    it.settle()
    assert it.consumers() == ["c", "d"]


def test_a_leader_that_steps_down_while_it_drops_a_consumer_drops_it_when_it_leads_again(
    it: DutiesOfA,
) -> None:
    group = it.create()
    it.consume("c")
    it.settle()
    it.hear(it.cluster.apply(DeleteConsumer(ACCOUNT, "S", "c")))
    it.duties.tick()
    it.engines.lead("S", 1)
    it.engines.settle()
    it.engines.lead("S", 0)
    it.engines.settle()
    assert it.consumers() == ["c"]
    it.change(group)
    it.settle(AGAIN_NS)
    assert it.consumers() == []
