"""The state of a replicated stream as values: for checkpoints, and for replicas that have fallen behind.

Messages are cut into chunks by their sequences, CHUNK_SEQS to a chunk. A chunk has the live messages of its
range, equal on all replicas, however their files are laid out, because it has what decision 0023 says
replicas have in common. Its name says which messages these are. Message ids have chunks of their own
(id_chunks.py). The manifest has the names of the chunks, and the rest of the state: timers, staged and fast
batches, consumers. So a checkpoint writes only chunks that changed since the one before, and a replica that
catches up fetches only those that it does not have.

The name of a chunk: its first sequence, how many of its sequences are used, how many messages are left, and a
checksum. A sequence is never used again and a message never changes, so the first three determine the
content, whatever the publishers send. The checksum finds damaged bytes and replicas that differ.

Invariant: a replica that is restored from a state behaves like the one that it was taken from.

Rejected: copies of block files (where blocks begin, and what of them is compacted or compressed, differs
between servers); chunks of equal size (one removed message would change all that follow); a cryptographic
hash as name (it cost as much as all other work on a checkpoint together).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from hashlib import blake2b
from struct import Struct as Layout
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from penstock.errors import MalformedCommandError
from penstock.jetstream.commands import LimitBatches, StandbyStates
from penstock.jetstream.stream.atomic_batches import STAGED_BYTES_MAX
from penstock.jetstream.stream.id_chunks import IdChunkNames, restore_ids, take_ids
from penstock.kernels.ingest.publish_headers import MessageIds
from penstock.kernels.log.records import StreamedHash
from penstock.kernels.log.state_chunks import StateReader, unpack_chunk
from penstock.protocol.api import ApiError, ApiStreamConfig, encode

if TYPE_CHECKING:
    from penstock.jetstream.stream.stream_replica import StreamReplica

STATE_VERSION = 3
LISTED_VERSION = 2
"""Its message ids are in the manifest."""
HASHED_VERSION = 1
"""Its chunks are named by a hash, as manifests are. Names of both kinds may be in one state."""
CHUNK_SEQS = 256
HASH_SIZE = 16
CHUNK_NAME = Layout(">QIIQ")
"""First sequence, used sequences, live messages, checksum (XXH64) of the bytes."""

PART_BYTES = 256 * 1024  # of a chunk that are read in a step
CHUNK_WORK = 512  # of a chunk that is passed by: about a microsecond
SMALL_WORK = 64 * 1024
KEPT_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of messages that are removed while a state is taken; above, it is begun again."""


class ReplicaState(Struct, frozen=True, array_like=True):
    """The manifest. chunks: their names, b"" for one without messages; the first one begins at sequence
    `from_seq`, and each covers `chunk_seqs`. ids: those of older versions, the id of the last message, and
    the time up to which ids are forgotten. id_chunks: the names of theirs; ids below ids_from are none of the
    state. Times are ns."""

    version: int
    config: bytes
    created: int
    now: int
    from_seq: int
    chunk_seqs: int
    last_seq: int
    last_ts: int
    chunks: list[bytes]
    ids: tuple[list[tuple[bytes, int, int]], bytes, int]
    refuse_all: ApiError | None
    bytes_end: int | None
    batch_limits: LimitBatches
    staged: list[tuple[bytes, int, int, list[tuple[bytes, bytes, bytes]]]]
    staged_until: int
    fast: tuple[list[tuple[bytes, bytes, bytes, int, bool, int, int, int, int, int, bytes | None]], list[int]]
    fast_until: int
    schedules: list[tuple[bytes, int, int]]
    ttls: tuple[bool, list[int], list[tuple[int, int]], list[int], list[tuple[int, int]]]
    is_behind: bool
    retains_all: bool
    sources: list[tuple[str, int, str]]
    sources_left: list[tuple[str, int, str]]
    consumers: list[tuple[bytes, bytes, str, int]]
    state_hash: bytes
    id_chunks: list[bytes] = []
    ids_from: int = 0

    @property
    def files(self) -> list[bytes]:
        """The names of all its chunks, in the order in which a replica is restored from them."""
        return [name for name in (*self.chunks, *self.id_chunks) if name]


_encoder = msgspec.msgpack.Encoder()


class TakenState(Struct, frozen=True, eq=False):
    """A state: that after entry `index` of `term`. files: see ReplicaState."""

    index: int
    term: int
    manifest: bytes
    files: list[bytes]


class ChunkNames:
    """Names of chunks that were read before. Sequences are never used again, so that a chunk whose sequences
    are all used only loses messages: it is the same as long as it has as many of them."""

    def __init__(self) -> None:
        self._by_start: dict[int, tuple[int, bytes]] = {}
        self.ids = IdChunkNames()

    def find(self, start: int, count: int) -> bytes | None:
        """The name of the chunk from sequence `start` on with `count` messages; None when it is not known."""
        known = self._by_start.get(start)
        return known[1] if known is not None and known[0] == count else None

    def note(self, start: int, count: int, name: bytes) -> None:
        """A whole chunk has been read."""
        self._by_start[start] = (count, name)

    def drop_below(self, start: int) -> None:
        """The stream begins at `start` now."""
        while self._by_start and (first := next(iter(self._by_start))) < start:
            del self._by_start[first]


