"""Messages, interest and routed replies between clusters."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import ClientSink, publish
from penstock.kernels.wire.frames import OP_ERROR, OP_NEED_MORE, FrameParser
from penstock.kernels.wire.gateway_links import GatewayIngress, GatewayReplies, GatewaySink, InterestMode
from penstock.kernels.wire.leaf_links import LeafIngress, LeafSink
from penstock.kernels.wire.link_interest import LocalInterest
from penstock.kernels.wire.recent_interest import RecentInterest
from penstock.kernels.wire.route_frames import RouteParser
from penstock.kernels.wire.route_links import RouteIngress, RouteSink
from penstock.kernels.wire.sinks import DirtyList, SinkSubscription
from tests.reference.gateway_links import GOES_ON, RECENT_NS, Cluster, Recent
from tests.support.examples import examples

OWN = b"_GR_.aaaaaa.ssssss."
FAR = b"_GR_.bbbbbb.tttttt."
SUBJECTS = [b"a", b"a.b", b"b.c"]


class Clock:
    now = 1_000_000_000

    def __call__(self) -> int:
        return self.now


class Server:
    """A server with one account, its clients and links."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.relayed: list[tuple[bytes, bytes]] = []
        self.relay_to: RouteSink | None = None
        self.replies = GatewayReplies(OWN, self._relay, self.clock)
        self.index = SubscriptionIndex()
        self.interest = LocalInterest(b"A", counts_remote=True)
        self.interest.note_recent(self.replies.recent_of(b"A"))
        self.index.announcer = self.interest

    def _relay(self, account: bytes, server: bytes) -> tuple[RouteSink, bytes] | None:
        self.relayed.append((account, server))
        return None if self.relay_to is None else (self.relay_to, account + b" ")

    def client(self, subject: bytes, queue: bytes = b"") -> ClientSink:
        sink = ClientSink(DirtyList())
        sink.headers = True
        self.index.insert(SinkSubscription(sink, subject, queue, b"1"))
        return sink

    def wait(self) -> None:
        self.clock.now += RECENT_NS
        self.replies.expire()


class Link:
    """A link of a server, of any kind."""

    def __init__(self, server: Server, kind: str) -> None:
        parser = RouteParser()
        self.sink: RouteSink
        self.ingress: RouteIngress
        if kind in ("outbound", "inbound"):
            self.sink = gateway_sink = GatewaySink(DirtyList())
            gateway_sink.route_replies(server.replies)
            self.ingress = gateway = GatewayIngress(gateway_sink, None, parser)
            gateway.direct(kind == "outbound")
            self.gateway_sink = gateway_sink
            if kind == "outbound":
                server.replies.joined(b"bbbbbb", gateway_sink)
            else:
                server.interest.connect_gateway(gateway_sink)
        elif kind == "route":
            self.sink = RouteSink(DirtyList())
            self.sink.accept_origins(True)
            self.ingress = RouteIngress(self.sink, None, parser)
            server.interest.connect(self.sink, dedicated=False)
        else:
            parser.for_leaf()
            self.sink = leaf_sink = LeafSink(DirtyList())
            leaf_sink.join(server.index, kind == "hub", kind.encode())
            self.ingress = leaf_ingress = LeafIngress(leaf_sink, None, parser)
            leaf_ingress.bind(b"A")
            server.interest.connect_leaf(leaf_sink)
        parser.widen()
        self.kind = kind
        self.ingress.serve(lambda name: server.index if name == b"A" else None)
        self.ingress.note_replies(server.replies)

    def receive(self, data: bytes) -> None:
        self.ingress.parser.feed(data)
        assert self.ingress.process() == OP_NEED_MORE

    def want(self, subject: bytes) -> None:
        """The other side is interested."""
        is_leaf = self.kind in ("leaf", "hub")
        self.receive(b"LS+ %s\r\n" % subject if is_leaf else b"RS+ A %s\r\n" % subject)

    def lines(self) -> list[bytes]:
        return self.sink.take().splitlines()


