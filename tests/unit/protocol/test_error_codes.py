"""schemas/errors.json, what is generated from it, and the generator."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from penstock.protocol import error_codes
from penstock.protocol.api import ApiError

ROOT = Path(__file__).resolve().parents[3]
ENTRIES = json.loads((ROOT / "schemas/errors.json").read_text())


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_errors", ROOT / "tools/generate_errors.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_committed_module_is_what_the_table_gives(generator: ModuleType) -> None:
    assert Path(error_codes.__file__).read_text() == generator.generate(ENTRIES)


def test_every_entry_is_a_constant_with_its_numbers(generator: ModuleType) -> None:
    assert len(ENTRIES) > 200
    for entry in ENTRIES:
        constant = getattr(error_codes, generator.constant_name(entry["name"]))
        assert constant == ApiError(entry["code"], entry["err_code"], entry["description"])


def test_names_are_unique_and_numbers_but_for_the_ones_with_two_meanings() -> None:
    names = [entry["name"] for entry in ENTRIES]
    assert len(set(names)) == len(names)
    numbers = [entry["err_code"] for entry in ENTRIES]
    assert {number for number in numbers if numbers.count(number) > 1} == {10203, 10204}


def test_two_names_that_would_become_one_constant_are_refused(generator: ModuleType) -> None:
    entry = {"name": "AErr", "code": 400, "err_code": 1, "description": "x"}
    with pytest.raises(SystemExit, match="AErrF"):
        generator.generate([entry, entry | {"name": "AErrF"}])


@pytest.mark.parametrize(
    ("name", "constant"),
    [
        ("StreamNotFoundErr", "STREAM_NOT_FOUND"),
        ("StreamWrongLastMsgIDErrF", "STREAM_WRONG_LAST_MSG_ID"),
        ("ConsumerWQRequiresExplicitAckErr", "CONSUMER_WQ_REQUIRES_EXPLICIT_ACK"),
        ("StreamGeneralErrorF", "STREAM_GENERAL"),
        ("InvalidJSONErr", "INVALID_JSON"),
        ("StreamStoreFailedF", "STREAM_STORE_FAILED"),
    ],
)
def test_names_become_constants(generator: ModuleType, name: str, constant: str) -> None:
    assert generator.constant_name(name) == constant
