"""Kernel republish: what leaves is what the model says, once, and in order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kernels.ingest.ingest import AckBatch, IngestBatch, apply_plain
from penstock.kernels.ingest.publish_headers import MessageIds
from penstock.kernels.ingest.storing import PlainLimits, Republisher, store_one
from penstock.kernels.log.stream_log import StreamLog
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import ServiceSink, SubjectMapper
from penstock.kernels.wire.sinks import Sink, SinkSubscription
from tests.reference.republish import RepublishModel

pytestmark = pytest.mark.feature("stream.republish")

DESTINATIONS = {b"a": b"copy.a", b"b": b"copy.b.of.some.length"}
HEADERS = [b"", b"NATS/1.0\r\nX: y\r\n\r\n", b"NATS/1.0\r\nNats-Msg-Id: 1\r\n\r\n"]


def listening() -> tuple[SubscriptionIndex, list[tuple[bytes, bytes, bytes]]]:
    index = SubscriptionIndex()
    heard: list[tuple[bytes, bytes, bytes]] = []

    def hear(subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None) -> None:
        assert reply == b""
        heard.append((subject, header, payload))

    index.insert(SinkSubscription(ServiceSink(hear), b"copy.>"))
    return index, heard


@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"a", b"b", b"c"]),
            st.sampled_from(HEADERS),
            st.binary(max_size=300),
            st.booleans(),
        ),
        max_size=30,
    ),
    st.booleans(),
    st.sampled_from([0, 1, 2]),
)
def test_what_was_stored_leaves_as_the_model_says(
    messages: list[tuple[bytes, bytes, bytes, bool]], headers_only: bool, per_subject_max: int
) -> None:
    index, heard = listening()
    model = RepublishModel(b"S", DESTINATIONS, headers_only)
    republisher = Republisher(b"S", lambda ts: f"time {ts}")
    republisher.configure(SubjectMapper(lambda s: (DESTINATIONS.get(s, b""), True)), headers_only)
    log, ids, acks = StreamLog(), MessageIds(100), AckBatch(b"")
    limits = PlainLimits(per_subject_max=per_subject_max)
    for ts, (subject, header, payload, is_plain) in enumerate(messages, start=1):
        before = log.last_seq
        if is_plain:
            batch = IngestBatch()
            batch.append(subject, b"r", header, payload)
            apply_plain(batch, log, limits, ids, ts, ts, acks, republisher)
        else:
            store_one(log, limits, subject, header, payload, ts, republisher)
        if log.last_seq > before:
            model.stored(subject, header, payload, log.last_seq, b"time %d" % ts)
    assert heard == []
    assert republisher.count == len(model.sent)
    assert republisher.route(index) == len(model.sent)
    assert heard == model.sent
    assert (republisher.count, republisher.route(index)) == (0, 0)


def test_nothing_is_published_again_without_a_mapper_and_what_waits_stays() -> None:
    index, heard = listening()
    republisher = Republisher(b"S", str)
    log, limits = StreamLog(), PlainLimits()
    store_one(log, limits, b"a", b"", b"1", 5, republisher)
    republisher.configure(SubjectMapper(lambda s: (b"copy.a", True)), headers_only=False)
    store_one(log, limits, b"a", b"", b"2", 5, republisher)
    republisher.configure(None, headers_only=False)
    store_one(log, limits, b"a", b"", b"3", 5, republisher)
    assert republisher.route(index) == 1
    assert [payload for _, _, payload in heard] == [b"2"]
    republisher.clear()
