"""Server URLs and the pool of servers."""

from __future__ import annotations

import pytest

from penstock.client.servers import ServerPool, ServerUrl, parse_server_url
from penstock.errors import MisuseError

pytestmark = pytest.mark.feature("client.server-pool")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost", ServerUrl("localhost")),
        (" 10.0.0.1:4333 ", ServerUrl("10.0.0.1", 4333)),
        ("nats://h:1", ServerUrl("h", 1)),
        ("tls://h", ServerUrl("h", scheme="tls")),
        ("nats://joe:p%40ss%3A@h", ServerUrl("h", user="joe", password="p@ss:")),
        ("nats://t0ken@h:5", ServerUrl("h", 5, token="t0ken")),
        ("nats://joe:@h", ServerUrl("h", user="joe", password="")),
        ("[::1]:4222", ServerUrl("::1", 4222)),
        ("nats://[fe80::1]", ServerUrl("fe80::1")),
        ("nats://h:0", ServerUrl("h", 0)),
        ("nats://h/path?x", ServerUrl("h")),
        ("ws://h", ServerUrl("h", 80, "ws")),
        ("wss://h/", ServerUrl("h", 443, "wss")),
        ("wss://joe:p@h:1/nats/a?b=c", ServerUrl("h", 1, "wss", "/nats/a?b=c", "joe", "p")),
    ],
)
def test_server_urls_are_read(text: str, expected: ServerUrl) -> None:
    assert parse_server_url(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nats://",
        "http://h",
        "nats://h:port",
        "nats://h:70000",
        "nats://:4222",
        "nats://[::1",
        "nats://h℀",
    ],
)
def test_broken_server_urls_are_refused(text: str) -> None:
    with pytest.raises(MisuseError):
        parse_server_url(text)


def test_shown_urls_hold_no_credentials() -> None:
    url = parse_server_url("tls://joe:secret@[::1]:99")
    assert str(url) == "tls://[::1]:99"
    assert "secret" not in repr(url)
    assert "t0ken" not in repr(parse_server_url("nats://t0ken@h"))


def test_the_pool_goes_round_in_the_users_order() -> None:
    pool = ServerPool("a,b,c", randomize=False)
    hosts = [pool.next().url.host for _ in range(6)]
    assert hosts == ["a", "b", "c", "a", "b", "c"]


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(MisuseError):
        ServerPool([])


def test_announced_servers_join_with_the_scheme_of_the_current_one_and_leave_again() -> None:
    pool = ServerPool(["tls://a:1"], randomize=False)
    current = pool.next()
    added = pool.update_discovered(["b:2", "a:1", "[::1]:3"], current)
    assert [str(url) for url in added] == ["tls://b:2", "tls://[::1]:3"]
    assert pool.update_discovered(["b:2", "a:1", "[::1]:3"], current) == []
    pool.update_discovered(["c:4"], current)
    assert [str(server.url) for server in pool.servers] == ["tls://a:1", "tls://c:4"]
    assert pool.update_discovered([], current) == []
    assert len(pool) == 2


def test_an_announcement_that_is_no_address_is_passed_over() -> None:
    pool = ServerPool(["a:1"], randomize=False)
    added = pool.update_discovered(["[::2", "b:x", "b:" + "1" * 4301, "", "c:2"], pool.next())
    assert [str(url) for url in added] == ["nats://c:2"]


def test_the_server_in_use_stays_though_it_is_no_longer_announced() -> None:
    pool = ServerPool(["a:1"], randomize=False)
    pool.update_discovered(["b:2"], pool.next())
    current = pool.next()
    assert current.url.host == "b"
    pool.update_discovered(["c:3"], current)
    assert [server.url.host for server in pool.servers] == ["a", "b", "c"]


def test_removing_servers_keeps_the_last_one_and_the_place() -> None:
    pool = ServerPool("a,b,c", randomize=False)
    first = pool.next()
    pool.remove(first)
    assert [pool.next().url.host for _ in range(3)] == ["b", "c", "b"]
    for server in pool.servers:
        pool.remove(server)
    assert len(pool) == 1
