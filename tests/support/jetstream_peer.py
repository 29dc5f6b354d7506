"""A scripted server that speaks JetStream: the test says what it answers to each request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import penstock.client
from penstock.client import Client
from penstock.client.consumer import Consumer
from penstock.protocol import status
from penstock.protocol.api import ApiConsumerInfo, PullRequest, SequenceInfo, decode
from tests.support.client_fakes import ScriptedPeer, scripted_server


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
        await peer.handshake()
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
    info = ApiConsumerInfo(stream_name="S", name="C", delivered=SequenceInfo(), ack_floor=SequenceInfo())
    return Consumer(client.jetstream(), info)
