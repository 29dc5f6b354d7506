"""Fuzzes the frame parser against its model: `python fuzz/fuzz_frames.py -runs=100000 -max_total_time=60`.

The kernel is compiled and gives the fuzzer no coverage; the model it is compared with does, and has the
same branches. The first two bytes of an input choose the limits and how the rest is cut into reads.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris
from seeded import fuzz

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "src")]

with atheris.instrument_imports(include=["tests.reference.frames"]):
    from penstock.kernels.wire.frames import OP_ERROR, FrameParser, Op, ParseError
    from tests.reference.frames import parse

SEEDS = [
    b'\x00\x00INFO {"a":1}\r\nCONNECT {"verbose":false}\r\nPING\r\nPONG\r\n',
    b"\x01\x04+OK\r\n-ERR 'Stale Connection'\r\n",
    b"\x01\x03SUB a.* q 1\r\nSUB a.> 2\r\nUNSUB 1\r\nUNSUB 2 10\r\n",
    b"\x02\x05PUB a 0\r\n\r\nPUB a r 5\r\nhello\r\nHPUB a 4 6\r\nHHHHpp\r\nHPUB a r 4 6\r\nHHHHpp\r\n",
    b"\x03\x01MSG a 1 2\r\nhi\r\nMSG a 1 r 2\r\nhi\r\nHMSG a 1 4 4\r\nHHHH\r\nHMSG a 1 r 4 6\r\nHHHHpp\r\n",
    b"\x00\x02pub\ta  1\nx\r\nPUB a 999999999\r\nPUB a 1000000000\r\n",
    b"\x01\x00PUB aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa 1\r\nx\r\n",
]


def run(data: bytes, step: int, max_control_line: int, max_payload: int) -> None:
    """Feeds `data` in reads of `step` bytes and compares frames, error and what is left with the model."""
    expected = parse(data, max_control_line, max_payload)
    parser = FrameParser(max_control_line, max_payload)
    frames: list[tuple[object, ...]] = []
    error = ""
    for start in range(0, len(data), step):
        parser.feed(data[start : start + step])
        while (frame := parser.next_frame()) is not None:
            if frame.op == OP_ERROR:
                error = ParseError(parser.error).name.removeprefix("ERROR_")
                break
            op = Op(frame.op).name.removeprefix("OP_")
            frames.append(
                (op, frame.subject, frame.reply, frame.sid, frame.header, frame.payload, frame.max_msgs)
            )
    if frames != expected.frames or error != expected.error:
        raise AssertionError(f"parser: {frames} {error!r}; model: {expected.frames} {expected.error!r}")
    if not error and parser.pending != len(expected.rest):
        raise AssertionError(f"parser holds {parser.pending} bytes, the model {len(expected.rest)}")


def test_one_input(data: bytes) -> None:
    if len(data) > 2:
        limits = data[0]
        step = data[1] or len(data)
        run(data[2:], step, 4096 if limits & 1 else 24, 16 if limits & 2 else 0)


if __name__ == "__main__":
    fuzz(SEEDS, test_one_input)
