"""Monitoring over HTTP, beside the official server: the same scenario, the same pages.

Claimed: keys and types of every page are the official ones, but for what KNOWN names; what is refused is
refused with the same status; sorting and paging show the same connections.
"""

from __future__ import annotations

import json
import select
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from penstock.server.monitoring.pages.page_options import PIECE, Page
from penstock.server.monitoring.pages.subsz import SubszOptions, subsz
from penstock.testing import server as embedded
from tests.support.certificates import make_certificates
from tests.support.nats_servers import OfficialServer, free_port, official_binary
from tests.support.rawnats import RawNats

pytestmark = pytest.mark.feature("monitoring.http")

Answer = tuple[int, str, str]

KNOWN_MISSING = {
    # features of the official implementation that aren't there to be told about
    "feature_flags", "disk_io_wait_stats",
    "num_cache", "num_matches", "cache_hit_rate", "max_fanout", "avg_fanout",
    "imports", "exports",
    "rtt",  # known only after the first PONG
}  # fmt: skip
KNOWN_MORE = {"push_bound", "rtt", "is_system", "last_active", "penstock_version"}


class Site:
    """One server with its monitoring port, and two clients of it."""

    def __init__(self, port: int, http_port: int) -> None:
        self.http_port = http_port
        self.first = RawNats(port, name="first", lang="raw", version="1")
        self.first.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
        self.first.request(
            "$JS.API.CONSUMER.CREATE.S.D",
            {"stream_name": "S", "config": {"durable_name": "D", "ack_policy": "explicit"}},
        )
        self.first.subscribe("x.*", 7)
        self.first.publish("x.1", b"12345")
        self.first.publish("s.1", b"12345")
        self.second = RawNats(port, name="second", lang="raw", version="1")
        for sid in range(1, 5):
            self.second.subscribe(f"y.{sid}", sid)
        for nats in (self.first, self.second):
            nats.request("$JS.API.INFO", {})
            # The official server notes the activity of a read when it has processed it, maybe after the
            # answer. A PONG shows that it did, before the activity of the other connection begins.
            nats.flush()

    def get(self, path: str) -> Answer:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/{path}", timeout=10) as answer:
                return answer.status, answer.headers["Content-Type"], answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.headers["Content-Type"], error.read().decode()

    def page(self, path: str) -> Any:
        status, kind, body = self.get(path)
        assert (status, kind) == (200, "application/json"), body
        return json.loads(body)

    def close(self) -> None:
        self.first.close()
        self.second.close()


@pytest.fixture(scope="module")
def ours() -> Iterator[Site]:
    with embedded(jetstream=True, http_port=-1) as running:
        monitor = running.server.monitor
        assert monitor is not None
        site = Site(running.port, monitor.port)
        yield site
        site.close()


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    http_port = free_port()
    directory: Path = tmp_path_factory.mktemp("official")
    running = OfficialServer(official_binary(), directory, ("-m", str(http_port)))
    running.start()
    site = Site(running.port, http_port)
    yield site
    site.close()
    running.stop()


PAGES = [
    "varz", "connz", "connz?subs=1", "connz?subs=detail&auth=1", "connz?state=any", "subsz",
    "subsz?subs=1&acc=$G", "subsz?subs=1&test=x.1", "accountz", "accountz?acc=$G", "accstatz",
    "accstatz?unused=1", "jsz", "jsz?accounts=1", "jsz?streams=1", "jsz?consumers=1&config=1",
    "jsz?acc=$G&streams=1", "jsz?acc=nobody", "jsz?accounts=1&offset=9", "healthz", "healthz?details=1",
    "healthz?js-enabled-only=1", "healthz?account=$G&stream=S&consumer=D", "leafz", "leafz?subs=1", "routez",
    "gatewayz", "connz?user=nobody", "connz?mqtt_client=nobody",
]  # fmt: skip


@pytest.mark.official
@pytest.mark.parametrize("path", PAGES)
def test_keys_and_types_are_those_of_the_official_server(ours: Site, official: Site, path: str) -> None:
    missing, more = compare(official.page(path), ours.page(path), "")
    assert {key.rsplit(".", 1)[-1] for key in missing} <= KNOWN_MISSING, missing
    assert {key.rsplit(".", 1)[-1] for key in more} <= KNOWN_MORE, more


