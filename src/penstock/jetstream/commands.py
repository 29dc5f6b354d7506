"""Commands: everything that changes a stream, as values with a binary encoding.

`StreamReplica.apply(command, now)` is the only way to change a stream after it was opened. What a command
does depends on the stream's state, the command and `now` alone, so that the same commands make the same state
on every replica, and a stream can be rebuilt from its commands. What else a decision depends on is in a
command: what the account admits (Admit, LimitBatches, LimitRollups), and how much work a slice does (`work`,
`looks`). A long change is one command per slice, each complete on its own: other commands may stand between
two slices, and a new leader need not know those that follow.

A publish batch is the ingest kernel's IngestBatch itself, without an object per message. What consumers
settled is the kernel's SettledRuns: only the owner of the stream knows when it may go, because its consumers
are ahead of the commands (ProgressConsumer).

Encoding: kind (8 bits), version of the kind (8 bits), `now` (signed 64 bits, little-endian, ns), body. The
body of a publish batch, of copies and of settled runs is what the kernel encodes; all others are MessagePack
arrays. A field is added at the end, with a default, under the same version; any other change of a body takes
a new version.

Rejected: one encoding for all (an object per message); the result in the command, such as which sequences a
purge removed (replicas would have to trust it, and it grows with the messages).
"""

from __future__ import annotations

import struct
from typing import Annotated, Any, Protocol

import msgspec
from msgspec import Meta, Struct

from penstock.errors import MalformedCommandError
from penstock.kernels.ingest.copying import CopyBatch
from penstock.kernels.ingest.ingest import IngestBatch
from penstock.kernels.ingest.storing import SettledRuns
from penstock.protocol.api import ApiError, ApiStreamConfig

NOW_MAX = 2**62  # in the year 2116; sums of a time and a duration fit 64 bits

Seq = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Size = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class Resume(Struct, frozen=True, array_like=True):
    """Applies what is left of the batch in whose middle a roll-up stopped."""


class Admit(Struct, frozen=True, array_like=True):
    """What the stream's account admits from now on. refuse_all: the error for every publish. bytes_end: the
    size up to which the stream may grow; None: no limit."""

    refuse_all: ApiError | None
    bytes_end: Size | None


class Expire(Struct, frozen=True, array_like=True):
    """Expires ids, batches and messages, and stores scheduled messages: `work` units of slices.py each."""

    work: Size


class DeleteMessage(Struct, frozen=True, array_like=True):
    """Removes the message at `seq`; erase: overwrites its bytes too."""

    seq: Seq
    erase: bool


class Purge(Struct, frozen=True, array_like=True):
    """Removes every message below upto_seq; 0: all."""

    upto_seq: Seq


class PurgeSlice(Struct, frozen=True, array_like=True):
    """Removes up to `most` messages that match `filter` from `seq` on below end_seq, among `looks`."""

    filter: bytes
    seq: Seq
    end_seq: Seq
    looks: Count
    most: Count


class Update(Struct, frozen=True, array_like=True):
    """Changes to a checked configuration.

    ids: number of the ids that RecoverIds prepared; 0: none. positions: (source, sequence, identity of the
    origin) of added sources that the stream had before. The leader finds them in its journal.
    """

    config: ApiStreamConfig
    ids: Count = 0
    positions: list[tuple[str, Seq, str]] = []


class RecoverIds(Struct, frozen=True, array_like=True):
    """Prepares the message ids for the Update by which a mirror begins to detect duplicates: adds those of up
    to `looks` messages from `seq` on. number=0: begins, with the window before `now`. seq=0: drops them."""

    number: Count
    seq: Seq
    window_ns: Count
    looks: Count


class EnforceLimits(Struct, frozen=True, array_like=True):
    """Removes what is above the limits, from place `at` on (storing.enforce_part), up to `work` units."""

    at: Count
    work: Size


class LimitBatches(Struct, frozen=True, array_like=True):
    """Limits of open batches from now on.

    atomic_end, staged_end, fast_end: atomic batches of this stream, their bytes, and fast batches; other
    streams have a share of the same. messages_max: of an atomic batch. timeout_ns: until one that gets no
    message is abandoned.
    """

    atomic_end: Count
    staged_end: Count
    fast_end: Count
    messages_max: Count
    timeout_ns: Count


