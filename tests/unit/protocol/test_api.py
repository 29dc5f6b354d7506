"""The JetStream API structs: JSON as the official server writes it, and clear errors."""

from __future__ import annotations

import json
import re

import msgspec
import pytest

from penstock import errors
from penstock.protocol import api
from penstock.protocol import error_codes as codes
from penstock.protocol.api import base
from penstock.protocol.json_names import with_declared_names

# What nats-server 2.15.2 answered to a create with name and subjects (metadata left out).
OFFICIAL_STREAM_CONFIG = json.loads(
    """{"name":"A","subjects":["a.\\u003e"],"retention":"limits","max_consumers":-1,"max_msgs":-1,
    "max_bytes":-1,"max_age":0,"max_msgs_per_subject":-1,"max_msg_size":-1,"discard":"old","storage":"file",
    "num_replicas":1,"duplicate_window":120000000000,"compression":"none","allow_direct":false,
    "mirror_direct":false,"sealed":false,"deny_delete":false,"deny_purge":false,"allow_rollup_hdrs":false,
    "consumer_limits":{},"allow_msg_ttl":false}"""
)
OFFICIAL_CONSUMER_INFO = json.loads(
    """{"type":"io.nats.jetstream.api.v1.consumer_info_response","stream_name":"A","name":"d",
    "created":"2026-11-21T09:10:49.524254583Z","config":{"durable_name":"d","name":"d",
    "deliver_policy":"all","ack_policy":"explicit","ack_wait":30000000000,"max_deliver":-1,
    "replay_policy":"instant","max_waiting":512,"max_ack_pending":1000,"num_replicas":0},
    "delivered":{"consumer_seq":0,"stream_seq":1},"ack_floor":{"consumer_seq":0,"stream_seq":1},
    "num_ack_pending":0,"num_redelivered":0,"num_waiting":0,"num_pending":1,
    "ts":"2026-11-21T09:10:49.526570227Z"}"""
)
OFFICIAL_ACCOUNT_INFO = json.loads(
    """{"type":"io.nats.jetstream.api.v1.account_info_response","memory":0,"storage":0,"reserved_memory":0,
    "reserved_storage":0,"streams":0,"consumers":0,"limits":{"max_memory":-1,"max_storage":-1,
    "max_streams":-1,"max_consumers":-1,"max_ack_pending":-1,"memory_max_stream_bytes":-1,
    "storage_max_stream_bytes":-1,"max_bytes_required":false},"api":{"level":5,"total":0,"errors":0}}"""
)
OFFICIAL_STREAM_INFO = json.loads(
    """{"type":"io.nats.jetstream.api.v1.stream_info_response","total":1,"offset":0,"limit":100000,
    "config":{"name":"M","retention":"limits","max_consumers":-1,"max_msgs":-1,"max_bytes":-1,"max_age":0,
    "max_msgs_per_subject":-1,"max_msg_size":-1,"discard":"old","storage":"file","num_replicas":1,
    "mirror":{"name":"A"},"compression":"none","allow_direct":false,"mirror_direct":false,"sealed":false,
    "deny_delete":false,"deny_purge":false,"allow_rollup_hdrs":false,"consumer_limits":{},
    "allow_msg_ttl":false},"created":"2026-11-21T09:10:49.531146174Z","state":{"messages":1,"bytes":38,
    "first_seq":2,"first_ts":"2026-11-21T09:10:49.520549377Z","last_seq":2,
    "last_ts":"2026-11-21T09:10:49.520549377Z","num_subjects":1,"subjects":{"a.c":1},"consumer_count":0},
    "mirror":{"name":"A","lag":0,"active":-1},"ts":"2026-11-21T09:10:49.833742979Z"}"""
)


@pytest.mark.parametrize(
    ("kind", "official"),
    [
        (api.ApiStreamConfig, OFFICIAL_STREAM_CONFIG),
        (api.ConsumerInfoResponse, OFFICIAL_CONSUMER_INFO),
        (api.AccountInfoResponse, OFFICIAL_ACCOUNT_INFO),
        (api.StreamInfoResponse, OFFICIAL_STREAM_INFO),
    ],
)
def test_what_the_official_server_writes_comes_out_field_for_field(kind: type, official: dict) -> None:
    value = api.decode(kind, json.dumps(official).encode())
    assert json.loads(api.encode(value)) == official


