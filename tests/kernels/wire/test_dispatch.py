"""Dispatch: who gets what, byte for byte, and what the publisher hears about it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import ClientSink, DeliveryGuard, ServiceSink, SubjectMapper, publish
from penstock.kernels.wire.frames import (
    OP_CONNECT,
    OP_ERROR,
    OP_NEED_MORE,
    OP_PING,
    OP_SUB,
    FrameParser,
    ParseError,
)
from penstock.kernels.wire.ingress import Ingress
from penstock.kernels.wire.sinks import DirtyList, Sink, SinkSubscription
from penstock.kernels.wire.ticks import TickTrigger
from tests.reference.subscription_index import matches


class Session:
    """The owner of a client's sink and ingress, as far as the kernel needs one."""

    def __init__(self, server: Server, headers: bool = True, echo: bool = True) -> None:
        self.server = server
        self.sink = ClientSink(server.dirty, self)
        self.sink.headers = headers
        self.sink.echo = echo
        self.ingress = Ingress(self.sink, server.index)
        self.unsubscribed: list[SinkSubscription] = []

    def on_auto_unsubscribe(self, sub: SinkSubscription) -> None:
        self.unsubscribed.append(sub)
        self.server.index.remove(sub)

    def subscribe(
        self, f: bytes, sid: bytes = b"1", queue: bytes = b"", max_msgs: int = 0
    ) -> SinkSubscription:
        sub = SinkSubscription(self.sink, f, queue, sid, max_msgs)
        self.server.index.insert(sub)
        return sub

    def send(self, data: bytes) -> int:
        self.ingress.parser.feed(data)
        return self.ingress.process()

    def received(self) -> bytes:
        return self.sink.take()


class Server:
    """An index, a dirty list and the sessions that share them."""

    def __init__(self) -> None:
        self.woken = 0
        self.dirty = DirtyList(self.wake)
        self.index = SubscriptionIndex()

    def wake(self) -> None:
        self.woken += 1

    def connect(self, headers: bool = True, echo: bool = True) -> Session:
        return Session(self, headers, echo)


@pytest.fixture
def server() -> Server:
    return Server()


def test_a_publish_reaches_every_interested_client_and_no_other(server: Server) -> None:
    a, b, c = server.connect(), server.connect(), server.connect()
    a.subscribe(b"x.*", b"7")
    b.subscribe(b"x.y", b"8")
    b.subscribe(b">", b"9")
    c.subscribe(b"z", b"1")
    assert c.send(b"PUB x.y 5\r\nhello\r\nPUB x.z r.1 0\r\n\r\n") == OP_NEED_MORE
    assert a.received() == b"MSG x.y 7 5\r\nhello\r\nMSG x.z 7 r.1 0\r\n\r\n"
    assert b.received() == b"MSG x.y 8 5\r\nhello\r\nMSG x.y 9 5\r\nhello\r\nMSG x.z 9 r.1 0\r\n\r\n"
    assert c.received() == b""
    assert (c.sink.in_msgs, c.sink.in_bytes) == (2, 5)
    assert (b.sink.out_msgs, b.sink.out_bytes) == (3, 10)


def test_a_header_block_is_stripped_for_who_can_not_take_it(server: Server) -> None:
    new, old, sender = server.connect(), server.connect(headers=False), server.connect()
    new.subscribe(b"a")
    old.subscribe(b"a")
    sender.send(b"HPUB a r 12 14\r\nNATS/1.0\r\n\r\nhi\r\n")
    assert new.received() == b"HMSG a 1 r 12 14\r\nNATS/1.0\r\n\r\nhi\r\n"
    assert old.received() == b"MSG a 1 r 2\r\nhi\r\n"
    assert old.sink.out_bytes == 2


def test_hpub_without_headers_in_connect_is_malformed(server: Server) -> None:
    old = server.connect(headers=False)
    assert old.send(b"HPUB a 12 12\r\nNATS/1.0\r\n\r\n\r\n") == OP_ERROR
    assert old.ingress.parser.error == ParseError.ERROR_MALFORMED
    assert old.ingress.control().op == OP_ERROR
    assert old.ingress.process() == OP_ERROR
    assert old.sink.in_msgs == 0


