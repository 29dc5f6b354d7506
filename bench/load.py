"""A neutral load generator: raw sockets, prepared frames, responses counted as bytes.

The same code drives both servers, so that the server is the only difference between two rows of the table. It
does as little per message as Python allows (one `sendall` for hundreds of frames, one `bytes.count` per
read): a client library would measure itself. Every function returns one figure; its name has the unit.
"""

from __future__ import annotations

import json
import random
import resource
import selectors
import socket
import statistics
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

READ_BYTES = 1 << 20
CHUNK_MESSAGES = 250
CHUNK_BYTES_MAX = 256 * 1024
SILENCE_MAX_S = 30
CREATE_AGAIN_S = (0.1, 0.5, 1.0)
AFTER_DELETE_S = 0.5  # a server may free what a deleted stream held afterwards, beside what is measured next
SPREAD_FRAMES = 100_000
CONNECTED_AT_ONCE = 100
CONNECT = (
    b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true,'
    b'"lang":"bench","version":"1","protocol":1}\r\n'
)


class LoadError(RuntimeError):
    """The server's response is not the expected one."""


class Wire:
    """One raw connection."""

    def __init__(self, port: int, timeout_s: float = 30.0) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.tail = b""
        self.sock.sendall(CONNECT)
        self.ping()

    def ping(self) -> None:
        """Returns when everything sent so far was processed."""
        self.sock.sendall(b"PING\r\n")
        data = b""
        while b"PONG\r\n" not in data:
            data = data[-8:] + self.read()

    def read(self) -> bytes:
        data = self.sock.recv(READ_BYTES)
        if not data:
            raise LoadError("the server closed the connection")
        return data

    def count(self, mark: bytes) -> int:
        """Reads once and counts `mark`, also where it is split between reads."""
        data = self.tail + self.read()
        if b"-ERR" in data:
            at = data.index(b"-ERR")
            raise LoadError(data[at : at + 80].decode(errors="replace"))
        keep = len(mark) - 1
        self.tail = data[len(data) - keep :] if keep else b""
        return data.count(mark)

    def request(self, subject: str, body: bytes = b"") -> dict[str, object]:
        """One JetStream API request; raises LoadError with the server's error."""
        self.sock.sendall(
            b"SUB _R.one r1\r\nUNSUB r1 1\r\nPUB %s _R.one %d\r\n%s\r\n" % (subject.encode(), len(body), body)
        )
        data = b""
        while True:
            data += self.read()
            at = data.find(b"MSG _R.one r1 ")
            if at < 0:
                continue
            line_end = data.find(b"\r\n", at)
            if line_end < 0:
                continue
            size = int(data[at:line_end].split()[3])
            if len(data) >= line_end + 2 + size + 2:
                answer: dict[str, object] = json.loads(data[line_end + 2 : line_end + 2 + size])
                break
        if "error" in answer:
            raise LoadError(f"{subject}: {answer['error']}")
        return answer

    def close(self) -> None:
        self.sock.close()


@contextmanager
def wire(port: int) -> Iterator[Wire]:
    connection = Wire(port)
    try:
        yield connection
    finally:
        connection.close()


def create_stream(port: int, name: str, subject: str, storage: str = "file", **more: object) -> None:
    """Creates a new stream; deletes one of that name first. more: fields of its configuration."""
    with wire(port) as control:
        with suppress(LoadError):
            control.request(f"$JS.API.STREAM.DELETE.{name}")
            time.sleep(AFTER_DELETE_S)
        config = {
            "name": name,
            "subjects": [subject],
            "retention": "limits",
            "storage": storage,
            "discard": "old",
            "num_replicas": 1,
            "max_consumers": -1,
            "max_msgs": -1,
            "max_bytes": -1,
            "max_age": 0,
            "max_msgs_per_subject": -1,
            "max_msg_size": -1,
            **more,
        }
        body = json.dumps(config).encode()
        for seconds in CREATE_AGAIN_S:
            try:
                control.request(f"$JS.API.STREAM.CREATE.{name}", body)
                return
            except LoadError:  # the official server may still remove the files of the deleted stream
                time.sleep(seconds)
        control.request(f"$JS.API.STREAM.CREATE.{name}", body)


