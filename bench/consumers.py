"""Load on consumers, with the same raw sockets as `load`: many consumers, filters, large streams."""

from __future__ import annotations

import json
import re
import statistics
import time
from contextlib import suppress

from load import ConsumerRun, LoadError, Wire, create_stream, wire

DELIVERED = b" $JS.ACK."
SUBJECTS = 1_000_000  # of the wide stream
STRIDE = 387_420_489  # step through them, so that neighbours in the stream differ
ACK_SUBJECT = re.compile(rb" (\$JS\.ACK\.\S+) ")
PULL_NS = 30_000_000_000


def _make(control: Wire, stream: str, name: str, **config: object) -> dict[str, object]:
    settings = {"name": name, "durable_name": name, "ack_policy": "explicit", "max_ack_pending": -1, **config}
    body = json.dumps({"stream_name": stream, "config": settings}).encode()
    return control.request(f"$JS.API.CONSUMER.CREATE.{stream}.{name}", body)


def _drop(control: Wire, stream: str, name: str) -> None:
    control.request(f"$JS.API.CONSUMER.DELETE.{stream}.{name}")


def _pull(stream: str, name: str, inbox: str, batch: int) -> bytes:
    ask = json.dumps({"batch": batch, "expires": PULL_NS}).encode()
    subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}"
    return b"PUB %s %s %d\r\n%s\r\n" % (subject.encode(), inbox.encode(), len(ask), ask)


def consume_msgs_per_s(run: ConsumerRun, *, batch: int = 500) -> float:
    """A durable consumer with continuous pulls: the next request is sent when half of the last one has
    arrived, and each read is acked at once."""
    name = f"consume{time.time_ns()}"
    with wire(run.port) as consumer:
        _make(consumer, run.stream, name)
        consumer.sock.sendall(b"SUB _INBOX.consume 1\r\n")
        pull = _pull(run.stream, name, "_INBOX.consume", batch)
        started = time.perf_counter()
        consumer.sock.sendall(pull)
        asked, got, tail = batch, 0, b""
        while got < run.messages:
            data = tail + consumer.read()
            end = data.rfind(b"\r\n") + 2
            data, tail = data[:end], data[end:]
            acks = ACK_SUBJECT.findall(data)
            got += len(acks)
            out = [b"PUB %s 0\r\n\r\n" % ack for ack in acks]
            while asked - got <= batch // 2:
                out.append(pull)
                asked += batch
            consumer.sock.sendall(b"".join(out))
        took_s = time.perf_counter() - started
        consumer.sock.sendall(b"UNSUB 1\r\n")
        _drop(consumer, run.stream, name)
    return got / took_s