def test_echo_off_keeps_own_messages_away_and_lets_the_queue_group_go_on(server: Server) -> None:
    quiet, other = server.connect(echo=False), server.connect()
    quiet.subscribe(b"a")
    quiet.subscribe(b"q", b"2", b"group")
    other.subscribe(b"q", b"3", b"group")
    for _ in range(20):
        quiet.send(b"PUB a 1\r\nx\r\nPUB q 1\r\ny\r\n")
    assert quiet.received() == b""
    assert other.received() == b"MSG q 3 1\r\ny\r\n" * 20
    other.send(b"PUB a 1\r\nx\r\n")
    assert quiet.received() == b"MSG a 1 1\r\nx\r\n"


def test_each_queue_group_gets_one_copy_spread_over_its_members(server: Server) -> None:
    members = [server.connect() for _ in range(3)]
    for i, member in enumerate(members):
        member.subscribe(b"a" if i else b"*", b"1", b"g")
    alone = server.connect()
    alone.subscribe(b"a", b"1", b"h")
    for _ in range(300):
        alone.send(b"PUB a 1\r\nx\r\n")
    counts = [member.sink.out_msgs for member in members]
    assert sum(counts) == 300
    assert min(counts) > 50
    assert alone.sink.out_msgs == 300


def test_the_choice_of_queue_members_repeats_with_its_seed() -> None:
    def run(seed: int) -> list[bytes]:
        server = Server()
        server.index.random_state = seed
        members = [server.connect() for _ in range(3)]
        for member in members:
            member.subscribe(b"a", b"1", b"g")
        for i in range(50):
            members[0].send(b"PUB a 2\r\n%02d\r\n" % i)
        return [member.received() for member in members]

    assert run(5) == run(5)
    assert run(5) != run(6)
    assert sum(map(len, run(0))) == sum(map(len, run(5)))


def test_a_subscription_ends_after_its_maximum(server: Server) -> None:
    a, b = server.connect(), server.connect()
    sub = a.subscribe(b"a", max_msgs=2)
    b.send(b"PUB a 1\r\n1\r\nPUB a 1\r\n2\r\nPUB a 1\r\n3\r\n")
    assert a.received() == b"MSG a 1 1\r\n1\r\nMSG a 1 1\r\n2\r\n"
    assert a.unsubscribed == [sub]
    assert sub.closed
    assert sub.delivered == 2
    assert not server.index.has_interest(b"a")


def test_closed_subscriptions_and_sinks_are_passed_over(server: Server) -> None:
    a, b, c = server.connect(), server.connect(), server.connect()
    a.subscribe(b"a", queue=b"g")
    b.subscribe(b"a", queue=b"g").closed = True
    c.subscribe(b"a")
    c.sink.closed = True
    for _ in range(20):
        assert publish(server.index, b"a", b"", b"", b"x") == 1
    assert a.sink.out_msgs == 20
    assert b.sink.out_msgs == c.sink.out_msgs == 0


def test_a_closed_sink_stops_its_ingress(server: Server) -> None:
    a, b = server.connect(), server.connect()
    b.subscribe(b"a")
    a.sink.closed = True
    assert a.send(b"PUB a 1\r\nx\r\n") == OP_NEED_MORE
    assert b.received() == b""


# --- what the publisher hears


def test_a_request_without_responders_gets_503_and_it_is_no_delivery(server: Server) -> None:
    a = server.connect()
    sub = a.subscribe(b"_INBOX.x.*", b"4", max_msgs=1)
    server.connect().subscribe(b"_INBOX.x.*", b"5")
    a.send(b"PUB nobody _INBOX.x.1 2\r\nhi\r\n")
    assert a.received() == b"", "no_responders is off"
    a.ingress.no_responders = True
    a.send(b"PUB nobody _INBOX.x.1 2\r\nhi\r\nPUB nobody 2\r\nhi\r\nPUB nobody other 2\r\nhi\r\n")
    header = b"NATS/1.0 503\r\nNats-Subject: nobody\r\n\r\n"
    assert a.received() == b"HMSG _INBOX.x.1 4 %d %d\r\n" % (len(header), len(header)) + header + b"\r\n"
    assert sub.delivered == 0
    assert a.sink.out_msgs == 0


def test_interest_of_oneself_without_echo_is_no_responder(server: Server) -> None:
    a = server.connect(echo=False)
    a.ingress.no_responders = True
    a.subscribe(b"service")
    a.subscribe(b"inbox", b"2")
    a.send(b"PUB service inbox 0\r\n\r\n")
    assert a.received().startswith(b"HMSG inbox 2 ")


