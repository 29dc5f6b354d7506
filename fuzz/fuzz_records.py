"""Fuzzes the record reader and block recovery: python fuzz/fuzz_records.py [libFuzzer options].

Whatever the bytes, the reader gives whole records up to the first bad one, the block scan finds the same
end, and a block index that was tampered with is refused or tells of entries inside the block.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports():
    from penstock.kernels.log.message_block import MessageBlock
    from penstock.kernels.log.records import Corrupt, RecordReader, encode, xxh64_digest
    from penstock.kernels.log.stream_log import StreamLog


@atheris.instrument_func
def read_all(data: bytes) -> tuple[list[tuple[int, int, int, bytes, bytes, bytes]], int]:
    reader = RecordReader(data)
    found = []
    while (record := reader.next()) is not None and not isinstance(record, Corrupt):
        found.append(record)
    return found, reader.offset


@atheris.instrument_func
def with_hashes(data: bytes) -> bytes:
    """Cuts the input into records whose lengths and hashes fit, so that what is inside them is looked at."""
    out = b""
    at = 0
    while at < len(data):
        inner = data[at + 1 : at + 1 + data[at]]
        at += 1 + data[at]
        head = (12 + len(inner) | (0x80000000 if len(inner) % 2 else 0)).to_bytes(4, "little") + inner
        out += head + xxh64_digest(head).to_bytes(8, "little")
    return out


@atheris.instrument_func
def fuzz_records(data: bytes) -> None:
    for block_bytes in (data, with_hashes(data)):
        found, end = read_all(block_bytes)
        again = b"".join(encode(*fields, kind=kind) for kind, *fields in found)
        assert len(again) <= end  # a header flag without header bytes is not written again
        block = MessageBlock(1, 1)
        bad = block.scan(block_bytes)
        assert block.size <= end
        assert (bad is None) == (block.size == len(block_bytes))
        log = StreamLog()
        if block.last_seq < 1 << 40:
            log.restore([block])
            for seq in range(log.first_seq, min(log.last_seq + 1, log.first_seq + 100)):
                log.load(seq)
            log.append(b"after", b"", b"", 1)


def real_block() -> bytes:
    """The bytes of a block as a log writes them: messages, headers, notes."""
    log = StreamLog(4096, True)
    for i in range(12):
        log.append(b"s.%d" % (i % 3), b"NATS/1.0\r\n\r\n" if i % 2 else b"", b"x" * i, i)
    log.remove(5)
    log.remove(1)
    log.flush_tombstones()
    return bytes(log.block_list()[0])


BLOCK = real_block()


def real_index() -> bytes:
    block = MessageBlock(1, 1)
    block.scan(BLOCK)
    block.closed = True
    return block.export_index()


INDEX = real_index()
TAIL_HASH = int.from_bytes(BLOCK[-8:], "little")


@atheris.instrument_func
def fuzz_index(data: bytes) -> None:
    """A real index with some of its bytes changed and its hash made to fit."""
    body = bytearray(INDEX[:-8])
    for at in range(0, len(data) - 2, 3):
        body[(data[at] << 8 | data[at + 1]) % len(body)] = data[at + 2]
    sealed = bytes(body) + xxh64_digest(body).to_bytes(8, "little")
    try:
        block = MessageBlock.from_index(sealed, 1, len(BLOCK), TAIL_HASH)
        log = StreamLog(4096, True, lambda number: BLOCK)
        log.restore([block])
    except ValueError:
        return
    for seq in range(1, 15):
        log.load(seq)


def test_one_input(data: bytes) -> None:
    fuzz_records(data)
    fuzz_index(data)


def seed_corpus(directory: Path) -> None:
    """What a mutation may begin with: a real block, and the lengths with_hashes() makes records of."""
    (directory / "block").write_bytes(BLOCK)
    inner = b"".join(bytes([len(record)]) + record for record in (BLOCK[4:42], BLOCK[46:90]))
    (directory / "inner").write_bytes(inner)
    (directory / "index").write_bytes(bytes([0, 8, 255, 0, 60, 1]))


def main() -> None:
    arguments = sys.argv
    if all(argument.startswith("-") for argument in arguments[1:]):
        directory = Path(tempfile.mkdtemp(prefix="penstock-fuzz-"))
        seed_corpus(directory)
        arguments = [*arguments, "-len_control=0", str(directory)]
    atheris.Setup(arguments, test_one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
