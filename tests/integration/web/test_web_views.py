"""What the web page shows and does as a user: streams, messages, publish, dead letters, schedules, Spark."""

from __future__ import annotations

import base64
import json
import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import penstock.sync
from penstock.protocol.durations import format_time
from tests.support.web_visits import WebVisit, web_server
from tests.support.wire import wait_until

pytestmark = pytest.mark.feature("monitoring.web")

HOSTILE = "orders.<script>alert(1)</script>"
NS_PER_MS = 1_000_000


class Site:
    """A server with an account's streams, and its user on the page."""

    def __init__(self, port: int, visit: WebVisit) -> None:
        self.port, self.visit = port, visit

    def visitor(self, user: str) -> WebVisit:
        one = WebVisit(self.visit.port)
        assert one.log_in(user).status == 200
        return one


def publish_orders(client: penstock.sync.Client) -> None:
    js = client.jetstream()
    js.create_stream("ORDERS", subjects=["orders.>"], allow_direct=True)
    js.create_stream("PLAIN", subjects=["plain.>"], allow_direct=False)
    js.create_stream("LETTERS", subjects=["letters.>"])
    js.create_stream("LATER", subjects=["later.>"], allow_msg_schedules=True)
    for number in range(120):
        headers = {"Trace": f"t-{number}", "Kind": "even" if number % 2 == 0 else "odd"}
        body = json.dumps({"number": number}).encode()
        js.publish(f"orders.{number % 3}", body, headers=headers)
        js.publish(f"plain.{number % 3}", body, headers=headers)
    js.publish(HOSTILE, b"<img src=x onerror=alert(1)>")
    js.publish("later.a", b"x", delay=3600)


def give_up(client: penstock.sync.Client, count: int) -> None:
    """Makes a consumer with dead letters give up that many orders."""
    js = client.jetstream()
    metadata = {"penstock.dead_letter": "letters.orders"}
    consumer = js.create_consumer("ORDERS", durable_name="billing", ack_policy="explicit", metadata=metadata)
    for msg in consumer.fetch(count, expires=5):
        msg.term("cannot parse")
    wait_until(lambda: js.stream_info("LETTERS").state.messages >= count, "the letters are stored")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with web_server(tmp_path_factory.mktemp("web")) as (server, visit):
        with penstock.sync.connect(f"nats://ann:secret@127.0.0.1:{server.port}") as client:
            publish_orders(client)
            give_up(client, 6)
        visit.log_in()
        yield Site(server.port, visit)


@pytest.fixture
def client(site: Site) -> Iterator[penstock.sync.Client]:
    with penstock.sync.connect(f"nats://ann:secret@127.0.0.1:{site.port}") as found:
        yield found


def test_the_overview_has_the_numbers_of_the_monitoring_pages(site: Site) -> None:
    shown, varz, jsz = (
        site.visit.view("overview"),
        site.visit.monitoring("varz"),
        site.visit.monitoring("jsz"),
    )
    for name in ("server_id", "connections", "in_msgs", "out_msgs", "subscriptions", "slow_consumers"):
        assert shown[name] <= varz[name] if name.endswith("_msgs") else shown[name] == varz[name]
    assert {name: shown["jetstream"][name] for name in ("streams", "consumers", "messages", "bytes")} == {
        name: jsz[name] for name in ("streams", "consumers", "messages", "bytes")
    }
    assert shown["health"]["status"] == "ok"


def test_streams_have_the_numbers_of_the_api(site: Site, client: penstock.sync.Client) -> None:
    found = site.visit.view("streams")
    rows = {row["name"]: row for row in found["rows"]}
    assert {"LATER", "LETTERS", "ORDERS", "PLAIN"} <= rows.keys()
    assert list(rows) == sorted(rows)
    assert found["total"] == len(rows)
    for name, row in rows.items():
        state = client.jetstream().stream_info(name).state
        assert (row["messages"], row["bytes"], row["first_seq"], row["last_seq"], row["consumers"]) == (
            state.messages, state.bytes, state.first_seq, state.last_seq, state.consumer_count,
        )  # fmt: skip