def _ingest_msgs_per_s(port: int, subject: bytes, messages: int, window: int = 1000) -> float:
    frame = b"PUB %s _INBOX.in 128\r\n%s\r\n" % (subject, b"x" * 128)
    with wire(port) as publisher:
        publisher.sock.sendall(b"SUB _INBOX.in 1\r\n")
        publisher.ping()
        started = time.perf_counter()
        for _ in range(messages // window):
            publisher.sock.sendall(frame * window)
            got = 0
            while got < window:
                got += publisher.count(b'"seq":')
        return messages / (time.perf_counter() - started)


def idle_consumers_cost(port: int, *, consumers: int, messages: int) -> float:
    """The cost of a stored message beside consumers that do not match it, as a multiple of the cost without
    them: the median of alternating runs. A quarter each waits with a pull request and a filter, waits with a
    wildcard filter, pushes to a subscriber with a filter, and has neither filter nor subscriber."""
    create_stream(port, "IDLE", "idle.>")
    _ingest_msgs_per_s(port, b"idle.x", messages // 4)
    alone, beside = [], []
    with wire(port) as control:
        control.sock.sendall(b"SUB _INBOX.idle.* 1\r\n")
        for _ in range(3):
            alone.append(_ingest_msgs_per_s(port, b"idle.x", messages))
            for i in range(consumers):
                name, kind = f"c{i}", i % 4
                if kind == 0:
                    _make(control, "IDLE", name, filter_subject=f"idle.none.{i}", deliver_policy="new")
                elif kind == 1:
                    _make(control, "IDLE", name, filter_subject=f"idle.none{i}.*", deliver_policy="new")
                elif kind == 2:
                    filter_subject, inbox = f"idle.other{i}.>", f"_INBOX.idle.{i}"
                    _make(control, "IDLE", name, filter_subject=filter_subject, deliver_subject=inbox)
                else:
                    _make(control, "IDLE", name, deliver_subject=f"nobody.{i}")
                if kind < 2:
                    control.sock.sendall(_pull("IDLE", name, f"_INBOX.idle.{i}", 1))
            control.ping()
            beside.append(_ingest_msgs_per_s(port, b"idle.x", messages))
            for i in range(consumers):
                _drop(control, "IDLE", f"c{i}")
        control.request("$JS.API.STREAM.DELETE.IDLE")
    return statistics.median(alone) / statistics.median(beside)


def spread_of_counts(port: int, *, consumers: int, messages: int) -> float:
    """Consumers that all wait for published messages: the highest count of a consumer divided by the lowest,
    when half of all messages are delivered."""
    create_stream(port, "SHARED", "shared")
    counts = dict.fromkeys((b"%d" % i for i in range(consumers)), 0)
    delivered = re.compile(rb"MSG \S+ (\d+) \$JS\.ACK\.")
    with wire(port) as consumer, wire(port) as publisher:
        for i in range(consumers):
            consumer.sock.sendall(b"SUB _INBOX.share.%d %d\r\n" % (i, i))
            _make(consumer, "SHARED", f"c{i}", ack_policy="none")
            consumer.sock.sendall(_pull("SHARED", f"c{i}", f"_INBOX.share.{i}", messages))
        consumer.ping()
        publisher.sock.sendall(b"PUB shared 128\r\n%s\r\n" % (b"x" * 128) * messages)
        total, tail, spread = 0, b"", 0.0
        while total < messages * consumers:
            data = tail + consumer.read()
            end = data.rfind(b"\r\n") + 2
            data, tail = data[:end], data[end:]
            for sid in delivered.findall(data):
                counts[sid] += 1
                total += 1
            if not spread and total >= messages * consumers // 2:
                spread = max(counts.values()) / max(min(counts.values()), 1)
        consumer.request("$JS.API.STREAM.DELETE.SHARED")
    return spread


def fill_wide_stream(port: int, *, messages: int) -> None:
    """Creates stream WIDE with so many messages, unless it exists: a thousandth of them on `wide.thousandth`,
    a tenth on `wide.tenth`, the others distributed over a million subjects
    `wide.d<0-9>.g<0-999>.<number>`."""
    with wire(port) as control, suppress(LoadError):
        info = control.request("$JS.API.STREAM.INFO.WIDE")
        if info["state"]["messages"] == messages:  # type: ignore[index]
            return
    create_stream(port, "WIDE", "wide.>")
    with wire(port) as publisher:
        publisher.sock.sendall(b"SUB _INBOX.wide 1\r\n")
        publisher.ping()
        step = 1000
        for first in range(0, messages, step):
            publisher.sock.sendall(b"".join([_wide_frame(number) for number in range(first, first + step)]))
            got = 0
            while got < step:
                got += publisher.count(b'"seq":')


def _wide_frame(number: int) -> bytes:
    if number % 1000 == 7:
        return b"PUB wide.thousandth _INBOX.wide 16\r\n0123456789abcdef\r\n"
    if number % 10 == 3:
        return b"PUB wide.tenth _INBOX.wide 16\r\n0123456789abcdef\r\n"
    key = number * STRIDE % SUBJECTS
    return b"PUB wide.d%d.g%d.%d _INBOX.wide 16\r\n0123456789abcdef\r\n" % (
        key // 10 % 10,
        key // 100 % 1000,
        key,
    )


def num_pending_ms(port: int, *, messages: int) -> float:
    """The time of CONSUMER.CREATE, which counts the messages that match a filter: the slowest of four filters
    (a tenth of the subjects, a thousandth, one subject with a tenth of the messages, and all), each from the
    start of the stream and from its middle."""
    fill_wide_stream(port, messages=messages)
    took = []
    with wire(port) as control:
        for number, filter_subject in enumerate(("wide.d7.>", "wide.*.g7.*", "wide.tenth", "wide.>")):
            for where in (
                {},
                {"deliver_policy": "by_start_sequence", "opt_start_seq": messages // 2},
            ):
                times = []
                for turn in range(3):
                    name = f"pending{number}x{turn}"
                    started = time.perf_counter()
                    _make(control, "WIDE", name, filter_subject=filter_subject, **where)
                    times.append(time.perf_counter() - started)
                    _drop(control, "WIDE", name)
                took.append(statistics.median(times))
    return max(took) * 1e3


def filter_cost(port: int, filter_subject: str, *, messages: int, wanted: int) -> float:
    """The cost of a message that passes a filter (in a stream of a million subjects), as a multiple of its
    cost without a filter: the best of three each."""
    fill_wide_stream(port, messages=messages)
    rates: dict[str, list[float]] = {"": [], filter_subject: []}
    for _ in range(3):
        for one, seen in rates.items():
            config = {"filter_subject": one} if one else {}
            seen.append(_read_msgs_per_s(port, wanted, **config))
    return max(rates[""]) / max(rates[filter_subject])


def filtered_msgs_per_s(port: int, filter_subject: str, *, messages: int, wanted: int) -> float:
    """The rate of messages that pass a filter, in a stream of a million subjects: the best of three."""
    fill_wide_stream(port, messages=messages)
    return max(_read_msgs_per_s(port, wanted, filter_subject=filter_subject) for _ in range(3))


def filters_ingest_cost(port: int, *, consumers: int, messages: int) -> float:
    """The cost of a stored message that matches none of so many waiting consumers, as a multiple of its cost
    without them: the best of three each. Their filters have wildcards."""
    create_stream(port, "LIVE", "live.>")
    _ingest_msgs_per_s(port, b"live.x", messages // 4)
    with wire(port) as control:
        control.sock.sendall(b"SUB _INBOX.idle 1\r\n")
        alone = beside = 0.0
        for _ in range(3):
            alone = max(alone, _ingest_msgs_per_s(port, b"live.x", messages))
            for i in range(consumers):
                _make(control, "LIVE", f"c{i}", filter_subject=f"live.none{i}.*", deliver_policy="new")
                control.sock.sendall(_pull("LIVE", f"c{i}", "_INBOX.idle", 1))
            control.ping()
            beside = max(beside, _ingest_msgs_per_s(port, b"live.x", messages))
            for i in range(consumers):
                _drop(control, "LIVE", f"c{i}")
        control.request("$JS.API.STREAM.DELETE.LIVE")
    return alone / beside


def _read_msgs_per_s(port: int, messages: int, **config: object) -> float:
    name = f"read{time.time_ns()}"
    with wire(port) as consumer:
        _make(consumer, "WIDE", name, ack_policy="none", **config)
        consumer.sock.sendall(b"SUB _INBOX.read 1\r\n")
        consumer.ping()
        started = time.perf_counter()
        consumer.sock.sendall(_pull("WIDE", name, "_INBOX.read", messages))
        got = 0
        while got < messages:
            got += consumer.count(DELIVERED)
        took_s = time.perf_counter() - started
        _drop(consumer, "WIDE", name)
    return messages / took_s
