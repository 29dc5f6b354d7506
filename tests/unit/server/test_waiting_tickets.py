"""Requests that wait for a stream or one of its consumers."""

from __future__ import annotations

import pytest

from penstock.jetstream.meta.meta_effects import AssetAction
from penstock.server.replicated import waiting_tickets
from penstock.server.replicated.request_tickets import TICKETS_MAX, RecentTickets, RequestTicket
from penstock.server.replicated.waiting_tickets import WaitingTicket, WaitingTickets

pytestmark = pytest.mark.feature("cluster.administration")


def waiting(
    reply: bytes, consumer: str = "", incarnation: int = 1, until: int = 10, action: str = "created"
) -> WaitingTicket:
    ticket = RequestTicket("$G", "STREAM.CREATE", "$JS.API.STREAM.CREATE.S", ("S",), reply)
    return WaitingTicket(ticket, AssetAction[action.upper()], consumer, incarnation, until)


def replies(found: list[WaitingTicket]) -> list[bytes]:
    return [one.ticket.reply for one in found]


def test_tickets_are_taken_once_by_asset_and_incarnation() -> None:
    tickets = WaitingTickets()
    for one in (waiting(b"1"), waiting(b"2", "c"), waiting(b"3", "c", 2), waiting(b"4", "c")):
        tickets.add(one)
    assert replies(tickets.take("c", 1)) == [b"2", b"4"]
    assert replies(tickets.take("c", 1)) == replies(tickets.take("other", 1)) == []
    assert replies(tickets.take("c", 2)) == [b"3"]
    assert (replies(tickets.take("", 1)), len(tickets)) == ([b"1"], 0)


def test_tickets_can_be_taken_by_what_was_done_for_them() -> None:
    tickets = WaitingTickets()
    tickets.add(waiting(b"new"))
    tickets.add(waiting(b"there", action="present"))
    assert replies(tickets.take("", 1, AssetAction.CREATED)) == [b"new"]
    assert replies(tickets.take("", 1)) == [b"there"]


def test_tickets_end_when_no_client_waits_for_them() -> None:
    tickets = WaitingTickets()
    tickets.add(waiting(b"1", "a", until=10))
    tickets.add(waiting(b"2", "a", until=20))
    tickets.expire(9)
    assert len(tickets) == 2
    tickets.expire(10)
    assert replies(tickets.take("a", 1)) == [b"2"]
    tickets.expire(30)
    assert len(tickets) == 0


def test_no_more_wait_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_tickets, "TICKETS_MAX", 2)
    tickets = WaitingTickets()
    for reply in (b"1", b"2", b"3"):
        tickets.add(waiting(reply))
    assert replies(tickets.take("", 1)) == [b"1", b"2"]
    tickets.add(waiting(b"4"))
    assert len(tickets) == 1


def test_only_the_last_tickets_are_recent() -> None:
    recent = RecentTickets()
    for number in range(TICKETS_MAX + 2):
        recent.add(b"%d" % number)
    recent.add(b"%d" % (TICKETS_MAX + 1))
    assert [b"%d" % number in recent for number in (0, 1, 2, TICKETS_MAX + 1)] == [False, False, True, True]


def test_a_removal_waits_for_a_consumer_of_any_incarnation_and_other_requests_do_not() -> None:
    tickets = WaitingTickets()
    decoded = RequestTicket("$G", "CONSUMER.DELETE", "s", (), b"r")
    for number, action in enumerate((AssetAction.REMOVED, AssetAction.CREATED, AssetAction.REMOVED)):
        tickets.add(WaitingTicket(decoded, action, "c", number, 0))
    assert list(tickets.consumers) == ["c"]
    assert [one.incarnation for one in tickets.take("c", 0)] == []
    assert [one.incarnation for one in tickets.take("c", None, AssetAction.REMOVED)] == [0, 2]
    assert [one.incarnation for one in tickets.take("c", 1)] == [1]
