"""The pipelines between streams and Spark: run twice, broken off, and none loses or doubles a message."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock import errors
from penstock.cli.main import main
from penstock.spark.pipelines import archive as archive_module
from penstock.spark.pipelines.archive import archive, totals_of
from penstock.spark.pipelines.dead_letter_tools import analyse, redrive
from penstock.spark.pipelines.enrich import Enriched, JoinSide, enrich
from penstock.spark.pipelines.manifest import Manifest
from penstock.spark.pipelines.replay import archived, replay, table
from penstock.spark.pipelines.stats import statistics
from tests.support.spark import Feed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.feature("spark.pipelines", "cli.pipelines")]
# What does not depend on the server is tried on one.
OURS = pytest.mark.parametrize("server_kind", ["penstock"], indirect=True)

_names = (f"PIPE{n}" for n in itertools.count())


@pytest.fixture(scope="module", name="spark")
def own_session(spark: SparkSession) -> SparkSession:
    """What is registered and set in it is so nowhere else."""
    return spark.newSession()


class FilledStream:
    """A stream with numbered messages, and how to reach it."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.name = next(_names)
        self.options = {"servers": f"127.0.0.1:{feed.port}"}
        self.count = 0
        feed.create(self.name, [f"{self.name}.>"])

    def publish(self, count: int) -> None:
        header = b"NATS/1.0\r\nKind: test\r\n\r\n"
        numbers = range(self.count, self.count + count)
        self.feed.publish((f"{self.name}.s{i % 3}", b"%d" % i, header) for i in numbers)
        self.count += count

    def delete(self, seq: int) -> None:
        self.feed.api(f"STREAM.MSG.DELETE.{self.name}", {"seq": seq})

    def state(self) -> dict[str, int]:
        state: dict[str, int] = self.feed.api(f"STREAM.INFO.{self.name}")["state"]
        return state


@pytest.fixture
def origin(feed: Feed) -> FilledStream:
    return FilledStream(feed)


def numbers(frame: object) -> list[int]:
    return sorted(int(row.data) for row in frame.select("data").collect())  # type: ignore[attr-defined]


def test_an_archive_grows_by_what_is_new_and_joins_its_stream_without_a_seam(
    spark: SparkSession, origin: FilledStream, tmp_path: Path
) -> None:
    path = str(tmp_path / "archive")
    origin.publish(25)
    origin.delete(4)
    first = archive(spark, origin.name, path, origin.options, range_records=10)
    assert [(e.start, e.end, e.totals.rows) for e in first.entries] == [(1, 11, 9), (11, 21, 10), (21, 26, 5)]
    assert archive(spark, origin.name, path, origin.options).entries == ()
    origin.publish(5)
    assert numbers(table(spark, origin.name, path, origin.options)) == [n for n in range(30) if n != 3]
    second = archive(spark, origin.name, path, origin.options, purge=True)
    assert ([e.start for e in second.entries], second.rows, second.purged) == ([26], 5, 29)
    assert origin.state()["messages"] == 0
    cold = archived(spark, path)
    assert numbers(cold) == [n for n in range(30) if n != 3]
    assert cold.where("headers['Kind'][0] = 'test' and subject like '%.s1'").count() == 10
    origin.publish(3)
    both = table(spark, origin.name, path, origin.options)
    assert numbers(both) == [n for n in range(33) if n != 3]
    assert totals_of(both.where("seq <= 30")).hash == totals_of(cold).hash


@OURS
def test_a_run_that_fails_leaves_whole_ranges_and_the_next_one_goes_on(
    spark: SparkSession, origin: FilledStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "archive")
    origin.publish(20)
    totals, calls = archive_module.totals_of, []

    def damaged(frame: object) -> object:
        calls.append(frame)
        found = totals(frame)  # type: ignore[arg-type]
        return found if len(calls) == 1 else type(found)(found.rows - 1, found.bytes, found.hash)

    monkeypatch.setattr(archive_module, "totals_of", damaged)
    with pytest.raises(errors.JetStreamError, match="does not hold what was read"):
        archive(spark, origin.name, path, origin.options, range_records=10, purge=True)
    monkeypatch.undo()
    assert origin.state()["messages"] == 20
    assert numbers(archived(spark, path)) == list(range(10))
    again = archive(spark, origin.name, path, origin.options, range_records=10)
    assert ([e.start for e in again.entries], again.strays) == ([11], 1)
    assert numbers(archived(spark, path)) == list(range(20))