def received(sink: ClientSink) -> list[tuple[bytes, bytes, bytes]]:
    """(subject, reply, payload) of what a client got."""
    parser = FrameParser()
    parser.feed(sink.take().replace(b"MSG", b"PUB").replace(b" 1 ", b" "))
    found = []
    while (frame := parser.next_frame()) is not None:
        found.append((frame.subject, frame.reply or b"", frame.payload or b""))
    return found


# -- interest


@pytest.mark.parametrize("at", range(1, 70))
def test_interest_and_messages_are_taken_wherever_they_are_split(at: int) -> None:
    server = Server()
    outbound, inbound, client = Link(server, "outbound"), Link(server, "inbound"), server.client(b"x.>")
    interest, messages = (
        b"RS+ A a.b\r\nRS+ A c q 3\r\nRS- A a.b\r\nA+ A\r\nA- B\r\n",
        b"RMSG A x.y r 2\r\nhi\r\n",
    )
    for link, data in ((outbound, interest), (inbound, messages)):
        link.receive(data[:at])
        link.receive(data[at:])
    assert outbound.sink.interest() == [(b"A", b"c", b"q", 3, 0)]
    assert received(client) == [(b"x.y", b"r", b"hi")]


@pytest.mark.parametrize(
    ("kind", "frame"),
    [
        ("outbound", b"RMSG A a 0\r\n\r\n"),
        ("outbound", b"LS+ o A a\r\n"),
        ("inbound", b"RS+ A a\r\n"),
        ("inbound", b"RS- A a\r\n"),
        ("inbound", b"A- A\r\n"),
        ("inbound", b"LMSG o A a 0 0\r\n\r\n"),
        ("inbound", b"A+ \r\n"),
    ],
)
def test_a_frame_of_the_other_direction_ends_the_link(kind: str, frame: bytes) -> None:
    link = Link(Server(), kind)
    link.ingress.parser.feed(frame)
    assert link.ingress.process() == OP_ERROR


def test_another_cluster_learns_the_interest_of_this_one_and_no_other() -> None:
    server = Server()
    links = {kind: Link(server, kind) for kind in ("route", "leaf", "hub", "outbound")}
    for kind, link in links.items():
        link.want(b"of." + kind.encode())
    server.client(b"of.client")
    server.client(b"work", b"q")
    inbound = Link(server, "inbound")
    expected = {b"RS+ A of.route", b"RS+ A of.leaf", b"RS+ A of.client", b"RS+ A work q 1"}
    assert set(inbound.lines()) == expected
    late = server.client(b"late")
    assert inbound.lines() == [b"RS+ A late"]
    assert late.take() == b""


def test_leaf_nodes_learn_the_interest_of_other_clusters_and_hubs_and_routes_do_not() -> None:
    server = Server()
    links = {kind: Link(server, kind) for kind in ("route", "leaf", "hub", "inbound")}
    Link(server, "outbound").want(b"far")
    assert {kind: link.lines() for kind, link in links.items()} == {
        "route": [], "leaf": [b"LS+ far"], "hub": [], "inbound": []
    }  # fmt: skip


# -- messages


@pytest.mark.parametrize("source", GOES_ON)
def test_a_message_goes_on_to_those_who_do_not_get_it_otherwise(source: str) -> None:
    server = Server()
    client = server.client(b"m")
    receivers = {"gateway": "outbound", "route": "route", "leaf": "leaf", "hub": "hub"}
    links = {name: Link(server, kind) for name, kind in receivers.items()}
    for link in links.values():
        link.want(b"m")
        link.sink.take()
    if source == "client":
        publish(server.index, b"m", b"", b"", b"1")
    else:
        kind = "inbound" if source == "gateway" else source
        sender = Link(server, kind)
        if kind in ("leaf", "hub"):
            sender.sink.join(server.index, kind == "hub", b"other")  # type: ignore[attr-defined]
        sender.sink.take()
        sender.receive(b"LMSG m 1\r\n1\r\n" if kind in ("leaf", "hub") else b"RMSG A m 1\r\n1\r\n")
    got = {name for name, link in links.items() if b"MSG" in link.sink.take()}
    got |= {"client"} if received(client) else set()
    assert got == GOES_ON[source]


