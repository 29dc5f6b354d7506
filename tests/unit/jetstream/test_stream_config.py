"""Stream configurations: what is filled in, what is refused, what an update may change."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import JetStreamApiError
from penstock.jetstream import stream_config as rules
from penstock.jetstream.limits import EngineConfig
from penstock.protocol.api import (
    ApiStreamConfig,
    DiscardPolicy,
    PersistMode,
    Placement,
    StorageType,
    StreamConfigRequest,
    StreamConsumerSource,
    StreamSource,
    SubjectTransform,
)

pytestmark = pytest.mark.feature("stream.api")

ENGINE = EngineConfig(version="2.14.0", api_level=3)
SECOND = 1_000_000_000


def checked(**fields: Any) -> ApiStreamConfig:
    return rules.checked(StreamConfigRequest(**{"name": "S", "subjects": ["s"], **fields}), ENGINE)


def refusal(**fields: Any) -> tuple[int, str]:
    with pytest.raises(JetStreamApiError) as caught:
        checked(**fields)
    return caught.value.err_code, caught.value.description


def test_limits_that_say_nothing_become_minus_one() -> None:
    names = ("max_msgs", "max_bytes", "max_msg_size", "max_consumers", "max_msgs_per_subject")
    for value in (0, -1, -7):
        config = checked(**dict.fromkeys(names, value))
        assert {getattr(config, name) for name in names} == {-1}
    assert checked(max_msgs=5).max_msgs == 5


@pytest.mark.parametrize("name", ["max_msgs", "max_bytes", "max_msg_size", "max_consumers"])
def test_pedantic_requests_must_say_what_they_mean(name: str) -> None:
    assert refusal(**{name: -2}, pedantic=True) == (10157, f"pedantic mode: {name} must be set to -1")


def test_the_dedupe_window_follows_the_age() -> None:
    assert checked().duplicate_window == 120 * SECOND
    assert checked(max_age=SECOND).duplicate_window == SECOND
    assert checked(max_age=300 * SECOND).duplicate_window == 120 * SECOND
    assert checked(max_age=SECOND, duplicate_window=SECOND // 2).duplicate_window == SECOND // 2


def test_a_stream_without_subjects_takes_its_name() -> None:
    assert rules.checked(StreamConfigRequest(name="S"), ENGINE).subjects == ["S"]


@pytest.mark.parametrize("name", ["", "a.b", "a*", "a>", "a b", "a\tb", "a\n"])
def test_bad_names_are_refused(name: str) -> None:
    assert refusal(name=name) == (
        10052,
        "stream name is required and can not contain '.', '*', '>', '\\', '/'",
    )


def test_long_names_and_path_separators_are_refused() -> None:
    assert refusal(name="x" * 256) == (10052, "stream name is too long, maximum allowed is 255")
    for name in ("a/b", "a\\b"):
        assert refusal(name=name) == (10128, "Stream name can not contain path separators")


REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({"num_replicas": -1}, 10133, "replicas count cannot be negative"),
    ({"num_replicas": 3}, 10074, "replicas > 1 not supported in non-clustered mode"),
    ({"num_replicas": 7}, 10052, "maximum replicas is 5"),
    ({"description": "x" * 4097}, 10052, "stream description is too long, maximum allowed is 4096"),
    ({"metadata": {"a": "x" * 140_000}}, 10052, "stream metadata exceeds maximum size of 131072 bytes"),
    ({"max_age": 1000}, 10052, "max age needs to be >= 100ms"),
    ({"max_age": -1}, 10052, "max age can not be negative"),
    ({"duplicate_window": -1}, 10052, "duplicates window can not be negative"),
    ({"duplicate_window": 1000}, 10052, "duplicates window needs to be >= 100ms"),
    (
        {"max_age": SECOND, "duplicate_window": 2 * SECOND},
        10052,
        "duplicates window can not be larger then max age",
    ),
    ({"mirror_direct": True}, 10052, "stream has no mirror but does have mirror direct"),
    ({"mirror_direct": True}, 10052, "stream has no mirror but does have mirror direct"),
    ({"sealed": True}, 10052, "stream configuration for create can not be sealed"),
    ({"deny_purge": True, "allow_rollup_hdrs": True}, 10052, "roll-ups require the purge permission"),
    (
        {"discard_new_per_subject": True},
        10052,
        "discard new per subject requires discard new policy to be set",
    ),
    (
        {"discard_new_per_subject": True, "discard": DiscardPolicy.NEW},
        10052,
        "discard new per subject requires max msgs per subject > 0",
    ),
    ({"subjects": ["b..x"]}, 10052, "invalid subject"),
    ({"subjects": [""]}, 10052, "invalid subject"),
    ({"subjects": ["b.>", "b.*"]}, 10052, 'subject "b.>" overlaps with "b.*"'),
    ({"subjects": ["b", "b"]}, 10052, 'subject "b" overlaps with "b"'),
    ({"subjects": [">"]}, 10052, "capturing all subjects requires no-ack to be true"),
]


@pytest.mark.parametrize(("fields", "err_code", "text"), REFUSED)
def test_what_makes_no_sense_is_refused(fields: dict[str, Any], err_code: int, text: str) -> None:
    assert refusal(**fields) == (err_code, text)


JETSTREAM = "subjects that overlap with jetstream api require no-ack to be true"
SYSTEM = "subjects that overlap with system api require no-ack to be true"


@pytest.mark.parametrize(
    ("subject", "text"),
    [
        ("$JS.API.>", JETSTREAM),
        ("*.x", JETSTREAM),
        ("*.>", JETSTREAM),
        ("$JSC.x", JETSTREAM),
        ("$NRG.a", JETSTREAM),
        ("$SYS.x", SYSTEM),
        ("$JS.EVENT.>", ""),
        ("$JS.EVENT.ADVISORY.*", ""),
        ("$SYS.ACCOUNT.>", ""),
        ("*", ""),
        ("$KV.>", ""),
        ("a*b.>", ""),
    ],
)
def test_the_servers_own_subjects_need_no_ack(subject: str, text: str) -> None:
    if text:
        assert refusal(subjects=[subject]) == (10052, text)
    assert checked(subjects=[subject], no_ack=bool(text)).subjects == [subject]


def test_a_source_may_name_a_durable_consumer_and_no_filter_or_start_of_its_own() -> None:
    consumer = StreamConsumerSource(name="c", deliver_subject="d")
    for more, is_fine in (
        ({}, True),
        ({"filter_subject": "s"}, False),
        ({"opt_start_seq": 3}, False),
        ({"opt_start_time": "2024-01-01T00:00:00Z"}, False),
    ):
        source = StreamSource(name="O", consumer=consumer, **more)
        if is_fine:
            assert checked(sources=[source]).sources == [source]
            assert checked(mirror=source, subjects=[]).mirror == source
        else:
            assert refusal(sources=[source])[0] == 10215
            assert refusal(mirror=source, subjects=[])[0] == 10213
    twice = [
        StreamSource(name="O", consumer=consumer),
        StreamSource(name="O", consumer=consumer, subject_transforms=[SubjectTransform(src="a", dest="b")]),
    ]
    assert refusal(sources=twice)[0] == 10216


@pytest.mark.feature("fast-ingest.settings")
def test_fast_batches_need_level_4_and_are_not_for_mirrors() -> None:
    assert checked(allow_batched=True).metadata == {"_nats.req.level": "4"}
    config = checked(allow_batched=True, persist_mode=PersistMode.ASYNC)
    assert (config.allow_batched, config.persist_mode) == (True, PersistMode.ASYNC)
    mirror = StreamSource(name="M")
    assert refusal(allow_batched=True, mirror=mirror, subjects=[])[0] == 10209


def test_delete_markers_switch_on_what_they_need() -> None:
    config = checked(subject_delete_marker_ttl=SECOND, deny_purge=True)
    assert (config.allow_msg_ttl, config.allow_rollup_hdrs, config.deny_purge) == (True, True, False)
    assert config.metadata == {"_nats.req.level": "1"}
    assert refusal(subject_delete_marker_ttl=-1) == (10052, "subject delete marker TTL must not be negative")
    assert refusal(subject_delete_marker_ttl=1000) == (
        10052,
        "subject delete marker TTL must be at least 1 second",
    )
    cannot = "subject delete marker cannot be set if "
    asked: dict[str, Any] = {"subject_delete_marker_ttl": SECOND, "pedantic": True}
    assert refusal(**asked) == (10052, cannot + "message TTLs are disabled")
    assert refusal(**asked, allow_msg_ttl=True) == (10052, cannot + "roll-ups are disabled")


def test_placement_is_kept_for_the_day_there_is_a_choice() -> None:
    assert checked(placement=Placement(cluster="x")).placement == Placement(cluster="x")


def test_versions_are_shown_and_not_stored() -> None:
    stored = checked(metadata={"k": "v", "_nats.ver": "9", "_nats.level": "9"})
    assert stored.metadata == {"_nats.req.level": "0", "k": "v"}
    assert rules.with_versions(stored, ENGINE).metadata == {
        "_nats.level": "3",
        "_nats.req.level": "0",
        "_nats.ver": "2.14.0",
        "k": "v",
    }
    assert rules.same(stored, rules.with_versions(stored, ENGINE))
    assert not rules.same(stored, checked(metadata={"k": "w"}))


def updated(present: ApiStreamConfig, **fields: Any) -> ApiStreamConfig:
    return rules.updated(present, StreamConfigRequest(**{"name": "S", "subjects": ["s"], **fields}), ENGINE)


@pytest.mark.parametrize(
    ("present", "fields", "text"),
    [
        ({}, {"storage": StorageType.MEMORY}, "stream configuration update can not change storage type"),
        ({"deny_delete": True}, {}, "stream configuration update can not cancel deny message deletes"),
        ({"deny_purge": True}, {}, "stream configuration update can not cancel deny purge"),
        ({"allow_msg_ttl": True}, {}, "message TTL status can not be disabled"),
    ],
)
def test_updates_may_not_change_everything(
    present: dict[str, Any], fields: dict[str, Any], text: str
) -> None:
    with pytest.raises(JetStreamApiError, match=text):
        updated(checked(**present), **fields)


def test_a_sealed_stream_stays_sealed() -> None:
    sealed = updated(checked(), sealed=True, max_age=10 * SECOND, allow_rollup_hdrs=True)
    assert (sealed.sealed, sealed.max_age, sealed.discard) == (True, 0, DiscardPolicy.NEW)
    assert (sealed.deny_delete, sealed.deny_purge, sealed.allow_rollup_hdrs) == (True, True, False)
    with pytest.raises(JetStreamApiError, match="can not unseal a sealed stream"):
        updated(sealed, deny_delete=True, deny_purge=True)
    assert updated(sealed, sealed=True, deny_delete=True, deny_purge=True, description="d").description == "d"


def test_an_update_replaces_the_whole_configuration() -> None:
    config = updated(checked(max_msgs=5, description="d"), max_bytes=7)
    assert (config.max_msgs, config.max_bytes, config.description) == (-1, 7, "")
