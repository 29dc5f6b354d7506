"""Requests to the web page of a server, as its own scripts send them."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.processes import Served, served

WEB_CONF = """
http: "127.0.0.1:-1"
web { allow_writes: %s }
jetstream { store_dir: "%s" }
accounts {
  A { jetstream: enabled, users: [
    { user: ann, password: secret }
    { user: rita, password: secret
      permissions { publish { deny: ["orders.>", "$JS.API.STREAM.MSG.DELETE.>"] } } }
    { user: nora, password: secret, permissions { publish: ["nothing"] } }
  ] }
  B { jetstream: enabled, users: [{ user: bob, password: secret }] }
  SYS { users: [{ user: sys, password: secret }] }
}
system_account: SYS
"""
_PAGE = re.compile(r"Serving the web page on http://[^:]+:(\d+)(\S*)")


class Answered(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class WebVisit:
    """A browser without a screen: cookie and CSRF token of one session."""

    def __init__(self, port: int, path: str = "/ui/", host: str = "127.0.0.1") -> None:
        self.port, self.path, self.host = port, path, host
        self.cookie = ""
        self.csrf = ""

    def ask(self, path: str, method: str = "GET", body: Any = None, **headers: str) -> Answered:
        """One request. `headers`: with underscores; they replace those the page sends."""
        sent = {"Host": f"{self.host}:{self.port}"}
        if self.cookie:
            sent["Cookie"] = self.cookie
        if method == "POST":
            sent |= {"Content-Type": "application/json", "X-CSRF-Token": self.csrf}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection = HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, self.path + path, data, sent)
            answer = connection.getresponse()
            found = Answered(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()
        return found

    def log_in(self, user: str = "ann", password: str = "secret", **more: str) -> Answered:
        given = {"user": user, "password": password, **more}
        answer = self.ask("api/login", "POST", {name: value for name, value in given.items() if value})
        if answer.status == 200:
            self.cookie = answer.headers["set-cookie"].partition(";")[0]
            self.csrf = answer.json["csrf"]
        return answer

    def view(self, name: str) -> Any:
        answer = self.ask(f"api/view/{name}")
        assert answer.status == 200, answer
        return answer.json

    def act(self, name: str, body: Any, **headers: str) -> Answered:
        return self.ask(f"api/do/{name}", "POST", body, **headers)

    def monitoring(self, page: str) -> Any:
        """A page of the monitoring port beside the web page."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{page}", timeout=10) as answer:
            return json.load(answer)

    def first_event(self, name: str) -> tuple[str, Any]:
        """Name and data of the first event of a live view."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request("GET", f"{self.path}api/live/{name}", headers={"Cookie": self.cookie})
            answer = connection.getresponse()
            assert answer.getheader("content-type") == "text/event-stream; charset=utf-8"
            event = ""
            while True:
                line = answer.readline().decode().rstrip("\n")
                if line.startswith("event: "):
                    event = line.removeprefix("event: ")
                if line.startswith("data: "):
                    return event, json.loads(line.removeprefix("data: "))
        finally:
            connection.close()


def page_of(server: Served) -> tuple[int, str]:
    """Port and path of the web page of a server."""
    server.wait_for("Serving the web page on")
    found = _PAGE.search(server.log)
    assert found is not None, server.log
    return int(found[1]), found[2]


@contextmanager
def web_server(
    directory: Path, *, writes: bool = True, conf: str = WEB_CONF
) -> Iterator[tuple[Served, WebVisit]]:
    """A process of `penstock serve` with the page, and a visit that has not logged in."""
    text = conf % (str(writes).lower(), directory / "store") if "%s" in conf else conf
    with served("penstock", directory, text) as server:
        yield server, WebVisit(*page_of(server))
