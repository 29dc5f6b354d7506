"""Load of batch publishing (ADR-50): atomic batches and fast ingest, with the same raw sockets as `load`.

All frames are built before the measurement; during it, a publisher only slices them and searches each read
for the last flow ack. `ceiling_msgs_per_s` is the generator's own limit: its rate against a process that only
counts bytes and sends acks.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import re
import selectors
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from load import READ_BYTES, SILENCE_MAX_S, LoadError, Wire, create_stream, wire

FLOW = 4000  # requested messages per ack; the official server grants at most 500
OUTSTANDING = 2
ATOMIC_SIZE = 500
ATOMIC_WINDOW = 8  # batches without a response to their commit
SEND_MAX = 256 * 1024
PUBLISHERS = 8
EITHER = selectors.EVENT_READ | selectors.EVENT_WRITE
FLOW_ACK = re.compile(rb'"type":"ack","seq":(\d+),"msgs":(\d+)')


def make_stream(port: int, name: str, subject: str, **settings: object) -> None:
    """Creates a new file stream that allows batches."""
    with wire(port) as control:
        with suppress(LoadError):
            control.request(f"$JS.API.STREAM.DELETE.{name}")
        config = {"name": name, "subjects": [subject], "storage": "file", "num_replicas": 1, **settings}
        control.request(f"$JS.API.STREAM.CREATE.{name}", json.dumps(config).encode())


# --- atomic ------------------------------------------------------------------------------------


@functools.cache
def _atomic_batch(batch_id: str, size_bytes: int) -> bytes:
    """The frames of one batch: only its commit has a reply subject."""
    frames = []
    body = b"x" * size_bytes
    for seq in range(1, ATOMIC_SIZE + 1):
        last = seq == ATOMIC_SIZE
        header = b"NATS/1.0\r\nNats-Batch-Id: %s\r\nNats-Batch-Sequence: %d\r\n" % (batch_id.encode(), seq)
        header += b"Nats-Batch-Commit: 1\r\n\r\n" if last else b"\r\n"
        reply = b"_INBOX.atomic " if last else b""
        frames.append(
            b"HPUB bench.atomic %s%d %d\r\n%s%s\r\n"
            % (reply, len(header), len(header) + size_bytes, header, body)
        )
    return b"".join(frames)


def atomic_msgs_per_s(port: int, *, batches: int, size_bytes: int = 128) -> float:
    """Atomic batches of 500 with eight in flight; stored messages per second."""
    make_stream(port, "ATOMIC", "bench.atomic", allow_atomic=True)
    # An id can be reused after its batch was committed.
    each = [_atomic_batch(f"batchid{n:015d}", size_bytes) for n in range(ATOMIC_WINDOW)]
    with wire(port) as publisher:
        publisher.sock.sendall(b"SUB _INBOX.atomic 1\r\n")
        publisher.ping()
        started = time.perf_counter()
        done = 0
        for n in range(batches):
            while n - done >= ATOMIC_WINDOW:
                done += publisher.count(b'"count":500')
            publisher.sock.sendall(each[n % ATOMIC_WINDOW])
        while done < batches:
            done += publisher.count(b'"count":500')
        return batches * ATOMIC_SIZE / (time.perf_counter() - started)


# --- fast ingest -------------------------------------------------------------------------------


class Frames:
    """The frames of one fast batch up to its commit, in one buffer.

    A frame's size depends only on the digits of its sequence, so that its offset can be computed.
    """

    def __init__(self, publisher: int, messages: int, size_bytes: int) -> None:
        self.messages = messages
        self.inbox = f"_INBOX.fast{publisher}"
        head = f"PUB bench.fast.{publisher} {self.inbox}.batchid{publisher:015d}.{FLOW}.fail.".encode()
        tail = b"%d\r\n%s\r\n" % (size_bytes, b"x" * size_bytes)
        self._fixed = len(head) + len(b".1.$FI ") + len(tail)
        operations = {1: b".0.$FI ", messages: b".2.$FI "}
        self.data = memoryview(
            b"".join(
                [head + b"%d" % n + operations.get(n, b".1.$FI ") + tail for n in range(1, messages + 1)]
            )
        )

    def offset(self, count: int) -> int:
        """The offset of the frame after the first `count`."""
        digits, ten = count, 10
        while ten <= count:
            digits += count - ten + 1
            ten *= 10
        return count * self._fixed + digits


@functools.cache
def _frames(publisher: int, messages: int, size_bytes: int) -> Frames:
    return Frames(publisher, messages, size_bytes)


class Publisher:
    """One fast batch on its own connection. The caller polls the socket."""

    def __init__(self, connection: Wire, frames: Frames) -> None:
        self._wire = connection
        self.sock = connection.sock
        self._frames = frames
        self._at = 0  # bytes sent
        self._upto = frames.offset(1)  # bytes that may be sent
        self._tail = b""
        self.acked = 0
        self.is_done = False
        self.batches = 0  # committed
        connection.sock.sendall(f"SUB {frames.inbox}.> 1\r\n".encode())
        connection.ping()
        connection.sock.setblocking(False)

    def again(self) -> None:
        """Restarts the batch after its commit, with the same id."""
        self._at, self._upto, self.acked, self.is_done = 0, self._frames.offset(1), 0, False

    @property
    def wants_to_send(self) -> bool:
        return self._at < self._upto

    def send(self) -> None:
        """Sends as much as the socket accepts and the window allows."""
        with suppress(BlockingIOError):
            upto = min(self._upto, self._at + SEND_MAX)
            self._at += self._wire.sock.send(self._frames.data[self._at : upto])

    def receive(self) -> None:
        """Reads the available responses."""
        data = self._tail + self._wire.read()
        if b'"error"' in data or b'"type":"gap"' in data or b"-ERR" in data:
            raise LoadError(data[-300:].decode(errors="replace"))
        found = FLOW_ACK.findall(data)
        if found:
            self.acked, msgs = (int(number) for number in found[-1])
            allowed = min(self.acked + msgs * OUTSTANDING, self._frames.messages)
            self._upto = max(self._upto, self._frames.offset(allowed))
        if b'"count":' in data:
            self.acked = self._frames.messages
            self.is_done = True
            self.batches += 1
        self._tail = data[data.rfind(b"\r\n") :]


def _drive(publishers: list[Publisher], is_over: Callable[[], bool]) -> None:
    """Sends and reads until `is_over`, serving all publishers equally."""
    with selectors.DefaultSelector() as selector:
        keys = {}
        for each in publishers:
            keys[each] = selector.register(each.sock, EITHER, each)
        while not is_over():
            for each, key in keys.items():
                if each.wants_to_send and not key.events & selectors.EVENT_WRITE:
                    keys[each] = selector.modify(key.fileobj, EITHER, each)
            ready = selector.select(timeout=SILENCE_MAX_S)
            if not ready:
                raise LoadError(f"no flow ack for {SILENCE_MAX_S} s")
            for key, events in ready:
                each = key.data
                if events & selectors.EVENT_READ:
                    each.receive()
                if each.wants_to_send:
                    each.send()
                elif key.events == EITHER:
                    keys[each] = selector.modify(key.fileobj, selectors.EVENT_READ, each)


@contextmanager
def _publishers(port: int, count: int, messages: int, size_bytes: int) -> Iterator[list[Publisher]]:
    with ExitStack() as wires:
        yield [
            Publisher(wires.enter_context(wire(port)), _frames(n, messages, size_bytes)) for n in range(count)
        ]


def fast_msgs_per_s(port: int, *, messages: int, size_bytes: int = 128) -> float:
    """One fast batch, from its start to its pub ack; messages per second."""
    make_stream(port, "FAST", "bench.fast.*", allow_batched=True)
    return publish_fast(port, messages=messages, size_bytes=size_bytes)


def publish_fast(port: int, *, messages: int, size_bytes: int = 128) -> float:
    """The same to the stream FAST as it is."""
    with _publishers(port, 1, messages, size_bytes) as [publisher]:
        started = time.perf_counter()
        _drive([publisher], lambda: publisher.is_done)
        return messages / (time.perf_counter() - started)


def shared_fast(port: int, *, messages_each: int, size_bytes: int = 128) -> tuple[float, float]:
    """Eight fast batches in parallel until the first one ends: (total messages per second, the highest count
    of a publisher divided by the lowest)."""
    make_stream(port, "FAST", "bench.fast.*", allow_batched=True)
    with _publishers(port, PUBLISHERS, messages_each, size_bytes) as publishers:
        started = time.perf_counter()
        _drive(publishers, lambda: any(each.is_done for each in publishers))
        took_s = time.perf_counter() - started
        counts = [each.acked for each in publishers]
    return sum(counts) / took_s, max(counts) / max(min(counts), 1)


def many_by_one(port: int, *, messages_each: int) -> float:
    """The rate of eight publishers together, as a multiple of a single one's."""
    one = fast_msgs_per_s(port, messages=messages_each * PUBLISHERS // 2)
    return shared_fast(port, messages_each=messages_each)[0] / one


# --- requests beside fast ingest ---------------------------------------------------------------


def _publish_until_told(port: int, messages_each: int, stop: object) -> None:
    """A separate process: eight fast publishers, one batch after another."""
    with _publishers(port, PUBLISHERS, messages_each, 128) as publishers:

        def is_over() -> bool:
            for each in publishers:
                if each.is_done:
                    each.again()
            return bool(stop.is_set())  # type: ignore[attr-defined]

        _drive(publishers, is_over)


def request_p99_ms(port: int, *, requests: int) -> dict[str, float]:
    """Stream info, purge of another stream and message delete while eight fast publishers run at full speed:
    the 99th percentile of each, in ms."""
    make_stream(port, "FAST", "bench.fast.*", allow_batched=True, max_msgs=2_000_000)
    create_stream(port, "ASIDE", "bench.aside")
    with wire(port) as filler:
        filler.sock.sendall(b"PUB bench.aside 1\r\nx\r\n" * requests * 2)
        filler.ping()
    stop = multiprocessing.get_context("fork").Event()
    load = multiprocessing.get_context("fork").Process(target=_publish_until_told, args=(port, 100_000, stop))
    load.start()
    took_ms: dict[str, list[float]] = {"info": [], "purge": [], "delete": []}
    try:
        with wire(port) as control:
            _until_it_grows(control, "FAST")
            for n in range(requests):
                asked = (
                    ("info", "$JS.API.STREAM.INFO.FAST", b""),
                    ("delete", "$JS.API.STREAM.MSG.DELETE.ASIDE", b'{"seq":%d}' % (2 * n + 2)),
                    ("purge", "$JS.API.STREAM.PURGE.ASIDE", b'{"seq":%d}' % (2 * n + 2)),
                )
                for name, subject, body in asked:
                    started = time.perf_counter()
                    control.request(subject, body)
                    took_ms[name].append((time.perf_counter() - started) * 1e3)
    finally:
        stop.set()
        load.join(timeout=SILENCE_MAX_S)
        if load.is_alive():
            load.kill()
    return {name: statistics.quantiles(times, n=100)[98] for name, times in took_ms.items()}


def _until_it_grows(control: Wire, stream: str) -> None:
    deadline = time.perf_counter() + SILENCE_MAX_S
    while time.perf_counter() < deadline:
        state = control.request(f"$JS.API.STREAM.INFO.{stream}")["state"]
        if isinstance(state, dict) and state["messages"] > 100_000:
            return
        time.sleep(0.01)
    raise LoadError(f"no publisher fills {stream}")


# --- the generator itself ----------------------------------------------------------------------


def _answer_only(listener: socket.socket, frames: Frames) -> None:
    """A server that only counts bytes and acks every FLOW messages."""
    connection, _ = listener.accept()
    connection.sendall(b"INFO {}\r\n")
    greeting = b""
    while greeting.count(b"PING") < 2:
        got = connection.recv(4096)
        greeting += got
        connection.sendall(b"PONG\r\n" * got.count(b"PING"))
    scratch = bytearray(READ_BYTES)
    got_bytes, acked = 0, 0
    answer = b'MSG _INBOX.fast0.a 1 40\r\n{"type":"ack","seq":%d,"msgs":%d}\r\n'
    while got_bytes < frames.offset(frames.messages):
        got_bytes += connection.recv_into(scratch)
        if not acked:
            connection.sendall(answer % (0, FLOW))
        reached = acked
        while frames.offset(reached + FLOW) <= got_bytes:
            reached += FLOW
        if reached > acked or not acked:
            acked = reached
            connection.sendall(answer % (acked, FLOW))
    connection.sendall(b'MSG _INBOX.fast0.a 1 40\r\n{"stream":"FAST","seq":1,"count":1}\r\n')
    connection.close()
    os._exit(0)


def ceiling_msgs_per_s(*, messages: int, size_bytes: int = 128) -> float:
    """The generator's rate against a process that only counts and acks; messages per second."""
    frames = _frames(0, messages, size_bytes)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        context = multiprocessing.get_context("fork")
        counting = context.Process(target=_answer_only, args=(listener, frames))
        counting.start()
        try:
            with wire(port) as connection:
                publisher = Publisher(connection, frames)
                started = time.perf_counter()
                _drive([publisher], lambda: publisher.is_done)
                return messages / (time.perf_counter() - started)
        finally:
            counting.join(timeout=5)
            if counting.is_alive():
                counting.kill()
