"""FrameParser against its model: the same frames however the bytes are cut, the same errors."""

from __future__ import annotations

import asyncio
import itertools
import socket

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.kernels.wire.frames import (
    OP_CONNECT,
    OP_ERROR,
    OP_HMSG,
    OP_MSG,
    OP_NEED_MORE,
    OP_PING,
    OP_PUB,
    FrameParser,
    Op,
    ParseError,
    PyFrame,
)
from penstock.kernels.wire.output import OutBuffer, encode_msg, encode_pub, encode_sub, encode_unsub
from tests.reference.frames import parse


def as_tuple(frame: PyFrame) -> tuple[object, ...]:
    op = Op(frame.op).name.removeprefix("OP_")
    return (op, frame.subject, frame.reply, frame.sid, frame.header, frame.payload, frame.max_msgs)


class Reader:
    """A parser fed in pieces, and everything that came out of it."""

    def __init__(self, max_control_line: int = 4096, max_payload: int = 0) -> None:
        self.parser = FrameParser(max_control_line, max_payload)
        self.frames: list[tuple[object, ...]] = []
        self.error = ""

    def read(self, data: bytes) -> None:
        self.parser.feed(data)
        while (frame := self.parser.next_frame()) is not None:
            if frame.op == OP_ERROR:
                self.error = ParseError(self.parser.error).name.removeprefix("ERROR_")
                break
            self.frames.append(as_tuple(frame))


def check(data: bytes, cuts: list[int], max_control_line: int = 4096, max_payload: int = 0) -> None:
    """Parsed in pieces cut at `cuts`, data gives what the model says."""
    expected = parse(data, max_control_line, max_payload)
    reader = Reader(max_control_line, max_payload)
    edges = [0, *sorted(cuts), len(data)]
    for a, b in itertools.pairwise(edges):
        reader.read(data[a:b])
    assert reader.frames == expected.frames
    assert reader.error == expected.error
    if not expected.error:
        assert reader.parser.pending == len(expected.rest)


token = st.text("abcXYZ019.*>$_-'{", min_size=1, max_size=12).map(str.encode)
blank = st.sampled_from([b" ", b"  ", b"\t", b" \t "])
line_end = st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n"])
body = st.one_of(st.binary(max_size=30), st.sampled_from([b"\r\n", b"PING\r\n", b"PUB a 1\r\nx\r\n"]))


@st.composite
def verbs(draw: st.DrawFn, word: bytes) -> bytes:
    return bytes(c ^ 32 if chr(c).isalpha() and draw(st.booleans()) else c for c in word)


@st.composite
def valid_frames(draw: st.DrawFn) -> bytes:
    name = draw(st.sampled_from(b"PUB HPUB MSG HMSG SUB UNSUB PING PONG +OK -ERR CONNECT INFO".split()))
    verb = draw(verbs(name)) if draw(st.booleans()) else name
    end = draw(line_end)
    if name in (b"PING", b"PONG", b"+OK"):
        return verb + draw(st.sampled_from([b"", b"", b" ", b" x"])) + end
    if name in (b"CONNECT", b"INFO"):
        return verb + draw(st.sampled_from([b" {}", b"{}", b'  {"a": "b c"} ', b""])) + end
    if name == b"-ERR":
        return verb + draw(st.sampled_from([b" 'Some Error'", b" text", b"", b" '", b" ''"])) + end
    if name == b"UNSUB":
        args = [draw(token), *draw(st.lists(st.integers(0, 10**10).map(b"%d".__mod__), max_size=1))]
        payload = None
    elif name == b"SUB":
        args = [draw(token), *draw(st.lists(token, max_size=1)), draw(token)]
        payload = None
    else:
        payload = draw(body)
        args = [draw(token)]
        args += [draw(token)] if name.endswith(b"MSG") else []
        args += draw(st.lists(token, max_size=1))
        if name.startswith(b"H"):
            args.append(b"%d" % draw(st.integers(0, len(payload))))
        args.append(b"%d" % len(payload))
    line = verb + b"".join(draw(blank) + arg for arg in args) + draw(st.sampled_from([b"", b"", b" "])) + end
    return line if payload is None else line + payload + b"\r\n"


