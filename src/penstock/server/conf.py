"""The grammar of nats.conf: text to a tree of values that know where they stand.

A tokenizing recursive-descent reader over one text. What it yields has no meaning yet; `directives`
turns the tree into `Options`. Every error names file, line and column.

Grammar (as the official server reads it): items `key: value`, `key = value`, `key value`, maps `{}`, arrays
`[]`; comments `#` and `//`; integers with suffixes of powers of 1000 (k m g t p e) or 1024 (kb ki kib ...);
`$NAME` refers to an earlier key of the enclosing maps, then to the environment; `include 'file'` merges that
file's keys into the current map.

Rejected: reading values straight into options while parsing. Variables may hold whole blocks that are
used in several places, and unknown keys can only be told from variables at the end.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from penstock.errors import ConfigError

INCLUDE_DEPTH_MAX = 32


@dataclass(frozen=True, slots=True)
class Where:
    """A place in a configuration file; line and column count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    def error(self, text: str) -> ConfigError:
        """The exception that says so of this place."""
        return ConfigError(text, file=self.file, line=self.line, column=self.column)


Scalar = str | int | float | bool | datetime


@dataclass(slots=True)
class Node:
    """A value and where it stands. `used` is set once a variable referred to it."""

    value: Scalar | Map | list[Node]
    where: Where
    used: bool = False


@dataclass(slots=True)
class Map:
    """The items of a block, by key as written; `where_of` is where each key stands."""

    items: dict[str, Node] = field(default_factory=dict)
    where_of: dict[str, Where] = field(default_factory=dict)

    def put(self, key: str, where: Where, node: Node) -> None:
        """The last of repeated keys wins."""
        self.items[key] = node
        self.where_of[key] = where

    def __iter__(self) -> Iterator[tuple[str, Where, Node]]:
        return ((key, self.where_of[key], node) for key, node in self.items.items())


_INTEGER = re.compile(r"[+-]?\d+")
_SIZED = re.compile(r"([+-]?\d+)([A-Za-z]{1,3})")
_FLOAT = re.compile(r"[+-]?\d+\.\d+")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_POWER = {"k": 1, "m": 2, "g": 3, "t": 4, "p": 5, "e": 6}
_BOOLEAN = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_ESCAPE = {"t": "\t", "n": "\n", "r": "\r", '"': '"', "\\": "\\"}
_KEY_END = frozenset(" \t\r\n:={")
_BARE_END = frozenset(" \t\r\n,;]}")
_BLANK = frozenset(" \t\r")


