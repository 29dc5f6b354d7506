"""Servers of a cluster tell each other that they have JetStream."""

from __future__ import annotations

import msgspec

from penstock.routing.account import Account
from penstock.server.replicated.founding import Presence
from penstock.server.replicated.peer_watch import PeerWatch

SECOND = 1_000_000_000


class WatchingServer:
    """A server in an account that all share."""

    def __init__(self, account: Account, name: str) -> None:
        self.now = SECOND
        self.linked: set[str] = set()
        self.presence = Presence(name=name, peer=name.upper(), member=f"{name}.1", boot=1)
        self.sent: list[Presence] = []
        self.watch = PeerWatch(account, lambda: self.presence, lambda: self.linked, lambda: self.now)
        account.subscribe_service(f"$SYS.PENSTOCK.PEER.{name.upper()}".encode(), self._note)

    def _note(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: object) -> None:
        self.sent.append(msgspec.json.decode(payload, type=Presence))


def test_a_server_is_present_while_it_is_linked() -> None:
    account = Account("$SYS")
    a, b = WatchingServer(account, "a"), WatchingServer(account, "b")
    a.watch.tick()
    assert b.watch.others == []
    b.linked.add("a.1")
    assert [one.name for one in b.watch.others] == ["a"]
    b.linked.clear()
    assert b.watch.others == []


def test_what_a_server_says_is_repeated_when_it_changes_and_from_time_to_time() -> None:
    a = WatchingServer(Account("$SYS"), "a")
    a.watch.tick()
    for _ in range(8):
        a.now += SECOND // 2
        a.watch.tick()
    assert len(a.sent) == 1
    a.presence = msgspec.structs.replace(a.presence, has_meta=True)
    a.now += SECOND // 2
    a.watch.tick()
    assert [one.has_meta for one in a.sent] == [False, True]
    a.now += 6 * SECOND
    a.watch.tick()
    assert len(a.sent) == 3


def test_a_server_that_is_new_is_answered_at_once() -> None:
    account = Account("$SYS")
    a = WatchingServer(account, "a")
    a.watch.tick()
    b = WatchingServer(account, "b")
    b.watch.tick()
    a.now += SECOND // 5
    a.watch.tick()
    assert len(a.sent) == 2


def test_bytes_that_are_no_presence_are_ignored() -> None:
    account = Account("$SYS")
    a = WatchingServer(account, "a")
    for payload in (b"", b"{}", b"\xff", b'{"name": 1}', b"[1]"):
        account.publish(b"$SYS.PENSTOCK.PEER.X", payload)
    a.linked.add("x.1")
    assert a.watch.others == []
