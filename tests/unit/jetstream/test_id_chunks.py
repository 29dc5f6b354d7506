"""The message ids of a replicated stream's state, in chunks, read while ids come and expire."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.jetstream.stream import id_chunks, replica_state
from penstock.jetstream.stream.id_chunks import IdChunkNames, restore_ids, take_ids
from penstock.jetstream.stream.replica_state import CHUNK_NAME, decode_state, has_name, take_state
from penstock.kernels.ingest.publish_headers import MessageIds
from penstock.testing.sim.following_replica import state_of
from tests.support.engine import EngineHarness
from tests.support.examples import examples
from tests.support.replicated_engines import EngineGroup, EnginePort, ReplicatedEngines

pytestmark = [pytest.mark.feature("stream.deduplication"), pytest.mark.feature("cluster.raft")]

WINDOW = 1000
CHUNK_SEQS = 1  # 16 sequences to a chunk of ids


@dataclass
class Window:
    """A dedupe window, and what is kept of it."""

    ids: MessageIds = field(default_factory=lambda: MessageIds(WINDOW))
    names: IdChunkNames = field(default_factory=IdChunkNames)
    kept: dict[bytes, bytes] = field(default_factory=dict)
    seq: int = 0
    now: int = 0
    written: int = 0

    def add(self, *, gap: int = 1, size: int = 8) -> None:
        self.seq += gap
        self.ids.add(b"%d" % self.seq + b"-" * size, self.seq, self.now)

    def expire(self, time: int) -> None:
        self.now += time
        self.ids.prune(self.now)

    def keep(self, name: bytes, parts: list[bytes]) -> None:
        self.written += 1
        self.kept[name] = b"".join(parts)
        assert has_name(name, parts)

    def steps(self) -> Generator[int, None, list[bytes] | None]:
        return take_ids(
            self.ids, self.seq, CHUNK_SEQS, CHUNK_NAME, self.names, self.kept.__contains__, self.keep
        )

    def take(self) -> list[bytes]:
        taken = ended(self.steps())
        assert taken is not None
        return taken

    def restored(self, names: list[bytes], from_seq: int) -> list[tuple[bytes, int, int]]:
        ids = MessageIds(WINDOW)
        for name in names:
            for work in restore_ids(ids, self.kept[name], from_seq):
                assert work > 0
        return ids.items()


def ended(steps: Generator[int, None, Any]) -> Any:
    while True:
        try:
            assert next(steps) > 0
        except StopIteration as end:
            return end.value


BUSY: Any = object()


def advance(steps: Generator[int, None, Any]) -> Any:
    try:
        next(steps)
    except StopIteration as end:
        return end.value
    return BUSY


does = st.lists(st.tuples(st.sampled_from(["add", "expire", "take"]), st.integers(1, 40)), max_size=40)


@settings(max_examples=examples(200))
@given(does, st.booleans())
def test_what_is_restored_is_what_there_was_at_the_first_step(
    does: list[tuple[str, int]], overtakes: bool
) -> None:
    window = Window()
    running: Generator[int, None, list[bytes] | None] | None = None
    before: list[tuple[bytes, int, int]] = []
    for what, number in [*does, *[("take", 1)] * 40]:
        if what == "add":
            for _ in range(number):
                window.add(gap=1 + number % 3)
                window.now += 1
        elif what == "expire":
            if overtakes or running is None:
                window.expire(number * 20)
        else:
            if running is None:
                before, oldest = window.ids.items(), window.ids.ends[0]
                from_seq = window.ids.seq_at(oldest) or 0
                running = window.steps()
            taken = advance(running)
            if taken is not BUSY:
                running = None
                assert taken is not None or overtakes
                assert taken is None or window.restored(taken, from_seq) == before


def test_only_chunks_that_changed_are_written_again() -> None:
    window = Window()
    for _ in range(100):
        window.add()
    first = window.take()
    assert (len(first), window.written) == (7, 7)
    for _ in range(10):
        window.add()
    second = window.take()
    assert second[:6] == first[:6]
    assert window.written == 8
    window.take()
    assert window.written == 8


def test_expired_ids_of_a_known_chunk_are_not_restored() -> None:
    window = Window()
    for _ in range(40):
        window.add()
        window.now += 10
    window.take()
    window.expire(WINDOW - 200)
    from_seq = window.ids.seq_at(window.ids.ends[0])
    assert from_seq == 21 or from_seq is not None
    taken = window.take()
    assert window.written == 3
    assert window.restored(taken, from_seq) == window.ids.items()


def test_another_window_is_read_from_its_start() -> None:
    window = Window()
    for _ in range(40):
        window.add()
    window.take()
    window.ids = MessageIds(WINDOW)
    for _ in range(40):
        window.add()
    taken = window.take()
    assert window.restored(taken, 41) == window.ids.items()


def test_a_chunk_that_the_holder_lost_is_read_again() -> None:
    window = Window()
    for _ in range(40):
        window.add()
    first = window.take()
    window.kept.clear()
    assert window.take() == first
    assert sorted(window.kept) == sorted(first)


def test_reading_that_is_overtaken_says_so() -> None:
    window = Window()
    for _ in range(100):
        window.add()
    steps = window.steps()
    next(steps)
    window.expire(10 * WINDOW)
    assert ended(steps) is None


def test_the_oldest_ids_are_read_in_the_first_step() -> None:
    window = Window()
    for _ in range(20):
        window.add()
    steps = window.steps()
    next(steps)
    window.now += 1
    for _ in range(4):
        window.add()
    window.expire(WINDOW - 1)
    assert ended(steps) is None or len(window.ids) == 4


def test_long_ids_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_chunks, "PART_BYTES", 100)
    window = Window()
    for _ in range(32):
        window.add(size=90)
    before = window.ids.items()
    steps = window.steps()
    assert sum(1 for _ in steps) >= 32
    assert window.restored(window.take(), 0) == before


def test_bytes_that_are_no_ids_are_refused() -> None:
    window = Window()
    window.add()
    [name] = window.take()
    whole = window.kept[name]
    for cut in range(1, len(whole)):
        with pytest.raises(ValueError, match="message ids end in"):
            ended(restore_ids(MessageIds(WINDOW), whole[:cut], 0))
    with pytest.raises(ValueError, match="offset 99"):
        MessageIds(WINDOW).add_packed(b"", 99, 0, 10)


def replicated(count: int) -> ReplicatedEngines:
    js = ReplicatedEngines(1)
    js.open("S", "s.>", duplicate_window=120_000_000_000)
    for number in range(count):
        js.publish(b"s.1", b"x", b"", b"NATS/1.0\r\nNats-Msg-Id: %d\r\n\r\n" % number)
    js.settle()
    return js


def test_a_state_that_is_overtaken_is_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    js = replicated(100)
    replica = js.replicas["S"][0]
    begun: list[int] = []

    def overtaken(*args: Any) -> Generator[int, None, list[bytes] | None]:
        begun.append(1)
        if len(begun) == 1:
            yield 1
            return None
        return (yield from take_ids(*args))

    monkeypatch.setattr(replica_state, "take_ids", overtaken)
    manifest, chunks = take_state(replica.stream, replica.standby, 4)
    assert len(begun) == 2
    again = EngineHarness().engine.replicated.restore(
        manifest, chunks.__getitem__, 1, 1, EnginePort(EngineGroup(), 1)
    )
    assert state_of(again.stream) == state_of(replica.stream)


def test_a_state_with_the_ids_in_its_manifest_is_restored() -> None:
    replica = replicated(100).replicas["S"][0]
    manifest, chunks = take_state(replica.stream, replica.standby, 4)
    earlier = msgspec.structs.replace(
        decode_state(manifest), version=replica_state.LISTED_VERSION, ids=replica.stream.ids.dump(),
        id_chunks=[], ids_from=0,
    )  # fmt: skip
    again = EngineHarness().engine.replicated.restore(
        msgspec.msgpack.encode(earlier), chunks.__getitem__, 1, 1, EnginePort(EngineGroup(), 1)
    )
    assert state_of(again.stream) == state_of(replica.stream)
