"""NUIDs."""

from __future__ import annotations

import random

from penstock.protocol.ids import COUNTER_LEN, COUNTER_MAX, DIGITS, PREFIX_LEN, NuidGenerator, base62


def test_ids_are_22_characters_and_never_repeat() -> None:
    generate = NuidGenerator(random.Random(1).randrange)
    made = [generate() for _ in range(10_000)]
    assert len(set(made)) == len(made)
    assert {len(one) for one in made} == {22}
    assert set("".join(made)) <= set(DIGITS)


def test_the_same_randomness_gives_the_same_ids() -> None:
    first, second = (NuidGenerator(random.Random(7).randrange) for _ in range(2))
    assert [first() for _ in range(5)] == [second() for _ in range(5)]


def test_a_counter_that_runs_out_takes_a_new_prefix() -> None:
    draws = iter([0, COUNTER_MAX - 1, 0, 1, 5, 0])
    generate = NuidGenerator(lambda _n: next(draws))
    assert generate() == base62(1, PREFIX_LEN) + base62(5, COUNTER_LEN)
