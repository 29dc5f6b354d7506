"""Subject transforms: map subjects with a source filter and a destination with functions.

    Transform("orders.*.*", "orders.{{partition(3,1)}}.$2.$1").apply(b"orders.eu.7", below)

Used for account mappings, a stream's subject_transform, sources and mirrors, republish and imports.

A destination is tokens separated by dots. A token `{{ name(arguments) }}` or `$<number>` is a function, any
other token is literal; a final `>` stands for the match of the source's `>`. Functions refer to the source's
`*` tokens by number, from 1.

Invariants: the destination is parsed once, by the constructor, so `apply` only joins bytes and cannot fail.
    Equal subjects have equal results unless `is_random`. The cost of `apply` is bounded, because clients can
    choose destination and subject: a destination has at most DESTINATION_MAX bytes, FUNCTIONS_MAX functions
    and ARGUMENTS_MAX arguments per function; a result above RESULT_MAX bytes becomes NO_SUBJECT.

Behaviour, order of checks and error texts are those of the official server (2.15). That includes: a number
below 1 refers to the subject's first token; `split` produces an empty token for a token that begins with two
delimiters or consists of delimiters, and the resulting invalid subject reaches no subscription, in both
servers. This module refuses what exceeds the limits above, and an empty destination, with which a mapping
crashes the official server at the first message. Where the API permits an empty destination, it means "no
transform", which callers handle.

Rejected: regular expressions and templates at run time (a list of functions over the tokens is shorter and
    ten times as fast); an exception type of its own (a transform is always configuration).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from penstock.errors import ConfigError
from penstock.kernels.routing.filter_trie import FilterSet
from penstock.kernels.routing.grammar import fnv1a_32
from penstock.protocol.subjects import is_valid_filter

Below = Callable[[int], int]
"""`below(n)` returns a uniformly distributed integer in [0, n); n >= 1."""

Part = Callable[[list[bytes], bytes, Below], bytes]
"""One part of a destination: (tokens of the subject, subject, below) -> text, which may contain dots."""

INVALID_SUBJECT = "invalid subject"
_PREFIX = "invalid mapping destination: "
INVALID_TRANSFORM = _PREFIX + "invalid transform"
UNKNOWN_FUNCTION = _PREFIX + "unknown function"
OUT_OF_RANGE = _PREFIX + "wildcard index out of range"
NOT_ENOUGH_ARGUMENTS = _PREFIX + "not enough arguments passed to the function"
TOO_MANY_ARGUMENTS = _PREFIX + "too many arguments passed to the function"
INVALID_ARGUMENT = _PREFIX + "function argument is invalid or in the wrong format"
UNUSED_WILDCARDS = _PREFIX + "not using all of the token wildcard(s)"
ONLY_WILDCARD = _PREFIX + "the only mapping function allowed for import transforms is {{Wildcard()}}"

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
UINT32_MASK = 2**32 - 1

DESTINATION_MAX = 4096  # bytes
FUNCTIONS_MAX = 64  # per destination, including `$1`
ARGUMENTS_MAX = 64  # per function
RESULT_MAX = 32 * 1024  # bytes of a result
NO_SUBJECT = b""
"""The result for subjects whose result would be too long. No subscription can match it."""

_NUMBER_MAX = 10  # maximum digits of a `partition` or `random` result

_INTEGER = re.compile(r"[+-]?[0-9]+")
_FUNCTION = re.compile(r"\{\{\s*([A-Za-z]+)\s*\((.*)\)\s*\}\}", re.ASCII)
_SPACE = frozenset(" \t\r\n\f")


class SourceFilter:
    """The source filter of a transform. Raises ConfigError when it is invalid.

    size: number of tokens; stars: indexes of its `*` tokens; has_tail: whether it ends in `>`.
    """

    __slots__ = ("_literals", "has_tail", "size", "stars")

    def __init__(self, source: str) -> None:
        if not is_valid_filter(source):
            raise ConfigError(INVALID_SUBJECT)
        tokens = source.split(".")
        self.size = len(tokens)
        self.has_tail = tokens[-1] == ">"
        self.stars = [i for i, token in enumerate(tokens) if token == "*"]
        self._literals = [(i, token.encode()) for i, token in enumerate(tokens) if token not in ("*", ">")]

    def matches(self, subject: bytes) -> bool:
        """Whether it matches the subject. `*` does not match an empty token, `>` does, as in the official
        server."""
        return self.matches_tokens(subject.split(b"."))

    def matches_tokens(self, tokens: list[bytes]) -> bool:
        """The same for a subject that is already split."""
        if len(tokens) < self.size or (len(tokens) > self.size and not self.has_tail):
            return False
        return all(tokens[i] == text for i, text in self._literals) and all(tokens[i] for i in self.stars)


class Transform:
    """A source filter and a destination.

    Args:
        source: a filter; "" means `>`.
        destination: the destination.
        strict: rules for imports: only `wildcard(i)` and `$i`, and every `*` of the source must be used.

    Raises:
        ConfigError: invalid source or destination, with the official server's text.
    """

    __slots__ = ("_parts", "_short", "destination", "filter", "is_random", "source")

    def __init__(self, source: str, destination: str, *, strict: bool = False) -> None:
        self.source = source or ">"
        self.destination = destination
        parsed = _parsed(destination)
        self.filter = SourceFilter(self.source)
        stars, has_tail = self.filter.stars, self.filter.has_tail
        texts = [token.text for token in parsed]
        if "*" in texts or (texts[-1] == ">") != has_tail:
            raise ConfigError(INVALID_SUBJECT)
        if strict:
            _check_functions(parsed)
        if has_tail:
            parsed.pop()
        parts = [token.part(stars, has_wildcard=has_tail or bool(stars)) for token in parsed]
        if strict:
            _check_used(parsed, stars, destination)
        if has_tail:
            parts.append(_tail(self.filter.size - 1))
        self._parts = parts
        self._short = _short(parsed, has_tail=has_tail)
        self.is_random = any(token.name == "random" for token in parsed)

    def apply(self, subject: bytes, below: Below) -> bytes:
        """The result for a subject that the source matches; NO_SUBJECT above RESULT_MAX bytes. Only `random`
        calls `below`."""
        tokens = subject.split(b".")
        if len(subject) > self._short:
            return self._apply_long(tokens, subject, below)
        return b".".join([part(tokens, subject, below) for part in self._parts])

    def _apply_long(self, tokens: list[bytes], subject: bytes, below: Below) -> bytes:
        """The same for subjects that may have a long result. Stops at RESULT_MAX."""
        found: list[bytes] = []
        size = -1  # one dot less than parts
        for part in self._parts:
            text = part(tokens, subject, below)
            size += 1 + len(text)
            if size > RESULT_MAX:
                return NO_SUBJECT
            found.append(text)
        return b".".join(found)

    def __repr__(self) -> str:
        return f"Transform({self.source!r}, {self.destination!r})"


class FirstMatch:
    """Finds the first of many source filters that matches a subject, at little more than the cost of one."""

    __slots__ = ("_filters", "_set")

    def __init__(self, sources: Iterable[str]) -> None:
        self._filters: list[SourceFilter] = []
        self._set: FilterSet[int] = FilterSet()
        for place, source in enumerate(sources):
            self._filters.append(SourceFilter(source))
            self._set.add(source.encode(), place)

    def find(self, subject: bytes) -> int | None:
        """Index of the first matching filter; None when none matches."""
        places = self._set.owners_matching(subject)
        if not places:
            return None
        tokens = subject.split(b".")
        # In the set, `*` also matches an empty token.
        return min((place for place in places if self._filters[place].matches_tokens(tokens)), default=None)


# --- parsing a destination


def _tokens(destination: str) -> list[str]:
    """Splits a destination into tokens and checks its form. Raises ConfigError."""
    tokens = destination.split(".")
    for i, token in enumerate(tokens):
        is_function = _looks_like_function(token)
        if not token or (not is_function and not _SPACE.isdisjoint(token)) or "\0" in token:
            raise ConfigError(INVALID_TRANSFORM)
        if i and tokens[i - 1] == ">":
            raise ConfigError(f"{INVALID_TRANSFORM} in {token}")
    return tokens


def _parsed(destination: str) -> list[_Token]:
    if len(destination.encode("utf-8", "surrogatepass")) > DESTINATION_MAX:
        raise ConfigError(f"{_PREFIX}it is longer than {DESTINATION_MAX} bytes")
    parsed = [_Token(text) for text in _tokens(destination)]
    if sum(bool(token.name) for token in parsed) > FUNCTIONS_MAX:
        raise ConfigError(f"{_PREFIX}it has more than {FUNCTIONS_MAX} functions")
    return parsed


def _short(tokens: list[_Token], *, has_tail: bool) -> int:
    """The subject length in bytes up to which no result can be too long: `split` and similar functions insert
    at most one dot per byte."""
    fixed = sum(_NUMBER_MAX if token.name else len(token.text.encode()) for token in tokens) + len(tokens)
    copies = sum(token.name not in ("", "random", "partition") for token in tokens) + has_tail
    return (RESULT_MAX - fixed) // (2 * copies) if copies else RESULT_MAX


def _looks_like_function(token: str) -> bool:
    return len(token) > 4 and token.startswith("{{") and token.endswith("}}")


class _Token:
    """A parsed token of a destination, not yet bound to a source.

    name: name of the function in lower case; "" for a literal.
    indexes: numbers of the source wildcards it uses.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.name = ""
        self.indexes: list[int] = []
        self.size = 0
        self.delimiter = b""
        if text.startswith("$"):
            index = _integer(text[1:])
            if index is not None:
                self.name, self.indexes = "wildcard", [index]
        elif _looks_like_function(text):
            match = _FUNCTION.fullmatch(text)
            reader = _READERS.get(_canonical(match[1])) if match else None
            if match is None or reader is None:
                raise self.fail(UNKNOWN_FUNCTION)
            self.name = _canonical(match[1])
            arguments = re.split(r",\s*", match[2])
            if len(arguments) > ARGUMENTS_MAX:
                raise self.fail(TOO_MANY_ARGUMENTS)
            reader(self, arguments)

    def fail(self, text: str, suffix: str = "") -> ConfigError:
        return ConfigError(f"{text} in {self.text}{suffix}")

    def integer(self, argument: str, low: int, high: int) -> int:
        value = _integer(argument.strip())
        if value is None or not low <= value <= high:
            raise self.fail(INVALID_ARGUMENT)
        return value

    def index(self, argument: str) -> int:
        return self.integer(argument, -INT64_MAX - 1, INT64_MAX)

    def count(self, argument: str) -> int:
        return self.integer(argument, -INT32_MAX - 1, INT32_MAX)

    # Readers of arguments. The error texts are the official server's, including odd ones.

    def read_wildcard(self, arguments: list[str]) -> None:
        if arguments == [""]:
            raise self.fail(NOT_ENOUGH_ARGUMENTS)
        if len(arguments) > 1:
            raise self.fail(TOO_MANY_ARGUMENTS)
        self.indexes = [self.index(arguments[0])]

    def read_partition(self, arguments: list[str]) -> None:
        self.size = self.count(arguments[0]) & UINT32_MASK
        self.indexes = [self.index(argument) for argument in arguments[1:]]

    def read_random(self, arguments: list[str]) -> None:
        if len(arguments) != 1:
            raise self.fail(NOT_ENOUGH_ARGUMENTS)
        self.size = self.count(arguments[0])

    def read_split(self, arguments: list[str]) -> None:
        self._read_two(arguments)
        self.indexes = [self.index(arguments[0])]
        if " " in arguments[1]:  # a dot cannot occur: it would have ended the token
            raise self.fail(INVALID_ARGUMENT)
        self.delimiter = arguments[1].encode()

    def read_index_and_size(self, arguments: list[str]) -> None:
        self._read_two(arguments)
        self.indexes = [self.index(arguments[0])]
        self.size = self.count(arguments[1])

    def _read_two(self, arguments: list[str]) -> None:
        if len(arguments) < 2:
            raise self.fail(NOT_ENOUGH_ARGUMENTS)
        if len(arguments) > 2:
            raise self.fail(TOO_MANY_ARGUMENTS)

    def part(self, stars: list[int], *, has_wildcard: bool) -> Part:
        """The part this token produces for a source with `*` at these indexes.

        Raises ConfigError when it refers to a wildcard that the source does not have.
        """
        if not self.name:
            return _literal(self.text.encode())
        if self.name == "random":
            return _random(self.size)
        if self.name == "partition" and (not has_wildcard or not self.indexes):
            return _partition_of_subject(self.size)
        if not has_wildcard:
            raise self.fail(OUT_OF_RANGE)
        for index in self.indexes:
            if index > len(stars):
                raise self.fail(OUT_OF_RANGE, f": [{index}]")
        places = [stars[index - 1] if index >= 1 else 0 for index in self.indexes]
        if self.name == "partition":
            return _partition(self.size, places)
        if self.name == "split":
            return _of_token(places[0], _split_by(self.delimiter))
        return _of_token(places[0], _SHAPES[self.name](self.size))


