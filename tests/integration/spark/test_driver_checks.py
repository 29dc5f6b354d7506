"""Mistakes and missing rights show on the driver, before any task starts. No JVM: the source is called as
Spark's driver processes call it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from penstock import errors
from penstock.spark.driver_checks import target_filter
from penstock.spark.sink_options import SubjectTemplate
from penstock.spark.source import JetStreamSource
from tests.support.spark import Feed

pytestmark = pytest.mark.feature("spark.read", "spark.write")

READ = '"$JS.API.STREAM.INFO.*", "$JS.API.STREAM.MSG.GET.*"'
CONSUME = '"$JS.API.CONSUMER.CREATE.>", "$JS.API.CONSUMER.DELETE.>"'
CONF = f"""
no_auth_user: all
authorization {{
  users: [
    {{ user: all, password: p }}
    {{ user: info, password: p, permissions: {{ publish: ["$JS.API.STREAM.INFO.*"] }} }}
    {{ user: get, password: p, permissions: {{ publish: [{READ}] }} }}
    {{ user: create, password: p, permissions: {{ publish: [{READ}, {CONSUME}] }} }}
    {{ user: reader, password: p,
       permissions: {{ publish: [{READ}, {CONSUME}, "$JS.API.CONSUMER.MSG.NEXT.>", "$SYS.REQ.USER.INFO"] }} }}
    {{ user: direct, password: p, permissions: {{ publish: [{READ}, "$JS.API.DIRECT.GET.*"] }} }}
    {{ user: most, password: p, permissions: {{ publish: {{ deny: ["checks.secret.>"] }} }} }}
  ]
}}
"""


@pytest.fixture(scope="module")
def checked(port: int) -> Iterator[Feed]:
    feed = Feed(port)
    feed.create("CHECKS", ["checks.>"], allow_direct=True)
    feed.create("PLAIN", ["plain.>"], allow_direct=False)
    feed.create("QUEUE", ["queue.>"], retention="workqueue", allow_direct=False)
    feed.create("GETS", ["gets.>"], retention="workqueue", allow_direct=True)
    feed.create("COPY", [], sources=[{"name": "CHECKS"}])
    feed.create("MIRROR", [], mirror={"name": "CHECKS"})
    feed.publish([("checks.a", b"1"), ("queue.a", b"1"), ("gets.a", b"1")])
    yield feed
    feed.close()


def source(feed: Feed, user: str = "all", **options: str) -> JetStreamSource:
    return JetStreamSource({"servers": f"127.0.0.1:{feed.port}", "user": user, "password": "p", **options})


def plan(feed: Feed, user: str = "all", **options: str) -> int:
    """How many tasks a batch read gets."""
    made = source(feed, user, **options)
    return len(made.reader(made.schema()).partitions())  # type: ignore[arg-type]


def write(feed: Feed, *columns: str, user: str = "all", **options: str) -> None:
    schema = StructType([StructField(name, StringType()) for name in columns or ("data",)])
    source(feed, user, **options).writer(schema, overwrite=False)


def said(action: Callable[[], object], kind: type[Exception] = errors.ConfigError) -> str:
    with pytest.raises(kind) as caught:
        action()
    text = str(caught.value)
    assert "\n" not in text  # the message is the last line of a traceback
    return text


def test_a_subject_that_the_stream_does_not_have_is_refused(checked: Feed) -> None:
    text = said(lambda: plan(checked, stream="CHECKS", subject="cheks.>"))
    assert "'cheks.>' matches no subject of stream CHECKS, which has checks.>" in text
    assert plan(checked, stream="CHECKS", subject="checks.new") == 1
    assert plan(checked, stream="COPY", subject="cheks.>") == 1  # its subjects are those of others


def test_a_subject_that_the_stream_had_is_read(checked: Feed) -> None:
    checked.create("OLD", ["old.>"])
    checked.publish([("old.a", b"1")])
    checked.api("STREAM.UPDATE.OLD", {"name": "OLD", "subjects": ["new.>"], "storage": "memory"})
    assert plan(checked, stream="OLD", subject="old.>") == 1


def test_the_advice_for_work_queues_leads_to_a_read(checked: Feed) -> None:
    text = said(lambda: plan(checked, stream="QUEUE"))
    assert "'QUEUE' is a work queue" in text
    assert "allow_direct (`nats stream edit QUEUE --allow-direct`) and option 'access' to direct" in text
    text = said(lambda: plan(checked, stream="QUEUE", access="direct"))
    assert "has no allow_direct: set it" in text
    assert "leave option 'access' out" not in text  # that would lead back to the first error
    text = said(lambda: plan(checked, stream="GETS"))
    assert "set option 'access' to direct" in text
    assert "allow_direct" not in text
    assert plan(checked, stream="GETS", access="direct") == 1
    assert "or leave option 'access' out" in said(lambda: plan(checked, stream="PLAIN", access="direct"))


@pytest.mark.parametrize(
    ("user", "missing"),
    [
        ("info", "STREAM.MSG.GET.CHECKS"),
        ("get", "CONSUMER.CREATE.CHECKS"),
        ("create", "CONSUMER.MSG.NEXT.CHECKS"),
        ("direct", "CONSUMER.CREATE.CHECKS"),
    ],
)
def test_a_right_to_read_that_is_missing_is_named(checked: Feed, user: str, missing: str) -> None:
    assert missing in said(lambda: plan(checked, user, stream="CHECKS"), errors.PermissionsError)


def test_who_has_the_rights_of_the_documents_reads_and_leaves_no_consumer(checked: Feed) -> None:
    assert plan(checked, "reader", stream="CHECKS") == 1
    assert plan(checked, "direct", stream="CHECKS", access="direct") == 1
    assert checked.consumers("CHECKS") == 0


def test_a_streaming_query_is_checked_once(checked: Feed) -> None:
    made = source(checked, "get", stream="CHECKS")
    reader = made.streamReader(made.schema())  # type: ignore[arg-type]
    assert "CONSUMER.CREATE" in said(reader.initialOffset, errors.PermissionsError)
    made = source(checked, stream="CHECKS")
    reader = made.streamReader(made.schema())  # type: ignore[arg-type]
    start = reader.initialOffset()
    checked.publish([("checks.later", b"1")])
    assert reader.latestOffset(start, reader.getDefaultReadLimit()) != start
    reader.stop()


def test_rows_that_can_not_be_written_are_refused_before_a_task_has_them(checked: Feed) -> None:
    assert "no column 'data' (or 'value')" in said(
        lambda: write(checked, "id", stream="CHECKS", subject="checks.a")
    )
    assert "no column 'customer'" in said(
        lambda: write(checked, stream="CHECKS", subject="checks.{customer}")
    )
    assert "no column 'subject'" in said(lambda: write(checked, stream="CHECKS"))
    text = said(lambda: write(checked, "data", "id", stream="CHECKS", subject="orders.eu.{id}"))
    assert (
        "stream 'CHECKS', which has the subjects checks.>; rows would be published to 'orders.eu.>'" in text
    )
    assert "stream 'NONE': stream not found" in said(
        lambda: write(checked, stream="NONE", subject="a"), errors.StreamNotFoundError
    )
    assert "is a mirror" in said(lambda: write(checked, stream="MIRROR", subject="checks.a"))
    write(checked, "data", "id", stream="CHECKS", subject="checks.{id}")
    write(checked, "data", "id", stream="CHECKS", subject="{id}")


def test_rows_that_the_user_may_not_publish_are_refused_before_a_task_has_them(checked: Feed) -> None:
    text = said(
        lambda: write(checked, user="reader", stream="CHECKS", subject="checks.a"), errors.PermissionsError
    )
    assert "user 'reader' may not publish to 'checks.a', the subjects of the rows for stream 'CHECKS'" in text
    text = said(
        lambda: write(checked, user="most", stream="CHECKS", subject="checks.secret.a"),
        errors.PermissionsError,
    )
    assert "denied: checks.secret.>" in text
    write(checked, user="most", stream="CHECKS", subject="checks.a")


def test_a_server_that_is_not_there_stops_a_batch_write_at_once(checked: Feed) -> None:
    schema = StructType([StructField("data", StringType())])
    options = {"servers": "127.0.0.1:1", "stream": "CHECKS", "subject": "checks.a"}
    with pytest.raises(errors.NoServersError):
        JetStreamSource(options).writer(schema, overwrite=False)
    JetStreamSource(options).streamWriter(schema, overwrite=False)  # its tasks retry


@pytest.mark.parametrize(
    ("template", "found"),
    [
        ("orders.eu", "orders.eu"),
        ("orders.{id}", "orders.>"),
        ("orders.eu.{id}.x", "orders.eu.>"),
        ("orders.eu-{id}", "orders.>"),
        ("{id}", None),
        ("o{id}", None),
        ("a b", None),
        ("a b.{id}", None),
    ],
)
def test_a_template_tells_where_its_subjects_are(template: str, found: str | None) -> None:
    assert target_filter(SubjectTemplate.parse("subject", template)) == found


def test_without_a_template_any_subject_is_possible() -> None:
    assert target_filter(None) is None
