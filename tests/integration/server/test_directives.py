"""Directives of the top level that a standalone server may have: what both servers make of them."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from penstock.server.config.server_options import ServerOptions
from penstock.testing import server as penstock_server
from tests.support.conf_servers import running_as_configured
from tests.support.nats_servers import KINDS
from tests.support.rawnats import RawNats

pytestmark = pytest.mark.feature("operations.configuration")

SYSTEM = "accounts { $SYS { users [{user: sys, password: sys}] }, A { users [{user: a, password: a}] } }\n"


def ask(client: RawNats, subject: str, body: object = None) -> Any:
    return client.request(f"$SYS.REQ.SERVER.{subject}", body)


@pytest.mark.feature("operations.server-tags")
@pytest.mark.parametrize("kind", KINDS)
def test_tags_and_metadata_are_shown_and_choose_servers(kind: str, tmp_path: Path) -> None:
    labels = 'server_tags: [" Big ", disk:ssd, big]\nserver_metadata { rack: "7", Zone: b }\n'
    with running_as_configured(kind, SYSTEM + labels, tmp_path) as port:
        client = RawNats(port, user="sys", **{"pass": "sys"})
        ping = ask(client, "PING.VARZ")
        for page in (ping["server"], ping["data"]):
            assert page["tags"] == ["big", "disk:ssd"]
            assert page["metadata"] == {"rack": "7", "Zone": "b"}
        assert ask(client, "PING.VARZ", {"tags": ["BIG ", "disk:ssd"]})["server"]["tags"]
        # One answer alone comes: that of the second.
        client.send(b"SUB got 9\r\n")
        client.publish("$SYS.REQ.SERVER.PING.VARZ", b'{"tags": ["big", "small"]}', "got")
        client.publish("$SYS.REQ.SERVER.PING.IDZ", b"", "got")
        assert b"mem" not in client.message().payload
        client.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_subscription_of_too_many_tokens_is_refused_and_the_client_stays(kind: str, tmp_path: Path) -> None:
    with running_as_configured(kind, "max_sub_tokens: 3\n", tmp_path) as port:
        client = RawNats(port)
        client.send(b"SUB a.b.c.d 1\r\nSUB a.b.> 2\r\n")
        client.publish("a.b.c.d", b"x")
        assert client.message().sid == b"2"
        assert client.control == [
            b"-ERR 'Permissions Violation for Subscription to \"a.b.c.d\", too many tokens'"
        ]
        client.close()


def test_connz_remembers_as_many_closed_clients_as_configured(tmp_path: Path) -> None:
    with running_as_configured("penstock", SYSTEM + "max_closed_clients: 2\n", tmp_path) as port:
        for _ in range(4):
            RawNats(port, user="a", **{"pass": "a"}).close()
        client = RawNats(port, user="sys", **{"pass": "sys"})
        while True:  # until the server has read that they left
            page = ask(client, "PING.CONNZ", {"state": 1})["data"]
            if any(one["cid"] == 4 for one in page["connections"]):
                break
        assert [one["cid"] for one in page["connections"]] == [3, 4]
        client.close()


def test_the_store_directory_of_the_top_level_is_jetstreams(tmp_path: Path) -> None:
    with running_as_configured("penstock", f'jetstream: enabled\nstore_dir: "{tmp_path / "s"}"\n', tmp_path):
        assert (tmp_path / "s" / "jetstream").is_dir()


@pytest.mark.parametrize("kind", KINDS)
def test_without_headers_info_says_so_and_hpub_ends_the_connection(kind: str, tmp_path: Path) -> None:
    with running_as_configured(kind, "no_header_support: true\n", tmp_path) as port:
        client = RawNats(port, no_responders=False)
        assert client.info["headers"] is False
        client.send(b"SUB a 1\r\n")
        client.publish("a", b"x")
        assert client.message().payload == b"x"
        client.send(b"HPUB a 12 13\r\nNATS/1.0\r\n\r\nx\r\nPING\r\n")
        with pytest.raises(ConnectionError):
            client.message()
        assert client.control == []
        client.close()


@pytest.mark.parametrize("kind", KINDS)
def test_without_headers_no_client_gets_no_responders(kind: str, tmp_path: Path) -> None:
    with running_as_configured(kind, "no_header_support: true\n", tmp_path) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
            sock.sendall(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\nPING\r\n')
            reported = b"".join(iter(lambda: sock.recv(4096), b""))
        assert reported.endswith(b"\r\n-ERR 'no responders requires headers support'\r\n")


@pytest.mark.parametrize("kind", KINDS)
def test_jetstream_has_a_system_account_all_the_same(kind: str, tmp_path: Path) -> None:
    with running_as_configured(kind, "no_system_account: true\njetstream: enabled\n", tmp_path) as port:
        client = RawNats(port)
        assert client.request("$SYS.REQ.USER.INFO")["data"]["account"] == "$G"
        client.close()


def test_without_a_system_account_requests_about_the_server_get_no_answer(tmp_path: Path) -> None:
    with running_as_configured(
        "penstock", "no_system_account: true\nno_sublist_cache: true\n", tmp_path
    ) as port:
        client = RawNats(port)
        client.send(b"SUB got 9\r\n")
        client.publish("$SYS.REQ.USER.INFO", b"", "got")
        assert client.message().header.startswith(b"NATS/1.0 503")
        client.close()


def test_without_a_system_account_there_is_none_and_varz_names_none(tmp_path: Path) -> None:
    options = ServerOptions(
        host="127.0.0.1", port=-1, http_port=-1, http_host="127.0.0.1", no_system_account=True
    )
    with penstock_server(options=options) as running:
        assert running.server.monitor is not None
        address = running.server.monitor.url.removeprefix("http://")
        assert "system_account" not in RawNats.request_http(address, "/varz")
        page = RawNats.request_http(address, "/accountz")
        assert page["accounts"] == ["$G"]
        assert "system_account" not in page


def test_a_system_account_that_is_named_is_there_all_the_same(tmp_path: Path) -> None:
    text = "accounts { S { users [{user: sys, password: sys}] } }\nsystem_account: S\nno_sys_acc: true\n"
    with running_as_configured("penstock", text, tmp_path) as port:
        client = RawNats(port, user="sys", **{"pass": "sys"})
        assert ask(client, "PING.VARZ")["data"]["system_account"] == "S"
        client.close()
