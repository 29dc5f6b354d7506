"""Checks consumers with pinned clients: one client gets all messages until its pin ends.

Clients name their pin in further requests, which keeps it. A pin ends when an administrator ends it, when
its client requests nothing for the consumer's `priority_timeout`, or when the server restarts.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.protocol import headers
from penstock.testing.sim import require

if TYPE_CHECKING:
    from penstock.testing.sim.consumer_checks import ConsumerRecord

GROUP = "g"
CLIENTS = ("left", "right")
CONFIG = {
    "priority_policy": "pinned_client", "priority_groups": [GROUP], "priority_timeout": 2_000_000_000,
}  # fmt: skip

Ident = tuple[str, str, int]  # stream, name and creation time (ns) of a consumer


class SeenPin(NamedTuple):
    """A pin that a client has until a time (ns). is_sure: False when a request that ends pins was in flight
    as it was seen first: that request may have ended it."""

    id: str
    client: str
    until: int
    is_sure: bool = True


def has_pins(record: ConsumerRecord) -> bool:
    """Whether the consumer serves a pinned client."""
    return record.config.get("priority_policy") == CONFIG["priority_policy"]


class Pins:
    """The pins that clients saw, and their requests."""

    def __init__(self) -> None:
        self._pins: dict[Ident, SeenPin] = {}
        self._ending: dict[Ident, SeenPin] = {}  # a request that ends them is in flight
        self._unpinning: Counter[Ident] = Counter()  # requests in flight that end pins
        self._past: set[str] = set()
        self._clients: dict[bytes, str] = {}  # by the inbox of a request

    def request(
        self, record: ConsumerRecord, inbox: bytes, random: Random | None, now: int
    ) -> dict[str, Any]:
        """The fields that a request of a client has. random: chooses the client; None: the pinned one."""
        pin = self._pins.get(_ident(record))
        if random is not None:
            client = random.choice(CLIENTS)
        else:
            client = pin.client if pin is not None else CLIENTS[0]
        self._clients[inbox] = client
        if pin is None or pin.client != client or pin.until <= now:
            return {"group": GROUP}
        self._pins[_ident(record)] = pin._replace(until=now + record.config["priority_timeout"])
        return {"group": GROUP, "id": pin.id}

    def delivered(self, record: ConsumerRecord, inbox: bytes, header: bytes, now: int) -> None:
        """Checks the pin of a message."""
        where = f"{record.stream} > {record.name}"
        found = (headers.value_of(header, headers.PIN_ID) or b"").decode()
        pin = self._pins.get(_ident(record))
        client = self._clients.get(inbox, inbox.decode())  # one that asked before an update has no name
        if pin is not None and pin.id == found:
            require(pin.client == client, "pinned", f"{where}: {client} got a message, {pin} has the pin")
            if not self._unpinning[_ident(record)]:
                self._pins[_ident(record)] = pin._replace(is_sure=True)
            return
        ending = self._ending.get(_ident(record)) if pin is None else None
        if ending is not None and ending.id == found:
            return  # it left before the request was handled
        require(
            bool(found) and found not in self._past, "pinned", f"{where}: a message has the pin {found!r}"
        )
        may = pin is None or pin.until <= now or not pin.is_sure
        require(may, "pinned", f"{where}: {client} got the pin {found} at {now}, {pin} has one")
        self._past.add(found)
        until = now + record.config["priority_timeout"]
        self._pins[_ident(record)] = SeenPin(found, client, until, not self._unpinning[_ident(record)])

    def unpinning(self, record: ConsumerRecord) -> None:
        """A request is going to end the pin of a consumer: what it handles afterwards has another pin."""
        self._unpinning[_ident(record)] += 1
        pin = self._pins.pop(_ident(record), None)
        if pin is not None:
            self._ending[_ident(record)] = pin

    def unpinning_ended(self, record: ConsumerRecord) -> None:
        """The request was answered."""
        if self._unpinning[_ident(record)]:  # else the server died meanwhile
            self._unpinning[_ident(record)] -= 1
        self._ending.pop(_ident(record), None)

    def unpinned(self, record: ConsumerRecord) -> None:
        """The pin of a consumer ended."""
        self._pins.pop(_ident(record), None)

    def crashed(self) -> None:
        """The server died, and with it all pins."""
        self._pins.clear()
        self._ending.clear()
        self._unpinning.clear()
        self._clients.clear()


def _ident(record: ConsumerRecord) -> Ident:
    return record.stream, record.name, record.created
