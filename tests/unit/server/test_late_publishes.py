"""Publishes that reach a server around a change of leaders: who takes them, and who gets them."""

from __future__ import annotations

import json

import pytest

from penstock.kernels.ingest.ingest import IngestBatch
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import ClientSink, publish
from penstock.kernels.wire.frames import OP_NEED_MORE
from penstock.kernels.wire.route_frames import RouteParser
from penstock.kernels.wire.route_links import RouteIngress, RouteSink
from penstock.kernels.wire.sinks import DirtyList
from penstock.protocol import headers
from penstock.server.replicated.deferred_requests import HOLD_NS
from penstock.server.replicated.late_publishes import LatePublishes, with_message_ids
from penstock.server.replicated.stream_catch_up import Publishes, encode_mail
from tests.support.stream_group_servers import StreamServers, StreamServerUnderTest, assigned

Taken = list[tuple[bytes, bytes, bool]]


@pytest.fixture
def servers() -> StreamServers:
    servers = StreamServers()
    servers.begin(assigned())
    return servers


class Route:
    """Another server that is linked to an index."""

    def __init__(self, index: SubscriptionIndex) -> None:
        self._parser = RouteParser()
        self._parser.widen()
        self._ingress = RouteIngress(RouteSink(DirtyList()), None, self._parser)
        self._ingress.serve(lambda name: index)

    def sends(self, data: bytes) -> None:
        self._parser.feed(data)
        assert self._ingress.process() == OP_NEED_MORE


def taker(server: StreamServerUnderTest) -> tuple[LatePublishes, SubscriptionIndex, list[int]]:
    """Takes the publishes of stream S on an index of its own, and notes when some arrive."""
    index, arrivals = SubscriptionIndex(), list[int]()
    return LatePublishes(index, lambda: arrivals.append(1)), index, arrivals


def taken_by(late: LatePublishes) -> Taken:
    """Subject, payload and whether it is certain that no other server has it, of each."""
    found: Taken = []
    for batch, is_certain in late.take():
        while (one := batch.take_one()) is not None:
            found.append((one[0], one[3], is_certain))
    return found


def test_publishes_of_own_clients_and_of_other_servers_are_taken_without_announcing_it(
    servers: StreamServers,
) -> None:
    late, index, arrivals = taker(servers["a"])
    late.begin(servers["a"].replica().stream, takes_remote=True)
    assert {one.private for one in index.subscriptions()} == {True}
    publish(index, b"S.1", b"_R.1", b"", b"own", ClientSink(DirtyList()))
    Route(index).sends(b"RMSG A S.2 + _R.2 6\r\nremote\r\n")
    publish(index, b"OTHER.1", b"", b"", b"x")
    assert taken_by(late) == [(b"S.1", b"own", True), (b"S.2", b"remote", False)]
    assert arrivals == [1]
    late.end()
    publish(index, b"S.1", b"_R.1", b"", b"own")
    assert taken_by(late) == []


def test_a_publish_that_another_server_gets_as_well_is_not_taken(servers: StreamServers) -> None:
    late, index, _ = taker(servers["a"])
    late.begin(servers["a"].replica().stream, takes_remote=True)
    Route(index).sends(b"RS+ A S.>\r\n")
    publish(index, b"S.1", b"", b"", b"x", ClientSink(DirtyList()))
    assert taken_by(late) == []


def test_who_was_not_the_leader_takes_nothing_of_other_servers(servers: StreamServers) -> None:
    late, index, _ = taker(servers["a"])
    late.begin(servers["a"].replica().stream, takes_remote=False)
    Route(index).sends(b"RMSG A S.2 6\r\nremote\r\n")
    publish(index, b"S.1", b"", b"", b"own", ClientSink(DirtyList()))
    assert taken_by(late) == [(b"S.1", b"own", True)]


def own_publish(server: StreamServerUnderTest) -> None:
    """A client of the server publishes to the stream."""
    publish(server.engine.index, b"S.1", b"_ANSWER.x", b"", b"x", ClientSink(DirtyList()))


def test_a_publish_that_comes_late_is_stored_and_answered_by_the_next_leader(servers: StreamServers) -> None:
    heard = {name: servers[name].engine.listen(b"_ANSWER.x") for name in "ac"}
    assert servers["a"].stream().port.step_down("c.d")
    servers.settle()
    assert not servers["a"].stream().is_serving
    own_publish(servers["a"])
    servers.pass_time(50)
    assert servers.leader() is servers["c"]
    assert heard["a"] == []
    assert [json.loads(payload)["seq"] for _, _, payload in heard["c"]] == [1]


def test_nothing_is_taken_late_after_a_moment(servers: StreamServers) -> None:
    assert servers["a"].stream().port.step_down("c.d")
    servers.pass_time(300)
    heard = servers["c"].engine.listen(b"_ANSWER.x")
    own_publish(servers["a"])
    servers.pass_time(50)
    assert heard == []


def test_a_leader_that_leads_again_takes_each_publish_once(servers: StreamServers) -> None:
    assert servers["a"].stream().port.step_down("c.d")
    servers.pass_time(50)
    assert servers["c"].stream().port.step_down("a.d")
    servers.pass_time(50)
    assert servers.leader() is servers["a"]
    own_publish(servers["a"])
    servers.pass_time(50)
    assert servers["a"].replica().stream.log.last_seq == 1


def batch_of(*ids: str) -> IngestBatch:
    """A publish for each message id; "": without one."""
    batch = IngestBatch()
    for one in ids:
        header = headers.build([(headers.MSG_ID, one)]) if one else b""
        batch.append(b"S.1", b"", header, one.encode() or b"none")
    return batch


def sent_to_leader(servers: StreamServers, *, is_certain: bool, led_term: int) -> int:
    """Sends two publishes, one with a message id, to a leader that serves. Returns how many it stores."""
    mail = Publishes(HOLD_NS, batch_of("", "one").encode(), is_certain, led_term)
    leader = servers.leader().stream()
    leader.received("b.d", encode_mail(mail))
    servers.pass_time(50)
    return servers.leader().replica().stream.log.last_seq


def test_a_leader_that_serves_takes_only_what_it_cannot_have_already(servers: StreamServers) -> None:
    term = servers["a"].stream().port.term
    assert sent_to_leader(servers, is_certain=False, led_term=term - 1) == 1
    assert sent_to_leader(servers, is_certain=False, led_term=term - 1) == 1, "the message id is known"
    assert sent_to_leader(servers, is_certain=True, led_term=0) == 2


@pytest.mark.parametrize(("terms_before", "stored"), [(1, 2), (2, 1)])
def test_the_next_leader_takes_what_came_to_the_one_right_before_it_until_it_serves(
    servers: StreamServers, terms_before: int, stored: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers["a"].node, "mail", lambda *mail: None)  # what it hands over is lost
    assert servers["a"].stream().port.step_down("c.d")
    servers.settle()
    successor = servers["c"].stream()
    assert not successor.is_serving
    led_term = successor.port.term - terms_before
    successor.received("a.d", encode_mail(Publishes(HOLD_NS, batch_of("", "one").encode(), False, led_term)))
    servers.pass_time(200)
    assert servers.leader() is servers["c"]
    assert servers["c"].replica().stream.log.last_seq == stored


def test_publishes_with_message_ids_are_those_with_the_header() -> None:
    kept = with_message_ids(batch_of("", "one", "two"))
    assert [one[3] for one in iter(kept.take_one, None)] == [b"one", b"two"]
