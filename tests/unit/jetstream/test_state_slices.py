"""The state of a replicated stream, taken in slices while entries are applied."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import MalformedCommandError
from penstock.jetstream.replicated_stream import ReplicatedStream
from penstock.jetstream.stream import replica_state
from penstock.jetstream.stream.replica_state import TakenState, decode_state, has_name, manifest_name
from penstock.testing.sim.following_replica import messages_of, state_of
from tests.support.engine import EngineHarness
from tests.support.examples import examples
from tests.support.replicated_engines import EngineGroup, EnginePort, ReplicatedEngines

CHUNK_SEQS = 4


class Holder:
    """Takes states, and keeps their chunks."""

    def __init__(self, replica: ReplicatedStream) -> None:
        self.replica = replica
        self.chunks: dict[bytes, bytes] = {}
        self.kept = 0

    def keep(self, name: bytes, parts: list[bytes]) -> None:
        self.kept += 1
        self.chunks[name] = b"".join(parts)

    def steps(self) -> Generator[int, None, TakenState]:
        return self.replica.state_slices(self.chunks.__contains__, self.keep, CHUNK_SEQS)

    def take(self) -> TakenState:
        steps = self.steps()
        while True:
            try:
                assert next(steps) > 0
            except StopIteration as end:
                taken: TakenState = end.value
                return taken

    def restored(self, taken: TakenState) -> ReplicatedStream:
        js = EngineHarness()
        port = EnginePort(EngineGroup(), 1)
        return js.engine.replicated.restore(
            taken.manifest, self.chunks.__getitem__, taken.index, taken.term, port
        )


def stream_with(count: int) -> tuple[ReplicatedEngines, Holder]:
    js = ReplicatedEngines(1)
    js.open("S", "s.>")
    for i in range(count):
        js.publish(b"s.%d" % (i % 3), b"%d" % i)
    js.settle()
    return js, Holder(js.replicas["S"][0])


def act(js: ReplicatedEngines, what: int) -> None:
    """Publishes, or removes something."""
    if what < 40:
        js.publish(b"s.%d" % (what % 3), b"%d" % what)
    elif what < 90:
        js.publish(b"$JS.API.STREAM.MSG.DELETE.S", b'{"seq": %d}' % (what - 39))
    elif what < 99:
        js.publish(b"$JS.API.STREAM.PURGE.S", b'{"filter": "s.%d"}' % (what % 3))
    else:
        js.publish(b"$JS.API.STREAM.PURGE.S", b"")
    js.settle()


@given(st.lists(st.integers(0, 99), max_size=30), st.integers(0, 30))
@settings(max_examples=examples(50))
def test_a_state_taken_while_entries_are_applied_is_that_of_its_index(does: list[int], count: int) -> None:
    js, holder = stream_with(count)
    for _ in range(2):
        seen = {holder.replica.applied_index: state_of(holder.replica.stream)}
        steps = holder.steps()
        todo = iter(does)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                taken: TakenState = end.value
                break
            if (what := next(todo, None)) is not None:
                act(js, what)
                seen[holder.replica.applied_index] = state_of(holder.replica.stream)
        again = holder.restored(taken)
        assert again.applied_index == taken.index
        assert state_of(again.stream) == seen[taken.index]


def test_only_chunks_that_changed_are_read_again() -> None:
    js, holder = stream_with(30)
    holder.take()
    assert holder.kept == 8
    act(js, 39 + 5)  # removes message 5, in the second chunk
    act(js, 0)  # and the last chunk gets one more
    holder.take()
    assert holder.kept == 10


def test_a_replica_that_was_restored_knows_its_chunks() -> None:
    _, holder = stream_with(30)
    other = Holder(holder.restored(holder.take()))
    other.chunks.update(holder.chunks)
    taken = other.take()
    assert other.kept == 0
    assert decode_state(taken.manifest).chunks == decode_state(holder.take().manifest).chunks


def test_a_chunk_whose_messages_changed_has_another_name_whatever_the_checksum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Collides:
        def update(self, data: bytes) -> None: ...

        def digest(self) -> int:
            return 7

    monkeypatch.setattr(replica_state, "StreamedHash", Collides)
    js, holder = stream_with(2)
    names = [holder.take().files]
    for what in (39 + 1, 0, 1, 39 + 3):  # removes one, appends two, removes one
        act(js, what)
        names.append(holder.take().files)
    assert len({tuple(one) for one in names}) == 5


def test_a_chunk_with_one_other_bit_is_refused() -> None:
    _, holder = stream_with(3)
    taken = holder.take()
    [name] = taken.files
    for at in range(8 * len(holder.chunks[name])):
        bits = int.from_bytes(holder.chunks[name], "little") ^ 1 << at
        damaged = bits.to_bytes(len(holder.chunks[name]), "little")
        assert not has_name(name, [damaged])
    assert has_name(name, [holder.chunks[name][:5], holder.chunks[name][5:]])
    assert not has_name(name[:-1], [holder.chunks[name]])
    holder.chunks[name] = damaged
    with pytest.raises(MalformedCommandError, match="has other bytes"):
        holder.restored(taken)


def test_a_state_whose_chunks_are_named_by_hashes_is_restored() -> None:
    _, holder = stream_with(30)
    taken = holder.take()
    hashed = {manifest_name(chunk): chunk for chunk in holder.chunks.values()}
    renamed = {name: manifest_name(chunk) for name, chunk in holder.chunks.items()}
    chunks = [renamed[name] for name in taken.files]
    earlier = msgspec.structs.replace(
        decode_state(taken.manifest), version=replica_state.HASHED_VERSION, chunks=chunks
    )
    holder.chunks = hashed
    other = Holder(holder.restored(msgspec.structs.replace(taken, manifest=msgspec.msgpack.encode(earlier))))
    assert state_of(other.replica.stream) == state_of(holder.replica.stream)
    other.chunks = hashed
    assert other.take().files == [*chunks[:7], taken.files[7]]  # whole chunks are not read again


def test_a_chunk_that_the_holder_lost_is_read_again() -> None:
    _, holder = stream_with(30)
    first = holder.take()
    holder.chunks.clear()
    second = holder.take()
    assert first.manifest == second.manifest
    assert messages_of(holder.restored(second).stream) == messages_of(holder.replica.stream)


def test_a_state_is_begun_again_when_too_much_is_removed_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_state, "KEPT_BYTES_MAX", 20)
    js, holder = stream_with(40)
    steps = holder.steps()
    next(steps)
    for seq in range(10, 20):
        act(js, 39 + seq)
    taken: Any = None
    while taken is None:
        try:
            next(steps)
        except StopIteration as end:
            taken = end.value
    assert taken.index == holder.replica.applied_index
    assert messages_of(holder.restored(taken).stream) == messages_of(holder.replica.stream)


def test_a_large_chunk_is_read_in_parts() -> None:
    js = ReplicatedEngines(1)
    js.open("S", "s.>")
    for _ in range(4):
        js.publish(b"s.1", bytes(600_000))
    js.settle()
    holder = Holder(js.replicas["S"][0])
    work = list(holder.steps())
    assert max(work) < 2_000_000
    assert len(work) > 4


def test_a_state_is_restored_in_slices_and_shows_only_when_it_is_whole() -> None:
    js, holder = stream_with(40)
    taken = holder.take()
    other = EngineHarness()
    state = decode_state(taken.manifest)
    assert state.chunks == taken.files
    slices = other.engine.replicated.restore_slices(
        state, holder.chunks.__getitem__, taken.index, taken.term, EnginePort(EngineGroup(), 1)
    )
    steps = 0
    while True:
        try:
            assert next(slices) > 0
        except StopIteration as end:
            replica: ReplicatedStream = end.value
            break
        steps += 1
        assert other.engine.streams == {}
    assert steps >= 40 // CHUNK_SEQS
    assert state_of(replica.stream) == state_of(js.replicas["S"][0].stream)


def test_a_restore_that_is_given_up_leaves_nothing() -> None:
    _, holder = stream_with(40)
    taken = holder.take()
    other = EngineHarness()
    port = EnginePort(EngineGroup(), 1)
    state = decode_state(taken.manifest)
    for _ in range(2):
        slices = other.engine.replicated.restore_slices(state, holder.chunks.__getitem__, 1, 1, port)
        next(slices)
        slices.close()
        assert other.store.stream_names() == []
