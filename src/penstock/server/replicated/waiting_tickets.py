"""Requests that wait, at the leader of a stream's group, for what they wanted of the stream or a consumer."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterator

from msgspec import Struct

from penstock.jetstream.meta.meta_effects import AssetAction
from penstock.server.replicated.request_tickets import RequestTicket

TICKET_NS = 10_000_000_000  # no client waits longer for an answer
TICKETS_MAX = 10_000  # of one stream and its consumers


class WaitingTicket(Struct, frozen=True, eq=False):
    """A request. action: what the meta group did for it. consumer: "" for a request about the stream.
    incarnation: of the asset. until: monotonic ns."""

    ticket: RequestTicket
    action: AssetAction
    consumer: str
    incarnation: int
    until: int


class WaitingTickets:
    """Those about one stream and its consumers.

    A stream may have thousands of consumers whose requests wait at the same time, so each is found by its
    consumer's name.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._all: OrderedDict[int, WaitingTicket] = OrderedDict()  # in the order in which they end
        self._about: dict[str, dict[int, WaitingTicket]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def add(self, one: WaitingTicket) -> None:
        """Keeps a request, which ends no earlier than those before it. Drops it when too many wait."""
        if len(self._all) < TICKETS_MAX:
            number = next(self._numbers)
            self._all[number] = one
            self._about.setdefault(one.consumer, {})[number] = one

    @property
    def consumers(self) -> Iterator[str]:
        """Consumers that requests wait for."""
        return (one for one in self._about if one)

    def take(
        self, consumer: str, incarnation: int | None, action: AssetAction | None = None
    ) -> list[WaitingTicket]:
        """Removes and returns the requests about one asset. incarnation: None for every one. action: only of
        this kind; None for those that want it to be there."""
        found = {
            number: one
            for number, one in self._about.get(consumer, {}).items()
            if incarnation in (None, one.incarnation)
            and (one.action is action if action is not None else one.action is not AssetAction.REMOVED)
        }
        for number, one in found.items():
            self._remove(number, one)
        return list(found.values())

    def expire(self, now: int) -> None:
        """Forgets the requests whose time is over."""
        while self._all:
            number, one = next(iter(self._all.items()))
            if one.until > now:
                return
            self._remove(number, one)

    def _remove(self, number: int, one: WaitingTicket) -> None:
        del self._all[number]
        about = self._about[one.consumer]
        del about[number]
        if not about:
            del self._about[one.consumer]