_READERS: dict[str, Callable[[_Token, list[str]], None]] = {
    "wildcard": _Token.read_wildcard,
    "partition": _Token.read_partition,
    "random": _Token.read_random,
    "split": _Token.read_split,
    **dict.fromkeys(
        ("splitfromleft", "splitfromright", "slicefromleft", "slicefromright", "left", "right"),
        _Token.read_index_and_size,
    ),
}


def _canonical(name: str) -> str:
    """The name in lower case; "" when it has a capital letter other than at the start of a word."""
    match = _NAME.fullmatch(name)
    return name.lower() if match else ""


_NAME = re.compile(
    r"[Ww]ildcard|[Pp]artition|[Rr]andom|[Ss]plit|[Ss](?:plit|lice)[Ff]rom(?:[Ll]eft|[Rr]ight)|[Ll]eft|[Rr]ight"
)


def _integer(text: str) -> int | None:
    """Parses a decimal number as Go does; None for anything else."""
    if not _INTEGER.fullmatch(text) or len(text) > 20:
        return None
    value = int(text)
    return value if -INT64_MAX - 1 <= value <= INT64_MAX else None


def _check_functions(tokens: list[_Token]) -> None:
    for token in tokens:
        if token.name not in ("", "wildcard"):
            raise token.fail(ONLY_WILDCARD)


