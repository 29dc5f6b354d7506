"""What services say of themselves: names, versions, and answers of other clients' services."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.client import EndpointSchema, EndpointStats, ServiceInfo, ServicePing, ServiceStats
from penstock.client.service_records import (
    EndpointInfo,
    check_group,
    check_queue,
    check_service_name,
    check_version,
    control_subject,
    decode_record,
    encode_record,
    text_map,
)
from penstock.errors import InvalidSubjectError, MisuseError, ProtocolError, ServiceError

pytestmark = pytest.mark.feature("client.services")


@pytest.mark.parametrize("name", ["a", "Orders-2_x", "0"])
def test_names_of_letters_digits_dashes_and_underscores_are_taken(name: str) -> None:
    assert check_service_name(name, "service") == name


@pytest.mark.parametrize("name", ["", "a b", "a.b", "a*", "ä", "a\n"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidSubjectError, match="service name"):
        check_service_name(name, "service")


@pytest.mark.parametrize("version", ["0.0.1", "1.2.3-alpha.1", "10.20.30+build.5", "1.0.0-0A.is.legal"])
def test_semantic_versions_are_taken(version: str) -> None:
    assert check_version(version) == version


@pytest.mark.parametrize("version", ["", "1", "1.0", "v1.0.0", "1.0.0 ", "01.0.0", "1.0.0-", "1.0.0\n"])
def test_other_versions_are_refused(version: str) -> None:
    with pytest.raises(MisuseError, match="semantic version"):
        check_version(version)


@pytest.mark.parametrize("group", [">", "a.>", "a..b", "a b", "."])
def test_a_group_begins_subjects(group: str) -> None:
    with pytest.raises(InvalidSubjectError):
        check_group(group)
    assert check_group("a.*.b") == "a.*.b"
    assert check_group("") == ""


def test_a_queue_group_has_no_whitespace() -> None:
    assert (check_queue(""), check_queue("q")) == ("", "q")
    with pytest.raises(InvalidSubjectError):
        check_queue("a b")


def test_control_subjects_name_the_service_and_the_instance() -> None:
    assert control_subject("$SRV", "PING") == "$SRV.PING"
    assert control_subject("$SRV", "PING", "a") == "$SRV.PING.a"
    assert control_subject("X.Y", "INFO", "a", "7") == "X.Y.INFO.a.7"


def test_metadata_is_copied_and_text() -> None:
    given = {"a": "b"}
    found = text_map(given)
    given["a"] = "c"
    assert found == {"a": "b"}
    wrong: Any = {"a": 1}
    with pytest.raises(TypeError, match="names and values are str"):
        text_map(wrong)


def test_the_answers_have_the_fields_of_the_specification() -> None:
    endpoint = EndpointInfo(name="e", subject="s", metadata={"a": "b"}, schema=EndpointSchema("{}", "text"))
    info = json.loads(encode_record(ServiceInfo(name="n", id="i", version="1.0.0", endpoints=[endpoint])))
    assert info == {
        "type": "io.nats.micro.v1.info_response",
        "name": "n",
        "id": "i",
        "version": "1.0.0",
        "metadata": {},
        "description": "",
        "endpoints": [
            {
                "name": "e",
                "subject": "s",
                "queue_group": "",
                "metadata": {"a": "b"},
                "schema": {"request": "{}", "response": "text"},
            }
        ],
    }
    counts = EndpointStats(
        name="e", subject="s", num_requests=3, processing_time_ns=3000, average_processing_time_ns=1000
    )
    started = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
    stats = json.loads(encode_record(ServiceStats(endpoints=[counts], started=started)))
    assert stats["started"] == "2026-01-02T03:04:05.678000Z"
    assert stats["endpoints"][0] == {
        "name": "e",
        "subject": "s",
        "queue_group": "",
        "num_requests": 3,
        "num_errors": 0,
        "last_error": "",
        "data": None,
        "processing_time": 3000,
        "average_processing_time": 1000,
    }
    assert (counts.processing_time, counts.average_processing_time) == (3e-6, 1e-6)


def test_answers_of_other_clients_are_read_with_missing_null_and_further_fields() -> None:
    body = (
        b'{"type":"x","name":"n","id":"i","version":"1.0.0","metadata":null,"endpoints":null,'
        b'"started":"2026-01-02T03:04:05.123456789Z","more":{"a":[1]}}'
    )
    stats = decode_record(ServiceStats, body)
    assert (stats.name, stats.endpoints, stats.metadata) == ("n", None, None)
    assert stats.started.replace(microsecond=0) == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert decode_record(ServicePing, b"{}").metadata == {}
    with pytest.raises(ProtocolError, match="ServicePing can not be read"):
        decode_record(ServicePing, b"nonsense")


def test_a_service_error_is_one_line_and_survives_pickling() -> None:
    error = ServiceError(404, "no such\r\norder", data=b"17")
    assert str(error) == "no such order [404]"
    headers = {"Nats-Service-Error": "no such order", "Nats-Service-Error-Code": "404"}
    assert error.headers() == headers
    again = pickle.loads(pickle.dumps(error))
    assert (again.code, again.description, again.data) == (404, "no such order", b"17")
    found = ServiceError.of(headers, b"x")
    assert found is not None
    assert (found.code, found.description, found.data) == (404, "no such order", b"x")


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"Other": "x"}, None),
        ({"Nats-Service-Error": "bad"}, (500, "bad")),
        ({"Nats-Service-Error-Code": "417"}, (417, "")),
        ({"Nats-Service-Error": "bad", "Nats-Service-Error-Code": "x"}, (500, "bad")),
    ],
    ids=str,
)
def test_an_answer_is_an_error_when_it_has_one_of_the_headers(
    headers: dict[str, str], expected: tuple[int, str] | None
) -> None:
    found = ServiceError.of(headers, b"")
    assert (None if found is None else (found.code, found.description)) == expected
