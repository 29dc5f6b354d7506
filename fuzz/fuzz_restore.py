"""Fuzzes archives of streams: `python fuzz/fuzz_restore.py -max_total_time=60`.

The first byte says what an input is: bytes as they come, the content of an S2 stream, or the parts of an
archive (state, consumer, messages) that are put together; and into what pieces they are cut. Whatever it is:
no exception escapes, each chunk and the end are answered, and the engine starts again on what it stored.
"""

from __future__ import annotations

import json
import time

import instrumented  # noqa: F401  # before everything of penstock
from mutations import mutate
from seeded import fuzz

from penstock import faults
from penstock.kernels.wire.dispatch import publish
from penstock.protocol import snapshot_archive
from penstock.protocol.s2_stream import IDENTIFIER
from tests.support.engine import EngineHarness
from tests.support.file_probes import ARCHIVES, archived, entry, packed

RAW, PLAIN, STATE, CONSUMER, MESSAGES = range(5)
KINDS = 5
INPUTS_PER_RESTART = 50
TICKS_MAX = 2_000
SLOW_S = 5.0
SECOND = 1_000_000_000
STATE_JSON = b'{"messages":2,"bytes":100,"first_seq":1,"last_seq":2,"consumer_count":1}'
CONSUMER_JSON = (
    b'{"config":{"durable_name":"c","name":"c","ack_policy":"explicit"},"state":{"delivered":'
    b'{"consumer_seq":1,"stream_seq":1},"ack_floor":{"consumer_seq":0,"stream_seq":0},'
    b'"pending":{"1":{"Sequence":1,"Timestamp":1}},"redelivered":{"1":1}}}'
)
TWO = entry("h.a", b"x", 1, 1) + entry("h.b", b"y", 2, 2, b"NATS/1.0\r\nA: b\r\n\r\n")


def made(kind: int, rest: bytes) -> bytes:
    """The archive of an input."""
    if kind == RAW:
        return IDENTIFIER + rest
    if kind == PLAIN:
        return packed(rest)
    if kind == STATE:
        return packed(archived(rest, entry("consumers/c", CONSUMER_JSON), TWO, snapshot_archive.END))
    if kind == CONSUMER:
        return packed(archived(STATE_JSON, entry("consumers/c", rest), TWO, snapshot_archive.END))
    return packed(archived(STATE_JSON, entry("consumers/c", CONSUMER_JSON), rest, snapshot_archive.END))


def fail(where: str, error: BaseException) -> None:
    """A fault was contained, but our code should not have raised it."""
    raise AssertionError(f"contained, but raised: {where}: {error!r}") from error


class Fuzzer:
    """Inputs, one after the other, on engines that start again now and then."""

    def __init__(self) -> None:
        self.inputs = 0
        self.engine = EngineHarness()

    def __call__(self, data: bytes) -> None:
        if len(data) < 2:
            return
        self.inputs += 1
        if self.inputs % INPUTS_PER_RESTART == 0:
            self.engine = self.engine.restart()
        start = time.thread_time()
        self.restore(made(data[0] % KINDS, data[2:]), 1 + data[1] ** 2)
        if (took := time.thread_time() - start) > SLOW_S:
            raise AssertionError(f"it took {took:.1f} s")

    def restore(self, chunks: bytes, size: int) -> None:
        """Sends an archive in pieces of this size, at most a thousand."""
        harness = self.engine
        harness.api("STREAM.DELETE.H")
        config = {"name": "H", "subjects": ["h.>"], "storage": "memory"}
        begun = harness.api("STREAM.RESTORE.H", {"config": config, "state": {}})
        if "deliver_subject" not in begun:
            raise AssertionError(f"a restore was refused: {begun}")
        size = max(size, len(chunks) // 1000)
        subject, answers = begun["deliver_subject"].encode(), harness.listen(b"answer")
        for at in range(0, len(chunks), size):
            publish(harness.index, subject, b"answer", b"", chunks[at : at + size])
            harness.tick()
        publish(harness.index, subject, b"answer", b"", b"")
        for _ in range(TICKS_MAX):
            harness.tick()
            if answers and answers[-1][2]:
                break
        else:
            harness.wait_until(harness.now + 10 * SECOND)
        answer = json.loads(answers[-1][2])
        if ("error" in answer) == ("error" not in harness.api("STREAM.INFO.H")):
            raise AssertionError(f"the restore said {answer}, but the stream says otherwise")


SEEDS = [
    bytes([PLAIN, 200])
    + archived(STATE_JSON, entry("consumers/c", CONSUMER_JSON), TWO, snapshot_archive.END),
    bytes([STATE, 200]) + STATE_JSON,
    bytes([CONSUMER, 200]) + CONSUMER_JSON,
    bytes([MESSAGES, 200]) + TWO,
    *(bytes([RAW, 200]) + make(600)[len(IDENTIFIER) :] for make in ARCHIVES.values()),
]

if __name__ == "__main__":
    with faults.watch(fail):
        fuzz(SEEDS, Fuzzer(), mutate)