def await_interest(near: Wire, far: Wire) -> None:
    """Returns when the server of `near` knows all subscriptions that `far` has made: interest is announced in
    order, so a last one is enough."""
    far.sock.sendall(b"SUB bench.ready ready\r\n")
    far.ping()
    data = b""
    far.sock.settimeout(0.02)
    deadline = time.perf_counter() + SILENCE_MAX_S
    while b"MSG bench.ready ready 0\r\n\r\n" not in data:
        near.sock.sendall(b"PUB bench.ready 0\r\n\r\n")
        near.ping()
        try:
            data = data[-64:] + far.read()
        except TimeoutError:
            if time.perf_counter() > deadline:
                raise LoadError("a subscription does not become known at the other server") from None
    far.sock.settimeout(30.0)
    far.sock.sendall(b"UNSUB ready\r\n")
    far.ping()
    near.ping()


def core_msgs_per_s(
    port: int,
    *,
    messages: int,
    publishers: int = 1,
    subscribers: int = 1,
    size_bytes: int = 128,
    to_port: int = 0,
) -> float:
    """Publishers and subscribers of one subject, until the last one has received everything; published
    messages per second. to_port: another server, at which the subscribers are."""
    body = b"x" * size_bytes
    frame = b"PUB bench.core %d\r\n%s\r\n" % (size_bytes, body)
    delivered = b"MSG bench.core 1 %d\r\n%s\r\n" % (size_bytes, body)
    each_sends = messages // publishers
    with ExitStack() as open_wires:
        receiving = [open_wires.enter_context(wire(to_port or port)) for _ in range(subscribers)]
        sending = [open_wires.enter_context(wire(port)) for _ in range(publishers)]
        for each in receiving:
            each.sock.sendall(b"SUB bench.core 1\r\n")
            each.ping()
        if to_port:
            await_interest(sending[0], receiving[-1])
        started = time.perf_counter()
        senders = [
            threading.Thread(target=_send_all, args=(each.sock, frame, each_sends)) for each in sending
        ]
        for sender in senders:
            sender.start()
        _receive_bytes(receiving, len(delivered) * each_sends * publishers)
        took_s = time.perf_counter() - started
        for sender in senders:
            sender.join()
    return each_sends * publishers / took_s