class LimitRollups(Struct, frozen=True, array_like=True):
    """How many messages roll-ups may remove before the rest takes slices."""

    messages: Size


class RollUp(Struct, frozen=True, array_like=True):
    """Continues an unfinished roll-up: examines up to `looks` messages, or works `work` units on limits."""

    looks: Count
    work: Size


class MoveSource(Struct, frozen=True, array_like=True):
    """Sets the position in a source, or in the mirror's origin. ident: identity of the origin."""

    source: str
    seq: Seq
    ident: str


class StoreCopies(Struct, frozen=True):
    """Stores messages of a source, or of the mirror's origin."""

    source: str
    batch: CopyBatch


class RetainMessages(Struct, frozen=True, array_like=True):
    """While retained, an interest stream stores every message and removes none: a consumer that its server
    cannot open may need it."""

    retained: bool


class SetConsumer(Struct, frozen=True, array_like=True):
    """Creates a consumer, or changes what is stored besides its ack state. meta: a ConsumerMeta as JSON."""

    name: str
    meta: bytes


class DropConsumer(Struct, frozen=True, array_like=True):
    """Removes a consumer."""

    name: str


class PinConsumer(Struct, frozen=True, array_like=True):
    """Serves one client of a consumer with pinned clients alone, from the command's time on. pin: its id;
    empty: the pin ended."""

    name: str
    pin: str


class ProgressConsumer(Struct, frozen=True, array_like=True):
    """What a consumer delivered, what was acked, and resets: an entry of its journal. The leader delivers
    first and records in the same tick, so a new leader may deliver again, and skips nothing."""

    name: str
    entry: bytes


class CheckState(Struct, frozen=True, array_like=True):
    """The leader's hash of what the entries up to `index` did (state_hash.py). It changes nothing."""

    index: Seq
    value: bytes


Command = (
    IngestBatch
    | Resume
    | Admit
    | Expire
    | DeleteMessage
    | Purge
    | PurgeSlice
    | Update
    | RecoverIds
    | EnforceLimits
    | LimitBatches
    | LimitRollups
    | RollUp
    | MoveSource
    | SetConsumer
    | DropConsumer
    | ProgressConsumer
    | StoreCopies
    | RetainMessages
    | PinConsumer
    | CheckState
    | SettledRuns
)

PUBLISHES = 1
COPIES = 15
SETTLED = 21
# kind -> (version, type). A number is never used again for anything else; 18 was a reset of a consumer.
KINDS: dict[int, tuple[int, type[Any]]] = {
    2: (1, Resume),
    3: (1, Admit),
    4: (1, Expire),
    5: (1, DeleteMessage),
    6: (1, Purge),
    7: (1, PurgeSlice),
    8: (1, Update),
    9: (1, RecoverIds),
    10: (1, EnforceLimits),
    11: (1, LimitBatches),
    12: (1, LimitRollups),
    13: (1, RollUp),
    14: (1, MoveSource),
    16: (1, SetConsumer),
    17: (1, DropConsumer),
    19: (1, ProgressConsumer),
    20: (1, RetainMessages),
    22: (1, PinConsumer),
    23: (1, CheckState),
}

_BATCH_VERSION = 1  # of those that the kernels encode
_HEAD = struct.Struct("<BBq")
_NAME_LEN = struct.Struct("<H")
_heads: dict[type[Any], tuple[int, int]] = {
    known: (kind, version) for kind, (version, known) in KINDS.items()
}
_encoder = msgspec.msgpack.Encoder()
_types = {(kind, version): known for kind, (version, known) in KINDS.items()}
_decoders: dict[tuple[int, int], msgspec.msgpack.Decoder[Any]] = {}  # made when needed: 2 ms for all


class CommandSink(Protocol):
    """Takes the commands of streams, each stream's in the order in which it applies them."""

    def record(self, stream: Any, command: bytes) -> None:
        """Called with an encoded command right before `stream`, a StreamReplica, applies it."""


