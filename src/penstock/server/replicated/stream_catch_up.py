"""Fetching the files of a state from other members of the group, piece by piece: values in, values out.

A member that lacks files asks with FetchFiles; the other answers with FilePieces, or with FilesGone when it
has none of them. A request names files and offsets, and how many bytes the answer may have; what does not fit
is asked for again. Pieces of one file have PIECE_BYTES but for the last.

What is in flight is bounded by a window, and for all groups of a server together by CatchUpBudget. The window
grows while answers come quickly, and shrinks when they come late: mail and the log's entries share a
connection, and a heartbeat must not wait behind a long queue of pieces.

Requests and answers may be lost: what is not answered for REQUEST_NS is asked for again. A file counts only
when its bytes belong to its name.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Struct

from penstock.errors import ProtocolError
from penstock.jetstream.stream.replica_state import has_name
from penstock.server.replicated.request_tickets import PassedRequest

PIECE_BYTES = 1 << 20
FILES_MAX = 64
"""A request names so many files."""
WINDOW_MIN = PIECE_BYTES
OUTSTANDING_MAX = 64 << 20
"""`max_outstanding_catchup`: bytes that a server has requested and not received."""
REQUEST_NS = 2_000_000_000
FAST_NS = 100_000_000
SLOW_NS = 500_000_000
STALL_NS = 20_000_000_000
"""Without any progress for so long, the state is given up: it is offered again, or another one."""


class FetchFiles(Struct, frozen=True, array_like=True, tag="fetch"):
    """Asks for files of a manifest. items: a file's name and the offset to begin at. bytes_max: of the
    answer's pieces together; the first one may have more."""

    number: int
    manifest: bytes
    items: list[tuple[bytes, int]]
    bytes_max: int


class FilePieces(Struct, frozen=True, array_like=True, tag="pieces"):
    """Answers a FetchFiles. pieces: a file's name, the piece's offset, the file's size, the bytes."""

    number: int
    pieces: list[tuple[bytes, int, int, bytes]]


class FilesGone(Struct, frozen=True, array_like=True, tag="gone"):
    """Answers a FetchFiles: none of the files is there (any more)."""

    number: int


class Publishes(Struct, frozen=True, array_like=True, tag="publishes"):
    """Publishes that a server took for a stream that it leads no more, and never proposed. left_ns: for how
    long they may wait for a leader. batch: IngestBatch.encode(). is_certain: no other server got them
    (late_publishes.py). led_term: the last one in which the sender led; 0 = unknown."""

    left_ns: int
    batch: bytes
    is_certain: bool = False
    led_term: int = 0


class Passed(Struct, frozen=True, array_like=True, tag="request"):
    """A request of a client that waited on a server that leads no more. left_ns: for how long it may wait."""

    left_ns: int
    request: PassedRequest


class HandedOver(Struct, frozen=True, array_like=True, tag="handed"):
    """A leader has ended, and what it could not propose (hand_over.py). term: of the leader that gets it.
    index, entry_term: of the last entry that `progress` continues. progress: an entry; b"" for nothing."""

    term: int
    index: int
    entry_term: int
    progress: bytes


GroupMailMessage = FetchFiles | FilePieces | FilesGone | Publishes | Passed | HandedOver
_decoder = msgspec.msgpack.Decoder(GroupMailMessage)
_encoder = msgspec.msgpack.Encoder()


def encode_mail(message: GroupMailMessage) -> bytes:
    """The bytes of a piece of mail between members of a stream's group."""
    return _encoder.encode(message)


def decode_mail(payload: bytes) -> GroupMailMessage:
    """Raises ProtocolError."""
    try:
        message: GroupMailMessage = _decoder.decode(payload)
    except (msgspec.DecodeError, ValueError) as error:
        raise ProtocolError(f"mail of a stream's group that cannot be read: {error}") from error
    return message


class CatchUpBudget:
    """What all groups of a server may have requested together. most: bytes. due: what is called at each tick,
    by those who fetch."""

    def __init__(self, most: int = OUTSTANDING_MAX) -> None:
        self.most = most
        self.taken = 0
        self.due: dict[object, Callable[[], None]] = {}

    def take(self, count: int) -> bool:
        """Reserves bytes. Returns whether there are so many; something is always left for the first."""
        if self.taken and self.taken + count > self.most:
            return False
        self.taken += count
        return True

    def give_back(self, count: int) -> None:
        """Ends a reservation."""
        self.taken -= count


@dataclass(frozen=True, slots=True)
class CatchUpProgress:
    """How far a member is. files, of_files: those that are here, and all. fetched_bytes: that came from other
    members. of_files is 0 before the manifest is known."""

    files: int
    of_files: int
    fetched_bytes: int

    @property
    def percent(self) -> float:
        """0 to 100."""
        return 100.0 * self.files / self.of_files if self.of_files else 0.0


@dataclass(slots=True)
class _Request:
    to: str
    items: list[tuple[bytes, int]]
    sent: int


