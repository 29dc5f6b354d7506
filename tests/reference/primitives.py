"""The kernels' primitives as plain Python: a hash table is a dict of lists, a ring is a deque."""

from __future__ import annotations

from collections import deque


class NumberMap:
    """base/hash_table: values by keys, several for a key where add() put them."""

    def __init__(self) -> None:
        self.values: dict[int, list[int]] = {}

    def __len__(self) -> int:
        return sum(map(len, self.values.values()))

    def add(self, key: int, value: int) -> None:
        self.values.setdefault(key, []).append(value)

    def drop(self, key: int, value: int) -> None:
        if value not in self.values.get(key, []):
            raise KeyError((key, value))
        self.values[key].remove(value)
        if not self.values[key]:
            del self.values[key]

    def all(self, key: int) -> list[int]:
        return sorted(self.values.get(key, []))

    def items(self) -> list[tuple[int, int]]:
        return sorted((key, value) for key, values in self.values.items() for value in values)


class IdSet:
    """base/id_table: hashes by id, numbered from 0 on."""

    def __init__(self) -> None:
        self.hashes: dict[int, int] = {}
        self.used = 0

    def __len__(self) -> int:
        return len(self.hashes)

    def add(self, h: int) -> int:
        self.hashes[self.used] = h
        self.used += 1
        return self.used - 1

    def drop(self, id: int) -> None:
        del self.hashes[id]

    def shrink(self) -> None:
        """Only memory changes."""

    def all(self, h: int) -> list[int]:
        return [id for id, hashed in self.hashes.items() if hashed == h]


class NumberQueue(deque[int]):
    """base/memory: first in, first out."""

    push = deque.append

    def pop(self) -> int:  # type: ignore[override]
        return self.popleft()


def capacity_after(capacity: int, count: int, width: int, first: int) -> int:
    """base/memory: doubled until it is enough, exact where doubling is more than half of all addresses."""
    most = (2**63 - 1) // width
    if count <= capacity:
        return capacity
    if count > most:
        return 0
    capacity = capacity or first
    while capacity < count:
        if capacity > most // 2:
            return count
        capacity *= 2
    return capacity
