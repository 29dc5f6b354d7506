"""`penstock server check`: health checks for monitoring systems.

They print the line of a Nagios plugin, and exit with 0 (OK), 1 (warning), 2 (critical) or 3 (unknown). What
makes a check impossible, such as a server that cannot be reached, is critical.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from penstock.cli.checks.check_result import CheckFormat, CheckResult
from penstock.cli.checks.connection_checks import (
    ConnectionThresholds,
    ConnectionTimes,
    RequestExpectations,
    check_connection,
    check_credential,
    check_request,
)
from penstock.cli.checks.server_checks import (
    JetStreamThresholds,
    ServerThresholds,
    check_jetstream,
    check_meta,
    check_replicas,
    check_server,
)
from penstock.cli.checks.stream_health import (
    ConsumerThresholds,
    StreamThresholds,
    check_bucket_values,
    check_consumer,
    check_message,
    check_stream,
    with_metadata,
)
from penstock.cli.framework.command_run import CommandRun
from penstock.cli.framework.command_table import Argument, CommandGroup, Option
from penstock.cli.framework.value_kinds import decimal, header, path, seconds, size, whole
from penstock.cli.private_files import write_private
from penstock.cli.reports.system_requests import ask_servers, find_server
from penstock.client import KeyOperation
from penstock.client.config import ConsumerInfo
from penstock.errors import ConfigError, MessageNotFoundError, MisuseError, PenstockError

CHECK = CommandGroup("check", "Check servers and JetStream, for monitoring systems.")
Judge = Callable[[CommandRun, CheckResult], Awaitable[None]]
FORMAT_OPTIONS = (
    Option(names=("--format",), choices=tuple(CheckFormat), default="nagios", help="Format of the output"),
    Option(names=("--namespace",), default="nats_server_check", metavar="TEXT",
           help="First part of names of Prometheus metrics"),
    Option(names=("--outfile",), convert=path, help="Write the output to a file"),
)  # fmt: skip


def _threshold(name: str, help: str, convert: Callable[[str], Any] = whole, default: Any = None) -> Option:
    return Option(names=(f"--{name}",), convert=convert, default=default, help=help)


def _check(
    suite: str,
    summary: str,
    options: tuple[Option, ...] = (),
    *,
    aliases: tuple[str, ...] = (),
    arguments: tuple[Argument, ...] = (),
    connects: bool = True,
) -> Callable[[Judge], Judge]:
    """Decorator: add a check. The function judges; this prints the result and makes the exit status."""

    def add(judge: Judge) -> Judge:
        async def check(run: CommandRun) -> int:
            result = CheckResult(suite, suite.capitalize())
            try:
                await judge(run, result)
            except (MisuseError, ConfigError):
                raise
            except (PenstockError, OSError) as error:
                result.critical(str(error))
            form = CheckFormat.JSON if run.output.as_json else CheckFormat(run.values.text("format"))
            text = result.render(form, namespace=run.values.text("namespace"))
            target = run.values.path("outfile")
            if target is None:
                run.output.line(text)
            else:
                write_private(target.absolute(), text + "\n")
            return result.exit_code(form)

        CHECK.command(
            suite, summary, options=(*options, *FORMAT_OPTIONS), aliases=aliases, arguments=arguments,
            connects=connects,
        )(check)  # fmt: skip
        return judge

    return add


def _limits(run: CommandRun, names: dict[str, str]) -> dict[str, Any]:
    """The thresholds that the user gave, by fields. names: option -> field."""
    return {field: run.values.value(option) for option, field in names.items() if run.values.given(option)}


def _fields(options: tuple[Option, ...]) -> dict[str, str]:
    return {option.key: option.key.replace("-", "_") for option in options}


# --- connections -----------------------------------------------------------------------------------

_CONNECTION = (
    _threshold("connect-warn", "Warning: time to connect", seconds),
    _threshold("connect-critical", "Critical: time to connect", seconds),
    _threshold("rtt-warn", "Warning: round-trip time", seconds),
    _threshold("rtt-critical", "Critical: round-trip time", seconds),
    _threshold("req-warn", "Warning: time of a message through the server", seconds),
    _threshold("req-critical", "Critical: time of a message through the server", seconds),
)


@_check("connection", "Check that a connection works and is fast.", _CONNECTION, aliases=("conn",))
async def connection(run: CommandRun, result: CheckResult) -> None:
    """Connect, and send a message through the server to itself."""
    started = time.monotonic()
    async with run.connect(reconnect=False) as client:
        connect_s = time.monotonic() - started
        rtt_s = await client.rtt()
        inbox = await client.subscribe(client.new_inbox())
        started = time.monotonic()
        await client.publish(inbox.subject, b"x" * 100)
        await inbox.next(run.settings.timeout_s)
        times = ConnectionTimes(connect_s, rtt_s, time.monotonic() - started)
        names = _fields(_CONNECTION)
        names |= {"req-warn": "request_warn", "req-critical": "request_critical"}
        check_connection(
            result, client.connected_url or "", times, ConnectionThresholds(**_limits(run, names))
        )


@_check(
    "request",
    "Check that a service answers a request.",
    (
        Option(names=("--subject",), metavar="SUBJECT", help="Subject to send the request to"),
        Option(names=("--payload",), metavar="TEXT", default="", help="Payload of the request"),
        Option(
            names=("--header", "-H", "--headers"), convert=header, repeated=True, help="Header of the request"
        ),
        Option(names=("--match-payload",), metavar="REGEX", help="What the answer must match"),
        Option(
            names=("--match-header", "--match-headers"),
            convert=header,
            repeated=True,
            help="Header the answer must have",
        ),
        _threshold("response-warn", "Warning: time until the answer", seconds),
        _threshold("response-critical", "Critical: time until the answer", seconds),
    ),
    aliases=("req",),
)
async def request(run: CommandRun, result: CheckResult) -> None:
    """Send a request and judge the answer."""
    values = run.values
    expected = RequestExpectations(
        match_payload=values.text("match-payload"),
        match_headers=values.pairs("match-header"),
        response_warn=values.seconds("response-warn"),
        response_critical=values.seconds("response-critical"),
    )
    subject = _needed(run, "subject")
    async with run.connect(reconnect=False) as client:
        started = time.monotonic()
        answer = await client.request(
            subject, values.text("payload").encode(), headers=values.pairs("header")
        )
        took_s = time.monotonic() - started
    headers = {name: answer.headers.get(name, "") for name in answer.headers}
    check_request(result, answer.data, headers, took_s, expected)


@_check(
    "credential",
    "Check how long a credentials file is valid.",
    (
        Option(names=("--credential",), convert=path, help="The credentials file"),
        _threshold("validity-warn", "Warning: time until it expires", seconds),
        _threshold("validity-critical", "Critical: time until it expires", seconds),
        Option(names=("--require-expiry",), convert=bool, negatable=True, default=True,
               help="The credential must expire at some time"),
    ),
    connects=False,
)  # fmt: skip
async def credential(run: CommandRun, result: CheckResult) -> None:
    """Judge a credentials file."""
    check_credential(
        result,
        _text_of(Path(_needed(run, "credential"))),
        int(time.time()),
        validity_warn=run.values.seconds("validity-warn"),
        validity_critical=run.values.seconds("validity-critical"),
        require_expiry=run.values.flag("require-expiry"),
    )


def _text_of(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace")


def _needed(run: CommandRun, name: str) -> str:
    found = run.values.text(name)
    if not found:
        raise MisuseError(f"--{name} is missing; see --help")
    return found


# --- streams ---------------------------------------------------------------------------------------

_STREAM = Option(names=("--stream",), metavar="NAME", help="Name of the stream")
_STREAM_LIMITS = (
    _threshold("lag-critical", "Critical: messages that a source or mirror is behind"),
    _threshold("seen-critical", "Critical: time since a source or mirror was seen", seconds),
    _threshold("min-sources", "Fewest sources"),
    _threshold("max-sources", "Most sources"),
    _threshold("peer-expect", "Number of replicas"),
    _threshold("peer-lag-critical", "Critical: operations that a replica is behind"),
    _threshold("peer-seen-critical", "Critical: time since a replica was seen", seconds),
    _threshold("msgs-warn", "Warning: at most so many messages"),
    _threshold("msgs-critical", "Critical: at most so many messages"),
    _threshold("subjects-warn", "Warning: at least so many subjects (or at most, above the critical number)"),
    _threshold("subjects-critical", "Critical: at least so many subjects (or at most)"),
)


@_check("stream", "Check replicas, sources, mirror and size of a stream.", (_STREAM, *_STREAM_LIMITS))
async def stream(run: CommandRun, result: CheckResult) -> None:
    """Judge a stream."""
    name = result.name = _needed(run, "stream")
    async with run.jetstream() as js:
        info = await js.stream_info(name)
    limits = StreamThresholds(**_limits(run, _fields(_STREAM_LIMITS)))
    check_stream(result, info, with_metadata(limits, info.config.metadata))


_CONSUMER_LIMITS = (
    _threshold("outstanding-ack-critical", "Critical: messages that wait for an ack"),
    _threshold("waiting-critical", "Critical: waiting pull requests"),
    _threshold("unprocessed-critical", "Critical: messages not yet delivered"),
    _threshold("last-delivery-critical", "Critical: time since the last delivery", seconds),
    _threshold("last-ack-critical", "Critical: time since the last ack", seconds),
    _threshold("redelivery-critical", "Critical: messages that are redelivered"),
    Option(names=("--pinned",), convert=bool, help="All priority groups must have a pinned client"),
)


@_check(
    "consumer",
    "Check progress and backlog of a consumer.",
    (_STREAM, Option(names=("--consumer",), metavar="NAME", help="Name of the consumer"), *_CONSUMER_LIMITS),
)
async def consumer(run: CommandRun, result: CheckResult) -> None:
    """Judge a consumer."""
    name = _needed(run, "consumer")
    result.name = f"{_needed(run, 'stream')}_{name}"
    async with run.jetstream() as js:
        found = await js.consumer(_needed(run, "stream"), name)
        info: ConsumerInfo = await found.info()
    limits = ConsumerThresholds(**_limits(run, _fields(_CONSUMER_LIMITS)))
    check_consumer(result, info, with_metadata(limits, info.config.metadata), time.time_ns())


@_check(
    "message",
    "Check age and content of the last message of a subject.",
    (
        _STREAM,
        Option(names=("--subject",), metavar="SUBJECT", help="Subject of the message"),
        _threshold("age-warn", "Warning: age of the message", seconds),
        _threshold("age-critical", "Critical: age of the message", seconds),
        Option(names=("--content",), metavar="REGEX", help="What the payload must match"),
        Option(names=("--body-timestamp",), convert=bool, help="The payload is the time, in Unix seconds"),
    ),
)
async def message(run: CommandRun, result: CheckResult) -> None:
    """Judge a message."""
    name, subject = _needed(run, "stream"), _needed(run, "subject")
    result.name = f"{name} > {subject}"
    async with run.jetstream() as js:
        try:
            found = await (await js.stream(name)).get_last_message(subject, direct=False)
        except MessageNotFoundError:
            found = None
    check_message(
        result,
        found,
        time.time_ns(),
        age_warn=run.values.seconds("age-warn"),
        age_critical=run.values.seconds("age-critical"),
        content=run.values.text("content"),
        body_timestamp=run.values.flag("body-timestamp"),
    )


@_check(
    "kv",
    "Check a key-value bucket.",
    (
        Option(names=("--bucket",), metavar="NAME", help="Name of the bucket"),
        Option(names=("--key",), help="A key that must have a value"),
        _threshold("values-warn", "Warning: number of values, -1 = no threshold", whole, -1),
        _threshold("values-critical", "Critical: number of values, -1 = no threshold", whole, -1),
    ),
)
async def kv(run: CommandRun, result: CheckResult) -> None:
    """Judge a bucket, and a key of it."""
    name = result.name = _needed(run, "bucket")
    key = run.values.text("key")
    async with run.jetstream() as js:
        store = await js.key_value(name)
        status = await store.status()
        last = await store.last_entry(key) if key else None
    check_bucket_values(
        result,
        status,
        values_warn=run.values.number("values-warn", -1),
        values_critical=run.values.number("values-critical", -1),
    )
    if key and last is None:
        result.critical(f"key {key} not found")
    elif last is not None:
        states = {
            KeyOperation.PUT: "found",
            KeyOperation.DELETE: "is deleted",
            KeyOperation.PURGE: "is purged",
        }
        result.judge(f"key {key} {states[last.operation]}", is_critical=last.is_deleted)


# --- servers ---------------------------------------------------------------------------------------

_SERVER_LIMITS = (
    _threshold("cpu-warn", "Warning: percent of a processor", decimal),
    _threshold("cpu-critical", "Critical: percent of a processor", decimal),
    _threshold("mem-warn", "Warning: bytes of memory", size),
    _threshold("mem-critical", "Critical: bytes of memory", size),
    _threshold("conn-warn", "Warning: connections (or at most, above the critical number)"),
    _threshold("conn-critical", "Critical: connections (or at most)"),
    _threshold("subs-warn", "Warning: subscriptions (or at most, above the critical number)"),
    _threshold("subs-critical", "Critical: subscriptions (or at most)"),
    _threshold("uptime-warn", "Warning: a shorter uptime", seconds),
    _threshold("uptime-critical", "Critical: a shorter uptime", seconds),
    _threshold("tls-cert-warn", "Warning: time until a certificate expires", seconds),
    Option(names=("--tls-cert-critical", "--tls-cert-crit"), convert=seconds,
           help="Critical: time until a certificate expires"),
    Option(names=("--auth-required",), convert=bool, help="Authentication must be required"),
    Option(names=("--tls-required",), convert=bool, help="TLS must be required"),
    Option(names=("--js-required",), convert=bool, help="JetStream must be enabled"),
)  # fmt: skip


@_check(
    "server",
    "Check a server. Needs a user of the system account.",
    (Option(names=("--name",), help="Name of the server (default: the connected one)"), *_SERVER_LIMITS),
    aliases=("srv",),
)
async def server(run: CommandRun, result: CheckResult) -> None:
    """Judge a server by its VARZ page."""
    async with run.connect(reconnect=False) as client:
        timeout_s = run.settings.timeout_s
        found = await find_server(client, run.values.text("name"), timeout_s=timeout_s)
        result.name = found.server_name
        options = {"server_name": found.server_name, "exact_match": True}
        (answer, *_) = await ask_servers(client, "VARZ", options, timeout_s=timeout_s, expect=1)
    check_server(result, answer.data, ServerThresholds(**_limits(run, _fields(_SERVER_LIMITS))))


_JETSTREAM_LIMITS = (
    _threshold("mem-warn", "Warning: percent of the memory limit (default: 75)"),
    _threshold("mem-critical", "Critical: percent of the memory limit (default: 90)"),
    _threshold("store-warn", "Warning: percent of the file limit (default: 75)"),
    _threshold("store-critical", "Critical: percent of the file limit (default: 90)"),
    _threshold("streams-warn", "Warning: percent of the limit of streams, -1 = none"),
    _threshold("streams-critical", "Critical: percent of the limit of streams, -1 = none"),
    _threshold("consumers-warn", "Warning: percent of the limit of consumers, -1 = none"),
    _threshold("consumers-critical", "Critical: percent of the limit of consumers, -1 = none"),
    _threshold("replica-seen-critical", "Critical: time since a replica was seen (default: 5s)", seconds),
    _threshold("replica-lag-critical", "Critical: operations that a replica is behind (default: 200)"),
)


@_check(
    "jetstream",
    "Check the use of JetStream by an account, and the replicas of its streams.",
    (
        *_JETSTREAM_LIMITS,
        Option(names=("--replicas",), convert=bool, negatable=True, default=True,
               help="Check the replicas of streams"),
    ),
    aliases=("js",),
)  # fmt: skip
async def jetstream(run: CommandRun, result: CheckResult) -> None:
    """Judge an account's use of JetStream."""
    result.name = "JetStream"
    limits = JetStreamThresholds(**_limits(run, _fields(_JETSTREAM_LIMITS)))
    async with run.jetstream() as js:
        check_jetstream(result, await js.account_info(), limits)
        if run.values.flag("replicas"):
            check_replicas(result, [info async for info in js.streams()], limits)


@_check(
    "meta",
    "Check the servers of a JetStream cluster. Needs a user of the system account.",
    (
        _threshold("expect", "Number of servers"),
        _threshold("lag-critical", "Critical: operations that a server is behind"),
        _threshold("seen-critical", "Critical: time since a server was seen", seconds),
    ),
    aliases=("raft",),
)
async def meta(run: CommandRun, result: CheckResult) -> None:
    """Judge the group that manages JetStream."""
    result.name = "JetStream Meta Cluster"
    async with run.connect(reconnect=False) as client:
        options = {"leader_only": True}
        answers = await ask_servers(client, "JSZ", options, timeout_s=run.settings.timeout_s)
    with_meta = next((one.data for one in answers if one.data.get("meta_cluster")), {})
    check_meta(
        result,
        with_meta,
        expect=run.values.number("expect"),
        lag_critical=run.values.number("lag-critical"),
        seen_critical=run.values.seconds("seen-critical"),
    )
