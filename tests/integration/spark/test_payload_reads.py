"""Payloads that are Protobuf, compressed, or CloudEvents, read by Spark in its own Python processes."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.spark import register
from penstock.spark.payloads.json_inference import infer_payload_schema
from tests.support.avro_payloads import encoded, record
from tests.support.payload_streams import event_stream, protobuf_stream
from tests.support.protobuf_shop import shop_descriptor
from tests.support.schema_registries import framed, running_registry
from tests.support.spark import Feed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("google.protobuf")
# What the server stores is the same in both kinds.
pytestmark = [
    pytest.mark.spark,
    pytest.mark.feature("spark.payloads"),
    pytest.mark.parametrize("server_kind", ["penstock"], indirect=True),
]


@pytest.fixture(scope="module", name="spark")
def own_session(spark: SparkSession) -> SparkSession:
    session = spark.newSession()
    register(session)
    return session


def test_protobuf_has_the_columns_of_its_descriptor(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    protobuf_stream(feed, "SHOP", 10)
    descriptor = tmp_path / "shop.desc"
    descriptor.write_bytes(shop_descriptor())
    reader = spark.read.format("jetstream").options(
        servers=f"127.0.0.1:{feed.port}",
        payload="protobuf",
        protobufDescriptor=str(descriptor),
        protobufMessage="shop.Order",
        compression="gzip",
    )
    orders = reader.load("SHOP").orderBy("seq")
    rows = orders.select("data.*").collect()
    assert [row.id for row in rows] == [*range(10), None]
    assert (rows[1].name, rows[1].state, rows[1].numbers) == ("order 1", "PAID", [0])
    assert rows[2].lines[0].asDict() == {"sku": "s2", "count": 2}
    assert orders.where("year(data.at) = 2026").count() == 10
    narrow = reader.option("payloadSchema", "name string").option("mode", "DROPMALFORMED").load("SHOP")
    assert [row.name for row in narrow.selectExpr("data.name").collect()] == [f"order {i}" for i in range(10)]
    with pytest.raises(Exception, match=r"field 'nam', which message shop\.Order does not have"):
        reader.option("payloadSchema", "nam string").load("SHOP").collect()


def test_attributes_of_cloud_events_are_a_column(spark: SparkSession, feed: Feed) -> None:
    event_stream(feed, "EVENTS")
    options = {"servers": f"127.0.0.1:{feed.port}", "cloudEvents": "true"}
    reader = spark.read.format("jetstream").options(**options)
    rows = reader.options(payload="json", payloadSchema="n int").load("EVENTS").orderBy("seq").collect()
    assert [row.data.n for row in rows] == [1, 2, 3]
    assert [row.cloudevent and row.cloudevent.type for row in rows] == ["order.paid", "order.sent", None]
    assert rows[0].cloudevent.extensions == {"tenant": "a b"}
    assert rows[0].cloudevent.time == datetime(2026, 1, 31, 12, tzinfo=UTC).replace(tzinfo=None)
    raw = spark.read.format("jetstream").options(**options, columns="data,cloudevent").load("EVENTS")
    assert raw.where("cloudevent.id = '2'").first().data == b'{"n": 2}'
    only = spark.read.format("jetstream").options(**options, columns="data").load("EVENTS")
    assert [bytes(row.data) for row in only.collect()] == [b'{"n": 1}', b'{"n": 2}', b'{"n": 3}']


def test_schemas_of_a_registry_are_found_by_driver_and_tasks(spark: SparkSession, feed: Feed) -> None:
    first_text = record(("id", "int"))
    second_text = record(("id", "long"), ("name", "string", "none"))
    feed.create("AVRO", ["avro.>"])
    with running_registry() as registry:
        first, second = registry.add("avro-value", first_text), registry.add("avro-value", second_text)
        feed.publish(
            [
                ("avro.a", framed(first, encoded(first_text, {"id": 1}))),
                ("avro.b", framed(second, encoded(second_text, {"id": 2, "name": "n"}))),
            ]
        )
        reader = spark.read.format("jetstream").options(
            servers=f"127.0.0.1:{feed.port}",
            payload="avro",
            schemaRegistry=registry.url,
            schemaSubject="avro-value",
            retrySeconds="1",
        )
        rows = reader.load("AVRO").orderBy("seq").select("data.*").collect()
        assert [row.asDict() for row in rows] == [{"id": 1, "name": "none"}, {"id": 2, "name": "n"}]
        feed.publish([("avro.c", framed(99, b"x"))])
        with pytest.raises(Exception, match="has no schema id 99"):
            reader.load("AVRO").collect()
        with pytest.raises(Exception, match="has no subject 'nothing', version latest"):
            reader.option("schemaSubject", "nothing").load("AVRO")


def test_the_fields_of_json_are_inferred_from_a_sample(spark: SparkSession, feed: Feed) -> None:
    feed.create("DOCS", ["docs.>"])
    feed.publish(
        [("docs.a", b'{"id": 1, "tags": ["x"]}'), ("docs.b", b'{"id": 2, "price": 1.5, "in": {"a": 1}}')]
    )
    options = {"servers": f"127.0.0.1:{feed.port}"}
    schema = infer_payload_schema(spark, "DOCS", options)
    assert schema == "`id` bigint, `in` struct<a:bigint>, `price` double, `tags` array<string>"
    table = (
        spark.read.format("jetstream").options(**options, payload="json", payloadSchema=schema).load("DOCS")
    )
    assert [row.id for row in table.select("data.id").orderBy("id").collect()] == [1, 2]
    texts = spark.read.format("jetstream").options(**options, payload="string").load("DOCS")
    parsed = texts.selectExpr(f"from_json(data, '{schema}') AS data").where("data.price > 1")
    assert parsed.first().data["in"].a == 1
    with pytest.raises(Exception, match="have no JSON object"):
        infer_payload_schema(spark, "DOCS", {**options, "subject": "docs.none.>"})