def _send_all(sock: socket.socket, frame: bytes, messages: int) -> None:
    at_once = max(1, min(CHUNK_MESSAGES, CHUNK_BYTES_MAX // len(frame)))
    chunk = frame * at_once
    full, rest = divmod(messages, at_once)
    for _ in range(full):
        sock.sendall(chunk)
    if rest:
        sock.sendall(frame * rest)


def _receive_bytes(wires: list[Wire], bytes_each: int) -> None:
    """Reads until every connection has received `bytes_each` bytes. Ignores PINGs: runs are short."""
    left = {each.sock.fileno(): bytes_each for each in wires}
    scratch = bytearray(READ_BYTES)
    with selectors.DefaultSelector() as selector:
        for each in wires:
            selector.register(each.sock, selectors.EVENT_READ)
        while left:
            ready = selector.select(timeout=SILENCE_MAX_S)
            if not ready:
                raise LoadError(f"nothing came for {SILENCE_MAX_S} s, {sum(left.values())} bytes are missing")
            for key, _ in ready:
                got = key.fileobj.recv_into(scratch)  # type: ignore[union-attr]
                if not got:
                    raise LoadError("the server closed a subscriber's connection")
                left[key.fd] -= got
                if left[key.fd] <= 0:
                    selector.unregister(key.fileobj)
                    del left[key.fd]


def spread_msgs_per_s(
    port: int, *, subjects: int, messages: int, used: int | None = None, size_bytes: int = 16
) -> float:
    """One to one over literal subjects in random order, with one subscriber each; messages per second.

    subjects -- the number of subscribed subjects. used -- how many of those are published to; None = all.
    Frames have the same size for any number of subjects, so that only the lookup differs.
    """
    body = b"x" * size_bytes
    numbers = list(range(subjects))
    random.Random(1).shuffle(numbers)
    numbers = numbers[:used]
    frames = [b"PUB bench.spread.%07d %d\r\n%s\r\n" % (n, size_bytes, body) for n in numbers]
    frames *= max(1, SPREAD_FRAMES // len(frames))
    chunks = [b"".join(frames[at : at + CHUNK_MESSAGES]) for at in range(0, len(frames), CHUNK_MESSAGES)]
    rounds = max(1, messages // len(frames))
    delivered = len(b"MSG bench.spread.%07d %07d %d\r\n%s\r\n" % (0, 0, size_bytes, body))
    with wire(port) as receiver, wire(port) as sender:
        for at in range(0, subjects, CHUNK_MESSAGES):
            some = range(at, min(at + CHUNK_MESSAGES, subjects))
            receiver.sock.sendall(b"".join(b"SUB bench.spread.%07d %07d\r\n" % (n, n) for n in some))
        receiver.ping()
        _send_rounds(sender.sock, chunks, 1)  # excludes first-time costs
        _receive_bytes([receiver], delivered * len(frames))
        sending = threading.Thread(target=_send_rounds, args=(sender.sock, chunks, rounds))
        started = time.perf_counter()
        sending.start()
        _receive_bytes([receiver], delivered * len(frames) * rounds)
        took_s = time.perf_counter() - started
        sending.join()
    return len(frames) * rounds / took_s


def _send_rounds(sock: socket.socket, chunks: list[bytes], rounds: int) -> None:
    for _ in range(rounds):
        for chunk in chunks:
            sock.sendall(chunk)


@contextmanager
def idle_connections(port: int, *, connections: int, subscriptions: int) -> Iterator[float]:
    """Holds idle connections, with subscriptions distributed among them; yields the set-up time in seconds.

    Raises LoadError when this machine does not allow a process that many sockets.
    """
    _allow_files(connections + 100)
    each = subscriptions // connections
    held: list[socket.socket] = []
    try:
        started = time.perf_counter()
        for at in range(0, connections, CONNECTED_AT_ONCE):
            some = range(at, min(at + CONNECTED_AT_ONCE, connections))
            fresh = [socket.create_connection(("127.0.0.1", port), timeout=SILENCE_MAX_S) for _ in some]
            held += fresh
            for sock, n in zip(fresh, some, strict=True):
                subs = b"".join(b"SUB idle.%d.%d %d\r\n" % (n, i, i) for i in range(each))
                sock.sendall(CONNECT + subs + b"PING\r\n")
            for sock in fresh:
                _until(sock, b"PONG\r\n")
        yield time.perf_counter() - started
    finally:
        for sock in held:
            # Reset instead of close: thousands of sockets would remain in TIME_WAIT.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()


def _allow_files(count: int) -> None:
    """Raises this process's file limit, which servers started later inherit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        raise LoadError(
            f"this machine lets a process open {hard} files, {count} are needed: see `ulimit -Hn`"
        )
    if soft != resource.RLIM_INFINITY and soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def _until(sock: socket.socket, mark: bytes) -> None:
    data = b""
    while mark not in data:
        got = sock.recv(READ_BYTES)
        if not got:
            raise LoadError(f"the server closed a connection: {data[-80:]!r}")
        data = data[-len(mark) :] + got


def request_reply_median_us(port: int, *, requests: int, size_bytes: int = 128, to_port: int = 0) -> float:
    """Round trip time with one request in flight, microseconds. to_port: another server, at which the
    responder is."""
    body = b"x" * size_bytes
    request = b"PUB bench.rr _INBOX.rr.1 %d\r\n%s\r\n" % (size_bytes, body)
    reply = b"PUB _INBOX.rr.1 %d\r\n%s\r\n" % (size_bytes, body)
    times_s = []
    with wire(port) as requester, wire(to_port or port) as responder:
        _subscribe_both(requester, responder, crosses=bool(to_port))
        to_responder = len(b"MSG bench.rr 1 _INBOX.rr.1 %d\r\n%s\r\n" % (size_bytes, body))
        to_requester = len(b"MSG _INBOX.rr.1 1 %d\r\n%s\r\n" % (size_bytes, body))
        for _ in range(requests):
            started = time.perf_counter()
            requester.sock.sendall(request)
            _read_exactly(responder.sock, to_responder)
            responder.sock.sendall(reply)
            _read_exactly(requester.sock, to_requester)
            times_s.append(time.perf_counter() - started)
    return statistics.median(times_s) * 1e6


def _subscribe_both(requester: Wire, responder: Wire, *, crosses: bool) -> None:
    """crosses: they are at different servers, which must know the subscriptions of each other."""
    responder.sock.sendall(b"SUB bench.rr 1\r\n")
    responder.ping()
    requester.sock.sendall(b"SUB _INBOX.rr.* 1\r\n")
    requester.ping()
    if crosses:
        await_interest(requester, responder)
        await_interest(responder, requester)


def requests_per_s(
    port: int, *, requests: int, in_flight: int, size_bytes: int = 128, to_port: int = 0
) -> float:
    """Requests with up to `in_flight` outstanding; responses per second. to_port: another server, at which
    the responder is."""
    body = b"x" * size_bytes
    request = b"PUB bench.rr _INBOX.rr.1 %d\r\n%s\r\n" % (size_bytes, body)
    reply = b"PUB _INBOX.rr.1 %d\r\n%s\r\n" % (size_bytes, body)
    asked_bytes = len(b"MSG bench.rr 1 _INBOX.rr.1 %d\r\n%s\r\n" % (size_bytes, body))
    answered_bytes = len(b"MSG _INBOX.rr.1 1 %d\r\n%s\r\n" % (size_bytes, body))
    with wire(port) as requester, wire(to_port or port) as responder:
        _subscribe_both(requester, responder, crosses=bool(to_port))

        def respond() -> None:
            got = done = 0
            while done < requests:
                got += len(responder.read())
                fresh, done = got // asked_bytes - done, got // asked_bytes
                responder.sock.sendall(reply * fresh)

        answering = threading.Thread(target=respond)
        answering.start()
        started = time.perf_counter()
        requester.sock.sendall(request * in_flight)
        sent, got, done = in_flight, 0, 0
        while done < requests:
            got += len(requester.read())
            fresh, done = got // answered_bytes - done, got // answered_bytes
            more = min(fresh, requests - sent)
            if more > 0:
                requester.sock.sendall(request * more)
                sent += more
        took_s = time.perf_counter() - started
        answering.join()
    return requests / took_s


def _read_exactly(sock: socket.socket, size: int) -> None:
    while size > 0:
        got = len(sock.recv(size))
        if not got:
            raise LoadError("the server closed the connection")
        size -= got


def acked_publishes_per_s(
    port: int, *, messages: int, window: int, size_bytes: int = 128, storage: str = "file"
) -> float:
    """JetStream publishes with at most `window` unacked; acks per second."""
    create_stream(port, "BENCH", "bench.js.>", storage)
    return publish_acked(port, messages=messages, window=window, size_bytes=size_bytes)


def publish_acked(port: int, *, messages: int, window: int, size_bytes: int = 128) -> float:
    """The same to the stream BENCH as it is."""
    body = b"x" * size_bytes
    with wire(port) as publisher:
        publisher.sock.sendall(b"SUB _INBOX.ack.* 1\r\n")
        publisher.ping()
        if window == 1:
            return _acked_one_by_one(publisher, body, messages)
        return _acked_windowed(publisher, body, messages, window)


def _acked_one_by_one(publisher: Wire, body: bytes, messages: int) -> float:
    frame = b"PUB bench.js.a _INBOX.ack.1 %d\r\n%s\r\n" % (len(body), body)
    started = time.perf_counter()
    for _ in range(messages):
        publisher.sock.sendall(frame)
        while not publisher.count(b'"seq":'):
            pass
    return messages / (time.perf_counter() - started)


def _acked_windowed(publisher: Wire, body: bytes, messages: int, window: int) -> float:
    step = min(CHUNK_MESSAGES, window)
    chunk = b"".join(b"PUB bench.js.a _INBOX.ack.%d %d\r\n%s\r\n" % (i, len(body), body) for i in range(step))
    return windowed(publisher, [chunk], messages, window, step=step)


def windowed(
    publisher: Wire,
    chunks: list[bytes],
    messages: int,
    window: int,
    *,
    step: int = CHUNK_MESSAGES,
    mark: bytes = b'"seq":',
) -> float:
    """Sends `chunks` of `step` messages in turn, at most `window` messages without a response; responses per
    second.

    mark -- occurs once in each response.
    """
    acked = 0
    failed: list[BaseException] = []
    room = threading.Condition()

    def read_acks() -> None:
        nonlocal acked
        got = 0
        try:
            while got < messages:
                got += publisher.count(mark)
                with room:
                    acked = got
                    room.notify()
        except (LoadError, OSError) as error:
            failed.append(error)

    reader = threading.Thread(target=read_acks)
    started = time.perf_counter()
    reader.start()
    sent, number = 0, 0
    while sent < messages:
        with room:
            while sent - acked + step > window:
                if not room.wait(timeout=SILENCE_MAX_S) or failed:
                    raise LoadError(f"{acked} of {sent} publishes are acked, and no more: {failed}")
        publisher.sock.sendall(chunks[number])
        number = number + 1 if number + 1 < len(chunks) else 0
        sent += step
    reader.join()
    if failed:
        raise LoadError(f"{acked} of {sent} publishes are acked, and no more: {failed}")
    return messages / (time.perf_counter() - started)


def fill_stream(port: int, *, messages: int, size_bytes: int = 128, name: str = "FILL") -> None:
    """Creates a file stream with `messages` messages on ten subjects."""
    create_stream(port, name, f"fill.{name}.>")
    body = b"x" * size_bytes
    with wire(port) as publisher:
        publisher.sock.sendall(b"SUB _INBOX.fill 1\r\n")
        publisher.ping()
        step = 1000
        chunk = b"".join(
            b"PUB fill.%s.s%d _INBOX.fill %d\r\n%s\r\n" % (name.encode(), i % 10, size_bytes, body)
            for i in range(step)
        )
        for _ in range(messages // step):
            publisher.sock.sendall(chunk)
            got = 0
            while got < step:
                got += publisher.count(b'"seq":')


@dataclass(frozen=True)
class ConsumerRun:
    """What delivery scenarios share: the stream and its size."""

    port: int
    messages: int
    stream: str = "FILL"


def ordered_consumer_msgs_per_s(run: ConsumerRun) -> float:
    """A push consumer like clients' ordered consumers: no acks, flow control, heartbeats."""
    with wire(run.port) as consumer:
        consumer.sock.sendall(b"SUB _INBOX.ordered 1\r\n")
        consumer.ping()
        config = {
            "stream_name": run.stream,
            "config": {
                "deliver_subject": "_INBOX.ordered",
                "deliver_policy": "all",
                "ack_policy": "none",
                "max_deliver": 1,
                "flow_control": True,
                "idle_heartbeat": 5_000_000_000,
                "mem_storage": True,
                "num_replicas": 1,
                "replay_policy": "instant",
            },
        }
        body = json.dumps(config).encode()
        subject = f"$JS.API.CONSUMER.CREATE.{run.stream}".encode()
        started = time.perf_counter()
        consumer.sock.sendall(b"PUB %s _INBOX.nowhere %d\r\n%s\r\n" % (subject, len(body), body))
        got, tail = 0, b""
        while got < run.messages:
            data = tail + consumer.read()
            end = data.rfind(b"\r\n") + 2
            if end < 2:
                tail = data
                continue
            whole, tail = data[:end], data[end:]
            # Every delivered message has its ack subject once; a split one stays in `tail`.
            got += whole.count(b" $JS.ACK.")
            _answer_flow_control(consumer, whole)
        return run.messages / (time.perf_counter() - started)


def _answer_flow_control(consumer: Wire, data: bytes) -> None:
    at = data.find(b" $JS.FC.")
    while at >= 0:
        reply = data[at + 1 : data.index(b" ", at + 1)]
        consumer.sock.sendall(b"PUB %s 0\r\n\r\n" % reply)
        at = data.find(b" $JS.FC.", at + 1)


def fetch_msgs_per_s(run: ConsumerRun, *, batch: int = 500) -> float:
    """A durable pull consumer, explicit acks: fetch `batch`, ack each, fetch again."""
    with wire(run.port) as consumer:
        name = f"bench{time.time_ns()}"
        body = json.dumps(
            {
                "stream_name": run.stream,
                "config": {
                    "durable_name": name,
                    "ack_policy": "explicit",
                    "deliver_policy": "all",
                    "max_ack_pending": -1,
                },
            }
        ).encode()
        consumer.request(f"$JS.API.CONSUMER.DURABLE.CREATE.{run.stream}.{name}", body)
        consumer.sock.sendall(b"SUB _INBOX.pull 1\r\n")
        ask = json.dumps({"batch": batch, "expires": 5_000_000_000}).encode()
        pull = b"PUB $JS.API.CONSUMER.MSG.NEXT.%s.%s _INBOX.pull %d\r\n%s\r\n" % (
            run.stream.encode(),
            name.encode(),
            len(ask),
            ask,
        )
        started = time.perf_counter()
        for _ in range(run.messages // batch):
            consumer.sock.sendall(pull)
            data, got = b"", 0
            while got < batch:
                data += consumer.read()
                got = data.count(b" $JS.ACK.")
            while not data.endswith(b"\r\n"):
                data += consumer.read()
            # MSG <subject> <sid> $JS.ACK.... <size>
            acks = [line.split(b" ", 4)[3] for line in data.split(b"\r\n") if b" $JS.ACK." in line]
            consumer.sock.sendall(b"".join([b"PUB %s 0\r\n\r\n" % ack for ack in acks]))
        took_s = time.perf_counter() - started
        consumer.ping()
        consumer.request(f"$JS.API.CONSUMER.DELETE.{run.stream}.{name}")
    return run.messages / took_s
