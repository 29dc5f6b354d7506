"""Histograms of durations, compared with a model that keeps every duration."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kernels.base.duration_histogram import DurationHistogram
from tests.reference.duration_histogram import DurationsModel

NUMBERS = st.integers(min_value=0, max_value=1 << 40)


@given(st.data())
def test_events_are_counted_where_a_list_of_them_says(data: st.DataObject) -> None:
    bounds = sorted(data.draw(st.sets(NUMBERS, min_size=1, max_size=32)))
    durations = st.one_of(NUMBERS, st.sampled_from(bounds))  # bounds themselves, too
    events = data.draw(st.lists(st.tuples(durations, st.integers(0, 50)), max_size=30))
    kernel, model = DurationHistogram(bounds), DurationsModel(bounds)
    for duration_ns, n in events:
        kernel.observe(duration_ns, n)
        model.observe(duration_ns, n)
    assert kernel.snapshot() == model.snapshot()


@pytest.mark.parametrize("bounds", [(), (2, 1), (1, 1), range(33)])
def test_bounds_that_make_no_buckets_are_refused(bounds: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="bounds"):
        DurationHistogram(bounds)