@OURS
def test_what_would_lose_messages_is_refused(
    spark: SparkSession, origin: FilledStream, tmp_path: Path
) -> None:
    path = str(tmp_path / "archive")
    with pytest.raises(errors.MisuseError, match="holds no archive"):
        archived(spark, path)
    origin.publish(10)
    durable = {"durable_name": "slow", "ack_policy": "explicit"}
    origin.feed.api(
        f"CONSUMER.DURABLE.CREATE.{origin.name}.slow", {"stream_name": origin.name, "config": durable}
    )
    with pytest.raises(errors.MisuseError, match=r"consumers of stream .* slow \(acked up to 0\)"):
        archive(spark, origin.name, path, origin.options, purge=True)
    assert archive(spark, origin.name, path, origin.options, purge=True, force=True).purged == 10
    origin.publish(5)
    origin.feed.api(f"STREAM.PURGE.{origin.name}", {"seq": 14})
    with pytest.raises(errors.JetStreamError, match="removed before it was archived"):
        archive(spark, origin.name, path, origin.options)
    with pytest.raises(errors.JetStreamError, match="messages are missing"):
        table(spark, origin.name, path, origin.options)
    origin.feed.api(f"STREAM.DELETE.{origin.name}")
    origin.feed.create(origin.name, [f"{origin.name}.>"])
    with pytest.raises(errors.JetStreamError, match="was recreated"):
        archive(spark, origin.name, path, origin.options)
    entries = Manifest(spark, path)
    file = tmp_path / "archive" / "manifest" / f"{1:020d}.json"
    file.write_text("{}")
    file.with_name(f".{file.name}.crc").unlink()
    with pytest.raises(errors.ConfigError, match="is no entry of an archive"):
        entries.entries()


def test_an_archive_is_replayed_once_and_in_order_however_often(
    spark: SparkSession, origin: FilledStream, tmp_path: Path
) -> None:
    path = str(tmp_path / "archive")
    origin.publish(30)
    archive(spark, origin.name, path, origin.options, range_records=12)
    target = next(_names)
    origin.feed.create(target, [f"{target}.>"])
    for _ in range(2):
        done = replay(
            spark, path, target, origin.options, subject=f"{target}.{{seq}}", where="subject not like '%.s2'"
        )
        assert done.rows == 20
    found = spark.read.format("jetstream").options(**origin.options, includeHeaders="true").load(target)
    rows = found.orderBy("seq").collect()
    assert [int(row.data) for row in rows] == [n for n in range(30) if n % 3 != 2]
    assert rows[1].subject == f"{target}.2"
    assert rows[1].headers["Penstock-Origin"] == [f"{origin.name}:2"]
    assert rows[1].headers["Kind"] == ["test"]


@OURS
def test_dead_letters_are_counted_and_go_back_where_they_came_from(
    spark: SparkSession, origin: FilledStream
) -> None:
    letters = next(_names)
    origin.feed.create(letters, [f"{letters}.>"])
    facts = b"".join(
        b"Penstock-Dead-Letter-%s: %s\r\n" % pair
        for pair in (
            (b"Stream", origin.name.encode()),
            (b"Consumer", b"C"),
            (b"Subject", f"{origin.name}.again".encode()),
            (b"Sequence", b"7"),
            (b"Deliveries", b"3"),
        )
    )
    for reason in (b"max_deliver", b"terminated", b"max_deliver"):
        block = b"NATS/1.0\r\nOwn: kept\r\n" + facts + b"Penstock-Dead-Letter-Reason: " + reason + b"\r\n\r\n"
        origin.feed.publish([(f"{letters}.x", reason, block)])
    origin.feed.publish([(f"{letters}.other", b"no letter")])
    by_reason = {
        row.reason: row.messages for row in analyse(spark, letters, origin.options)["by_reason"].collect()
    }
    assert by_reason == {"max_deliver": 2, "terminated": 1}
    for removed in (False, True):
        done = redrive(spark, letters, origin.options, where="reason = 'max_deliver'", remove=removed)
        assert (done.messages, done.removed) == ({origin.name: 2}, 2 if removed else 0)
        assert origin.state()["messages"] == 2
    back = spark.read.format("jetstream").options(**origin.options, includeHeaders="true").load(origin.name)
    row = back.collect()[0]
    assert (row.subject, bytes(row.data)) == (f"{origin.name}.again", b"max_deliver")
    assert row.headers["Own"] == ["kept"]
    assert not [name for name in row.headers if name.startswith("Penstock-Dead-Letter")]
    assert origin.feed.api(f"STREAM.INFO.{letters}")["state"]["messages"] == 2


