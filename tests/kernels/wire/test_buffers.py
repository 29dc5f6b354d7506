"""OutBuffer: what goes in comes out, in order, and large memory does not stay."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.kernels.routing import grammar
from penstock.kernels.routing import subscription_index as subjects
from penstock.kernels.wire import dispatch, frames, output, sinks
from penstock.kernels.wire.output import (
    OutBuffer,
    PublishBuffer,
    encode_appends,
    encode_known_pub,
    encode_pub,
    encode_pubs,
    encode_unsub,
)


def test_the_kernels_in_use_are_the_compiled_ones() -> None:
    for module in (dispatch, frames, grammar, output, sinks, subjects):
        assert module.__file__ is not None
        assert module.__file__.endswith(".so"), module.__file__


@given(st.lists(st.one_of(st.binary(max_size=40), st.none())))
def test_takes_give_back_what_was_written_in_order(steps: list[bytes | None]) -> None:
    out = OutBuffer()
    written = b""
    for step in steps:
        if step is None:
            assert out.take() == written
            written = b""
        else:
            out.write(step)
            written += step
        assert len(out) == out.size == len(written)
    assert out.take() == written


def test_a_large_burst_is_kept_whole_and_the_buffer_can_be_used_again() -> None:
    out = OutBuffer()
    burst = bytes(range(256)) * 20_000
    out.write(burst)
    assert out.take() == burst
    out.write(b"after")
    assert out.take() == b"after"


def test_any_buffer_of_bytes_can_be_written() -> None:
    out = OutBuffer()
    out.write(bytearray(b"abc"))
    out.write(memoryview(b"d-e-f-")[::2])
    out.write(b"")
    assert out.take() == b"abcdef"


def test_clear_drops_what_was_written() -> None:
    out = OutBuffer()
    out.write(b"abc")
    out.clear()
    assert len(out) == 0
    assert out.take() == b""


beside_powers = st.builds(lambda power, n: 10**power + n, st.integers(1, 19), st.integers(-1, 1))


@given(st.integers(1, 2**64 - 1) | beside_powers)
def test_numbers_are_written_in_decimal(n: int) -> None:
    out = OutBuffer()
    encode_unsub(out, b"1", n)
    assert out.take() == b"UNSUB 1 %d\r\n" % n


blocks = st.none() | st.just(b"NATS/1.0\r\nA: b\r\n\r\n")


@given(st.lists(st.tuples(blocks, st.binary(max_size=30))), st.lists(st.binary(max_size=30)), st.booleans())
def test_a_publish_buffer_counts_the_messages_that_were_encoded(
    messages: list[tuple[bytes | None, bytes]], batch: list[bytes], staged: bool
) -> None:
    out = PublishBuffer()
    encode_unsub(out, b"1")
    for header, payload in messages:
        encode_pub(out, b"a", None, header, payload)
        out.clear()
    encode_appends(out, b"a", b"prefix", 1, batch, 0, len(batch), 1000, staged)
    assert out.messages == len(messages) + len(batch)
    sizes = [len(header or b"") + len(payload) for header, payload in messages]
    assert out.message_bytes == sum(sizes) + sum(map(len, batch))


def test_a_plain_publish_is_that_of_encode_pub_or_writes_nothing() -> None:
    out, same = PublishBuffer(), PublishBuffer()
    subjects = {"a.b": b"a.b", "\udce9": b"\xe9"}
    for subject, payload in [("a.b", b""), ("a.b", b"x" * 10), ("\udce9", b"1")]:
        encode_pub(same, subjects[subject], None, None, payload)
        assert encode_known_pub(out, subjects, subject, payload, 10) == same.size == out.size
    refused: list[tuple[str, object]] = [
        ("a.c", b"1"), ("a.b", b"x" * 11), ("a.b", "text"), ("a.b", bytearray(b"1")), ("a.b", None),
    ]  # fmt: skip
    for subject, other in refused:
        assert encode_known_pub(out, subjects, subject, other, 10) == -1
    assert (out.messages, out.message_bytes, out.take()) == (3, 11, same.take())


PAYLOADS = st.lists(
    st.one_of(st.binary(max_size=12), st.sampled_from(["text", None, bytearray(b"1"), b"x" * 40])),
    max_size=20,
)


@given(PAYLOADS, st.sampled_from([None, b"NATS/1.0\r\n\r\n"]), st.integers(0, 200), st.integers(0, 3))
def test_many_publishes_are_those_of_encode_pub_up_to_the_first_odd_one(
    payloads: list[object], header: bytes | None, enough: int, start: int
) -> None:
    out, same = PublishBuffer(), PublishBuffer()
    at = start
    while at < len(payloads) and same.size < enough:
        payload = payloads[at]
        if type(payload) is not bytes or len(payload) + len(header or b"") > 30:
            break
        encode_pub(same, b"a.b", b"r", header, payload)
        at += 1
    assert encode_pubs(out, b"a.b", b"r", header, payloads, start, 30, enough) == at
    assert (out.messages, out.message_bytes, out.take()) == (same.messages, same.message_bytes, same.take())
