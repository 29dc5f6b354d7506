"""Reads a block of nats.conf whose directives each set one option, by a table.

Errors are collected: a block is read to its end, so that one start names everything that is wrong in a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from penstock.errors import ConfigError
from penstock.server.config.conf_parser import ConfMap, ConfNode, SourceLocation
from penstock.server.config.config_errors import joined
from penstock.server.config.values import Reader

T = TypeVar("T")
_LIKENESS = 0.75  # of a known name to an unknown one, by difflib; below, suggestions are far-fetched


def fields(
    items: ConfMap, table: Mapping[str, tuple[str, Reader]], unsupported: frozenset[str]
) -> dict[str, Any]:
    """Parses a block in which each directive sets one option. Raises ConfigError with all errors in it."""
    found: dict[str, Any] = {}
    errors: list[ConfigError] = []
    for key, where, node in items:
        try:
            entry = table.get(key.lower())
            if entry is not None:
                found[entry[0]] = entry[1](node, key.lower())
            elif not node.used:
                check_without_effect(key, where, node, unsupported, table)
        except ConfigError as error:
            errors.append(error)
    if errors:
        raise joined(errors)
    return found


def each(entries: Iterable[ConfNode], read: Callable[[ConfNode], T]) -> tuple[T, ...]:
    """Reads each entry of an array. Raises ConfigError with the errors of all."""
    found: list[T] = []
    errors: list[ConfigError] = []
    for entry in entries:
        try:
            found.append(read(entry))
        except ConfigError as error:
            errors.append(error)
    if errors:
        raise joined(errors)
    return tuple(found)


def check_without_effect(
    key: str, where: SourceLocation, node: ConfNode, unsupported: frozenset[str], known: Iterable[str] = ()
) -> None:
    """Validates a directive that sets nothing. Raises ConfigError unless it has no effect without a
    cluster. known: the names that the block has."""
    name = key.lower()
    if name not in unsupported:
        raise unknown_field(key, where, [*known, *unsupported])
    from penstock.server.config.ignored_directives import CHECKS  # most configurations have none of them

    check = CHECKS.get(name)
    if check is None:
        raise where.error(f'field "{key}" is not supported by this server yet; remove it to start without it')
    check(node, name)


def _ratio(word: str, known: str) -> float:
    """How alike two words are, from 0 to 1."""
    import difflib  # only after a mistake

    return difflib.SequenceMatcher(None, known, word).ratio()


def unknown_field(
    key: str,
    where: SourceLocation,
    known: Iterable[str],
    elsewhere: Mapping[str, Iterable[str]] | None = None,
) -> ConfigError:
    """The error about a field that a block does not have. known: the names that it has. elsewhere: those of
    other blocks, by their names."""
    import difflib

    text = f'unknown field "{key}"'
    word = key.lower()
    near = difflib.get_close_matches(word, {*known}, n=4, cutoff=_LIKENESS)
    if near:
        # The same letters in another order first; of equally near ones, those with the same first letter.
        near.sort(key=lambda one: (sorted(one) != sorted(word), -_ratio(word, one), one[0] != word[0], one))
        return where.error(f'{text}; did you mean "{near[0]}"?')
    blocks = [block for block, names in (elsewhere or {}).items() if word in names]
    return where.error(f'{text}; it belongs in the block "{blocks[0]}"' if blocks else text)