def test_a_request_leaves_out_what_is_not_set() -> None:
    assert api.encode(api.PullRequest(batch=5)) == b'{"batch":5}'
    assert api.encode(api.MsgGetRequest(last_by_subj="a")) == b'{"last_by_subj":"a"}'
    assert api.encode(api.StreamPurgeRequest()) == b"{}"


def test_empty_lists_of_names_are_written() -> None:
    assert json.loads(api.encode(api.StreamNamesResponse()))["streams"] == []
    assert json.loads(api.encode(api.ConsumerListResponse()))["consumers"] == []


def test_unknown_fields_and_nulls_are_accepted() -> None:
    config = api.decode(
        api.StreamConfigRequest,
        b'{"name":"S","subjects":null,"mirror":null,"from_the_future":{"a":1},"pedantic":true}',
    )
    assert config.subjects == []
    assert config.pedantic
    assert config.config() == api.ApiStreamConfig(name="S")


def test_an_empty_body_is_a_request_with_nothing_set() -> None:
    assert api.decode(api.StreamNamesRequest, b"") == api.StreamNamesRequest()


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"max_msgs":"x"}', "can not read `max_msgs`: expected `int`, got `str`"),
        (b'{"sources":[{"name":1}]}', "can not read `sources[0].name`: expected `str`, got `int`"),
        (b'{"retention":"foo"}', "can not read `retention`: invalid enum value 'foo'"),
        (b"[]", "expected `object`, got `array`"),
        (b'{"name', "unexpected EOF"),
        (b'{"name":null,"max_msgs":"x"}', "can not read `max_msgs`"),
    ],
)
def test_bad_json_says_which_field_and_why(body: bytes, text: str) -> None:
    with pytest.raises(api.DecodeError) as caught:
        api.decode(api.StreamConfigRequest, body)
    assert text in str(caught.value)


def test_a_struct_that_forbids_unknown_fields_names_them_as_the_official_server_does() -> None:
    strict = msgspec.defstruct(
        "Strict", [("name", str, ""), ("inner", dict[str, int], {})], forbid_unknown_fields=True
    )
    with pytest.raises(api.DecodeError, match=r'^json: unknown field "foo"$'):
        api.decode(strict, b'{"foo":1}')


def test_a_refusal_in_a_response_is_raised() -> None:
    body = b'{"type":"t","error":{"code":404,"err_code":10059,"description":"stream not found"},"total":0}'
    with pytest.raises(errors.StreamNotFoundError) as caught:
        api.decode_response(api.StreamInfoResponse, body, request="$JS.API.STREAM.INFO.S")
    assert caught.value.err_code == 10059
    assert "$JS.API.STREAM.INFO.S" in str(caught.value)


def test_the_word_error_inside_a_response_is_no_refusal() -> None:
    body = json.dumps(
        OFFICIAL_STREAM_INFO
        | {"mirror": {"name": "A", "lag": 0, "active": -1, "error": {"code": 404, "description": "gone"}}}
    )
    info = api.decode_response(api.StreamInfoResponse, body.encode())
    assert info.mirror is not None
    assert info.mirror.error == api.ApiError(404, 0, "gone")


def test_message_bodies_are_base64_on_the_wire() -> None:
    body = api.StoredMessageBody(subject="a", seq=1, data=b"hello", time="2026-11-21T09:10:49.5Z")
    assert json.loads(api.encode(body))["data"] == "aGVsbG8="
    assert api.decode(api.StoredMessageBody, api.encode(body)).data == b"hello"


def test_a_configuration_is_frozen_and_replaced() -> None:
    config = api.ApiStreamConfig(name="S")
    with pytest.raises(AttributeError):
        config.name = "T"  # type: ignore[misc]
    assert msgspec.structs.replace(config, max_msgs=5).max_msgs == 5


def test_templates_are_filled_in_and_become_exceptions() -> None:
    refused = codes.STREAM_WRONG_LAST_SEQUENCE.exception(seq=7)
    assert isinstance(refused, errors.WrongLastSequenceError)
    assert api.ApiError.from_exception(refused) == api.ApiError(400, 10071, "wrong last sequence: 7")
    assert codes.STREAM_INVALID_CONFIG.format(err="{seq}").description == "{seq}"


