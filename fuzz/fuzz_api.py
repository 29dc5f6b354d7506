"""Fuzzes the JetStream API: `python fuzz/fuzz_api.py -max_total_time=60`.

An input is up to eight requests, each a byte that chooses the endpoint and how the request comes (by a
client, from a stream that republishes, from a push consumer), then the body, cut at a form feed. After them
messages are published, time passes, and now and then the engine starts again on what it stored. Whatever it
is: no exception escapes, each request of a client is answered once in JSON, and the engine recovers.
"""

from __future__ import annotations

import json
import time

import instrumented  # noqa: F401  # before everything of penstock
from mutations import mutate
from seeded import fuzz

from penstock import faults
from penstock.kernels.wire.dispatch import publish
from tests.support.engine import EngineHarness
from tests.support.probes import BODILESS, CONSUMERS, STREAMS, TARGETS

INPUTS_PER_ENGINE = 200
INPUTS_PER_RESTART = 20
REQUESTS_MAX = 8
SLOW_S = 5.0  # of an input, with coverage; what is quadratic takes longer
SECOND = 1_000_000_000
ENDPOINTS = [
    *((f"{verbs}.{target.subject}".removesuffix("."), target.body) for verbs, target in TARGETS.items()),
    *((f"{verbs}.{args}".removesuffix("."), {}) for verbs, args in BODILESS.items()),
]
DIRECT, REPUBLISHED, DELIVERED = range(3)
WAYS = 3


def engine() -> EngineHarness:
    """An engine with streams and consumers, and two ways from a stream to the API."""
    harness = EngineHarness(domain="hub")
    for config in STREAMS:
        harness.api(f"STREAM.CREATE.{config['name']}", config)
    for config in CONSUMERS:
        harness.api(
            f"CONSUMER.DURABLE.CREATE.S.{config['durable_name']}", {"stream_name": "S", "config": config}
        )
    for subject in ("s.1", "s.2", "u.a"):
        harness.request(subject, b"x")
    return harness


def fail(where: str, error: BaseException) -> None:
    """A fault was contained, but our code should not have raised it."""
    raise AssertionError(f"contained, but raised: {where}: {error!r}") from error


class Fuzzer:
    """Inputs, one after the other, on engines that are replaced now and then."""

    def __init__(self) -> None:
        self.inputs = 0
        self.engine = engine()

    def __call__(self, data: bytes) -> None:
        self.inputs += 1
        if self.inputs % INPUTS_PER_ENGINE == 0:
            self.engine = engine()
        elif self.inputs % INPUTS_PER_RESTART == 0:
            self.engine = self.engine.restart()
        start = time.thread_time()
        for part in data.split(b"\f")[:REQUESTS_MAX]:
            if part:
                way, number = divmod(part[0], len(ENDPOINTS))
                self.request(way % WAYS, ENDPOINTS[number][0], part[1:])
        for subject in (b"h.a", b"s.1", b"u.a"):
            publish(self.engine.index, subject, b"", b"", b"x")
        self.engine.tick()
        self.engine.wait_until(self.engine.now + SECOND)
        if (took := time.thread_time() - start) > SLOW_S:
            raise AssertionError(f"it took {took:.1f} s")

    def request(self, way: int, subject: str, body: bytes) -> None:
        """One request, as it comes by this way."""
        harness = self.engine
        if way == DIRECT:
            self.check(subject, harness.messages("$JS.API." + subject, body))
            return
        name = "VIA"
        config = {"name": name, "subjects": ["via"], "storage": "memory"}
        if way == REPUBLISHED:
            config["republish"] = {"src": "via", "dest": "$JS.API." + subject}
        harness.api(f"STREAM.CREATE.{name}", config)
        if way == DELIVERED:
            consumer = {"durable_name": "via", "deliver_subject": "$JS.API." + subject}
            harness.api(f"CONSUMER.DURABLE.CREATE.{name}.via", {"stream_name": name, "config": consumer})
        publish(harness.index, b"via", b"", b"", body)
        harness.tick()
        harness.tick()
        harness.api(f"STREAM.DELETE.{name}")

    def check(self, subject: str, answers: list[tuple[bytes, bytes, bytes]]) -> None:
        """Pulls and direct gets answer with messages and statuses, the rest once with JSON."""
        if subject.startswith(("CONSUMER.MSG.NEXT", "DIRECT.GET")):
            return
        if len(answers) != 1:
            raise AssertionError(f"{subject} was answered {len(answers)} times")
        if "type" not in json.loads(answers[0][2]):
            raise AssertionError(f"{subject} was answered {answers[0]}")


SEEDS = [
    bytes([number + way * len(ENDPOINTS)]) + json.dumps(body).encode()
    for number, (_, body) in enumerate(ENDPOINTS)
    for way in range(WAYS)
]

if __name__ == "__main__":
    with faults.watch(fail):
        fuzz(SEEDS, Fuzzer(), mutate)
