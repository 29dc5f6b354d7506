"""Acked means kept: the served process is killed with SIGKILL under load, again and again.

One publisher (windowed, every publish asks for an ack) and one explicit-ack pull consumer that double-acks
run while the server dies at a random instant. After every restart all that was acked must be there exactly
once and in order, and nothing whose ack was confirmed may be delivered again.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.rawnats import RawNats

KILLS = 20
WINDOW = 400
STREAM, CONSUMER = "KILL", "worker"


class Served:
    """`penstock serve` in a process of its own on one port and one store."""

    def __init__(self, store_dir: Path) -> None:
        self.store_dir = store_dir
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "penstock", "serve", "-a", "127.0.0.1", "-p", str(self.port)]
        with (self.store_dir.parent / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "-js", "-sd", str(self.store_dir)], stderr=log, stdout=log
            )
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                RawNats(self.port).close()
                return
            except OSError:
                assert self.process.poll() is None, (self.store_dir.parent / "server.log").read_text()
                time.sleep(0.01)
        raise AssertionError("the server did not come back within 30 s")

    def kill(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Publisher(threading.Thread):
    """Publishes the numbers from `first` on; `acked` holds number -> sequence for every ack that came."""

    def __init__(self, port: int, first: int) -> None:
        super().__init__()
        self.next = first
        self.acked: dict[int, int] = {}
        self.connection = RawNats(port)

    def run(self) -> None:
        try:
            self.connection.subscribe("_INBOX.pub.*", 1)
            in_flight = 0
            while True:
                while in_flight < WINDOW:
                    self.connection.publish("kill.number", b"%d" % self.next, f"_INBOX.pub.{self.next}")
                    self.next += 1
                    in_flight += 1
                message = self.connection.message()
                in_flight -= 1
                number = int(message.subject.rsplit(b".", 1)[1])
                self.acked[number] = _sequence_in(message.payload)
        except (OSError, ConnectionError):
            pass  # the server was killed, as it should be
        finally:
            self.connection.close()


def _sequence_in(ack: bytes) -> int:
    import json

    answer = json.loads(ack)
    assert "error" not in answer, answer
    return int(answer["seq"])


class Worker(threading.Thread):
    """Fetches and double-acks; `confirmed` are the stream sequences whose ack the server confirmed."""

    def __init__(self, port: int, confirmed_before: set[int]) -> None:
        super().__init__()
        self.confirmed: set[int] = set()
        self.again: list[int] = []
        self.confirmed_before = confirmed_before
        self.connection = RawNats(port)

    def run(self) -> None:
        try:
            self.connection.subscribe("_INBOX.work.>", 1)
            while True:
                self._fetch_and_confirm()
        except (OSError, ConnectionError):
            pass
        finally:
            self.connection.close()

    def _fetch_and_confirm(self) -> None:
        ask = b'{"batch":50,"expires":200000000}'
        self.connection.publish(f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{CONSUMER}", ask, "_INBOX.work.pull")
        waiting: set[int] = set()
        got, pull_over = 0, False
        while not pull_over or waiting:
            message = self.connection.message()
            if message.subject.startswith(b"_INBOX.work.ack."):
                number = int(message.subject.rsplit(b".", 1)[1])
                waiting.discard(number)
                self.confirmed.add(number)
            elif message.reply.startswith(b"$JS.ACK."):
                sequence = int(message.reply.split(b".")[5])
                if sequence in self.confirmed_before or sequence in self.confirmed:
                    self.again.append(sequence)
                waiting.add(sequence)
                self.connection.publish(message.reply.decode(), b"", f"_INBOX.work.ack.{sequence}")
                got += 1
                pull_over = got == 50
            else:
                pull_over = True  # a status: the pull ended


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    server = Served(tmp_path / "store")
    server.start()
    try:
        yield server
    finally:
        if server.process is not None and server.process.poll() is None:
            server.kill()


def read_all(port: int, first: int, last: int) -> dict[int, bytes]:
    """sequence -> payload, over a fresh pull consumer."""
    connection = RawNats(port)
    config = {
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": first,
        "ack_policy": "none",
        "mem_storage": True,
    }
    answer = connection.request(
        f"$JS.API.CONSUMER.CREATE.{STREAM}", {"stream_name": STREAM, "config": config}
    )
    connection.subscribe("_INBOX.read", 1)
    found: dict[int, bytes] = {}
    name = answer["name"]
    while max(found, default=first - 1) < last:
        connection.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{name}", b'{"batch":1000,"no_wait":true}', "_INBOX.read"
        )
        while True:
            message = connection.message()
            if not message.reply.startswith(b"$JS.ACK."):
                break
            sequence = int(message.reply.split(b".")[5])
            assert sequence not in found, f"sequence {sequence} was delivered twice to an ack-none consumer"
            found[sequence] = message.payload
            if len(found) % 1000 == 0:
                break
    connection.close()
    return found


def test_what_was_acked_survives_kill_9_exactly_once_and_in_order(served: Served) -> None:
    setup = RawNats(served.port)
    answer = setup.request(
        f"$JS.API.STREAM.CREATE.{STREAM}", {"name": STREAM, "subjects": ["kill.*"], "storage": "file"}
    )
    assert "error" not in answer, answer
    config = {"durable_name": CONSUMER, "ack_policy": "explicit", "max_ack_pending": 1000}
    body = {"stream_name": STREAM, "config": config}
    answer = setup.request(f"$JS.API.CONSUMER.DURABLE.CREATE.{STREAM}.{CONSUMER}", body)
    assert "error" not in answer, answer
    setup.close()
    seed = int(os.environ.get("PENSTOCK_KILL_SEED", "20"))
    rng = random.Random(seed)
    number, acked, confirmed = 1, {}, set[int]()
    for turn in range(KILLS):
        publisher, worker = Publisher(served.port, number), Worker(served.port, confirmed)
        publisher.start()
        worker.start()
        # The instant is what is random here: the test waits for no state, it interrupts one.
        time.sleep(rng.uniform(0.02, 0.35))
        served.kill()
        publisher.join()
        worker.join()
        number = publisher.next
        acked.update(publisher.acked)
        confirmed |= worker.confirmed
        assert not worker.again, f"turn {turn}: confirmed acks delivered again: {worker.again[:5]}"
        served.start()
        _check_the_stream(served.port, acked, turn)
        _check_the_consumer(served.port, confirmed, turn)
    assert len(acked) > KILLS * WINDOW, "the load never got going"
    assert confirmed, "no ack was ever confirmed"


def _check_the_stream(port: int, acked: dict[int, int], turn: int) -> None:
    connection = RawNats(port)
    state = connection.request(f"$JS.API.STREAM.INFO.{STREAM}")["state"]
    connection.close()
    found = read_all(port, 1, state["last_seq"])
    assert len(found) == state["messages"] == state["last_seq"], f"turn {turn}: {state}, {len(found)} read"
    numbers = [int(found[sequence]) for sequence in sorted(found)]
    assert numbers == sorted(set(numbers)), f"turn {turn}: out of order or twice"
    for number, sequence in acked.items():
        assert found.get(sequence) == b"%d" % number, (
            f"turn {turn}: acked {number} at {sequence}, there: {found.get(sequence)!r}"
        )


def _check_the_consumer(port: int, confirmed: set[int], turn: int) -> None:
    connection = RawNats(port)
    info = connection.request(f"$JS.API.CONSUMER.INFO.{STREAM}.{CONSUMER}")
    connection.close()
    floor = info["ack_floor"]["stream_seq"]
    contiguous = 0
    while contiguous + 1 in confirmed:
        contiguous += 1
    assert floor >= contiguous, f"turn {turn}: ack floor {floor} after {contiguous} confirmed acks in a row"
