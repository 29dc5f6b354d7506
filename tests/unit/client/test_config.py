"""Configurations and infos of the client: seconds in Python, nanoseconds on the wire."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client import config
from penstock.client.config import ConsumerConfig, StreamConfig, StreamConsumerLimits, make_config, to_wire
from penstock.errors import MisuseError
from penstock.protocol import api

pytestmark = pytest.mark.feature("client.jetstream-context")

PAIRS = [
    (StreamConfig, api.ApiStreamConfig),
    (ConsumerConfig, api.ApiConsumerConfig),
    (StreamConsumerLimits, api.ApiStreamConsumerLimits),
    (config.StreamInfo, api.ApiStreamInfo),
    (config.ConsumerInfo, api.ApiConsumerInfo),
    (config.StreamSourceInfo, api.ApiStreamSourceInfo),
]


@pytest.mark.parametrize(("ours", "wire"), PAIRS, ids=lambda kind: kind.__module__ + "." + kind.__name__)
def test_the_client_knows_every_field_of_the_wire(ours: type, wire: type) -> None:
    assert ours.__struct_fields__ == wire.__struct_fields__  # type: ignore[attr-defined]


def test_every_duration_of_the_wire_is_converted() -> None:
    found = {
        name
        for _, wire in PAIRS
        for name, kind in wire.__annotations__.items()
        if kind in ("DurationNs", "list[DurationNs]")
    }
    assert found - {"pause_remaining"} == config._DURATIONS


def test_a_plain_number_is_seconds_and_a_timedelta_says_the_same() -> None:
    for value in (30, 30.0, timedelta(seconds=30)):
        made = make_config(ConsumerConfig, {"ack_wait": value, "backoff": [value, 0.5]})
        assert made.ack_wait == 30
        wire = to_wire(made)
        assert (wire.ack_wait, wire.backoff) == (30_000_000_000, [30_000_000_000, 500_000_000])
    limits = {"consumer_limits": {"inactive_threshold": 1.5}}
    assert to_wire(make_config(StreamConfig, limits)).consumer_limits.inactive_threshold == 1_500_000_000


def test_a_timedelta_given_to_the_class_itself_is_converted_too() -> None:
    made = ConsumerConfig(ack_wait=timedelta(minutes=1))  # type: ignore[arg-type]
    assert to_wire(made).ack_wait == 60_000_000_000


@given(st.integers(0, 104 * 86400 * 10**6))
def test_durations_of_microseconds_survive_the_way_there_and_back(microseconds: int) -> None:
    wire = api.ApiStreamConfig(name="S", max_age=microseconds * 1000)
    assert to_wire(config.stream_config(wire)).max_age == wire.max_age


@pytest.mark.parametrize("value", [30_000_000_000, float("nan"), float("inf"), 1e300])
def test_what_is_no_number_of_seconds_is_refused(value: float) -> None:
    with pytest.raises(MisuseError, match=r"ack_wait is .*seconds"):
        to_wire(make_config(ConsumerConfig, {"ack_wait": value}))


def test_metadata_named_like_a_duration_stays_as_it_is() -> None:
    wire = to_wire(StreamConfig(name="S", metadata={"max_age": "7", "active": "1"}))
    assert wire.metadata == {"max_age": "7", "active": "1"}
    assert config.stream_config(wire).metadata == wire.metadata


def test_direct_gets_are_allowed_unless_switched_off() -> None:
    assert to_wire(StreamConfig(name="S")).allow_direct
    assert not to_wire(StreamConfig(name="S", allow_direct=False)).allow_direct
    assert not config.stream_config(api.ApiStreamConfig(name="S")).allow_direct


def test_a_value_the_wire_does_not_carry_names_its_field() -> None:
    with pytest.raises(MisuseError, match="first_seq"):
        to_wire(StreamConfig(name="S", first_seq=-1))


def test_names_of_nats_py_get_ours() -> None:
    with pytest.raises(MisuseError, match="use durable_name"):
        make_config(ConsumerConfig, {"durable": "D"})
    with pytest.raises(MisuseError, match="did you mean ack_wait"):
        make_config(ConsumerConfig, {"ackwait": 1})
