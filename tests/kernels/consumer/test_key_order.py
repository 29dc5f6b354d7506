"""KeyOrder against its model of dicts and lists."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kernels.consumer.key_order import KeyOrder
from tests.reference.key_order import KeyOrderModel

pytestmark = pytest.mark.feature("consumer.key-shared")

SUBJECTS = [b"a.%d.x" % (n % 40) for n in range(40)] + [b"a", b"b.7", b"a.7"]
steps = st.lists(st.tuples(st.sampled_from(["come", "come", "come", "settle", "take"]), st.integers(0, 999)))


@given(steps, st.integers(1, 4))
def test_keys_take_turns_as_the_model_says(plan: list[tuple[str, int]], token: int) -> None:
    order, model = KeyOrder(token), KeyOrderModel(token)
    seq = 0
    for what, n in plan:
        if what == "come":
            seq += 1
            subject = SUBJECTS[n % len(SUBJECTS)]
            assert order.busy(subject) == model.busy(subject)
            if model.busy(subject):
                order.parked(subject, seq)
                model.parked(subject, seq)
            else:
                order.delivered(subject, seq)
                model.delivered(subject, seq)
        elif what == "settle":
            known = sorted(model.in_flight)
            chosen = known[n % len(known)] if known else n
            order.settled(chosen)
            model.settled(chosen)
        else:
            assert order.take() == model.take()
        assert order.waiting == sum(map(len, model.waiting.values()))
        assert order.key_total == len({*model.in_flight.values(), *(key for _, key in model.ready)})


def test_ten_thousand_keys_come_and_go() -> None:
    order = KeyOrder(1)
    for round_ in range(3):
        for n in range(10_000):
            order.delivered(b"key%d.x" % n, 1 + n)
            order.parked(b"key%d.y" % n, 20_000 + n)
        assert (order.key_total, order.waiting) == (10_000, 10_000), round_
        for n in range(10_000):
            order.settled(1 + n)
            assert order.take() == 20_000 + n
            order.settled(20_000 + n)
        assert (order.key_total, order.waiting) == (0, 0)
    assert not order.busy(b"key1.x")


def test_without_keys_nothing_waits() -> None:
    order = KeyOrder(0)
    order.delivered(b"a", 1)
    assert not order.busy(b"a")
    order.parked(b"a", 2)
    assert order.take() == 2
