"""Reads an origin through a push consumer, as any client could: one in another account or domain, or of a
replicated stream that this server cannot read itself.

The consumer request is published under the configured API prefix, and the consumer delivers to a subject
under the configured delivery prefix; imports connect both to the origin. The consumer is ephemeral and takes
no acks: the position is what the stream has stored. Deliveries are counted, so that the next one, or a
heartbeat, reveals a lost one; then the consumer is created again after what is stored. An interest or
work-queue origin responds to the same request with a durable consumer, whose acks are flow control responses;
it is removed when the stream no longer needs it.

A configured durable consumer (ADR-60), also one in the same account, is used as it is: a reset makes it
deliver from above its ack floor, and its configuration has the filters and the deliver subject. Its ack
policy is flow_control, so a work queue keeps exactly the messages that are not yet stored here.

Back pressure: flow control requests get their response after the stream has applied the preceding messages.
Where responses are acks, they wait until those are written, or with sync_always synced.

States: WAITING (for the next attempt), ASKED (the request is out), FOLLOWING. The deliver subject is
subscribed to when the response is there, as on the official server: until then the consumer has no interest
and delivers nothing, so that the position in the response is where the deliveries begin. Publishing is
deferred to the next apply, so that an account's API is never called while its engine delivers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum

from penstock.jetstream.limits import SECOND_NS
from penstock.jetstream.source_consumer import consumer_name
from penstock.jetstream.sourcing_ports import SourcingPorts
from penstock.jetstream.stream.source_config import deliver_subject
from penstock.jetstream.stream.source_state import SourceState
from penstock.jetstream.stream.stream_replica import StreamReplica
from penstock.kernels.ingest.copying import DeliverySink
from penstock.kernels.wire.dispatch import ServiceSink, publish
from penstock.kernels.wire.sinks import Sink, SinkSubscription
from penstock.protocol import error_codes as codes
from penstock.protocol import headers
from penstock.protocol.acks import parse_reply
from penstock.protocol.api import (
    AckPolicy,
    ApiConsumerConfig,
    ApiError,
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

log = logging.getLogger("penstock.jetstream")

HEARTBEAT_NS = SECOND_NS
SILENCE_MAX_NS = 10 * SECOND_NS  # without a message or heartbeat, the consumer counts as lost
ANSWER_NS = 5 * SECOND_NS  # to wait for the consumer
RETRY_MIN_NS = SECOND_NS  # doubled with each failure
RETRY_MAX_NS = 60 * SECOND_NS
# a reset is cheap, and a user who creates the consumer later waits for it
RETRY_DURABLE_MAX_NS = 10 * SECOND_NS
ACK_WAIT_NS = 22 * 3600 * SECOND_NS  # of a consumer without acks, as the official server sends it
COMMIT_NS = 50_000_000
STALLS_MAX = 3  # consecutive heartbeats that name the same unanswered request
IDENTITY_MISMATCH = codes.CONSUMER_STREAM_IDENTITY_MISMATCH.err_code


class ReaderState(Enum):
    WAITING = "waiting"
    ASKED = "asked"
    FOLLOWING = "following"


class ExternalReader:
    """The reader of one source. look: makes its owner call read() in the next tick."""

    def __init__(
        self,
        ports: SourcingPorts,
        stream: StreamReplica,
        source_state: SourceState,
        look: Callable[[ExternalReader], None],
    ) -> None:
        self.stream = stream
        self.source_state = source_state
        self.state = ReaderState.WAITING
        self._ports = ports
        self._look = look
        self._due: int | None = 0  # when the state times out, ns
        self._failures = 0
        self._error: ApiError | None = None
        self._consumer = ""
        self._asked = b""  # the subject of the last consumer request
        self._deliver_subject = ""  # of the consumer, until it is subscribed to
        self._durable = source_state.source.consumer
        self._acks = False  # whether flow control responses are the consumer's acks
        self._origin_durable = ""  # the durable consumer that the origin created for the stream
        # the flow control request that heartbeats name as unanswered, and how many in a row did
        self._stalled = (b"", 0)
        self._delivered = 0  # by the consumer
        self._last_seq = 0  # the origin's sequence of the last delivery
        self._taken = 0  # the origin's last sequence in the batch or the stream
        self._lag = 0
        self._heard_at = -1
        self._flow_replies: list[bytes] = []  # responses to send once the batch is applied
        self._subscriptions: list[SinkSubscription] = []
        self._is_over = False  # the present subscriptions are obsolete

    # --- what its owner calls ------------------------------------------------------------------

    def read(self, now: int, enough: int) -> int:
        """Handles timeouts and pending responses; deliveries are already in the batch."""
        if self._is_over:
            self._unsubscribe()
        if self._due is not None and self._due <= now:
            if self.state is ReaderState.WAITING:
                self._ask(now)
            else:
                # A reset of a consumer that does not exist gets no response.
                self._fail(self._unanswered() if self.state is ReaderState.ASKED else None, now)
        if self.state is ReaderState.FOLLOWING and self._deliver_subject:
            subject, self._deliver_subject = self._deliver_subject, ""
            self._listen(subject, DeliverySink(self._on_delivery))
        if self._flow_replies and (not self._acks or self.stream.durability.is_durable):
            replies, self._flow_replies = self._flow_replies, []
            stored = self._stored() if self._acks else b""
            self._ports.defer(lambda: self._answer(replies, stored))
        return 0

    def deadline(self) -> int | None:
        """When read() is due, or None."""
        return self._due

    @property
    def _commit_ns(self) -> int:
        """How long to wait for a position that the stream's group has to commit."""
        return COMMIT_NS if self.stream.group is not None else 0

    def again(self) -> None:
        """Requests the rejected messages again."""
        self._stop_following()
        self.state, self._due = ReaderState.WAITING, 0

    def try_again(self, now: int) -> None:
        """Does not wait out the time after a failure."""
        if self.state is ReaderState.WAITING and self._failures and self._due is not None:
            self._due, self._failures = min(self._due, now + RETRY_MIN_NS), 0
            self._look(self)

    def lag(self) -> int:
        """The number pending at the last delivery."""
        return self._lag

    def active_ns(self, now: int) -> int:
        """Time since the last delivery or heartbeat (ns)."""
        return -1 if self._heard_at < 0 else max(0, now - self._heard_at)

    def error(self) -> ApiError | None:
        """Current error: why there is no consumer, or why the stream rejected a message."""
        return self._error or self.source_state.refusal

    def stop(self, *, for_good: bool) -> None:
        """Unsubscribes; an origin removes a consumer without acks when it has no subscriber."""
        if for_good and self._origin_durable:
            subject = self._subject("DELETE", self._origin_durable)
            self._ports.defer(lambda: self._answer([subject], b""))
        self._stop_following()
        self._unsubscribe()
        self.state, self._due = ReaderState.WAITING, None

    # --- the consumer --------------------------------------------------------------------------

    def _ask(self, now: int) -> None:
        reply = f"_INBOX.{self._ports.new_id()}"
        self._listen(reply, ServiceSink(self._on_answer))
        self.state, self._due = ReaderState.ASKED, now + ANSWER_NS
        if self._durable is not None:
            self._ask_for_reset(self._durable, reply)
            return
        source, source_state = self.source_state.source, self.source_state
        prefix = source.external.deliver if source.external is not None else ""
        to = deliver_subject(prefix, self._ports.new_id(), is_mirror=source_state.is_mirror)
        config = self._config(to)
        self._asked = self._subject("CREATE")
        if config.filter_subject:
            self._asked = self._subject("CREATE", config.name, config.filter_subject)
        self._deliver_subject, self._consumer = config.deliver_subject, config.name
        header = headers.build([(headers.STREAM_IDENTITY, source_state.ident)]) if source_state.ident else b""
        request = encode(ConsumerCreateRequest(stream_name=source.name, config=config))
        self._ports.defer(lambda: self._send(reply.encode(), header, request))

    def _subject(self, verb: str, *more: str) -> bytes:
        """The API subject of a request about a consumer of the origin."""
        source = self.source_state.source
        api = (source.external.api if source.external is not None else "") or "$JS.API"
        return ".".join((api, "CONSUMER", verb, source.name, *more)).encode()

    def _ask_for_reset(self, durable: StreamConsumerSource, reply: str) -> None:
        """Requests a reset; what was delivered before is repeated after it."""
        source_state = self.source_state
        self._asked = self._subject("RESET", durable.name)
        self._deliver_subject, self._consumer = durable.deliver_subject, durable.name
        # A mirror's position is its own last sequence, whichever stream that came from.
        header = (
            b"" if source_state.is_mirror else headers.build([(headers.STREAM_IDENTITY, source_state.ident)])
        )
        self._ports.defer(lambda: self._send(reply.encode(), header, b""))

    def _config(self, deliver_subject: str) -> ApiConsumerConfig:
        source_state, source, log = self.source_state, self.source_state.source, self.stream.log
        about = "mirror" if source_state.is_mirror else "src"
        account = self._ports.account
        seq = source_state.seq + 1 if source_state.seq else source.opt_start_seq
        since = source.opt_start_time if not seq else None
        if since and not source_state.is_mirror and log.last_ts:
            since = max(since, format_time(log.last_ts))
        policy = DeliverPolicy.BY_START_TIME if since else DeliverPolicy.ALL
        filters = [one.decode() for one in source_state.filters]
        return ApiConsumerConfig(
            name=consumer_name(self._ports, self.stream, source_state),
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
        self._ports.index.insert(subscription)
        self._subscriptions.append(subscription)

    def _stop_following(self) -> None:
        """Drops further deliveries; unsubscribes later, when no message is being routed."""
        self._is_over = True
        self._flow_replies.clear()
        self._consumer = ""

    def _unsubscribe(self) -> None:
        for subscription in self._subscriptions:
            self._ports.index.remove(subscription)
        self._subscriptions.clear()
        self._is_over = False

    def _send(self, reply: bytes, header: bytes, request: bytes) -> None:
        if self.state is ReaderState.ASKED and not publish(
            self._ports.index, self._asked, reply, header, request
        ):
            self._fail(self._unanswered(), self._ports.clock())

    def _unanswered(self) -> ApiError:
        failed = codes.MIRROR_CONSUMER_SETUP_FAILED
        if not self.source_state.is_mirror:
            failed = codes.SOURCE_CONSUMER_SETUP_FAILED
        return failed.format(err=f"no response from {self._asked.decode('utf-8', 'replace')}")

    def _answer(self, replies: list[bytes], stored: bytes) -> None:
        for reply in replies:
            publish(self._ports.index, reply, b"", stored, b"")

    def _stored(self) -> bytes:
        """Whether everything delivered is durable: the batch is empty, and the stream is written."""
        numbers = ((headers.LAST_CONSUMER, self._delivered), (headers.LAST_STREAM, self._last_seq))
        return headers.build([(name, str(number)) for name, number in numbers]) if self._delivered else b""

    def _fail(self, error: ApiError | None, now: int) -> None:
        """Records a failure to get the consumer, or its loss, and schedules the next attempt."""
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
        now = self._ports.clock()
        try:
            refused = decode(ErrorResponse, payload).error if b'"error"' in payload else None
            if refused is None:
                self._begin(decode(ConsumerCreateResponse, payload), header, now)
                return
        except DecodeError as error:
            refused = codes.INVALID_JSON.format(err=str(error))
        if refused.err_code == IDENTITY_MISMATCH:
            self._stop_following()
            self.source_state.move_to(0, "")  # a different stream of this name: start at its beginning
            self.state, self._due = ReaderState.WAITING, now + self._commit_ns
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
        is_begun = source_state.begin((ident or b"").decode("utf-8", "surrogateescape"))
        if not is_begun or source_state.seq != before:
            self.again()  # it was created for the earlier origin
            self._due = now + self._commit_ns
            self._look(self)
            return
        self.state, self._due = ReaderState.FOLLOWING, now + SILENCE_MAX_NS
        self._error, self._failures, self._heard_at = None, 0, now
        self._delivered, self._last_seq, self._taken = 0, 0, source_state.seq
        self._origin_durable = answer.name if self._acks and self._durable is None else ""
        self._consumer = answer.name  # the origin may choose its own name
        self._stalled = (b"", 0)
        self._lag = answer.num_pending
        if source_state.is_mirror and answer.delivered.stream_seq > self.stream.log.last_seq:
            source_state.batch.place(answer.delivered.stream_seq)
            self.stream.sink.mark()
        self._look(self)

    def _on_delivery(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        if self.state is not ReaderState.FOLLOWING or self.source_state.refusal is not None:
            return
        now = self._ports.clock()
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
            return  # stored, but the response was lost
        self._taken = delivery.stream_seq
        changed = subject
        for mapper in (self.source_state.mapper, self.stream.sink.mapper):
            changed = mapper.map(changed) if mapper is not None else changed
        self.source_state.batch.append(
            delivery.stream_seq, delivery.timestamp_ns, changed, header, payload, subject
        )
        self.stream.sink.mark()

    def _on_control(self, reply: bytes, header: bytes, now: int) -> None:
        """Handles a heartbeat, which has the number of deliveries, or a flow control request, which needs a
        response."""
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
        """Reports flow control responses that do not reach the consumer, as without an import, in the
        stream's info."""
        known, count = self._stalled
        self._stalled = (stalled, (count + 1 if stalled == known else 1) if stalled else 0)
        if self._stalled[1] == STALLS_MAX:
            self._error = codes.SOURCE_CONSUMER_FLOW_CONTROL_STALLED
            log.warning(
                "stream %s: flow control responses of %s do not reach its consumer",
                self.stream.name, self.source_state.source.name,
            )  # fmt: skip
        elif not stalled and self._error == codes.SOURCE_CONSUMER_FLOW_CONTROL_STALLED:
            self._error = None
