"""Graphs in the cells of a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.framework.value_texts import rate_text, whole_text
from penstock.cli.reports.line_graphs import GraphHistory, GraphSeries, graph_lines, screen_lines

pytestmark = pytest.mark.feature("cli.commands")
SERIES = (GraphSeries("Messages", "messages", whole_text), GraphSeries("Stored", "seq", rate_text, rate=True))


def test_the_newest_value_is_at_the_right_and_the_highest_fills_the_rows() -> None:
    assert graph_lines([0, 4, 8, 16], whole_text, columns=16, rows=2) == [
        "         16    █",
        "          0  ▄██",
    ]


def test_more_values_than_columns_leave_at_the_left() -> None:
    (line,) = graph_lines(range(100), whole_text, columns=15, rows=1)
    assert line == "         99 ███"


def test_values_of_zero_draw_nothing() -> None:
    assert graph_lines([0, 0], whole_text, columns=20, rows=2) == ["          0", "          0"]


def test_counters_become_rates_and_one_that_began_again_is_zero() -> None:
    history = GraphHistory(SERIES)
    for at_s, seq in ((0, 10), (2, 30), (3, 5), (3, 6), (4, 8)):
        history.add(at_s, {"messages": seq, "seq": seq})
    assert list(history.values["Messages"]) == [10, 30, 5, 6, 8]
    assert list(history.values["Stored"]) == [10, 0, 2]
    assert history.latest() == {"Messages": 8, "Stored": 2}


def test_there_is_nothing_before_the_first_sample() -> None:
    assert GraphHistory(SERIES).latest() == {"Messages": 0, "Stored": 0}


@given(
    st.lists(st.floats(0, 1e18), max_size=300), st.integers(0, 300), st.integers(0, 100), st.text(max_size=50)
)
def test_a_screen_is_never_larger_than_its_terminal(
    values: list[float], columns: int, rows: int, head: str
) -> None:
    history = GraphHistory(SERIES)
    for at, value in enumerate(values):
        history.add(at, {"messages": value, "seq": value})
    lines = screen_lines(head, history, columns, rows)
    assert len(lines) <= max(1, rows)
    assert all(len(line) <= columns for line in lines)
