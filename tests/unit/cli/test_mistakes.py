"""The page of mistakes and answers is what the command line answers."""

from __future__ import annotations

import io
import os

import pytest

from tests.support.mistakes import MISTAKES, PAGE, answers, in_empty_environment, page


@pytest.fixture(autouse=True)
def empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("NATS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nowhere")
    monkeypatch.setattr("sys.stdin", io.StringIO())
    in_empty_environment()


def test_there_are_a_hundred_mistakes_and_each_gets_a_short_answer() -> None:
    assert sum(lines.strip().count("\n") + 1 for lines in MISTAKES.values()) >= 100
    for _, line, status, answer in answers():
        assert status in (1, 2), line
        assert answer.startswith(("penstock", "nats-server: ")), (line, answer)
        assert answer.count("\n") == 1, (line, answer)
        assert "Traceback" not in answer


def test_the_page_has_the_answers_of_today() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m tests.support.mistakes"
