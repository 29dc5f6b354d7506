"""Asynchronous reads of file ranges: the result equals the contents of the files, whichever thread reads."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.kernels.log.record_reads import Reading
from penstock.store.disk import FILE_RANGE, LocalDisk
from tests.reference.read_ahead import read
from tests.support.examples import examples

MANY = 300
"""Ranges, enough for the thread to take part."""


def asked(wanted: list[tuple[int, int]]) -> bytes:
    return b"".join(FILE_RANGE.pack(offset, size) for offset, size in wanted)


@contextlib.contextmanager
def files_of(*contents: bytes) -> Iterator[list[bytes]]:
    with tempfile.TemporaryDirectory() as directory:
        paths = [Path(directory) / str(number) for number in range(len(contents))]
        for path, data in zip(paths, contents, strict=True):
            path.write_bytes(data)
        yield [os.fsencode(path) for path in paths]


@pytest.fixture
def numbers() -> Iterator[tuple[bytes, list[tuple[bytes, bytes]]]]:
    """A file, and many ranges of it."""
    with files_of(b"".join(b"%08d" % i for i in range(5000))) as [name]:
        yield name, [(name, asked([(8 * (i * 7 % 5000), 8) for i in range(MANY)]))]


def open_files() -> set[str]:
    """What this process has open below the temporary directory."""
    return {
        target
        for fd in os.listdir("/proc/self/fd")
        if (target := _target(f"/proc/self/fd/{fd}")).startswith(tempfile.gettempdir() + "/tmp")
    }


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""


@given(
    contents=st.lists(st.binary(max_size=300), min_size=1, max_size=4),
    wanted=st.lists(st.tuples(st.integers(0, 320), st.integers(0, 90)), max_size=12),
    times=st.sampled_from([1, 1, 4, 60]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=examples(80), deadline=None)
def test_ranges_are_the_files_bytes_with_zeros_after_their_ends(
    contents: list[bytes], wanted: list[tuple[int, int]], times: int, seed: int
) -> None:
    draw = Random(seed)
    with files_of(*contents) as names:
        readings = []
        for _ in range(3):
            files = [(name, asked(draw.sample(wanted, len(wanted)) * times)) for name in names]
            readings.append((Reading(files), read(files)))
        draw.shuffle(readings)
        for reading, expected in readings:
            assert reading.take() == expected
            assert reading.take() == expected
        assert LocalDisk().read_ranges(files).take() == read(files)


def test_what_is_never_taken_leaves_no_file_open(numbers: tuple[bytes, list[tuple[bytes, bytes]]]) -> None:
    name, files = numbers
    before = open_files()
    for _ in range(50):
        Reading(files)
        Reading([(name, asked([(0, 8)]))])
    assert open_files() == before


def test_a_file_that_is_not_there_says_so_at_once(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"x")
    before = len(os.listdir("/proc/self/fd"))
    for many in (1, MANY):
        with pytest.raises(FileNotFoundError, match="none"):
            Reading([(os.fsencode(tmp_path / n), asked([(0, 8)] * many)) for n in ("there", "none")])
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("many", [1, MANY])
def test_a_piece_that_can_not_be_read_fails_all_of_them(tmp_path: Path, many: int) -> None:
    (tmp_path / "file").write_bytes(b"data")
    files = [(os.fsencode(path), asked([(0, 4)] * many)) for path in (tmp_path / "file", tmp_path)]
    with pytest.raises(OSError) as raised:
        Reading(files).take()
    assert raised.value.errno == errno.EISDIR


def test_a_forked_process_reads_on(numbers: tuple[bytes, list[tuple[bytes, bytes]]]) -> None:
    _, files = numbers
    expected = read(files)
    in_flight = [Reading(files) for _ in range(20)]
    child = os.fork()
    if child == 0:
        # What its parent's thread was in the middle of has failed; all else is right.
        failures = 0
        for reading in in_flight:
            try:
                right = reading.take() == expected
            except OSError:
                failures, right = failures + 1, True
            if not right:
                os._exit(1)
        os._exit(0 if failures <= 1 and Reading(files).take() == expected else 2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert all(reading.take() == expected for reading in in_flight)


def test_a_thread_that_gets_no_core_is_not_waited_for(
    numbers: tuple[bytes, list[tuple[bytes, bytes]]],
) -> None:
    """Many at once, the last one first: the thread has just begun."""
    _, files = numbers
    readings = [Reading(files) for _ in range(200)]
    assert readings[-1].take() == read(files)
    del readings
