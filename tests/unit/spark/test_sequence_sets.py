"""Sets of sequences: the same as Python's sets, and the same again after the checkpoint."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.spark.sequence_sets import SequenceSet

pytestmark = pytest.mark.feature("spark.stream")

sequences = st.sets(st.integers(1, 60))


@given(sequences, sequences, st.integers(0, 70))
def test_sets_of_sequences_do_what_sets_do(left: set[int], right: set[int], floor: int) -> None:
    a, b = SequenceSet.of(left), SequenceSet.of(right)
    assert list(a) == sorted(left)
    assert len(a) == len(left)
    assert a | b == SequenceSet.of(left | right)
    assert a - b == SequenceSet.of(left - right)
    assert a.above(floor) == SequenceSet.of(seq for seq in left if seq > floor)
    assert a.end == max(left, default=-1) + 1


@given(sequences)
def test_a_set_survives_the_checkpoint(members: set[int]) -> None:
    assert SequenceSet.parse(str(SequenceSet.of(members))) == SequenceSet.of(members)


@given(sequences, st.integers(1, 9))
def test_chunks_hold_every_sequence_once_in_order(members: set[int], length: int) -> None:
    parts = list(SequenceSet.of(members).chunks(length))
    assert [seq for part in parts for seq in part] == sorted(members)
    assert all(len(part) == length for part in parts[:-1])


def test_text_is_short_for_what_is_contiguous() -> None:
    assert str(SequenceSet.of([1, 2, 3, 7, 9, 10])) == "1-3,7,9-10"
    assert SequenceSet.between(5, 5) == SequenceSet()


@pytest.mark.parametrize("text", ["x", "3-1", "1-2-3", "-4"])
def test_what_is_no_set_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="can't be read"):
        SequenceSet.parse(text)
