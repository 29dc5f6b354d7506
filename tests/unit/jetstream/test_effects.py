"""What a stream's commands cause outside of it leaves once, through the durability gate, or never."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.jetstream.durability import Durability
from penstock.jetstream.stream.effects import StreamEffects
from penstock.kernels.ingest.batches import FastBatches
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import ServiceSink, publish
from penstock.kernels.wire.sinks import Sink, SinkSubscription
from penstock.protocol import error_codes as codes
from penstock.protocol.headers import build
from tests.unit.jetstream.test_engine_durability import syncing_engine

pytestmark = pytest.mark.feature("stream.publish-ack")

REPLY = b"_INBOX.p.batch.100.fail.1.0.$FI"


class Log:
    """The end of a log."""

    last_seq = 0


class Effects:
    """Effects of a stream S without the stream; `left` is what was released."""

    def __init__(self) -> None:
        self.log = Log()
        self.durability = Durability(self.log)
        self.left: list[Any] = []
        self.effects = StreamEffects(
            "S", b'{"stream":"S","seq":', self.durability, lambda *event: self.left.append(event)
        )
        self.index = SubscriptionIndex()
        self.index.insert(SinkSubscription(ServiceSink(self._heard), b"reply.>"))

    def _heard(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None
    ) -> None:
        self.left.append((subject, payload))

    def apply(self) -> None:
        """What a command leaves behind: a message, its ack, and a batch that it abandoned."""
        self.log.last_seq += 1
        self.durability.changed()
        self.effects.acks.add_ack(b"reply.%d" % self.log.last_seq, self.log.last_seq)
        self.effects.abandoned(b"batch", "incomplete")


def test_nothing_leaves_before_it_is_durable_and_then_it_leaves_once() -> None:
    one = Effects()
    one.apply()
    one.effects.release(one.index)
    assert one.left == []
    one.durability.sync_started()
    one.effects.release(one.index)
    assert one.left == []
    one.durability.sync_ended()
    for _ in range(2):
        one.effects.release(one.index)
    assert one.left == [(b"reply.1", b'{"stream":"S","seq":1}'), ("S", "batch", "incomplete")]


def test_a_replica_that_follows_drops_everything_and_is_ready_to_lead() -> None:
    one, batches = Effects(), FastBatches()
    batch = batches.start(REPLY, 1, 1)
    one.apply()
    one.effects.refused(batch)
    assert batch.is_refused
    one.effects.drop()
    assert not batch.is_refused
    one.durability.written()
    one.effects.release(one.index)
    assert one.left == []
    one.apply()
    one.durability.written()
    one.effects.release(one.index)
    assert [event[0] for event in one.left] == [b"reply.2", "S"]


def test_replies_that_are_taken_get_no_other_response() -> None:
    one = Effects()
    one.apply()
    one.durability.failed(codes.STREAM_STORE_FAILED)
    assert one.effects.take_replies() == [b"reply.1"]
    one.effects.release(one.index)
    assert one.left == [("S", "batch", "incomplete")]


@pytest.mark.feature("atomic.append")
def test_an_abandoned_batch_is_announced_after_the_sync_of_what_was_applied_with_it(
    tmp_path: Path,
) -> None:
    later, store, js = syncing_engine(tmp_path)
    js.create("A", "a.>", allow_atomic=True)
    later.drain()
    events = js.listen(b"$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.A")
    acks = js.listen(b"ack.*")
    publish(js.index, b"a.1", b"ack.1", b"", b"stored")
    for seq in ("1", "3"):
        header = build([("Nats-Batch-Id", "b"), ("Nats-Batch-Sequence", seq)])
        publish(js.index, b"a.1", b"ack.b%s" % seq.encode(), header, b"staged")
    js.tick()
    assert later.waiting and (events, acks) == ([], [])
    later.drain()
    assert [json.loads(payload)["reason"] for _, _, payload in events] == ["incomplete"]
    assert len(acks) == 3
    js.engine.close()
    store.close()
