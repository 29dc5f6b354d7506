"""Messages and interest between servers, against a model; and the bounds of a slow peer."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import ClientSink, publish
from penstock.kernels.wire.frames import OP_NEED_MORE, FrameParser
from penstock.kernels.wire.link_interest import LocalInterest
from penstock.kernels.wire.route_frames import RouteOp, RouteParser
from penstock.kernels.wire.route_links import RouteIngress, RouteSink
from penstock.kernels.wire.sinks import DirtyList, RemoteSubscription, SinkSubscription
from tests.reference.route_links import Interest, Peer, matches
from tests.support.examples import examples

SUBJECTS = [b"a", b"a.b", b"a.c", b"b.c.d"]
FILTERS = [*SUBJECTS, b"a.*", b"a.>", b">", b"*", b"b.*.d"]
QUEUES = [b"", b"", b"q", b"r"]


class Link:
    """One peer of a server with one account `A`."""

    def __init__(self, index: SubscriptionIndex, *, dedicated: bool = False) -> None:
        self.sink = RouteSink(DirtyList())
        self.parser = RouteParser()
        self.parser.widen()
        if dedicated:
            self.parser.dedicate(b"A")
        self.ingress = RouteIngress(self.sink, None, self.parser)
        self.ingress.serve(lambda name: index if name == b"A" else None)

    def receive(self, data: bytes) -> None:
        self.parser.feed(data)
        assert self.ingress.process() == OP_NEED_MORE

    def sent(self) -> list[tuple[bytes, bytes, bytes, list[bytes], bytes]]:
        """(account, subject, reply, queues, body) of the messages since the last call."""
        parser = RouteParser()
        parser.widen()
        if self.parser.account:
            parser.dedicate(self.parser.account)
        parser.feed(self.sink.take())
        found = []
        while (frame := parser.next_route_frame()) is not None:
            assert frame.op == RouteOp.ROUTE_MSG
            found.append((frame.account, frame.subject, frame.reply, frame.queues, frame.body))
        return found


class Client:
    """A client of the server."""

    def __init__(self) -> None:
        self.sink = ClientSink(DirtyList())
        self.sink.headers = True

    def received(self) -> list[tuple[bytes, bytes, bytes]]:
        """(sid, subject, payload) of the messages since the last call."""
        parser = FrameParser()
        parser.feed(self.sink.take())
        found = []
        while (frame := parser.next_frame()) is not None:
            found.append((frame.sid or b"", frame.subject or b"", frame.payload or b""))
        return found


changes = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(FILTERS), st.sampled_from(QUEUES), st.integers(0, 3)),
    max_size=14,
)


@settings(max_examples=examples(300))
@given(changes, changes, st.sampled_from(SUBJECTS))
def test_each_interested_peer_gets_a_message_once_with_its_queue_groups(
    remote: list[tuple[int, bytes, bytes, int]],
    local: list[tuple[int, bytes, bytes, int]],
    subject: bytes,
) -> None:
    index, client = SubscriptionIndex(), Client()
    links, peers = [Link(index) for _ in range(3)], [Peer() for _ in range(3)]
    for at, pattern, queue, weight in remote:
        words = b"A " + pattern + (b" " + queue if queue else b"")
        if weight:
            peers[at].subs[pattern, queue] = weight
            links[at].receive(b"RS+ " + words + (b" %d" % weight if queue else b"") + b"\r\n")
        else:
            peers[at].subs.pop((pattern, queue), None)
            links[at].receive(b"RS- " + words + b"\r\n")
    for i, (_, pattern, queue, _) in enumerate(local):
        index.insert(SinkSubscription(client.sink, pattern, queue, b"%d" % i))
    matching = [(p, q, b"%d" % i) for i, (_, p, q, _) in enumerate(local) if matches(p, subject)]
    groups = {q for _, q, _ in matching if q} | {q for peer in peers for q in peer.groups(subject)}
    served: Counter[bytes] = Counter()
    for _ in range(3):
        publish(index, subject, b"r", b"", b"body")
        got = client.received()
        assert sorted(sid for sid, _, _ in got if sid in {s for _, q, s in matching if not q}) == sorted(
            s for _, q, s in matching if not q
        )
        chosen = [q for _, q, s in matching if q and s in {sid for sid, _, _ in got}]
        for link, peer in zip(links, peers, strict=True):
            sent = link.sent()
            queues = [queue for message in sent for queue in message[3]]
            assert len(sent) == (peer.wants(subject) or bool(queues))
            assert all(message[:3] == (b"A", subject, b"r") and message[4] == b"body" for message in sent)
            assert set(queues) <= set(peer.groups(subject))
            chosen += queues
        assert sorted(chosen) == sorted(groups)
        served.update(chosen)
    assert all(count == 3 for count in served.values())


@settings(max_examples=examples(200))
@given(st.lists(st.tuples(st.sampled_from(FILTERS), st.sampled_from(QUEUES)), max_size=12), st.data())
def test_a_message_of_a_peer_reaches_local_clients_alone(
    subscriptions: list[tuple[bytes, bytes]], data: st.DataObject
) -> None:
    """One hop: neither the peer it came from nor another one gets it, whatever they asked for."""
    index, client = SubscriptionIndex(), Client()
    links = [Link(index, dedicated=data.draw(st.booleans())) for _ in range(2)]
    for link in links:
        account = b"" if link.parser.account else b"A "
        link.receive(b"RS+ " + account + b">\r\nRS+ " + account + b"> q 3\r\n")
    for i, (pattern, queue) in enumerate(subscriptions):
        index.insert(SinkSubscription(client.sink, pattern, queue, b"%d" % i))
    subject = data.draw(st.sampled_from(SUBJECTS))
    named = data.draw(st.lists(st.sampled_from([b"q", b"r", b"unknown"]), unique=True))
    words = b"" if links[0].parser.account else b"A "
    words += subject + b" " + (b"| " + b" ".join(named) + b" " if named else b"")
    links[0].receive(b"RMSG " + words + b"4\r\nbody\r\n")
    got = [sid for sid, _, _ in client.received()]
    matching = [(q, b"%d" % i) for i, (p, q) in enumerate(subscriptions) if matches(p, subject)]
    plain = [sid for queue, sid in matching if not queue]
    assert sorted(sid for sid in got if sid in plain) == sorted(plain)
    chosen = [{sid: queue for queue, sid in matching}[sid] for sid in got if sid not in plain]
    assert sorted(chosen) == sorted({queue for queue, _ in matching if queue} & set(named))
    assert links[0].sent() == links[1].sent() == []


@given(st.lists(st.tuples(st.sampled_from(FILTERS), st.sampled_from(QUEUES), st.booleans()), max_size=20))
def test_interest_is_announced_as_the_model_says(steps: list[tuple[bytes, bytes, bool]]) -> None:
    index, local, model, link = SubscriptionIndex(), LocalInterest(b"A"), Interest(), RouteSink(DirtyList())
    index.announcer = local
    local.connect(link, dedicated=False)
    client, present, expected = Client(), [], b""
    for subject, queue, comes in steps:
        if comes:
            present.append(SinkSubscription(client.sink, subject, queue, b"1"))
            index.insert(present[-1])
            expected += model.change(subject, queue, 1)
        elif present:
            gone = present.pop()
            index.remove(gone)
            expected += model.change(gone.subject, gone.queue, -1)
    assert link.take() == expected
    late = RouteSink(DirtyList())
    local.connect(late, dedicated=True)
    lines = sorted(late.take().splitlines())
    wanted = sorted(
        b"RS+ " + subject + (b" " + queue + b" %d" % count if queue else b"")
        for (subject, queue), count in model.counts.items()
        if count
    )
    assert lines == wanted


def test_interest_of_peers_services_and_private_subscriptions_is_not_announced() -> None:
    index, local, reported = SubscriptionIndex(), LocalInterest(b"A"), RouteSink(DirtyList())
    index.announcer = local
    local.connect(reported, dedicated=False)
    Link(index).receive(b"RS+ A x\r\nRS+ A y q 2\r\nLS+ leaf A z\r\n")
    private = SinkSubscription(Client().sink, b"secret", b"", b"1")
    private.keep_private()
    index.insert(private)
    assert reported.take() == b""
    assert sorted(one.subject for one in index.subscriptions() if one.remote) == [b"x", b"y", b"z"]


def test_permissions_hold_interest_back_and_a_change_tells_the_difference() -> None:
    index, local, reported = SubscriptionIndex(), LocalInterest(b"A"), RouteSink(DirtyList())
    index.announcer = local
    for subject, queue in ((b"yes", b""), (b"no", b""), (b"yes", b"q")):
        index.insert(SinkSubscription(Client().sink, subject, queue, b"1"))
    local.count_all(index)
    assert local.counted() == {b"yes": 2, b"no": 2, b"yes q": 2}  # counted twice: it was watched already
    local.connect(reported, False, lambda subject: subject == b"yes")
    assert sorted(reported.take().splitlines()) == [b"RS+ A yes", b"RS+ A yes q 2"]
    local.restrict(reported, lambda subject: subject == b"no")
    assert sorted(reported.take().splitlines()) == [b"RS+ A no", b"RS- A yes", b"RS- A yes q"]
    link = Link(index)
    link.ingress.limit_exports(lambda subject: subject != b"closed")
    link.receive(b"RS+ A closed\r\nRS+ A open\r\n")
    assert [one[1] for one in link.sink.interest()] == [b"open"]


def test_interest_ends_with_the_link() -> None:
    index = SubscriptionIndex()
    link = Link(index)
    link.receive(b"RS+ A a\r\nRS+ A a q 2\r\nRS+ A b.*\r\nRS+ B a\r\n")
    assert (link.sink.num_interest, index.count, link.ingress.unknown) == (3, 3, 1)
    link.sink.forget_all()
    assert (link.sink.num_interest, index.count) == (0, 0)
    assert publish(index, b"a", b"", b"", b"") == 0


def test_interest_moves_to_the_account_that_comes_after_a_removed_one() -> None:
    before, after = SubscriptionIndex(), SubscriptionIndex()
    open_accounts = {b"A": before}
    link = Link(before)
    link.ingress.serve(open_accounts.get)
    link.receive(b"RS+ A a\r\nRS+ A a q 2\r\nRS+ A b.*\r\n")
    open_accounts[b"A"] = after
    link.ingress.forget_accounts()
    link.sink.move_interest(b"A", after)
    link.sink.move_interest(b"B", after)  # in which it has none
    assert (before.count, after.count, link.sink.num_interest) == (0, 3, 3)
    assert publish(before, b"a", b"", b"", b"") == 0
    assert publish(after, b"b.c", b"", b"", b"") == 1
    link.receive(b"RS- A b.*\r\nRS+ A c\r\n")
    assert sorted(one.subject for one in after.subscriptions()) == [b"a", b"a", b"c"]
    link.sink.forget_all()
    assert after.count == 0


def test_a_delivery_of_a_consumer_shows_the_subject_that_it_was_stored_with() -> None:
    index, client = SubscriptionIndex(), Client()
    index.insert(SinkSubscription(client.sink, b"deliver.here", b"", b"7"))
    reply = b"$JS.ACK.S.P.1.2.2.1795345868785590856.0"
    Link(index).receive(b"RMSG A deliver.here %s@s.1 2\r\nhi\r\n" % reply)
    assert client.sink.take() == b"MSG s.1 7 %s 2\r\nhi\r\n" % reply


def test_headers_are_cut_for_a_peer_without_them() -> None:
    index = SubscriptionIndex()
    link = Link(index)
    link.receive(b"RS+ A a\r\n")
    publish(index, b"a", b"", b"NATS/1.0\r\n\r\n", b"x")
    link.sink.accept_headers(False)
    publish(index, b"a", b"", b"NATS/1.0\r\n\r\n", b"y")
    assert link.sink.take() == b"HMSG A a 12 13\r\nNATS/1.0\r\n\r\nx\r\nRMSG A a 1\r\ny\r\n"


# -- bounds


def test_messages_above_the_bound_are_dropped_and_counted() -> None:
    index, reported = SubscriptionIndex(), []
    link = Link(index)
    link.receive(b"RS+ A a\r\n")
    link.sink.pending_max = 10_000
    link.sink.report_drops(lambda: reported.append(link.sink.dropped_msgs))
    for i in range(100):
        assert publish(index, b"a", b"", b"", b"%4d" % i + b"x" * 996) == 1
    kept = link.sent()
    assert 8 <= len(kept) <= 10
    assert [int(body[:4]) for *_, body in kept] == list(range(len(kept)))  # the first ones, in order
    assert (link.sink.dropped_msgs, reported) == (100 - len(kept), [1])
    assert link.sink.take_dropped()[0] == 100 - len(kept)
    for _ in range(11):
        publish(index, b"a", b"", b"", b"x" * 1000)
    assert len(reported) == 2


def test_a_slow_peer_does_not_hold_back_the_messages_of_others() -> None:
    index, client = SubscriptionIndex(), Client()
    slow, fast = Link(index), Link(index)
    index.insert(SinkSubscription(client.sink, b"a", b"", b"1"))
    for link in (slow, fast):
        link.receive(b"RS+ A a\r\n")
    slow.sink.pending_max = 100
    for _ in range(50):
        publish(index, b"a", b"", b"", b"x" * 90)
    assert (len(client.received()), len(fast.sent()), len(slow.sent())) == (50, 50, 1)


def test_interest_is_never_dropped_but_ends_a_link_that_takes_nothing() -> None:
    index, local, reported = SubscriptionIndex(), LocalInterest(b"A"), RouteSink(DirtyList())
    index.announcer = local
    reported.pending_max = 1000
    local.connect(reported, dedicated=False)
    for i in range(200):
        index.insert(SinkSubscription(Client().sink, b"subject.%d" % i, b"", b"1"))
        if not reported.closed:
            assert len(reported.out) <= 2000
    assert reported.closed
    assert reported.overflowed


def test_a_peer_sink_takes_only_subscriptions_of_peers() -> None:
    with pytest.raises(TypeError, match="not the sink of another server"):
        RemoteSubscription(Client().sink, b"a")