def test_verbose_answers_each_publish_before_its_own_echo(server: Server) -> None:
    a = server.connect()
    a.ingress.verbose = True
    a.subscribe(b"a")
    a.send(b"PUB a 1\r\nx\r\nPUB b 1\r\nx\r\n")
    assert a.received() == b"+OK\r\nMSG a 1 1\r\nx\r\n+OK\r\n"


@pytest.mark.parametrize("subject", [b"a.*", b"a..b", b".a", b">"])
def test_pedantic_complains_about_a_bad_subject_and_publishes_it_all_the_same(
    server: Server, subject: bytes
) -> None:
    a = server.connect()
    a.ingress.pedantic = a.ingress.verbose = True
    a.subscribe(b">")
    a.send(b"PUB " + subject + b" 1\r\nx\r\n")
    complaint = b"-ERR 'Invalid Publish Subject'\r\n+OK\r\n"
    heard = a.received()
    assert heard.startswith(complaint)
    routable = all(subject.split(b"."))
    assert heard[len(complaint) :] == (b"MSG " + subject + b" 1 1\r\nx\r\n" if routable else b"")


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"PUB $NRG.x 1", b'Publish to "$NRG.x"'),
        (b"PUB _GR_.x 1", b'Publish to "_GR_.x"'),
        (b"PUB $GR.x 1", b'Publish to "$GR.x"'),
        (b"PUB a $JS.ACK.x 1", b'Publish with Reply of "$JS.ACK.x"'),
        (b"PUB a _R_.x 1", b'Publish with Reply of "_R_.x"'),
        (b"PUB a _GR_.x 1", b'Publish with Reply of "_GR_.x"'),
    ],
)
def test_reserved_subjects_and_replies_are_refused(server: Server, line: bytes, complaint: bytes) -> None:
    a = server.connect()
    a.ingress.verbose = True
    a.subscribe(b">")
    a.send(line + b"\r\nx\r\n")
    assert a.received() == b"-ERR 'Permissions Violation for " + complaint + b"'\r\n"
    assert a.sink.in_msgs == 1


@pytest.mark.parametrize("subject", [b"$JS.ACK.x", b"$NRG", b"$SYS.x", b"_INBOX.x", b"_GR_", b"$", b"_"])
def test_other_subjects_with_a_dollar_are_ordinary(server: Server, subject: bytes) -> None:
    a = server.connect()
    a.subscribe(b">")
    a.send(b"PUB " + subject + b" 1\r\nx\r\n")
    assert a.received() == b"MSG " + subject + b" 1 1\r\nx\r\n"


def test_permissions_are_asked_once_for_what_is_allowed_and_each_time_for_what_is_not(server: Server) -> None:
    a = server.connect()
    asked: list[bytes] = []

    def check(subject: bytes) -> bool:
        asked.append(subject)
        return subject != b"secret"

    a.ingress.publish_check = check
    a.ingress.verbose = True
    a.subscribe(b">")
    a.send(b"PUB a 1\r\nx\r\nPUB secret 1\r\nx\r\n" * 2)
    assert a.received() == b"+OK\r\nMSG a 1 1\r\nx\r\n" * 2
    assert asked == [b"a", b"secret", b"secret"]
    a.ingress.restrict(check)
    a.send(b"PUB a 1\r\nx\r\n")
    assert asked[-1] == b"a"


# --- control frames, the dirty list, backlog


def test_process_stops_at_each_control_frame_and_goes_on_behind_it(server: Server) -> None:
    a, b = server.connect(), server.connect()
    b.subscribe(b"a")
    ops = [a.send(b"CONNECT {}\r\nPUB a 1\r\n1\r\nSUB x q 5\r\nPING\r\nPUB a 1\r\n2\r\nPUB a")]
    assert a.ingress.control().payload == b"{}"
    ops.append(a.ingress.process())
    frame = a.ingress.control()
    assert (frame.subject, frame.queue, frame.sid) == (b"x", b"q", b"5")
    ops.append(a.ingress.process())
    ops.append(a.ingress.process())
    assert ops == [OP_CONNECT, OP_SUB, OP_PING, OP_NEED_MORE]
    assert b.received() == b"MSG a 1 1\r\n1\r\nMSG a 1 1\r\n2\r\n"
    assert a.send(b" 1\r\n3\r\n") == OP_NEED_MORE
    assert b.received() == b"MSG a 1 1\r\n3\r\n"


