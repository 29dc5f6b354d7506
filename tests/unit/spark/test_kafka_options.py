"""Options of Spark's Kafka source and sink: accepted where they mean the same, else refused with another."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tools.kafka_options import PAGE, page

from penstock.errors import ConfigError
from penstock.spark.kafka_options import KAFKA_OPTIONS, SOURCE_AND_SINK, KafkaOption, advice
from penstock.spark.positions import LATEST
from penstock.spark.sink_options import SinkOptionParser, SinkOptions
from penstock.spark.source_options import SourceOptionParser, SourceOptions

pytestmark = pytest.mark.feature("spark.read", "spark.write")

# The tables of options in Spark's integration guide: those of the source, required first, and of the sink.
GUIDE_SOURCE = """
assign subscribe subscribePattern kafka.bootstrap.servers
startingTimestamp startingOffsetsByTimestamp startingOffsets startingOffsetsByTimestampStrategy
endingTimestamp endingOffsetsByTimestamp endingOffsets failOnDataLoss
kafkaConsumer.pollTimeoutMs fetchOffset.numRetries fetchOffset.retryIntervalMs
maxOffsetsPerTrigger minOffsetsPerTrigger maxTriggerDelay minPartitions maxRecordsPerPartition
groupIdPrefix kafka.group.id includeHeaders
""".split()
GUIDE_SINK = ["kafka.bootstrap.servers", "topic", "includeHeaders"]
# Values with which an accepted option can be given.
VALUES = {
    "subscribe": "ORDERS",
    "subscribePattern": "ORD.*",
    "startingOffsets": '{"ORDERS": 17}',
    "startingOffsetsByTimestamp": '{"ORDERS": 1000}',
    "startingTimestamp": "1000",
    "startingOffsetsByTimestampStrategy": "latest",
    "endingOffsets": '{"ORDERS": 50}',
    "endingOffsetsByTimestamp": '{"ORDERS": 1000}',
    "endingTimestamp": "1000",
    "failOnDataLoss": "false",
    "maxOffsetsPerTrigger": "10",
    "minOffsetsPerTrigger": "10",
    "maxTriggerDelay": "1m",
    "minPartitions": "3",
    "maxRecordsPerPartition": "10",
    "includeHeaders": "true",
}


def test_every_option_of_the_guide_is_known() -> None:
    here = {option.name: option for option in KAFKA_OPTIONS}
    assert len(here) == len(KAFKA_OPTIONS)
    for name in GUIDE_SOURCE:
        assert here[name].where in ("source", "both"), name
    for name in GUIDE_SINK:
        assert here[name].where in ("sink", "both"), name
    assert {option.name for option in SOURCE_AND_SINK} <= {*GUIDE_SOURCE, *GUIDE_SINK}


def sides(option: KafkaOption) -> set[str]:
    return {"source", "sink"} if option.where == "both" else {option.where}


@pytest.mark.parametrize("option", [o for o in KAFKA_OPTIONS if o.ours], ids=lambda o: o.name)
def test_an_accepted_option_is_the_one_that_the_table_names(option: KafkaOption) -> None:
    given = {option.name: VALUES[option.name]}
    if "source" in sides(option):
        assert SourceOptionParser(given).values == {option.ours: VALUES[option.name]}
        streams = {} if option.ours in ("stream", "streamPattern") else {"stream": "ORDERS"}
        SourceOptions.parse(given | streams)
    if "sink" in sides(option):
        assert SinkOptionParser(given).values == {option.ours: VALUES[option.name]}


@pytest.mark.parametrize("option", [o for o in KAFKA_OPTIONS if not o.ours], ids=lambda o: o.name)
def test_a_refused_option_names_what_to_use_and_that_exists(option: KafkaOption) -> None:
    for side in sides(option):
        parser = SourceOptionParser if side == "source" else SinkOptionParser
        with pytest.raises(ConfigError) as caught:
            parser({option.name.upper(): "x"})
        text = str(caught.value)
        assert f"option {option.name.upper()!r} is not one of format jetstream" in text
        assert option.advice in text
        named = re.findall(r"'(\w+)'", option.advice)
        assert set(named) <= set(parser.known), (side, named)
        assert named or "leave it out" in option.advice


def test_other_settings_of_kafkas_clients_are_refused_as_such() -> None:
    assert "a setting of Kafka's clients" in str(advice("kafka.metrics.num.samples", "source"))
    assert advice("servers", "source") is None
    assert "Spark's Kafka sink has it" in str(advice("topic", "source"))
    assert "Spark's Kafka source has it" in str(advice("kafka.group.id", "sink"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"startingOffsets": '{"ORDERS": {"0": 23}}'}, 'give each stream one sequence ({"ORDERS": 17})'),
        ({"startingOffsetsByTimestamp": '{"ORDERS": {"0": 1000}}'}, "give each stream one time"),
        ({"startingOffsetsByTimestampStrategy": "error"}, "only latest"),
        ({"subscribePattern": "OR.*"}, "options 'stream' and 'streamPattern' contradict"),
    ],
)
def test_what_kafka_means_otherwise_is_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SourceOptions.parse({"stream": "ORDERS", **given})
    assert said in str(caught.value)


def test_a_pattern_stands_for_streams() -> None:
    options = SourceOptions.parse({"subscribePattern": "ORD.*", "startingOffsets": '{"ORDERS": -1}'})
    assert (options.streams, options.stream_pattern) == ((), "ORD.*")
    assert options.starting.of("ORDERS") == LATEST
    with pytest.raises(ConfigError, match="no regular expression"):
        SourceOptions.parse({"streamPattern": "("})


def test_a_sink_always_writes_headers() -> None:
    options = {"stream": "S", "subject": "s", "includeHeaders": "false"}
    with pytest.raises(ConfigError, match="drop the column"):
        SinkOptions.parse(options)


def test_the_page_for_kafkas_users_has_the_tables_of_the_code() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page(text) == text, "python tools/kafka_options.py"
    assert PAGE.parent == Path(__file__).parents[3] / "docs"