@OURS
def test_statistics_count_rates_subjects_gaps_and_latencies(
    spark: SparkSession, origin: FilledStream
) -> None:
    sent = b"NATS/1.0\r\nSent: 2001-01-01T00:00:00Z\r\n\r\n"
    origin.feed.publish((f"{origin.name}.s{i % 4 // 3}", b"xx", sent) for i in range(40))
    origin.delete(7)
    origin.delete(8)
    found = statistics(spark, origin.name, origin.options, top=1, latency_header="Sent")
    totals = found.totals.collect()[0]
    assert (totals.messages, totals.bytes, totals.first_seq, totals.last_seq) == (38, 76, 1, 40)
    assert sum(row.messages for row in found.rates.collect()) == 38
    assert [(row.subject, row.messages) for row in found.subjects.collect()] == [(f"{origin.name}.s0", 29)]
    assert [(row.first_seq, row.last_seq, row.missing) for row in found.gaps.collect()] == [(1, 40, 2)]
    assert found.latencies is not None
    latencies = found.latencies.collect()[0]
    assert latencies.messages == 38
    assert latencies.p50 > 8e11


@OURS
def test_pairs_are_joined_once_out_of_order_and_what_is_too_late_is_counted(
    spark: SparkSession, origin: FilledStream, tmp_path: Path
) -> None:
    pairs = next(_names)
    origin.feed.create(pairs, [f"{pairs}.>"])

    def event(kind: str, number: int, hour: int) -> None:
        document = f'{{"id":"f{number}","at":"2013-01-{1 + hour // 24:02d}T{hour % 24:02d}:00:00Z"}}'
        origin.feed.publish([(f"{origin.name}.{kind}.{number}", document.encode())])

    def run() -> Enriched:
        return enrich(
            spark, origin.name, pairs, origin.options,
            left=JoinSide(f"{origin.name}.dep.>", "id", "at"),
            right=JoinSide(f"{origin.name}.arr.>", "id", "at"),
            subject=f"{pairs}.{{key}}", checkpoint=str(tmp_path), within="6 hours", late="2 hours",
        )  # fmt: skip

    def joined() -> list[str]:
        frame = spark.read.format("jetstream").options(**origin.options).load(pairs)
        return sorted(row.subject.rpartition(".")[2] for row in frame.collect())

    for kind, number, hour in (("dep", 1, 1), ("arr", 2, 3), ("arr", 1, 2), ("dep", 2, 1)):
        event(kind, number, hour)
    assert run().read == 4
    assert joined() == ["f1", "f2"]
    event("dep", 3, 10)
    event("arr", 9, 10)
    run()
    event("arr", 3, 12)  # in time
    event("dep", 4, 2)  # far behind the watermark
    done = run()
    assert joined() == ["f1", "f2", "f3"]
    assert done.late == 1
    assert run().read == 0
    side = JoinSide("a.>", "id", "at")
    with pytest.raises(errors.MisuseError, match="its own partner"):
        enrich(spark, "A", "B", left=side, right=side, subject="b", checkpoint=str(tmp_path))


@OURS
def test_the_command_line_does_the_same_and_draws_reports(
    spark: SparkSession, origin: FilledStream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    origin.publish(12)
    path, page = str(tmp_path / "archive"), tmp_path / "report.html"
    servers = ["--servers", origin.options["servers"]]

    def run(*words: str) -> int:
        return main(["pipeline", *words, *servers, "--report", str(page)])

    assert run("archive", origin.name, path) == 0
    assert "<svg" in page.read_text() and "12" in page.read_text()
    assert run("stats", origin.name, "--top", "2", "--window", "1 hour") == 0
    assert page.read_text().count("<svg") == 3
    assert run("dead-letters", origin.name) == 0
    assert run("replay", path, origin.name, "-o", "delivery=publish") == 0
    capsys.readouterr()
    assert run("archive", "NONE", path) == 1
    assert "stream not found" in capsys.readouterr().err
    assert run("archive") == 2
    assert run("dead-letters", origin.name, "--remove") == 2
    assert run("stats", origin.name, "-o", "nonsense") == 2
