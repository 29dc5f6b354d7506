"""Mutations that know text formats: they replace, repeat and nest what a byte-wise mutator only damages.

Half of the mutations are atheris' own. The others find the words, numbers, texts and brackets of an input
and put in their place what parsers are not ready for: numbers beyond a double, integers of thousands of
digits, deep and repeated structures, long subjects, texts that are no UTF-8.
"""

from __future__ import annotations

import random
import re

import atheris
import instrumented  # noqa: F401  # before everything of penstock

from tests.support import hostile

TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|[\w.$*>+-]+|[{}\[\](),:;=]')
SIZES = (3, 20, 100, 600, 3_000, 20_000)
SHORT_WORDS = [
    *hostile.NUMBERS.values(), *hostile.WORDS.values(), *hostile.SUBJECTS.values(), *hostile.TIMES.values(),
    *(hostile.quoted(word) for word in (*hostile.SUBJECTS.values(), *hostile.TIMES.values())),
]  # fmt: skip
MAKERS = [*hostile.LONG_TEXTS.values(), *hostile.CONTAINERS.values(), *hostile.ESCAPED_TEXTS.values()]


def hostile_word(rng: random.Random) -> bytes:
    """A strange value, or a large one."""
    if rng.random() < 0.6:
        return rng.choice(SHORT_WORDS)
    made = rng.choice(MAKERS)(rng.choice(SIZES))
    return hostile.quoted(made) if rng.random() < 0.5 else made


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    """A custom mutator for `atheris.Setup`."""
    rng = random.Random(seed)
    if rng.random() < 0.5:
        return bytes(atheris.Mutate(data, max_size))
    for _ in range(rng.randint(1, 3)):
        data = _mutated(data, max_size, rng)[:max_size]
    return data


def _mutated(data: bytes, max_size: int, rng: random.Random) -> bytes:
    spans = [found.span() for found in TOKEN.finditer(data[: 1 << 16])]
    if not spans:
        at = rng.randint(0, len(data))
        return data[:at] + hostile_word(rng) + data[at:]
    start, end = rng.choice(spans)
    other_start, other_end = rng.choice(spans)
    kind = rng.randrange(8)
    if kind <= 1:
        return data[:start] + hostile_word(rng) + data[end:]
    if kind == 2:  # from one word to another, several times
        start, end = min(start, other_start), max(end, other_end)
        piece = data[start:end] + rng.choice((b"", b",", b" ", b".", b"\r\n"))
        times = min(rng.choice((2, 10, 200, 2_000)), max_size // len(piece) + 1)
        return data[:start] + piece * times + data[end:]
    if kind == 3:  # nested
        opening, closing = rng.choice(((b"[", b"]"), (b'{"a":', b"}"), (b"{a:", b"}"), (b"(", b")")))
        depth = rng.choice((1, 5, 100, 2_000))
        return data[:start] + opening * depth + data[start:end] + closing * depth + data[end:]
    if kind == 4:
        return data[:start] + data[end:]
    if kind == 5:
        return data[:start] + data[other_start:other_end] + data[end:]
    if kind == 6 and b"{" in data:  # a field that may be known or not
        at = rng.choice([found.end() for found in re.finditer(rb"\{", data)])
        name = rng.choice((b'"x":', data[start:end] + b":", b'"x" '))
        return data[:at] + name + hostile_word(rng) + b"," + data[at:]
    return data[:end] + rng.choice((b",", b" ", b".", b"\r\n", b":")) + hostile_word(rng) + data[end:]