def test_streams_are_filtered_and_sliced(site: Site) -> None:
    found = site.visit.view("streams?filter=la")
    assert [row["name"] for row in found["rows"]] == ["LATER", "PLAIN"]
    found = site.visit.view("streams?filter=la&offset=1&limit=1")
    assert ([row["name"] for row in found["rows"]], found["total"]) == (["PLAIN"], 2)


def test_a_stream_shows_the_lag_of_its_consumers(site: Site, client: penstock.sync.Client) -> None:
    (row,) = site.visit.view("stream?stream=ORDERS")["rows"]
    info = client.jetstream().stream("ORDERS").consumer_info("billing")
    assert (row["name"], row["pending"], row["ack_pending"]) == (
        "billing",
        info.num_pending,
        info.num_ack_pending,
    )
    assert row["dead_letter"] == "letters.orders"


def test_another_account_is_not_seen(site: Site) -> None:
    bob = site.visitor("bob")
    assert bob.view("streams")["rows"] == []
    for view in ("stream", "messages", "message"):
        assert bob.ask(f"api/view/{view}?stream=ORDERS&seq=1").status == 404
    answer = bob.act("replay", {"stream": "LETTERS", "sequences": [1]})
    assert answer.status == 404


@pytest.mark.parametrize("stream", ["ORDERS", "PLAIN"])
@pytest.mark.parametrize("order", ["newest", "oldest"])
def test_browsing_reaches_every_message_once_in_order(site: Site, stream: str, order: str) -> None:
    seen: list[int] = []
    seq = ""
    for _ in range(10):
        found = site.visit.view(f"messages?stream={stream}&order={order}&limit=17{seq}")
        seen += [row["seq"] for row in found["rows"]]
        if not found["more"]:
            break
        seq = f"&seq={found['more']}"
    wanted = list(range(1, found["last_seq"] + 1))
    assert seen == (wanted[::-1] if order == "newest" else wanted)


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("order", ["newest", "oldest"])
def test_browsing_passes_gaps_and_rare_subjects(
    site: Site, client: penstock.sync.Client, direct: bool, order: str
) -> None:
    """Few of many sequences match, at distances that windows of any size must not skip."""
    js = client.jetstream()
    name = f"GAPS-{direct}-{order}"
    subject = name.lower()
    stream = js.create_stream(name, subjects=[f"{subject}.>"], allow_direct=direct)
    seed = random.randrange(2**32)
    draw = random.Random(seed)
    rare = []
    for seq in range(1, 400):
        is_rare = draw.random() < 0.15
        js.publish(f"{subject}.{'rare' if is_rare else 'common'}", b"")
        rare += [seq] if is_rare else []
    for seq in draw.sample(range(1, 400), 150):
        stream.delete_message(seq)
        rare = [one for one in rare if one != seq]
    limit = draw.randint(1, 2)
    seen: list[int] = []
    more: int | None = 0
    while more is not None:
        after = f"&seq={more}" if more else ""
        query = f"messages?stream={name}&order={order}&limit={limit}&subject={subject}.rare{after}"
        found = site.visit.view(query)
        seen += [row["seq"] for row in found["rows"]]
        more = found["more"] or None
    assert seen == (rare[::-1] if order == "newest" else rare), f"seed {seed}"


@pytest.mark.parametrize("stream", ["ORDERS", "PLAIN"])
@pytest.mark.parametrize("order", ["newest", "oldest"])
@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("subject={}.1", lambda number: number % 3 == 1),
        ("subject={}.*", lambda number: True),
        ("header=kind: odd", lambda number: number % 2 == 1),
        ("header=TRACE:t-7", lambda number: str(number).startswith("7")),
        ("header=None", lambda number: False),
        ('text="number": 11', lambda number: number == 11 or 110 <= number < 120),
        ("subject={}.2&header=Kind:even", lambda number: number % 6 == 2),
    ],
)
def test_filters_find_what_they_say(site: Site, stream: str, order: str, query: str, wanted: Any) -> None:
    words = quote(query.replace("{}", stream.lower()), safe="=&")
    found = site.visit.view(f"messages?stream={stream}&limit=100&order={order}&{words}")
    rows = [row for row in found["rows"] if row["subject"][-1] in "012"]  # other tests publish as well
    numbers = [json.loads(base64.b64decode(row["data"]))["number"] for row in rows]
    expected = [number for number in range(120) if wanted(number)]
    assert numbers == (expected[::-1] if order == "newest" else expected)[: len(numbers)]
    assert len(numbers) == len(expected) or len(found["rows"]) == 100