def test_a_queue_group_has_members_here_then_of_leaf_nodes_then_of_the_nearest_cluster() -> None:
    server = Server()
    near, far = Link(server, "outbound"), Link(server, "outbound")
    near.gateway_sink.measured(1_000)
    far.gateway_sink.measured(2_000)
    for link in (far, near):
        link.receive(b"RS+ A w q 1\r\n")
    for _ in range(20):
        publish(server.index, b"w", b"", b"", b"1")
    assert near.sink.take() == b"RMSG A w | q 1\r\n1\r\n" * 20
    assert far.sink.take() == b""
    leaf = Link(server, "leaf")
    leaf.receive(b"LS+ w q 1\r\n")
    leaf.sink.take()
    publish(server.index, b"w", b"", b"", b"1")
    assert leaf.sink.take() == b"LMSG w | q 1\r\n1\r\n"
    client = server.client(b"w", b"q")
    publish(server.index, b"w", b"", b"", b"1")
    assert len(received(client)) == 1
    assert near.sink.take() == far.sink.take() == b""


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["RS+", "RS-"]), st.sampled_from(SUBJECTS)),
        st.tuples(st.sampled_from(["A+", "A-", "start", "complete"]), st.just(b"")),
    ),
    max_size=12,
)


@given(_STEPS)
@settings(max_examples=examples(100), deadline=None)
def test_an_optimistic_cluster_gets_what_it_did_not_refuse(steps: list[tuple[str, bytes]]) -> None:
    server, model = Server(), Cluster()
    link = Link(server, "outbound")
    link.gateway_sink.assume_interest(b"A", server.index)
    for verb, subject in steps:
        if verb in ("start", "complete"):
            link.gateway_sink.announces(b"A", server.index, verb == "complete")
            if verb == "complete":
                assert link.gateway_sink.modes() == {b"A": (InterestMode.MODE_INTEREST_ONLY, 0)}
                break  # the official server does not go back
            continue
        link.receive(b"%s A %s\r\n" % (verb.encode(), subject) if subject else b"%s A\r\n" % verb.encode())
        if verb in ("A+", "A-"):
            model.wants_account = verb == "A+"
            if verb == "A-":
                model.refused.clear()
        elif verb == "RS+":
            model.refused.discard(subject)
            model.announced.add(subject)
        elif verb == "RS-":
            if subject in model.announced:
                model.announced.discard(subject)
            elif model.wants_account:
                model.refused.add(subject)
    if steps and any(verb == "complete" for verb, _ in steps):
        model.is_optimistic = False
    for subject in SUBJECTS:
        publish(server.index, subject, b"", b"", b"1")
        assert (b"RMSG" in link.sink.take()) == model.wants(subject), (steps, subject)
    link.sink.forget_all()
    assert server.index.count == 0


# -- replies


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.sampled_from([*SUBJECTS, b"a.*", b">"])),
            st.tuples(st.just("wait"), st.sampled_from([1, RECENT_NS // 2, RECENT_NS - 1, RECENT_NS])),
        ),
        max_size=20,
    )
)
@settings(max_examples=examples(100), deadline=None)
def test_recent_interest_is_what_was_subscribed_in_the_last_two_seconds(
    steps: list[tuple[str, bytes | int]],
) -> None:
    clock, model = Clock(), Recent()
    recent = RecentInterest(clock)
    for _, value in steps:
        if isinstance(value, int):
            clock.now += value
        else:
            recent.add(value)
            model.add(clock.now, value)
        for subject in SUBJECTS:
            assert recent.has(subject) == model.has(clock.now, subject)


def test_the_reply_of_a_new_inbox_names_its_server_and_that_of_an_old_one_does_not() -> None:
    server = Server()
    link = Link(server, "outbound")
    link.want(b"svc")
    server.client(b"_INBOX.x.*")
    publish(server.index, b"svc", b"_INBOX.x.1", b"", b"?")
    assert link.sink.take() == b"RMSG A svc %s_INBOX.x.1 1\r\n?\r\n" % OWN
    publish(server.index, b"svc", b"other.x", b"", b"?")
    assert link.sink.take() == b"RMSG A svc other.x 1\r\n?\r\n"
    server.wait()
    publish(server.index, b"svc", b"_INBOX.x.1", b"", b"?")
    assert link.sink.take() == b"RMSG A svc _INBOX.x.1 1\r\n?\r\n"


