"""`max_connections` of accounts: logins, logins again, closes and reloads, on both servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.nats_servers import KINDS
from tests.support.processes import Served, served
from tests.support.rawnats import RawNats

pytestmark = pytest.mark.feature("security.accounts", "core.limits")

EXCEEDED = "-ERR 'maximum account active connections exceeded'"


def conf(limit: int) -> str:
    return f"""
accounts {{
    SYS {{ users: [ {{ user: s, password: s }} ] }}
    L {{
        users: [ {{ user: l, password: l }}, {{ user: m, password: m }} ]
        limits: {{ max_conn: {limit} }}
    }}
    B {{ users: [ {{ user: b, password: b }} ] }}
}}
system_account: SYS
"""


class LimitedAccount:
    """A server whose account L takes two connections, until it is reloaded."""

    def __init__(self, server: Served, directory: Path) -> None:
        self._port = server.port
        self._file = directory / "nats.conf"
        self._system = self.login("s")

    def login(self, user: str) -> RawNats:
        return RawNats(self._port, user=user, **{"pass": user})

    def is_full(self) -> bool:
        """Is one more refused? If not, it has left again when this returns."""
        try:
            client = self.login("l")
        except ConnectionError:
            return True
        self.leave(client)
        return False

    def leave(self, client: RawNats) -> None:
        """The client is gone, and the server knows."""
        cid = client.info["client_id"]
        client.close()
        subject = f"$SYS.REQ.SERVER.{client.info['server_id']}.CONNZ"
        while any(one["cid"] == cid for one in self._system.request(subject, {})["data"]["connections"]):
            pass

    def reload(self, limit: int) -> None:
        self._file.write_text(conf(limit), encoding="utf-8")
        answer = self._system.request(f"$SYS.REQ.SERVER.{self._system.info['server_id']}.RELOAD")
        assert "error" not in answer


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LimitedAccount]:
    with served(request.param, tmp_path, conf(2)) as server:
        yield LimitedAccount(server, tmp_path)


def said(client: RawNats, user: str = "") -> list[str]:
    """What the server answers to a ping, after a login if a user is given."""
    found = []
    connect = f'CONNECT {{"user":"{user}","pass":"{user}","verbose":false}}\r\n' if user else ""
    try:
        client.send(f"{connect}PING\r\n".encode())
        while (line := client.line()) != b"PONG":
            if not line.startswith((b"INFO", b"PING")):
                found.append(line.decode())
    except ConnectionError:
        found.append("closed")
    return found


def test_a_login_beyond_the_limit_is_refused_until_a_client_leaves(place: LimitedAccount) -> None:
    first, second = place.login("l"), place.login("m")
    assert place.is_full()
    place.leave(first)
    third = place.login("l")
    assert place.is_full()
    assert said(second) == said(third) == []


def test_who_is_in_a_full_account_may_log_in_again(place: LimitedAccount) -> None:
    first, second = place.login("l"), place.login("l")
    assert said(first, "l") == said(first, "m") == []
    assert place.is_full()
    assert said(second) == []


def test_who_changes_accounts_is_counted_where_it_is(place: LimitedAccount) -> None:
    first, second, other = place.login("l"), place.login("l"), place.login("b")
    assert said(other, "l") == [EXCEEDED, "closed"]
    assert said(first, "b") == []
    assert not place.is_full()
    other = place.login("b")
    assert said(other, "l") == []
    assert place.is_full()
    assert said(first) == said(second) == []


def test_a_reload_closes_what_is_above_the_limit(place: LimitedAccount) -> None:
    clients = [place.login("l"), place.login("m")]
    place.reload(1)
    answers = [said(client) for client in clients]
    assert answers.count([]) == 1
    assert [EXCEEDED, "closed"] in answers
    assert place.is_full()
    place.reload(2)
    assert not place.is_full()
    assert [said(client) for client in clients].count([]) == 1
    place.reload(0)
    assert [] not in [said(client) for client in clients]
    assert place.is_full()
    place.reload(-1)
    assert not place.is_full()
