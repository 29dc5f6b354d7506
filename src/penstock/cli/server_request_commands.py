"""`penstock server request`: pages of servers as JSON, and `kick`."""

from __future__ import annotations

import base64
from datetime import datetime
from pathlib import Path
from typing import Any

from penstock.cli.framework.command_run import CommandFailed, CommandRun
from penstock.cli.framework.command_table import Argument, CommandGroup, Option
from penstock.cli.framework.value_kinds import count, path, whole
from penstock.cli.reports.system_requests import ask_server, ask_servers
from penstock.cli.server_selection import FILTERS, SYSTEM_ACCOUNT, filters_of, server_id

REQUEST = CommandGroup("request", "Request monitoring data of servers, as JSON.", aliases=("req",))
WAIT = Argument(name="wait", help="Wait for this number of answers", required=False, convert=count)
PAGE_LIMITS = (
    Option(names=("--limit",), convert=count, help="At most so many records"),
    Option(names=("--offset",), convert=whole, help="Start at this record"),
)


def _flag(name: str, help: str) -> Option:
    return Option(names=(f"--{name}",), convert=bool, help=help)


def _text(name: str, help: str) -> Option:
    return Option(names=(f"--{name}",), metavar=name.rpartition("-")[2].upper(), help=help)


ACCOUNT = _text("account", "Only this account")
CPU_PROFILE_EXTRA_S = 2.0
_STATES = {"open": 0, "closed": 1, "all": 2}
# Name, page, what it shows, aliases, options: each with the fields of the request that it sets.
_REQUESTS: tuple[tuple[str, str, str, tuple[str, ...], dict[Option, tuple[str, ...]]], ...] = (
    ("accounts", "ACCOUNTZ", "accounts", ("accountz", "acct"), {ACCOUNT: ("account",)}),
    ("connections", "CONNZ", "connections", ("conn", "connz"), {
        _text("sort", "Sort by this property"): ("sort",),
        _flag("subscriptions", "With subscriptions"): ("subscriptions",),
        Option(names=("--filter-cid",), convert=count, help="Only this connection"): ("cid",),
        Option(names=("--filter-state",), choices=tuple(_STATES), help="Only this state"): ("state",),
        _text("filter-user", "Only this user"): ("user",),
        _text("filter-account", "Only this account"): ("acc",),
        _text("filter-subject", "Only with a subscription that matches"): ("filter_subject",),
    }),
    ("gateways", "GATEWAYZ", "gateways", ("gateway", "gatewayz", "gwy"), {}),
    ("ipqueue", "IPQUEUESZ", "internal queues", ("ipq", "ipqueuesz"), {}),
    ("jetstream-health", "HEALTHZ", "health", ("healthz",), {
        _flag("js-enabled", "JetStream must be enabled"): ("js-enabled-only",),
        _flag("server-only", "Leave out streams and consumers"): ("js-server-only",),
        ACCOUNT: ("account",),
        _text("stream", "Only this stream"): ("stream",),
        _text("consumer", "Only this consumer"): ("consumer",),
        _flag("details", "With details about all failures"): ("details",),
    }),
    ("jetstream", "JSZ", "JetStream", ("jsz", "js"), {
        ACCOUNT: ("account",),
        _flag("accounts", "With accounts"): ("accounts",),
        _flag("streams", "With streams"): ("streams",),
        _flag("consumer", "With consumers"): ("consumer",),
        _flag("config", "With configurations"): ("config",),
        _flag("raft", "With groups of replicas"): ("raft",),
        _flag("leader", "Only the leader of all servers"): ("leader_only",),
        _flag("stream-leader", "Only leaders of streams"): ("stream_leader_only",),
        _flag("all", "With accounts, streams, consumers, configurations and groups of replicas"): (
            "accounts", "streams", "consumer", "config", "raft",
        ),
    }),
    ("leafnodes", "LEAFZ", "leaf nodes", ("leaf", "leafz"), {
        _flag("subscriptions", "With subscriptions"): ("subscriptions",)}),
    ("raft", "RAFTZ", "groups of replicas", ("raftz",), {
        ACCOUNT: ("account",), _text("group", "Only this group"): ("group",)}),
    ("routes", "ROUTEZ", "routes", ("route", "routez"), {
        _flag("subscriptions", "With subscriptions"): ("subscriptions",)}),
    ("subscriptions", "SUBSZ", "subscriptions", ("sub", "subsz"), {
        _flag("detail", "With all subscriptions"): ("subscriptions",),
        _text("filter-account", "Only this account"): ("account",),
        _text("filter-subject", "Only those that match this subject"): ("test",),
    }),
    ("variables", "VARZ", "variables", ("var", "varz"), {}),
)  # fmt: skip


