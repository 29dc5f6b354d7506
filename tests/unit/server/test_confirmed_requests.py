"""Requests to the meta leader that wait until its state is confirmed to be current."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from penstock.jetstream.waiting import Queue, WaitingRequests
from penstock.server.replicated.confirmed_requests import TURN, ConfirmedRequests

pytestmark = pytest.mark.feature("cluster.administration")


class Cluster:
    """The requests of one account. takes: whether a question is taken. served, lost, dropped: what became of
    them."""

    def __init__(self, limit: int = 0) -> None:
        self.takes = True
        self.questions: list[tuple[Callable[[], object], Callable[[], object]]] = []
        self.calls: list[Callable[[], object]] = []
        self.served: list[str] = []
        self.lost: list[str] = []
        self.dropped: list[tuple[Queue, int]] = []
        self.failures: list[Exception] = []
        waiting = WaitingRequests(lambda queue, count: self.dropped.append((queue, count)))
        waiting.set_limits(limit, limit)
        self.requests = ConfirmedRequests(self, waiting, self.failures.append)

    def confirm(self, done: Callable[[], object], lost: Callable[[], object]) -> bool:
        if self.takes:
            self.questions.append((done, lost))
        else:
            lost()
        return self.takes

    def later(self, delay_ns: int, call: Callable[[], object]) -> None:
        self.calls.append(call)

    def add(self, *names: str, queue: Queue = Queue.API) -> None:
        for name in names:
            serve, lost = partial(self.served.append, name), partial(self.lost.append, name)
            self.requests.add(serve, lost, queue)

    def answer(self, *, is_lost: bool = False) -> None:
        """The group answers the question."""
        [(done, lost)] = self.questions
        self.questions.clear()
        (lost if is_lost else done)()

    def turn(self) -> None:
        """The next iteration of the loop."""
        calls, self.calls = self.calls, []
        for call in calls:
            call()


def test_one_question_is_for_all_requests_that_came_before_it() -> None:
    it = Cluster()
    it.add("1", "2", "3")
    assert (len(it.questions), it.served) == (1, [])
    it.answer()
    assert (len(it.questions), it.served) == (1, ["1"])
    it.add("4")
    it.answer()
    assert it.served == ["1", "2", "3"], "the last one came after the question"
    it.answer()
    assert (it.questions, it.served) == ([], ["1", "2", "3", "4"])


def test_what_is_confirmed_is_served_in_turns_and_reads_have_their_own() -> None:
    it = Cluster()
    it.add("first")
    changes = [f"c{number}" for number in range(3 * TURN)]
    it.add(*changes)
    it.add("read", queue=Queue.INFO)
    it.answer()
    it.answer()
    assert it.served == ["first", *changes[:TURN], "read"]
    it.add("late")
    assert it.questions == [], "while others are served no question is asked"
    it.turn()
    it.turn()
    assert (it.served[-1], len(it.questions)) == (changes[-1], 1)
    it.answer()
    assert it.served[-1] == "late"


def test_requests_whose_question_is_lost_are_given_back_and_the_others_ask_again() -> None:
    it = Cluster()
    it.add("1", "2")
    it.answer(is_lost=True)
    assert (it.lost, it.served, len(it.questions)) == (["1"], [], 1)
    it.answer()
    assert it.served == ["2"]
    it.takes = False
    it.add("3")
    assert it.lost == ["1", "3"]
    it.takes = True
    it.add("4")
    it.answer()
    assert it.served == ["2", "4"]


def test_an_exception_of_one_request_leaves_the_others_served() -> None:
    it = Cluster()
    error = ValueError("unforeseen")

    def fails() -> None:
        raise error

    it.add("1")
    it.requests.add(fails, fails, Queue.API)
    it.add("2")
    it.answer()
    it.answer()
    assert (it.served, it.failures) == (["1", "2"], [error])


def test_a_queue_that_reaches_its_limit_is_dropped_as_elsewhere() -> None:
    it = Cluster(limit=3)
    it.add("asked")
    it.add("1", "2")
    it.add("read", queue=Queue.INFO)
    it.add("3")
    assert it.dropped == [(Queue.API, 3)]
    it.answer()
    it.answer()
    assert it.served == ["asked", "read"]
