"""RouteParser against its model: the same frames however the bytes are cut, and its bound before
registration."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.kernels.wire.frames import OP_CONNECT, OP_ERROR, OP_INFO, OP_PING, Op, ParseError
from penstock.kernels.wire.route_frames import PyRouteFrame, RouteOp, RouteParser
from tests.reference.route_frames import parse

HELD_MAX = 64 << 10


def as_tuple(frame: PyRouteFrame) -> tuple[object, ...]:
    if frame.op == RouteOp.ROUTE_MSG:
        return (
            "message", frame.is_leaf, frame.origin, frame.account, frame.subject, frame.reply, frame.queues,
            frame.header_len, frame.body,
        )  # fmt: skip
    kind = "sub" if frame.op == RouteOp.ROUTE_SUB else "unsub"
    return kind, frame.is_leaf, frame.origin, frame.account, frame.subject, frame.queue, frame.weight


def wide(account: bytes = b"") -> RouteParser:
    """A parser of a registered peer."""
    parser = RouteParser()
    parser.widen()
    if account:
        parser.dedicate(account)
    return parser


def check(data: bytes, cuts: list[int], account: bytes = b"") -> None:
    expected = parse(data, account)
    parser, frames, error = wide(account), [], ""
    for a, b in itertools.pairwise([0, *sorted(cuts), len(data)]):
        parser.feed(data[a:b])
        while not error and (frame := parser.next_route_frame()) is not None:
            if frame.op == OP_ERROR:
                error = ParseError(parser.error).name.removeprefix("ERROR_")
                break
            frames.append(as_tuple(frame))
    assert frames == expected.frames
    assert error == expected.error
    if not error:
        assert parser.pending == len(expected.rest)


word = st.text("abcXYZ019.*>$_-+|", min_size=1, max_size=9).map(str.encode)
blank = st.sampled_from([b" ", b" ", b"  ", b"\t"])
body = st.one_of(st.binary(max_size=30), st.sampled_from([b"\r\n", b"RS+ a b\r\n"]))


@st.composite
def lines(draw: st.DrawFn, account: bytes) -> bytes:
    verb = draw(st.sampled_from(b"RS+ RS- LS+ LS- RMSG HMSG LMSG".split()))
    words = [draw(word)] if verb[:1] == b"L" else []
    words += [] if account else [draw(word)]
    words.append(draw(word))
    payload = None
    if b"MSG" in verb:
        payload = draw(body)
        form = draw(st.sampled_from(["plain", "reply", "+", "|"]))
        if form == "reply":
            words.append(draw(word))
        elif form != "plain":
            words.append(form.encode())
            words += draw(st.lists(word, min_size=1, max_size=7))
        if verb != b"RMSG":
            words.append(b"%d" % draw(st.integers(0, len(payload))))
        words.append(b"%d" % len(payload))
    elif draw(st.booleans()):
        words.append(draw(word))
        if verb.endswith(b"+"):
            words.append(draw(st.sampled_from([b"1", b"7", b"0", b"x", b"4000000000"])))
    if draw(st.integers(0, 9)) == 0:
        words[draw(st.integers(0, len(words) - 1))] = draw(
            st.sampled_from([b"1x", b"-1", b"a\rb", b"9999999999"])
        )
    line = verb + b"".join(draw(blank) + one for one in words)
    end = draw(st.sampled_from([b"\r\n", b"\r\n", b"\n"]))
    if payload is None:
        return line + end
    return line + end + payload + draw(st.sampled_from([b"\r\n"] * 9 + [b"xx"]))


@given(st.data())
@example(None)
def test_frames_and_errors_are_those_of_the_model(data: st.DataObject | None) -> None:
    if data is None:
        check(b"RMSG A s + r q1 q2 5\r\nhello\r\nLS- _ A s\r\n", [3, 9, 20])
        return
    account = data.draw(st.sampled_from([b"", b"", b"ACC"]))
    stream = b"".join(data.draw(st.lists(lines(account), max_size=5)))
    check(stream, data.draw(st.lists(st.integers(0, len(stream)), max_size=6)), account)


def test_every_cut_gives_the_same_frames() -> None:
    stream = (
        b"RS+ $G foo.*\r\nRMSG $G foo.a 2\r\nhi\r\nHMSG $G foo.b r 12 14\r\nNATS/1.0\r\n\r\nhi\r\n"
        b"RMSG $G q | one two 0\r\n\r\nLMSG leaf $G x 0 1\r\n.\r\nRS- $G foo.*\r\n"
    )
    for cut in range(len(stream) + 1):
        check(stream, [cut])
    check(stream, list(range(len(stream))))


def test_control_frames_come_between_route_frames() -> None:
    parser = wide()
    parser.feed(b"PING\r\nRS+ A s\r\nINFO {} \r\nA+ x\r\n+OK\r\n-ERR 'x'\r\nPONG\r\n")
    ops = []
    while (frame := parser.next_route_frame()) is not None:
        ops.append(frame.op)
    assert ops == [
        OP_PING, RouteOp.ROUTE_SUB, OP_INFO, RouteOp.ROUTE_ACCOUNT, Op.OP_OK, Op.OP_ERR, Op.OP_PONG
    ]  # fmt: skip


@pytest.mark.parametrize(
    "line", [b"PUB a 1\r\n", b"SUB a 1\r\n", b"MSG a 1 1\r\n", b"HPUB", b"RX", b"GET / HTTP/1.1"]
)
def test_verbs_of_clients_are_unknown(line: bytes) -> None:
    parser = wide()
    parser.feed(line)
    frame = parser.next_route_frame()
    assert frame is not None
    assert frame.op == OP_ERROR
    assert parser.error == ParseError.ERROR_UNKNOWN_OPERATION


def test_a_locked_parser_takes_connect_alone() -> None:
    parser = RouteParser()
    parser.lock()
    parser.feed(b"CONNECT {}\r\nRS+ A s\r\n")
    first, second = parser.next_route_frame(), parser.next_route_frame()
    assert first is not None
    assert first.op == OP_CONNECT
    assert second is not None
    assert (second.op, parser.error) == (OP_ERROR, ParseError.ERROR_NO_CONNECT)


@given(st.binary(max_size=64), st.booleans(), st.sampled_from([-1, 65536, 262144]))
@example(b"CONNECT {" + b"x" * 60, True, -1)
@example(b"INFO {" + b"x" * 60, False, 65536)
@example(b"RMSG A s 60000000\r\n", False, -1)
def test_a_peer_that_is_not_registered_makes_it_hold_little(piece: bytes, locked: bool, hint: int) -> None:
    """Whatever it sends, as often as it likes, and whatever room the event loop asks for."""
    parser = RouteParser()
    if locked:
        parser.lock()
    for _ in range(3000):
        view = parser.get_buffer(hint)
        assert len(view) <= HELD_MAX
        view[: len(piece)] = piece
        del view
        parser.buffer_updated(len(piece))
        frame = parser.next_route_frame()
        assert parser.held_bytes <= HELD_MAX
        if frame is not None and frame.op == OP_ERROR:
            break


def test_the_rest_of_the_input_can_be_taken() -> None:
    parser = wide()
    parser.feed(b"PING\r\n\xff\x06\x00compressed")
    assert parser.next_route_frame() is not None
    assert parser.take_rest() == b"\xff\x06\x00compressed"
    parser.feed(b"PING\r\n")
    frame = parser.next_route_frame()
    assert frame is not None
    assert frame.op == OP_PING