@pytest.mark.parametrize("source", ["inbound", "route"])
def test_receivers_see_the_plain_reply_and_their_answer_goes_back_routed_once(source: str) -> None:
    server = Server()
    outbound, service = Link(server, "outbound"), server.client(b"svc")
    Link(server, source).receive(b"RMSG A svc %s_INBOX.x 1\r\n?\r\n" % FAR)
    assert received(service) == [(b"svc", b"_INBOX.x", b"?")]
    publish(server.index, b"_INBOX.x", b"", b"", b"!")
    routed = b"RMSG A %s_INBOX.x 1\r\n!\r\n" % FAR
    assert outbound.sink.take() == routed
    outbound.want(b"_INBOX.*")
    publish(server.index, b"_INBOX.x", b"", b"", b"!")
    assert outbound.sink.take() == routed
    server.wait()
    publish(server.index, b"_INBOX.x", b"", b"", b"!")
    assert outbound.sink.take() == b"RMSG A _INBOX.x 1\r\n!\r\n"


def test_a_reply_that_is_noted_again_lives_as_long_as_the_last_time() -> None:
    server = Server()
    outbound, inbound = Link(server, "outbound"), Link(server, "inbound")
    server.client(b"svc")
    inbound.receive(b"RMSG A svc %sr 1\r\n?\r\n" % FAR)
    server.clock.now += RECENT_NS - 1
    inbound.receive(b"RMSG A svc %sr 1\r\n?\r\n" % FAR)
    server.clock.now += 1
    server.replies.expire()
    publish(server.index, b"r", b"", b"", b"!")
    assert b"RMSG" in outbound.sink.take()
    server.wait()
    publish(server.index, b"r", b"", b"", b"!")
    assert outbound.sink.take() == b""
    outbound.sink.forget_all()
    assert server.index.count == 1


@pytest.mark.parametrize("source", ["inbound", "route"])
def test_an_answer_for_this_server_arrives_under_its_plain_subject(source: str) -> None:
    server = Server()
    requester = server.client(b"_INBOX.x")
    Link(server, source).receive(b"RMSG A %s_INBOX.x 1\r\n!\r\n" % OWN)
    assert received(requester) == [(b"_INBOX.x", b"", b"!")]


def test_an_answer_for_another_server_of_the_cluster_goes_there_as_it_is() -> None:
    server = Server()
    requester, route = server.client(b"_INBOX.x"), Link(server, "route")
    route.sink.take()
    server.relay_to = route.sink
    Link(server, "inbound").receive(b"RMSG A _GR_.aaaaaa.others._INBOX.x 1\r\n!\r\n")
    assert route.sink.take() == b"RMSG A _GR_.aaaaaa.others._INBOX.x 1\r\n!\r\n"
    assert server.relayed == [(b"A", b"others")]
    assert received(requester) == []
    server.relay_to = None  # that server is not there: those who are interested here get it
    Link(server, "inbound").receive(b"RMSG A _GR_.aaaaaa.others._INBOX.x 1\r\n!\r\n")
    assert received(requester) == [(b"_INBOX.x", b"", b"!")]


def test_an_answer_within_the_cluster_that_asked_names_the_groups_which_got_it() -> None:
    server = Server()
    service, route = server.client(b"svc"), Link(server, "route")
    member = server.client(b">", b"q")
    server.relay_to = route.sink
    route.sink.take()
    route.receive(b"RMSG A svc %sr 1\r\n?\r\n" % b"_GR_.aaaaaa.others.")  # which another cluster passed on
    assert received(service) == [(b"svc", b"r", b"?")]
    publish(server.index, b"r", b"", b"", b"!")
    assert received(member) == [(b"r", b"", b"!")]
    assert route.sink.take() == b"RMSG A r 1\r\n!\r\n"  # the plain subject: members for it are chosen here


def test_an_answer_for_another_cluster_goes_nowhere() -> None:
    server = Server()
    everybody, outbound = server.client(b">"), Link(server, "outbound")
    Link(server, "inbound").receive(b"RMSG A %sx 1\r\n!\r\n" % FAR)
    assert received(everybody) == []
    assert outbound.sink.take() == b""


