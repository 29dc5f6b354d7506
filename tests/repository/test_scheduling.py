"""How `make test` shares the tests among processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.scheduling import SESSION_FILES, FileScheduling, leave_out_shares, longest_first


class FakeItem:
    def __init__(self, name: str, *marks: str) -> None:
        self.name, self.path, self.marks = name, Path(name.partition("::")[0]), marks

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.marks else None


def test_a_file_with_a_slow_test_comes_first_and_stays_together() -> None:
    items = [FakeItem("a::1"), FakeItem("b::1"), FakeItem("b::2", "slow"), FakeItem("c::1", "spark")]
    longest_first(items)  # type: ignore[arg-type]
    assert [item.name for item in items] == ["b::1", "b::2", "c::1", "a::1"]


def test_files_of_the_spark_session_share_a_process_and_others_have_their_own() -> None:
    scope = FileScheduling.__new__(FileScheduling)._split_scope
    assert len({scope(f"{file}::test_one") for file in SESSION_FILES}) == 1
    assert scope("tests/unit/a.py::test_one") == scope("tests/unit/a.py::test_two") == "tests/unit/a.py"


def test_files_of_the_spark_session_are_those_that_ask_for_it() -> None:
    names = {Path(file).stem for file in SESSION_FILES}
    assert {"test_source", "test_sink", "test_guide"} <= names
    assert "test_wire" not in names


class SharedItem(FakeItem):
    def get_closest_marker(self, name: str) -> object:  # type: ignore[override]
        return pytest.mark.share(3).mark if name == "share" and "shared" in self.name else None


def test_three_runs_have_each_shared_test_once_and_all_others() -> None:
    names = ["a::own", *[f"a::shared{n}" for n in range(7)], "b::shared", "b::own"]
    kept: list[str] = []
    for draw in range(1000, 1003):
        items = [SharedItem(name) for name in names]
        left_out = leave_out_shares(items, draw)  # type: ignore[arg-type]
        assert sorted(item.name for item in [*items, *left_out]) == sorted(names)
        kept += [item.name for item in items]
    assert sorted(kept) == sorted([*names, *["a::own", "b::own"] * 2])