def _check_used(tokens: list[_Token], stars: list[int], destination: str) -> None:
    used = {index for token in tokens for index in token.indexes}
    if not used.issuperset(range(1, len(stars) + 1)):
        raise ConfigError(f"{UNUSED_WILDCARDS} in {destination}")


# --- parts


def _literal(text: bytes) -> Part:
    return lambda tokens, subject, below: text


def _tail(start: int) -> Part:
    return lambda tokens, subject, below: b".".join(tokens[start:])


def _random(size: int) -> Part:
    if size <= 0:
        return _literal(b"0")
    return lambda tokens, subject, below: b"%d" % below(size)


def _partition(size: int, places: list[int]) -> Part:
    if size == 0:
        return _literal(b"0")
    return lambda tokens, subject, below: b"%d" % (fnv1a_32([tokens[place] for place in places]) % size)


def _partition_of_subject(size: int) -> Part:
    if size == 0:
        return _literal(b"0")
    return lambda tokens, subject, below: b"%d" % (fnv1a_32([subject]) % size)


def _of_token(place: int, shape: Callable[[bytes], bytes] | None) -> Part:
    if shape is None:
        return lambda tokens, subject, below: tokens[place]
    return lambda tokens, subject, below: shape(tokens[place])


# --- shapes: functions on one token


