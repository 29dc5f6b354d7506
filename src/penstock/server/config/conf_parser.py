"""Parser of nats.conf: text to a tree of values with source locations.

A recursive-descent parser without a separate lexer. The tree has no semantics; `directives` converts it to
`ServerOptions`. Every error has file, line and column.

Grammar (as in the official server): items `key: value`, `key = value`, `key value`, maps `{}`, arrays `[]`;
comments `#` and `//`; integers with suffixes for powers of 1000 (k m g t p e) or 1024 (kb ki kib ...);
`$NAME` refers to an earlier key of the enclosing maps, or else to the environment; `include 'file'` merges
that file's keys into the current map. An included file sees only its own variables, and an unmatched `}` at
the end of a file is accepted, as there.

Rejected: converting values to options while parsing. Variables may hold whole blocks that are used in several
places, and only at the end can unknown keys be distinguished from variables.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from penstock.errors import ConfigError

INCLUDE_DEPTH_MAX = 32
NESTING_MAX = 100  # levels of maps and arrays; no directive needs ten
INTEGER_DIGITS_MAX = 19  # of a signed 64-bit integer, the official server's type


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """A position in a configuration file; line and column count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    def error(self, text: str) -> ConfigError:
        """A ConfigError at this location."""
        return ConfigError(text, file=self.file, line=self.line, column=self.column)


Scalar = str | int | float | bool | datetime


@dataclass(slots=True)
class ConfNode:
    """A value and its location. `used` is set when a variable refers to it; `warning` is an error of a
    configuration test (`-t`), with which a server nevertheless starts."""

    value: Scalar | ConfMap | list[ConfNode]
    where: SourceLocation
    used: bool = False
    warning: str = ""

    def mark_used(self) -> None:
        """A variable refers to the value: its key need not be a directive."""
        self.used = True

    def warn(self, text: str) -> None:
        """Notes an error of a configuration test."""
        self.warning = text


@dataclass(slots=True)
class ConfMap:
    """The items of a block by key, in their original case; `where_of` has the location of each key."""

    items: dict[str, ConfNode] = field(default_factory=dict)
    where_of: dict[str, SourceLocation] = field(default_factory=dict)

    def put(self, key: str, where: SourceLocation, node: ConfNode) -> None:
        """Sets an item; the last one of repeated keys wins."""
        self.items[key] = node
        self.where_of[key] = where

    def __iter__(self) -> Iterator[tuple[str, SourceLocation, ConfNode]]:
        return ((key, self.where_of[key], node) for key, node in self.items.items())


# A word that begins with a plus is a string, as in the official server.
_INTEGER = re.compile(r"-?[0-9]+")
_SIZED = re.compile(r"(-?[0-9]+)([A-Za-z]{1,3})")
_FLOAT = re.compile(r"-?[0-9]+\.[0-9]+")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
_POWER = {"k": 1, "m": 2, "g": 3, "t": 4, "p": 5, "e": 6}
_BOOLEAN = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_ESCAPE = {"t": "\t", "n": "\n", "r": "\r", '"': '"', "\\": "\\"}
_KEY = re.compile(r"[^ \t\r\n:={]*")
_BARE = re.compile(r"[^ \t\r\n,;\]}\\]*")
_QUOTED = {"'": re.compile(r"[^']*"), '"': re.compile(r'[^"\\]*')}
_BLANKS = re.compile(r"[ \t\r]*")
_SPACE = re.compile(r"[ \t\r\n]*")
_BETWEEN_LINES = re.compile(r"[ \t\r\n;]*")
_BETWEEN_ITEMS = re.compile(r"[ \t\r\n,;]*")
_BETWEEN_VALUES = re.compile(r"[ \t\r\n,]*")
_HASH = re.compile(r"\$2[aby]?\$")  # start of a bcrypt hash, which is not a variable