Keep = Callable[[bytes, list[bytes]], object]
"""Stores a chunk: its name, and its bytes in parts."""


def take_slices(
    stream: StreamReplica,
    standby: StandbyStates,
    position: Callable[[], tuple[int, int, bytes]],
    names: ChunkNames,
    has: Callable[[bytes], bool],
    keep: Keep,
    chunk_seqs: int = CHUNK_SEQS,
) -> Generator[int, None, TakenState]:
    """Takes the state while the stream goes on applying commands; yields work (of slices.py).

    position: index and term of the last entry that was applied, and the hash (state_hash.py). names: from the
    last call. has: whether the chunk of a name is kept already. chunk_seqs: the same on all replicas. Begins
    again when commands remove messages faster than it reads: chunks that it has read are not read again.
    """
    while True:
        index, term, state_hash = position()
        reader = StateReader(stream.log, chunk_seqs)
        try:
            state = _begin_state(stream, standby, reader.seq, chunk_seqs, state_hash)
            names.drop_below(reader.seq)
            # First: the oldest ids may expire with the next command.
            id_chunks = yield from take_ids(
                stream.ids, state.last_seq, chunk_seqs, CHUNK_NAME, names.ids, has, keep
            )
            yield SMALL_WORK
            chunks = None
            if id_chunks is not None:
                chunks = yield from _take_chunks(reader, names, has, keep)
        finally:
            reader.close()
        if chunks is not None and id_chunks is not None:
            whole = msgspec.structs.replace(state, chunks=chunks, id_chunks=id_chunks)
            return TakenState(index, term, _encoder.encode(whole), whole.files)


def _take_chunks(
    reader: StateReader, names: ChunkNames, has: Callable[[bytes], bool], keep: Keep
) -> Generator[int, None, list[bytes] | None]:
    """Returns the names of the chunks; None when messages are gone that it should have read."""
    found: list[bytes] = []
    while reader.seq <= reader.last_seq:
        start, count, is_whole = reader.seq, reader.count(), reader.chunk_end <= reader.last_seq
        known = names.find(start, count) if count and is_whole else None
        if known is not None and has(known):
            reader.skip()
            found.append(known)
            yield CHUNK_WORK
        else:
            name, parts = yield from _read_chunk(reader, count)
            if name and not has(name):
                keep(name, parts)
            if name and is_whole and not reader.is_lost:
                names.note(start, count, name)
            found.append(name)
        if reader.is_lost or reader.kept_bytes > KEPT_BYTES_MAX:
            return None
    return found


def _read_chunk(reader: StateReader, count: int) -> Generator[int, None, tuple[bytes, list[bytes]]]:
    """The name of the chunk at the reader's position, b"" without messages, and its parts. count: of its
    messages."""
    start = reader.seq
    used = min(reader.chunk_end, reader.last_seq) - start + 1
    parts: list[bytes] = []
    checksum = StreamedHash()
    is_done = False
    while not is_done:
        part, is_done = reader.read(PART_BYTES)
        if part:
            checksum.update(part)
            parts.append(part)
        yield CHUNK_WORK + len(part) // 6
    return (CHUNK_NAME.pack(start, used, count, checksum.digest()) if parts else b""), parts


def manifest_name(manifest: bytes) -> bytes:
    """The name of a manifest: the hash of its bytes."""
    return blake2b(manifest, digest_size=HASH_SIZE).digest()


def has_name(name: bytes, parts: Iterable[bytes]) -> bool:
    """Whether these bytes belong to the name of a manifest or a chunk."""
    if len(name) == HASH_SIZE:
        digest = blake2b(digest_size=HASH_SIZE)
        for part in parts:
            digest.update(part)
        return digest.digest() == name
    if len(name) != CHUNK_NAME.size:
        return False
    checksum = StreamedHash()
    for part in parts:
        checksum.update(part)
    return bool(checksum.digest() == CHUNK_NAME.unpack(name)[3])


def take_state(
    stream: StreamReplica, standby: StandbyStates, chunk_seqs: int = CHUNK_SEQS, state_hash: bytes = b""
) -> tuple[bytes, dict[bytes, bytes]]:
    """The manifest of the present state, and its chunks by name, at once. chunk_seqs: see take_slices()."""
    chunks: dict[bytes, bytes] = {}

    def keep(name: bytes, parts: list[bytes]) -> None:
        chunks[name] = b"".join(parts)

    steps = take_slices(
        stream, standby, lambda: (0, 0, state_hash), ChunkNames(), chunks.__contains__, keep, chunk_seqs
    )
    while True:
        try:
            next(steps)
        except StopIteration as end:
            taken: TakenState = end.value
            return taken.manifest, chunks