@dataclass(slots=True)
class _Partial:
    """A file of which pieces are here."""

    size: int
    pieces: dict[int, bytes] = field(default_factory=dict)

    def add(self, offset: int, data: bytes) -> bool:
        """Keeps a piece. Returns whether the file is complete."""
        if offset in self.pieces:
            return False
        self.pieces[offset] = data
        return len(self.pieces) == -(-self.size // PIECE_BYTES)


class FileFetch:
    """Fetches files. The caller sends what requests() returns, and gives answers to received().

    Args:
        manifest: of the state; b"" = any files by their names.
        members: to ask, the best first.
        budget: of the server.
        clock: monotonic ns.

    is_lost: no member has what is missing, or there was no progress for STALL_NS.
    """

    def __init__(
        self, manifest: bytes, members: list[str], budget: CatchUpBudget, clock: Callable[[], int]
    ) -> None:
        self._manifest = manifest
        self._members = deque(members)
        self._budget = budget
        self._clock = clock
        self._wanted: deque[tuple[bytes, int]] = deque()
        self._missing: set[bytes] = set()
        self._partial: dict[bytes, _Partial] = {}
        self._requests: dict[int, _Request] = {}
        self._number = 0
        self._window = WINDOW_MIN
        self._progress_at = clock()
        self.fetched_bytes = 0
        self.is_lost = not members

    def want(self, names: list[bytes]) -> None:
        """Adds files to fetch."""
        new = [one for one in names if one not in self._missing]
        self._missing.update(new)
        self._wanted.extend((one, 0) for one in new)
        self._progress_at = self._clock()

    @property
    def missing(self) -> int:
        """How many files are not here yet."""
        return len(self._missing)

    @property
    def is_done(self) -> bool:
        """Whether all files are here."""
        return not self._missing

    def requests(self) -> list[tuple[str, FetchFiles]]:
        """What to send now, and to which members."""
        found: list[tuple[str, FetchFiles]] = []
        now = self._clock()
        self._expire(now)
        while self._wanted and not self.is_lost:
            outstanding = len(self._requests) * PIECE_BYTES
            if outstanding >= self._window or not self._budget.take(PIECE_BYTES):
                break
            items = [self._wanted.popleft() for _ in range(min(FILES_MAX, len(self._wanted)))]
            self._number += 1
            to = self._members[0]
            self._requests[self._number] = _Request(to, items, now)
            found.append((to, FetchFiles(self._number, self._manifest, items, PIECE_BYTES)))
        return found

    def _expire(self, now: int) -> None:
        late = [number for number, one in self._requests.items() if now - one.sent >= REQUEST_NS]
        for number in late:
            self._wanted.extendleft(reversed(self._end(number).items))
        if late:
            self._window = WINDOW_MIN
            self._members.rotate(-1)
        if now - self._progress_at >= STALL_NS and self._missing:
            self.is_lost = True

    def _end(self, number: int) -> _Request:
        self._budget.give_back(PIECE_BYTES)
        return self._requests.pop(number)

    def received(self, sender: str, answer: FilePieces | FilesGone) -> list[tuple[bytes, list[bytes]]]:
        """Takes an answer. Returns the files that are complete, with their parts. Answers to requests that
        were given up, and pieces that were not asked for, are dropped."""
        request = self._requests.get(answer.number)
        if request is None or request.to != sender:
            return []
        self._end(answer.number)
        if isinstance(answer, FilesGone):
            self._wanted.extendleft(reversed(request.items))
            self._drop_member(sender)
            return []
        self._note_time(self._clock() - request.sent)
        asked = set(request.items)
        done: list[tuple[bytes, list[bytes]]] = []
        for name, offset, size, data in answer.pieces:
            if (name, offset) in asked and name in self._missing and self._fits(offset, size, len(data)):
                asked.discard((name, offset))
                if self._take(name, offset, size, data):
                    done += self._completed(name, sender)
        self._wanted.extendleft(one for one in reversed(request.items) if one in asked)
        return done

    def _drop_member(self, member: str) -> None:
        if member in self._members:
            self._members.remove(member)
        self.is_lost = not self._members

    def _note_time(self, took: int) -> None:
        if took < FAST_NS:
            self._window = min(2 * self._window, OUTSTANDING_MAX)
        elif took > SLOW_NS:
            self._window = max(self._window // 2, WINDOW_MIN)

    @staticmethod
    def _fits(offset: int, size: int, count: int) -> bool:
        return offset % PIECE_BYTES == 0 and count == min(PIECE_BYTES, size - offset) and count > 0

    def _take(self, name: bytes, offset: int, size: int, data: bytes) -> bool:
        """Keeps a piece. Returns whether its file is complete."""
        self._progress_at = self._clock()
        self.fetched_bytes += len(data)
        held = self._partial.get(name)
        if held is None:
            held = self._partial[name] = _Partial(size)
            self._wanted.extendleft((name, at) for at in range(offset + PIECE_BYTES, size, PIECE_BYTES))
        return held.size == size and held.add(offset, data)

    def _completed(self, name: bytes, sender: str) -> list[tuple[bytes, list[bytes]]]:
        held = self._partial.pop(name).pieces
        parts = [held[at] for at in sorted(held)]
        if not has_name(name, parts):  # its disk is damaged, or it means something else by this name
            self._wanted.append((name, 0))
            self._drop_member(sender)
            return []
        self._missing.discard(name)
        return [(name, parts)]

    def close(self) -> None:
        """Ends it: what was reserved is free again."""
        for number in list(self._requests):
            self._end(number)
        self._wanted.clear()


def read_pieces_of(
    fetch: FetchFiles, read_part: Callable[[bytes, int, int], tuple[int, bytes]], has: Callable[[bytes], bool]
) -> Any:
    """The answer to a request: for work in a thread. read_part: the size of a file and a part of its bytes;
    raises OSError."""
    pieces: list[tuple[bytes, int, int, bytes]] = []
    total = 0
    for name, offset in fetch.items[:FILES_MAX]:
        if not has(name):
            continue
        try:
            size, data = read_part(name, offset, PIECE_BYTES)
        except OSError:
            continue
        if pieces and total + len(data) > min(fetch.bytes_max, PIECE_BYTES):
            break
        pieces.append((name, offset, size, data))
        total += len(data)
    return FilePieces(fetch.number, pieces) if pieces else FilesGone(fetch.number)
