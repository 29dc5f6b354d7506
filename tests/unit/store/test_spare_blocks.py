"""The memory of blocks that left is used again by those that come: what was there before never shows."""

from __future__ import annotations

import random
from pathlib import Path

from penstock.kernels.log.stream_log import DEFAULT_BLOCK_SIZE
from penstock.store.file import FileStore
from penstock.store.memory import MemoryStore

SIZE = 64 * 1024
BLOCKS = 6
KEPT = 200  # messages: a block and a half


def payload_of(stream: int, seq: int) -> bytes:
    return random.Random(stream << 32 | seq).randbytes(256) * (SIZE // 256)


def test_streams_that_lose_and_fill_blocks_in_turn_hold_their_own_messages(tmp_path: Path) -> None:
    store, memory = FileStore(tmp_path), MemoryStore()
    streams = [
        store.account("$G").create_stream("A", b"", "file"),
        memory.account("$G").create_stream("B", b"", "memory"),
        store.account("$G").create_stream("C", b"", "file"),
    ]
    for seq in range(1, BLOCKS * DEFAULT_BLOCK_SIZE // SIZE + 1):
        for number, stream in enumerate(streams):
            assert stream.log.append(b"s.%d" % number, b"", payload_of(number, seq), seq) == seq
            stream.log.purge(keep=KEPT)
            if seq % 7 == 0:
                stream.write()
    for number, stream in enumerate(streams):
        stream.write()
        log = stream.log
        assert log.messages == KEPT
        for seq in range(log.first_seq, log.last_seq + 1):
            kept = log.load(seq)
            assert kept is not None and kept.payload == payload_of(number, seq)
    store.close()
    store = FileStore(tmp_path)
    for number, name in ((0, "A"), (2, "C")):
        log = store.account("$G").open_stream(name).log
        for seq in range(log.first_seq, log.last_seq + 1):
            kept = log.load(seq)
            assert kept is not None and kept.payload == payload_of(number, seq)
    store.close()
