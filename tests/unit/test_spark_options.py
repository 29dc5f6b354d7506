"""Options of the data source: parsed once, mistakes named."""

from __future__ import annotations

import pickle

import pytest

from penstock.errors import ConfigError
from penstock.spark.options import ServerAddress, SourceOptions, parse_server, parse_time


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
    assert (options.starting_offsets, options.fail_on_data_loss, options.include_headers) == (
        "earliest",
        True,
        False,
    )


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
    assert "known options: stream, subject, startingOffsets" in refusal(zzz="1")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"stream": ""}, "option 'stream' is missing"),
        ({"stream": "a.b"}, "no stream name"),
        ({"path": "OTHER"}, "given twice"),
        ({"subject": "a..b"}, "no valid subject filter"),
        ({"subject": "a.>.b"}, "no valid subject filter"),
        ({"startingOffsets": "first"}, "earliest or latest"),
        ({"startingSequence": "0"}, "it must be 1 to"),
        ({"startingSequence": "one"}, "not a number"),
        ({"startingSequence": "1", "startingTime": "0"}, "contradict"),
        ({"startingTime": "yesterday"}, "ISO 8601"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
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


def test_server_addresses_carry_credentials_and_tls() -> None:
    assert parse_server("h") == ServerAddress("h", 4222)
    assert parse_server("nats://a%40b:p%3Aw@h:1") == ServerAddress("h", 1, False, "a@b", "p:w")
    assert parse_server("tls://tok@[::1]:7") == ServerAddress("::1", 7, True, token="tok")


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