@st.composite
def mutated(draw: st.DrawFn, frames: st.SearchStrategy[bytes]) -> bytes:
    frame = draw(frames)
    at = draw(st.integers(0, len(frame)))
    kind = draw(st.sampled_from(["drop", "insert", "replace"]))
    odd = draw(st.sampled_from([b" ", b"\r", b"\n", b"\x00", b"9", b"-", b"x", b"\t", b"\r\n", b"999999999"]))
    if kind == "drop":
        return frame[:at] + frame[at + 1 :]
    return frame[:at] + odd + frame[at + (kind == "replace") :]


rubbish = st.text("PUBHMSGINFOpub+-OKER \t\r\n0129.", max_size=20).map(str.encode)
streams = st.lists(
    st.one_of(valid_frames(), valid_frames(), valid_frames(), mutated(valid_frames()), rubbish), max_size=6
).map(b"".join)


@given(streams, st.lists(st.integers(0, 200), max_size=4), st.sampled_from([0, 0, 20]))
@example(b"PUB a 1\r\nxx\r\n", [], 0)
@example(b"PUB a 0\r\n\r\nPUB a 00000000001\r\n", [3], 0)
@example(b"HPUB a 5 4\r\n", [], 0)
@example(b"SUB a\rb 1\r\n", [], 0)
def test_any_stream_parses_as_the_model_does_wherever_it_is_cut(
    data: bytes, cuts: list[int], max_payload: int
) -> None:
    check(data, [min(c, len(data)) for c in cuts], max_control_line=40, max_payload=max_payload)


@given(streams)
def test_any_stream_parses_the_same_byte_by_byte(data: bytes) -> None:
    check(data, list(range(1, len(data))))


EVERY_KIND = (
    b'INFO {"server_id":"x"}\r\nCONNECT {"verbose":false}\r\nPING\r\nPONG\r\n+OK\r\n'
    b"-ERR 'Stale Connection'\r\n"
    b"SUB a.* q 1\r\nSUB a.> 2\r\nUNSUB 1\r\nUNSUB 2 10\r\n"
    b"PUB a 0\r\n\r\nPUB a r 5\r\nhello\r\nHPUB a 4 6\r\nHHHHpp\r\nHPUB a r 4 6\r\nHHHHpp\r\n"
    b"MSG a 1 2\r\nhi\r\nMSG a 1 r 2\r\nhi\r\nHMSG a 1 4 4\r\nHHHH\r\nHMSG a 1 r 4 6\r\nHHHHpp\r\n"
)


