"""Pulling and publishing over a scripted server: statuses, silence, gaps, acks that never come."""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import penstock.client
from penstock.client import Client
from penstock.client.consume import Consume
from penstock.client.consumer import Consumer
from penstock.client.ordered import sequences_of, tokens_after_sequences
from penstock.client.pull import ConsumeOptions
from penstock.errors import (
    ConsumerGoneError,
    JetStreamNotEnabledError,
    MisuseError,
    NoStreamError,
    PermissionsError,
    PublishFailedError,
    PublishNotAckedError,
    PullError,
)
from penstock.protocol import status
from penstock.protocol.api import ConsumerInfo, PullRequest, SequenceInfo, decode
from tests.support.client_fakes import ScriptedPeer, scripted_server
from tests.support.nats_servers import until


class JetStreamPeer:
    """Takes requests apart: `await request()` gives (subject, reply, body) of the next publish."""

    def __init__(self, peer: ScriptedPeer) -> None:
        self.peer = peer
        self.sids: dict[bytes, bytes] = {}
        self.unsubscribed: list[bytes] = []

    async def request(self) -> tuple[str, bytes, bytes]:
        while True:
            line = await self.peer.line()
            if not line:
                raise ConnectionError
            parts = line.split(b" ")
            if parts[0] == b"SUB":
                self.sids[parts[1]] = parts[-1]
            elif parts[0] == b"UNSUB":
                self.unsubscribed.append(parts[1])
            elif parts[0] == b"PING":
                self.peer.send(b"PONG\r\n")
            elif parts[0] == b"PUB":
                body = await self.peer.line()
                return parts[1].decode(), parts[2] if len(parts) == 4 else b"", body

    async def pull(self) -> tuple[PullRequest, bytes]:
        """The next pull request and its inbox."""
        subject, reply, body = await self.request()
        assert ".CONSUMER.MSG.NEXT." in subject, subject
        return decode(PullRequest, body), reply

    def _sid(self, inbox: bytes) -> bytes:
        wildcard = inbox.rpartition(b".")[0] + b".*"
        return self.sids.get(inbox) or self.sids[wildcard]

    def status(self, inbox: bytes, one: status.Status, **headers: int) -> None:
        block = one.block((name.replace("_", "-"), str(value)) for name, value in headers.items())
        self.peer.send(
            b"HMSG %b %b %d %d\r\n%b\r\n" % (inbox, self._sid(inbox), len(block), len(block), block)
        )

    def message(self, inbox: bytes, seq: int, cseq: int = 0, data: bytes = b"x") -> None:
        ack = b"$JS.ACK.S.C.1.%d.%d.1700000000000000000.0" % (seq, cseq or seq)
        self.peer.send(b"MSG s %b %b %d\r\n%b\r\n" % (self._sid(inbox), ack, len(data), data))

    def answer(self, inbox: bytes, body: bytes) -> None:
        self.peer.send(b"MSG %b %b %d\r\n%b\r\n" % (inbox, self._sid(inbox), len(body), body))


JsScript = Callable[[JetStreamPeer, int], Any]


@asynccontextmanager
async def js_client(script: JsScript, **options: Any) -> AsyncIterator[Client]:
    async def serve(peer: ScriptedPeer, number: int) -> None:
        await peer.shake_hands()
        js = JetStreamPeer(peer)
        await script(js, number)
        while True:
            await js.request()

    async with (
        scripted_server(serve) as url,
        penstock.client.connect(url, reconnect_wait=0.005, **options) as client,
    ):
        yield client


def consumer_of(client: Client) -> Consumer:
    info = ConsumerInfo(stream_name="S", name="C", delivered=SequenceInfo(), ack_floor=SequenceInfo())
    return Consumer(client.jetstream(), info)


def quick_consume(client: Client, heartbeat_s: float = 0.02, **more: Any) -> Consume:
    """A consume with heartbeats below what users may ask for, so that tests need not wait."""
    options = ConsumeOptions(10, 0, 5, 0, expires_s=1.0, heartbeat_s=heartbeat_s)
    consume = Consume(client._session, b"$JS.API.CONSUMER.MSG.NEXT.S.C", "C", options, **more)
    consume.start()
    return consume


