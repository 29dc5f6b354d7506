"""What a server does with a request to rescue the meta group, with a group and timers in the test's hands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from penstock.errors import JetStreamApiError
from penstock.jetstream.api.api_table import ApiRequest
from penstock.protocol.api import encode
from penstock.raft.raft_replica import RescueProblem
from penstock.server.logging.logs import Log
from penstock.server.replicated.meta_rescue import RESCUE_NS, MetaRescue

pytestmark = pytest.mark.feature("cluster.administration")


class RescuedGroup:
    """A group of five whose replica takes what it is asked for, unless it has a problem. ends: how often a
    majority was to decide again."""

    def __init__(self) -> None:
        self.quorum_needed = 3
        self.problem: RescueProblem | None = None
        self.ends = 0

    @property
    def replica(self) -> RescuedGroup:
        """It is its own replica."""
        return self

    def rescue(self, quorum: int) -> RescueProblem | None:
        if self.problem is None:
            self.quorum_needed = quorum
        return self.problem

    def end_rescue(self) -> None:
        self.ends += 1


class Rescuing:
    """A server with such a group, or with none."""

    def __init__(self) -> None:
        self.group: RescuedGroup | None = RescuedGroup()
        self.timers: list[tuple[int, Callable[[], None]]] = []
        self.notified: list[tuple[int, int]] = []
        self.lines: list[str] = []
        self.rescue = MetaRescue(
            "a",
            "ID",
            lambda: self.group,  # type: ignore[arg-type,return-value]
            lambda delay, call: self.timers.append((delay, call)),
            self.notified.append,
            Log(lambda label, text: self.lines.append(text)),
        )

    def ask(self, payload: bytes) -> Any:
        """The answer, as JSON has it."""
        request = ApiRequest("$JS.API.META.RESCUE", [], b"reply", b"", payload, None)
        answer = self.rescue.answer(payload, request.body)
        return None if answer is None else msgspec.json.decode(encode(answer))


def test_a_rescue_is_in_force_for_five_minutes() -> None:
    it = Rescuing()
    assert it.ask(b'{"quorum_needed": 1}') == {
        "type": "io.nats.jetstream.api.v1.meta_rescue_response",
        "server": "a", "server_id": "ID", "prev_quorum": 3, "new_quorum": 1,
    }  # fmt: skip
    assert (it.notified, len(it.lines)) == ([(3, 1)], 1)
    [(delay, end)] = it.timers
    assert delay == RESCUE_NS == 300 * 10**9
    assert it.group is not None
    assert it.group.ends == 0
    end()
    assert it.group.ends == 1


def test_a_second_rescue_restarts_the_five_minutes() -> None:
    it = Rescuing()
    assert it.group is not None
    it.ask(b'{"quorum_needed": 2}')
    it.ask(b'{"quorum_needed": 1}')
    [(_, first), (_, second)] = it.timers
    first()
    assert it.group.ends == 0
    second()
    assert it.group.ends == 1


@pytest.mark.parametrize("problem", list(RescueProblem))
def test_a_refusal_says_why_and_who_refuses(problem: RescueProblem) -> None:
    it = Rescuing()
    assert it.group is not None
    it.group.problem = problem
    answer = it.ask(b'{"quorum_needed": 1}')
    text = f"JetStream system rescue not applied: {problem.value}"
    assert (answer["error"]["err_code"], answer["error"]["description"]) == (10224, text)
    assert (answer["server"], answer["server_id"]) == ("a", "ID")
    assert (it.timers, it.notified, it.lines) == ([], [], [])


def test_an_empty_request_is_a_bad_one() -> None:
    assert Rescuing().ask(b"")["error"]["err_code"] == 10003


@pytest.mark.parametrize("payload", [b"{", b'{"quorum": 1}', b'{"quorum_needed": "1"}'])
def test_a_malformed_request_changes_nothing(payload: bytes) -> None:
    it = Rescuing()
    with pytest.raises(JetStreamApiError, match="JSON"):
        it.ask(payload)
    assert (it.timers, it.notified) == ([], [])


def test_a_server_without_a_meta_group_is_silent() -> None:
    it = Rescuing()
    it.group = None
    assert it.ask(b'{"quorum_needed": 1}') is None