def compare(theirs: Any, mine: Any, at: str) -> tuple[set[str], set[str]]:
    """Paths of keys that only they have, and that only we have; fails on different types."""
    missing: set[str] = set()
    more: set[str] = set()
    if isinstance(theirs, dict) and isinstance(mine, dict):
        if at.endswith("http_req_stats"):
            return missing, more
        missing |= {f"{at}.{key}" for key in theirs.keys() - mine.keys()}
        more |= {f"{at}.{key}" for key in mine.keys() - theirs.keys()}
        pairs = [(theirs[key], mine[key], f"{at}.{key}") for key in theirs.keys() & mine.keys()]
    elif isinstance(theirs, list) and isinstance(mine, list):
        pairs = [(theirs[-1], mine[-1], at)] if theirs and mine else []
        assert bool(theirs) == bool(mine) or at.endswith("imports"), at
    else:
        numbers = (int, float)
        same = type(theirs) is type(mine) or (isinstance(theirs, numbers) and isinstance(mine, numbers))
        assert same, f"{at}: {theirs!r} there, {mine!r} here"
        return missing, more
    for one, other, where in pairs:
        lower, upper = compare(one, other, where)
        missing |= lower
        more |= upper
    return missing, more


REFUSED = [
    "connz?sort=bogus", "connz?sort=stop", "connz?state=bogus", "connz?subs=bogus", "connz?offset=x",
    "connz?cid=x", "connz?auth=x", "subsz?test=foo..x", "subsz?limit=x", "accountz?acc=nobody",
    "accstatz?unused=x", "jsz?accounts=x", "jsz?limit=x", "jsz?leader-only=x", "healthz?stream=S",
    "healthz?account=$G&stream=X", "healthz?account=$G&stream=X&details=1", "healthz?consumer=D",
    "healthz?account=nobody", "healthz?details=x", "healthz?account=$G&stream=S&consumer=X", "routez?subs=x",
    "gatewayz?accs=x", "raftz", "nope",
]  # fmt: skip


@pytest.mark.official
@pytest.mark.parametrize("path", REFUSED)
def test_what_is_refused_there_is_refused_here_in_the_same_way(ours: Site, official: Site, path: str) -> None:
    status, kind, body = ours.get(path)
    their_status, their_kind, their_body = official.get(path)
    assert (status, kind) == (their_status, their_kind)
    if kind == "application/json" or "Error decoding" not in their_body:
        assert body.strip() == their_body.strip()
    else:
        assert body.startswith("Error decoding ")


@pytest.mark.official
@pytest.mark.parametrize(
    "query",
    ["sort=cid", "sort=start", "sort=subs", "sort=uptime", "sort=last", "limit=1", "offset=1", "offset=9",
     "limit=1&offset=1", "sort=msgs_from", "sort=bytes_to", "acc=$G", "limit=0", "offset=-1"],
)  # fmt: skip
def test_sorting_and_paging_show_the_same_connections(ours: Site, official: Site, query: str) -> None:
    mine, theirs = ours.page(f"connz?{query}"), official.page(f"connz?{query}")
    for key in ("num_connections", "total", "offset", "limit"):
        assert mine[key] == theirs[key], key
    names = [[entry["name"] for entry in page["connections"]] for page in (mine, theirs)]
    assert names[0] == names[1]


@pytest.mark.official
@pytest.mark.parametrize("kind", ["ours", "official"])
def test_messages_and_subscriptions_are_activity_and_pings_are_not(
    kind: str, request: pytest.FixtureRequest
) -> None:
    site: Site = request.getfixturevalue(kind)
    port = site.first.sock.getpeername()[1]
    taker, sender = RawNats(port, name="taker"), RawNats(port, name="sender")

    def activity() -> str:
        # A read of the official server is over, and noted, when the next one is answered.
        taker.flush()
        taker.flush()
        (found,) = [one for one in site.page("connz")["connections"] if one["name"] == "taker"]
        return str(found["last_activity"])

    seen = [activity()]
    taker.flush()
    assert activity() == seen[0]
    taker.subscribe("activity", 1)
    seen.append(activity())
    sender.publish("activity", b"x")
    taker.message()
    seen.append(activity())
    taker.publish("other", b"x")
    seen.append(activity())
    taker.send(b"UNSUB 1\r\n")
    seen.append(activity())
    assert activity() == seen[-1]
    assert len(set(seen)) == len(seen) and sorted(seen, key=datetime.fromisoformat) == seen
    for nats in (taker, sender):
        nats.close()
    deadline = time.monotonic() + 10
    while site.page("connz")["num_connections"] > 2:  # which other tests count
        assert time.monotonic() < deadline


