"""SubjectCounts against sorted()."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kernels.log.queries import SubjectCounts
from penstock.kernels.log.stream_log import StreamLog
from tests.reference.stream_log import LogModel


def filled(subjects: list[bytes]) -> tuple[StreamLog, LogModel]:
    log, model = StreamLog(), LogModel()
    for subject in subjects:
        log.append(subject, b"", b"", 1)
        model.append(subject, b"", b"", 1)
    return log, model


def drawn(rng: random.Random, count: int) -> list[bytes]:
    """Subjects that begin alike, with bytes above 127 and some that are the beginning of others."""
    ends = [b"a", b"ab", b"b", b"\xc3\xa9", b"\xff", b"a.a", b"a.ab"]
    return [b"s.%d.%s" % (rng.randrange(count), rng.choice(ends)) for _ in range(count)]


@pytest.mark.parametrize("count", [0, 1, 2, 15, 16, 17, 33, 100, 1000, 5000])
@pytest.mark.parametrize("work", [1, 7, 100, 1 << 40])
def test_rows_are_those_of_the_model_in_order_however_small_the_pieces(count: int, work: int) -> None:
    log, model = filled(drawn(random.Random(count), count))
    for wanted in (b">", b"s.*.a", b"s.*.>", b"s.1.a", b"none"):
        counts = SubjectCounts(log, wanted)
        expected = sorted(model.subjects(wanted).items())
        assert sorted(counts.rows(0, len(counts))) == expected
        slices = 0
        while not counts.sort(work):
            slices += 1
            if slices % 97 == 1 and count < 1000:
                assert sorted(counts.rows(0, len(counts))) == expected  # each at some place
        assert counts.rows(0, len(counts)) == expected
        assert counts.rows(3, 7) == expected[3:7] and counts.rows(len(expected), 1 << 40) == []


@given(
    st.lists(st.lists(st.sampled_from([b"a", b"b", b"aa", b"\xff"]), min_size=1).map(b".".join)),
    st.integers(1, 9),
)
def test_any_subjects_come_in_the_order_of_the_model(subjects: list[bytes], work: int) -> None:
    log, model = filled(subjects)
    counts = SubjectCounts(log, b">")
    while not counts.sort(work):
        pass
    assert counts.rows(0, len(counts)) == sorted(model.subjects(b">").items())


def test_what_happens_to_the_log_afterwards_changes_nothing() -> None:
    log, model = filled(drawn(random.Random(1), 3000))
    expected = sorted(model.subjects(b">").items())
    counts = SubjectCounts(log, b">")
    assert not counts.sort(100)
    log.purge()
    for n in range(5000):
        log.append(b"other.%d" % n, b"", b"", 1)
    while not counts.sort(100):
        pass
    assert counts.rows(0, len(counts)) == expected


def test_sorting_takes_as_many_slices_as_n_log_n_says() -> None:
    def slices(count: int) -> int:
        counts = SubjectCounts(filled(drawn(random.Random(count), count))[0], b">")
        taken = 1
        while not counts.sort(1000):
            taken += 1
        return taken

    assert slices(20_000) < 15 * slices(2000)
