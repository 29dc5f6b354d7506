"""Options are valid or they don't exist."""

from typing import Any

import pytest
from msgspec.structs import replace

from penstock.errors import ConfigError
from penstock.server.config.server_options import JetStreamOptions, ServerOptions, User

pytestmark = pytest.mark.feature("operations.configuration")

NAMES = {
    "ping_interval_ns": "ping_interval",
    "write_deadline_ns": "write_deadline",
    "auth_timeout_ns": r"authorization\.timeout",
    "lame_duck_duration_ns": "lame_duck_duration",
    "lame_duck_grace_period_ns": "lame_duck_grace_period",
}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("port", -2),
        ("port", 65536),
        ("http_port", -2),
        ("max_payload", 0),
        ("max_payload", 64 * 1024 * 1024 + 1),
        ("max_control_line", 0),
        ("max_pending", 0),
        ("max_pending", 1024),  # less than max_payload
        ("ping_interval_ns", 0),
        ("ping_max", 0),
        ("write_deadline_ns", 0),
        ("auth_timeout_ns", 0),
        ("lame_duck_duration_ns", 29_999_999_999),
        ("lame_duck_grace_period_ns", -1),
        ("server_name", "a b"),
        ("users", (User(name="", password="x"),)),
    ],
)
def test_a_value_out_of_bounds_is_refused(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=NAMES.get(field, field)):
        ServerOptions(**{field: value})


@pytest.mark.parametrize(("field", "value"), [("sync_interval_ns", 0), ("domain", "a.b"), ("domain", "*")])
def test_jetstream_options_have_bounds_too(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match="jetstream"):
        JetStreamOptions(**{field: value})


def test_a_changed_copy_is_checked_again() -> None:
    with pytest.raises(ConfigError):
        replace(ServerOptions(), port=70000)


def test_options_can_not_be_changed() -> None:
    with pytest.raises(AttributeError, match="immutable"):
        ServerOptions().port = 1  # type: ignore[misc]
