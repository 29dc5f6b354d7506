"""The state of a replicated stream as values: for checkpoints, and for replicas that have fallen behind.

Messages are cut into chunks by their sequences, CHUNK_SEQS to a chunk. A chunk has the live messages of its
range, and is named by the hash of its bytes: equal on all replicas, however their files are laid out, because
it has what decision 0023 says replicas have in common. The manifest has the names of the chunks, and the rest
of the state: message ids, timers, staged and fast batches, consumers. So a checkpoint writes only chunks that
changed since the one before, and a replica that catches up fetches only those that it does not have.

Invariant: a replica that is restored from a state behaves like the one that it was taken from.

Rejected: copies of block files (where blocks begin, and what of them is compacted or compressed, differs
between servers); chunks of equal size (one removed message would change all that follow).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from penstock.errors import MalformedCommandError
from penstock.jetstream.commands import LimitBatches, StandbyStates
from penstock.jetstream.stream.atomic_batches import STAGED_BYTES_MAX
from penstock.kernels.ingest.publish_headers import MessageIds
from penstock.protocol.api import ApiError, ApiStreamConfig, encode

if TYPE_CHECKING:
    from penstock.jetstream.stream.stream_replica import StreamReplica

STATE_VERSION = 1
CHUNK_SEQS = 256
HASH_SIZE = 16

_MESSAGE = struct.Struct("<QqHII")  # sequence, time, lengths of subject, header block and payload


class ReplicaState(Struct, frozen=True, array_like=True):
    """The manifest. chunks: their hashes, b"" for one without messages; the first one begins at sequence
    `from_seq`. Times are ns."""

    version: int
    config: bytes
    created: int
    now: int
    from_seq: int
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
    consumers: list[tuple[bytes, bytes, str, int]]


_decoder = msgspec.msgpack.Decoder(ReplicaState)
_encoder = msgspec.msgpack.Encoder()


def chunks_of(stream: StreamReplica, chunk_seqs: int) -> Iterator[bytes]:
    """The chunks from the one with the first message on; b"" for one without messages. chunk_seqs: how many
    sequences each covers."""
    log = stream.log
    for start in range(_first_start(stream, chunk_seqs), log.last_seq + 1, chunk_seqs):
        parts: list[bytes] = []
        end = min(start + chunk_seqs - 1, log.last_seq)
        seq = log.next_seq(start)
        while seq and seq <= end:
            one = log.load(seq)
            if one is not None:
                head = _MESSAGE.pack(seq, one.ts, len(one.subject), len(one.header), len(one.payload))
                parts += (head, one.subject, one.header, one.payload)
            seq = log.next_seq(seq + 1)
        yield b"".join(parts)


def _first_start(stream: StreamReplica, chunk_seqs: int) -> int:
    """The sequence at which the first chunk begins."""
    return max(stream.log.first_seq - 1, 0) // chunk_seqs * chunk_seqs + 1


def name_of(chunk: bytes) -> bytes:
    """The hash of a chunk; b"" of one without messages."""
    return blake2b(chunk, digest_size=HASH_SIZE).digest() if chunk else b""


def take_state(
    stream: StreamReplica, standby: StandbyStates, chunk_seqs: int = CHUNK_SEQS
) -> tuple[bytes, dict[bytes, bytes]]:
    """The manifest of the present state, and its chunks by name. chunk_seqs: the same on all replicas."""
    chunks: dict[bytes, bytes] = {}
    names = []
    for chunk in chunks_of(stream, chunk_seqs):
        name = name_of(chunk)
        names.append(name)
        if name:
            chunks[name] = chunk
    log, ttls = stream.log, stream.expiry.ttls
    state = ReplicaState(
        version=STATE_VERSION,
        config=encode(stream.config),
        created=stream.created,
        now=stream.now,
        from_seq=_first_start(stream, chunk_seqs),
        last_seq=log.last_seq,
        last_ts=log.last_ts,
        chunks=names,
        ids=stream.ids.dump(),
        refuse_all=stream.refuse_all,
        bytes_end=stream.bytes_end,
        batch_limits=stream.batch_limits,
        staged=[(one.id, one.seq, one.heard_ns, one.messages()) for one in stream.atomic.staged.all()],
        staged_until=stream.atomic.staged.check_at,
        fast=stream.fast.dump(),
        fast_until=stream.fast.next_deadline() or 0,
        schedules=stream.schedules.dump(),
        ttls=ttls.dump(),
        is_behind=stream.timers.is_behind,
        retains_all=stream.retains_all,
        sources=[(one.index_name, one.seq, one.ident) for one in stream.sources.states],
        consumers=standby.dump(),
    )
    return _encoder.encode(state), chunks


def decode_state(manifest: bytes) -> ReplicaState:
    """Raises MalformedCommandError."""
    try:
        state = _decoder.decode(manifest)
    except (msgspec.DecodeError, ValueError) as error:
        raise MalformedCommandError(f"a manifest that cannot be read: {error}") from error
    if state.version != STATE_VERSION:
        raise MalformedCommandError(
            f"a manifest of version {state.version}: unknown here, a newer server may know it"
        )
    return state


def missing_chunks(state: ReplicaState, has: Callable[[bytes], bool]) -> list[bytes]:
    """The names of the chunks to fetch, in order, each once. has: whether a chunk is there already."""
    return [name for name in dict.fromkeys(state.chunks) if name and not has(name)]


def config_of(state: ReplicaState) -> ApiStreamConfig:
    """The configuration. Raises MalformedCommandError."""
    try:
        return msgspec.json.decode(state.config, type=ApiStreamConfig)
    except msgspec.DecodeError as error:
        raise MalformedCommandError(f"a configuration that cannot be read: {error}") from error


def restore_state(
    stream: StreamReplica, standby: StandbyStates, state: ReplicaState, chunk_of: Callable[[bytes], bytes]
) -> None:
    """Brings a new stream into a state. chunk_of: the bytes of a chunk.

    Raises MalformedCommandError when a chunk is not what its name says, or the state is none; the stream is
    of no use then.
    """
    try:
        _restore_messages(stream, state, chunk_of)
        _restore_rest(stream, state)
        for one in state.consumers:
            name, filters = standby.restore_consumer(*one)
            if stream.interest_state is not None:
                stream.interest_state.expect(name, filters)
    except (ValueError, KeyError, struct.error, msgspec.DecodeError) as error:
        if isinstance(error, MalformedCommandError):
            raise
        raise MalformedCommandError(f"the state of stream {stream.name} cannot be read: {error!r}") from error


def _restore_messages(stream: StreamReplica, state: ReplicaState, chunk_of: Callable[[bytes], bytes]) -> None:
    log = stream.log
    for name in state.chunks:
        if not name:
            continue
        chunk = chunk_of(name)
        if name_of(chunk) != name:
            raise MalformedCommandError(f"chunk {name.hex()} of stream {stream.name} has other bytes")
        at = 0
        while at < len(chunk):
            seq, ts, subject_len, header_len, payload_len = _MESSAGE.unpack_from(chunk, at)
            subject_end = at + _MESSAGE.size + subject_len
            header_end = subject_end + header_len
            if seq > log.last_seq + 1:
                log.skip_to(seq - 1, ts)
            subject, header = chunk[at + _MESSAGE.size : subject_end], chunk[subject_end:header_end]
            at = header_end + payload_len
            log.append(subject, header, chunk[header_end:at], ts)
    if state.last_seq > log.last_seq:
        log.skip_to(state.last_seq, state.last_ts)


def _restore_rest(stream: StreamReplica, state: ReplicaState) -> None:
    ids = MessageIds(stream.config.duplicate_window)
    ids.load(*state.ids)
    stream.restore(ids, state.now, state.refuse_all, state.bytes_end, state.batch_limits)
    stream.atomic.restore(state.staged, state.staged_until, STAGED_BYTES_MAX)
    stream.fast.restore(state.fast, state.fast_until)
    stream.schedules.restore(state.schedules)
    stream.expiry.ttls.restore(state.ttls)
    stream.timers.restore(is_behind=state.is_behind)
    stream.retain_messages(state.retains_all)
    for source, seq, ident in state.sources:
        for one in stream.sources.states:
            if one.index_name == source:
                one.place(seq, ident)
