"""Keys, filters, entries and configurations of buckets, without a server."""

from __future__ import annotations

import re
import string
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client import (
    KeyValueConfig,
    KeyValueSettings,
    ObjectStoreConfig,
    StorageType,
    StreamSource,
)
from penstock.client.keyvalue import bulk_get
from penstock.client.keyvalue.bucket_config import config_of, make_key_value_config, stream_config_of
from penstock.client.keyvalue.key_entry import KeyOperation, operation_of
from penstock.client.keyvalue.key_subjects import KeySubjects, check_key, check_key_filter, is_valid_key
from penstock.client.objectstore.object_config import make_store_config
from penstock.errors import InvalidKeyError, KeyExistsError, KeyNotFoundError
from penstock.protocol.api import ExternalStream, SubjectTransform
from penstock.protocol.headers import build
from penstock.protocol.subjects import is_valid_filter, is_valid_subject
from tests.support.examples import examples

pytestmark = pytest.mark.feature("key-value.client")

ALPHABET = string.ascii_letters + string.digits + "-_/="
KEY_LIKE = st.text(st.sampled_from(ALPHABET + ".*> \n\0ä"), max_size=12)


@given(st.one_of(KEY_LIKE, st.text(max_size=8)))
def test_a_key_is_valid_as_the_specification_says(key: str) -> None:
    """ADR-8: the alphabet, no dot at either end, and none beside another."""
    expected = (
        re.fullmatch(r"[-/_=.a-zA-Z0-9]+", key) is not None
        and not key.startswith(".")
        and not key.endswith(".")
        and ".." not in key
    )
    assert is_valid_key(key) == expected
    if expected:
        assert check_key(key, "B") == key
        assert is_valid_subject(f"$KV.B.{key}")


@given(st.lists(st.one_of(st.text(ALPHABET, min_size=1, max_size=3), st.sampled_from("*>")), min_size=1))
def test_a_filter_has_whole_tokens_as_wildcards_and_the_tail_last(tokens: list[str]) -> None:
    pattern = ".".join(tokens)
    if ">" in tokens[:-1]:
        with pytest.raises(InvalidKeyError):
            check_key_filter(pattern, "B")
    else:
        assert check_key_filter(pattern, "B") == pattern
        assert is_valid_filter(f"$KV.B.{pattern}")


@pytest.mark.parametrize("pattern", ["", "a*", "*a", "a.>b", ">.a", ".", "a.", "a b", "a..>"])
def test_what_could_match_no_key_is_no_filter(pattern: str) -> None:
    with pytest.raises(InvalidKeyError):
        check_key_filter(pattern, "B")


@pytest.mark.parametrize(
    ("headers", "operation"),
    [
        ([], "PUT"),
        ([("A", "b")], "PUT"),
        ([("KV-Operation", "DEL")], "DEL"),
        ([("KV-Operation", "PURGE"), ("Nats-Rollup", "sub")], "PURGE"),
        ([("KV-Operation", "NEW")], "PUT"),
        ([("Nats-Marker-Reason", "MaxAge")], "PURGE"),
        ([("Nats-Marker-Reason", "Purge")], "PURGE"),
        ([("Nats-Marker-Reason", "Remove")], "DEL"),
        ([("Nats-Marker-Reason", "Remove"), ("KV-Operation", "PURGE")], "PURGE"),
    ],
)
def test_headers_say_what_an_entry_is(headers: list[tuple[str, str]], operation: str) -> None:
    assert operation_of(build(headers)) is KeyOperation(operation)
    assert operation_of(None) is KeyOperation.PUT


def test_settings_and_configuration_have_the_same_fields() -> None:
    fields = set(KeyValueConfig.__struct_fields__) - {"bucket"}
    assert set(KeyValueSettings.__annotations__) == fields


@given(
    st.builds(
        KeyValueConfig,
        bucket=st.just("B"),
        description=st.text(max_size=5),
        max_value_size=st.sampled_from([-1, 1, 1000]),
        history=st.integers(1, 64),
        ttl=st.sampled_from([0, 1, 119.5, 120, 86400]),
        max_bytes=st.sampled_from([-1, 1000]),
        storage=st.sampled_from(["file", "memory"]),
        replicas=st.sampled_from([1, 3]),
        compression=st.booleans(),
        limit_marker_ttl=st.sampled_from([0, 1, 60]),
        allow_atomic=st.booleans(),
        metadata=st.dictionaries(st.text("ab", max_size=2), st.text(max_size=2), max_size=2),
    )
)
def test_a_stream_holds_all_of_a_buckets_configuration(config: KeyValueConfig) -> None:
    stream = stream_config_of(config)
    assert config_of(stream) == config
    assert config_of(stream_config_of(config, stream)) == config
    assert stream.duplicate_window == (min(config.ttl, 120) if config.ttl else 120)