def test_a_control_frame_can_not_be_read_after_its_bytes_are_gone(server: Server) -> None:
    a = server.connect()
    with pytest.raises(RuntimeError, match="control"):
        a.ingress.control()
    assert a.send(b"CONNECT {}\r\n") == OP_CONNECT
    a.ingress.parser.feed(b"PING\r\n")
    with pytest.raises(RuntimeError, match="control"):
        a.ingress.control()
    assert a.ingress.process() == OP_PING
    assert a.ingress.process() == OP_NEED_MORE
    with pytest.raises(RuntimeError, match="control"):
        a.ingress.control()


def test_a_tick_is_woken_once_and_lists_each_sink_once(server: Server) -> None:
    a, b = server.connect(), server.connect()
    a.subscribe(b"a")
    b.subscribe(b"a")
    a.send(b"PUB a 1\r\nx\r\n" * 10)
    assert server.woken == 1
    assert server.dirty.take() == [a.sink, b.sink]
    a.received()
    b.received()
    a.send(b"PUB a 1\r\nx\r\n")
    assert server.woken == 2
    assert len(server.dirty) == 2


def test_protocol_text_goes_out_in_order_with_messages(server: Server) -> None:
    a = server.connect()
    a.subscribe(b"a")
    a.sink.write(b"INFO {}\r\n")
    a.send(b"PUB a 1\r\nx\r\n")
    a.sink.write(b"PONG\r\n")
    assert server.woken == 1
    assert a.received() == b"INFO {}\r\nMSG a 1 1\r\nx\r\nPONG\r\n"


def test_a_publisher_learns_that_it_feeds_a_slow_receiver(server: Server) -> None:
    a, b = server.connect(), server.connect()
    b.subscribe(b"a")
    b.sink.stall_threshold = 40
    a.send(b"PUB a 10\r\n0123456789\r\n")
    assert not a.ingress.fed_slow
    a.send(b"PUB a 10\r\n0123456789\r\n")
    assert a.ingress.fed_slow
    assert not b.ingress.fed_slow
    b.received()
    a.ingress.fed_slow = False
    a.send(b"PUB a 10\r\n0123456789\r\n")
    assert not a.ingress.fed_slow


def test_a_receiver_above_its_bound_is_closed_at_once_and_takes_no_more(server: Server) -> None:
    a, b = server.connect(), server.connect()
    b.sink.stall_threshold, b.sink.pending_max = 40, 100
    for sid in range(1, 50):
        b.subscribe(b"a", sid=b"%d" % sid)
    a.send(b"PUB a 10\r\n0123456789\r\n" * 20)
    assert b.sink.overflowed
    assert b.sink.closed
    assert b.sink.out.size <= 100 + len(b"MSG a 49 10\r\n0123456789\r\n")
    assert not a.sink.overflowed


def test_an_ingress_without_an_account_says_so(server: Server, noted_faults: list[BaseException]) -> None:
    ingress = Ingress(ClientSink(server.dirty))
    ingress.parser.feed(b"PUB a 1\r\nx\r\nPING\r\n")
    assert ingress.process() == OP_PING
    assert "without an index" in str(noted_faults.pop())


# --- services


def test_a_service_gets_whole_messages_after_what_is_pending_was_applied(server: Server) -> None:
    calls: list[object] = []

    def callback(subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None) -> None:
        calls.append((subject, reply, header, payload, origin))

    service = ServiceSink(callback, lambda: calls.append("before"))
    server.index.insert(SinkSubscription(service, b"$JS.API.>"))
    a = server.connect()
    a.send(b"PUB $JS.API.INFO r 2\r\nhi\r\nHPUB $JS.API.X 12 14\r\nNATS/1.0\r\n\r\nhi\r\n")
    assert publish(server.index, b"$JS.API.Y", b"", b"", b"") == 1
    assert calls == [
        "before",
        (b"$JS.API.INFO", b"r", b"", b"hi", a.sink),
        "before",
        (b"$JS.API.X", b"", b"NATS/1.0\r\n\r\n", b"hi", a.sink),
        "before",
        (b"$JS.API.Y", b"", b"", b"", None),
    ]