def test_times_bound_what_is_found(site: Site, client: penstock.sync.Client) -> None:
    stream = client.jetstream().stream("ORDERS")
    since, until = stream.get_message(10).time_ns, stream.get_message(20).time_ns
    found = site.visit.view(
        f"messages?stream=ORDERS&order=oldest&since={format_time(since)}&until={format_time(until)}"
    )
    sequences = [row["seq"] for row in found["rows"]]
    assert sequences
    assert all(since <= stream.get_message(seq).time_ns < until for seq in sequences)
    future = datetime.fromtimestamp(time.time() + 60, UTC).isoformat()
    assert site.visit.view(f"messages?stream=ORDERS&order=oldest&since={future[:19]}Z")["rows"] == []


def test_a_message_is_shown_as_it_is_stored(site: Site, client: penstock.sync.Client) -> None:
    row = site.visit.view("message?stream=ORDERS&seq=121")
    assert (row["subject"], base64.b64decode(row["data"])) == (HOSTILE, b"<img src=x onerror=alert(1)>")
    row = site.visit.view("message?stream=ORDERS&seq=1")
    assert row["headers"] == [["Trace", "t-0"], ["Kind", "even"]]


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("stream=NONE", 404), ("stream=", 400), ("stream=A.B", 400), ("stream=A%0d%0aPUB%20x%200", 400),
        ("stream=ORDERS&subject=a%20b", 400), ("stream=ORDERS&subject=a%0d%0aPUB%20x", 400),
        ("stream=ORDERS&seq=-1", 400), ("stream=ORDERS&order=sideways", 400),
        ("stream=ORDERS&since=noon", 400), ("stream=ORDERS&limit=x", 400),
    ],
)  # fmt: skip
def test_a_wrong_query_is_a_problem_and_no_fault(site: Site, query: str, status: int) -> None:
    answer = site.visit.ask(f"api/view/messages?{query}")
    assert answer.status == status, answer
    assert "error" in answer.json


def test_a_published_message_is_stored_as_the_user(site: Site, client: penstock.sync.Client) -> None:
    body = {"subject": "plain.new", "payload": "grüße", "headers": [["A", "1"], ["A", "2"]]}
    answer = site.visit.act("publish", body)
    assert answer.status == 200, answer
    stored = client.jetstream().stream("PLAIN").get_message(answer.json["seq"])
    assert (stored.subject, stored.data) == ("plain.new", "grüße".encode())
    assert stored.headers.get_all("A") == ["1", "2"]


def test_a_core_message_reaches_its_subscribers(site: Site, client: penstock.sync.Client) -> None:
    subscription = client.subscribe("core.x")
    client.flush()
    data = base64.b64encode(b"\x00\xff").decode()
    assert site.visit.act("publish", {"subject": "core.x", "data": data, "stored": False}).json == {
        "stream": None
    }
    assert subscription.next(5).data == b"\x00\xff"


@pytest.mark.parametrize("stored", [True, False])
def test_a_publish_that_the_user_may_not_make_is_refused(site: Site, stored: bool) -> None:
    answer = site.visitor("rita").act("publish", {"subject": "orders.x", "stored": stored})
    assert (answer.status, answer.json) == (403, {"error": "your user may not publish orders.x"})