def test_every_kind_of_frame_survives_a_cut_at_every_byte() -> None:
    whole = Reader()
    whole.read(EVERY_KIND)
    assert len(whole.frames) == 18
    assert whole.error == ""
    assert whole.frames == parse(EVERY_KIND).frames
    for at in range(1, len(EVERY_KIND)):
        check(EVERY_KIND, [at])


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"GET / HTTP/1.1", "UNKNOWN_OPERATION"),
        (b"X", "UNKNOWN_OPERATION"),
        (b"\r\n", "UNKNOWN_OPERATION"),
        (b"PUBX a 1\r\n", "UNKNOWN_OPERATION"),
        (b"PUB\r\n", "UNKNOWN_OPERATION"),
        (b"+NO", "UNKNOWN_OPERATION"),
        (b"PUB \r\n", "MALFORMED"),
        (b"PUB a\r\n", "MALFORMED"),
        (b"PUB a b c 1\r\n", "MALFORMED"),
        (b"PUB a -1\r\n", "MALFORMED"),
        (b"PUB a +1\r\n", "MALFORMED"),
        (b"PUB a 1a\r\n", "MALFORMED"),
        (b"PUB a 1000000000\r\n", "MALFORMED"),
        (b"PUB a 18446744073709551617\r\n", "MALFORMED"),
        (b"PUB a 2\r\nabXY", "UNKNOWN_OPERATION"),
        (b"PUB a 2\r\nab\n\n", "UNKNOWN_OPERATION"),
        (b"HPUB a 1\r\n", "MALFORMED"),
        (b"HPUB a 3 2\r\n", "MALFORMED"),
        (b"HPUB a x 2\r\n", "MALFORMED"),
        (b"SUB a\r\n", "MALFORMED"),
        (b"SUB a q 1 2\r\n", "MALFORMED"),
        (b"UNSUB \r\n", "MALFORMED"),
        (b"UNSUB 1 2 3\r\n", "MALFORMED"),
        (b"MSG a 1\r\n", "MALFORMED"),
        (b"PUB a 11\r\n", "PAYLOAD"),
        (b"HPUB a 1 11\r\n", "PAYLOAD"),
        (b"MSG a 1 11\r\n", "PAYLOAD"),
        (b"PUB " + b"a" * 63 + b" 1\r\n", "CONTROL_LINE"),
        (b"PUB " + b"a" * 100, "CONTROL_LINE"),
        (b"PING" + b"a" * 100, "CONTROL_LINE"),
    ],
)
def test_a_breach_of_the_protocol_stops_the_parser_for_good(data: bytes, error: str) -> None:
    reader = Reader(max_control_line=64, max_payload=10)
    reader.read(b"PING\r\n" + data)
    assert reader.error == error
    assert len(reader.frames) == 1
    reader.read(b"PING\r\n")
    assert len(reader.frames) == 1
    frame = reader.parser.next_frame()
    assert frame is not None
    assert frame.op == OP_ERROR


def test_a_control_line_may_be_as_long_as_the_limit() -> None:
    reader = Reader(max_control_line=64)
    reader.read(b"PUB " + b"a" * 62 + b" 1\r\nx\r\n")
    assert reader.error == ""
    assert len(reader.frames) == 1


def test_a_client_can_raise_the_limit_for_info() -> None:
    parser = FrameParser()
    parser.max_control_line = 1 << 20
    info = b'{"connect_urls":["' + b"x" * 100_000 + b'"]}'
    for i in range(0, len(info), 1000):
        parser.feed((b"INFO " if i == 0 else b"") + info[i : i + 1000])
        assert parser.next_frame() is None
    parser.feed(b"\r\n")
    frame = parser.next_frame()
    assert frame is not None
    assert frame.payload == info


def test_a_read_into_the_parser_itself_is_one_into_a_view_of_get_buffer() -> None:
    data = b"PUB a.b 5\r\nhello\r\n"
    for room_of in (FrameParser.get_buffer, FrameParser.room_to_read):
        parser = FrameParser()
        for byte in data:
            with memoryview(room_of(parser, 65536)) as room:
                assert len(room) >= 65536
                room[0] = byte
                with pytest.raises(BufferError):
                    parser.get_buffer(len(room) + 1)  # the parser is pinned by the view of it
            parser.buffer_updated(1)
        frame = parser.next_frame()
        assert frame is not None
        assert (frame.subject, frame.payload) == (b"a.b", b"hello")


def read_into(parser: FrameParser, data: bytes, *, note_first: bool) -> None:
    """One read. `note_first`: its size is noted while the view exists, as event loops do."""
    with memoryview(parser.get_buffer()) as view:
        view[: len(data)] = data
        if note_first:
            parser.buffer_updated(len(data))
            drain(parser)
    if not note_first:
        parser.buffer_updated(len(data))
        drain(parser)


def drain(parser: FrameParser) -> None:
    while parser.next_frame() is not None:
        pass


