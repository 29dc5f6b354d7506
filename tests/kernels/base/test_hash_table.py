"""kernels/base/hash_table against a dict: whatever comes and goes, every entry is found and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kernels.base.hash_table import NumberMap
from tests.reference.primitives import NumberMap as Model

MULTIPLIER = 0x9E3779B97F4A7C15
INVERSE = pow(MULTIPLIER, -1, 2**64)

# Keys whose homes are the last cells and the first one of a table of any size up to 64, so that probing goes
# around its end; and small numbers, as sequences are.
CROWDED = [home * INVERSE % 2**64 for home in (61, 62, 63, 64, 126, 127)]
KEYS = st.one_of(st.sampled_from(CROWDED), st.integers(0, 12), st.sampled_from([2**64 - 1, 2**32]))
VALUES = st.integers(1, 3) | st.just(2**64 - 1)
STEPS = st.lists(st.tuples(st.sampled_from(["add", "add", "drop", "reserve"]), KEYS, VALUES), max_size=120)


@given(STEPS)
def test_a_table_holds_what_a_dict_holds(steps: list[tuple[str, int, int]]) -> None:
    table, model = NumberMap(), Model()
    for action, key, value in steps:
        if action == "add":
            table.add(key, value)
            model.add(key, value)
        elif action == "reserve":
            table.reserve(min(key, 40))
        elif value in model.all(key):
            table.drop(key, value)
            model.drop(key, value)
        else:
            with pytest.raises(KeyError):
                table.drop(key, value)
        assert len(table) == len(model)
        assert sorted(table.all(key)) == model.all(key)
    assert sorted(table.items()) == model.items()
    for key in {step[1] for step in steps} | {7}:
        assert sorted(table.all(key)) == model.all(key)
    assert len(table) * 2 <= table.capacity or not steps or table.capacity == 0


@given(st.lists(st.tuples(KEYS, VALUES | st.none()), max_size=80))
def test_with_one_value_a_key_it_is_a_dict(steps: list[tuple[int, int | None]]) -> None:
    table, model = NumberMap(), dict[int, int]()
    for key, value in steps:
        if value is not None:
            table[key] = model[key] = value
        elif key in model:
            del table[key], model[key]
        else:
            with pytest.raises(KeyError):
                del table[key]
    assert dict(table.items()) == model
    for key, value in model.items():
        assert table[key] == value


def test_a_table_that_is_reserved_does_not_grow_until_it_is_full() -> None:
    table = NumberMap()
    table.reserve(1000)
    capacity = table.capacity
    for key in range(1000):
        table[key] = key + 1
    assert table.capacity == capacity == 2048


def test_entries_that_come_and_go_keep_the_capacity() -> None:
    table = NumberMap()
    for key in range(100_000):
        table[key] = 1
        if key >= 100:
            del table[key - 100]
    assert (len(table), table.capacity) == (100, 256)


def test_a_value_of_zero_and_a_key_that_is_missing_are_refused() -> None:
    table = NumberMap()
    with pytest.raises(ValueError):
        table[1] = 0
    with pytest.raises(ValueError):
        table.add(1, 0)
    with pytest.raises(KeyError):
        table[1]


def test_no_memory_is_an_exception_and_leaves_the_table_as_it_was() -> None:
    table = NumberMap()
    table[5] = 6
    with pytest.raises(MemoryError, match="cells of a hash table"):
        table.reserve(2**61)
    assert table.items() == [(5, 6)]
