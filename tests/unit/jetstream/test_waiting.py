"""Publishes and API requests that wait for the disk, and those above the limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.jetstream.engine import SharedState
from penstock.jetstream.stream import overflow
from penstock.jetstream.waiting import Queue, WaitingRequests
from penstock.kernels.wire.dispatch import publish
from tests.support.engine import EngineHarness
from tests.unit.jetstream.test_engine_durability import syncing_engine

pytestmark = pytest.mark.feature("stream.request-queues")

TOO_MANY = b"NATS/1.0 429 Too Many Requests\r\n\r\n"


def put(js: EngineHarness, *names: str) -> None:
    for name in names:
        publish(js.index, b"a", b"ack." + name.encode(), b"", b"x")


def reported(heard: list[Any]) -> list[tuple[bytes, int]]:
    """(subject, sequence or error) of the answers."""
    found = []
    for subject, header, payload in heard:
        body = json.loads(payload)
        assert header == (TOO_MANY if "error" in body else b"")
        found.append((subject, body["error"]["err_code"] if "error" in body else body["seq"]))
    return found


def test_what_comes_while_the_disk_is_waited_for_has_the_default_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overflow, "MSGS_MAX", 2)
    later, store, js = syncing_engine(tmp_path)
    js.create("A", "a")
    later.drain()
    heard = js.listen(b"ack.*")
    put(js, "1", "2", "3")  # one tick brings more than may wait: no sync is in flight
    js.tick()
    put(js, "4", "5", "6", "7")
    js.tick()
    assert reported(heard) == [(b"ack.6", 10167), (b"ack.7", 10167)]  # at once, the others wait
    later.drain()
    js.tick()
    later.drain()
    assert reported(heard[2:]) == [(b"ack.%d" % n, n) for n in (1, 2, 3, 4, 5)]
    put(js, "8", "9", "10")
    js.tick()
    later.drain()
    assert reported(heard[7:]) == [(b"ack.8", 6), (b"ack.9", 7), (b"ack.10", 8)]
    js.engine.close()
    store.close()


def test_limits_of_the_configuration_hold_within_a_tick_as_well() -> None:
    js = EngineHarness(buffered_bytes_max=20)
    js.create("A", "a")
    heard = js.listen(b"ack.*")
    put(js, "1", "2", "3")  # seven bytes each: subject, reply and message
    publish(js.index, b"a", b"", b"", b"nobody is told of this one")
    js.tick()
    assert reported(heard) == [(b"ack.3", 10167), (b"ack.1", 1), (b"ack.2", 2)]
    put(js, "4")
    js.tick()
    assert reported(heard[3:]) == [(b"ack.4", 3)]


def test_a_limit_below_zero_is_none() -> None:
    js = EngineHarness(buffered_msgs_max=-1, buffered_bytes_max=20)
    js.create("A", "a")
    heard = js.listen(b"ack.*")
    put(js, "1", "2", "3")
    js.tick()
    assert len(reported(heard)) == 3
    other = EngineHarness(buffered_msgs_max=1, buffered_bytes_max=-1)
    other.create("A", "a")
    heard = other.listen(b"ack.*")
    put(other, "1", "2")
    other.tick()
    assert reported(heard) == [(b"ack.2", 10167), (b"ack.1", 1)]


def test_the_request_that_fills_a_queue_is_dropped_with_all_that_wait_in_it() -> None:
    dropped: list[tuple[Queue, int]] = []
    done: list[str] = []
    waiting = WaitingRequests(lambda queue, count: dropped.append((queue, count)))
    waiting.set_limits(3, 2)
    one, two = object(), object()
    for owner, queue, name in (
        (one, Queue.API, "create"),
        (two, Queue.INFO, "info"),
        (one, Queue.NONE, "pull"),
        (two, Queue.API, "delete"),
        (one, Queue.INFO, "names"),
    ):
        waiting.add(owner, lambda name=name: done.append(name), queue)
    assert dropped == [(Queue.INFO, 2)]
    waiting.add(two, lambda: done.append("purge"), Queue.API)
    assert dropped == [(Queue.INFO, 2), (Queue.API, 3)]
    waiting.add(one, lambda: done.append("update"), Queue.API)
    for request in (*waiting.take(two), *waiting.take(one)):
        request()
    assert done == ["pull", "update"]
    assert waiting.take(one) == []
    waiting.add(one, lambda: done.append("later"), Queue.API)
    assert len(dropped) == 2


def test_requests_that_wait_for_the_disk_are_counted(tmp_path: Path) -> None:
    dropped: list[tuple[Queue, int]] = []
    requests = WaitingRequests(lambda queue, count: dropped.append((queue, count)))
    requests.set_limits(0, 2)
    later, store, js = syncing_engine(tmp_path, shared=SharedState(requests=requests))
    js.create("A", "a")
    later.drain()
    heard = js.listen(b"got.*")
    put(js, "1")
    js.tick()
    for name in (b"1", b"2", b"3"):
        publish(js.index, b"$JS.API.STREAM.INFO.A", b"got." + name, b"", b"")
    publish(js.index, b"$JS.API.STREAM.PURGE.A", b"got.purge", b"", b"")
    assert dropped == [(Queue.INFO, 2)]
    later.drain()
    js.tick()
    later.drain()
    assert [subject for subject, _, _ in heard] == [b"got.3", b"got.purge"]
    js.engine.close()
    store.close()
