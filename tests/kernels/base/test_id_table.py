"""kernels/base/id_table against a model: whatever comes and goes, also while it grows, every id is found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kernels.base.id_table import IdSet
from tests.reference.primitives import IdSet as Model

# Hashes whose homes are the last cells and the first ones of arrays of up to 128 cells, so that runs of cells
# go around their ends; and any others.
CROWDED = st.sampled_from([14, 15, 16, 30, 31, 62, 63, 64, 126, 127, 128, 2**32 - 1, 0, 1])
HASHES = CROWDED | st.integers(0, 2**32 - 1)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(HASHES, min_size=1, max_size=30)),
        st.tuples(st.just("drop"), st.lists(st.integers(0, 400), min_size=1, max_size=30)),
        st.tuples(st.just("shrink"), st.just([0])),
    ),
    max_size=30,
)


@given(STEPS)
def test_a_table_has_what_its_model_has(steps: list[tuple[str, list[int]]]) -> None:
    table, model, seen = IdSet(), Model(), set[int]()
    for action, numbers in steps:
        for number in numbers:
            if action == "add":
                assert table.add(number) == model.add(number)
                seen.add(number)
            elif action == "shrink":
                table.shrink()
            elif number in model.hashes:
                table.drop(number)
                model.drop(number)
            else:
                with pytest.raises(KeyError):
                    table.drop(number)
        assert len(table) == len(model)
        for h in seen:
            assert table.all(h) == model.all(h)


@given(st.integers(200, 3000))
def test_an_addition_moves_a_bounded_number_of_cells(entries: int) -> None:
    table = IdSet()
    for n in range(entries):
        before = table.unmoved
        table.add(n * 0x9E3779B1 % 2**32)
        # 16 cells, and the rest of the run of occupied cells that they end in.
        assert before == 0 or before - table.unmoved <= 16 + 64
    assert all(table.all(n * 0x9E3779B1 % 2**32) == [n] for n in range(entries))


def test_a_table_that_lost_most_entries_shrinks_in_steps_too() -> None:
    entries = 700_000
    table = IdSet()
    for n in range(entries):
        table.add(n * 0x9E3779B1 % 2**32)
    for n in range(entries - 100):
        table.drop(n)
    full = table.memory
    table.shrink()
    assert table.unmoved > full // 8  # a part is still there
    for n in range(entries, entries + 150):  # meanwhile the new array of 256 cells becomes too small
        table.add(n * 0x9E3779B1 % 2**32)
    assert table.unmoved <= 256 and table.memory < full // 1000
    assert all(table.all(n * 0x9E3779B1 % 2**32) == [n] for n in range(entries - 100, entries + 150))


def test_an_empty_table_takes_no_memory() -> None:
    table = IdSet()
    table.drop(table.add(5))
    table.shrink()
    assert table.memory == 0 and table.all(5) == []