class _Reader:
    """Parses one text. `scopes` are the enclosing maps, innermost last."""

    def __init__(
        self,
        text: str,
        file: str,
        scopes: list[ConfMap],
        environ: dict[str, str],
        open_file: Callable[[str], str],
        depth: int,
        nesting: int = 0,
        resolving: frozenset[str] = frozenset(),
    ) -> None:
        self.text = text
        self.file = file
        self.at = 0
        self._line = 1  # line of the offset `_placed`, up to which lines are counted
        self._line_start = 0
        self._placed = 0
        self.scopes = scopes
        self.environ = environ
        self.open_file = open_file
        self.depth = depth
        self.nesting = nesting
        self.resolving = resolving  # variables of the environment whose values contain this text

    # -- characters

    def where(self) -> SourceLocation:
        """The current location. Counts lines from the previous call on, so that the text is scanned once."""
        newlines = self.text.count("\n", self._placed, self.at)
        if newlines:
            self._line += newlines
            self._line_start = self.text.rfind("\n", self._placed, self.at) + 1
        self._placed = self.at
        return SourceLocation(self.file, self._line, self.at - self._line_start + 1)

    def fail(self, text: str, where: SourceLocation | None = None) -> ConfigError:
        return (where or self.where()).error(text)

    def bad(self, text: str, where: SourceLocation | None = None) -> ConfigError:
        """An error of the grammar, with words that scripts search for in the official server's output."""
        where = where or self.where()
        return where.error(f"Parse error on line {where.line}: {text}")

    def peek(self) -> str:
        """The next character; "" at the end."""
        return self.text[self.at : self.at + 1]

    def advance(self) -> str:
        char = self.text[self.at]
        self.at += 1
        return char

    def take(self, pattern: re.Pattern[str]) -> str:
        """Consumes and returns the match of a pattern, which may be empty."""
        found = pattern.match(self.text, self.at)
        assert found is not None
        self.at = found.end()
        return found[0]

    def skip(self, pattern: re.Pattern[str]) -> None:
        """Skips matches of the pattern, and comments (up to the newline)."""
        text = self.text
        while True:
            self.take(pattern)
            if not text.startswith(("#", "//"), self.at):
                return
            end = text.find("\n", self.at)
            self.at = len(text) if end < 0 else end

    # -- items

    def document(self, into: ConfMap) -> None:
        """Parses the whole text: items, optionally in one pair of braces."""
        if "\0" in self.text:
            self.at = self.text.index("\0")
            raise self.bad("a NUL character: no value may hold one")
        self.skip(_SPACE)
        if self.peek() == "{":
            self.advance()
            self.map_items(into)
            self.skip(_BETWEEN_ITEMS)
            if self.peek():
                raise self.bad(f"expected the end of the file after the closing brace, found {self.peek()!r}")
            return
        while True:
            self.skip(_BETWEEN_LINES)
            if not self.peek() or self.ends_with_stray_brace():
                return
            self.item(into, in_map=False)
            self.skip(_BLANKS)
            if self.ends_with_stray_brace():
                return
            if self.peek() == ",":
                self.advance()
            elif self.peek() not in ("", "\n", ";"):
                raise self.bad(f"expected a new line, ';' or a comment after a value, found {self.peek()!r}")

    def ends_with_stray_brace(self) -> bool:
        """Whether only one unmatched closing brace is left."""
        return self.peek() == "}" and not self.text[self.at + 1 :].strip(" \t\r\n")

    def map_items(self, into: ConfMap) -> None:
        """Parses items up to and including the closing brace."""
        opened = self.where()
        while True:
            self.skip(_BETWEEN_ITEMS)
            if not self.peek():
                raise self.bad(f"the map opened at line {opened.line} is not closed: expected '}}'")
            if self.peek() == "}":
                self.advance()
                return
            self.item(into, in_map=True)
            self.skip(_BLANKS)
            if self.peek() not in ("", "\n", ",", ";", "}"):
                raise self.bad(f"expected a new line, ',', ';' or '}}' after a value, found {self.peek()!r}")

    def item(self, into: ConfMap, *, in_map: bool) -> None:
        where = self.where()
        key = self.key()
        if key.lower() == "include" and self.peek() not in (":", "="):
            self.skip(_BLANKS)
            if self.peek() not in (":", "=", "{"):
                self.include(into, where)
                return
        self.skip(_SPACE)  # newlines are allowed before the separator or the value
        if self.peek() and self.peek() in ":=":
            self.advance()
            self.skip(_SPACE if in_map else _BLANKS)
        if self.peek() in ("", "\n", "}", "]", ",", ";"):
            raise self.bad(f'key "{key}" has no value', where)
        into.put(key, where, self.value())

    def key(self) -> str:
        if self.peek() in ("'", '"'):
            return self.quoted(self.advance())
        key = self.take(_KEY)
        if not key:
            raise self.bad(f"expected a key, found {self.peek()!r}")
        return key

    def include(self, into: ConfMap, where: SourceLocation) -> None:
        name = self.quoted(self.advance()) if self.peek() in ("'", '"') else self.bare()
        if self.depth >= INCLUDE_DEPTH_MAX:
            raise self.fail(f"include '{name}': more than {INCLUDE_DEPTH_MAX} files inside each other", where)
        path = os.path.join(os.path.dirname(self.file), name)
        try:
            text = self.open_file(path)
        except (OSError, ValueError) as error:  # ValueError: invalid path or encoding
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise self.fail(f"error parsing include file '{name}', {why}: {path}", where) from error
        included = ConfMap()
        inner = _Reader(text, path, [included], self.environ, self.open_file, self.depth + 1, self.nesting)
        inner.document(included)
        for key, at, node in included:
            into.put(key, at, node)

    # -- values

    def value(self) -> ConfNode:
        where = self.where()
        char = self.peek()
        if char in ("{", "["):
            return ConfNode(self.nested(self.advance()), where)
        if char in ("'", '"'):
            self.advance()
            return ConfNode(self.quoted(char), where)
        if char == "(":
            self.advance()
            return ConfNode(self.block_text(where), where)
        word = self.bare()
        if word.startswith("$") and not _HASH.match(word):
            return self.variable(word[1:], where)
        try:
            return ConfNode(scalar(word), where)
        except ValueError as error:
            raise self.fail(str(error), where) from None

    def nested(self, opening: str) -> ConfMap | list[ConfNode]:
        """Parses a map or array after its opening bracket. NESTING_MAX limits the recursion, not the
        stack."""
        if self.nesting >= NESTING_MAX:
            raise self.fail(f"more than {NESTING_MAX} maps and arrays inside each other")
        self.nesting += 1
        if opening == "[":
            found: ConfMap | list[ConfNode] = self.array()
        else:
            found = ConfMap()
            self.scopes.append(found)
            self.map_items(found)
            self.scopes.pop()
        self.nesting -= 1
        return found

    def array(self) -> list[ConfNode]:
        opened = self.where()
        nodes: list[ConfNode] = []
        while True:
            self.skip(_BETWEEN_VALUES)
            if not self.peek():
                raise self.bad(f"the array opened at line {opened.line} is not closed: expected ']'")
            if self.peek() == "]":
                self.advance()
                return nodes
            nodes.append(self.value())
            self.skip(_BLANKS)
            if self.peek() not in ("", "\n", ",", "]"):
                raise self.bad(f"expected a new line, ',' or ']' after a value, found {self.peek()!r}")

    def quoted(self, quote: str) -> str:
        """Parses the rest of a quoted string; only double quotes support escapes."""
        where = self.where()
        parts: list[str] = []
        while True:
            parts.append(self.take(_QUOTED[quote]))
            if not self.peek():
                raise self.bad("unexpected end of the file in a string", where)
            if self.advance() == quote:
                return "".join(parts)
            parts.append(self.escape())

    def escape(self) -> str:
        if not self.peek():
            raise self.bad("unexpected end of the file in an escape")
        char = self.advance()
        if char == "x":
            digits = self.text[self.at : self.at + 2]
            if not re.fullmatch(r"[0-9A-Fa-f]{2}", digits):
                raise self.bad(f"expected two hexadecimal digits after '\\x', found {digits!r}")
            if digits == "00":
                raise self.bad("a NUL character: no value may hold one")
            self.at += 2
            return chr(int(digits, 16))
        if char not in _ESCAPE:
            raise self.bad(f'invalid escape {char!r}; known are \\xXX, \\t, \\n, \\r, \\", \\\\')
        return _ESCAPE[char]

    def bare(self) -> str:
        parts = [self.take(_BARE)]
        while self.peek() == "\\":
            self.advance()
            parts += (self.escape(), self.take(_BARE))
        word = "".join(parts)
        if not word:
            raise self.bad(f"expected a value, found {self.peek()!r}")
        return word

    def block_text(self, where: SourceLocation) -> str:
        """Parses text up to a line with only a closing parenthesis."""
        start = self.at
        while (newline := self.text.find("\n", self.at)) >= 0:
            self.at = newline + 1
            end = self.text.find("\n", self.at)
            line = self.text[self.at : end if end >= 0 else len(self.text)]
            if line.strip() == ")":
                text = self.text[start : self.at]
                self.at += line.index(")") + 1
                return text.strip("\n")
        raise self.bad("the block is not closed: expected ')' alone on a line", where)

    def variable(self, name: str, where: SourceLocation) -> ConfNode:
        for scope in reversed(self.scopes):
            node = scope.items.get(name)
            if node is not None:
                node.mark_used()
                return ConfNode(node.value, where)
        if name in self.resolving:
            raise self.fail(f"variable reference cycle for '{name}'", where)
        text = self.environ.get(name)
        if text is None:
            raise self.fail(f"variable reference for '{name}' on line {where.line} can not be found", where)
        if not text.isprintable() and any("\ud800" <= char <= "\udfff" for char in text):
            raise self.fail(f"variable '{name}' from the environment is not UTF-8", where)
        inner = _Reader(
            text,
            self.file,
            self.scopes,
            self.environ,
            self.open_file,
            self.depth,
            self.nesting,
            self.resolving | {name},
        )
        inner.skip(_BLANKS)
        try:
            return ConfNode(inner.value().value, where) if inner.peek() else ConfNode("", where)
        except ConfigError as error:
            raise self.fail(f"variable '{name}' from the environment: {error}", where) from error


