"""The options of Spark's Kafka source and sink, and what each is here.

Where an option means the same it is accepted under Kafka's name. Any other is refused with the option to use
instead, so that a query that is moved from Kafka never reads or writes something else than it says. The table
of docs/coming-from-kafka.md is made of this one (tools/kafka_options.py).

Source: Spark's Structured Streaming + Kafka Integration Guide, Spark 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class KafkaOption:
    """name: as the guide spells it. where: which side has it. ours: the same option here, "" if refused.

    advice: for a refused option, what to use instead; for an accepted one, what is different.
    """

    name: str
    where: Literal["source", "sink", "both"]
    ours: str = ""
    advice: str = ""


SOURCE_AND_SINK = (
    KafkaOption("subscribe", "source", "stream", "streams take the place of topics"),
    KafkaOption("subscribePattern", "source", "streamPattern", "a regular expression of Python"),
    KafkaOption("assign", "source", "", "name streams with 'stream'; a stream has no partitions"),
    KafkaOption(
        "kafka.bootstrap.servers", "both", "", "give 'servers', such as nats://host:4222; these are others"
    ),
    KafkaOption(
        "startingOffsets",
        "source",
        "startingOffsets",
        'sequences, from 1 on, one for each stream: {"ORDERS": 17}; streaming queries start at earliest',
    ),
    KafkaOption(
        "startingOffsetsByTimestamp",
        "source",
        "startingOffsetsByTimestamp",
        'one time for each stream: {"ORDERS": 1769860800000}',
    ),
    KafkaOption("startingTimestamp", "source", "startingTime"),
    KafkaOption(
        "startingOffsetsByTimestampStrategy",
        "source",
        "startingOffsetsByTimestampStrategy",
        "`latest` only, which is what happens: a time after the last message starts with the next one",
    ),
    KafkaOption("endingOffsets", "source", "endingOffsets", 'one for each stream: {"ORDERS": 50}'),
    KafkaOption("endingOffsetsByTimestamp", "source", "endingOffsetsByTimestamp", "one time for each stream"),
    KafkaOption("endingTimestamp", "source", "endingTime"),
    KafkaOption("failOnDataLoss", "source", "failOnDataLoss", "also `strict`"),
    KafkaOption("kafkaConsumer.pollTimeoutMs", "source", "", "set 'retrySeconds', the time without progress"),
    KafkaOption("fetchOffset.numRetries", "source", "", "set 'retrySeconds'"),
    KafkaOption("fetchOffset.retryIntervalMs", "source", "", "set 'retrySeconds'"),
    KafkaOption("maxOffsetsPerTrigger", "source", "maxRecordsPerTrigger"),
    KafkaOption("minOffsetsPerTrigger", "source", "minRecordsPerTrigger"),
    KafkaOption("maxTriggerDelay", "source", "maxTriggerDelay"),
    KafkaOption(
        "minPartitions", "source", "minPartitions", "there is one task for 250,000 messages at least"
    ),
    KafkaOption("maxRecordsPerPartition", "source", "recordsPerPartition"),
    KafkaOption("groupIdPrefix", "source", "", "leave it out: each task has a consumer of its own"),
    KafkaOption(
        "includeHeaders",
        "both",
        "includeHeaders",
        "the column is a map of lists. A sink writes a column `headers` always, so `true` only",
    ),
    KafkaOption(
        "topic", "sink", "", "give 'stream', the target, and 'subject', the subject of a row or a template"
    ),
)

# Settings of Kafka's clients, which Spark passes on under the prefix `kafka.`.
CLIENT_SETTINGS = (
    KafkaOption(
        "kafka.group.id", "source", "", "leave it out: a query reads all, and its checkpoint has the position"
    ),
    KafkaOption("kafka.auto.offset.reset", "source", "", "set 'startingOffsets'"),
    KafkaOption("kafka.enable.auto.commit", "source", "", "leave it out: reading acks nothing"),
    KafkaOption("kafka.isolation.level", "source", "", "leave it out: what a stream has is committed"),
    KafkaOption("kafka.max.poll.records", "source", "", "set 'pullRecords'"),
    KafkaOption("kafka.fetch.max.bytes", "source", "", "set 'batchBytes'"),
    KafkaOption("kafka.max.partition.fetch.bytes", "source", "", "set 'batchBytes'"),
    KafkaOption("kafka.session.timeout.ms", "source", "", "leave it out: there are no groups"),
    KafkaOption("kafka.key.deserializer", "source", "", "set 'payload'; messages have subjects, not keys"),
    KafkaOption("kafka.value.deserializer", "source", "", "set 'payload'"),
    KafkaOption("kafka.interceptor.classes", "both", "", "leave it out"),
    KafkaOption("kafka.request.timeout.ms", "both", "", "set 'requestTimeoutSeconds'"),
    KafkaOption("kafka.client.id", "both", "", "leave it out: connections are called penstock-spark"),
    KafkaOption(
        "kafka.security.protocol", "both", "", "set 'tls' for TLS; a server that requires it gets it"
    ),
    KafkaOption(
        "kafka.sasl.mechanism", "both", "", "give 'user' and 'password', 'token', 'credentials' or 'nkey'"
    ),
    KafkaOption(
        "kafka.sasl.jaas.config", "both", "", "give 'user' and 'password', 'token', 'credentials' or 'nkey'"
    ),
    KafkaOption("kafka.ssl.truststore.location", "both", "", "give 'tlsCa', a PEM file"),
    KafkaOption("kafka.ssl.truststore.password", "both", "", "give 'tlsCa', a PEM file without a password"),
    KafkaOption("kafka.ssl.keystore.location", "both", "", "give 'tlsCert' and 'tlsKey', PEM files"),
    KafkaOption("kafka.ssl.keystore.password", "both", "", "give 'tlsCert' and 'tlsKey', PEM files"),
    KafkaOption("kafka.ssl.key.password", "both", "", "give 'tlsKey', a PEM file without a password"),
    KafkaOption("kafka.acks", "sink", "", "leave it out: a row counts as written after its ack"),
    KafkaOption("kafka.retries", "sink", "", "set 'retrySeconds'"),
    KafkaOption("kafka.enable.idempotence", "sink", "", "set 'exactlyOnce', which is on"),
    KafkaOption("kafka.transactional.id", "sink", "", "set 'delivery' to atomic"),
    KafkaOption("kafka.linger.ms", "sink", "", "leave it out: rows are sent in batches"),
    KafkaOption("kafka.batch.size", "sink", "", "leave it out: rows are sent in batches"),
    KafkaOption("kafka.buffer.memory", "sink", "", "set 'ackWindow'"),
    KafkaOption("kafka.max.in.flight.requests.per.connection", "sink", "", "set 'ackWindow'"),
    KafkaOption("kafka.max.request.size", "sink", "", "leave it out: the server's max_payload is the limit"),
    KafkaOption("kafka.compression.type", "sink", "", "leave it out: streams compress what they store"),
    KafkaOption("kafka.partitioner.class", "sink", "", "leave it out: a stream has no partitions"),
    KafkaOption("kafka.key.serializer", "sink", "", "set 'subject'; messages have subjects, not keys"),
    KafkaOption("kafka.value.serializer", "sink", "", "set 'dataColumn', a binary or string column"),
)

KAFKA_OPTIONS = (*SOURCE_AND_SINK, *CLIENT_SETTINGS)


def advice(name: str, side: Literal["source", "sink"]) -> str | None:
    """What to use instead of a Kafka option that is not accepted; None if it is none of Kafka's.

    name: as the user gave it, in any case. side: where it was given.
    """
    for option in KAFKA_OPTIONS:
        if option.name.lower() != name.lower():
            continue
        if option.where not in (side, "both"):
            return f"Spark's Kafka {option.where} has it, and this is a {side}: leave it out"
        return f"an option of Spark's Kafka {side}: {option.advice}"
    if name.lower().startswith("kafka."):
        return "a setting of Kafka's clients, which this format does not use: leave it out"
    return None
