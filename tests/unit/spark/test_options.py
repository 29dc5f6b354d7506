"""Options of the data source: parsed once, mistakes named."""

from __future__ import annotations

import pickle
from itertools import islice
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.spark.connection_options import ConnectionOptions, ServerAddress, parse_server
from penstock.spark.positions import EARLIEST, LATEST, Position, Positions, parse_time
from penstock.spark.source_options import SourceOptionParser, SourceOptions

pytestmark = pytest.mark.feature("spark.read", "spark.write")


def parse(**given: str) -> SourceOptions:
    return SourceOptions.parse({"stream": "ORDERS", **given})


def refusal(**given: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(**given)
    return str(caught.value)


def test_a_stream_is_all_it_takes() -> None:
    options = parse()
    assert options.streams == ("ORDERS",)
    assert [str(server) for server in options.connection.servers] == ["127.0.0.1:4222"]
    assert (options.starting, options.ending) == (Positions(EARLIEST), Positions(LATEST))
    assert (options.fail_on_data_loss, options.fail_on_gaps, options.include_headers) == (True, False, False)


def test_names_are_case_insensitive_and_load_names_the_stream() -> None:
    options = SourceOptions.parse(
        {"path": "A, B,,A", "includeheaders": "TRUE", "MAXRECORDSPERTRIGGER": " 10 "}
    )
    assert options.streams == ("A", "B")
    assert options.include_headers
    assert options.max_records_per_trigger == 10


@pytest.mark.parametrize(
    ("given", "nearest"),
    [
        ("servrs", "servers"),
        ("subjects", "subject"),
        ("startSequence", "startingSequence"),
        ("pasword", "password"),
    ],
)
def test_an_unknown_option_names_the_nearest_one(given: str, nearest: str) -> None:
    assert f"did you mean {nearest!r}?" in refusal(**{given: "x"})


def test_an_option_like_no_other_lists_them_all() -> None:
    assert "known options: stream, streamPattern, subject, startingOffsets" in refusal(zzz="1")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"stream": ""}, "option 'stream' is missing"),
        ({"stream": "a.b"}, "no stream name"),
        ({"path": "OTHER"}, "given twice"),
        ({"subject": "a..b"}, "no valid subject filter"),
        ({"subject": "a.>.b"}, "no valid subject filter"),
        ({"startingOffsets": "first"}, "earliest or latest, a sequence, a time"),
        ({"startingSequence": "0"}, "it must be 1 to"),
        ({"startingSequence": "one"}, "not a number"),
        ({"startingSequence": "1", "startingTime": "0"}, "contradict"),
        ({"startingOffsets": '{"X": 1}'}, "names stream 'X', which option 'stream' does not"),
        ({"startingOffsets": "{"}, "no JSON object"),
        ({"startingOffsets": '{"ORDERS": -3}'}, "a sequence is 0 to"),
        ({"startingOffsets": '{"ORDERS": true}'}, "earliest or latest"),
        ({"endingOffsets": "earliest"}, "never has rows"),
        ({"endingOffsets": "1", "endingSequence": "1"}, "contradict"),
        ({"maxTriggerDelay": "soon"}, "a duration as 500ms"),
        ({"failOnDataLoss": "strict", "subject": "a"}, "leave the filter 'subject' out"),
        ({"columns": "seq,key"}, "there is no 'key'"),
        ({"payload": "xml"}, "raw, string, json, avro, protobuf or arrow"),
        ({"payloadSchema": "id bigint"}, "but 'payload' is raw"),
        ({"payload": "avro"}, "give 'avroSchema'"),
        ({"payload": "json", "mode": "LENIENT"}, "PERMISSIVE, DROPMALFORMED or FAILFAST"),
        ({"startingTime": "yesterday"}, "ISO 8601"),
        ({"failOnDataLoss": "maybe"}, "true, false or strict"),
        ({"batchBytes": str(1 << 31)}, "it must be 1 to"),
        ({"retrySeconds": "0"}, "more than 0"),
        ({"user": "a", "token": "b"}, "contradict"),
        ({"password": "a"}, "without 'user'"),
        ({"tlsKey": "a"}, "without 'tlsCert'"),
        ({"domain": "hub", "apiPrefix": "$JS.API"}, "contradict"),
        ({"apiPrefix": "$JS.*"}, "no valid subject"),
        ({"access": "push"}, "consumer or direct"),
        ({"access": "direct", "subject": "a,b"}, "takes one subject filter"),
        ({"servers": "http://x"}, "nats:// or tls://"),
        ({"servers": "x:99999"}, "no port number"),
        ({"servers": "nats://x/y"}, "addresses are"),
    ],
)
def test_what_makes_no_sense_is_refused_with_words(given: dict[str, str], said: str) -> None:
    assert said in refusal(**given)