def test_a_page_is_indented_and_open_to_every_origin(ours: Site) -> None:
    url = f"http://127.0.0.1:{ours.http_port}/varz?callback=x"
    with urllib.request.urlopen(url, timeout=10) as answer:
        assert answer.headers["Access-Control-Allow-Origin"] == "*"
        assert answer.read().startswith(b'{\n  "server_id": "N')


def test_the_index_links_to_every_page(ours: Site) -> None:
    status, kind, body = ours.get("")
    assert (status, kind) == (200, "text/html; charset=utf-8")
    for path in ("varz", "connz", "subsz", "accountz", "accstatz", "jsz", "healthz", "leafz", "routez"):
        assert f"href=/{path}>" in body
        assert ours.get(path)[0] == 200


def test_one_connection_is_found_by_its_number(ours: Site) -> None:
    (second,) = [entry for entry in ours.page("connz")["connections"] if entry["name"] == "second"]
    page = ours.page(f"connz?cid={second['cid']}")
    assert (page["num_connections"], page["total"], page["limit"]) == (1, 2, 1)
    assert page["connections"][0]["name"] == "second"


def test_pages_lie_below_the_base_path() -> None:
    with embedded(http_port=-1, http_base_path="/nats/") as running:
        monitor = running.server.monitor
        assert monitor is not None
        base = f"http://127.0.0.1:{monitor.port}"
        with urllib.request.urlopen(f"{base}/nats/varz", timeout=10) as answer:
            assert json.load(answer)["http_base_path"] == "/nats/"
        with urllib.request.urlopen(f"{base}/nats/", timeout=10) as answer:
            assert b"href=/nats/varz>" in answer.read()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{base}/varz", timeout=10)


def test_a_long_page_lets_other_work_in_between() -> None:
    with embedded() as running:
        nats = RawNats(running.port)
        for sid in range(1, 10 * PIECE + 1):
            nats.subscribe(f"many.{sid}", sid)
        nats.request("$SYS.REQ.USER.INFO", {})

        async def steps() -> tuple[int, Page]:
            in_flight = subsz(running.server, SubszOptions(subscriptions=True, test="many.7"))
            count = 0
            while True:
                try:
                    next(in_flight)
                except StopIteration as done:
                    return count, done.value
                count += 1

        count, page = running.run(steps())
        nats.close()
    assert count >= 10
    assert [entry["subject"] for entry in page["subscriptions_list"]] == ["many.7"]


def test_scrapers_that_do_not_read_delay_no_client() -> None:
    """Large answers wait for their readers in the thread; a request meanwhile is answered at once."""
    with embedded(http_port=-1) as running:
        nats = RawNats(running.port)
        for sid in range(1, 20_001):
            nats.subscribe(f"many.{sid}", sid)
        nats.flush()
        assert running.server.monitor is not None
        scrapers = []
        for _ in range(8):
            scraper = socket.socket()
            scraper.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            scraper.connect(("127.0.0.1", running.server.monitor.port))
            scraper.sendall(b"GET /subsz?subs=1&limit=100000 HTTP/1.1\r\nHost: h\r\n\r\n")
            scrapers.append(scraper)
        started, longest, answered = time.monotonic(), 0.0, 0
        while len([one for one in scrapers if select.select([one], [], [], 0)[0]]) < len(scrapers):
            before = time.monotonic()
            assert before - started < 60
            nats.flush()
            answered += 1
            longest = max(longest, time.monotonic() - before)
        for _ in range(100):  # all of them have begun to get an answer, and read nothing of it
            nats.flush()
        for scraper in scrapers:
            scraper.close()
        nats.close()
    assert answered > 8
    assert longest < 5.0  # a loop that waited for a reader would wait for good


def test_pages_come_over_https(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    ports = tmp_path / "ports"
    ports.mkdir()
    with embedded(https_port=-1, tls=certificates.options(verify=True), ports_file_dir=str(ports)):
        context = certificates.client_context()
        (file,) = ports.iterdir()
        (url,) = json.loads(file.read_text())["monitoring"]
        assert url.startswith("https://127.0.0.1:")
        with urllib.request.urlopen(f"{url}/varz", context=context, timeout=10) as answer:
            page = json.load(answer)
    assert (page["http_port"], page["https_port"]) == (0, int(url.rsplit(":", 1)[1]))