class StandbyStates(Protocol):
    """The consumers of a stream that follows: their states, ready to be taken over. They deliver nothing."""

    def dump(self) -> list[tuple[bytes, bytes, str, int]]:
        """The state, for restore_consumer(): of each its ConsumerMeta as JSON, its ack state, the pinned
        client's id, and since when (ns) it is pinned."""

    def restore_consumer(self, meta: bytes, acks: bytes, pin: str, pinned_at: int) -> tuple[str, list[bytes]]:
        """Takes over a consumer of another replica; returns its name and filters. Raises ValueError when its
        state cannot be read."""

    def filters(self) -> dict[str, list[bytes]]:
        """The filters of each consumer; empty for all messages."""

    def set_consumer(self, name: str, meta: bytes) -> list[bytes]:
        """Creates a consumer, or changes its stored configuration. Returns its filters."""

    def drop_consumer(self, name: str) -> None:
        """Removes a consumer."""

    def pin_consumer(self, name: str, pin: str, now: int) -> None:
        """Begins a pin at `now` (ns), or ends it when `pin` is empty."""

    def progress_consumer(self, name: str, entry: bytes) -> None:
        """Applies an entry of its journal. Raises ValueError when it cannot follow its state."""


def encode(command: Command, now: int) -> bytes:
    """The encoded command, to be applied at `now` (ns)."""
    if isinstance(command, IngestBatch):
        return command.encode(_HEAD.pack(PUBLISHES, _BATCH_VERSION, now))
    if isinstance(command, StoreCopies):
        name = command.source.encode("utf-8", "surrogateescape")
        head = _HEAD.pack(COPIES, _BATCH_VERSION, now) + _NAME_LEN.pack(len(name))
        return command.batch.encode(head + name)
    if isinstance(command, SettledRuns):
        return _HEAD.pack(SETTLED, _BATCH_VERSION, now) + command.encode()
    kind, version = _heads[type(command)]
    return _HEAD.pack(kind, version, now) + _encoder.encode(command)


def decode(data: bytes, start: int = 0, end: int | None = None) -> tuple[Command, int]:
    """The command that the bytes of `data` from offset `start` to `end` are, and the time (ns) at which to
    apply it. Raises MalformedCommandError. The work is linear in the size of the command."""
    end = len(data) if end is None else end
    at = start + _HEAD.size
    if end < at:
        raise MalformedCommandError(f"a command of {end - start} bytes; its head alone has {_HEAD.size}")
    kind, version, now = _HEAD.unpack_from(data, start)
    if not 0 <= now < NOW_MAX:
        raise MalformedCommandError(f"a command of kind {kind} at {now}, which is no time from 1970 to 2116")
    try:
        if kind == PUBLISHES and version == _BATCH_VERSION:
            return IngestBatch.decode(data, at, end), now
        if kind == COPIES and version == _BATCH_VERSION:
            return _decode_copies(data, at, end), now
        if kind == SETTLED and version == _BATCH_VERSION:
            return SettledRuns.decode(data, at, end), now
        decoder = _decoders.get((kind, version))
        if decoder is None:
            known = _types.get((kind, version))
            if known is None:
                raise MalformedCommandError(
                    f"a command of kind {kind}, version {version}: unknown here, a newer server may know it"
                )
            decoder = _decoders[kind, version] = msgspec.msgpack.Decoder(known)
        command: Command = decoder.decode(memoryview(data)[at:end])
    except (ValueError, msgspec.DecodeError, RecursionError) as error:
        if isinstance(error, MalformedCommandError):
            raise
        raise MalformedCommandError(f"a malformed command of kind {kind}: {error}") from error
    return command, now


def _decode_copies(data: bytes, start: int, end: int) -> StoreCopies:
    """The body from `start` to `end`. Raises ValueError."""
    at = start + _NAME_LEN.size
    if end < at:
        raise ValueError(f"{end - start} bytes, less than a name")
    name_end = at + _NAME_LEN.unpack_from(data, start)[0]
    if end < name_end:
        begin = start - _HEAD.size
        raise ValueError(f"the name of a source ends at {name_end - begin} of {end - begin} bytes")
    name = data[at:name_end].decode("utf-8", "surrogateescape")
    return StoreCopies(name, CopyBatch.decode(data, name_end, end))