def test_a_parser_without_input_holds_no_buffer_and_one_with_a_part_of_a_frame_does() -> None:
    parser = FrameParser()
    assert parser.held_bytes == 0
    for _ in range(3):
        read_into(parser, b"PING\r\nPING\r\n", note_first=True)
        assert parser.held_bytes == 0
        read_into(parser, b"PING\r\nPI", note_first=True)
        assert parser.held_bytes > 0
        read_into(parser, b"NG\r\n", note_first=True)
        assert parser.held_bytes == 0


def test_the_parser_of_a_connection_that_ended_holds_no_buffer() -> None:
    parser = FrameParser()
    read_into(parser, b"PUB a 100000\r\n" + bytes(50_000), note_first=True)
    view = parser.get_buffer()
    parser.release()  # the loop has the view: it must stay valid
    view[:4] = b"PING"
    assert parser.held_bytes > 50_000
    view.release()
    parser.release()
    assert (parser.held_bytes, parser.pending) == (0, 0)


def test_a_view_that_is_released_before_its_read_is_noted_loses_nothing() -> None:
    first, second = FrameParser(), FrameParser()
    for _ in range(3):
        with memoryview(first.get_buffer()) as view:
            view[:6] = b"PING\r\n"
        read_into(second, b"PONG\r\n", note_first=True)
        first.buffer_updated(6)
        frame = first.next_frame()
        assert frame is not None
        assert frame.op == OP_PING


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40), st.booleans()), min_size=1, max_size=60))
def test_parsers_that_pass_one_buffer_on_read_what_each_was_sent(
    reads: list[tuple[int, int, bool]],
) -> None:
    readers = [Reader() for _ in range(4)]
    streams = [
        b"".join(b"PUB s%d %d\r\n%s\r\n" % (i, n, b"%d" % i * n) for n in range(1, 30)) for i in range(4)
    ]
    at = [0] * 4
    for i, size, note_first in reads:
        data = streams[i][at[i] : at[i] + size]
        at[i] += len(data)
        parser = readers[i].parser
        view = memoryview(parser.get_buffer())
        view[: len(data)] = data
        if note_first:
            parser.buffer_updated(len(data))
            readers[i].read(b"")
            view.release()
        else:
            view.release()
            parser.buffer_updated(len(data))
            readers[i].read(b"")
    for i, reader in enumerate(readers):
        whole = Reader()
        whole.read(streams[i][: at[i]])
        assert reader.frames == whole.frames


def test_a_payload_larger_than_the_buffer_arrives_through_get_buffer() -> None:
    payload = bytes(range(256)) * 20_000
    data = b"PUB a %d\r\n" % len(payload) + payload + b"\r\nPING\r\n"
    parser = FrameParser()
    frames = []
    while data:
        view = parser.get_buffer(-1)
        n = min(len(view), len(data))
        view[:n] = data[:n]
        del view
        data = data[n:]
        parser.buffer_updated(n)
        while (frame := parser.next_frame()) is not None:
            frames.append(frame)
    assert [frame.op for frame in frames] == [OP_PUB, OP_PING]
    assert frames[0].payload == payload
    assert len(parser.get_buffer()) <= 1 << 20, "a buffer grown for one large frame is given back"


def test_room_does_not_jump_to_the_size_that_a_peer_claims() -> None:
    parser = FrameParser()
    parser.feed(b"PUB a 999999999\r\n")
    assert parser.next_frame() is None
    assert len(parser.get_buffer()) < 1 << 20


def test_the_buffer_never_moves_under_a_living_view() -> None:
    parser = FrameParser()
    view = parser.get_buffer(100)
    with pytest.raises(BufferError, match="view"):
        parser.feed(bytes(len(view) + 1))
    with pytest.raises(BufferError, match="view"):
        parser.get_buffer(len(view) + 1)
    view[:6] = b"PING\r\n"
    parser.buffer_updated(6)
    frame = parser.next_frame()
    assert frame is not None
    assert frame.op == OP_PING
    del view
    parser.feed(bytes(1 << 20))