def test_a_user_without_rights_to_the_api_sees_no_stream(site: Site) -> None:
    answer = site.visitor("nora").ask("api/view/streams")
    assert answer.status == 403
    assert "may not publish $JS.API.STREAM.NAMES" in answer.json["error"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"subject": "a b"}, 400), ({"subject": "a\r\nPUB x 0"}, 400), ({"subject": "a.*"}, 400),
        ({"subject": ""}, 400), ({"subject": "x", "data": "%%%"}, 400), ({"subject": "nobody.listens"}, 404),
        ({"subject": "plain.x", "headers": [["a\r\nb", "c"]]}, 400),
        ({"subject": "plain.x", "more": 1}, 400),
        ({"subject": "plain.x", "headers": [["a", "b\r\nc"]]}, 400),
        ({"subject": "plain.x", "headers": [["", "b"]]}, 400),
        ({"subject": "plain.x", "headers": [["a", "b"]] * 65}, 400),
        ({"subject": "plain.x", "payload": "\ud800"}, 400),
        ({"subject": "plain.x", "payload": "x" * 2_000_000}, 413), ([], 400),
    ],
)  # fmt: skip
def test_a_wrong_publish_is_a_problem_and_no_fault(site: Site, body: Any, status: int) -> None:
    answer = site.visit.act("publish", body)
    assert answer.status == status, answer


def test_nothing_is_written_where_the_page_is_read_only(tmp_path: Path) -> None:
    with web_server(tmp_path, writes=False) as (_, visit):
        assert visit.log_in().json["writes"] is False
        for action in ("publish", "replay", "cancel-schedule"):
            answer = visit.act(action, {"subject": "x"})
            assert answer.status == 403
            assert "allow_writes" in answer.json["error"]


def test_dead_letters_are_found_listed_and_replayed(site: Site, client: penstock.sync.Client) -> None:
    found = site.visit.view("dead-letters")
    assert found["streams"] == [{"name": "LETTERS", "sources": ["ORDERS > billing"]}]
    assert found["complete"]
    letters = {row["seq"]: row for row in found["rows"]}
    assert len(letters) == 6
    first = letters[min(letters)]
    assert (first["stream"], first["consumer"], first["subject"], first["sequence"]) == (
        "ORDERS",
        "billing",
        "orders.0",
        "1",
    )
    assert first["reason"] == "terminated: cannot parse"

    js = client.jetstream()
    before = js.stream_info("ORDERS").state.last_seq
    kept, removed = sorted(letters)[:2]
    answer = site.visit.act("replay", {"stream": "LETTERS", "sequences": [kept]})
    assert answer.json["results"] == [{"seq": kept, "stream": "ORDERS", "at": before + 1, "duplicate": False}]
    stored = js.stream("ORDERS").get_message(before + 1)
    assert (stored.subject, stored.data, stored.headers["Trace"]) == ("orders.0", b'{"number": 0}', "t-0")
    assert not [name for name in stored.headers if name.startswith("Penstock-Dead-Letter")]
    again = site.visit.act("replay", {"stream": "LETTERS", "sequences": [kept]}).json["results"]
    assert again == [{"seq": kept, "stream": "ORDERS", "at": before + 1, "duplicate": True}]

    site.visit.act("replay", {"stream": "LETTERS", "sequences": [removed], "remove": True})
    left = {row["seq"] for row in site.visit.view("dead-letters")["rows"]}
    assert left == set(letters) - {removed}


def test_a_replay_says_what_became_of_each_letter(site: Site, client: penstock.sync.Client) -> None:
    js = client.jetstream()
    plain = js.publish("letters.none", b"no letter").seq
    headers = {"Penstock-Dead-Letter-Stream": "GONE", "Penstock-Dead-Letter-Subject": "orders.9"}
    moved = js.publish("letters.moved", b"", headers=headers).seq
    headers["Penstock-Dead-Letter-Subject"] = "a b"
    broken = js.publish("letters.broken", b"", headers=headers).seq
    before = js.stream_info("ORDERS").state.last_seq
    sequences = [plain, moved, broken, 99999]
    results = site.visit.act("replay", {"stream": "LETTERS", "sequences": sequences, "remove": True}).json[
        "results"
    ]
    assert [one["seq"] for one in results] == sequences
    assert all("error" in one for one in results)
    assert js.stream_info("ORDERS").state.last_seq == before
    assert js.stream("LETTERS").get_message(moved).seq == moved
    assert site.visit.act("replay", {"stream": "LETTERS", "sequences": [1] * 101}).status == 400