def test_a_configuration_may_have_what_settings_may_have() -> None:
    config = KeyValueConfig(
        bucket="B",
        ttl=timedelta(hours=1),  # type: ignore[arg-type]
        sources=["A", StreamSource(name="KV_C")],  # type: ignore[list-item]
        storage="memory",  # type: ignore[arg-type]
    )
    made = make_key_value_config(config, {"history": 2, "limit_marker_ttl": timedelta(minutes=1)})
    assert (made.ttl, made.limit_marker_ttl, made.history, made.storage) == (3600, 60, 2, StorageType.MEMORY)
    assert [one.name for one in made.sources] == ["A", "KV_C"]
    store = make_store_config(ObjectStoreConfig(bucket="B", ttl=timedelta(hours=1)), {})  # type: ignore[arg-type]
    assert store.ttl == 3600


def test_an_update_keeps_what_a_bucket_has_no_name_for() -> None:
    stored = stream_config_of(KeyValueConfig(bucket="B"))
    stored = type(stored)(**{**{f: getattr(stored, f) for f in stored.__struct_fields__}, "sealed": True,
                             "allow_msg_ttl": True})  # fmt: skip
    updated = stream_config_of(make_key_value_config("B", {"history": 3}, config_of(stored)), stored)
    assert (updated.sealed, updated.allow_msg_ttl, updated.max_msgs_per_subject) == (True, True, 3)


def test_a_mirrors_keys_are_those_of_its_origin() -> None:
    def subjects(mirror: StreamSource | str | None, prefix: str = "$JS.API") -> KeySubjects:
        config = make_key_value_config("M", {"mirror": mirror})
        return KeySubjects.of(stream_config_of(config), prefix)

    assert subjects(None) == KeySubjects("$KV.M.", "$KV.M.")
    assert subjects(None, "$JS.hub.API") == KeySubjects("$KV.M.", "$JS.hub.API.$KV.M.")
    assert subjects("B") == KeySubjects("$KV.B.", "$KV.B.")
    outside = StreamSource(name="KV_B", external=ExternalStream(api="$JS.hub.API", deliver=""))
    assert subjects(outside) == KeySubjects("$KV.B.", "$JS.hub.API.$KV.B.")
    assert subjects(outside, "$JS.leaf.API") == KeySubjects("$KV.B.", "$JS.hub.API.$KV.B.")


def test_sources_are_stored_below_the_buckets_own_subjects() -> None:
    own = SubjectTransform(src="$KV.T.a.>", dest="$KV.B.>")
    external = ExternalStream(api="$JS.hub.API", deliver="")
    given = [
        "A",
        StreamSource(name="KV_K"),
        StreamSource(name="T", subject_transforms=[own]),
        StreamSource(name="B", external=external),
    ]
    stream = stream_config_of(make_key_value_config("B", {"sources": given}))
    assert stream.subjects == ["$KV.B.>"]
    assert [(one.name, one.subject_transforms) for one in stream.sources] == [
        ("KV_A", [SubjectTransform(src="$KV.A.>", dest="$KV.B.>")]),
        ("KV_K", [SubjectTransform(src="$KV.K.>", dest="$KV.B.>")]),
        ("KV_T", [own]),
        ("KV_B", []),
    ]


@given(st.lists(st.text("a", min_size=1, max_size=300), max_size=examples(3000)), st.integers(10, 5000))
def test_chunks_of_keys_fit_into_a_request_each(subjects: list[str], limit: int) -> None:
    bulk_get.REQUEST_BYTES_MAX, before = limit, bulk_get.REQUEST_BYTES_MAX
    try:
        chunks = list(bulk_get.chunks_of(subjects))
    finally:
        bulk_get.REQUEST_BYTES_MAX = before
    assert [one for chunk in chunks for one in chunk] == subjects
    for chunk in chunks:
        assert 1 <= len(chunk) <= bulk_get.KEYS_MAX
        assert len(chunk) == 1 or sum(len(one) + 3 for one in chunk) <= limit


def test_errors_about_keys_survive_pickling() -> None:
    import pickle

    error = KeyNotFoundError(404, 10037, "no key", bucket="B", key="k", revision=3)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.bucket, again.key, again.revision) == (
        KeyNotFoundError, str(error), "B", "k", 3,
    )  # fmt: skip
    exists = pickle.loads(pickle.dumps(KeyExistsError(400, 10071, "x", bucket="B", key="k", found=4)))
    assert (exists.key, exists.found) == ("k", 4)