def scalar(word: str) -> Scalar:
    """The value of a bare word: a boolean, an integer (with size suffix), a float, a time, or the word
    itself.

    Raises ValueError for a number out of range or an invalid time.
    """
    known = _BOOLEAN.get(word.lower())
    if known is not None:
        return known
    if _INTEGER.fullmatch(word):
        return _integer(word, word)
    sized = _SIZED.fullmatch(word)
    if sized:
        suffix = sized[2].lower()
        power = _POWER.get(suffix[0])
        if power is not None and suffix[1:] == "":
            return _integer(sized[1], word, int(1000**power))
        if power is not None and suffix[1:] in ("b", "i", "ib"):
            return _integer(sized[1], word, 1 << 10 * power)
    if _FLOAT.fullmatch(word):
        if math.isinf(number := float(word)):
            raise ValueError(f"float '{_short(word)}' is out of the range")
        return number
    if _TIME.fullmatch(word):
        try:
            return datetime.strptime(word, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        except ValueError:
            raise ValueError(f"expected Zulu formatted DateTime, but got '{word}'") from None
    return word


def _integer(digits: str, word: str, unit: int = 1) -> int:
    """Raises ValueError for more than 64 bits. Python would accept any number of up to 4,300 digits,
    slowly."""
    if len(digits.lstrip("+-0")) <= INTEGER_DIGITS_MAX and -(2**63) <= (number := int(digits) * unit) < 2**63:
        return number
    raise ValueError(f"integer '{_short(word)}' is out of the range")


def _short(word: str) -> str:
    return word if len(word) <= 100 else word[:100] + "..."


def _read_text(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def parse(
    text: str,
    file: str = "nats.conf",
    *,
    environ: dict[str, str] | None = None,
    open_file: Callable[[str], str] = _read_text,
) -> ConfMap:
    """Parses a configuration text.

    Args:
        text: the configuration.
        file: its name, for errors and as the base of `include` paths.
        environ: variables that no key defines; default `os.environ`.
        open_file: returns the text of an included file.

    Raises:
        ConfigError: syntax error, undefined variable or unreadable included file.
    """
    top = ConfMap()
    _Reader(text, file, [top], dict(os.environ) if environ is None else environ, open_file, 0).document(top)
    return top


def parse_file(path: str) -> ConfMap:
    """Parses a configuration file. Raises ConfigError, or OSError when the file is unreadable."""
    try:
        text = _read_text(path)
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"not UTF-8: byte {error.start} is {error.object[error.start]:#04x}", file=path
        ) from error
    return parse(text, path)
