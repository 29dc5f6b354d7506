"""Options of the sink, and record batches as rows to publish; no server."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.errors import ConfigError, MisuseError
from penstock.spark.sink_options import LEDGER_DEFAULT, SinkOptions, SubjectTemplate
from penstock.spark.sink_rows import Columns, Layout, header_column
from penstock.spark.task_identity import Marker, TaskIdentity

pytestmark = pytest.mark.feature("spark.write")


def options(**given: str) -> SinkOptions:
    return SinkOptions.parse({"stream": "S", **given})


def columns(batch: pa.RecordBatch, **given: str) -> Columns:
    return Layout(options(**given), batch.schema).columns(batch, 100)


def test_defaults_are_publishes_with_ids_and_a_ledger() -> None:
    made = options()
    assert (made.delivery, made.exactly_once, made.ledger, made.subject) == (
        "publish",
        True,
        LEDGER_DEFAULT,
        None,
    )


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"stream": "A,B"}, "names 2 streams, a write goes to one"),
        ({"stream": ""}, "names 0 streams"),
        ({"delivery": "once"}, "publish, fast, atomic"),
        ({"delivery": "atomic"}, "'markerSubject' is missing"),
        ({"markerSubject": "a"}, "is for 'delivery' atomic"),
        ({"delivery": "atomic", "markerSubject": "a.*"}, "no valid subject"),
        ({"delivery": "atomic", "markerSubject": "a", "messageId": "{id}"}, "not for 'delivery' atomic"),
        ({"messageId": "{id}", "exactlyOnce": "false"}, "contradict"),
        ({"subject": "a.{b"}, "write {{ and }} for braces"),
        ({"subject": "a.{}"}, "the name of a column, no more"),
        ({"subject": "a.{b:>9}"}, "the name of a column, no more"),
        ({"headers": "no colon"}, "no line of `Name: value`"),
        ({"headers": "Nats-Msg-Id: x"}, "the sink's own"),
        ({"ledger": "a.b"}, "no bucket name"),
        ({"writeId": "a b"}, "1 to 64 letters"),
        ({"atomicRows": "1000"}, "it must be 1 to 999"),
        ({"subjects": "x"}, "did you mean 'subject'"),
    ],
)
def test_mistakes_are_named(given: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        options(**given)
    assert text in str(caught.value)


def test_templates_are_texts_and_names_in_turn() -> None:
    assert SubjectTemplate.parse("o", "a.{b}.{{c}}{d}") == SubjectTemplate(("a.", ".{c}", ""), ("b", "d"))
    assert SubjectTemplate.parse("o", "plain") == SubjectTemplate(("plain",), ())


def test_rows_are_filled_from_columns_of_any_type() -> None:
    batch = pa.RecordBatch.from_pylist(
        [{"c": "x", "n": 7, "data": b"\xff"}, {"c": "y", "n": 8, "data": None}]
    )
    made = columns(batch, subject="o.{c}.{n}", headers="N: {n}", messageId="{c}{n}")
    assert made.subjects.to_pylist() == ["o.x.7", "o.y.8"]
    assert made.payloads.to_pylist() == [b"\xff", b""]
    assert made.ids is not None and made.ids.to_pylist() == ["x7", "y8"]
    assert made.headers is not None and made.headers.to_pylist() == ["N: 7\r\n", "N: 8\r\n"]


def test_without_options_the_columns_speak_for_themselves() -> None:
    batch = pa.RecordBatch.from_pylist([{"subject": "a.b", "value": "text", "headers": None}])
    typed = batch.set_column(2, "headers", pa.array([[("k", "v")]], pa.map_(pa.string(), pa.string())))
    made = columns(typed)
    assert (made.subjects.to_pylist(), made.payloads.to_pylist()) == (["a.b"], [b"text"])
    assert made.headers is not None and made.headers.to_pylist() == ["k: v\r\n"]


@pytest.mark.parametrize(
    "subject", ["", "a b", "a..b", ".a", "a.", "a.*", ">", "a.>", "*.b", "a\tb", "a\r\n", "a\0"]
)
def test_a_subject_that_is_none_is_refused_with_its_row(subject: str) -> None:
    batch = pa.RecordBatch.from_pylist([{"subject": "fine", "data": b""}, {"subject": subject, "data": b""}])
    with pytest.raises(MisuseError, match=r"row 101 of this task: .* is no subject to publish to"):
        columns(batch)


@pytest.mark.parametrize("subject", ["a.b*", "a>b", "$KV.x", "ä.ö", "a-b_c"])
def test_odd_subjects_that_are_subjects_pass(subject: str) -> None:
    batch = pa.RecordBatch.from_pylist([{"subject": subject, "data": b""}])
    assert columns(batch).subjects.to_pylist() == [subject]


def test_nulls_and_missing_columns_are_named() -> None:
    batch = pa.RecordBatch.from_pylist([{"subject": "a", "data": b""}, {"subject": None, "data": b""}])
    with pytest.raises(MisuseError, match="row 101 of this task has no subject"):
        columns(batch)
    with pytest.raises(ConfigError, match="no column 'id'"):
        columns(batch, messageId="{id}")
    with pytest.raises(ConfigError, match="to_json"):
        columns(pa.RecordBatch.from_pylist([{"subject": "a", "amount": 1}]))
    with pytest.raises(ConfigError, match="say option 'subject'"):
        columns(pa.RecordBatch.from_pylist([{"data": b""}]))
    with pytest.raises(ConfigError, match="option 'dataColumn' names it"):
        columns(batch, dataColumn="body")
    nested = pa.RecordBatch.from_pylist([{"subject": "a", "data": [1]}])
    with pytest.raises(ConfigError, match="can't be written as text"):
        columns(nested)


def test_header_columns_of_all_three_shapes_slices_and_nulls() -> None:
    texts = pa.array([None, [("a", "1")], [], [("b", "2"), ("c", None)]], pa.map_(pa.string(), pa.string()))
    assert header_column(texts).to_pylist() == ["", "a: 1\r\n", "", "b: 2\r\nc: \r\n"]
    assert header_column(texts.slice(1, 2)).to_pylist() == ["a: 1\r\n", ""]
    lists = pa.array([[("a", ["1", "2"])], [("b", [])]], pa.map_(pa.string(), pa.list_(pa.string())))
    assert header_column(lists).to_pylist() == ["a: 1\r\na: 2\r\n", ""]
    kafka = pa.array([[{"key": "a", "value": b"1"}], None])
    assert header_column(kafka).to_pylist() == ["a: 1\r\n", ""]
    with pytest.raises(ConfigError, match="column 'headers' is string"):
        header_column(pa.array(["a"]))
    for name, value in (("a b", "1"), ("", "1"), ("a:", "1"), ("a", "1\r\nb: 2")):
        with pytest.raises(MisuseError, match="is no header"):
            header_column(pa.array([[(name, value)]], pa.map_(pa.string(), pa.string())))


def test_markers_survive_and_strangers_are_reported() -> None:
    marker = Marker(epoch=4, next=17, created="2026-01-01T00:00:00Z")
    assert Marker.decode(marker.encode(), "x") == marker
    with pytest.raises(ConfigError, match="is no marker of the sink"):
        Marker.decode(b"hello", "some.subject")
    with pytest.raises(MisuseError, match="inside of a Spark task"):
        TaskIdentity.of_task("w")
