"""A reload changes exports and imports: added, renamed, removed; on both servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.conf_servers import login, received
from tests.support.nats_servers import KINDS
from tests.support.processes import Served, served

pytestmark = pytest.mark.feature("operations.reload", "security.accounts")


def conf(exports: str, imports: str) -> str:
    return f"""
accounts {{
    SYS {{ users: [ {{ user: s, password: s }} ] }}
    E {{ users: [ {{ user: e, password: e }} ], exports: [ {exports} ] }}
    I {{ users: [ {{ user: i, password: i }} ], imports: [ {imports} ] }}
}}
system_account: SYS
"""


SERVICE, STREAM = "{ service: ask }", "{ stream: news }"


def service(to: str) -> str:
    return f"{{ service: {{ account: E, subject: ask }}, to: {to} }}"


def stream(to: str) -> str:
    return f"{{ stream: {{ account: E, subject: news }}, to: {to} }}"


class ReloadedServer:
    """A server that is reloaded, and a client of each account that stays connected all the time."""

    def __init__(self, server: Served, directory: Path) -> None:
        self._file = directory / "nats.conf"
        self._system, self._e, self._i = (
            login(server.port, user, headers=False, no_responders=False) for user in "sei"
        )
        self._e.subscribe("ask", 1)
        self._e.flush()
        self._i.subscribe(">", 1)
        self._i.flush()

    def reload(self, exports: str, imports: str) -> None:
        self._file.write_text(conf(exports, imports), encoding="utf-8")
        answer = self._system.request(f"$SYS.REQ.SERVER.{self._system.info['server_id']}.RELOAD")
        assert "error" not in answer

    def asked(self, subject: str) -> bool:
        """Does a request of I reach E?"""
        self._i.publish(subject, b"", "_R.x")
        received(self._i)
        return received(self._e) == ["ask 1"]

    def heard(self) -> list[str]:
        """Under which names I receives what E publishes to `news`."""
        self._e.publish("news")
        self._e.flush()
        return [name.removesuffix(" 1") for name in received(self._i)]


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ReloadedServer]:
    with served(request.param, tmp_path, conf("", "")) as server:
        yield ReloadedServer(server, tmp_path)


def test_services_are_added_renamed_and_removed(place: ReloadedServer) -> None:
    assert not place.asked("one")
    place.reload(SERVICE, service("one"))
    assert place.asked("one")
    place.reload(SERVICE, service("two"))
    assert [place.asked("one"), place.asked("two")] == [False, True]
    place.reload(SERVICE, service("two") + ", " + service("three"))
    assert [place.asked("two"), place.asked("three")] == [True, True]
    place.reload(SERVICE, "")
    assert [place.asked("two"), place.asked("three")] == [False, False]
    place.reload("", "")
    place.reload(SERVICE, service("one"))
    assert place.asked("one")


def test_streams_are_added_renamed_and_removed(place: ReloadedServer) -> None:
    assert place.heard() == []
    place.reload(STREAM, stream("one"))
    assert place.heard() == ["one"]
    place.reload(STREAM, stream("two"))
    assert place.heard() == ["two"]
    place.reload(STREAM, "")
    assert place.heard() == []
    place.reload(f"{STREAM}, {SERVICE}", stream("one") + ", " + service("two"))
    assert place.heard() == ["one"]
    assert place.asked("two")