def test_a_service_may_answer_subscribe_and_unsubscribe_while_it_runs(server: Server) -> None:
    a = server.connect()
    a.subscribe(b"inbox")
    subs: list[SinkSubscription] = []

    def callback(subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None) -> None:
        publish(server.index, reply, b"", b"NATS/1.0\r\n\r\n", b"ok")
        while subs:
            server.index.remove(subs.pop())
        for _ in range(50):
            subs.append(SinkSubscription(service, b"api.*"))
            server.index.insert(subs[-1])

    service = ServiceSink(callback)
    subs.append(SinkSubscription(service, b"api.*"))
    server.index.insert(subs[0])
    a.send(b"PUB api.x inbox 0\r\n\r\n")
    assert a.received() == b"HMSG inbox 1 12 14\r\nNATS/1.0\r\n\r\nok\r\n"


def test_what_a_service_raises_costs_its_message_and_nothing_else(
    server: Server, noted_faults: list[BaseException]
) -> None:
    def callback(subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None) -> None:
        raise LookupError(subject)

    server.index.insert(SinkSubscription(ServiceSink(callback), b"api"))
    a = server.connect()
    a.subscribe(b"a")
    b = server.connect()
    b.subscribe(b"api")
    a.send(b"PUB api 1\r\nx\r\nPUB a 1\r\nx\r\n")
    assert a.ingress.process() == OP_NEED_MORE
    assert (a.received(), b.received()) == (b"MSG a 1 1\r\nx\r\n", b"MSG api 1 1\r\nx\r\n")
    assert publish(server.index, b"api", b"", b"", b"") == 2
    assert [type(error) for error in noted_faults] == [LookupError, LookupError]
    noted_faults.clear()


def test_a_publish_that_raises_is_answered_with_500_and_the_next_one_follows(
    server: Server, noted_faults: list[BaseException]
) -> None:
    def decide(subject: bytes) -> tuple[bytes, bool]:
        if subject == b"bad":
            raise LookupError(subject)
        return subject, False

    a = server.connect()
    a.subscribe(b"in", sid=b"5")
    a.ingress.mapper = SubjectMapper(decide)
    a.send(b"PUB bad in 1\r\nx\r\nPUB in 1\r\ny\r\n")
    answer, message = a.received().split(b"MSG in 5 1\r\n")
    assert re.fullmatch(
        rb"HMSG in 5 (\d+) \1\r\nNATS/1.0 500 internal error, .* fault [0-9a-f]+-\d+\r\n\r\n\r\n", answer
    )
    assert message == b"y\r\n"
    assert [type(error) for error in noted_faults] == [LookupError]
    noted_faults.clear()


def test_what_a_receivers_permissions_raise_costs_that_receiver_its_message(
    server: Server, noted_faults: list[BaseException]
) -> None:
    def refuse(subject: bytes) -> bool:
        raise LookupError(subject)

    a, b, c = server.connect(), server.connect(), server.connect()
    b.subscribe(b"a")
    c.subscribe(b"a")
    b.sink.guard = DeliveryGuard(refuse)
    a.send(b"PUB a 1\r\nx\r\n")
    assert (b.received(), c.received()) == (b"", b"MSG a 1 1\r\nx\r\n")
    assert [type(error) for error in noted_faults] == [LookupError]
    noted_faults.clear()


def test_the_read_buffer_is_pinned_while_a_service_runs(server: Server) -> None:
    a = server.connect()
    errors: list[type[Exception]] = []

    def callback(subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None) -> None:
        for misuse in (lambda: a.ingress.parser.feed(bytes(1 << 20)), a.ingress.process):
            try:
                misuse()
            except (BufferError, RuntimeError) as error:
                errors.append(type(error))
        a.ingress.parser.feed(b"PUB a 1\r\nz\r\n")

    server.index.insert(SinkSubscription(ServiceSink(callback), b"a.api"))
    b = server.connect()
    b.subscribe(b">")
    assert a.send(b"PUB a.api 1\r\ny\r\n") == OP_NEED_MORE
    assert errors == [BufferError, RuntimeError]
    assert b.received() == b"MSG a.api 1 1\r\ny\r\nMSG a 1 1\r\nz\r\n"


def test_publish_refuses_what_would_break_the_receivers_frames(server: Server) -> None:
    for subject, reply in ((b"a b", b""), (b"a\r\nPING", b""), (b"a", b"r r")):
        with pytest.raises(ValueError, match="whitespace"):
            publish(server.index, subject, reply, b"", b"")
    assert publish(server.index, b"a..b", b"", b"", b"") == 0
    assert publish(server.index, b"", b"", b"", b"") == 0


# --- everything at once, against the model