@pytest.mark.parametrize(
    ("given", "start"),
    [
        ({"startingOffsets": " Latest "}, LATEST),
        ({"startingPosition": "17"}, Position("sequence", 17)),
        ({"startingOffsets": "2026-01-31T12:00:00Z"}, Position("time", time="2026-01-31T12:00:00.000000Z")),
        ({"startingSequence": "5"}, Position("sequence", 5)),
        ({"startingTimestamp": "1500"}, Position("time", time="1970-01-01T00:00:01.500000Z")),
        ({"startingOffsets": '{"ORDERS": -2}'}, EARLIEST),
        ({"startingOffsets": '{"ORDERS": "latest"}'}, LATEST),
        (
            {"startingOffsetsByTimestamp": '{"ORDERS": 1500}'},
            Position("time", time="1970-01-01T00:00:01.500000Z"),
        ),
        ({"startingOffsets": '{"OTHER": 9}', "stream": "ORDERS,OTHER"}, EARLIEST),
    ],
)
def test_a_read_starts_where_one_of_the_options_says(given: dict[str, str], start: Position) -> None:
    assert parse(**given).starting.of("ORDERS") == start


def test_a_read_ends_before_a_position_or_with_a_sequence() -> None:
    assert parse(endingOffsets='{"ORDERS": 50}').ending.of("ORDERS") == Position("sequence", 50)
    assert parse(endingSequence="50").ending.of("ORDERS") == Position("sequence", 51)
    assert parse(endingTime="1500").ending.of("ORDERS").kind == "time"
    assert parse(endingPosition="latest").ending.of("ORDERS") == LATEST


def test_the_kafka_sources_names_are_understood() -> None:
    options = SourceOptions.parse(
        {
            "subscribe": "A,B",
            "maxOffsetsPerTrigger": "10",
            "minOffsetsPerTrigger": "5",
            "maxTriggerDelay": "90s",
            "maxRecordsPerPartition": "7",
            "minPartitions": "3",
            "failOnDataLoss": "false",
        }
    )
    assert (options.streams, options.max_records_per_trigger, options.min_records_per_trigger) == (
        ("A", "B"),
        10,
        5,
    )
    assert (options.max_trigger_delay_s, options.records_per_partition, options.min_partitions) == (
        90.0,
        7,
        3,
    )
    assert not options.fail_on_data_loss


def test_server_addresses_carry_credentials_and_tls() -> None:
    assert parse_server("h") == ServerAddress("h", 4222)
    assert parse_server("nats://a%40b:p%3Aw@h:1") == ServerAddress("h", 1, False, "a@b", "p:w")
    assert parse_server("tls://tok@[::1]:7") == ServerAddress("::1", 7, True, token="tok")


def test_each_task_begins_with_another_server_and_tries_all_of_them() -> None:
    def hosts(options: ConnectionOptions) -> str:
        return "".join(one.host for one in options.in_order())

    known = parse(servers="a,b,c").connection
    tasks = [task.connection for task in islice(parse().of_tasks(known), 4)]
    orders = [hosts(one) for one in tasks]
    assert sorted(orders[:3]) == ["abc", "bca", "cab"]
    assert orders[3] == orders[0]
    assert [hosts(one.next_turn()) for one in tasks[:3]] == orders[1:]
    assert sorted(hosts(known)) == ["a", "b", "c"]
    assert known.next_turn() == known


def test_servers_that_a_server_names_are_tried_last_with_its_user() -> None:
    options = parse(servers="tls://ada:pw@a:1,b:2").connection
    urls = ["b:2", "[::1]:4", "c:3", "", "c", "c:x", "c:99999", "[::1", "nats://d:5", "\ud800:1"]
    known = options.knowing(urls, options.servers[0])
    assert [str(one) for one in known.discovered][:2] == ["::1:4", "c:3"]
    assert all((one.user, one.password, one.tls) == ("ada", "pw", True) for one in known.discovered)
    assert {str(one) for one in known.in_order()[:2]} == {"a:1", "b:2"}
    assert options.knowing([], options.servers[0]) == options
    assert known.knowing(["no address"], known.discovered[0]) == known
    assert known.knowing(["b:2"], known.discovered[0]).discovered == ()


def test_a_domain_is_an_api_prefix() -> None:
    assert parse(domain="hub").connection.api_prefix == "$JS.hub.API"
    assert parse(apiPrefix="up.js.").connection.api_prefix == "up.js"


def test_times_become_utc() -> None:
    assert parse_time("2026-01-31T12:00:00+02:00") == "2026-01-31T10:00:00.000000Z"
    assert parse_time("2026-01-31") == "2026-01-31T00:00:00.000000Z"
    assert parse_time("1500") == "1970-01-01T00:00:01.500000Z"


def test_options_travel_in_a_pickle_and_keep_secrets_out_of_their_text() -> None:
    options = parse(user="ada", password="hunter2", servers="nats://bob:hunter3@h")
    assert pickle.loads(pickle.dumps(options)) == options
    assert "hunter" not in repr(options)


def test_every_option_is_in_the_documents_table() -> None:
    text = (Path(__file__).parents[3] / "docs/spark.md").read_text(encoding="utf-8")
    parser = SourceOptionParser
    for name in parser.known:
        assert f"`{name}`" in text, name
    for alias in parser.aliases:
        assert alias in text.lower() or alias == "path", alias
