"""The table of requests and answers, on the meta state; the official server is asked the same in
tests/integration/cluster/test_official_answers.py."""

from __future__ import annotations

import pytest

from tests.support.meta_answers import TABLE, MetaAnswers

pytestmark = pytest.mark.feature("cluster.administration")


def test_the_meta_state_answers_as_the_table_says() -> None:
    answers = MetaAnswers()
    wrong = []
    for asked in TABLE:
        body, text = asked.body, asked.text
        if body is not None and body.get("placement", {}).get("preferred") == "LEADER":
            leader = answers.leader_of("S")
            body, text = {"placement": {"preferred": leader}}, text.replace("LEADER", leader)
        found = answers.answer(asked.subject, body)
        if found != (asked.code, text):
            wrong.append(f"{asked.subject} {body}: {found}, expected {(asked.code, text)}")
    assert wrong == []
