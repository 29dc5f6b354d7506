"""Reads an origin of another account or domain, as any client would: by a push consumer.

The request for the consumer goes out under the API prefix that the configuration names, the consumer delivers
to a subject under the prefix that it names, and imports carry both to where the origin is. The consumer is
ephemeral and takes no acks: what was taken is known by what was stored. Its deliveries are counted, so that
one which got lost is noticed, by the next one or by a heartbeat; then the consumer is made anew behind what
is there. An origin that keeps only what is needed answers the same request with a durable consumer, whose
acks are the answers to flow control; it is removed when the stream has no use for it any more.

Where the configuration names a durable consumer (ADR-60), in the own account too, that one is used: a reset
makes it deliver from above its ack floor, its own configuration says which messages and to which subject. Its
ack policy is flow_control, so a work queue keeps what was not stored here, and nothing longer.

Back pressure: requests for flow control are answered when the stream has applied what came before. Where the
answers are acks, they wait until that is written, or with sync_always until it is on the disk.

States: WAITING (for the next try), ASKED (the request is out), FOLLOWING. What is sent is put off to the next
apply, so that an account's API is never asked while its engine delivers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

from penstock.jetstream.limits import SECOND_NS
from penstock.jetstream.source_consumer import consumer_name
from penstock.jetstream.stream.source_config import deliver_subject
from penstock.kernels.ingest.copying import DeliverySink
from penstock.kernels.wire.dispatch import ServiceSink, publish
from penstock.kernels.wire.sinks import Sink, SinkSubscription
from penstock.protocol import error_codes as codes
from penstock.protocol import headers
from penstock.protocol.acks import parse_reply
from penstock.protocol.api import (
    AckPolicy,
    ApiError,
    ConsumerConfig,
    ConsumerCreateRequest,
    ConsumerCreateResponse,
    DecodeError,
    DeliverPolicy,
    ErrorResponse,
    StreamConsumerSource,
    decode,
    encode,
)
from penstock.protocol.durations import format_time
from penstock.protocol.numbers import natural

if TYPE_CHECKING:
    from penstock.jetstream.engine import JetStreamEngine
    from penstock.jetstream.stream.source_state import SourceState
    from penstock.jetstream.stream.stream_replica import StreamReplica

log = logging.getLogger("penstock.jetstream")

HEARTBEAT_NS = SECOND_NS
SILENCE_MAX_NS = 10 * SECOND_NS  # without a message or heartbeat: it has gone
ANSWER_NS = 5 * SECOND_NS  # to wait for the consumer
RETRY_MIN_NS = SECOND_NS  # doubled with each failure
RETRY_MAX_NS = 60 * SECOND_NS
RETRY_DURABLE_MAX_NS = 10 * SECOND_NS  # a reset is cheap, and who makes the consumer later waits for it
ACK_WAIT_NS = 22 * 3600 * SECOND_NS  # of a consumer that takes none, as the official server sends it
STALLS_MAX = 3  # heartbeats in a row that name the same unanswered request
IDENTITY_MISMATCH = codes.CONSUMER_STREAM_IDENTITY_MISMATCH.err_code


class ReaderState(Enum):
    WAITING = "waiting"
    ASKED = "asked"
    FOLLOWING = "following"


class ExternalReader:
    """Of one source. look: asks its owner to call read() in the next tick."""

    def __init__(
        self,
        engine: JetStreamEngine,
        stream: StreamReplica,
        source_state: SourceState,
        look: Callable[[ExternalReader], None],
    ) -> None:
        self.stream = stream
        self.source_state = source_state
        self.state = ReaderState.WAITING
        self._engine = engine
        self._look = look
        self._due: int | None = 0  # when the state ends by itself, ns
        self._failures = 0
        self._error: ApiError | None = None
        self._consumer = ""
        self._asked = b""  # the subject of the last request for the consumer
        self._durable = source_state.source.consumer
        self._acks = False  # are answers to flow control the consumer's acks?
        self._held = ""  # the durable consumer that the origin made for the stream
        self._stalled = (b"", 0)  # what heartbeats say is not answered, and how many in a row did
        self._delivered = 0  # by the consumer
        self._last_seq = 0  # the origin's sequence of the last delivery
        self._taken = 0  # the last one of the origin that is in the batch or the stream
        self._lag = 0
        self._heard_at = -1
        self._flow_replies: list[bytes] = []  # answers to send when the batch was applied
        self._subscriptions: list[SinkSubscription] = []
        self._is_over = False  # the consumer that the subscriptions are for

    # --- what its owner calls ------------------------------------------------------------------

    def read(self, now: int, enough: int) -> int:
        """Acts when the time has come; what was delivered is in the batch already."""
        if self._is_over:
            self._unsubscribe()
        if self._due is not None and self._due <= now:
            if self.state is ReaderState.WAITING:
                self._ask(now)
            else:
                # Nothing answers a reset for a consumer that is not there.
                self._fail(self._unanswered() if self.state is ReaderState.ASKED else None, now)
        if self._flow_replies and (not self._acks or self.stream.is_kept):
            replies, self._flow_replies = self._flow_replies, []
            stored = self._stored() if self._acks else b""
            self._engine.tick.defer(lambda: self._answer(replies, stored))
        return 0

    def deadline(self) -> int | None:
        """When read() has something to do."""
        return self._due

    def again(self) -> None:
        """What the stream refused has to be delivered another time."""
        self._stop_following()
        self.state, self._due = ReaderState.WAITING, 0

    def lag(self) -> int:
        """What was pending with the last delivery."""
        return self._lag

    def active_ns(self, now: int) -> int:
        """Since the last delivery or heartbeat."""
        return -1 if self._heard_at < 0 else max(0, now - self._heard_at)

    def error(self) -> ApiError | None:
        """Why there is no consumer, or what the stream refused."""
        return self._error or self.source_state.refusal

    def stop(self, *, for_good: bool) -> None:
        """Stops listening; a consumer without acks is removed when it has no listener."""
        if for_good and self._held:
            subject = self._subject("DELETE", self._held)
            self._engine.tick.defer(lambda: self._answer([subject], b""))
        self._stop_following()
        self._unsubscribe()
        self.state, self._due = ReaderState.WAITING, None

    # --- the consumer --------------------------------------------------------------------------

    def _ask(self, now: int) -> None:
        reply = f"_INBOX.{self._engine.new_id()}"
        self._listen(reply, ServiceSink(self._on_answer))
        self.state, self._due = ReaderState.ASKED, now + ANSWER_NS
        if self._durable is not None:
            self._ask_for_reset(self._durable, reply)
            return
        source, source_state = self.source_state.source, self.source_state
        assert source.external is not None
        to = deliver_subject(source.external.deliver, self._engine.new_id(), is_mirror=source_state.is_mirror)
        config = self._config(to)
        self._asked = self._subject("CREATE")
        if config.filter_subject:
            self._asked = self._subject("CREATE", config.name, config.filter_subject)
        self._listen(config.deliver_subject, DeliverySink(self._on_delivery))
        self._consumer = config.name
        header = headers.build([(headers.STREAM_IDENTITY, source_state.ident)]) if source_state.ident else b""
        request = encode(ConsumerCreateRequest(stream_name=source.name, config=config))
        self._engine.tick.defer(lambda: self._send(reply.encode(), header, request))

    def _subject(self, verb: str, *more: str) -> bytes:
        """Of a request about a consumer of the origin."""
        source = self.source_state.source
        api = (source.external.api if source.external is not None else "") or "$JS.API"
        return ".".join((api, "CONSUMER", verb, source.name, *more)).encode()

    def _ask_for_reset(self, durable: StreamConsumerSource, reply: str) -> None:
        """What it delivers before the reset is not taken, and comes again behind it."""
        source_state = self.source_state
        self._asked = self._subject("RESET", durable.name)
        self._listen(durable.deliver_subject, DeliverySink(self._on_delivery))
        self._consumer = durable.name
        # A mirror's position is its own last sequence, whatever stream that was of.
        header = (
            b"" if source_state.is_mirror else headers.build([(headers.STREAM_IDENTITY, source_state.ident)])
        )
        self._engine.tick.defer(lambda: self._send(reply.encode(), header, b""))

    def _config(self, deliver_subject: str) -> ConsumerConfig:
        source_state, source, log = self.source_state, self.source_state.source, self.stream.log
        about = "mirror" if source_state.is_mirror else "src"
        account = self._engine.config.account
        seq = source_state.seq + 1 if source_state.seq else source.opt_start_seq
        since = source.opt_start_time if not seq else None
        if since and not source_state.is_mirror and log.last_ts:
            since = max(since, format_time(log.last_ts))
        policy = DeliverPolicy.BY_START_TIME if since else DeliverPolicy.ALL
        filters = [one.decode() for one in source_state.filters]
        return ConsumerConfig(
            name=consumer_name(self._engine, self.stream, source_state),
            deliver_subject=deliver_subject,
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE if seq else policy,
            opt_start_seq=seq,
            opt_start_time=since,
            ack_policy=AckPolicy.NONE,
            ack_wait=ACK_WAIT_NS,
            max_deliver=1,
            filter_subject=filters[0] if len(filters) == 1 else "",
            filter_subjects=filters if len(filters) > 1 else [],
            flow_control=True,
            idle_heartbeat=HEARTBEAT_NS,
            inactive_threshold=SILENCE_MAX_NS,
            direct=True,
            sourcing=True,
            metadata={f"_nats.{about}.acc": account, f"_nats.{about}.stream": self.stream.name},
        )

    def _listen(self, subject: str, sink: Sink) -> None:
        subscription = SinkSubscription(sink, subject.encode())
        self._engine.index.insert(subscription)
        self._subscriptions.append(subscription)

    def _stop_following(self) -> None:
        """Of what still comes nothing is taken; the index is changed when no message is on its way."""
        self._is_over = True
        self._flow_replies.clear()
        self._consumer = ""

    def _unsubscribe(self) -> None:
        for subscription in self._subscriptions:
            self._engine.index.remove(subscription)
        self._subscriptions.clear()
        self._is_over = False

    def _send(self, reply: bytes, header: bytes, request: bytes) -> None:
        if self.state is ReaderState.ASKED and not publish(
            self._engine.index, self._asked, reply, header, request
        ):
            self._fail(self._unanswered(), self._engine.clock())

    def _unanswered(self) -> ApiError:
        failed = codes.MIRROR_CONSUMER_SETUP_FAILED
        if not self.source_state.is_mirror:
            failed = codes.SOURCE_CONSUMER_SETUP_FAILED
        return failed.format(err=f"nobody answers {self._asked.decode('utf-8', 'replace')}")

    def _answer(self, replies: list[bytes], stored: bytes) -> None:
        for reply in replies:
            publish(self._engine.index, reply, b"", stored, b"")

    def _stored(self) -> bytes:
        """Of what was delivered, everything is stored: the batch is empty, and the stream is written."""
        numbers = ((headers.LAST_CONSUMER, self._delivered), (headers.LAST_STREAM, self._last_seq))
        return headers.build([(name, str(number)) for name, number in numbers]) if self._delivered else b""

    def _fail(self, error: ApiError | None, now: int) -> None:
        """No consumer, or none any more: another try later."""
        self._stop_following()
        if error is not None and error != self._error:
            log.warning(
                "stream %s: no consumer of %s: %s",
                self.stream.name, self.source_state.source.name, error.description,
            )  # fmt: skip
        self._error = error
        self.state = ReaderState.WAITING
        longest = RETRY_MAX_NS if self._durable is None else RETRY_DURABLE_MAX_NS
        self._due = now + min(RETRY_MIN_NS << self._failures, longest)
        self._failures = min(self._failures + 1, 16)
        self._look(self)

    # --- what comes back -----------------------------------------------------------------------

    def _on_answer(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None
    ) -> None:
        if self.state is not ReaderState.ASKED or not self._consumer:
            return
        now = self._engine.clock()
        try:
            refused = decode(ErrorResponse, payload).error if b'"error"' in payload else None
            if refused is None:
                self._begin(decode(ConsumerCreateResponse, payload), header, now)
                return
        except DecodeError as error:
            refused = codes.INVALID_JSON.format(err=str(error))
        if refused.err_code == IDENTITY_MISMATCH:
            self._stop_following()
            self.source_state.goes_on(0, "")  # another stream of this name: from its beginning
            self.state, self._due = ReaderState.WAITING, now
            self._look(self)
            return
        self._fail(refused, now)

    def _begin(self, answer: ConsumerCreateResponse, header: bytes, now: int) -> None:
        source_state = self.source_state
        self._acks = answer.config.ack_policy is AckPolicy.FLOW_CONTROL
        if self._durable is not None and not self._acks:
            wrong = codes.MIRROR_CONSUMER_REQUIRES_ACK_FC
            self._fail(wrong if source_state.is_mirror else codes.SOURCE_CONSUMER_REQUIRES_ACK_FC, now)
            return
        before = source_state.seq
        ident = headers.value_of(header, headers.STREAM_IDENTITY) if header else None
        source_state.begin((ident or b"").decode("utf-8", "surrogateescape"))
        if source_state.seq != before:
            self.again()  # made for the origin that was there before
            self._look(self)
            return
        self.state, self._due = ReaderState.FOLLOWING, now + SILENCE_MAX_NS
        self._error, self._failures, self._heard_at = None, 0, now
        self._delivered, self._last_seq, self._taken = 0, 0, source_state.seq
        self._held = answer.name if self._acks and self._durable is None else ""
        self._consumer = answer.name  # the origin may have made a name of its own of the one asked for
        self._stalled = (b"", 0)
        self._lag = answer.num_pending
        if source_state.is_mirror and answer.delivered.stream_seq > self.stream.log.last_seq:
            source_state.batch.place(answer.delivered.stream_seq)
            self.stream.sink.mark()
        self._look(self)

    def _on_delivery(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        if self.state is not ReaderState.FOLLOWING or self.source_state.refusal is not None:
            return
        now = self._engine.clock()
        self._heard_at = now
        self._due = now + SILENCE_MAX_NS
        if header.startswith(b"NATS/1.0 100"):
            self._on_control(reply, header, now)
            return
        delivery = parse_reply(reply.decode("utf-8", "surrogateescape"))
        if delivery is None or delivery.consumer != self._consumer or delivery.delivered > 1:
            return
        if delivery.consumer_seq != self._delivered + 1:
            self._fail(None, now)
            return
        self._delivered += 1
        self._heed_stall(b"")
        self._lag = delivery.pending
        self._last_seq = delivery.stream_seq
        if delivery.stream_seq <= self._taken:
            return  # stored, but the answer that said so got lost
        self._taken = delivery.stream_seq
        changed = subject
        for mapper in (self.source_state.mapper, self.stream.sink.mapper):
            changed = mapper.map(changed) if mapper is not None else changed
        self.source_state.batch.append(
            delivery.stream_seq, delivery.timestamp_ns, changed, header, payload, subject
        )
        self.stream.sink.mark()

    def _on_control(self, reply: bytes, header: bytes, now: int) -> None:
        """A heartbeat says how many it delivered; a request for flow control waits for an answer."""
        if reply:
            self._flow_replies.append(reply)
        else:
            last = headers.value_of(header, headers.LAST_CONSUMER) or b""
            if (natural(last) or 0) > self._delivered:
                self._fail(None, now)
                return
            stalled = headers.value_of(header, headers.CONSUMER_STALLED)
            self._heed_stall(stalled or b"")
            if stalled and stalled not in self._flow_replies:
                self._flow_replies.append(stalled)
        self._look(self)

    def _heed_stall(self, stalled: bytes) -> None:
        """Answers that do not reach the consumer, for want of an import, are said in the stream's info."""
        known, count = self._stalled
        self._stalled = (stalled, (count + 1 if stalled == known else 1) if stalled else 0)
        if self._stalled[1] == STALLS_MAX:
            self._error = codes.SOURCE_CONSUMER_FLOW_CONTROL_STALLED
            log.warning(
                "stream %s: answers to the flow control of %s do not reach its consumer",
                self.stream.name, self.source_state.source.name,
            )  # fmt: skip
        elif not stalled and self._error == codes.SOURCE_CONSUMER_FLOW_CONTROL_STALLED:
            self._error = None
