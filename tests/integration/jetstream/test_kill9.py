"""Acked means kept: the served process is killed with SIGKILL under load, again and again.

One publisher (windowed, every publish asks for an ack) and one explicit-ack pull consumer that double-acks
run while the server dies at a random instant. After every restart all that was acked must be there exactly
once and in order, and nothing whose ack was confirmed may be delivered again.

A second test removes meanwhile: deletes that erase, purges by subject and of the front, messages with a TTL,
so that blocks are compacted, in plain stores and in encrypted and compressed ones. What was acked and not
removed must be there, and nothing whose removal was confirmed may come back.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.kernels.log.stream_log import DEFAULT_BLOCK_SIZE
from tests.support.killed_server import Served, stored_messages
from tests.support.rawnats import RawNats

pytestmark = [pytest.mark.slow, pytest.mark.feature("stream.recovery")]

KILLS = int(os.environ.get("PENSTOCK_KILLS", "6"))
WINDOW = 400
STREAM, CONSUMER = "KILL", "worker"

REMOVAL_KILLS = int(os.environ.get("PENSTOCK_KILLS", "5"))
REMOVAL_WINDOW = 200
TTL_S = 1.0
FRONT = 1000  # messages before the newest that a purge of the front leaves
PADDING = b" " + b"padding of a message that is to fill blocks " * 190


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
def served(disk_path: Path) -> Iterator[Served]:
    server = Served(disk_path / "store")
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
    for kill in range(KILLS):
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
        assert not worker.again, f"kill {kill}: confirmed acks delivered again: {worker.again[:5]}"
        served.start()
        _check_the_stream(served.port, acked, kill)
        _check_the_consumer(served.port, confirmed, kill)
    assert len(acked) > KILLS * WINDOW, "the load never got going"
    assert confirmed, "no ack was ever confirmed"


def _check_the_stream(port: int, acked: dict[int, int], kill: int) -> None:
    connection = RawNats(port)
    state = connection.request(f"$JS.API.STREAM.INFO.{STREAM}")["state"]
    connection.close()
    found = read_all(port, 1, state["last_seq"])
    assert len(found) == state["messages"] == state["last_seq"], f"kill {kill}: {state}, {len(found)} read"
    numbers = [int(found[sequence]) for sequence in sorted(found)]
    assert numbers == sorted(set(numbers)), f"kill {kill}: out of order or twice"
    for number, sequence in acked.items():
        assert found.get(sequence) == b"%d" % number, (
            f"kill {kill}: acked {number} at {sequence}, there: {found.get(sequence)!r}"
        )


def _check_the_consumer(port: int, confirmed: set[int], kill: int) -> None:
    connection = RawNats(port)
    info = connection.request(f"$JS.API.CONSUMER.INFO.{STREAM}.{CONSUMER}")
    connection.close()
    floor = info["ack_floor"]["stream_seq"]
    contiguous = 0
    while contiguous + 1 in confirmed:
        contiguous += 1
    assert floor >= contiguous, f"kill {kill}: ack floor {floor} after {contiguous} confirmed acks in a row"


# ---------------------------------------------------------------------- removals


def kind_of(number: int) -> str:
    """Of four messages one stays until it is deleted; the others are purged or expire."""
    return "ttl" if number % 16 == 3 else "keep" if number % 4 == 0 else "gone"


class Removals:
    """What may be said of the stream. Bounds are exclusive; `asked` ones were not confirmed (yet)."""

    def __init__(self) -> None:
        self.sent_at: dict[int, float] = {}  # by number
        self.acked: dict[int, int] = {}  # sequence -> number
        self.acked_at: dict[int, float] = {}  # sequence
        self.deleted: set[int] = set()
        self.asked_deleted: set[int] = set()
        self.purged_below = self.asked_purged_below = 0  # of the subject kill.gone
        self.floor = self.asked_floor = 0

    def must_be_gone(self, seq: int, number: int, now: float) -> bool:
        """Was its removal confirmed, or is it overdue? now: before the stream was read."""
        if seq < self.floor or seq in self.deleted:
            return True
        if kind_of(number) == "gone":
            return seq < self.purged_below
        overdue = kind_of(number) == "ttl" and seq in self.acked_at
        return overdue and self.acked_at[seq] + TTL_S + 0.5 < now

    def may_be_gone(self, seq: int, number: int, now: float) -> bool:
        """Did anybody ask for its removal? now: after the stream was read."""
        if seq < self.asked_floor or seq in self.asked_deleted:
            return True
        if kind_of(number) == "gone":
            return seq < self.asked_purged_below
        return kind_of(number) == "ttl" and self.sent_at[number] + TTL_S < now + 0.1


class Filler(threading.Thread):
    """Publishes messages that stay, are purged, or expire."""

    def __init__(self, port: int, model: Removals) -> None:
        super().__init__()
        self.model = model
        self.connection = RawNats(port)

    def run(self) -> None:
        model, connection = self.model, self.connection
        try:
            connection.subscribe("_INBOX.pub.*", 1)
            in_flight = 0
            while True:
                while in_flight < REMOVAL_WINDOW:
                    number = len(model.sent_at) + 1
                    model.sent_at[number] = time.monotonic()
                    self._publish(number)
                    in_flight += 1
                message = connection.message()
                in_flight -= 1
                seq = _sequence_in(message.payload)
                model.acked_at[seq] = time.monotonic()
                model.acked[seq] = int(message.subject.rsplit(b".", 1)[1])
        except (OSError, ConnectionError):
            pass  # the server was killed, as it should be
        finally:
            connection.close()

    def _publish(self, number: int) -> None:
        kind = kind_of(number)
        header = b"NATS/1.0\r\nNats-TTL: %d\r\n\r\n" % TTL_S if kind == "ttl" else b""
        subject = f"kill.{kind} _INBOX.pub.{number}".encode()
        body = b"%d" % number + PADDING
        if header:
            self.connection.send(
                b"HPUB %s %d %d\r\n%s%s\r\n" % (subject, len(header), len(header) + len(body), header, body)
            )
        else:
            self.connection.send(b"PUB %s %d\r\n%s\r\n" % (subject, len(body), body))


class Remover(threading.Thread):
    """Deletes and purges behind the publisher, one confirmed removal after the other."""

    def __init__(self, port: int, model: Removals, rng: random.Random, *, from_front: bool) -> None:
        super().__init__()
        self.model = model
        self.rng = rng
        self.from_front = from_front
        self.rounds = 0
        self.connection = RawNats(port)

    def run(self) -> None:
        try:
            while True:
                for _ in range(3):
                    self._delete_one()
                self._purge_subject()
                if self.from_front:
                    self._purge_front()
                self.rounds += 1
        except (OSError, ConnectionError):
            pass
        finally:
            self.connection.close()

    def _ask(self, what: str, body: dict[str, object]) -> None:
        answer = self.connection.request(f"$JS.API.STREAM.{what}.{STREAM}", body)
        assert answer.get("success"), answer

    def _delete_one(self) -> None:
        model = self.model
        present = list(model.acked.copy().items())[-2000:]  # copied at once: the filler goes on meanwhile
        wanted = [seq for seq, n in present if kind_of(n) == "keep" and seq not in model.asked_deleted]
        # Not model.floor: a purge may be done although the kill took its answer.
        wanted = [seq for seq in wanted if seq >= model.asked_floor]
        if not wanted:
            self.connection.flush()
            return
        seq = self.rng.choice(wanted)
        model.asked_deleted.add(seq)
        self._ask("MSG.DELETE", {"seq": seq})
        model.deleted.add(seq)

    def _purge_subject(self) -> None:
        bound = max(self.model.acked.copy(), default=0)
        if bound:
            self.model.asked_purged_below = bound
            self._ask("PURGE", {"filter": "kill.gone", "seq": bound})
            self.model.purged_below = bound

    def _purge_front(self) -> None:
        bound = max(self.model.acked.copy(), default=0) - FRONT
        if bound > self.model.floor:
            self.model.asked_floor = bound
            self._ask("PURGE", {"seq": bound})
            self.model.floor = bound


def read_present(port: int) -> dict[int, int]:
    """sequence -> number of all messages there are."""
    found: dict[int, int] = {}
    for seq, message in stored_messages(port, STREAM):
        assert seq not in found and message.payload.endswith(PADDING)
        number = found[seq] = int(message.payload[: -len(PADDING)])
        assert message.subject == f"kill.{kind_of(number)}".encode()
    return found


ENCRYPTED = 'key: "a key of this test", cipher: aes'


@pytest.mark.parametrize("kind", ["plain", "encrypted and compressed"])
def test_what_was_removed_stays_removed_after_kill_9_and_all_else_is_there(
    kind: str, disk_path: Path
) -> None:
    served = Served(disk_path / "store", "" if kind == "plain" else ENCRYPTED)
    served.start()
    try:
        setup = RawNats(served.port)
        config = {"name": STREAM, "subjects": ["kill.*"], "storage": "file", "allow_msg_ttl": True}
        config["compression"] = "none" if kind == "plain" else "s2"
        answer = setup.request(f"$JS.API.STREAM.CREATE.{STREAM}", config)
        assert "error" not in answer, answer
        setup.close()
        rng = random.Random(int(os.environ.get("PENSTOCK_KILL_SEED", "20")))
        model, compacted = Removals(), False
        for kill in range(REMOVAL_KILLS):
            filler = Filler(served.port, model)
            remover = Remover(served.port, model, rng, from_front=kill >= REMOVAL_KILLS // 2)
            filler.start()
            remover.start()
            _let_both_get_going(filler, remover)
            time.sleep(rng.uniform(0.0, 0.4))
            served.kill()
            filler.join()
            remover.join()
            served.start()
            _check_removals(served.port, model, kill)
            compacted |= _has_a_compacted_block(served.store_dir)
        assert len(model.deleted) >= REMOVAL_KILLS, "the deletes never got going"
        assert model.purged_below and model.floor, "the purges never got going"
        assert compacted, "no block was compacted: too little was published"
    finally:
        if served.process is not None and served.process.poll() is None:
            served.kill()


def _let_both_get_going(filler: Filler, remover: Remover) -> None:
    """Until a block's worth was published and something removed, however busy the machine is."""
    deadline = time.monotonic() + 10
    wanted = len(filler.model.acked) + FRONT
    while time.monotonic() < deadline and (remover.rounds < 2 or len(filler.model.acked) < wanted):
        time.sleep(0.01)


