"""OutBuffer: what goes in comes out, in order, and large memory does not stay."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.kernels.routing import grammar
from penstock.kernels.routing import subscription_index as subjects
from penstock.kernels.wire import dispatch, frames, output, sinks
from penstock.kernels.wire.output import OutBuffer, encode_unsub


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
