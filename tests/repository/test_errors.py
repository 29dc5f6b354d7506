"""The exception tree."""

from __future__ import annotations

import inspect
import pickle

import pytest

from penstock import errors


def test_everything_descends_from_one_base() -> None:
    classes = [
        one for _, one in inspect.getmembers(errors, inspect.isclass) if one.__module__ == errors.__name__
    ]
    assert classes
    assert all(issubclass(one, errors.PenstockError) for one in classes)


def test_the_tree_at_the_head_of_the_module_names_every_class() -> None:
    classes = [
        name for name, one in inspect.getmembers(errors, inspect.isclass) if one.__module__ == errors.__name__
    ]
    tree = errors.__doc__ or ""
    assert [name for name in classes if name not in tree] == []


@pytest.mark.parametrize(
    ("code", "err_code", "kind"),
    [
        (404, 10059, errors.StreamNotFoundError),
        (404, 10014, errors.ConsumerNotFoundError),
        (404, 10037, errors.MessageNotFoundError),
        (404, 19999, errors.NotFoundError),
        (400, 10058, errors.AlreadyExistsError),
        (400, 10164, errors.WrongLastSequenceError),
        (400, 19999, errors.JetStreamApiError),
    ],
)
def test_an_error_code_has_its_class(code: int, err_code: int, kind: type) -> None:
    assert type(errors.JetStreamApiError.of(code, err_code, "text")) is kind


def test_an_api_error_survives_pickling() -> None:
    error = errors.JetStreamApiError.of(404, 10059, "stream not found", stream="S", request="$JS.API.X")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is errors.StreamNotFoundError
    assert (again.code, again.err_code, again.description, again.stream, again.request) == (
        404, 10059, "stream not found", "S", "$JS.API.X",
    )  # fmt: skip


def test_a_configuration_error_says_where() -> None:
    assert (
        str(errors.ConfigError("unknown field", file="a.conf", line=3, column=7))
        == "a.conf:3:7: unknown field"
    )
    assert str(errors.ConfigError("unknown field")) == "unknown field"


def test_a_timeout_is_a_timeout_to_the_standard_library_too() -> None:
    assert issubclass(errors.RequestTimeoutError, TimeoutError)
    assert issubclass(errors.MisuseError, ValueError)
