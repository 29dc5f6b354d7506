"""Options of `consumer add`, `edit` and `copy`, and the configuration they make.

As for streams, configurations are dictionaries with the API's names and units.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from penstock.cli.framework.command_parser import UsageError
from penstock.cli.framework.command_table import Option
from penstock.cli.framework.command_values import CommandValues
from penstock.cli.framework.questions import Question
from penstock.cli.framework.suggestions import suggestion
from penstock.cli.framework.value_kinds import count, decimal, moment, pair, seconds, size, whole
from penstock.client.config import ConsumerConfig, consumer_config
from penstock.errors import MisuseError
from penstock.protocol.api import ApiConsumerConfig
from penstock.protocol.durations import format_time
from penstock.protocol.subjects import check_filter

# Options whose value goes into the configuration as it is, and its name there.
_PLAIN: tuple[tuple[Option, str], ...] = (
    (Option(names=("--ack",), choices=("none", "all", "explicit"), help="Ack policy"), "ack_policy"),
    (
        Option(names=("--bps",), convert=whole, help="Most bits a second, of a push consumer"),
        "rate_limit_bps",
    ),
    (
        Option(names=("--deliver-group",), metavar="GROUP", help="Queue group of a push consumer"),
        "deliver_group",
    ),
    (Option(names=("--description",), help="A description"), "description"),
    (
        Option(
            names=("--flow-control",), convert=bool, negatable=True, help="Flow control of a push consumer"
        ),
        "flow_control",
    ),
    (
        Option(
            names=("--heartbeat",), convert=seconds, help="Interval of idle heartbeats of a push consumer"
        ),
        "idle_heartbeat",
    ),
    (
        Option(names=("--headers-only",), convert=bool, negatable=True, help="Deliver no payloads"),
        "headers_only",
    ),
    (Option(names=("--max-deliver",), convert=whole, help="Most deliveries of a message"), "max_deliver"),
    (Option(names=("--max-pending",), convert=whole, help="Most unacked messages"), "max_ack_pending"),
    (Option(names=("--max-waiting",), convert=whole, help="Most open pull requests"), "max_waiting"),
    (Option(names=("--max-pull-batch",), convert=whole, help="Most messages of a pull request"), "max_batch"),
    (
        Option(names=("--max-pull-expire",), convert=seconds, help="Longest expiry of a pull request"),
        "max_expires",
    ),
    (Option(names=("--max-pull-bytes",), convert=size, help="Most bytes of a pull request"), "max_bytes"),
    (Option(names=("--replay",), choices=("instant", "original"), help="Pace of delivery"), "replay_policy"),
    (
        Option(names=("--target",), metavar="SUBJECT", help="Makes it a push consumer to this subject"),
        "deliver_subject",
    ),
    (Option(names=("--wait",), convert=seconds, help="How long an ack may take"), "ack_wait"),
    (
        Option(names=("--inactive-threshold",), convert=seconds, help="Remove it when unused for so long"),
        "inactive_threshold",
    ),
    (
        Option(names=("--memory",), convert=bool, negatable=True, help="Keep its state in memory"),
        "mem_storage",
    ),
    (Option(names=("--replicas",), convert=count, help="Copies of its state"), "num_replicas"),
)
_DURATIONS = ("ack_wait", "idle_heartbeat", "max_expires", "inactive_threshold")
_GROUPS = (
    ("pinned-groups", "pinned_client", "Groups of which one client gets the messages"),
    ("overflow-groups", "overflow", "Groups that get messages when others are behind"),
    ("prioritized-groups", "prioritized", "Groups whose clients have priorities"),
)

_SHAPED = (
    Option(
        names=("--deliver",),
        metavar="POLICY",
        help="Where it begins: all, new, last, subject (last of each), a duration such as 1h, or a sequence",
    ),
    Option(
        names=("--filter",),
        metavar="SUBJECT",
        repeated=True,
        commas=True,
        help="Only messages of these subjects",
    ),
    Option(names=("--pull",), convert=bool, help="Make it a pull consumer (default)"),
    Option(names=("--ephemeral",), convert=bool, help="Remove it when it is not used"),
    Option(
        names=("--sample",), convert=decimal, metavar="PERCENT", help="Percentage of acks that are reported"
    ),
    Option(names=("--backoff",), choices=("none", "linear"), help="Waits of redeliveries"),
    Option(names=("--backoff-steps",), convert=count, default=10, help="Number of waits"),
    Option(names=("--backoff-min",), convert=seconds, default=60.0, help="The shortest wait"),
    Option(names=("--backoff-max",), convert=seconds, default=1200.0, help="The longest wait"),
    Option(names=("--metadata",), convert=pair, repeated=True, help="Metadata"),
    Option(names=("--pause",), convert=moment, help="Deliver nothing before this time"),
    *(
        Option(names=(f"--{name}",), metavar="GROUP", repeated=True, commas=True, help=text)
        for name, _, text in _GROUPS
    ),
    Option(names=("--pinned-ttl",), convert=seconds, help="How long a pinned client may be silent"),
)

CONSUMER_OPTIONS: tuple[Option, ...] = (*(option for option, _ in _PLAIN), *_SHAPED)
EDIT_KEYS = frozenset(
    (
        *("backoff", "backoff-steps", "backoff-min", "backoff-max", "description", "filter", "headers-only"),
        *(
            "max-deliver",
            "max-pending",
            "max-pull-batch",
            "max-pull-expire",
            "max-pull-bytes",
            "sample",
            "target",
        ),
        *("wait", "inactive-threshold", "replicas", "metadata", "deliver-group", "max-waiting"),
    )
)
"""Options of `consumer edit`: what servers let be changed."""

CONSUMER_QUESTIONS = (
    Question("target", "Delivery target (empty for Pull Consumers)"),
    Question("deliver", "Start policy (all, new, last, subject, 1h, msg sequence)", "all"),
    Question("ack", "Acknowledgment policy (explicit, all, none)", "explicit"),
    Question("replay", "Replay policy (instant, original)", "instant"),
    Question("filter", "Filter Stream by subjects (blank for all)"),
    Question("max-deliver", "Maximum Allowed Deliveries", "-1"),
    Question("max-pending", "Maximum Acknowledgments Pending", "0"),
    Question("headers-only", "Deliver headers only without bodies", "no"),
    Question("backoff", "Add a Retry Backoff Policy", "no", answers={"no": "none", "yes": "linear"}),
)
"""What `consumer add` asks at a terminal."""


def change_consumer(config: Mapping[str, Any], values: CommandValues) -> dict[str, Any]:
    """A configuration, changed by the options that were given. Raises UsageError."""
    changed: dict[str, Any] = msgspec.to_builtins(dict(config))
    for option, key in _PLAIN:
        if values.given(option.key):
            value = values.value(option.key)
            changed[key] = max(0, round(value * 1e9)) if key in _DURATIONS else value
    if values.given("deliver"):
        changed |= delivery(values.text("deliver"))
    if values.given("filter"):
        _change_filter(changed, [check_filter(one) for one in values.texts("filter") if one])
    if values.given("sample"):
        percent = values.value("sample")
        changed["sample_freq"] = f"{percent:g}" if percent > 0 else ""
    if values.given("backoff"):
        changed["backoff"] = _backoff(values)
        changed.setdefault("max_deliver", -1)
    if values.given("metadata"):
        changed["metadata"] = {**(changed.get("metadata") or {}), **values.pairs("metadata")}
    if values.given("pause"):
        changed["pause_until"] = _wire_time(values.value("pause"))
    groups = [(name, policy) for name, policy, _ in _GROUPS if values.given(name)]
    if len(groups) > 1:
        raise UsageError(
            f"--{groups[0][0]} and --{groups[1][0]} are both given; a consumer has one priority policy"
        )
    for name, policy in groups:
        changed |= {"priority_groups": values.texts(name), "priority_policy": policy}
    if values.given("pinned-ttl"):
        changed["priority_timeout"] = round(values.seconds("pinned-ttl") * 1e9)
    return changed


def _change_filter(changed: dict[str, Any], subjects: list[str]) -> None:
    changed.pop("filter_subject", None)
    changed.pop("filter_subjects", None)
    if len(subjects) == 1:
        changed["filter_subject"] = subjects[0]
    elif subjects:
        changed["filter_subjects"] = subjects


def delivery(text: str) -> dict[str, Any]:
    """Fields for a start: `all`, `new`, `last`, `subject`, `1h`, a sequence. Raises UsageError."""
    named = {
        "all": "all",
        "new": "new",
        "next": "new",
        "last": "last",
        "subject": "last_per_subject",
        "last_per_subject": "last_per_subject",
    }
    if text in named:
        return {"deliver_policy": named[text]}
    if text.isdigit() and int(text) > 0:
        return {"deliver_policy": "by_start_sequence", "opt_start_seq": int(text)}
    try:
        since_s = seconds(text)
    except ValueError:
        since_s = 0.0
    if since_s <= 0:
        near = suggestion(text, named)
        raise UsageError(
            f"--deliver is {text!r}; it is all, new, last, subject, a duration (1h) or a sequence{near}"
        )
    start = datetime.now(UTC) - timedelta(seconds=since_s)
    return {"deliver_policy": "by_start_time", "opt_start_time": _wire_time(start)}


def _wire_time(when: datetime) -> str:
    return format_time(round(when.timestamp() * 1e6) * 1000)


def _backoff(values: CommandValues) -> list[int]:
    if values.text("backoff") == "none":
        return []
    steps = values.number("backoff-steps")
    first, last = values.seconds("backoff-min"), values.seconds("backoff-max")
    if first > last:
        raise UsageError(f"--backoff-min is {first:g} s, above --backoff-max, {last:g} s")
    step = (last - first) / (steps - 1) if steps > 1 else 0.0
    return [round((first + step * number) * 1e9) for number in range(steps)]


def checked_consumer(config: Mapping[str, Any]) -> ConsumerConfig:
    """The client's configuration of a dictionary. Raises MisuseError that names the field."""
    known = ApiConsumerConfig.__struct_fields__
    unknown = [key for key in config if key not in known]
    if unknown:
        raise MisuseError(f"a consumer has no setting {unknown[0]!r}{suggestion(unknown[0], known)}")
    try:
        return consumer_config(msgspec.convert(dict(config), ApiConsumerConfig))
    except msgspec.ValidationError as error:
        raise MisuseError(f"configuration of the consumer: {error}") from None
