"""Batches and dead letters under kill -9: the served process dies at random instants while two publishers of
batches and a worker that terminates messages are at it.

After each start an atomic batch is there as a whole or not at all, and is there when it was acked; what a
fast batch's acks named is there, and its messages are a beginning of what was sent, without gap; of every
termination that was confirmed there is one dead letter, and of none there are two.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.killed_server import Served, stored_messages
from tests.support.rawnats import RawNats

pytestmark = [
    pytest.mark.slow,
    pytest.mark.feature("stream.recovery", "atomic.crash", "consumer.dead-letters"),
]

KILLS = int(os.environ.get("PENSTOCK_KILLS", "5"))
ATOMIC_MAX = 40  # messages of an atomic batch
FAST_LENGTH, FAST_WINDOW = 3000, 400
BATCHES, WORK, LETTERS = "BATCHES", "WORK", "LETTERS"


class Client(threading.Thread):
    """Works until the server is killed."""

    def __init__(self, port: int, kill: int) -> None:
        super().__init__()
        self.kill = kill
        self.connection = RawNats(port)
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.work()
        except (OSError, ConnectionError):
            pass  # the server was killed, as it should be
        except BaseException as error:  # noqa: BLE001 (told to the test)
            self.error = error
        finally:
            self.connection.close()

    def work(self) -> None:
        raise NotImplementedError

    def publish(self, subject: str, reply: str, header: bytes, payload: bytes) -> bytes:
        size = len(header) + len(payload)
        return b"HPUB %s %s %d %d\r\n%s%s\r\n" % (
            subject.encode(), reply.encode(), len(header), size, header, payload,
        )  # fmt: skip


class Atomics(Client):
    """One atomic batch after the other. acked: where the last message of each is."""

    def __init__(self, port: int, kill: int) -> None:
        super().__init__(port, kill)
        self.sizes: dict[str, int] = {}
        self.acked: dict[str, int] = {}

    def work(self) -> None:
        rng = random.Random(self.kill)
        self.connection.subscribe("_INBOX.atomic", 1)
        for number in range(1 << 30):
            batch_id, size = f"a{self.kill}_{number}", rng.randrange(1, ATOMIC_MAX)
            self.sizes[batch_id] = size
            frames = []
            for seq in range(1, size + 1):
                commit = b"Nats-Batch-Commit: 1\r\n" if seq == size else b""
                header = b"NATS/1.0\r\nNats-Batch-Id: %s\r\nNats-Batch-Sequence: %d\r\n%s\r\n"
                header %= (batch_id.encode(), seq, commit)
                payload = f"{batch_id} {seq} ".encode() + b"." * rng.randrange(200)
                frames.append(self.publish("b.atomic", "_INBOX.atomic" * bool(commit), header, payload))
            self.connection.send(b"".join(frames))
            answer = json.loads(self.connection.message().payload)
            assert answer["count"] == size and answer["batch"] == batch_id, answer
            self.acked[batch_id] = answer["seq"]


class Fasts(Client):
    """Fast batches that end at the first gap. acked: how far the server said each one is."""

    def __init__(self, port: int, kill: int) -> None:
        super().__init__(port, kill)
        self.acked: dict[str, int] = {}

    def work(self) -> None:
        self.connection.subscribe("_INBOX.fast.>", 1)
        for number in range(1 << 30):
            self.run_batch(f"f{self.kill}_{number}")

    def run_batch(self, batch_id: str) -> None:
        sent, self.acked[batch_id] = 0, 0
        while self.acked[batch_id] < FAST_LENGTH:
            frames = []
            while sent < min(self.acked[batch_id] + FAST_WINDOW, FAST_LENGTH):
                sent += 1
                operation = 0 if sent == 1 else 2 if sent == FAST_LENGTH else 1
                reply = f"_INBOX.fast.{batch_id}.100.fail.{sent}.{operation}.$FI"
                payload = f"{batch_id} {sent} padding".encode()
                frames.append(b"PUB b.fast %s %d\r\n%s\r\n" % (reply.encode(), len(payload), payload))
            self.connection.send(b"".join(frames))
            answer = json.loads(self.connection.message().payload)
            assert "error" not in answer and answer.get("type") != "gap", answer
            self.acked[batch_id] = answer["count"] if "count" in answer else answer["seq"]


class Terminator(Client):
    """Publishes work, fetches it and terminates it. confirmed: payloads of what the server confirmed."""

    def __init__(self, port: int, kill: int) -> None:
        super().__init__(port, kill)
        self.confirmed: set[bytes] = set()

    def work(self) -> None:
        self.connection.subscribe("_INBOX.term.>", 1)
        for number in range(1 << 30):
            for i in range(20):
                self.connection.publish("w.work", b"w%d_%d_%d" % (self.kill, number, i))
            ask = b'{"batch":20,"expires":300000000}'
            self.connection.publish(f"$JS.API.CONSUMER.MSG.NEXT.{WORK}.worker", ask, "_INBOX.term.pull")
            waiting: dict[bytes, bytes] = {}
            pulled = 0
            while pulled < 20 or waiting:
                message = self.connection.message()
                if message.subject.startswith(b"_INBOX.term.ack."):
                    self.confirmed.add(waiting.pop(message.subject))
                elif message.reply.startswith(b"$JS.ACK."):
                    pulled += 1
                    inbox = b"_INBOX.term.ack.%s" % message.reply.split(b".")[6]
                    waiting[inbox] = message.payload
                    self.connection.publish(message.reply.decode(), b"+TERM no use", inbox.decode())
                else:
                    pulled = 20  # a status: the pull ended


@pytest.fixture
def served(disk_path: Path) -> Iterator[Served]:
    server = Served(disk_path / "store")
    server.start()
    try:
        yield server
    finally:
        if server.process is not None and server.process.poll() is None:
            server.kill()


def read_stream(port: int, stream: str) -> dict[int, bytes]:
    """sequence -> payload of all messages there are."""
    return {seq: message.payload for seq, message in stored_messages(port, stream)}


def test_batches_are_whole_acked_fast_messages_are_there_and_letters_come_once_after_kill_9(
    served: Served,
) -> None:
    set_up(served.port)
    rng = random.Random(int(os.environ.get("PENSTOCK_KILL_SEED", "20")))
    confirmed: set[bytes] = set()
    for kill in range(KILLS):
        atomics, fasts = Atomics(served.port, kill), Fasts(served.port, kill)
        terminator = Terminator(served.port, kill)
        clients: list[Client] = [atomics, fasts, terminator]
        for client in clients:
            client.start()
        _let_all_get_going(atomics, fasts, terminator)
        time.sleep(rng.uniform(0.0, 0.3))  # the instant is what is random
        served.kill()
        for client in clients:
            client.join()
            assert client.error is None, f"kill {kill}: {client.error!r}"
        confirmed |= terminator.confirmed
        served.start()
        _check_batches(read_stream(served.port, BATCHES), atomics, fasts, kill)
        _check_letters(served.port, confirmed, kill)
        _purge(served.port)


def set_up(port: int) -> None:
    connection = RawNats(port)

    def ask(request: str, body: dict[str, Any]) -> None:
        answer = connection.request(f"$JS.API.{request}", body)
        assert "error" not in answer, answer

    ask(f"STREAM.CREATE.{BATCHES}", {
        "name": BATCHES, "subjects": ["b.*"], "allow_atomic": True, "allow_batched": True,
    })  # fmt: skip
    ask(f"STREAM.CREATE.{WORK}", {"name": WORK, "subjects": ["w.*"], "retention": "workqueue"})
    ask(f"STREAM.CREATE.{LETTERS}", {"name": LETTERS, "subjects": ["l.*"], "duplicate_window": 100_000_000})
    config = {
        "durable_name": "worker", "ack_policy": "explicit", "metadata": {"penstock.dead_letter": "l.work"},
    }  # fmt: skip
    ask(f"CONSUMER.DURABLE.CREATE.{WORK}.worker", {"stream_name": WORK, "config": config})
    connection.close()


def _let_all_get_going(atomics: Atomics, fasts: Fasts, terminator: Terminator) -> None:
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        if atomics.acked and sum(fasts.acked.values()) and terminator.confirmed:
            return
        if atomics.error or fasts.error or terminator.error:
            return
        time.sleep(0.005)
    raise AssertionError("the load never got going")


def _purge(port: int) -> None:
    connection = RawNats(port)
    assert connection.request(f"$JS.API.STREAM.PURGE.{BATCHES}")["success"]
    connection.close()


def _check_batches(found: dict[int, bytes], atomics: Atomics, fasts: Fasts, kill: int) -> None:
    places: dict[str, list[tuple[int, int]]] = {}  # of a batch: (its number, sequence in the stream)
    for at in sorted(found):
        batch_id, number, _ = found[at].decode().split(" ", 2)
        places.setdefault(batch_id, []).append((int(number), at))
    for batch_id, size in atomics.sizes.items():
        there = places.get(batch_id, [])
        if there or batch_id in atomics.acked:
            first = there[0][1] if there else 0
            whole = [(number, first + number - 1) for number in range(1, size + 1)]
            assert there == whole, f"kill {kill}: of {batch_id}, {size} messages, there are {there}"
        if batch_id in atomics.acked:
            assert there[-1][1] == atomics.acked[batch_id], f"kill {kill}: {batch_id} is elsewhere"
    for batch_id, acked in fasts.acked.items():
        numbers = [number for number, _ in places.get(batch_id, [])]
        assert numbers == list(range(1, len(numbers) + 1)), (
            f"kill {kill}: {batch_id} has gaps: {numbers[:20]}"
        )
        assert len(numbers) >= acked, f"kill {kill}: {batch_id}: {acked} acked, {len(numbers)} there"


def _check_letters(port: int, confirmed: set[bytes], kill: int) -> None:
    deadline = time.monotonic() + 20
    while True:
        letters = Counter(read_stream(port, LETTERS).values())
        missing = confirmed - letters.keys()
        if not missing or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    assert not missing, f"kill {kill}: terminated, and no letter: {sorted(missing)[:5]}"
    twice = [payload for payload, count in letters.items() if count > 1]
    assert not twice, f"kill {kill}: more than one letter: {twice[:5]}"
