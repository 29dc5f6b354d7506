"""Options of `stream add`, `edit` and `copy`, and the configuration they make.

The options are those of the official command line. Configurations are dictionaries with the API's names
and units (durations in nanoseconds), as in files of `--config` and in the output of `stream info --json`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from penstock.cli.framework.command_parser import UsageError
from penstock.cli.framework.command_table import Option
from penstock.cli.framework.command_values import CommandValues
from penstock.cli.framework.questions import Question
from penstock.cli.framework.value_kinds import count, existing_file, pair, seconds, size, whole
from penstock.client.config import StreamConfig, stream_config
from penstock.errors import MisuseError
from penstock.protocol.api import ApiStreamConfig

CONFIG = Option(
    names=("--config",), convert=existing_file, help="JSON file with a configuration; options change it"
)
_RETENTIONS = {"limits": "limits", "interest": "interest", "work": "workqueue", "workqueue": "workqueue"}

# Options whose value goes into the configuration as it is, and its name there.
_PLAIN: tuple[tuple[Option, str], ...] = (
    (
        Option(names=("--subjects",), repeated=True, commas=True, help="Subjects that the stream stores"),
        "subjects",
    ),
    (Option(names=("--description",), help="A description"), "description"),
    (
        Option(names=("--storage",), choices=("file", "memory", "f", "m"), help="Where messages are stored"),
        "storage",
    ),
    (
        Option(names=("--compression",), choices=("none", "s2"), help="Compression of files of messages"),
        "compression",
    ),
    (Option(names=("--replicas",), convert=count, help="Copies of the data in a cluster"), "num_replicas"),
    (
        Option(names=("--retention",), choices=tuple(_RETENTIONS), help="What keeps a message"),
        "retention",
    ),
    (
        Option(
            names=("--discard",), choices=("old", "new"), help="What goes at a limit: old messages or new"
        ),
        "discard",
    ),
    (
        Option(
            names=("--discard-per-subject",),
            convert=bool,
            negatable=True,
            help="Refuse new messages of a subject that is at its limit",
        ),
        "discard_new_per_subject",
    ),
    (Option(names=("--first-sequence",), convert=whole, help="Sequence of the first message"), "first_seq"),
    (Option(names=("--max-age",), convert=seconds, help="How long messages are kept"), "max_age"),
    (Option(names=("--max-bytes",), convert=size, help="Most bytes to keep"), "max_bytes"),
    (Option(names=("--max-consumers",), convert=whole, help="Most consumers"), "max_consumers"),
    (Option(names=("--max-msg-size",), convert=size, help="Largest message"), "max_msg_size"),
    (Option(names=("--max-msgs",), convert=whole, help="Most messages to keep"), "max_msgs"),
    (
        Option(names=("--max-msgs-per-subject",), convert=whole, help="Most messages of each subject"),
        "max_msgs_per_subject",
    ),
    (
        Option(names=("--dupe-window",), convert=seconds, help="How long message ids are remembered"),
        "duplicate_window",
    ),
    (
        Option(
            names=("--subject-del-markers-ttl",),
            convert=seconds,
            help="How long markers of removals are kept",
        ),
        "subject_delete_marker_ttl",
    ),
    (
        Option(
            names=("--persist-mode",), choices=("default", "async"), help="Whether acks wait for the write"
        ),
        "persist_mode",
    ),
)
# The same for flags: option, name in the configuration, help.
_FLAGS: tuple[tuple[str, str, str], ...] = (
    ("--allow-batch", "allow_atomic", "Allow atomic batches"),
    ("--allow-fast", "allow_batched", "Allow fast batches"),
    ("--allow-counter", "allow_msg_counter", "Make subjects counters"),
    ("--allow-rollup", "allow_rollup_hdrs", "Allow messages that replace earlier ones"),
    ("--deny-delete", "deny_delete", "Refuse deletes of messages"),
    ("--deny-purge", "deny_purge", "Refuse purges"),
    ("--allow-direct", "allow_direct", "Allow gets without a consumer, from any replica (default)"),
    ("--allow-mirror-direct", "mirror_direct", "Let a mirror answer direct gets for its origin"),
    ("--allow-msg-ttl", "allow_msg_ttl", "Allow a TTL for each message"),
    ("--allow-schedules", "allow_msg_schedules", "Allow scheduled messages"),
)
_DURATIONS = ("max_age", "duplicate_window", "subject_delete_marker_ttl")
_LETTERS = {"f": "file", "m": "memory"}

_SHAPED = (
    Option(names=("--ack",), convert=bool, negatable=True, help="Acknowledge publishes (default)"),
    Option(names=("--tag",), repeated=True, help="Place it on servers with this tag"),
    Option(names=("--cluster",), help="Place it in this cluster"),
    Option(
        names=("--mirror",), metavar="STREAM", help="Copy this stream, and nothing else; or a JSON object"
    ),
    Option(
        names=("--source",),
        metavar="STREAM",
        repeated=True,
        help="Copy messages of this stream; or a JSON object",
    ),
    Option(names=("--transform-source",), metavar="SUBJECT", help="Subjects to store under other subjects"),
    Option(names=("--transform-destination",), metavar="SUBJECT", help="The subject they are stored under"),
    Option(names=("--metadata",), convert=pair, repeated=True, help="Metadata"),
    Option(names=("--republish-source",), metavar="SUBJECT", help="Stored messages to publish again"),
    Option(names=("--republish-destination",), metavar="SUBJECT", help="The subject they are published to"),
    Option(names=("--republish-headers",), convert=bool, help="Publish headers only, without payloads"),
    Option(names=("--limit-consumer-inactive",), convert=seconds, help="Longest inactivity of consumers"),
    Option(names=("--limit-consumer-max-pending",), convert=whole, help="Most unacked messages of consumers"),
)

SETTING_OPTIONS: tuple[Option, ...] = (
    *(option for option, _ in _PLAIN),
    *(Option(names=(name,), convert=bool, negatable=True, help=text) for name, _, text in _FLAGS),
    *_SHAPED,
)

QUESTIONS = (
    Question("subjects", "Subjects"),
    Question("storage", "Storage (file, memory)", "file"),
    Question("replicas", "Replication", "1"),
    Question("retention", "Retention Policy (limits, interest, work)", "limits"),
    Question("discard", "Discard Policy (old, new)", "old"),
    Question("max-msgs", "Stream Messages Limit", "-1"),
    Question("max-msgs-per-subject", "Per Subject Messages Limit", "-1"),
    Question("max-bytes", "Total Stream Size", "-1"),
    Question("max-age", "Message TTL", "-1"),
    Question("max-msg-size", "Max Message Size", "-1"),
    Question("dupe-window", "Duplicate tracking time window", "2m0s"),
    Question("allow-rollup", "Allow message Roll-ups", "no"),
    Question("deny-delete", "Allow message deletion", "yes", inverted=True),
    Question("deny-purge", "Allow purging subjects or the entire stream", "yes", inverted=True),
)
"""What `stream add` asks at a terminal."""


def read_config(path: Path) -> dict[str, Any]:
    """A configuration from a JSON file; also the output of `stream info --json`, which contains one.

    Raises MisuseError if it is not a JSON object.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise MisuseError(f"{path} is not a configuration as a JSON object: {error}") from None
    inner = found.get("config")
    return inner if isinstance(inner, dict) else found


