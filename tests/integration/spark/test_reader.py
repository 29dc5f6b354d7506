"""The range reader against real servers: penstock, and the official one where there is one. No JVM here."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from penstock import errors, testing
from penstock.protocol import api
from penstock.protocol.arrow_columns import record_batch
from penstock.spark import range_sessions
from penstock.spark.driver import Driver
from penstock.spark.offsets import DataLossError, SequenceRange, StreamBounds
from penstock.spark.range_sessions import sequence_at_time, stream_bounds
from penstock.spark.reader import RangeReader
from penstock.spark.source_options import SourceOptions
from penstock.spark.wire import BlockingConnection
from tests.support.nats_servers import running_server
from tests.support.spark import Feed

pytestmark = pytest.mark.feature("spark.read")

SCHEMA = pa.schema(
    [
        pa.field("subject", pa.string(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("time", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("headers", pa.map_(pa.string(), pa.list_(pa.string())), nullable=False),
        pa.field("data", pa.binary(), nullable=False),
    ]
)


_stream_number = iter(range(1_000_000))


@pytest.fixture
def stream(feed: Feed) -> Iterator[str]:
    """An empty stream of its own; its subjects start with its name."""
    name = f"S{next(_stream_number)}"
    feed.create(name, [f"{name}.>"], allow_direct=True)
    yield name
    feed.api(f"STREAM.DELETE.{name}")


def options_for(port: int, stream: str, **given: object) -> SourceOptions:
    texts = {key: str(value) for key, value in given.items() if value}
    return SourceOptions.parse(
        {"servers": f"127.0.0.1:{port}", "stream": stream, "retrySeconds": "5", **texts}
    )


def bounds_now(options: SourceOptions) -> StreamBounds:
    with BlockingConnection.open(options.connection) as connection:
        return stream_bounds(connection, options.streams[0])


def whole(options: SourceOptions) -> SequenceRange:
    bounds = bounds_now(options)
    return SequenceRange(bounds.name, bounds.created, bounds.first_seq, bounds.last_seq + 1)


def reader(options: SourceOptions, span: SequenceRange | None = None) -> RangeReader:
    return RangeReader(options, span or whole(options), SCHEMA.names)


def rows(source: RangeReader) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for count, buffers in source.batches():
        batch = record_batch(SCHEMA, count, buffers, stream="")
        batch.validate(full=True)
        found += batch.to_pylist()
    return found


def sequences(source: RangeReader) -> list[int]:
    return [row["seq"] for row in rows(source)]  # type: ignore[misc]


both_ways = pytest.mark.parametrize("access", ["consumer", "direct"])


def numbered(stream: str, count: int, subjects: int = 3) -> list[tuple[str, bytes]]:
    return [(f"{stream}.{i % subjects}", b"%d" % i) for i in range(count)]


@both_ways
def test_every_message_comes_once_and_in_order(feed: Feed, stream: str, access: str) -> None:
    feed.publish(numbered(stream, 3000))
    found = rows(reader(options_for(feed.port, stream, access=access, batchRows=700, pullRecords=333)))
    assert [row["seq"] for row in found] == list(range(1, 3001))
    assert [(row["subject"], row["data"]) for row in found] == numbered(stream, 3000)
    times = [row["time"] for row in found]
    assert times == sorted(times)  # type: ignore[type-var]
    assert feed.consumers(stream) == 0


@both_ways
def test_a_range_is_read_to_its_end_and_not_beyond(feed: Feed, stream: str, access: str) -> None:
    feed.publish(numbered(stream, 100))
    options = options_for(feed.port, stream, access=access)
    span = whole(options)
    for start, end in ((1, 2), (5, 50), (50, 101), (100, 101), (7, 7)):
        part = SequenceRange(stream, span.created, start, end)
        assert sequences(reader(options, part)) == list(range(start, end))


def test_filters_pick_their_subjects(feed: Feed, stream: str) -> None:
    feed.publish(numbered(stream, 300, subjects=10))
    one = options_for(feed.port, stream, subject=f"{stream}.3")
    assert sequences(reader(one)) == list(range(4, 301, 10))
    several = options_for(feed.port, stream, subject=f"{stream}.3, {stream}.9", pullRecords=7)
    assert sequences(reader(several)) == sorted([*range(4, 301, 10), *range(10, 301, 10)])
    wild = options_for(feed.port, stream, subject=f"{stream}.*")
    assert len(sequences(reader(wild))) == 300
    nothing = options_for(feed.port, stream, subject=f"{stream}.none")
    assert sequences(reader(nothing)) == []


@both_ways
def test_a_filter_whose_last_match_is_far_before_the_end_does_not_wait(
    feed: Feed, stream: str, access: str
) -> None:
    feed.publish([(f"{stream}.a", b"1"), *[(f"{stream}.b", b"2")] * 50])
    options = options_for(feed.port, stream, access=access, subject=f"{stream}.a")
    assert sequences(reader(options)) == [1]
    span = whole(options)
    feed.publish([(f"{stream}.a", b"beyond the planned end")])
    assert sequences(reader(options, span)) == [1]


@both_ways
def test_an_empty_stream_has_no_rows(feed: Feed, stream: str, access: str) -> None:
    options = options_for(feed.port, stream, access=access)
    span = whole(options)
    assert (span.start, span.end) == (1, 1)
    assert sequences(reader(options, span)) == []


@both_ways
def test_deleted_sequences_are_passed_over(feed: Feed, stream: str, access: str) -> None:
    feed.publish(numbered(stream, 60))
    options = options_for(feed.port, stream, access=access)
    span = whole(options)
    gone = [2, 3, 4, 30, 59, 60]
    for seq in gone:
        feed.api(f"STREAM.MSG.DELETE.{stream}", {"seq": seq})
    assert sequences(reader(options, span)) == [s for s in range(1, 61) if s not in gone]


@both_ways
def test_a_range_of_nothing_but_deleted_sequences_is_empty(feed: Feed, stream: str, access: str) -> None:
    feed.publish(numbered(stream, 20))
    options = options_for(feed.port, stream, access=access)
    span = whole(options)
    for seq in range(5, 11):
        feed.api(f"STREAM.MSG.DELETE.{stream}", {"seq": seq})
    assert sequences(reader(options, SequenceRange(stream, span.created, 5, 11))) == []


@both_ways
def test_a_purged_start_is_a_loss_or_is_passed_over_as_the_option_says(
    feed: Feed, stream: str, access: str
) -> None:
    feed.publish(numbered(stream, 50))
    strict = options_for(feed.port, stream, access=access)
    span = whole(strict)
    feed.api(f"STREAM.PURGE.{stream}", {"seq": 21})
    with pytest.raises(DataLossError, match="first sequence is now 21"):
        sequences(reader(strict, span))
    lenient = options_for(feed.port, stream, access=access, failOnDataLoss="false")
    assert sequences(reader(lenient, span)) == list(range(21, 51))
    assert sequences(reader(strict)) == list(range(21, 51))


@both_ways
@pytest.mark.parametrize("filters", [{}, {"subject": "*.none"}])
def test_a_lost_end_is_a_loss_or_is_passed_over_as_the_option_says(
    feed: Feed, stream: str, access: str, filters: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_sessions, "SETTLE_S", 0.0)
    feed.publish(numbered(stream, 50))
    strict = options_for(feed.port, stream, access=access, **filters)
    planned = replace(whole(strict), end=61)  # of a server that lost what it had not synced
    with pytest.raises(DataLossError, match="last sequence is now 50"):
        sequences(reader(strict, planned))
    lenient = options_for(feed.port, stream, access=access, failOnDataLoss="false", **filters)
    assert sequences(reader(lenient, planned)) == ([] if filters else list(range(1, 51)))


@both_ways
def test_a_stream_that_loses_its_end_while_it_is_read_is_a_loss(
    feed: Feed, stream: str, access: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed.publish(numbered(stream, 50))
    options = options_for(feed.port, stream, access=access)
    planned = replace(whole(options), end=61)
    now = bounds_now(options)
    answers = [replace(now, last_seq=60), now]
    monkeypatch.setattr(range_sessions, "SETTLE_S", 0.0)
    monkeypatch.setattr(range_sessions, "stream_bounds", lambda *_: answers.pop(0))
    with pytest.raises(
        DataLossError, match="sequences 51 to 60 were to be read: its last sequence is now 50"
    ):
        sequences(reader(options, planned))


@both_ways
def test_a_leader_without_its_last_messages_gets_time_to_apply_them(
    feed: Feed, stream: str, access: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed.publish(numbered(stream, 50))
    options = options_for(feed.port, stream, access=access)
    now = bounds_now(options)
    answers = [replace(now, last_seq=40), replace(now, last_seq=45), now, now, now]
    monkeypatch.setattr(range_sessions, "SETTLE_PAUSE_S", 0.0)
    monkeypatch.setattr(range_sessions, "stream_bounds", lambda *_: answers.pop(0))
    assert sequences(reader(options, whole(options))) == list(range(1, 51))


def test_a_recreated_stream_is_not_the_one_that_was_planned(feed: Feed) -> None:
    feed.create("ANEW", ["anew"])
    feed.publish([("anew", b"old")] * 5)
    strict = options_for(feed.port, "ANEW")
    span = whole(strict)
    feed.api("STREAM.DELETE.ANEW")
    feed.create("ANEW", ["anew"])
    feed.publish([("anew", b"new")] * 5)
    with pytest.raises(DataLossError, match="recreated"):
        sequences(reader(strict, span))
    assert sequences(reader(options_for(feed.port, "ANEW", failOnDataLoss="false"), span)) == []
    feed.api("STREAM.DELETE.ANEW")


@both_ways
def test_headers_are_read_with_all_their_values(feed: Feed, stream: str, access: str) -> None:
    block = b"NATS/1.0\r\nNats-Msg-Id: 7\r\nA: 1\r\nA: 2\r\n\r\n"
    feed.publish([(f"{stream}.h", b"with", block), (f"{stream}.h", b"without")])
    first, second = rows(reader(options_for(feed.port, stream, access=access)))
    assert dict(first["headers"]) == {"Nats-Msg-Id": ["7"], "A": ["1", "2"]}  # type: ignore[call-overload]
    assert (second["headers"], second["data"]) == ([], b"without")


def test_payloads_that_no_column_needs_are_not_sent(feed: Feed, stream: str) -> None:
    feed.publish([(f"{stream}.x", b"p" * 1000)] * 10)
    options = options_for(feed.port, stream)
    source = RangeReader(options, whole(options), ["seq", "subject"])
    assert [count for count, _ in source.batches()] == [10]
    assert source.builder.delivered == 10


@both_ways
def test_large_messages_are_cut_into_batches_by_bytes(feed: Feed, stream: str, access: str) -> None:
    feed.publish([(f"{stream}.x", bytes([i]) * 300_000) for i in range(12)])
    source = reader(options_for(feed.port, stream, access=access, batchBytes=500_000))
    found = []
    for count, buffers in source.batches():
        assert count <= 2
        found += [r["data"][:1] for r in record_batch(SCHEMA, count, buffers, stream="").to_pylist()]
    assert found == [bytes([i]) for i in range(12)]


def test_a_consumer_deleted_on_the_way_is_replaced_and_no_row_is_lost_or_repeated(
    feed: Feed, stream: str
) -> None:
    feed.publish(numbered(stream, 4000))
    source = reader(options_for(feed.port, stream, batchRows=50, pullRecords=100))
    found: list[int] = []
    for count, buffers in source.batches():
        found += record_batch(SCHEMA, count, buffers, stream="").column("seq").to_pylist()
        if len(found) in (500, 2000):
            for name in feed.api(f"CONSUMER.NAMES.{stream}")["consumers"]:
                feed.api(f"CONSUMER.DELETE.{stream}.{name}")
    assert found == list(range(1, 4001))


class CuttingProxy:
    """Between reader and server; cuts each connection after its share of bytes from the server."""

    def __init__(self, port: int, budgets: list[int]) -> None:
        self.target = port
        self.budgets = budgets
        self.cuts = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listener.getsockname()[1])
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self.target))
            budget = self.budgets.pop(0) if self.budgets else 1 << 40
            threading.Thread(target=self.pump, args=(near, far, 1 << 40), daemon=True).start()
            threading.Thread(target=self.pump, args=(far, near, budget), daemon=True).start()

    def pump(self, source: socket.socket, target: socket.socket, budget: int) -> None:
        try:
            while budget > 0 and (data := source.recv(min(budget, 65536))):
                target.sendall(data)
                budget -= len(data)
            self.cuts += budget == 0
        except OSError:
            pass
        finally:
            for sock in (source, target):
                with contextlib.suppress(OSError):  # already gone
                    sock.shutdown(socket.SHUT_RDWR)
                sock.close()

    def close(self) -> None:
        self.listener.close()


@both_ways
def test_connections_cut_at_any_byte_lose_and_repeat_nothing(feed: Feed, stream: str, access: str) -> None:
    feed.publish(numbered(stream, 3000))
    chance = random.Random(7)
    proxy = CuttingProxy(feed.port, [chance.randrange(1, 40_000) for _ in range(12)])
    direct = options_for(feed.port, stream, access=access)
    source = reader(
        options_for(proxy.port, stream, access=access, batchRows=64, pullRecords=200), whole(direct)
    )
    try:
        assert sequences(source) == list(range(1, 3001))
    finally:
        proxy.close()
    assert proxy.cuts >= 5


def test_a_server_that_stays_away_fails_the_task_with_the_cause(feed: Feed, stream: str) -> None:
    feed.publish(numbered(stream, 10))
    span = whole(options_for(feed.port, stream))
    with socket.create_server(("127.0.0.1", 0)) as probe:
        unused = int(probe.getsockname()[1])
    options = options_for(unused, stream, retrySeconds="0.2")
    with pytest.raises(errors.NoServersError, match=f"127.0.0.1:{unused}"):
        sequences(reader(options, span))


def test_a_stream_that_is_not_there_is_said_so_at_once(feed: Feed) -> None:
    options = options_for(feed.port, "NOSUCH")
    with pytest.raises(errors.StreamNotFoundError, match="stream not found"):
        sequences(reader(options, SequenceRange("NOSUCH", "", 1, 5)))


def test_the_sequence_at_a_time_is_the_first_at_or_after_it(feed: Feed, stream: str) -> None:
    feed.publish(numbered(stream, 5))
    options = options_for(feed.port, stream)
    third = rows(reader(options))[2]["time"]
    with BlockingConnection.open(options.connection) as connection:
        assert sequence_at_time(connection, stream, "2001-01-01T00:00:00Z") == 1
        assert sequence_at_time(connection, stream, "2199-01-01T00:00:00Z") == 6
        at = third.strftime("%Y-%m-%dT%H:%M:%S.%fZ")  # type: ignore[attr-defined]
        assert sequence_at_time(connection, stream, at) in (1, 2, 3)  # its nanoseconds are cut off
    assert feed.consumers(stream) == 0


def test_a_wrong_password_is_refused_with_words_about_the_options() -> None:
    with testing.server(jetstream=True, user="ada", password="secret") as server:
        for given in ({}, {"user": "ada", "password": "wrong"}, {"token": "t"}):
            options = options_for(server.port, "S", **given)
            with pytest.raises(errors.AuthorizationError, match="check the options user, password"):
                BlockingConnection.open(options.connection)
        good = options_for(server.port, "S", user="ada", password="secret")
        BlockingConnection.open(good.connection).close()


def test_direct_reads_of_a_stream_that_allows_none_say_what_to_change(feed: Feed) -> None:
    feed.create("NODIRECT", ["nodirect"], allow_direct=False)
    feed.publish([("nodirect", b"x")])
    with pytest.raises(errors.JetStreamApiError, match="set its allow_direct"):
        sequences(reader(options_for(feed.port, "NODIRECT", access="direct")))
    feed.api("STREAM.DELETE.NODIRECT")


@pytest.mark.official
def test_a_work_queue_is_read_directly_without_taking_anything_from_it(tmp_path: Path) -> None:
    with running_server("official", tmp_path) as server:
        feed, port = Feed(server.port), server.port
        feed.create("QUEUE", ["queue"], allow_direct=True, retention="workqueue")
        feed.publish([("queue", b"x")] * 20)
        assert sequences(reader(options_for(port, "QUEUE", access="direct"))) == list(range(1, 21))
        with pytest.raises(errors.JetStreamApiError, match="workqueue stream"):  # the driver gives advice
            sequences(reader(options_for(port, "QUEUE")))
        assert feed.api("STREAM.INFO.QUEUE")["state"]["messages"] == 20
        feed.close()


def lagging(monkeypatch: pytest.MonkeyPatch, answers: int) -> list[str]:
    """The next infos of streams are those of a member that has nothing yet, of a group without a leader."""
    asked: list[str] = []
    ask = BlockingConnection.api

    def api_of_member(self: BlockingConnection, kind: type, endpoint: str, body: object = None) -> object:
        answer = ask(self, kind, endpoint, body)
        if endpoint.startswith("STREAM.INFO.") and len(asked) < answers:
            asked.append(endpoint)
            answer.state = api.StreamState()
            answer.cluster = api.ClusterInfo(name="c")
        return answer

    monkeypatch.setattr(BlockingConnection, "api", api_of_member)
    return asked


@both_ways
def test_a_member_that_lags_does_not_say_what_a_stream_without_a_leader_has(
    feed: Feed, stream: str, access: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed.publish(numbered(stream, 40))
    options = options_for(feed.port, stream, access=access)
    span = whole(options)
    asked = lagging(monkeypatch, 2)
    assert sequences(reader(options, span)) == list(range(1, 41))
    assert len(asked) == 2
    driver, asked = Driver(options), lagging(monkeypatch, 2)
    assert driver.bounds()[stream].last_seq == 40
    assert len(asked) == 2
    driver.close()