def test_buffer_updated_refuses_more_than_there_was_room_for() -> None:
    parser = FrameParser()
    with pytest.raises(ValueError, match="room"):
        parser.buffer_updated(1)
    room = len(parser.get_buffer())
    with pytest.raises(ValueError, match="room"):
        parser.buffer_updated(room + 1)
    with pytest.raises(ValueError, match="room"):
        parser.buffer_updated(-1)


@pytest.mark.parametrize("loop_name", ["asyncio", "uvloop"])
def test_the_parser_is_a_buffer_for_both_event_loops(loop_name: str) -> None:
    class Protocol(asyncio.BufferedProtocol):
        def __init__(self) -> None:
            self.reader = Reader()
            self.done = asyncio.get_running_loop().create_future()

        def get_buffer(self, sizehint: int) -> memoryview:
            return self.reader.parser.get_buffer(sizehint)

        def buffer_updated(self, nbytes: int) -> None:
            self.reader.parser.buffer_updated(nbytes)
            self.reader.read(b"")
            if len(self.reader.frames) == 2000:
                self.done.set_result(None)

    async def run() -> None:
        left, right = socket.socketpair()
        left.setblocking(False)
        right.setblocking(False)
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.create_connection(Protocol, sock=left)
        await loop.sock_sendall(right, b"PUB a 500\r\n" + b"x" * 500 + b"\r\n")
        await loop.sock_sendall(right, (b"PUB a 500\r\n" + b"x" * 500 + b"\r\n") * 1999)
        async with asyncio.timeout(20):
            await protocol.done
        assert all(frame[5] == b"x" * 500 for frame in protocol.reader.frames)
        transport.close()
        right.close()

    if loop_name == "uvloop":
        uvloop = pytest.importorskip("uvloop")
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run())
    else:
        asyncio.run(run())


messages = st.lists(
    st.tuples(
        st.integers(0, 999_999_999),
        token,
        st.none() | token,
        st.none() | st.binary(min_size=1, max_size=9),
        body,
    ),
    max_size=6,
)


@given(messages, st.booleans(), st.integers(0, 400))
def test_a_batch_holds_all_messages_up_to_another_frame(
    batch: list[tuple[int, bytes, bytes | None, bytes | None, bytes]], ping: bool, cut: int
) -> None:
    out = OutBuffer()
    for sid, subject, reply, header, payload in batch:
        encode_msg(out, subject, b"%d" % sid, reply, header, payload)
    if ping:
        out.write(b"PING\r\n")
    data = out.take()
    parser = FrameParser()
    got = []
    for piece in (data[:cut], data[cut:]):
        parser.feed(piece)
        got += parser.next_batch()
    assert got == batch
    assert parser.messages == len(batch)
    assert parser.message_bytes == sum(len(raw[3] or b"") + len(raw[4]) for raw in batch)
    assert parser.stopped_op == (OP_PING if ping else OP_NEED_MORE)
    if ping:
        frame = parser.next_frame()
        assert frame is not None
        assert frame.op == OP_PING
    assert parser.next_frame() is None
    assert parser.pending == 0


def test_a_batch_stops_at_its_limit_and_goes_on_from_there() -> None:
    parser = FrameParser()
    parser.feed(b"MSG a 1 1\r\nx\r\nHMSG a 2 1 2\r\nhy\r\n")
    assert parser.next_batch(1) == [(1, b"a", None, None, b"x")]
    assert parser.stopped_op == OP_HMSG
    assert parser.next_batch(0) == []
    assert parser.next_batch(5) == [(2, b"a", None, b"h", b"y")]
    assert parser.stopped_op == OP_NEED_MORE


def test_a_sid_that_is_no_number_ends_a_batch_with_an_error() -> None:
    parser = FrameParser()
    parser.feed(b"MSG a 1 1\r\nx\r\nMSG a b 1\r\nx\r\n")
    assert parser.next_batch() == [(1, b"a", None, None, b"x")]
    assert parser.stopped_op == OP_ERROR
    assert parser.error == ParseError.ERROR_MALFORMED
    assert parser.next_batch() == []
    assert parser.stopped_op == OP_ERROR


