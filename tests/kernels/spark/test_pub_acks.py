"""Counting pub acks: the kernel beside a set."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kernels.spark.row_frames import AckEvent, AckWindow
from penstock.kernels.wire.frames import FrameParser
from tests.reference.sinkrows import AckModel


def msg(number: object, payload: bytes, sid: bytes = b"3") -> bytes:
    return b"MSG _INBOX.a.%s %s %d\r\n%s\r\n" % (str(number).encode(), sid, len(payload), payload)


def ack(seq: int, *, duplicate: bool = False, stream: bytes = b"S") -> bytes:
    return b'{"stream":"%s", "seq":%d%s}' % (stream, seq, b',"duplicate": true' if duplicate else b"")


def put(parser: FrameParser, data: bytes) -> None:
    with parser.get_buffer(len(data)) as buffer:
        memoryview(buffer)[: len(data)] = data
    parser.buffer_updated(len(data))


@given(st.lists(st.integers(-3, 25), max_size=60), st.integers(1, 16))
def test_the_base_is_the_lowest_number_not_acked(numbers: list[int], size: int) -> None:
    window, parser = AckWindow(b"3", b"S", size), FrameParser(4096, 1 << 20)
    window.sent(size)
    model = AckModel(size)
    for number in numbers:
        put(parser, msg(abs(number), ack(100 + abs(number), duplicate=number < 0)))
        assert window.feed(parser) == AckEvent.ACKS_NEED_MORE
        model.acknowledge(abs(number))
        assert window.base == model.base
    assert window.room == window.base


@pytest.mark.parametrize(
    ("rest", "seq"),
    [
        (b',"seq":7}', 7),
        (b', "seq":7}', 7),
        (b', "seq": 7}', 7),
        (b',"seq":18446744073709551615}', 2**64 - 1),
        (b',"domain":"hub","seq":7}', 7),
        (b',"seq":7,"domain":"hub"}', 7),
        (b',"seq":7,"val":"12"}', 7),
        (b', "seq":}', None),
        (b',"seq":x}', None),
        (b"}", None),
        (b"", None),
    ],
)
def test_the_sequence_of_an_ack_is_read_wherever_it_stands(rest: bytes, seq: int | None) -> None:
    window, parser = AckWindow(b"3", b"S", 4), FrameParser(4096, 1 << 20)
    window.sent(1)
    put(parser, msg(0, b'{"stream":"S"' + rest))
    taken = seq is not None
    assert window.feed(parser) == (AckEvent.ACKS_NEED_MORE if taken else AckEvent.ACKS_OTHER)
    assert (window.base, window.last_seq, window.duplicates) == (int(taken), seq or 0, 0)


def test_acks_split_anywhere_are_the_same_acks() -> None:
    data = (
        msg(0, ack(11))
        + msg(1, ack(12, duplicate=True))
        + b"PING\r\n"
        + msg(2, ack(13), sid=b"4")
        + msg(2, ack(14))
    )
    for cut in range(1, len(data)):
        window, parser = AckWindow(b"3", b"S", 4), FrameParser(4096, 1 << 20)
        window.sent(3)
        events = []
        for part in (data[:cut], data[cut:]):
            put(parser, part)
            while (event := window.feed(parser)) != AckEvent.ACKS_NEED_MORE:
                events.append(event)
        assert events == [AckEvent.ACKS_CONTROL]
        assert (window.base, window.duplicates, window.last_seq) == (3, 1, 14)


@pytest.mark.parametrize(
    "payload",
    [
        b'{"error":{"code":400,"err_code":10060,"description":"x"},"stream":"S","seq":0}',
        b'{"stream":"S","seq":0,"error":{"code":400}}',
        ack(5, stream=b"OTHER"),
        b'{"seq":5,"stream":"S"}',
        b'{"stream":"S","seq":"five"}',
        b"",
    ],
)
def test_what_is_no_plain_ack_is_handed_over(payload: bytes) -> None:
    window, parser = AckWindow(b"3", b"S", 4), FrameParser(4096, 1 << 20)
    window.sent(1)
    put(parser, msg(0, payload))
    assert window.feed(parser) == AckEvent.ACKS_OTHER
    assert (window.number, window.payload, window.base) == (0, payload, 0)
    assert window.acknowledge(0, False, 5) and window.base == 1
    assert not window.acknowledge(0, False, 5)


def test_no_responders_and_a_broken_peer_are_different_errors() -> None:
    window, parser = AckWindow(b"3", b"S", 4), FrameParser(4096, 1 << 20)
    window.sent(1)
    put(parser, b"HMSG _INBOX.a.0 3 16 16\r\nNATS/1.0 503\r\n\r\n\r\n" + b"nonsense\r\n")
    assert window.feed(parser) == AckEvent.ACKS_OTHER
    assert window.header.startswith(b"NATS/1.0 503")
    assert window.feed(parser) == AckEvent.ACKS_ERROR


def test_more_than_the_window_can_not_be_in_flight() -> None:
    window = AckWindow(b"3", b"S", 4)
    window.sent(4)
    with pytest.raises(ValueError, match="1 more of 4, 4 are in flight"):
        window.sent(1)
    with pytest.raises(ValueError, match="size is 0"):
        AckWindow(b"3", b"S", 0)
