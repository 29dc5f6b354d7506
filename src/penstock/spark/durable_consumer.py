"""A durable consumer as the driver uses it: created if missing, asked for messages, acked.

The driver claims messages; tasks read them by their sequences. So a claim needs no payload, and a consumer
created here delivers headers only. The consumer stays when the query ends: it is the user's.

Invariants: messages that arrived before a connection was lost are claimed, not forgotten (a forgotten one
comes again only after the consumer's ack wait). An ack that the server has not confirmed is sent again.

Rejected: pulls in tasks (Spark repeats a task after a failure, and a pull never returns the same messages
twice); acks by the tasks (the micro-batch may still fail).
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator
from dataclasses import dataclass

from penstock import errors
from penstock.kernels.wire.frames import Op
from penstock.protocol import api
from penstock.protocol.acks import ACK, parse_reply
from penstock.spark.positions import Position
from penstock.spark.sequence_sets import EMPTY, SequenceSet
from penstock.spark.source_options import SourceOptions
from penstock.spark.wire import BlockingConnection

_log = logging.getLogger(__name__)

CLAIM_SID = b"3"
MAX_ACK_PENDING = 100_000
"""Of consumers created here: the most messages of one micro-batch."""
_PULL_EXPIRES_S = 5.0
_ACKS_PER_WRITE = 2_000


@dataclass(frozen=True)
class ClaimedMessages:
    """What a pull delivered. ack_prefix, delivered: as in DurableOffset; unset if nothing came."""

    sequences: SequenceSet = EMPTY
    ack_prefix: str = ""
    delivered: int = 0


def consumer_info(connection: BlockingConnection, options: SourceOptions) -> api.ConsumerInfoResponse | None:
    """The consumer that the options name; None if there is none.

    Raises ConfigError if it is none that a query can read by, and what `BlockingConnection.api` raises.
    """
    endpoint = f"CONSUMER.INFO.{options.streams[0]}.{options.durable}"
    try:
        info = connection.api(api.ConsumerInfoResponse, endpoint)
    except errors.ConsumerNotFoundError:
        return None
    config = info.config
    unfit = None
    if config.deliver_subject:
        unfit = "pushes its messages: it takes a pull consumer"
    elif config.ack_policy != api.AckPolicy.EXPLICIT:
        unfit = f"has ack policy {config.ack_policy.value}: it takes explicit acks"
    elif config.priority_groups:
        unfit = "has priority groups: it takes a consumer without"
    filters = consumer_filters(info)
    if options.subjects and set(filters) != set(options.subjects):
        unfit = f"has the filters {', '.join(filters) or 'none'}: leave option 'subject' out"
    if unfit:
        raise errors.ConfigError(
            f"option 'durable': consumer {info.name!r} of stream {info.stream_name!r} {unfit}; or name "
            "another consumer (one that is missing is created)"
        )
    return info


def consumer_filters(info: api.ApiConsumerInfo) -> tuple[str, ...]:
    """The subject filters of a consumer; empty for all subjects."""
    config = info.config
    return tuple(config.filter_subjects) or tuple(filter(None, [config.filter_subject]))


def create_durable(connection: BlockingConnection, options: SourceOptions) -> api.ConsumerInfoResponse:
    """The consumer that the options name, created if it is missing. Raises what `consumer_info` raises."""
    found = consumer_info(connection, options)
    if found is not None:
        return found
    stream, name = options.streams[0], options.durable
    assert name is not None
    policy, seq, when = _start(options.starting.of(stream))
    config = api.ApiConsumerConfig(
        durable_name=name,
        name=name,
        deliver_policy=policy,
        opt_start_seq=seq,
        opt_start_time=when,
        ack_policy=api.AckPolicy.EXPLICIT,
        ack_wait=round(options.ack_wait_s * 1e9),
        max_ack_pending=MAX_ACK_PENDING,
        filter_subject=options.filter_subject,
        filter_subjects=options.filter_subjects,
        headers_only=True,
    )
    request = api.ConsumerCreateRequest(stream_name=stream, config=config)
    connection.api(api.ConsumerCreateResponse, f"CONSUMER.CREATE.{stream}.{name}", request)
    made = consumer_info(connection, options)
    if made is None:
        raise errors.ConsumerGoneError(f"consumer {name!r} of stream {stream!r} was deleted at once")
    return made


def _start(position: Position) -> tuple[api.DeliverPolicy, int, str | None]:
    match position.kind:
        case "earliest":
            return api.DeliverPolicy.ALL, 0, None
        case "latest":
            return api.DeliverPolicy.NEW, 0, None
        case "sequence":
            return api.DeliverPolicy.BY_START_SEQUENCE, max(1, position.sequence), None
        case "time":
            return api.DeliverPolicy.BY_START_TIME, 0, position.time


def claim(connection: BlockingConnection, stream: str, consumer: str, count: int) -> ClaimedMessages:
    """Up to `count` messages that the consumer has to deliver now; it is not waited for more.

    Raises ConsumerGoneError, PullError and connection errors, the latter only if nothing arrived before.
    """
    inbox = f"_INBOX.{secrets.token_hex(11)}"
    body = api.encode(api.PullRequest(batch=count, no_wait=True))
    subject = f"{connection.options.api_prefix}.CONSUMER.MSG.NEXT.{stream}.{consumer}"
    sequences: list[int] = []
    prefix, highest = "", 0
    try:
        connection.send(
            b"SUB %s %s\r\nPUB %s %s %d\r\n%s\r\n"
            % (inbox.encode(), CLAIM_SID, subject.encode(), inbox.encode(), len(body), body)
        )
        for reply in _deliveries(connection, stream, consumer, count):
            found = parse_reply(reply)
            if found is None:
                raise errors.ProtocolError(f"consumer {consumer!r} delivered a message without ack subject")
            sequences.append(found.stream_seq)
            if found.consumer_seq > highest:
                highest = found.consumer_seq
                marker = f".{found.stream}.{found.consumer}."
                prefix = reply[: reply.index(marker) + len(marker) - 1]
        connection.send(b"UNSUB %s\r\n" % CLAIM_SID)
    except (errors.DisconnectedError, errors.RequestTimeoutError) as error:
        connection.close()  # its owner finds that at the next request
        if not sequences:
            raise
        _log.info("claimed %d messages before the connection was lost: %s", len(sequences), error)
    return ClaimedMessages(SequenceSet.of(sequences), prefix, highest)


def _deliveries(connection: BlockingConnection, stream: str, consumer: str, count: int) -> Iterator[str]:
    """The ack subjects of the messages of a pull."""
    left = count
    while left:
        frame = connection.next_frame(_PULL_EXPIRES_S)
        if frame.op not in (Op.OP_MSG, Op.OP_HMSG):
            connection.handle_control(frame.op, frame.payload or b"")
        elif frame.sid != CLAIM_SID:
            continue  # a late answer to a request that timed out
        elif frame.reply:
            left -= 1
            yield frame.reply.decode()
        else:
            line = (frame.header or b"").split(b"\r\n", 1)[0].decode(errors="replace")
            status, text = line[9:12], line[13:].strip()
            if status in ("404", "408") or text.startswith(("Batch Completed", "Exceeded MaxAckPending")):
                return
            if status in ("409", "503"):
                raise errors.ConsumerGoneError(
                    f"consumer {consumer!r} of stream {stream!r}: {text or 'no responders'}"
                )
            raise errors.PullError(int(status) if status.isdigit() else 0, text)


def acknowledge(connection: BlockingConnection, ack_prefix: str, claims: SequenceSet, delivered: int) -> None:
    """Ack messages of one consumer, and wait until the server has confirmed it.

    A message that is acked already, or that the consumer delivers again, is acked all the same: the server
    goes by the stream sequence. Raises connection errors.
    """
    if not claims:
        return
    frames: list[bytes] = []
    last = claims.end - 1
    for seq in claims:
        if seq == last:
            break
        subject = f"{ack_prefix}.1.{seq}.{delivered}.0.0".encode()
        frames.append(b"PUB %s %d\r\n%s\r\n" % (subject, len(ACK), ACK))
        if len(frames) == _ACKS_PER_WRITE:
            connection.send(b"".join(frames))
            frames.clear()
    connection.send(b"".join(frames))
    connection.request(f"{ack_prefix}.1.{last}.{delivered}.0.0", ACK)