def test_a_control_frame_after_a_batch_is_read_whole() -> None:
    parser = FrameParser()
    parser.feed(b"MSG a 1 1\r\nx\r\nCONNECT {}\r\nMSG a 1 1\r\ny\r\nMSG a")
    assert parser.next_batch() == [(1, b"a", None, None, b"x")]
    assert parser.stopped_op == OP_CONNECT
    frame = parser.next_frame()
    assert frame is not None
    assert frame.payload == b"{}"
    assert parser.next_batch() == [(1, b"a", None, None, b"y")]
    assert parser.stopped_op == OP_NEED_MORE
    parser.feed(b" 1 1\r\nz\r\n")
    assert parser.next_batch() == [(1, b"a", None, None, b"z")]


@given(token, st.none() | token, st.none() | st.binary(max_size=9), body)
def test_what_is_encoded_parses_to_the_same(
    subject: bytes, reply: bytes | None, header: bytes | None, payload: bytes
) -> None:
    out = OutBuffer()
    encode_pub(out, subject, reply, header, payload)
    encode_pub(out, subject, reply, header, memoryview(payload))
    encode_msg(out, subject, b"7", reply, header, bytearray(payload))
    encode_sub(out, subject, reply, b"7")
    encode_unsub(out, b"7")
    encode_unsub(out, b"7", 3)
    reader = Reader()
    reader.read(out.take())
    pub = ("HPUB" if header else "PUB", subject, reply, None, header or None, payload, 0)
    assert reader.frames == [
        pub,
        pub,
        ("HMSG" if header else "MSG", subject, reply, b"7", header or None, payload, 0),
        ("SUB", subject, reply, b"7", None, None, 0),
        ("UNSUB", None, None, b"7", None, None, 0),
        ("UNSUB", None, None, b"7", None, None, 3),
    ]


def test_the_encoders_refuse_what_is_no_bytes() -> None:
    out = OutBuffer()
    with pytest.raises(TypeError):
        encode_pub(out, b"a", None, None, None)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        encode_pub(out, "a", None, None, b"")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        encode_pub(out, b"a", None, None, "text")  # type: ignore[arg-type]
    assert out.take() == b""


def test_messages_repeat_their_subject_as_one_object() -> None:
    parser = FrameParser()
    parser.feed(b"MSG long.subject 1 1\r\nx\r\n" * 3)
    subjects = [subject for _, subject, _, _, _ in parser.next_batch()]
    assert subjects == [b"long.subject"] * 3
    assert len({id(subject) for subject in subjects}) == 1
    assert parser.stopped_op != OP_MSG


@pytest.mark.parametrize("verb", [b"P", b"HPUB a 4 4\r\n", b"SUB a 1\r\n", b"+OK\r\n", b"\x16\x03", b"\n"])
def test_until_connect_any_other_verb_ends_at_its_first_byte(verb: bytes) -> None:
    parser = FrameParser()
    parser.connect_only = True
    parser.feed(verb[:1])
    frame = parser.next_frame()
    assert frame is not None
    assert (frame.op, parser.error) == (Op.OP_ERROR, ParseError.ERROR_NO_CONNECT)


def test_until_connect_that_is_read_as_ever_and_then_everything() -> None:
    parser = FrameParser()
    parser.connect_only = True
    for byte in b"connect {}\r\n":
        assert parser.next_frame() is None
        parser.feed(bytes([byte]))
    frame = parser.next_frame()
    assert frame is not None
    assert frame.op == Op.OP_CONNECT
    parser.connect_only = False
    parser.feed(b"PUB a 1\r\nx\r\n")
    frame = parser.next_frame()
    assert frame is not None
    assert (frame.op, frame.payload) == (Op.OP_PUB, b"x")
