"""kernels/base/memory against a deque and plain arithmetic: rings keep order, growth never wraps around."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kernels.base.memory import NumberQueue, capacity_after
from tests.reference import primitives as model

NUMBERS = st.integers(0, 2**64 - 1)


@given(st.lists(st.one_of(NUMBERS, st.just("pop"), st.just("pops"), st.just("clear")), max_size=200))
def test_a_ring_gives_numbers_back_in_their_order(steps: list[int | str]) -> None:
    ring, expected = NumberQueue(), model.NumberQueue()
    for step in steps:
        if step == "clear":
            ring.clear()
            expected.clear()
        elif isinstance(step, int):
            ring.push(step)
            expected.push(step)
        else:
            for _ in range(min(len(expected), 9 if step == "pops" else 1)):
                assert ring.pop() == expected.pop()
        assert [ring[i] for i in range(len(ring))] == list(expected)
        assert ring.capacity & (ring.capacity - 1) == 0


@given(st.integers(0, 300), st.integers(0, 300))
def test_a_ring_grows_wherever_its_oldest_number_lies(moved: int, pushed: int) -> None:
    ring, expected = NumberQueue(), model.NumberQueue()
    for n in range(moved):
        ring.push(n)
        ring.pop()
    for n in range(pushed):
        ring.push(n)
        expected.push(n)
    assert [ring.pop() for _ in range(pushed)] == list(expected)


def test_an_empty_ring_has_nothing_to_give() -> None:
    ring = NumberQueue()
    with pytest.raises(IndexError):
        ring.pop()
    with pytest.raises(IndexError):
        ring[0]


SIZES = st.one_of(
    st.integers(0, 300), st.integers(0, 2**64 - 1), st.sampled_from([2**62, 2**63 - 1, 2**63, 2**64 - 1])
)


@given(SIZES, SIZES, st.sampled_from([1, 3, 4, 8, 16, 40]), st.sampled_from([1, 16, 4096]))
def test_capacities_double_and_never_wrap_around(capacity: int, count: int, width: int, first: int) -> None:
    capacity = min(capacity, (2**63 - 1) // width)
    grown = capacity_after(capacity, count, width, first)
    assert grown == model.capacity_after(capacity, count, width, first)
    assert grown == 0 or (grown >= count and grown * width < 2**63)