# --- consume ------------------------------------------------------------------------------------


async def test_consume_pulls_ahead_by_the_threshold_through_one_inbox() -> None:
    pulls: list[tuple[int, bytes]] = []

    async def script(js: JetStreamPeer, number: int) -> None:
        seq = 0
        while True:
            request, inbox = await js.pull()
            pulls.append((request.batch, inbox))
            for _ in range(request.batch):
                seq += 1
                js.message(inbox, seq, data=b"%d" % seq)

    async with js_client(script) as client:
        async with consumer_of(client).consume(max_messages=10) as messages:
            got = [int((await messages.__anext__()).data) for _ in range(23)]
        assert got == list(range(1, 24))
    assert [batch for batch, _ in pulls][:4] == [10, 5, 5, 5]
    assert len({inbox for _, inbox in pulls}) == 1


async def test_an_expired_pull_is_replaced_by_what_it_gave_back() -> None:
    batches: list[int] = []

    async def script(js: JetStreamPeer, number: int) -> None:
        request, inbox = await js.pull()
        batches.append(request.batch)
        js.message(inbox, 1)
        js.status(inbox, status.REQUEST_TIMEOUT, Nats_Pending_Messages=9, Nats_Pending_Bytes=0)
        request, inbox = await js.pull()
        batches.append(request.batch)
        js.message(inbox, 2)

    async with js_client(script) as client, consumer_of(client).consume(max_messages=10) as messages:
        assert (await messages.__anext__()).seq == 1
        async with asyncio.timeout(10):  # well before heartbeats are missed, which would help as well
            assert (await messages.__anext__()).seq == 2
    assert batches[0] == 10
    assert 9 <= batches[1] <= 10  # 10 when message 1 was handed out before


@pytest.mark.parametrize(
    ("one", "kind"),
    [
        (status.CONSUMER_DELETED, ConsumerGoneError),
        (status.CONSUMER_IS_PUSH_BASED, PullError),
        (status.HEARTBEAT_TOO_LARGE, PullError),
    ],
)
async def test_terminal_statuses_end_consume_after_what_arrived(
    one: status.Status, kind: type[Exception]
) -> None:
    async def script(js: JetStreamPeer, number: int) -> None:
        _, inbox = await js.pull()
        js.message(inbox, 1)
        js.status(inbox, one)

    async with js_client(script) as client:
        messages = consumer_of(client).consume()
        assert (await messages.__anext__()).seq == 1
        with pytest.raises(kind):
            await messages.__anext__()
        with pytest.raises(kind):
            await messages.__anext__()