def test_a_leaf_node_gets_the_routed_reply_and_its_answer_goes_to_the_cluster() -> None:
    server = Server()
    outbound, leaf = Link(server, "outbound"), Link(server, "leaf")
    leaf.want(b"svc")
    leaf.sink.take()
    Link(server, "inbound").receive(b"RMSG A svc %sr 1\r\n?\r\n" % FAR)
    assert leaf.sink.take() == b"LMSG svc %sr 1\r\n?\r\n" % FAR
    leaf.receive(b"LMSG %sr 1\r\n!\r\n" % FAR)
    assert outbound.sink.take() == b"RMSG A %sr 1\r\n!\r\n" % FAR


def test_the_answer_of_a_leaf_node_may_come_to_another_server_than_the_request_did() -> None:
    server = Server()
    outbound, route, leaf = (Link(server, kind) for kind in ("outbound", "route", "leaf"))
    leaf.receive(b"LMSG %sr 1\r\n!\r\n" % FAR)  # the request came from a server of the leaf node's cluster
    assert outbound.sink.take() == b"RMSG A %sr 1\r\n!\r\n" % FAR
    route.receive(b"LMSG leaf A %sr 0 1\r\n!\r\n" % FAR)  # which that server sends itself
    assert outbound.sink.take() == b""


@pytest.mark.parametrize("source", ["leaf", "route"])
def test_a_group_with_members_at_the_leaf_node_that_answers_gets_no_second_answer(source: str) -> None:
    """The leaf node has chosen one of its own, or named the group. It may not know new groups yet."""
    server = Server()
    link = Link(server, source)
    link.receive(b"LS+ > q 1\r\n" if source == "leaf" else b"LS+ leaf A > q 1\r\n")
    known, new = server.client(b">", b"q"), server.client(b">", b"n")
    frame = b"LMSG %sr 1\r\n" if source == "leaf" else b"LMSG leaf A %sr 0 1\r\n"
    link.receive(frame % OWN + b"!\r\n")
    assert (received(known), received(new)) == ([], [(b"r", b"", b"!")])
    frame = b"LMSG %sr | q 1\r\n" if source == "leaf" else b"LMSG leaf A %sr | q 0 1\r\n"
    link.receive(frame % OWN + b"!\r\n")
    assert received(known) == [(b"r", b"", b"!")]


def test_while_a_cluster_is_away_an_answer_reaches_the_groups_that_it_names() -> None:
    """The cluster that is away may have members of the others, and they have got the answer there."""
    server = Server()
    away, inbound = Link(server, "outbound"), Link(server, "inbound")
    member = server.client(b">", b"q")
    server.replies.left(b"bbbbbb", away.sink)
    inbound.receive(b"RMSG A %sr 1\r\n!\r\n" % OWN)
    assert received(member) == []
    inbound.receive(b"RMSG A %sr | q 1\r\n!\r\n" % OWN)
    assert received(member) == [(b"r", b"", b"!")]
    server.replies.joined(b"bbbbbb", away.sink)
    inbound.receive(b"RMSG A %sr 1\r\n!\r\n" % OWN)
    assert received(member) == [(b"r", b"", b"!")]


def test_a_leaf_node_answers_the_routed_reply_of_its_hub() -> None:
    server = Server()
    hub, service = Link(server, "hub"), server.client(b"svc")
    hub.sink.take()
    hub.receive(b"LMSG svc %sr 1\r\n?\r\n" % FAR)
    assert received(service) == [(b"svc", b"r", b"?")]
    publish(server.index, b"r", b"", b"", b"!")
    assert hub.sink.take() == b"LMSG %sr 1\r\n!\r\n" % FAR


def test_a_reply_with_wildcards_is_not_noted() -> None:
    server = Server()
    outbound = Link(server, "outbound")
    server.client(b"svc")
    Link(server, "inbound").receive(b"RMSG A svc %s> 1\r\n?\r\n" % FAR)
    publish(server.index, b"anything", b"", b"", b"!")
    assert outbound.sink.take() == b""
    assert len(server.replies) == 0
