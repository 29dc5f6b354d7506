"""Ordered consumers over a scripted server: gaps, silence, and what ack subjects tell."""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque

import pytest

from penstock.client.ordered import sequences_of, tokens_after_sequences
from penstock.errors import ConsumerGoneError
from tests.support.jetstream_peer import JetStreamPeer, js_client
from tests.support.nats_servers import until

pytestmark = pytest.mark.feature("client.ordered")

CREATE = re.compile(r"\$JS\.API\.CONSUMER\.CREATE\.S\.(\w+)")


UNAVAILABLE = b'{"error":{"code":503,"err_code":10008,"description":"temporarily unavailable"}}'


async def serve_ordered(
    js: JetStreamPeer,
    deliveries: deque[list[tuple[int, int]]],
    created: list[int],
    deleted: bytes = b'{"success":true}',
) -> None:
    """Creates consumers and delivers to each what the script has for it: (stream seq, consumer seq)."""
    while True:
        subject, reply, body = await js.request()
        if found := CREATE.match(subject):
            config = json.loads(body)["config"]
            created.append(config.get("opt_start_seq", 0))
            info = {"stream_name": "S", "name": found[1], "config": {}, "delivered": {}, "ack_floor": {}}
            js.answer(reply, json.dumps(info).encode())
        elif ".CONSUMER.DELETE." in subject:
            js.answer(reply, deleted)
        elif ".CONSUMER.MSG.NEXT." in subject and deliveries:
            for seq, cseq in deliveries.popleft():
                js.message(reply, seq, cseq)


async def test_an_ordered_consumer_starts_over_at_a_gap_and_gives_nothing_twice() -> None:
    created: list[int] = []
    deliveries = deque([[(3, 1), (5, 2), (9, 4), (11, 5)], [(7, 1), (9, 2)]])

    async def script(js: JetStreamPeer, number: int) -> None:
        await serve_ordered(js, deliveries, created)

    async with js_client(script) as client:
        stream = client.jetstream()._bare_stream("S")
        async with stream.ordered_consumer().consume() as messages:
            got = [(await messages.__anext__()).seq for _ in range(4)]
        assert got == [3, 5, 7, 9]
    assert created == [0, 6]


async def test_an_ordered_fetch_starts_over_at_a_gap() -> None:
    created: list[int] = []
    deliveries = deque([[(1, 1), (3, 3)], [(2, 1), (3, 2)]])

    async def script(js: JetStreamPeer, number: int) -> None:
        await serve_ordered(js, deliveries, created)

    async with js_client(script) as client:
        ordered = client.jetstream()._bare_stream("S").ordered_consumer()
        assert [msg.seq for msg in await ordered.fetch(2)] == [1]
        assert [msg.seq for msg in await ordered.fetch(2)] == [2, 3]
    assert created == [0, 2]


async def test_a_read_that_is_complete_does_not_need_its_consumer_deleted() -> None:
    """In a cluster of official servers the request fails where the meta leader changes."""
    created: list[int] = []

    async def script(js: JetStreamPeer, number: int) -> None:
        await serve_ordered(js, deque([[(1, 1)]]), created, deleted=UNAVAILABLE)

    async with js_client(script) as client:
        async with client.jetstream()._bare_stream("S").ordered_consumer().consume() as messages:
            assert (await messages.__anext__()).seq == 1
        assert created == [0]


async def test_an_ordered_fetch_gives_up_when_every_consumer_begins_with_a_gap() -> None:
    created: list[int] = []
    deliveries = deque([[(5, 5)] for _ in range(9)])

    async def script(js: JetStreamPeer, number: int) -> None:
        await serve_ordered(js, deliveries, created)

    async with js_client(script) as client:
        with pytest.raises(ConsumerGoneError, match="began with a gap"):
            await client.jetstream()._bare_stream("S").ordered_consumer().fetch(1)
    assert created == [0, 0, 0]


async def test_an_ordered_consumer_that_gets_nowhere_makes_no_storm_of_consumers() -> None:
    created: list[int] = []
    deliveries = deque([[(5, 5)] for _ in range(999)])

    async def script(js: JetStreamPeer, number: int) -> None:
        await serve_ordered(js, deliveries, created)

    async with js_client(script) as client:
        messages = client.jetstream()._bare_stream("S").ordered_consumer().consume()
        await until(lambda: len(created) == 1)
        await asyncio.sleep(0.2)
        messages.stop()
    assert len(created) <= 2  # it was hundreds


async def test_an_ordered_consumer_starts_over_when_it_is_too_quiet() -> None:
    created: list[int] = []
    deliveries = deque([[(1, 1)], [(2, 1)]])

    async def script(js: JetStreamPeer, number: int) -> None:
        await serve_ordered(js, deliveries, created)

    async with js_client(script) as client:
        stream = client.jetstream()._bare_stream("S")
        messages = stream.ordered_consumer().consume(expires=1, heartbeat=0.5)
        messages._monitor.interval_s = 0.01
        assert [(await messages.__anext__()).seq for _ in range(2)] == [1, 2]
        messages.stop()
    assert created[:2] == [0, 2]


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (b"$JS.ACK.S.C.1.7.3.1700000000000000000.0", (7, 3)),
        (b"$JS.ACK._.hash.S.C.1.7.3.1700000000000000000.0", (7, 3)),
        (b"$JS.ACK.hub.hash.S.C.1.7.3.1700000000000000000.0.extra.more", (7, 3)),
        (b"$JS.ACK.S.C.1.7.3.1700000000000000000", (0, 0)),
        (b"$JS.ACK.S.C.1.x.y.1700000000000000000.0", (0, 0)),
        (b"_INBOX.a.b.c.d.e.f.g.h", (0, 0)),
        (b"", (0, 0)),
        (None, (0, 0)),
    ],
)
def test_sequences_are_read_from_both_forms_of_ack_subjects(
    reply: bytes | None, expected: tuple[int, int]
) -> None:
    tail = tokens_after_sequences(reply) if reply else -1
    if tail >= 0:
        assert sequences_of(reply, tail) == expected
    assert (sequences_of(reply) if tail >= 0 else (0, 0)) == expected
