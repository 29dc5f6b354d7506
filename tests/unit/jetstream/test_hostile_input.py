"""The generator of hostile input leaves nothing out: every endpoint, every request, every field."""

from __future__ import annotations

import json

import msgspec
import pytest

from penstock.jetstream.api.service import TABLE
from penstock.protocol import api
from penstock.server.config.directives import _TOP
from penstock.server.monitoring.pages.table import PAGES
from tests.support import hostile
from tests.support.file_probes import DIRECTIVES
from tests.support.probes import BODILESS, SYSTEM_STRUCTS, TARGETS

# No endpoint reads them: a server alone refuses these requests whatever they say.
NOT_READ = {
    api.LeaderStepDownRequest,
    api.PeerRemoveRequest,
    api.ServerRemoveRequest,
    api.StreamMoveRequest,
}

pytestmark = pytest.mark.feature("stream.api-errors")


def test_every_endpoint_is_attacked() -> None:
    assert {".".join(verbs) for verbs in TABLE._by_verbs} == {*TARGETS, *BODILESS}


def test_every_request_struct_is_attacked() -> None:
    structs = {
        struct
        for name, struct in vars(api).items()
        if isinstance(struct, type) and issubclass(struct, msgspec.Struct) and name.endswith("Request")
    }
    assert structs - NOT_READ == {target.struct for target in TARGETS.values()}


def test_every_page_is_attacked() -> None:
    assert {entry.options for entry in PAGES.values()} - set(SYSTEM_STRUCTS.values()) <= {
        PAGES["routez"].options
    }


def test_every_directive_is_attacked() -> None:
    assert set(_TOP) <= set(DIRECTIVES)


def test_fields_are_found_at_any_depth() -> None:
    found = {field.name for field in hostile.fields_of(api.StreamConfigRequest)}
    assert {"max_msgs", "mirror.external.api", "sources.0.subject_transforms.0.dest", "metadata"} <= found


def test_a_value_is_put_where_its_field_is() -> None:
    base = {"name": "H", "sources": [{"name": "O"}]}
    body = hostile.with_field(base, ("sources", 0, "subject_transforms", 0, "dest"), b'"\\u0000"')
    assert json.loads(body) == {
        "name": "H",
        "sources": [{"name": "O", "subject_transforms": [{"dest": "\0"}]}],
    }
    assert hostile.with_field({}, ("max_msgs",), b"1e400") == b'{"max_msgs": 1e400}'


def test_fields_meet_numbers_depth_repetition_and_bad_text() -> None:
    field = next(field for field in hostile.fields_of(api.StreamConfigRequest) if field.name == "subjects")
    shapes = {value.shape for value in hostile.field_values(field)}
    assert {"1e400", "4,301 digits", "NaN", "bad UTF-8", "deep list (1000000)", "texts (60000)"} <= shapes
    assert all(value.data for value in hostile.field_values(field, (100,)) if value.shape != "empty")


def test_large_values_are_about_as_large_as_asked_for() -> None:
    for size in hostile.SIZES:
        for value in (*hostile.json_texts(size), *hostile.json_containers(size)):
            assert 0.4 * size < len(value.data) < 1.6 * size, value.shape
