"""Actions of batch publishers: messages that are lost, repeated or reordered, all kinds of ends, pauses, and
publishers that continue after a crash."""

from __future__ import annotations

import json
from random import Random
from typing import TypeVar

from penstock.protocol import headers
from penstock.protocol.batch import Operation
from penstock.testing.sim import atomic_checks, fast_checks
from penstock.testing.sim.atomic_checks import AtomicBatchModel
from penstock.testing.sim.counter_checks import INCREMENTS, Counters
from penstock.testing.sim.fast_checks import FastBatchModel
from penstock.testing.sim.feature_checks import feature
from penstock.testing.sim.simulator import Simulator
from penstock.testing.sim.stream_checks import TAG, TTLS, SimPublish, StreamRecord
from penstock.testing.sim.transform_checks import stored_subject

TOKENS = ("x", "y", "z.1", "z.2", "w.q")
SIZES = (0, 5, 30, 30, 120)
FAULT_RATE = 0.06

T = TypeVar("T")


def any_stream_with(sim: Simulator, random: Random, feature: str) -> StreamRecord | None:
    """A random stream whose configuration has the feature, or None."""
    names = [name for name in sorted(sim.streams) if getattr(sim.streams[name].config, feature)]
    return sim.streams[random.choice(names)] if names else None


def new_publish(sim: Simulator, record: StreamRecord, token: str) -> SimPublish:
    """A publish to one of the stream's subjects."""
    sent = f"{record.name}.{token}"
    return SimPublish(sim.next_tag(), record.name, stored_subject(record.config, sent), sent)


def extra_headers(one: SimPublish, record: StreamRecord, random: Random) -> list[tuple[str, str]]:
    """Headers with effects on the publish, for some messages; for counters an increment."""
    kind = random.random()
    if record.config.allow_msg_counter and random.random() < 0.98:
        one.increment = random.choice(INCREMENTS)
        pairs = [(headers.INCR, one.increment), (TAG, f"{one.tag:08d}")]
        if kind < 0.1:
            one.msg_id = b"m%d" % random.randrange(30)
            pairs.append((headers.MSG_ID, one.msg_id.decode()))
        return pairs
    if kind < 0.7:
        return []
    if kind < 0.85:
        one.msg_id = b"m%d" % random.randrange(30)
        return [(headers.MSG_ID, one.msg_id.decode())]
    one.plain = False
    if kind < 0.9:
        return [one.expire_after(random.choice(TTLS))]
    if kind < 0.94:
        one.rollup = random.choice(["sub", "all"])
        return [(headers.ROLLUP, one.rollup)]
    last = max((held.seq for held in record.live.values() if held.subject == one.subject), default=0)
    return [(headers.EXPECTED_LAST_SUBJECT_SEQUENCE, str(last + random.choice([0, 0, 0, 1])))]


def payload_of(one: SimPublish, random: Random) -> bytes:
    """Starts with the number of the publish; an increment has none."""
    size = random.choice(SIZES)
    return b"" if one.increment else b"%08d" % one.tag + b"." * size


def counts_in_batch(record: StreamRecord) -> bool:
    """Whether the stream has counters. If so, tells its checks that this tick has sums without acks."""
    if record.config.allow_msg_counter:
        feature(record, Counters).has_batches = True
    return record.config.allow_msg_counter


def on_the_way(messages: list[T], random: Random, *, first: bool) -> list[T]:
    """The messages that arrive, of a few sent. first: the first one may be repeated or delayed too."""
    arriving = list(messages)
    if random.random() < FAULT_RATE and arriving:
        del arriving[random.randrange(len(arriving))]
    if random.random() < FAULT_RATE and arriving:
        at = random.randrange(0 if first else 1, len(arriving) + (not first))
        arriving[at:at] = arriving[at : at + 1]
    if random.random() < FAULT_RATE and len(arriving) > 1 and first:
        at = random.randrange(len(arriving) - 1)
        arriving[at], arriving[at + 1] = arriving[at + 1], arriving[at]
    return arriving


# --- atomic


def publish_atomic(sim: Simulator, random: Random) -> None:
    """Starts an atomic batch, or continues one, perhaps to its end."""
    record = any_stream_with(sim, random, "allow_atomic")
    if record is None:
        return
    book = sim.batches.of(record).atomic
    # Few publishers continue a batch that the server rejected or forgot.
    book.batches = [
        one for one in book.batches if not one.uncertain and (one.is_open or random.random() < 0.3)
    ]
    batch = random.choice(book.batches) if book.batches and random.random() < 0.6 else None
    batch = batch or sim.batches.new_atomic(record)
    ends = random.random() < 0.7
    arrivals = [_atomic_message(sim, batch, random) for _ in range(random.choice([1, 2, 3, 6]))]
    if ends:
        book.batches.remove(batch)
        arrivals = _with_commit(batch, arrivals, random)
    if len(batch.sent) > 1:  # the only message of a batch, sent twice, is two batches
        arrivals = on_the_way(arrivals, random, first=True)
    for arrival, header, payload in arrivals:
        _send_atomic(sim, arrival, header, payload, asks=bool(arrival.commit) or random.random() < 0.5)
    if random.random() < 0.3:
        read_everything(sim, record)
    if random.random() < 0.85:
        sim.tick()


Outgoing = tuple[atomic_checks.AtomicArrival, list[tuple[str, str]], bytes]


