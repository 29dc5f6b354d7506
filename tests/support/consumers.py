"""Consumers on an engine without server: requests, pulls and acks by hand, on a clock that is set."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from penstock.jetstream.consumer.consumer_replica import ConsumerReplica
from penstock.kernels.wire.dispatch import ClientSink, publish
from penstock.kernels.wire.frames import FrameParser
from penstock.kernels.wire.sinks import DirtyList, SinkSubscription
from penstock.store.interface import AccountStore
from tests.support.engine import EngineHarness

MS = 1_000_000
SECOND = 1_000_000_000


class Delivered(NamedTuple):
    subject: bytes
    reply: bytes
    header: bytes
    payload: bytes

    @property
    def numbers(self) -> tuple[int, int, int, int]:
        """(deliveries, stream sequence, consumer sequence, pending) of its ack subject."""
        tokens = self.reply.split(b".")
        return int(tokens[4]), int(tokens[5]), int(tokens[6]), int(tokens[8])

    @property
    def seq(self) -> int:
        return self.numbers[1]

    @property
    def status(self) -> str:
        """`404 No Messages` of a status message, "" of a stored one."""
        return "" if self.reply else self.header.split(b"\r\n", 1)[0].decode().removeprefix("NATS/1.0 ")


class Inbox:
    """A client's subscription, and what arrives on it."""

    def __init__(self, bench: ConsumerHarness, subject: bytes, queue: bytes = b"") -> None:
        self.subject = subject
        self._bench = bench
        self._sink = ClientSink(DirtyList())
        self._sink.headers = True
        self._parser = FrameParser()
        self._subscription = SinkSubscription(self._sink, subject, queue, b"1")
        bench.index.insert(self._subscription)

    def take(self) -> list[Delivered]:
        self._parser.feed(self._sink.take())
        frames = self._parser.next_batch()
        return [
            Delivered(subject, reply or b"", header or b"", body)
            for _, subject, reply, header, body in frames
        ]

    def seqs(self) -> list[int]:
        """Stream sequences of the messages that came since the last look; statuses are an error."""
        got = self.take()
        assert not [one.status for one in got if one.status]
        return [one.seq for one in got]

    def statuses(self) -> list[str]:
        """The same of statuses; messages are an error."""
        got = self.take()
        assert not [one for one in got if not one.status]
        return [one.status for one in got]

    def close(self) -> None:
        self._bench.index.remove(self._subscription)


class ConsumerHarness(EngineHarness):
    """Stream S on `s.>` and what its consumers need."""

    def __init__(
        self, store: AccountStore | None = None, *, stream: dict[str, Any] | None = None, **settings: Any
    ):
        super().__init__(store, **settings)
        if "S" not in self.engine.streams:
            self.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], **(stream or {})})
        self._inbox_count = 0

    def inbox(self) -> Inbox:
        self._inbox_count += 1
        return Inbox(self, b"_IN.%d" % self._inbox_count)

    def store_messages(self, *subjects: str, payload: bytes = b"payload") -> None:
        for subject in subjects:
            publish(self.index, subject.encode(), b"", b"", payload)
        self.tick()

    def define(self, name: str, *, action: str = "", **config: Any) -> Any:
        """The answer to CONSUMER.CREATE."""
        body = {"stream_name": "S", "config": {"name": name, **config}, "action": action}
        return self.request(f"$JS.API.CONSUMER.CREATE.S.{name}", body)

    def consumer(self, name: str, **config: Any) -> ConsumerReplica:
        """A consumer with explicit acks, unless said otherwise; creating it must work."""
        answer = self.define(name, **{"ack_policy": "explicit", **config})
        assert "error" not in answer, answer
        return self.engine.streams["S"].consumers[name]

    def pull(self, name: str, body: Any = b"", inbox: Inbox | None = None) -> Inbox:
        """A pull request; the inbox its answers go to."""
        inbox = inbox or self.inbox()
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        publish(self.index, f"$JS.API.CONSUMER.MSG.NEXT.S.{name}".encode(), inbox.subject, b"", payload)
        self.tick()
        return inbox

    def ack(self, message: Delivered, body: bytes = b"", reply: bytes = b"") -> None:
        publish(self.index, message.reply, reply, b"", body)

    def info(self, name: str) -> Any:
        return self.request(f"$JS.API.CONSUMER.INFO.S.{name}")

    def floors(self, name: str) -> tuple[int, int, int, int]:
        """(delivered consumer, stream, floor consumer, stream)."""
        info = self.info(name)
        delivered, floor = info["delivered"], info["ack_floor"]
        return delivered["consumer_seq"], delivered["stream_seq"], floor["consumer_seq"], floor["stream_seq"]

    def restarted(self) -> ConsumerHarness:
        """The same store under a new engine; the old one just stops, as if it had been killed."""
        return ConsumerHarness(self.store, now=self.now)

    def pass_time(self, ns: int) -> None:
        self.wait_until(self.now + ns)