names = st.sampled_from([b"a", b"b", b"a.b", b"a.c"])
clients = st.lists(
    st.tuples(
        st.booleans(),
        st.booleans(),
        st.lists(
            st.tuples(
                st.sampled_from([b"a", b"b", b"a.b", b"a.*", b"*", b">", b"a.>", b"*.b"]),
                st.sampled_from([b"", b"", b"g", b"h"]),
                st.integers(0, 3),
            ),
            max_size=4,
        ),
    ),
    min_size=1,
    max_size=4,
)
publishes = st.lists(
    st.tuples(st.integers(0, 3), names, st.none() | names, st.booleans(), st.binary(max_size=6)), max_size=12
)


@given(clients, publishes)
def test_random_publishes_reach_whom_the_model_says(
    clients: list[tuple[bool, bool, list[tuple[bytes, bytes, int]]]],
    publishes: list[tuple[int, bytes, bytes | None, bool, bytes]],
) -> None:
    server = Server()
    sessions = []
    subs: list[tuple[Session, SinkSubscription]] = []
    for headers, echo, wanted in clients:
        session = server.connect(headers, echo)
        sessions.append(session)
        for f, queue, most in wanted:
            subs.append((session, session.subscribe(f, b"%d" % len(subs), queue, most)))
    left = {sub.sid: sub.max_msgs or 1000 for _, sub in subs}
    for who, subject, reply, with_header, payload in publishes:
        sender = sessions[who % len(sessions)]
        header = b"NATS/1.0\r\n\r\n" if with_header and sender.sink.headers else b""
        willing = [
            (session, sub)
            for session, sub in subs
            if matches(sub.subject.decode(), subject.decode())
            and left[sub.sid]
            and (session is not sender or session.sink.echo)
        ]
        line = (b"HPUB " if header else b"PUB ") + subject + b" " + (reply + b" " if reply else b"")
        line += b"%d " % len(header) if header else b""
        assert (
            sender.send(line + b"%d\r\n" % len(header + payload) + header + payload + b"\r\n") == OP_NEED_MORE
        )
        got = []
        for session in sessions:
            parser = FrameParser()
            parser.feed(session.received())
            for sid, *rest in parser.next_batch():
                got.append(b"%d" % sid)
                wanted_header = header if header and session.sink.headers else None
                assert rest == [subject, reply, wanted_header, payload]
            assert parser.pending == 0
        assert sorted(set(got)) == sorted(got)
        plain = [sub.sid for _, sub in willing if not sub.queue]
        assert set(plain) <= set(got)
        chosen = sorted(sub.queue for _, sub in willing if sub.queue and sub.sid in got)
        assert chosen == sorted({sub.queue for _, sub in willing if sub.queue})
        assert len(got) == len(plain) + len(chosen)
        for taken in got:
            left[taken] -= 1
    for _, sub in subs:
        assert sub.closed == (left[sub.sid] == 0)


def test_what_a_read_brought_is_worked_through_and_its_owner_goes_on_at_control_frames(
    server: Server,
) -> None:
    a, b = server.connect(), server.connect()
    b.subscribe(b"a")
    stops: list[int] = []
    a.ingress.on_control = stops.append
    a.ingress.on_fed_slow = lambda: stops.append(-1)
    b.sink.stall_threshold = 0

    def read(data: bytes) -> None:
        with a.ingress.parser.get_buffer(len(data)) as room:
            room[: len(data)] = data
        a.ingress.received(len(data))

    read(b"PUB a 1\r\nx\r\nPING\r\n")
    assert stops == [OP_PING, -1]
    assert (a.ingress.active, a.ingress.read_bytes, a.ingress.fed_slow) == (True, 18, False)
    assert b.received() == b"MSG a 1 1\r\nx\r\n"
    a.ingress.active, a.sink.closed = False, True
    read(b"PUB a 1\r\nx\r\n")
    assert (a.ingress.active, b.received()) == (False, b"")


def test_a_read_that_comes_alone_ends_the_tick_also_after_one_that_failed(
    server: Server, noted_faults: list[BaseException]
) -> None:
    a = server.connect()
    soon: list[object] = []
    trigger = TickTrigger(soon.append, lambda: None)
    a.ingress.trigger = trigger
    a.ingress.index = None
    with a.ingress.parser.get_buffer(20) as room:
        room[:12] = b"PUB a 1\r\nx\r\n"
    a.ingress.received(12)
    assert "without an index" in str(noted_faults.pop())
    trigger.schedule()
    assert len(soon) == 1, "the read is over: what comes is no part of it"