class _Reader:
    """Reads one text. `scopes` are the maps around the current place, innermost last."""

    def __init__(
        self,
        text: str,
        file: str,
        scopes: list[Map],
        environ: dict[str, str],
        open_file: Callable[[str], str],
        depth: int,
    ) -> None:
        self.text = text
        self.file = file
        self.at = 0
        self.line = 1
        self.line_start = 0
        self.scopes = scopes
        self.environ = environ
        self.open_file = open_file
        self.depth = depth
        self.resolving: set[str] = set()

    # -- characters

    def where(self) -> Where:
        return Where(self.file, self.line, self.at - self.line_start + 1)

    def fail(self, text: str, where: Where | None = None) -> ConfigError:
        return (where or self.where()).error(text)

    def peek(self) -> str:
        """The next character, "" at the end."""
        return self.text[self.at : self.at + 1]

    def advance(self) -> str:
        char = self.text[self.at]
        self.at += 1
        if char == "\n":
            self.line += 1
            self.line_start = self.at
        return char

    def skip(self, chars: frozenset[str]) -> None:
        """Skips these characters and comments (a comment ends before its newline)."""
        while self.at < len(self.text):
            if self.text[self.at] in chars:
                self.advance()
            elif self.text[self.at] == "#" or self.text.startswith("//", self.at):
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return

    # -- items

    def document(self, into: Map) -> None:
        """The whole text: items, which may stand in one pair of braces."""
        self.skip(frozenset(" \t\r\n"))
        if self.peek() == "{":
            self.advance()
            self.map_items(into)
            self.skip(frozenset(" \t\r\n;,"))
            if self.peek():
                raise self.fail(
                    f"expected the end of the file after the closing brace, found {self.peek()!r}"
                )
            return
        while True:
            self.skip(frozenset(" \t\r\n;"))
            if not self.peek():
                return
            self.item(into, in_map=False)
            self.skip(_BLANK)
            if self.peek() == ",":
                self.advance()
            elif self.peek() not in ("", "\n", ";"):
                raise self.fail(f"expected a new line, ';' or a comment after a value, found {self.peek()!r}")

    def map_items(self, into: Map) -> None:
        """Items up to and with the closing brace."""
        opened = self.where()
        while True:
            self.skip(frozenset(" \t\r\n,;"))
            if not self.peek():
                raise self.fail(f"the map opened at line {opened.line} is not closed: expected '}}'")
            if self.peek() == "}":
                self.advance()
                return
            self.item(into, in_map=True)
            self.skip(_BLANK)
            if self.peek() not in ("", "\n", ",", ";", "}"):
                raise self.fail(f"expected a new line, ',', ';' or '}}' after a value, found {self.peek()!r}")

    def item(self, into: Map, *, in_map: bool) -> None:
        where = self.where()
        key = self.key()
        if key.lower() == "include" and self.peek() not in (":", "="):
            self.skip(_BLANK)
            if self.peek() not in (":", "=", "{"):
                self.include(into, where)
                return
        anywhere = frozenset(" \t\r\n")
        blanks = anywhere if in_map else _BLANK
        self.skip(anywhere)  # before the separator, or a value without one, lines may end
        if self.peek() and self.peek() in ":=":
            self.advance()
            self.skip(blanks)
        if self.peek() in ("", "\n", "}", "]", ",", ";"):
            raise self.fail(f'key "{key}" has no value', where)
        into.put(key, where, self.value())

    def key(self) -> str:
        if self.peek() in ("'", '"'):
            return self.quoted(self.advance())
        start = self.at
        while self.at < len(self.text) and self.text[self.at] not in _KEY_END:
            self.at += 1
        if start == self.at:
            raise self.fail(f"expected a key, found {self.peek()!r}")
        return self.text[start : self.at]

    def include(self, into: Map, where: Where) -> None:
        name = self.quoted(self.advance()) if self.peek() in ("'", '"') else self.bare()
        if self.depth >= INCLUDE_DEPTH_MAX:
            raise self.fail(f"include '{name}': more than {INCLUDE_DEPTH_MAX} files inside each other", where)
        path = os.path.join(os.path.dirname(self.file), name)
        try:
            text = self.open_file(path)
        except OSError as error:
            raise self.fail(
                f"error parsing include file '{name}', {error.strerror}: {path}", where
            ) from error
        inner = _Reader(text, path, self.scopes, self.environ, self.open_file, self.depth + 1)
        inner.document(into)

    # -- values

    def value(self) -> Node:
        where = self.where()
        char = self.peek()
        if char == "{":
            self.advance()
            block = Map()
            self.scopes.append(block)
            self.map_items(block)
            self.scopes.pop()
            return Node(block, where)
        if char == "[":
            self.advance()
            return Node(self.array(), where)
        if char in ("'", '"'):
            self.advance()
            return Node(self.quoted(char), where)
        if char == "(":
            self.advance()
            return Node(self.block_text(where), where)
        word = self.bare()
        if word.startswith("$") and not re.match(r"\$2[aby]?\$", word):
            return self.variable(word[1:], where)
        return Node(scalar(word), where)

    def array(self) -> list[Node]:
        opened = self.where()
        nodes: list[Node] = []
        while True:
            self.skip(frozenset(" \t\r\n,"))
            if not self.peek():
                raise self.fail(f"the array opened at line {opened.line} is not closed: expected ']'")
            if self.peek() == "]":
                self.advance()
                return nodes
            nodes.append(self.value())
            self.skip(_BLANK)
            if self.peek() not in ("", "\n", ",", "]"):
                raise self.fail(f"expected a new line, ',' or ']' after a value, found {self.peek()!r}")

    def quoted(self, quote: str) -> str:
        """The rest of a quoted string; only double quotes know escapes."""
        where = self.where()
        parts: list[str] = []
        while True:
            if not self.peek():
                raise self.fail("unexpected end of the file in a string", where)
            char = self.advance()
            if char == quote:
                return "".join(parts)
            parts.append(self.escape() if char == "\\" and quote == '"' else char)

    def escape(self) -> str:
        if not self.peek():
            raise self.fail("unexpected end of the file in an escape")
        char = self.advance()
        if char == "x":
            digits = self.text[self.at : self.at + 2]
            if not re.fullmatch(r"[0-9A-Fa-f]{2}", digits):
                raise self.fail(f"expected two hexadecimal digits after '\\x', found {digits!r}")
            self.at += 2
            return chr(int(digits, 16))
        if char not in _ESCAPE:
            raise self.fail(f'invalid escape {char!r}; known are \\xXX, \\t, \\n, \\r, \\", \\\\')
        return _ESCAPE[char]

    def bare(self) -> str:
        parts: list[str] = []
        while self.at < len(self.text) and self.text[self.at] not in _BARE_END:
            char = self.advance()
            parts.append(self.escape() if char == "\\" else char)
        if not parts:
            raise self.fail(f"expected a value, found {self.peek()!r}")
        return "".join(parts)

    def block_text(self, where: Where) -> str:
        """Everything up to a line that is a closing parenthesis alone."""
        start = self.at
        while True:
            if not self.peek():
                raise self.fail("the block is not closed: expected ')' alone on a line", where)
            if self.advance() == "\n":
                end = self.text.find("\n", self.at)
                line = self.text[self.at : end if end >= 0 else len(self.text)]
                if line.strip() == ")":
                    text = self.text[start : self.at]
                    self.at += line.index(")") + 1
                    return text.strip("\n")

    def variable(self, name: str, where: Where) -> Node:
        for scope in reversed(self.scopes):
            node = scope.items.get(name)
            if node is not None:
                node.used = True
                return Node(node.value, where)
        if name in self.resolving:
            raise self.fail(f"variable reference cycle for '{name}'", where)
        text = self.environ.get(name)
        if text is None:
            raise self.fail(f"variable reference for '{name}' on line {where.line} can not be found", where)
        inner = _Reader(text, self.file, self.scopes, self.environ, self.open_file, self.depth)
        inner.resolving = self.resolving | {name}
        inner.skip(_BLANK)
        try:
            return Node(inner.value().value, where) if inner.peek() else Node("", where)
        except ConfigError as error:
            raise self.fail(f"variable '{name}' from the environment: {error}", where) from error