def _begin_state(
    stream: StreamReplica, standby: StandbyStates, from_seq: int, chunk_seqs: int, state_hash: bytes
) -> ReplicaState:
    """Everything but the chunks."""
    log = stream.log
    return ReplicaState(
        version=STATE_VERSION,
        config=encode(stream.config),
        created=stream.created,
        now=stream.now,
        from_seq=from_seq,
        chunk_seqs=chunk_seqs,
        last_seq=log.last_seq,
        last_ts=log.last_ts,
        chunks=[],
        ids=([], *stream.ids.dump_rest()),
        refuse_all=stream.refuse_all,
        bytes_end=stream.bytes_end,
        batch_limits=stream.batch_limits,
        staged=[(one.id, one.seq, one.heard_ns, one.messages()) for one in stream.atomic.staged.all()],
        staged_until=stream.atomic.staged.check_at,
        fast=stream.fast.dump(),
        fast_until=stream.fast.next_deadline() or 0,
        schedules=stream.schedules.dump(),
        ttls=stream.expiry.ttls.dump(),
        is_behind=stream.timers.is_behind,
        retains_all=stream.retains_all,
        # The position of a mirror is the stream's last sequence.
        sources=[(one.index_name, one.seq, one.ident) for one in stream.sources.states],
        sources_left=stream.sources.left,
        consumers=standby.dump(),
        state_hash=state_hash,
        ids_from=stream.ids.seq_at(stream.ids.ends[0]) or 0,
    )


def decode_state(manifest: bytes) -> ReplicaState:
    """Raises MalformedCommandError."""
    try:
        state = msgspec.msgpack.decode(manifest, type=ReplicaState)
    except (msgspec.DecodeError, ValueError) as error:
        raise MalformedCommandError(f"a manifest that cannot be read: {error}") from error
    if state.version not in (STATE_VERSION, LISTED_VERSION, HASHED_VERSION):
        raise MalformedCommandError(
            f"a manifest of version {state.version}: unknown here, a newer server may know it"
        )
    return state


def config_of(state: ReplicaState) -> ApiStreamConfig:
    """The configuration. Raises MalformedCommandError."""
    try:
        return msgspec.json.decode(state.config, type=ApiStreamConfig)
    except msgspec.DecodeError as error:
        raise MalformedCommandError(f"a configuration that cannot be read: {error}") from error


def restore_slices(
    stream: StreamReplica,
    standby: StandbyStates,
    state: ReplicaState,
    chunk_of: Callable[[bytes], bytes],
    names: ChunkNames,
) -> Generator[int, None, None]:
    """Brings a new stream into a state; yields work (of slices.py). chunk_of: the bytes of a chunk, asked for
    in the order of `state.files`. names: notes the chunks.

    Raises MalformedCommandError when a chunk is not what its name says, or the state is none; the stream is
    of no use then.
    """
    try:
        yield from _restore_messages(stream, state, chunk_of, names)
        ids = MessageIds(stream.config.duplicate_window)
        for chunk in state.id_chunks:
            yield from restore_ids(ids, _checked(chunk, chunk_of(chunk), stream), state.ids_from)
        ids.load(*state.ids)
        _restore_rest(stream, state, ids)
        for one in state.consumers:
            name, filters = standby.restore_consumer(*one)
            if stream.interest_state is not None:
                stream.interest_state.expect(name, filters)
    except (ValueError, KeyError, msgspec.DecodeError) as error:
        if isinstance(error, MalformedCommandError):
            raise
        raise MalformedCommandError(f"the state of stream {stream.name} cannot be read: {error!r}") from error


def _restore_messages(
    stream: StreamReplica, state: ReplicaState, chunk_of: Callable[[bytes], bytes], names: ChunkNames
) -> Generator[int, None, None]:
    log = stream.log
    for at, name in enumerate(state.chunks):
        if not name:
            continue
        chunk = _checked(name, chunk_of(name), stream)
        start, before, offset = state.from_seq + at * state.chunk_seqs, log.messages, 0
        while offset < len(chunk):
            offset = unpack_chunk(log, chunk, offset, PART_BYTES)
            yield CHUNK_WORK + 4 * min(PART_BYTES, len(chunk))
        if start + state.chunk_seqs - 1 <= state.last_seq:
            names.note(start, log.messages - before, name)
    if state.last_seq > log.last_seq:
        log.skip_to(state.last_seq, state.last_ts)


def _checked(name: bytes, chunk: bytes, stream: StreamReplica) -> bytes:
    if not has_name(name, [chunk]):
        raise MalformedCommandError(f"chunk {name.hex()} of stream {stream.name} has other bytes")
    return chunk


def _restore_rest(stream: StreamReplica, state: ReplicaState, ids: MessageIds) -> None:
    stream.restore(ids, state.now, state.refuse_all, state.bytes_end, state.batch_limits)
    stream.atomic.restore(state.staged, state.staged_until, STAGED_BYTES_MAX)
    stream.fast.restore(state.fast, state.fast_until)
    stream.schedules.restore(state.schedules)
    stream.expiry.ttls.restore(state.ttls)
    stream.timers.restore(is_behind=state.is_behind)
    stream.retain_messages(state.retains_all)
    stream.sources.restore_left(state.sources_left)
    for source, seq, ident in state.sources:
        for one in stream.sources.states:
            if one.index_name == source:
                one.place(seq, ident)