def test_a_replay_needs_the_permissions_of_the_user(site: Site, client: penstock.sync.Client) -> None:
    seq = min(row["seq"] for row in site.visit.view("dead-letters")["rows"])
    results = site.visitor("rita").act("replay", {"stream": "LETTERS", "sequences": [seq]}).json["results"]
    assert [(one["seq"], one["error"][:30]) for one in results] == [(seq, "your user may not publish orde")]


def test_schedules_are_listed_and_cancelled_once(site: Site, client: penstock.sync.Client) -> None:
    found = site.visit.view("schedules")
    assert (found["streams"], found["total"]) == (["LATER"], 1)
    (row,) = found["rows"]
    assert row["target"] == "later.a"
    wanted = {"stream": "LATER", "subject": row["subject"], "seq": row["seq"]}
    other = client.jetstream().publish("later.plain", b"").seq
    assert site.visit.act("cancel-schedule", {**wanted, "seq": other}).status == 400
    assert site.visit.act("cancel-schedule", wanted).json == {"cancelled": True}
    assert site.visit.act("cancel-schedule", wanted).json == {"cancelled": False}
    assert site.visit.view("schedules")["rows"] == []


def test_connections_are_those_with_most_pending_bytes_first(
    site: Site, client: penstock.sync.Client
) -> None:
    found = site.visit.view("connections")
    names = [row.get("name") for row in found["rows"]]
    assert "penstock web page" in names
    assert found["max_pending"] == site.visit.monitoring("varz")["max_pending"]
    own = next(row for row in found["rows"] if row.get("name") == "penstock web page")
    assert own["ip"] == "127.0.0.1"
    assert site.visit.ask("api/view/connections?sort=colour").status == 400


def test_accounts_have_their_traffic(site: Site) -> None:
    rows = {row["acc"]: row for row in site.visit.view("accounts")["rows"]}
    assert {"A", "B", "SYS"} <= rows.keys()
    assert rows["A"]["received"]["msgs"] > 240
    assert [row["acc"] for row in site.visit.view("accounts?filter=sy")["rows"]] == ["SYS"]


def test_progress_of_spark_queries_is_shown_as_they_report_it(
    site: Site, client: penstock.sync.Client
) -> None:
    assert site.visit.view("spark")["rows"] == []
    offset = json.dumps({"v": 1, "streams": {}, "lag": {"ORDERS": 7, "PLAIN": 5}})
    report = {
        "id": "q1", "runId": "r", "name": "orders <b>", "batchId": 3, "timestamp": "2026-01-01T00:00:00.000Z",
        "numInputRows": 10, "inputRowsPerSecond": 5.5, "processedRowsPerSecond": 7.5,
        "durationMs": {"triggerExecution": 120},
        "sources": [{"description": "jetstream", "latestOffset": offset}],
    }  # fmt: skip
    client.publish("penstock.spark.progress.orders", json.dumps(report).encode())
    for strange in (b"", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"id": 1}'):
        client.publish("penstock.spark.progress.x", strange)
    client.flush()
    wait_until(lambda: site.visit.view("spark")["unreadable"] == 6, "all reports have arrived")
    (row,) = site.visit.view("spark")["rows"]
    assert (row["name"], row["batch"], row["lag"], row["batch_ms"]) == ("orders <b>", 3, 12, 120)


def test_the_cluster_view_answers_without_a_cluster(site: Site) -> None:
    found = site.visit.view("cluster")
    assert (found["cluster"], found["routes"], found["groups"]) == ({}, [], [])


def test_a_thousand_streams_come_in_slices(site: Site) -> None:
    with penstock.sync.connect(f"nats://bob:secret@127.0.0.1:{site.port}") as client:
        js = client.jetstream()
        for number in range(1000):
            js.create_stream(f"S{number:04}", subjects=[f"s.{number}"], storage="memory")
        bob = site.visitor("bob")
        sizes = []
        for offset in range(0, 1000, 100):
            answer = bob.ask(f"api/view/streams?offset={offset}&limit=100")
            assert [row["name"] for row in answer.json["rows"]] == [f"S{offset + at:04}" for at in range(100)]
            sizes.append(len(answer.body))
        assert max(sizes) < 100_000
        assert bob.view("streams?filter=S0999")["total"] == 1
        assert len(bob.view("streams?limit=100000")["rows"]) == 200