def _check_removals(port: int, model: Removals, kill: int) -> None:
    before = time.monotonic()
    found = read_present(port)
    after = time.monotonic()
    numbers = [found[seq] for seq in sorted(found)]
    assert numbers == sorted(set(numbers)), f"kill {kill}: out of order or twice"
    back = [seq for seq, number in found.items() if model.must_be_gone(seq, number, before)]
    assert not back, f"kill {kill}: removed and there again: {[(s, kind_of(found[s])) for s in back[:5]]}"
    lost = [
        seq
        for seq, number in model.acked.items()
        if found.get(seq) != number and not model.may_be_gone(seq, number, after)
    ]
    assert not lost, f"kill {kill}: acked and lost: {[(s, kind_of(model.acked[s])) for s in lost[:5]]}"
    connection = RawNats(port)
    asked = {"subjects_filter": "kill.keep"}
    state = connection.request(f"$JS.API.STREAM.INFO.{STREAM}", asked)["state"]
    connection.close()
    kept = sum(kind_of(number) == "keep" for number in numbers)
    assert state.get("subjects", {}).get("kill.keep", 0) == kept, f"kill {kill}: {state}, {kept} read"


def _has_a_compacted_block(store_dir: Path) -> bool:
    """Is a closed block smaller than a block is when it is closed? Compressed ones always are."""
    blocks = sorted(store_dir.glob("**/*.blk"), key=lambda path: int(path.stem))
    return any(path.stat().st_size < DEFAULT_BLOCK_SIZE // 2 for path in blocks[:-1])
