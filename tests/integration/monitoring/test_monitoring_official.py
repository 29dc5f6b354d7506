"""Corners of monitoring pages and of requests to the system account, on both servers."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.nats_servers import KINDS
from tests.support.processes import Served, served
from tests.support.rawnats import RawNats
from tests.support.wire import Wire

pytestmark = pytest.mark.feature("monitoring.http")

SILENCE_S = 0.5
CONF = """
http: 127.0.0.1:-1
jetstream { store_dir: %s }
accounts {
    SYS { users: [{user: sys, password: p}] }
    A {
        jetstream: enabled
        users: [
            {user: a, password: p}
            {user: limited, password: p, permissions: {publish: {allow: ["p.*", "q"], deny: "p.no.*"}}}
        ]
    }
    B { users: [{user: b, password: p}] }
}
system_account: SYS
"""


class Site:
    """A server with two clients of account A, of which one has left, and none of B."""

    def __init__(self, server: Served) -> None:
        self.port = server.port
        found = re.search(r"Starting http monitor on (\S+)", server.log)
        assert found is not None
        self.http = found[1]
        self.system = RawNats(self.port, user="sys", **{"pass": "p"})
        self.system.subscribe("$SYS.ACCOUNT.A.CONNECT", 1)
        self.system.subscribe("$SYS.ACCOUNT.A.DISCONNECT", 2)
        self.system.flush()
        self.client = self.connect("a", name="stays", lang="go", version="9.9")
        self.client.subscribe("foo.*", 1)
        self.client.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
        config = {"durable_name": "C", "ack_policy": "explicit"}
        self.client.request("$JS.API.CONSUMER.CREATE.S.C", {"stream_name": "S", "config": config})
        leaves = self.connect("a", name="leaves", lang="py", version="8.0")
        self.connected = [self.event(1), self.event(1)]
        leaves.sock.close()
        self.disconnected = self.event(2)

    def connect(self, user: str, **settings: str) -> RawNats:
        return RawNats(self.port, user=user, **{"pass": "p"}, **settings)

    def event(self, sid: int) -> Any:
        message = self.system.message()
        assert message.sid == b"%d" % sid
        return json.loads(message.payload)["client"]

    def get(self, path: str) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(f"http://{self.http}/{path}") as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def ask(self, subject: str, body: object = None) -> Any:
        """The answer to a request to the system account, None when there is none."""
        asking = self.connect("sys")
        asking.subscribe("answer", 1)
        payload = b"" if body is None else json.dumps(body).encode()
        asking.publish(f"$SYS.REQ.{subject}", payload, "answer")
        asking.sock.settimeout(SILENCE_S if subject.startswith("ACCOUNT.") else 10)
        try:
            return json.loads(asking.message().payload)
        except TimeoutError:
            return None
        finally:
            asking.sock.close()


@pytest.fixture(scope="module", params=KINDS)
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory: Path = tmp_path_factory.mktemp("site")
    with served(request.param, directory, CONF % directory) as server:
        yield Site(server)


@pytest.mark.parametrize(
    ("filter_subject", "number"),
    [("foo.*", 1), ("foo.bar", 1), ("foo.>", 1), ("*.bar", 1), (">", 1), ("foo", 0), ("bar.>", 0)],
)
def test_connections_are_filtered_by_subjects_that_overlap(
    filter_subject: str, number: int, site: Site
) -> None:
    asked = {"acc": "A", "filter_subject": filter_subject}
    found = site.ask("SERVER.PING.CONNZ", asked)["data"]["connections"]
    assert [one["name"] for one in found] == ["stays"] * number
    closed = site.ask("SERVER.PING.CONNZ", asked | {"state": 1})["data"]["connections"]
    assert [one["name"] for one in closed] == ["leaves"]


def test_connections_are_filtered_by_subject_in_one_account_alone(site: Site) -> None:
    answer = site.ask("SERVER.PING.CONNZ", {"filter_subject": "foo.bar"})
    assert answer["error"]["description"] == "filter by subject only valid with account filtering"
    assert site.ask("SERVER.PING.CONNZ", {"filter_subject": ">"})["data"]["total"] > 0


@pytest.mark.parametrize("state", ["0", "1", "2", "bogus"])
def test_states_in_a_query_are_words(state: str, site: Site) -> None:
    assert site.get(f"connz?state={state}") == (400, f"Error decoding state for {state}")


def test_a_state_that_there_is_not_has_no_connections(site: Site) -> None:
    assert site.ask("SERVER.PING.CONNZ", {"state": 5})["data"]["connections"] == []


def test_closed_connections_and_events_keep_language_and_version(site: Site) -> None:
    reported = [(one["name"], one["lang"], one["ver"]) for one in (*site.connected, site.disconnected)]
    assert reported == [("stays", "go", "9.9"), ("leaves", "py", "8.0"), ("leaves", "py", "8.0")]
    (closed,) = site.get("connz?state=closed&acc=A")[1]["connections"]
    assert (closed["name"], closed["lang"], closed["version"]) == ("leaves", "py", "8.0")


@pytest.mark.parametrize("account", ["nobody", "B"])
@pytest.mark.parametrize("page", ["STATZ", "CONNS"])
def test_accounts_without_connections_are_met_with_silence(page: str, account: str, site: Site) -> None:
    assert site.ask(f"ACCOUNT.{account}.{page}") is None


@pytest.mark.parametrize("page", ["STATZ", "CONNS"])
def test_accounts_with_connections_are_answered(page: str, site: Site) -> None:
    answer = site.ask(f"ACCOUNT.A.{page}")
    reported = answer["data"]["account_statz"][0] if page == "STATZ" else answer
    assert (reported["acc"], reported["conns"]) == ("A", 1)


def test_unused_accounts_are_shown_when_they_are_asked_for(site: Site) -> None:
    answer = site.ask("ACCOUNT.B.STATZ", {"include_unused": True})
    assert [one["acc"] for one in answer["data"]["account_statz"]] == ["B"]
    assert site.ask("ACCOUNT.nobody.STATZ", {"include_unused": True})["data"]["account_statz"] == []


def test_jsz_of_an_account_that_there_is_not(site: Site) -> None:
    answer = site.ask("ACCOUNT.nobody.JSZ")
    assert answer["error"]["description"] == 'account "nobody" not found'


@pytest.mark.parametrize(("query", "with_config"), [("", False), ("&config=true", True)])
def test_consumers_have_their_configuration_where_it_is_asked_for(
    query: str, with_config: bool, site: Site
) -> None:
    status, page = site.get(f"jsz?consumers=true{query}")
    (stream,) = page["account_details"][0]["stream_detail"]
    (consumer,) = stream["consumer_detail"]
    assert (status, consumer["name"]) == (200, "C")
    assert ("config" in consumer, "config" in stream) == (with_config, with_config)


@pytest.mark.parametrize("cid", ["-1", "x", "1.5"])
def test_a_number_of_a_connection_is_no_other_text(cid: str, site: Site) -> None:
    text = f"Error decoding uint64 for 'cid': strconv.ParseUint: parsing \"{cid}\": invalid syntax"
    assert site.get(f"connz?cid={cid}") == (400, text)


def test_a_negative_number_of_a_connection_is_refused_in_a_request_too(site: Site) -> None:
    assert site.ask("SERVER.PING.CONNZ", {"cid": -1})["error"]["code"] == 400


@pytest.mark.parametrize("limit", ["-1", "0"])
def test_a_limit_below_one_is_the_default(limit: str, site: Site) -> None:
    assert site.get(f"subsz?limit={limit}")[1]["limit"] == 1024
    assert site.get(f"connz?limit={limit}")[1]["limit"] == 1024


def test_the_page_of_the_system_account_says_what_it_is(site: Site) -> None:
    detail = site.get("accountz?acc=SYS")[1]["account_detail"]
    assert (detail["account_name"], detail["is_system"], detail["complete"]) == ("SYS", True, True)


@pytest.mark.parametrize(
    ("subject", "allowed"),
    [("p.>", True), ("p.*", True), ("p.a", True), ("p.*.>", False), ("p.no.>", False), (">", False)],
)
def test_a_published_subject_with_wildcards_is_matched_token_by_token(
    subject: str, allowed: bool, site: Site
) -> None:
    client = Wire(site.port).connect(user="limited", **{"pass": "p"})
    client.send(f"PUB {subject} 0\r\n\r\nPING\r\n".encode())
    answer = client.until(b"PONG\r\n").decode()
    assert ("Permissions Violation" not in answer) == allowed