def test_fast_ingest_errors_bear_the_specifications_numbers_and_know_the_official_ones() -> None:
    assert codes.BATCH_PUBLISH_DISABLED.err_code == 10203
    assert codes.BATCH_PUBLISH_UNKNOWN_BATCH_ID.err_code == 10206
    assert codes.OFFICIAL[codes.BATCH_PUBLISH_DISABLED].err_code == 10205
    assert codes.OFFICIAL[codes.BATCH_PUBLISH_UNKNOWN_BATCH_ID].err_code == 10208
    assert codes.MESSAGE_SCHEDULES_SOURCE_INVALID.err_code == 10203


_STRICT = msgspec.defstruct(
    "StrictConfig",
    [("name", str, ""), ("max_msgs", int, 0), ("metadata", dict[str, str], {})],
    forbid_unknown_fields=True,
)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"name":"S","colour\x8e":1}', 'json: unknown field "colour\ufffd"'),
        (b'{"name":"S","max_msgs":null,', "unexpected EOF"),
        (b'{"name":"S","max_msgs":null,"max_msgs":null,"x\x8e', "unexpected EOF"),
        (b'{"name":null,"metadata":' + b'{"a":' * 50_000, "exceeded max depth"),
    ],
)
def test_no_body_makes_anything_but_a_decode_error(body: bytes, message: str) -> None:
    with pytest.raises(api.DecodeError, match=re.escape(message)):
        api.decode(_STRICT, body)


def test_what_is_no_utf8_becomes_the_replacement_character() -> None:
    assert api.decode(api.StreamConfigRequest, b'{"name":"S","description":"\x8e"}').description == "\ufffd"


def test_nulls_and_bad_utf8_are_put_up_with_in_bodies_of_a_bounded_size() -> None:
    def read(body: bytes, size: int) -> api.ApiStreamConfig:
        return api.decode(api.ApiStreamConfig, body % (b"x" * size))

    null, bad = b'{"max_msgs":null,"description":"%s"}', b'{"name":"\xff","description":"%s"}'
    for size in (10, base.REPAIR_MAX - 100):
        assert read(null, size).max_msgs == 0
        assert read(bad, size).name == "\ufffd"
    with pytest.raises(api.DecodeError, match="can not read `max_msgs`: expected `int`, got `null`"):
        read(null, base.REPAIR_MAX)
    with pytest.raises(api.DecodeError, match="invalid UTF-8 in"):
        read(bad, base.REPAIR_MAX)


@pytest.mark.parametrize(
    ("body", "renamed"),
    [
        (b'{"NAME":"S"}', b'{"name":"S"}'),
        (b'{"NAME":"U","name":"T","Name":"V"}', b'{"name":"V"}'),  # the last one counts
        (b'{"\xc5\xbfUBJECT\xc5\xbf":["a"],"\xe2\x84\xaaeep":1}', b'{"subjects":["a"],"\xe2\x84\xaaeep":1}'),
        (
            b'{"Mirror":{"NAME":"M","External":{"API":"a"}}}',
            b'{"mirror":{"name":"M","external":{"api":"a"}}}',
        ),
        (b'{"sources":[{"NAME":"A"},{"Name":"B"}]}', b'{"sources":[{"name":"A"},{"name":"B"}]}'),
        (b'{"Metadata":{"Name":"kept"},"Colour":1e999}', b'{"metadata":{"Name":"kept"},"Colour":1e999}'),
        (b'{"NAME":[{"A":1}],"Mirror":"M"}', b'{"name":[{"A":1}],"mirror":"M"}'),
    ],
)
def test_names_in_another_case_are_the_declared_ones(body: bytes, renamed: bytes) -> None:
    assert with_declared_names(api.StreamConfigRequest, body) == renamed


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"X",
        b'{ "name": "S", "subjects": ["orders.NEW"] }',
        b'{"NAME":"S"',
        b'{"NAME\xff":"S"}',
        b'{"NAME":' * 50_000,
        b'{"SOURCES":' + b"[" * 50_000,
        b'{"NAME":"%s"}' % (b"x" * base.REPAIR_MAX),
    ],
)
def test_a_body_without_such_a_name_or_that_is_too_large_stays_as_it_is(body: bytes) -> None:
    assert with_declared_names(api.StreamConfigRequest, body) is body