def _split_by(delimiter: bytes) -> Callable[[bytes], bytes]:
    def split(token: bytes) -> bytes:
        words = token.split(delimiter) if delimiter else _characters(token)
        joined = b".".join([word for word in words if word])
        # As in the official server, the dot between two leading delimiters stays.
        return b"." + joined if joined and words[:2] == [b"", b""] else joined

    return split


def _characters(token: bytes) -> list[bytes]:
    text = token.decode("utf-8", "surrogateescape")
    return [char.encode("utf-8", "surrogateescape") for char in text]


def _split_from_left(size: int) -> Callable[[bytes], bytes]:
    def split(token: bytes) -> bytes:
        return token[:size] + b"." + token[size:] if 0 < size < len(token) else token

    return split


def _split_from_right(size: int) -> Callable[[bytes], bytes]:
    def split(token: bytes) -> bytes:
        return token[:-size] + b"." + token[-size:] if 0 < size < len(token) else token

    return split


def _slices(token: bytes, first: int, size: int) -> bytes:
    """Splits into pieces of `size` bytes; the first has `first` bytes."""
    return b".".join([token[:first], *(token[i : i + size] for i in range(first, len(token), size))])


def _slice_from_left(size: int) -> Callable[[bytes], bytes]:
    return lambda token: _slices(token, size, size) if 0 < size < len(token) else token


def _slice_from_right(size: int) -> Callable[[bytes], bytes]:
    return lambda token: _slices(token, len(token) % size or size, size) if 0 < size < len(token) else token


def _left(size: int) -> Callable[[bytes], bytes]:
    return lambda token: token[:size] if 0 < size < len(token) else token


def _right(size: int) -> Callable[[bytes], bytes]:
    return lambda token: token[-size:] if 0 < size < len(token) else token


_SHAPES: dict[str, Callable[[int], Callable[[bytes], bytes] | None]] = {
    "wildcard": lambda size: None,
    "splitfromleft": _split_from_left,
    "splitfromright": _split_from_right,
    "slicefromleft": _slice_from_left,
    "slicefromright": _slice_from_right,
    "left": _left,
    "right": _right,
}