def _add_request(
    name: str, page: str, what: str, aliases: tuple[str, ...], fields: dict[Option, tuple[str, ...]]
) -> None:
    async def request(run: CommandRun) -> None:
        options = filters_of(run)
        for key in ("limit", "offset"):
            if run.values.given(key):
                options[key] = run.values.number(key)
        for option, targets in fields.items():
            if run.values.given(option.key):
                options |= dict.fromkeys(targets, _page_value(run.values.value(option.key)))
        async with run.connect() as client:
            expect = run.values.number("wait")
            answers = await ask_servers(
                client, page, options, timeout_s=run.settings.timeout_s, expect=expect
            )
        if run.output.as_json:
            run.output.json([answer.page for answer in answers])
        else:
            for answer in answers:
                run.output.json(answer.page)

    REQUEST.command(
        name, f"Request {what} of servers.", arguments=(WAIT,), options=(*fields, *PAGE_LIMITS, *FILTERS),
        aliases=aliases, details=SYSTEM_ACCOUNT,
    )(request)  # fmt: skip


def _page_value(value: Any) -> Any:
    return _STATES.get(value, value) if isinstance(value, str) else value


for row in _REQUESTS:
    _add_request(*row)


@REQUEST.command(
    "profile",
    "Take a profile of servers, and write it to files.",
    arguments=(
        Argument(
            name="profile",
            help="What to profile",
            choices=("allocs", "heap", "goroutine", "mutex", "threadcreate", "block", "cpu"),
        ),
        Argument(name="dir", help="Directory of the files (default: this one)", required=False, convert=path),
    ),
    options=(
        Option(names=("--level",), convert=whole, help="How detailed it is"),
        *FILTERS,
    ),
    details=f"{SYSTEM_ACCOUNT} Profiles are those of Go, so official servers have them; penstock says how to "
    "profile it. For cpu, --timeout is how long it takes.",
    examples=("server request profile heap /tmp",),
)
async def profile(run: CommandRun) -> None:
    """Write the PROFILEZ page of each server to a file. Fails if a server has none."""
    kind, directory = run.values.text("profile"), run.values.path("dir") or Path()
    timeout_s = run.settings.timeout_s
    options = filters_of(run) | {"name": kind, "debug": run.values.number("level")}
    if kind == "cpu":
        options["duration"] = round(timeout_s * 1e9)
        timeout_s += CPU_PROFILE_EXTRA_S
    async with run.connect() as client:
        answers = await ask_servers(client, "PROFILEZ", options, timeout_s=timeout_s, expect=0)
    written, failed = {}, []
    for answer in answers:
        error = answer.error or answer.data.get("error")
        if error:
            failed.append(f"{answer.server_name}: {error}")
            continue
        file = directory / f"{kind}-{datetime.now().astimezone():%Y%m%d-%H%M%S}-{answer.server_name}"
        file.write_bytes(base64.b64decode(answer.data.get("profile") or ""))
        written[answer.server_name] = str(file)
    if run.output.as_json:
        run.output.json(written)
    else:
        for name, text in written.items():
            run.output.line(f"Wrote the profile of {name} to {text}")
    if failed:
        raise CommandFailed("; ".join(failed))


@REQUEST.command(
    "kick",
    "Disconnect a client.",
    arguments=(
        Argument(name="client", help="Id of the connection (CID)", convert=count),
        Argument(name="name", help="Name or id of its server"),
    ),
    details=f"{SYSTEM_ACCOUNT} Clients connect again by themselves.",
)
async def kick(run: CommandRun) -> None:
    """Disconnect a client; it may connect again."""
    async with run.connect() as client:
        target = await server_id(client, run)
        options = {"cid": run.values.number("client")}
        answer = await ask_server(client, target, "KICK", options, timeout_s=run.settings.timeout_s)
    run.output.json(answer.page)