def scalar(word: str) -> Scalar:
    """What a bare word means: a boolean, an integer (with a size suffix), a float, a time, or itself."""
    known = _BOOLEAN.get(word.lower())
    if known is not None:
        return known
    if _INTEGER.fullmatch(word):
        return int(word)
    sized = _SIZED.fullmatch(word)
    if sized:
        suffix = sized[2].lower()
        power = _POWER.get(suffix[0])
        if power is not None and suffix[1:] == "":
            return int(sized[1] + "000" * power)
        if power is not None and suffix[1:] in ("b", "i", "ib"):
            return int(sized[1]) << 10 * power
    if _FLOAT.fullmatch(word):
        return float(word)
    if _TIME.fullmatch(word):
        return datetime.strptime(word, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    return word


def _read_text(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def parse(
    text: str,
    file: str = "nats.conf",
    *,
    environ: dict[str, str] | None = None,
    open_file: Callable[[str], str] = _read_text,
) -> Map:
    """Reads a configuration text.

    Args:
        text: the configuration.
        file: its name, for errors and for the place that `include` starts from.
        environ: variables that no key defines; default `os.environ`.
        open_file: returns the text of an included file by its path.

    Raises:
        ConfigError: the text breaks the grammar, or a variable or included file can't be found.
    """
    top = Map()
    _Reader(text, file, [top], dict(os.environ) if environ is None else environ, open_file, 0).document(top)
    return top


def parse_file(path: str) -> Map:
    """Reads a configuration file. Raises ConfigError, and OSError when the file itself can't be read."""
    return parse(_read_text(path), path)
