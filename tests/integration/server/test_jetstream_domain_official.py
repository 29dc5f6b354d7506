"""Requests below the prefix of a JetStream domain, by clients of several accounts, on both servers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.conf_servers import login, running_as_configured
from tests.support.nats_servers import KINDS
from tests.support.rawnats import RawNats

pytestmark = pytest.mark.feature("core.subject-mapping", "key-value.operations")

CONF = """
server_name: s1
http: -1
jetstream { domain: hub }
accounts {
  A {
    jetstream: enabled
    users: [
      {user: any, password: any}
      {user: prefixed, password: prefixed, permissions: {publish: ["$JS.hub.API.>"]}}
      {user: plain, password: plain, permissions: {publish: ["$JS.API.>"]}}
    ]
    exports: [{service: "$JS.API.>"}]
  }
  OWN {
    jetstream: enabled
    mappings: {"$JS.hub.API.INFO": "mine", "$JS.hub.API.$KV.b.>": "buckets.>"}
    users: [{user: own, password: own}]
  }
  IMPORTS {
    imports: [{service: {account: A, subject: "$JS.API.>"}}]
    users: [{user: imports, password: imports}]
  }
  NONE { users: [{user: none, password: none}] }
}
"""


@pytest.fixture(scope="module", params=KINDS)
def port(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with running_as_configured(request.param, CONF, tmp_path_factory.mktemp(request.param)) as port:
        yield port


def seen_of(client: RawNats, subject: str) -> list[str]:
    """The subjects with which a publish reaches a subscription to everything."""
    client.subscribe(">", 7)
    client.publish(subject)
    client.publish("end")
    subjects = [client.message().subject.decode()]
    while subjects[-1] != "end":
        subjects.append(client.message().subject.decode())
    return [s for s in subjects if not s.startswith("$JS.EVENT")]


@pytest.mark.parametrize(
    ("subject", "routed"),
    [
        ("$JS.hub.API.INFO", "$JS.API.INFO"),
        ("$JS.hub.API.STREAM.INFO.S", "$JS.API.STREAM.INFO.S"),
        ("$JS.hub.API.$KV.b.k.l", "$KV.b.k.l"),
        ("$JS.hub.API.$OBJ.b.k", "$OBJ.b.k"),
        ("$JS.hub.API.$O.b.k", "$JS.hub.API.$O.b.k"),
        ("$JS.hub.API.UNKNOWN", "$JS.hub.API.UNKNOWN"),
        ("$JS.other.API.INFO", "$JS.other.API.INFO"),
    ],
)
def test_what_is_below_the_prefix_loses_it(port: int, subject: str, routed: str) -> None:
    assert seen_of(login(port, "any"), subject) == [routed, "end"]


def test_permissions_are_for_the_subject_without_the_domain(port: int) -> None:
    assert "memory" in login(port, "plain").request("$JS.hub.API.INFO")
    prefixed = login(port, "prefixed")
    prefixed.publish("$JS.hub.API.INFO")
    assert prefixed.line() == b"-ERR 'Permissions Violation for Publish to \"$JS.API.INFO\"'"


def test_an_accounts_own_mapping_comes_first(port: int) -> None:
    assert seen_of(login(port, "own"), "$JS.hub.API.INFO") == ["mine", "end"]
    assert seen_of(login(port, "own"), "$JS.hub.API.$KV.b.k") == ["buckets.k", "end"]
    assert seen_of(login(port, "own"), "$JS.hub.API.$KV.c.k") == ["$KV.c.k", "end"]


def test_an_account_without_jetstream_learns_that_by_the_domain_too(port: int) -> None:
    assert login(port, "none").request("$JS.hub.API.INFO")["error"]["err_code"] == 10039


def test_an_account_that_imports_the_api_has_no_mapping(port: int) -> None:
    assert seen_of(login(port, "imports"), "$JS.hub.API.INFO") == ["$JS.hub.API.INFO", "end"]
