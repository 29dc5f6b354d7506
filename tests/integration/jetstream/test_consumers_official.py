"""The same transcript with both servers: answers, ack subjects, statuses and infos must be the same.

Left out of the comparison: times, ids, versions, and the wording of JSON errors.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.nats_servers import find_official_server
from tests.support.transcript import MS, Transcript, say_the_same

pytestmark = [
    pytest.mark.feature("consumer.api", "consumer.pull", "consumer.push"),
    pytest.mark.official,
    pytest.mark.skipif(find_official_server() is None, reason="no official nats-server"),
]


async def creating(say: Transcript) -> None:
    durable = {"durable_name": "c", "ack_policy": "explicit"}
    await say.create("c", **durable)
    await say.create("c", **durable)
    await say.create("c", **durable, action="create", max_deliver=3)
    await say.create("none", **{**durable, "durable_name": "none"}, action="update")
    await say.create("c", **durable, action="update", ack_wait=5000 * MS, max_deliver=3)
    for change in (
        {"deliver_policy": "last"},
        {"ack_policy": "all"},
        {"max_waiting": 7},
        {"deliver_subject": "d"},
        {"mem_storage": True},
    ):
        await say.create("c", **{**durable, **change})
    for subject, config in (
        ("CONSUMER.CREATE.S.f.s.1", {"filter_subject": "s.2"}),
        ("CONSUMER.CREATE.S.f.s.1", {"filter_subjects": ["s.1"]}),
        ("CONSUMER.CREATE.S.f.s.1", {"filter_subject": "s.1"}),
        ("CONSUMER.DURABLE.CREATE.S.g", {}),
        ("CONSUMER.DURABLE.CREATE.S.g", {"durable_name": "h"}),
        ("CONSUMER.DURABLE.CREATE.S.g", {"durable_name": "g", "name": "g"}),
    ):
        await say.api(subject, {"stream_name": "S", "config": config})
    await say.api("CONSUMER.CREATE.S.k", {"stream_name": "T", "config": {"name": "k"}})
    await say.api("CONSUMER.CREATE.T.k", {"stream_name": "T", "config": {"name": "k"}})
    await say.api("CONSUMER.CREATE.S.k", b"{nope")
    await say.api("CONSUMER.CREATE.S.k")
    await say.api("CONSUMER.NAMES.S")
    await say.api("CONSUMER.LIST.S", {"offset": 1})
    await say.api("CONSUMER.INFO.S.nope")
    await say.api("CONSUMER.DELETE.S.nope")
    await say.api("CONSUMER.DELETE.S.g")


REFUSED: tuple[dict[str, Any], ...] = (
    {"filter_subject": "s.a", "filter_subjects": ["s.b"]},
    {"filter_subjects": [""]},
    {"filter_subjects": ["s.a", "s.>"]},
    {"idle_heartbeat": 10**9},
    {"flow_control": True},
    {"deliver_subject": "d.*"},
    {"deliver_subject": "d", "max_waiting": 3},
    {"deliver_subject": "d", "idle_heartbeat": 10},
    {"deliver_subject": "d", "flow_control": True},
    {"deliver_subject": "s.q"},
    {"ack_wait": -5, "ack_policy": "explicit"},
    {"ack_policy": "explicit", "max_deliver": 1, "backoff": [10**9, 2 * 10**9]},
    {"deliver_policy": "by_start_sequence"},
    {"deliver_policy": "by_start_time"},
    {"deliver_policy": "all", "opt_start_seq": 3},
    {"deliver_policy": "new", "opt_start_time": "2024-01-01T00:00:00Z"},
    {"deliver_policy": "last_per_subject"},
    {"num_replicas": 3},
    {"num_replicas": -3},
    {"sample_freq": "abc"},
    {"priority_groups": ["a"]},
    {"priority_policy": "overflow"},
    {"durable_name": "other"},
    {"ack_policy": "sometimes"},
    {"rate_limit_bps": 10},
    {"direct": True},
    {"filter_subject": "s..a"},
    {"max_expires": 5},
    {"deliver_subject": "d", "max_ack_pending": 5},
)


async def refusing(say: Transcript) -> None:
    for config in REFUSED:
        await say.create("x", **config)


async def pulling(say: Transcript) -> None:
    await say.publish(*[f"s.{i}" for i in range(12)])
    await say.create("p", ack_policy="none", max_batch=4, max_expires=1000 * MS, max_bytes=1000)
    for body in (
        {"batch": 10, "no_wait": True},
        {"batch": 1, "expires": 2000 * MS},
        {"batch": 1, "expires": 100 * MS, "max_bytes": 5000},
        {"batch": 1, "expires": 100 * MS, "idle_heartbeat": 100 * MS},
        {"batch": 1, "expires": 100 * MS, "min_pending": 2},
        {"batch": 1, "expires": 100 * MS, "id": "a"},
        {"batch": 1, "expires": 100 * MS, "priority": 11},
        {"batch": 3, "expires": 100 * MS, "max_bytes": 20},
        {"batch": 2, "expires": 100 * MS, "max_bytes": 900},
        {"batch": 3, "expires": 100 * MS, "max_bytes": 100},
        b"",
        b"2",
        b"abc",
        {"batch": 4, "no_wait": True},
        {"batch": 4, "no_wait": True},
        {"batch": 4, "no_wait": True},
        {"batch": 4, "no_wait": True, "expires": 100 * MS},
        {"batch": 4, "expires": 150 * MS, "max_bytes": 1000},
        {"batch": 3, "expires": 250 * MS, "idle_heartbeat": 100 * MS},
    ):
        await say.pull("p", body)
    await say.info("p")


async def acking(say: Transcript) -> None:
    await say.create("a", ack_policy="explicit")
    messages = await say.pull("a", b"5")
    await say.ack(messages[1])
    await say.info("a")
    await say.ack(messages[0])
    await say.info("a")
    await say.ack(messages[3], b"-NAK")
    await say.info("a")
    await say.pull("a", b"1")
    await say.ack(messages[2], b"+TERM")
    await say.info("a")
    for body in (b"+WPI", b"-NAK", b"+ACK", b"+ACK"):
        await say.confirmed(messages[4].reply, body)
    await say.confirmed("$JS.ACK.S.a.1.9999.9999.123.0", b"")
    await say.confirmed("$JS.ACK.S.nobody.1.9999.9999.123.0", b"")
    await say.info("a")
    await say.create("all", ack_policy="all")
    messages = await say.pull("all", b"4")
    await say.ack(messages[2])
    await say.info("all")


async def beginning(say: Transcript) -> None:
    await say.publish("s.A", "s.B", "s.A", "s.B", "s.A")
    for i, config in enumerate(
        (
            {"deliver_policy": "last"},
            {"deliver_policy": "last", "filter_subject": "s.B"},
            {"deliver_policy": "last", "filter_subject": "s.none"},
            {"deliver_policy": "new"},
            {"deliver_policy": "by_start_sequence", "opt_start_seq": 10},
            {"deliver_policy": "by_start_sequence", "opt_start_seq": 1000},
            {"deliver_policy": "by_start_time", "opt_start_time": "2020-01-01T00:00:00Z"},
            {"deliver_policy": "by_start_time", "opt_start_time": "2090-01-01T00:00:00Z"},
            {"deliver_policy": "last_per_subject", "filter_subject": "s.>"},
            {"deliver_policy": "last_per_subject", "filter_subjects": ["s.A", "s.B"]},
            {"filter_subjects": ["s.A", "s.3"]},
            {"deliver_policy": "last", "headers_only": True},
        )
    ):
        await say.create(f"b{i}", ack_policy="explicit", **config)
        await say.pull(f"b{i}", {"batch": 2, "no_wait": True})
        await say.info(f"b{i}")


async def purging(say: Transcript) -> None:
    await say.create("z", ack_policy="explicit")
    await say.pull("z", b"4")
    await say.api("STREAM.MSG.DELETE.S", {"seq": 2})
    await asyncio.sleep(0.1)
    await say.info("z")
    await say.api("STREAM.PURGE.S", {"seq": 8})
    await asyncio.sleep(0.1)
    await say.info("z")
    await say.pull("z", b"2")
    await say.api("STREAM.PURGE.S")
    await asyncio.sleep(0.1)
    await say.info("z")
    await say.publish("s.after")
    await say.pull("z", b"1")
    await say.info("z")


async def pausing(say: Transcript) -> None:
    await say.create("q", ack_policy="explicit")
    for until in ("2090-01-01T00:00:00Z", "2020-01-01T00:00:00Z", "2090-01-01T01:00:00+01:00", None):
        await say.api("CONSUMER.PAUSE.S.q", {"pause_until": until} if until else b"")
        await say.info("q")
        await say.pull("q", {"batch": 1, "no_wait": True})
    await say.api("CONSUMER.PAUSE.S.nope", {"pause_until": "2090-01-01T00:00:00Z"})
    await say.create("q", ack_policy="explicit", pause_until="2090-01-01T00:00:00Z")


async def grouping(say: Transcript) -> None:
    await say.publish(*["s.g"] * 8)
    group = {"ack_policy": "explicit", "priority_groups": ["a", "b/2"]}
    for config in (
        {"priority_policy": "pinned_client"},
        {"priority_policy": "pinned_client", "priority_timeout": 3000 * MS},
        {"priority_policy": "overflow", "priority_timeout": 3000 * MS},
        {"priority_policy": "prioritized", "priority_groups": [""]},
        {"priority_policy": "prioritized", "priority_groups": ["not valid"]},
        {"priority_policy": "prioritized", "deliver_subject": "d"},
        {"priority_timeout": 3000 * MS, "priority_groups": []},
    ):
        await say.create("refused", **{**group, **config})
    await say.api("CONSUMER.DELETE.S.refused")
    wait = {"batch": 2, "expires": 100 * MS}
    for policy in ("overflow", "pinned_client", "prioritized"):
        await say.create(policy, **group, priority_policy=policy, filter_subject="s.g")
        for fields in (
            {},
            {"group": "c"},
            {"group": "a", "min_pending": 2},
            {"group": "a", "min_pending": 20},
            {"group": "a", "min_ack_pending": 1},
            {"group": "a", "id": "xyz"},
            {"group": "b/2"},
            {"group": "a", "priority": 3, "max_bytes": 1},
            {"group": "a", "no_wait": True, "min_pending": 50},
        ):
            await say.pull(policy, {**wait, **fields})
        await say.info(policy)
        for body in (b"", b"{}", {"group": "a"}, {"group": "c"}, {"group": "no.name"}):
            await say.api(f"CONSUMER.UNPIN.S.{policy}", body)
        await say.info(policy)
    await say.api("CONSUMER.UNPIN.S.nobody", {"group": "a"})
    await say.api("CONSUMER.UNPIN.NONE.nobody", {"group": "a"})


async def resetting(say: Transcript) -> None:
    await say.publish(*["s.r"] * 6)
    for name, config in (
        ("all", {}),
        ("seq", {"deliver_policy": "by_start_sequence", "opt_start_seq": 3}),
        ("time", {"deliver_policy": "by_start_time", "opt_start_time": "2020-01-01T00:00:00Z"}),
        ("new", {"deliver_policy": "new"}),
    ):
        await say.create(f"r{name}", ack_policy="explicit", **config)
        messages = await say.pull(f"r{name}", {"batch": 4, "expires": 100 * MS})
        for message in [message for message in messages if message.reply][:2]:
            await say.ack(message)
        await say.info(f"r{name}")
        for body in (b"", {"seq": 5}, {"seq": 2}, b"{nope", {"seq": 100000}):
            await say.api(f"CONSUMER.RESET.S.r{name}", body)
            await say.info(f"r{name}")
        await say.api(f"CONSUMER.RESET.S.r{name}", {"seq": 4})
        await say.pull(f"r{name}", {"batch": 2, "expires": 100 * MS})
        await say.info(f"r{name}")


async def test_both_servers_say_the_same(tmp_path: Path) -> None:
    parts = (creating, refusing, pulling, acking, beginning, pausing, grouping, resetting, purging)
    await say_the_same(tmp_path, {"S": {"subjects": ["s.>"]}}, parts, at_least=101)
