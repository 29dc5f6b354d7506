"""Fuzzes the kernels' hash tables and ring: python fuzz/fuzz_primitives.py [libFuzzer options].

The bytes are steps (an action, a key of few that collide, a value). After each one, the tables hold what
dicts of lists hold, and the ring what a deque holds.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports():
    from penstock.kernels.base.hash_table import NumberMap
    from penstock.kernels.base.id_table import IdSet
    from penstock.kernels.base.memory import NumberQueue

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.reference import primitives as model

INVERSE = pow(0x9E3779B97F4A7C15, -1, 2**64)


def key_of(byte: int) -> int:
    """Keys of sixteen homes, the most of them around the end of a table."""
    mixed = byte << 24 | byte % 16 + 56
    return mixed * INVERSE % 2**64


def step_ids(ids: IdSet, entries: model.IdSet, action: int, number: int) -> None:
    """One step with the table of ids."""
    h = number % 16 + 8 | number << 24
    present = entries.all(h)
    if action % 8 == 1:
        ids.shrink()
    elif action % 4 == 0 and present:
        ids.drop(present[0])
        entries.drop(present[0])
    else:
        for _ in range(action // 32 + 1):  # several, so that the table grows
            assert ids.add(h) == entries.add(h)
    assert ids.all(h) == entries.all(h)
    assert len(ids) == len(entries)


@atheris.instrument_func
def fuzz_primitives(data: bytes) -> None:
    table, entries = NumberMap(), model.NumberMap()
    ring, queue = NumberQueue(), model.NumberQueue()
    ids, hashes = IdSet(), model.IdSet()
    for action, number in zip(data[::2], data[1::2], strict=False):
        key, value = key_of(number), action + 1
        if action % 4 == 0 and entries.all(key):
            value = entries.all(key)[0]
            table.drop(key, value)
            entries.drop(key, value)
        elif action % 4 == 1:
            for _ in range(min(len(queue), number % 8)):
                assert ring.pop() == queue.pop()
        else:
            table.add(key, value)
            entries.add(key, value)
            ring.push(value)
            queue.push(value)
        step_ids(ids, hashes, action, number)
        assert sorted(table.all(key)) == entries.all(key)
        assert len(table) == len(entries)
        assert len(ring) == len(queue)
    assert sorted(table.items()) == entries.items()
    assert [ring[i] for i in range(len(ring))] == list(queue)


if __name__ == "__main__":
    atheris.Setup(sys.argv, fuzz_primitives)
    atheris.Fuzz()