def change_config(config: Mapping[str, Any], values: CommandValues) -> dict[str, Any]:
    """A configuration, changed by the options that were given. Raises UsageError, MisuseError."""
    changed: dict[str, Any] = msgspec.to_builtins(dict(config))
    for option, key in _PLAIN:
        if values.given(option.key):
            changed[key] = _plain(key, values.value(option.key))
    for name, key, _ in _FLAGS:
        if values.given(name[2:]):
            changed[key] = values.flag(name[2:])
    _change_shaped(changed, values)
    return changed


def _plain(key: str, value: Any) -> Any:
    if key in _DURATIONS:
        return max(0, round(value * 1e9))
    if key == "retention":
        return _RETENTIONS[value]
    if key == "subjects":
        return [subject for subject in value if subject]
    return _LETTERS.get(value, value) if key == "storage" else value


def _change_shaped(changed: dict[str, Any], values: CommandValues) -> None:
    """Options that are part of an object of the configuration."""
    if values.given("ack"):
        changed["no_ack"] = not values.flag("ack")
    placement = dict(changed.get("placement") or {})
    if values.given("tag"):
        placement["tags"] = values.texts("tag")
    if values.given("cluster"):
        placement["cluster"] = values.text("cluster")
    if placement:
        changed["placement"] = placement
    if values.given("mirror"):
        changed["mirror"] = _source("--mirror", values.text("mirror"))
    if values.given("source"):
        changed["sources"] = [_source("--source", text) for text in values.texts("source")]
    if values.given("metadata"):
        changed["metadata"] = {**(changed.get("metadata") or {}), **values.pairs("metadata")}
    _change_pair(changed, values, "subject_transform", "transform")
    _change_pair(changed, values, "republish", "republish")
    if values.given("republish-headers") and changed.get("republish"):
        changed["republish"] = {**changed["republish"], "headers_only": values.flag("republish-headers")}
    limits = dict(changed.get("consumer_limits") or {})
    if values.given("limit-consumer-inactive"):
        limits["inactive_threshold"] = round(values.seconds("limit-consumer-inactive") * 1e9)
    if values.given("limit-consumer-max-pending"):
        limits["max_ack_pending"] = values.number("limit-consumer-max-pending")
    if limits:
        changed["consumer_limits"] = limits


def _change_pair(changed: dict[str, Any], values: CommandValues, key: str, name: str) -> None:
    given = values.any_given(f"{name}-source", f"{name}-destination")
    if not given:
        return
    made = dict(changed.get(key) or {})
    made["src"] = values.text(f"{name}-source", made.get("src", ""))
    made["dest"] = values.text(f"{name}-destination", made.get("dest", ""))
    if not made["dest"]:
        raise UsageError(f"--{name}-source needs --{name}-destination")
    changed[key] = made


def _source(option: str, text: str) -> dict[str, Any]:
    if not text.startswith("{"):
        return {"name": text}
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{option} is neither the name of a stream nor a JSON object: {error}") from None
    assert isinstance(found, dict)
    return found


def checked_config(config: Mapping[str, Any]) -> StreamConfig:
    """The client's configuration of a dictionary. Raises MisuseError that names the field."""
    known = ApiStreamConfig.__struct_fields__
    unknown = [key for key in config if key not in known]
    if unknown:
        from penstock.cli.framework.suggestions import suggestion

        raise MisuseError(f"a stream has no setting {unknown[0]!r}{suggestion(unknown[0], known)}")
    try:
        return stream_config(msgspec.convert({"allow_direct": True, **config}, ApiStreamConfig))
    except msgspec.ValidationError as error:
        raise MisuseError(f"configuration of the stream: {error}") from None