def _atomic_message(sim: Simulator, batch: AtomicBatchModel, random: Random) -> Outgoing:
    one = new_publish(sim, batch.record, random.choice(TOKENS))
    batch.sent.append(one)
    seq = len(batch.sent)
    pairs = [(headers.BATCH_ID, batch.id), (headers.BATCH_SEQUENCE, str(seq))]
    if counts_in_batch(batch.record) or random.random() < 0.4:  # a rejected one rejects the whole batch
        pairs += extra_headers(one, batch.record, random)
    one.plain &= not one.msg_id  # a known or repeated id rejects the whole batch
    payload = payload_of(one, random)
    return atomic_checks.AtomicArrival(batch, seq, one, "", 0, 0), pairs, payload


def _with_commit(batch: AtomicBatchModel, arrivals: list[Outgoing], random: Random) -> list[Outgoing]:
    if random.random() < 0.4:
        seq = len(batch.sent) + 1
        pairs = [(headers.BATCH_ID, batch.id), (headers.BATCH_SEQUENCE, str(seq))]
        pairs.append((headers.BATCH_COMMIT, "eob"))
        return [*arrivals, (atomic_checks.AtomicArrival(batch, seq, None, "eob", 0, 0), pairs, b"")]
    last, pairs, payload = arrivals[-1]
    committing = last._replace(commit="1")
    return [*arrivals[:-1], (committing, [*pairs, (headers.BATCH_COMMIT, "1")], payload)]


def _send_atomic(
    sim: Simulator,
    arrival: atomic_checks.AtomicArrival,
    pairs: list[tuple[str, str]],
    payload: bytes,
    *,
    asks: bool,
) -> None:
    batch = arrival.batch
    number = sim.batches.new_inbox(batch.record) if asks else 0
    block = headers.build(pairs)
    arrival = arrival._replace(answer=number, size=len(block) + len(payload))
    sim.say(f"{batch.id} {arrival.seq} {arrival.commit} to {batch.record.name}")
    sim.batches.of(batch.record).atomic.arrivals.append(arrival)
    subject = arrival.publish.sent if arrival.publish is not None else f"{batch.record.name}.x"
    inbox = b"_IN.b.%d" % number if asks else b""
    sim.send(subject, inbox, block, payload, batch.sent if arrival.commit else [], batch.record)


def read_everything(sim: Simulator, record: StreamRecord) -> None:
    """A direct get of the whole stream while publishes wait: returns all of a batch or nothing."""
    if not record.config.allow_direct:
        return
    subject = f"$JS.API.DIRECT.GET.{record.name}".encode()
    body = json.dumps({"batch": 1000, "seq": 1}).encode()
    tags = sim.read(subject, body)
    if tags is not None:
        sim.batches.of(record).atomic.was_read(tags)


# --- fast


def publish_fast(sim: Simulator, random: Random) -> None:
    """Starts a fast batch, or continues one, perhaps to its end."""
    record = any_stream_with(sim, random, "allow_batched")
    if record is None:
        return
    fast = sim.batches.of(record).fast
    fast.batches = [batch for batch in fast.batches if not batch.uncertain]
    if fast.batches and random.random() < 0.65:
        batch = random.choice(fast.batches)
    else:
        batch = sim.batches.new_fast(
            record, flow=random.choice([1, 2, 3, 10, 100]), gap_ok=random.random() < 0.5
        )
    begins = not batch.sent
    messages = [_fast_message(sim, batch, random) for _ in range(random.choice([1, 2, 4, 8]))]
    how = random.random()
    if how < 0.2:
        last, header, payload = messages[-1]
        messages[-1] = (last._replace(operation=Operation.COMMIT), header, payload)
    elif how < 0.3:
        messages.append((fast_checks.FastArrival(batch, len(batch.sent) + 1, Operation.EOB, None), b"", b""))
    elif how < 0.45:
        messages.append((fast_checks.FastArrival(batch, len(batch.sent), Operation.PING, None), b"", b""))
    if how < 0.3 and (len(batch.sent) == 1 or random.random() < 0.7):
        fast.batches.remove(batch)  # else its publisher may ping for the final ack
    single = len(messages) == 1 and begins
    arriving = messages if single else on_the_way(messages, random, first=not begins)
    for arrival, header, payload in arriving:
        _send_fast(sim, arrival, header, payload)
    if random.random() < 0.9:
        sim.tick()


def _fast_message(
    sim: Simulator, batch: FastBatchModel, random: Random
) -> tuple[fast_checks.FastArrival, bytes, bytes]:
    one = new_publish(sim, batch.record, random.choice(TOKENS))
    batch.sent.append(one)
    seq = len(batch.sent)
    counts_in_batch(batch.record)
    pairs = extra_headers(one, batch.record, random)
    payload = payload_of(one, random)
    operation = Operation.START if seq == 1 else Operation.APPEND
    return (
        fast_checks.FastArrival(batch, seq, operation, one),
        headers.build(pairs) if pairs else b"",
        payload,
    )


def _send_fast(sim: Simulator, arrival: fast_checks.FastArrival, header: bytes, payload: bytes) -> None:
    batch = arrival.batch
    sim.say(f"{batch.id} {arrival.seq} {arrival.operation.name.lower()} to {batch.record.name}")
    sim.batches.of(batch.record).fast.arrivals.append(arrival)
    batch.uncertain |= sim.faulty()  # a request before the tick may apply it, then write the stream again
    one = arrival.publish
    subject = one.sent if one is not None else f"{batch.record.name}.x"
    reply = batch.reply(arrival.seq, arrival.operation)
    sim.send(subject, reply, header, payload, [one] if one is not None else [], batch.record)
