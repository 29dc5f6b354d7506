"""Messages and interest between leaf nodes and hubs: who gets what, and what each side learns."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import ClientSink, DeliveryGuard, SubjectMapper, publish
from penstock.kernels.wire.frames import OP_NEED_MORE, FrameParser, ParseError
from penstock.kernels.wire.leaf_links import LeafIngress, LeafSink
from penstock.kernels.wire.link_interest import LocalInterest
from penstock.kernels.wire.route_frames import RouteOp, RouteParser
from penstock.kernels.wire.route_links import RouteIngress, RouteSink
from penstock.kernels.wire.sinks import DirtyList, SinkSubscription
from tests.reference.leaf_links import GOES_ON, Known
from tests.support.examples import examples

SUBJECTS = [b"a", b"a.b", b"b.c"]
FILTERS = [*SUBJECTS, b"a.*", b">"]
QUEUES = [b"", b"q", b"r"]


def frames(data: bytes) -> list[tuple[object, ...]]:
    """(op, subject, reply or queue, queues or weight, body) of the frames of a leaf node link."""
    parser = RouteParser()
    parser.for_leaf()
    parser.widen()
    parser.feed(data)
    found: list[tuple[object, ...]] = []
    while (frame := parser.next_route_frame()) is not None:
        if frame.op == RouteOp.ROUTE_MSG:
            found.append(("msg", frame.subject, frame.reply, frame.queues, frame.body))
        else:
            kind = "sub" if frame.op == RouteOp.ROUTE_SUB else "unsub"
            found.append((kind, frame.subject, frame.queue, frame.weight))
    return found


class Node:
    """A server with one account, its clients and links."""

    def __init__(self) -> None:
        self.index = SubscriptionIndex()
        self.interest = LocalInterest(b"A", counts_remote=True)
        self.index.announcer = self.interest

    def client(self, subject: bytes, queue: bytes = b"") -> ClientSink:
        """A client with a subscription."""
        sink = ClientSink(DirtyList())
        sink.headers = True
        self.index.insert(SinkSubscription(sink, subject, queue, b"1"))
        return sink

    def leaf(self, cluster: bytes, *, is_hub: bool = False, isolated: bool = False) -> LeafLink:
        return LeafLink(self, cluster, is_hub=is_hub, isolated=isolated)

    def route(self) -> RouteLink:
        return RouteLink(self)


class LeafLink:
    """One link of a server."""

    def __init__(self, node: Node, cluster: bytes, *, is_hub: bool, isolated: bool) -> None:
        self.sink = LeafSink(DirtyList())
        self.sink.join(node.index, is_hub, cluster)
        parser = RouteParser()
        parser.for_leaf()
        parser.widen()
        self.ingress = LeafIngress(self.sink, None, parser)
        self.interest = node.interest
        node.interest.connect_leaf(self.sink, None, isolated)

    def receive(self, data: bytes) -> None:
        self.ingress.parser.feed(data)
        assert self.ingress.process() == OP_NEED_MORE

    def sent(self) -> list[tuple[object, ...]]:
        return frames(self.sink.take())


class RouteLink:
    """A route of a server."""

    def __init__(self, node: Node) -> None:
        self.sink = RouteSink(DirtyList())
        self.sink.accept_origins(True)
        parser = RouteParser()
        parser.widen()
        self.ingress = RouteIngress(self.sink, None, parser)
        self.ingress.serve(lambda name: node.index)
        node.interest.connect(self.sink, dedicated=False)

    def receive(self, data: bytes) -> None:
        self.ingress.parser.feed(data)
        assert self.ingress.process() == OP_NEED_MORE

    def lines(self) -> list[bytes]:
        return self.sink.take().splitlines()


def payloads(sink: ClientSink) -> list[bytes]:
    parser = FrameParser()
    parser.feed(sink.take())
    found = []
    while (frame := parser.next_frame()) is not None:
        found.append(frame.payload or b"")
    return found


# -- frames


@pytest.mark.parametrize("at", range(1, 60))
def test_frames_of_a_link_are_parsed_wherever_they_are_split(at: int) -> None:
    data = b"LS+ a.b\r\nLS+ c q 3\r\nLS- c q\r\nLMSG s 2\r\nhi\r\n"
    data += b"LMSG s + r q p 0\r\n\r\nHMSG s | q 2 3\r\nhhb\r\n"
    parser = RouteParser()
    parser.for_leaf()
    parser.widen()
    found = []
    for part in (data[:at], data[at:]):
        parser.feed(part)
        while (frame := parser.next_route_frame()) is not None:
            queues = frame.queues or frame.weight
            found.append((frame.subject, frame.reply or frame.queue, queues, frame.body))
    assert found == [
        (b"a.b", b"", 1, b""),
        (b"c", b"q", 3, b""),
        (b"c", b"q", 1, b""),
        (b"s", b"", 1, b"hi"),
        (b"s", b"r", [b"q", b"p"], b""),
        (b"s", b"", [b"q"], b"hhb"),
    ]


@pytest.mark.parametrize("line", [b"RMSG A s 0\r\n\r\n", b"RS+ A s\r\n", b"A+ A\r\n"])
def test_frames_of_routes_break_the_protocol_of_a_link(line: bytes) -> None:
    parser = RouteParser()
    parser.for_leaf()
    parser.widen()
    parser.feed(line)
    assert parser.next_route_frame() is not None
    assert parser.error == ParseError.ERROR_UNKNOWN_OPERATION


# -- messages


@pytest.mark.parametrize("source", ["client", "route", "leaf", "hub"])
def test_a_message_goes_on_to_those_who_do_not_get_it_otherwise(source: str) -> None:
    node = Node()
    client = node.client(b"x")
    links = {
        "route": node.route(),
        "other route": node.route(),
        "leaf": node.leaf(b"L"),
        "sibling": node.leaf(b"L"),
        "other leaf": node.leaf(b"M"),
        "hub": node.leaf(b"H", is_hub=True),
        "other hub": node.leaf(b"I", is_hub=True),
    }
    for link in links.values():
        link.receive(b"RS+ A x\r\n" if isinstance(link, RouteLink) else b"LS+ x\r\n")
        link.sink.take()
    if source == "client":
        publish(node.index, b"x", b"", b"", b"body")
    else:
        links[source].receive(b"RMSG A x 4\r\nbody\r\n" if source == "route" else b"LMSG x 4\r\nbody\r\n")
    got = {name for name, link in links.items() if b"body" in link.sink.take()}
    assert payloads(client) == [b"body"]
    assert got == GOES_ON[source]


def test_a_message_of_a_leaf_node_names_its_cluster_to_routes_and_does_not_come_back() -> None:
    node = Node()
    route, leaf = node.route(), node.leaf(b"L")
    route.receive(b"RS+ A x\r\n")
    leaf.receive(b"LS+ x\r\n")
    route.sink.take()
    leaf.sink.take()
    leaf.receive(b"LMSG x r 4\r\nbody\r\n")
    assert route.sink.take() == b"LMSG L A x r 0 4\r\nbody\r\n"
    route.receive(b"LMSG L A x 0 4\r\nbody\r\n")
    assert leaf.sent() == []
    route.receive(b"LMSG M A x 0 4\r\nbody\r\nRMSG A x 4\r\nbody\r\n")
    assert leaf.sent() == [("msg", b"x", b"", [], b"body")] * 2


@given(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4))
def test_members_of_the_cluster_come_before_leaf_nodes_in_queue_groups(
    local: int, routed: int, leafs: int
) -> None:
    node = Node()
    clients = [node.client(b"x", b"q") for _ in range(local)]
    route, leaf = node.route(), node.leaf(b"L")
    if routed:
        route.receive(b"RS+ A x q %d\r\n" % routed)
    if leafs:
        leaf.receive(b"LS+ x q %d\r\n" % leafs)
    route.sink.take()
    leaf.sink.take()
    for _ in range(8):
        publish(node.index, b"x", b"", b"", b"body")
    to_clients = sum(len(payloads(one)) for one in clients)
    to_route, to_leaf = route.sink.take().count(b"body"), len(leaf.sent())
    assert to_clients + to_route + to_leaf == (8 if local or routed or leafs else 0)
    assert not to_leaf or not (local or routed)
    assert not to_route or routed


def test_a_group_named_by_the_other_side_gets_the_message_once() -> None:
    node = Node()
    one, two, plain = node.client(b"x", b"q"), node.client(b"x", b"r"), node.client(b"x")
    leaf = node.leaf(b"L")
    leaf.sink.take()
    leaf.receive(b"LMSG x | q 1\r\n1\r\nLMSG x + back q r 1\r\n2\r\nLMSG x 1\r\n3\r\n")
    assert (payloads(one), payloads(two), payloads(plain)) == ([b"1", b"2"], [b"2"], [b"1", b"2", b"3"])


def test_mappings_apply_to_messages_of_links_and_choose_groups_here() -> None:
    node = Node()
    member, leaf = node.client(b"out", b"q"), node.leaf(b"L")
    leaf.ingress.mapper = SubjectMapper(lambda subject: (b"out" if subject == b"in" else subject, True))
    leaf.receive(b"LMSG in 1\r\n1\r\nLMSG out 1\r\n2\r\nLMSG out | q 1\r\n3\r\n")
    assert payloads(member) == [b"1", b"3"]


def test_a_delivery_of_a_consumer_carries_the_stored_subject_through_servers() -> None:
    node, reply = Node(), b"$JS.ACK.S.P.1.2.2.1795345868785590856.0"
    client = node.client(b"deliver.here")
    leaf, other = node.leaf(b"L"), node.leaf(b"M")
    other.receive(b"LS+ deliver.here\r\n")
    other.sink.take()
    leaf.receive(b"LMSG deliver.here %s@s.1 2\r\nhi\r\n" % reply)
    assert client.take() == b"MSG s.1 1 %s 2\r\nhi\r\n" % reply
    assert other.sent() == [("msg", b"deliver.here", reply + b"@s.1", [], b"hi")]


def test_permissions_hold_in_both_directions() -> None:
    node = Node()
    leaf, refused = node.leaf(b"L"), []
    client = node.client(b">")
    leaf.sink.restrict(DeliveryGuard(lambda subject: subject == b"down"))
    leaf.ingress.restrict_input(
        lambda subject: subject == b"up",
        lambda subject: subject != b"secret",
        lambda is_message, subject: refused.append((is_message, subject)),
    )
    leaf.receive(b"LS+ >\r\nLS+ secret\r\nLMSG up 1\r\n1\r\nLMSG down 1\r\n2\r\n")
    assert refused == [(False, b"secret"), (True, b"down")]
    assert payloads(client) == [b"1"]
    leaf.sink.take()
    for subject in (b"up", b"down"):
        publish(node.index, subject, b"", b"", b"x")
    assert leaf.sent() == [("msg", b"down", b"", [], b"x")]


def test_messages_are_dropped_while_this_servers_loop_subject_is_back() -> None:
    node, reported = Node(), []
    client, leaf = node.client(b"x"), node.leaf(b"L")
    leaf.ingress.watch_loops(b"$LDS.mine", lambda: reported.append(1))
    leaf.receive(b"LS+ $LDS.other\r\nLMSG x 1\r\n1\r\nLS+ $LDS.mine\r\nLMSG x 1\r\n2\r\n")
    assert (reported, payloads(client), leaf.ingress.is_looped) == ([1], [b"1"], True)
    leaf.receive(b"LS- $LDS.mine\r\nLMSG x 1\r\n3\r\n")
    assert (payloads(client), leaf.ingress.is_looped) == ([b"3"], False)


# -- interest

steps = st.lists(
    st.tuples(
        st.sampled_from(["client", "route", "leaf", "sibling", "other", "hub"]),
        st.sampled_from(FILTERS),
        st.sampled_from(QUEUES),
        st.integers(0, 3),
    ),
    max_size=25,
)


@settings(max_examples=examples(200))
@given(steps)
def test_each_side_learns_what_it_may_know(changes: Iterable[tuple[str, bytes, bytes, int]]) -> None:
    node = Node()
    route = node.route()
    leafs = {
        "leaf": node.leaf(b"L"),
        "sibling": node.leaf(b"L"),
        "other": node.leaf(b""),
        "isolated": node.leaf(b"X", isolated=True),
        "hub": node.leaf(b"H", is_hub=True),
    }
    model = Known()
    known: dict[str, dict[tuple[bytes, bytes], int]] = {name: {} for name in leafs}
    clients: dict[tuple[bytes, bytes], list[SinkSubscription]] = {}
    for where, subject, queue, weight in changes:
        words = subject + (b" " + queue if queue else b"")
        if where == "client":
            present = clients.setdefault((subject, queue), [])
            if weight:
                present.append(SinkSubscription(ClientSink(DirtyList()), subject, queue, b"1"))
                node.index.insert(present[-1])
            elif present:
                node.index.remove(present.pop())
            model.set(where, subject, queue, len(present))
            continue
        link = route if where == "route" else leafs[where]
        verb, account = (b"RS", b"A ") if where == "route" else (b"LS", b"")
        tail = b" %d" % weight if queue and weight else b""
        link.receive(verb + (b"+ " if weight else b"- ") + account + words + tail + b"\r\n")
        model.set(where, subject, queue, weight if queue or not weight else 1)
    for name, link in leafs.items():
        for kind, subject, queue, weight in link.sent():
            if kind == "sub":
                known[name][subject, queue] = weight
            else:
                known[name].pop((subject, queue), None)
        assert known[name] == model.reported(name)
        reported = {key.partition(b" ")[0] for key in node.interest.known_to(link.sink)}
        assert reported == {subject for subject, _ in known[name]}


def test_routes_learn_the_cluster_of_leaf_nodes() -> None:
    node = Node()
    route, leaf, hub = node.route(), node.leaf(b"L"), node.leaf(b"H", is_hub=True)
    nameless = node.leaf(b"")
    leaf.receive(b"LS+ a\r\nLS+ b q 2\r\n")
    nameless.receive(b"LS+ a\r\n")
    hub.receive(b"LS+ c\r\n")
    assert route.lines() == [b"LS+ L A a", b"LS+ L A b q 2", b"LS+ _ A a"]
    late = node.route()
    assert sorted(late.lines()) == [b"LS+ L A a", b"LS+ L A b q 2", b"LS+ _ A a"]
    leaf.sink.forget_all()
    assert sorted(route.lines()) == [b"LS- L A a", b"LS- L A b q"]


def test_leaf_nodes_learn_of_subjects_without_subscriptions_and_loop_subjects_go_everywhere() -> None:
    node = Node()
    route, hub, leaf = node.route(), node.leaf(b"H", is_hub=True), node.leaf(b"L", isolated=True)
    node.interest.expect_from_leafs([b"$LDS.own", b"mapped"])
    node.interest.expect_from_leafs([b"$LDS.own"])
    assert hub.sent() == leaf.sent()
    assert node.interest.known_to(leaf.sink) == {b"$LDS.own": 1}
    route.receive(b"RS+ A $LDS.far\r\n")
    assert hub.sent() == leaf.sent() == [("sub", b"$LDS.far", b"", 1)]
    assert route.lines() == []
