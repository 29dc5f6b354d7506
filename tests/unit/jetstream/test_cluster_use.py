"""Limits of accounts in a cluster: they hold for the streams of all servers together."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.jetstream.cluster_use import HAND_OVER_NS
from penstock.protocol.api import AccountLimits, StorageType
from tests.support.engine import START_NS
from tests.support.replicated_engines import ReplicatedEngines

MESSAGE = 60  # bytes of a message in a file stream, at most


def engines(**settings: Any) -> ReplicatedEngines:
    return ReplicatedEngines(2, is_clustered=True, **settings)


def publish(js: ReplicatedEngines, subject: bytes, count: int, at: int = 0) -> list[int]:
    """Error codes of so many publishes; 0: stored."""
    heard = js.engines[at].listen(b"_IN.acks")
    for _ in range(count):
        js.publish(subject, b"x" * 20, b"_IN.acks", at=at)
        js.settle()
    return [json.loads(payload).get("error", {}).get("err_code", 0) for _, _, payload in heard]


def reports(js: ReplicatedEngines, now: int = START_NS + HAND_OVER_NS) -> list[list[tuple[int, int, int]]]:
    return [one.engine.capacity.cluster_use.report(now) for one in js.engines]


def exchange(js: ReplicatedEngines, now: int = START_NS + HAND_OVER_NS) -> None:
    """Each engine hears what the other one reports."""
    first, second = reports(js, now)
    js.engines[0].engine.capacity.cluster_use.reported(second)
    js.engines[1].engine.capacity.cluster_use.reported(first)


def test_an_account_without_tiers_pays_for_each_replica() -> None:
    js = engines(account_storage_max=1000)
    js.open("S", "s", storage=StorageType.FILE, num_replicas=2)
    codes = publish(js, b"s", 20)
    size = js.replicas["S"][0].stream.log.bytes
    assert size <= 500 < size + MESSAGE
    assert set(codes) == {0, 10002} and codes == sorted(codes)


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_tier_pays_once_whatever_the_number_of_replicas(replicas: int) -> None:
    js = engines(tiers={f"R{replicas}": AccountLimits(max_storage=1000)})
    js.open("S", "s", storage=StorageType.FILE, num_replicas=replicas)
    codes = publish(js, b"s", 30)
    size = js.replicas["S"][0].stream.log.bytes
    assert size <= 1000 < size + MESSAGE
    assert set(codes) == {0, 10002} and codes == sorted(codes)


def test_a_stream_without_limits_for_its_tier_stores_nothing() -> None:
    js = engines(tiers={"R1": AccountLimits()})
    js.open("S", "s", num_replicas=3)
    assert publish(js, b"s", 1) == [10120]


def test_streams_that_another_server_leads_count_too() -> None:
    js = engines(account_storage_max=2000)
    js.open("S", "s", storage=StorageType.FILE, num_replicas=2)
    js.open("T", "t", storage=StorageType.FILE, num_replicas=2)
    js.lead("T", 1)
    assert publish(js, b"t", 10, at=1) == [0] * 10
    exchange(js)
    codes = publish(js, b"s", 20)
    sizes = [js.replicas[name][0].stream.log.bytes for name in "ST"]
    assert 2 * sum(sizes) <= 2000 < 2 * (sum(sizes) + MESSAGE)
    assert codes[-1] == 10002


def test_a_new_stream_has_only_what_the_others_leave() -> None:
    js = engines(account_storage_max=1000)
    js.open("S", "s", storage=StorageType.FILE, num_replicas=2)
    publish(js, b"s", 5)
    exchange(js)
    js.open("T", "t", storage=StorageType.FILE, num_replicas=1)
    publish(js, b"t", 20)
    sizes = {name: js.replicas[name][0].stream.log.bytes for name in "ST"}
    assert 2 * sizes["S"] + sizes["T"] <= 1000 < 2 * sizes["S"] + sizes["T"] + MESSAGE


def test_a_purge_makes_room_on_the_other_servers() -> None:
    js = engines(account_storage_max=1000)
    js.open("S", "s", storage=StorageType.FILE, num_replicas=2)
    js.open("T", "t", storage=StorageType.FILE, num_replicas=2)
    js.lead("T", 1)
    publish(js, b"t", 20, at=1)
    exchange(js)
    assert publish(js, b"s", 1) == [10002]
    js.publish(b"$JS.API.STREAM.PURGE.T", b"", b"_IN.purged", at=1)
    js.settle()
    exchange(js)
    assert publish(js, b"s", 1) == [0]


def test_a_stream_that_changes_its_leader_is_not_counted_twice() -> None:
    js = engines(account_storage_max=1000)
    js.open("S", "s", storage=StorageType.FILE, num_replicas=2)
    publish(js, b"s", 7)
    exchange(js)
    js.lead("S", 1)
    js.settle()
    now = js.engines[1].now
    assert publish(js, b"s", 1, at=1) == [0], "the report of the leader before still has the stream"
    assert reports(js, now) == [[], []]
    exchange(js, now)
    assert publish(js, b"s", 1, at=1) == [0]
    used = js.replicas["S"][1].stream.log.bytes
    assert reports(js, now + HAND_OVER_NS) == [[], [(2, 0, used)]]
    assert set(publish(js, b"s", 9, at=1)) == {10002}
