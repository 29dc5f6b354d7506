"""Fuzzes the links for replicated groups: python fuzz/fuzz_replication.py [libFuzzer options].

Whatever the bytes, a link gives events or closes, the same ones wherever the stream is split; and a node that
gets the frames stops single groups at most. The input is read as a stream, as payloads of frames whose
checksums fit, and as the fields of messages.
"""

from __future__ import annotations

import logging
import struct

import instrumented  # noqa: F401  # before everything of penstock
import msgspec
from seeded import fuzz

from penstock.errors import ProtocolError
from penstock.raft.disk_identity import DiskIdentity
from penstock.raft.raft_host import Frame
from penstock.replication.replication_frames import GREETING_BYTES_MAX, ReplicationKind, frame_bytes
from penstock.replication.replication_link import LinkEvent, ReplicationLink, greeting_of
from penstock.replication.replication_messages import decode_frame, encode_frames
from tests.support.replication_nodes import NodesUnderTest

logging.disable(logging.CRITICAL)
A = greeting_of(DiskIdentity("c", "a", "d", 1), "1")
B = greeting_of(DiskIdentity("c", "b", "d", 1), "1")
FIELDS = struct.Struct("<12B")
COUNTS = {1: 2, 2: 1, 3: 3, 4: 1, 6: 5, 7: 3, 8: 6, 10: 0, 11: 1, 12: 2}


def events(stream: bytes, step: int) -> list[LinkEvent]:
    link = ReplicationLink(B, "a")
    return [one for at in range(0, len(stream), step) for one in link.receive(stream[at : at + step])]


def framed(data: bytes) -> bytes:
    """A stream of frames whose payloads are parts of the input."""
    stream, at = ReplicationLink(A).opening(), 0
    while at + 2 <= len(data):
        kind, length = ReplicationKind(data[at] % 4 + 1), data[at + 1]
        stream += frame_bytes(kind, data[at + 2 : at + 2 + length])
        at += 2 + length
    return stream


def messages(data: bytes) -> bytes:
    """The payload of a frame with messages of the input's fields."""
    found = []
    for at in range(0, len(data) - FIELDS.size + 1, FIELDS.size):
        tag, term, *rest = FIELDS.unpack_from(data, at)
        tag = tag % 12 + 1
        if tag == 5:
            count, index = rest[4] % 4, rest[0] % 8
            entries = [(index + 1 + i, rest[5] % 4, rest[6] % 2, b"x") for i in range(count)]
            fields: list[object] = [index, rest[1] % 4, entries, rest[2] % 8]
        elif tag == 9:
            fields = [rest[0] % 8, rest[1] % 4, (("a.d", "b.d", "c.d"), ()), b"state"]
        else:
            fields = [one % 8 for one in rest[: COUNTS[tag]]]
            flags = {2: (0,), 3: (2,), 4: (0,), 6: (1,), 7: (2,), 8: (3, 4)}
            for flag in flags.get(tag, ()):
                fields[flag] = bool(fields[flag])
        found.append((tag, "g", term % 4, *fields))
    return msgspec.msgpack.encode((1, 0, found))


def test_one_input(data: bytes) -> None:
    for stream in (data, framed(data)):
        whole = events(stream, max(1, len(stream)))
        if len(stream) < GREETING_BYTES_MAX:
            assert events(stream, 7) == whole
        for one in whole:
            if isinstance(one, Frame):
                parts = [decode_frame(part, one.sender, one.to) for part in encode_frames(one)]
                assert parts == [one]
    nodes = NodesUnderTest()
    nodes.start("g", "h")
    nodes.pass_time(1500 if data[:1] > b"\x80" else 0)
    for at in range(0, len(data), 48):
        try:
            frame = decode_frame(messages(data[at : at + 48]), "a.d", "b.d")
        except ProtocolError:
            continue
        nodes["b"].node.receive(frame)
        nodes["b"].pump()
    assert "h" in nodes["b"].node.groups


SEEDS = [
    ReplicationLink(A).opening(),
    bytes(range(120)) * 2,
    bytes([4, 1, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0]) * 4,
    bytes([6, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]) * 4,
]


if __name__ == "__main__":
    fuzz(SEEDS, test_one_input)
