"""What a message counts in `bytes`: a file its record, memory 16 bytes more than subject, header and payload.

Streams that discard new messages predict it before they store; both have to agree on every path.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.reference.records import counted
from tests.support.engine import EngineHarness
from tests.support.examples import examples

pytestmark = pytest.mark.feature("stream.size-accounting")

STORAGES = ["file", "memory"]

payloads = st.binary(max_size=60)


def block(**headers: object) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"NATS/1.0\r\n{lines}\r\n".encode() if lines else b""


def stored(js: EngineHarness, name: str = "S") -> list[tuple[bytes, bytes, bytes]]:
    """Subject, header and payload of every message."""
    log = js.engine.streams[name].log
    found, seq = [], log.next_seq(1)
    while seq:
        one = log.load(seq)
        assert one is not None
        found.append((one.subject, one.header, one.payload))
        seq = log.next_seq(seq + 1)
    return found


def expect_counted(js: EngineHarness, storage: str, name: str = "S") -> int:
    """`bytes` is what its messages count, in the stream's state as in the account's."""
    size = sum(counted(storage, *message) for message in stored(js, name))
    assert js.state(name)["bytes"] == size
    account = js.api("INFO")
    assert account["memory" if storage == "memory" else "storage"] == sum(
        stream.log.bytes for stream in js.engine.streams.values()
    )
    return size


def put_plain(js: EngineHarness, payload: bytes) -> dict[str, Any]:
    return js.request("s.plain", payload, block(Own="1"))


def put_special(js: EngineHarness, payload: bytes) -> dict[str, Any]:
    """Python decides about these."""
    return js.request("s.ttl", payload, block(Nats_TTL="1h"))


def put_atomic(js: EngineHarness, payload: bytes) -> dict[str, Any]:
    js.messages("s.a", payload, block(Nats_Batch_Id="b", Nats_Batch_Sequence=1))
    return js.request("s.b", payload, block(Nats_Batch_Id="b", Nats_Batch_Sequence=2, Nats_Batch_Commit=1))


def put_special_atomic(js: EngineHarness, payload: bytes) -> dict[str, Any]:
    more = {"Nats_TTL": "1h"}
    js.messages("s.a", payload, block(Nats_Batch_Id="b", Nats_Batch_Sequence=1, **more))
    return js.request(
        "s.b", payload, block(Nats_Batch_Id="b", Nats_Batch_Sequence=2, Nats_Batch_Commit=1, **more)
    )


WAYS = [put_plain, put_special, put_atomic, put_special_atomic]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("storage", STORAGES)
@settings(max_examples=examples(25), deadline=None)
@given(payload=payloads)
def test_what_just_fits_is_stored_and_what_is_a_byte_too_large_is_refused(
    storage: str, way: Any, payload: bytes
) -> None:
    config = {"storage": storage, "discard": "new", "allow_atomic": True, "allow_msg_ttl": True}
    js = EngineHarness()
    js.create("S", "s.>", **config)
    assert "error" not in way(js, payload)
    size = expect_counted(js, storage)
    for room in (size, size - 1):
        js = EngineHarness()
        js.create("S", "s.>", **config, max_bytes=room)
        answer = way(js, payload)
        if room == size:
            assert "error" not in answer
        else:
            assert answer["error"]["description"] == "maximum bytes exceeded"
        assert expect_counted(js, storage) <= room


@pytest.mark.parametrize("storage", STORAGES)
def test_a_replaced_message_makes_as_much_room_as_it_counts(storage: str) -> None:
    js = EngineHarness()
    size = counted(storage, b"s.1", block(A="b"), b"12345")
    js.create("S", "s.>", storage=storage, discard="new", max_msgs_per_subject=1, max_bytes=size)
    assert "error" not in js.request("s.1", b"12345", block(A="b"))
    assert "error" not in js.request("s.1", b"54321", block(A="b"))
    larger = js.request("s.1", b"123456", block(A="b"))
    assert larger["error"]["description"] == "maximum bytes exceeded"
    assert expect_counted(js, storage) == size


@pytest.mark.parametrize("storage", STORAGES)
def test_the_oldest_go_when_a_stream_that_discards_them_is_a_byte_over(storage: str) -> None:
    js = EngineHarness()
    size = counted(storage, b"s.1", b"", b"12345")
    js.create("S", "s.>", storage=storage, max_bytes=3 * size)
    for n in range(5):
        js.request(f"s.{n}", b"12345")
    assert [subject for subject, _, _ in stored(js)] == [b"s.2", b"s.3", b"s.4"]
    js.request("s.5", b"123456")
    assert [subject for subject, _, _ in stored(js)] == [b"s.4", b"s.5"]
    expect_counted(js, storage)


@pytest.mark.parametrize("storage", STORAGES)
def test_what_goes_takes_with_it_what_it_counted(storage: str) -> None:
    js = EngineHarness()
    js.create("S", "s.>", storage=storage, max_age=10**9, allow_rollup_hdrs=True)
    for n in range(12):
        js.request(f"s.{n % 3}", b"x" * n, block(A=n) if n % 2 else b"")
    expect_counted(js, storage)
    js.api("STREAM.MSG.DELETE.S", {"seq": 5})
    expect_counted(js, storage)
    js.api("STREAM.PURGE.S", {"filter": "s.1"})
    expect_counted(js, storage)
    js.request("s.0", b"only", block(Nats_Rollup="sub"))
    expect_counted(js, storage)
    js.wait_until(js.now + 2 * 10**9)
    assert expect_counted(js, storage) == 0


@pytest.mark.parametrize("copy_storage", STORAGES)
@pytest.mark.parametrize("storage", STORAGES)
def test_copies_count_what_their_own_stream_says(storage: str, copy_storage: str) -> None:
    js = EngineHarness()
    js.create("O", "o.>", storage=storage)
    js.api("STREAM.CREATE.M", {"name": "M", "storage": copy_storage, "mirror": {"name": "O"}})
    js.api("STREAM.CREATE.N", {"name": "N", "storage": copy_storage, "sources": [{"name": "O"}]})
    for n in range(5):
        js.request(f"o.{n}", b"x" * n, block(A=n) if n % 2 else b"")
    for _ in range(4):
        js.tick()
    for name, kept in (("O", storage), ("M", copy_storage), ("N", copy_storage)):
        assert len(stored(js, name)) == 5
        assert js.state(name)["bytes"] == sum(counted(kept, *one) for one in stored(js, name))