@pytest.mark.parametrize(
    "one",
    [status.LEADERSHIP_CHANGE, status.EXCEEDED_MAX_WAITING, status.NO_RESPONDERS, status.SERVER_SHUTDOWN],
)
async def test_passing_troubles_are_warnings_and_consume_pulls_again_after_a_while(
    one: status.Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.client.consume.REFUSED_WAIT_S", 0.01)
    warnings: list[Exception] = []

    async def script(js: JetStreamPeer, number: int) -> None:
        _, inbox = await js.pull()
        js.status(inbox, one)
        request, inbox = await js.pull()
        assert request.batch == 500
        js.message(inbox, 1)

    async with (
        js_client(script) as client,
        consumer_of(client).consume(on_warning=warnings.append) as messages,
    ):
        assert (await messages.__anext__()).seq == 1
    assert len(warnings) == 1


async def test_missed_heartbeats_are_a_warning_and_a_new_pull() -> None:
    warnings: list[Exception] = []

    async def script(js: JetStreamPeer, number: int) -> None:
        await js.pull()  # lost, says this server
        _, inbox = await js.pull()
        js.message(inbox, 1)

    async with js_client(script) as client:
        messages = quick_consume(client, on_warning=warnings.append)
        assert (await messages.__anext__()).seq == 1
        messages.stop()
    assert isinstance(warnings[0], ConsumerGoneError)
    assert "no heartbeat" in str(warnings[0])


async def test_heartbeats_keep_consume_calm() -> None:
    warnings: list[Exception] = []

    async def script(js: JetStreamPeer, number: int) -> None:
        _, inbox = await js.pull()
        for _ in range(30):
            await asyncio.sleep(0.01)
            js.status(inbox, status.IDLE_HEARTBEAT)
        js.message(inbox, 1)

    async with js_client(script) as client:
        messages = quick_consume(client, heartbeat_s=0.1, on_warning=warnings.append)
        assert (await messages.__anext__()).seq == 1
        messages.stop()
    assert warnings == []


async def test_silence_while_disconnected_is_no_missed_heartbeat() -> None:
    warnings: list[Exception] = []
    go_on = asyncio.Event()

    async def script(js: JetStreamPeer, number: int) -> None:
        if number == 0:
            await js.pull()
            js.peer.hang_up()
            await go_on.wait()
        request, inbox = await js.pull()
        assert request.batch == 10
        js.message(inbox, 1)

    async with js_client(script) as client:
        messages = quick_consume(client, heartbeat_s=5.0, on_warning=warnings.append)
        await until(lambda: messages._monitor._paused or messages.buffered > 0)
        go_on.set()
        assert (await messages.__anext__()).seq == 1
        messages.stop()
    assert warnings == []


async def test_a_message_larger_than_the_whole_buffer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.client.consume.REFUSED_WAIT_S", 0.01)
    warnings: list[Exception] = []

    async def script(js: JetStreamPeer, number: int) -> None:
        while True:
            request, inbox = await js.pull()
            js.status(
                inbox,
                status.MESSAGE_SIZE_EXCEEDS_MAX_BYTES,
                Nats_Pending_Messages=request.batch,
                Nats_Pending_Bytes=request.max_bytes,
            )

    async with (
        js_client(script) as client,
        consumer_of(client).consume(max_bytes=100, on_warning=warnings.append),
    ):
        await until(lambda: len(warnings) >= 2)
    assert isinstance(warnings[0], MisuseError)
    assert "raise max_bytes" in str(warnings[0])


async def test_a_pinned_client_shows_its_pin_and_drops_it_when_told() -> None:
    pins: list[str] = []

    async def script(js: JetStreamPeer, number: int) -> None:
        request, inbox = await js.pull()
        pins.append(request.id)
        block = b"NATS/1.0\r\nNats-Pin-Id: abc\r\n\r\n"
        js.peer.send(
            b"HMSG s %b $JS.ACK.S.C.1.1.1.1.0 %d %d\r\n%b\r\n"
            % (js.sids[inbox], len(block), len(block), block)
        )
        js.status(inbox, status.REQUEST_TIMEOUT, Nats_Pending_Messages=0, Nats_Pending_Bytes=0)
        request, inbox = await js.pull()
        pins.append(request.id)
        js.status(inbox, status.WRONG_PIN_ID, Nats_Pending_Messages=1, Nats_Pending_Bytes=0)
        request, inbox = await js.pull()
        pins.append(request.id)
        js.message(inbox, 2)

    async with js_client(script) as client:
        priority = penstock.client.PriorityOptions(group="g")
        async with consumer_of(client).consume(max_messages=1, priority=priority) as messages:
            await messages.__anext__()
            await messages.__anext__()
    assert pins == ["", "abc", ""]


async def test_stopping_unsubscribes_and_drops_what_is_buffered() -> None:
    done = asyncio.Event()

    async def script(js: JetStreamPeer, number: int) -> None:
        _, inbox = await js.pull()
        js.message(inbox, 1)
        js.message(inbox, 2)
        await js.request()
        assert js.unsubscribed == [js.sids[inbox]]
        done.set()

    async with js_client(script) as client:
        messages = consumer_of(client).consume()
        await messages.__anext__()
        await until(lambda: messages.buffered == 1)
        messages.stop()
        assert [msg async for msg in messages] == []
        await client.publish("tick")
        await done.wait()


# --- fetch --------------------------------------------------------------------------------------


async def test_a_fetch_ends_with_its_status_and_leaves_no_subscription() -> None:
    done = asyncio.Event()

    async def script(js: JetStreamPeer, number: int) -> None:
        request, inbox = await js.pull()
        assert (request.batch, request.expires, request.idle_heartbeat) == (10, 5_000_000_000, 0)
        js.message(inbox, 1)
        js.status(inbox, status.REQUEST_TIMEOUT, Nats_Pending_Messages=9, Nats_Pending_Bytes=0)
        await js.request()
        assert js.unsubscribed == [js.sids[inbox]]
        done.set()

    async with js_client(script) as client:
        assert [msg.seq for msg in await consumer_of(client).fetch(10)] == [1]
        await client.publish("tick")
        await done.wait()


async def test_long_fetches_ask_for_heartbeats_and_miss_them() -> None:
    requests: list[PullRequest] = []

    async def script(js: JetStreamPeer, number: int) -> None:
        for _ in range(2):
            request, inbox = await js.pull()
            requests.append(request)
            js.message(inbox, 1)

    async with js_client(script) as client:
        consumer = consumer_of(client)
        fetch = consumer.fetch(2, expires=1, heartbeat=0.01)
        assert [msg.seq for msg in await fetch] == [1]  # what came is not lost to the error
        fetch = consumer.fetch(2, expires=1, heartbeat=0.01).__aiter__()
        assert (await fetch.__anext__()).seq == 1
        with pytest.raises(ConsumerGoneError, match="no heartbeat"):
            await fetch.__anext__()
        assert consumer.fetch(1, expires=60)._request.idle_heartbeat == 15_000_000_000
    assert [request.idle_heartbeat for request in requests] == [10_000_000, 10_000_000]


async def test_a_silent_server_ends_a_fetch_a_little_after_its_expiry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.client.fetch.GRACE_S", 0.01)

    async def script(js: JetStreamPeer, number: int) -> None:
        await js.pull()

    async with js_client(script) as client:
        assert await consumer_of(client).fetch(1, expires=0.01) == []


async def test_a_fetch_left_early_unsubscribes() -> None:
    done = asyncio.Event()

    async def script(js: JetStreamPeer, number: int) -> None:
        _, inbox = await js.pull()
        js.message(inbox, 1)
        await js.request()
        assert js.unsubscribed == [js.sids[inbox]]
        done.set()

    async with js_client(script) as client:
        async with consumer_of(client).fetch(10) as msgs:
            async for msg in msgs:
                assert msg.seq == 1
                break
        await client.publish("tick")
        await done.wait()


async def test_a_cancelled_fetch_unsubscribes() -> None:
    done = asyncio.Event()

    async def script(js: JetStreamPeer, number: int) -> None:
        _, inbox = await js.pull()
        await js.request()
        assert js.unsubscribed == [js.sids[inbox]]
        done.set()

    async with js_client(script) as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await consumer_of(client).fetch(1)
        await client.publish("tick")
        await done.wait()


# --- ordered ------------------------------------------------------------------------------------

CREATE = re.compile(r"\$JS\.API\.CONSUMER\.CREATE\.S\.(\w+)")


async def serve_ordered(
    js: JetStreamPeer, deliveries: deque[list[tuple[int, int]]], created: list[int]
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
            js.answer(reply, b'{"success":true}')
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


# --- publishing ---------------------------------------------------------------------------------


async def test_an_ack_that_does_not_come_fails_its_publish_alone() -> None:
    async def script(js: JetStreamPeer, number: int) -> None:
        _, _first, _ = await js.request()
        _, second, _ = await js.request()
        js.answer(second, b'{"stream":"S","seq":2}')

    async with js_client(script) as client:
        js = client.jetstream()
        with pytest.raises(PublishFailedError, match="1 publishes failed, 1 were stored"):  # noqa: PT012
            async with js.publisher(timeout=0.05) as publisher:
                lost = await publisher.publish("s", b"1")
                kept = await publisher.publish("s", b"2")
                assert (await kept).seq == 2
        assert lost.done()
        with pytest.raises(PublishNotAckedError, match=r"within 0\.05 s"):
            lost.result()


async def test_the_publisher_tries_again_when_nobody_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.client.publisher.NO_STREAM_RETRY_WAIT_S", 0.001)

    async def script(js: JetStreamPeer, number: int) -> None:
        for attempt in range(3):
            _, reply, body = await js.request()
            assert body == b"1"
            if attempt < 2:
                js.status(reply, status.NO_RESPONDERS)
        js.answer(reply, b'{"stream":"S","seq":1}')
        for _ in range(3):
            _, reply, _ = await js.request()
            js.status(reply, status.NO_RESPONDERS)

    async with js_client(script) as client, client.jetstream().publisher() as publisher:
        assert (await (await publisher.publish("s", b"1"))).seq == 1
        with pytest.raises(NoStreamError):
            await (await publisher.publish("s", b"2"))


async def test_the_window_holds_publishes_back_until_acks_come() -> None:
    replies: list[bytes] = []
    go_on = asyncio.Event()

    async def script(js: JetStreamPeer, number: int) -> None:
        for _ in range(4):
            replies.append((await js.request())[1])
        await go_on.wait()
        for seq, reply in enumerate(replies, 1):
            js.answer(reply, b'{"stream":"S","seq":%d}' % seq)
        _, reply, _ = await js.request()
        js.answer(reply, b'{"stream":"S","seq":5}')

    async with js_client(script) as client, client.jetstream().publisher(window=4) as publisher:
        for _ in range(4):
            await publisher.publish("s")
        fifth = asyncio.ensure_future(publisher.publish("s"))
        await until(lambda: len(replies) == 4)
        assert not fifth.done()
        assert publisher.pending == 4
        go_on.set()
        assert (await (await fifth)).seq == 5


async def test_closing_the_client_ends_a_publisher_that_waits() -> None:
    async def script(js: JetStreamPeer, number: int) -> None:
        await js.request()

    async with js_client(script) as client:
        with pytest.raises(penstock.errors.ConnectionClosedError):  # noqa: PT012
            async with client.jetstream().publisher(window=1) as publisher:
                first = await publisher.publish("s")
                waiting = asyncio.ensure_future(publisher.publish("s"))
                await until(lambda: publisher._room is not None)
                await client.close()
                with pytest.raises(PublishNotAckedError):
                    await first
                await waiting


async def test_a_subject_that_may_not_be_published_fails_what_waits_on_it() -> None:
    async def script(js: JetStreamPeer, number: int) -> None:
        for _ in range(4):
            subject, _, _ = await js.request()
            js.peer.send(b"-ERR 'Permissions Violation for Publish to \"%b\"'\r\n" % subject.encode())

    async with js_client(script, on_error=lambda *_: None) as client:
        async with client.jetstream().publisher(timeout=60) as publisher:
            with pytest.raises(PermissionsError):
                await (await publisher.publish("s"))
        consumer = consumer_of(client)
        with pytest.raises(PermissionsError):
            await consumer.fetch(1, expires=60)
        with pytest.raises(PermissionsError):
            await consumer.consume().__anext__()
        with pytest.raises(PermissionsError):
            await client.jetstream().publish("s", timeout=60)


async def test_a_server_without_jetstream_is_named_so() -> None:
    async def script(js: JetStreamPeer, number: int) -> None:
        while True:
            _, reply, _ = await js.request()
            js.status(reply, status.NO_RESPONDERS)

    async with js_client(script) as client:
        with pytest.raises(JetStreamNotEnabledError, match=r"\$JS\.hub\.API\.INFO"):
            await client.jetstream(domain="hub").account_info()
        with pytest.raises(JetStreamNotEnabledError, match=r"imported\.INFO"):
            await client.jetstream(prefix="imported").account_info()
        with pytest.raises(MisuseError):
            client.jetstream(domain="a", prefix="b")
