"""The driver's half of the streaming reader, without a JVM: offsets, plans, a server that goes and comes."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows
from pyspark.sql.types import StructType

from penstock import errors, testing
from penstock.spark.offsets import DataLossError
from penstock.spark.source import JetStreamSource, JetStreamStreamReader
from tests.support.nats_servers import free_port
from tests.support.spark import Feed

pytestmark = pytest.mark.feature("spark.stream")


@pytest.fixture(scope="module")
def feed() -> Iterator[Feed]:
    with testing.server(jetstream=True) as server:
        feed = Feed(server.port)
        feed.create("DRIVER", ["driver.>"])
        feed.create("OTHER", ["other"])
        feed.publish([("driver.a", b"x")] * 100)
        feed.publish([("other", b"x")] * 10)
        yield feed
        feed.close()


def source(feed: Feed, **given: str) -> JetStreamSource:
    return JetStreamSource({"servers": f"127.0.0.1:{feed.port}", "stream": "DRIVER", **given})


def stream_reader(feed: Feed, **given: str) -> JetStreamStreamReader:
    made = source(feed, **given)
    reader = made.streamReader(made.schema())
    assert isinstance(reader, JetStreamStreamReader)
    return reader


def next_of(offset: dict[str, Any]) -> dict[str, int]:
    return {name: position["next"] for name, position in offset["streams"].items()}


def ranges(partitions: Any) -> list[tuple[str, int, int]]:
    return [(p.span.stream, p.span.start, p.span.end) for p in partitions]


def test_offsets_start_where_the_options_say(feed: Feed) -> None:
    assert next_of(stream_reader(feed).initialOffset()) == {"DRIVER": 1}
    assert next_of(stream_reader(feed, startingOffsets="latest").initialOffset()) == {"DRIVER": 101}
    assert next_of(stream_reader(feed, startingSequence="40").initialOffset()) == {"DRIVER": 40}
    assert next_of(stream_reader(feed, startingTime="2001-01-01").initialOffset()) == {"DRIVER": 1}
    assert next_of(stream_reader(feed, startingTime="2199-01-01").initialOffset()) == {"DRIVER": 101}


def test_read_limits_are_kept(feed: Feed) -> None:
    reader = stream_reader(feed, maxRecordsPerTrigger="30")
    start = reader.initialOffset()
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(30)
    assert next_of(reader.latestOffset(start, limit)) == {"DRIVER": 31}
    assert next_of(reader.latestOffset(start, ReadAllAvailable())) == {"DRIVER": 101}
    assert reader.latestOffset(start, ReadMinRows(101)) == start
    assert next_of(reader.latestOffset(start, ReadMinRows(100))) == {"DRIVER": 101}
    few_bytes = reader.latestOffset(start, ReadMaxBytes(1))
    assert next_of(few_bytes) == {"DRIVER": 2}
    assert next_of(reader.reportLatestOffset()) == {"DRIVER": 101}


def test_a_limit_is_shared_by_the_streams(feed: Feed) -> None:
    reader = stream_reader(feed, stream="DRIVER,OTHER")
    end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(50))
    assert next_of(end) == {"DRIVER": 41, "OTHER": 11}


def test_a_plan_covers_its_offsets_in_ranges(feed: Feed) -> None:
    reader = stream_reader(feed, stream="DRIVER,OTHER", recordsPerPartition="40")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert ranges(reader.partitions(start, end)) == [
        ("DRIVER", 1, 34),
        ("DRIVER", 34, 67),
        ("DRIVER", 67, 101),
        ("OTHER", 1, 11),
    ]
    assert reader.partitions(end, end) == []


def test_available_now_sees_nothing_that_came_later(feed: Feed) -> None:
    reader = stream_reader(feed, stream="OTHER")
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    before = next_of(reader.latestOffset(start, ReadAllAvailable()))
    feed.publish([("other", b"late")] * 5)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert next_of(end) == before
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    assert next_of(reader.reportLatestOffset())["OTHER"] == before["OTHER"] + 5


def test_a_checkpoint_of_a_stream_no_longer_named_is_refused(feed: Feed) -> None:
    both = stream_reader(feed, stream="DRIVER,OTHER")
    start = both.initialOffset()
    end = both.latestOffset(start, ReadAllAvailable())
    with pytest.raises(errors.ConfigError, match="'OTHER', which option 'stream' does not name"):
        stream_reader(feed).partitions(start, end)


def test_readers_travel_without_their_connection(feed: Feed) -> None:
    reader = stream_reader(feed)
    start = reader.initialOffset()
    copy = pickle.loads(pickle.dumps(reader))
    assert copy.initialOffset() == start
    assert pickle.loads(pickle.dumps(source(feed))).parsed == source(feed).parsed


def test_the_driver_waits_for_a_server_that_comes_back(tmp_path: Path) -> None:
    with testing.server(jetstream=True, store_dir=tmp_path) as server:
        port = server.port
        feed = Feed(port)
        feed.create("KEPT", ["kept"], storage="file")
        feed.publish([("kept", b"x")] * 7)
        hasty = stream_reader(feed, stream="KEPT", retrySeconds="0.1")
        patient = stream_reader(feed, stream="KEPT")
        start = hasty.initialOffset()
        assert patient.initialOffset() == start
        feed.close()
    with pytest.raises(errors.NoServersError):
        hasty.latestOffset(start, ReadAllAvailable())
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(patient.latestOffset, start, ReadAllAvailable())
        with testing.server(jetstream=True, store_dir=tmp_path, port=port):
            end = asked.result(30)
            patient.stop()
    assert next_of(end) == {"KEPT": 8}
    assert end["streams"]["KEPT"]["created"] == start["streams"]["KEPT"]["created"]


def test_a_wrong_address_is_an_error_at_once() -> None:
    made = JetStreamSource({"servers": f"127.0.0.1:{free_port()}", "stream": "S"})
    with pytest.raises(errors.NoServersError):
        made.streamReader(StructType([])).initialOffset()


def test_filters_narrow_the_plan(feed: Feed) -> None:
    from pyspark.sql.datasource import EqualTo, GreaterThan, LessThan

    def planned(*filters: Any, **given: str) -> list[tuple[str, int, int]]:
        made = source(feed, stream="DRIVER,OTHER", pushFilters="true", **given)
        reader: Any = made.reader(StructType([]))
        reader.pushFilters(list(filters))
        return ranges(reader.partitions())

    assert planned(GreaterThan(("seq",), 95)) == [("DRIVER", 96, 101)]
    assert planned(EqualTo(("stream",), "OTHER"))[0][0] == "OTHER"
    assert planned(GreaterThan(("time",), datetime(2199, 1, 1, tzinfo=UTC))) == [("DRIVER", 101, 101)]
    assert planned(LessThan(("time",), datetime(2001, 1, 1, tzinfo=UTC))) == [("DRIVER", 1, 1)]
    assert planned(EqualTo(("subject",), "nothing.here"), subject="driver.*") == [("DRIVER", 1, 1)]


def test_a_least_number_of_records_is_waited_for_and_not_for_ever(
    feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [100.0]
    monkeypatch.setattr("penstock.spark.source.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    reader = stream_reader(feed, minRecordsPerTrigger="500", maxRecordsPerTrigger="40", maxTriggerDelay="10s")
    start = reader.initialOffset()
    limit = reader.getDefaultReadLimit()
    assert reader.latestOffset(start, limit) == start
    assert reader.reportLatestOffset()["lag"] == {"DRIVER": 100}
    now_s[0] = 109.0
    assert reader.latestOffset(start, limit) == start
    now_s[0] = 110.0
    assert next_of(reader.latestOffset(start, limit)) == {"DRIVER": 41}
    assert reader.latestOffset(start, limit) == start
    assert next_of(reader.latestOffset(start, ReadAllAvailable())) == {"DRIVER": 101}


def test_a_batch_end_is_no_option_of_a_stream(feed: Feed) -> None:
    with pytest.raises(errors.ConfigError, match="endingSequence"):
        stream_reader(feed, endingSequence="5")


def test_a_pattern_reads_the_streams_it_matches_and_those_that_come(feed: Feed) -> None:
    feed.create("PAT_A", ["pat.a"])
    feed.publish([("pat.a", b"x")] * 3)
    reader = stream_reader(feed, stream="", subscribePattern="PAT_.*")
    start = reader.initialOffset()
    assert next_of(start) == {"PAT_A": 1}
    feed.create("PAT_B", ["pat.b"])
    feed.create("NOT_PAT_C", ["pat.c"])
    feed.publish([("pat.b", b"x")] * 2)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert next_of(end) == {"PAT_A": 4, "PAT_B": 3}
    assert ranges(reader.partitions(start, end)) == [("PAT_A", 1, 4), ("PAT_B", 1, 3)]
    feed.api("STREAM.DELETE.PAT_A")
    with pytest.raises(DataLossError, match="stream 'PAT_A', which the checkpoint reads, was deleted"):
        reader.partitions(start, end)
    careless = stream_reader(feed, stream="", streamPattern="PAT_.*", failOnDataLoss="false")
    assert ranges(careless.partitions(start, end)) == [("PAT_B", 1, 3)]
    feed.api("STREAM.DELETE.PAT_B")
    feed.api("STREAM.DELETE.NOT_PAT_C")


def test_a_pattern_that_matches_no_stream_is_an_error_that_names_them(feed: Feed) -> None:
    with pytest.raises(errors.ConfigError, match=r"no stream has a name like 'ORDR.\*'; there are DRIVER"):
        stream_reader(feed, stream="", streamPattern="ORDR.*").initialOffset()
