"""Hostile input: values that parsers, validators and loops may not be ready for, by what takes them.

Everything is bytes: most of it no encoder would write (`1e400`, repeated keys, bad UTF-8). The structs of the
API and of tokens are walked by reflection, so a new field is attacked the day it exists.

`json_values` has what may stand for one value, `bodies` puts each of them into each field of a struct, at any
depth; `header_blocks`, `connects`, `confs` and `http_requests` do the same for their formats. Sizes are the
caller's: what is refused at a megabyte may be quadratic at thirty kilobytes.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import msgspec

from penstock.protocol import headers

SIZES = (4_000, 60_000, 1_000_000)


class Hostile(NamedTuple):
    """shape: what a report calls it. make: its bytes, which are made when they are needed: all inputs
    together are gigabytes."""

    shape: str
    make: Callable[[], bytes]

    @property
    def data(self) -> bytes:
        return self.make()

    def within(self, prefix: str, wrap: Callable[[bytes], bytes]) -> Hostile:
        """This one inside something else."""
        make = self.make
        return Hostile(prefix + self.shape, lambda: wrap(make()))


def plain(shape: str, data: bytes) -> Hostile:
    """One whose bytes are few."""
    return Hostile(shape, lambda: data)


# -- values of JSON

NUMBERS = {
    "minus one": b"-1",
    "minus zero": b"-0",
    "2^31": b"2147483648",
    "2^53+1": b"9007199254740993",
    "2^63": b"9223372036854775808",
    "2^63-1": b"9223372036854775807",
    "-2^63-1": b"-9223372036854775809",
    "2^64-1": b"18446744073709551615",
    "2^64": b"18446744073709551616",
    "1e18": b"1e18",
    "1e308": b"1e308",
    "1e400": b"1e400",
    "-1e400": b"-1e400",
    "1e-400": b"1e-400",
    "1E+99999999999": b"1E+99999999999",
    "fraction": b"1.5",
    "4,301 digits": b"1" * 4301,
    "-4,301 digits": b"-" + b"9" * 4301,
    "4,301 decimals": b"0." + b"3" * 4301,
    "NaN": b"NaN",
    "Infinity": b"-Infinity",
    "hexadecimal": b"0x7f",
    "leading zeros": b"0001",
}
WORDS = {
    "null": b"null",
    "true": b"true",
    "empty text": b'""',
    "empty list": b"[]",
    "empty object": b"{}",
    "list of null": b"[null]",
    "bad UTF-8": b'"\xff\xfe\xc3"',
    "overlong UTF-8": b'"\xc0\xaf\xed\xa0\x80"',
    "lone surrogate": rb'"\ud800"',
    "NUL": rb'"\u0000"',
    "control characters": rb'"\r\n\u001b[2J\u007f"',
    "spaces": b'" \\t "',
    "cut off": b'"abc',
    "bad escape": rb'"\x"',
    "placeholder": b'"{err} {name} %s {0}"',
}
SUBJECTS = {
    "everything": b">",
    "star": b"*",
    "empty token": b"a..b",
    "leading dot": b".a",
    "> inside": b"a.>.b",
    "API": b"$JS.API.STREAM.DELETE.S",
    "acks": b"$JS.ACK.>",
    "system": b"$SYS.>",
    "path": b"../../../etc/passwd",
    "partition": b"h.{{partition(9999999999999999999,1)}}",
    "wildcard of 5,000 digits": b"h.{{wildcard(" + b"9" * 5000 + b")}}",
    "split": b"h.{{split(1,)}}",
    "slice": b"h.{{SliceFromLeft(1,-1)}}",
    "left": b"h.{{left(1,99999999999999999999)}}",
    "random": b"h.{{random(0)}}",
    "$ of 5,000 digits": b"h.$" + b"1" * 5000,
    "not closed": b"h.{{wildcard(1",
}
TIMES = {
    "year 9999": b"9999-12-31T23:59:59.999999999Z",
    "year 0": b"0000-01-01T00:00:00Z",
    "no such day": b"2024-02-30T25:61:61Z",
    "1,000 decimals": b"2024-01-01T00:00:00." + b"9" * 1000 + b"Z",
    "zone": b"2024-01-01T00:00:00+99:99",
    "year of 5,000 digits": b"1" * 5000 + b"-01-01T00:00:00Z",
}


LONG_TEXTS: dict[str, Callable[[int], bytes]] = {
    "long": lambda size: b"x" * size,
    "digits": lambda size: b"7" * size,
    "blanks": lambda size: b" " * size,
    "dots": lambda size: b"." * size,
    "tokens": lambda size: b"h" + b".a" * (size // 2),
    "stars": lambda size: b"h" + b".*" * (size // 2),
    "stars and >": lambda size: b"h" + b".*" * (size // 2) + b".>",
    "partition arguments": lambda size: b"h.{{partition(10" + b",1" * (size // 2) + b")}}",
    "functions": lambda size: b"h" + b".{{wildcard(1)}}" * (size // 16),
    "variables": lambda size: b"h" + b".$1" * (size // 3),
    "open braces": lambda size: b"{{" * (size // 2),
    "high characters": lambda size: "é".encode() * (size // 2),
    "emoji": lambda size: "\U0001f600".encode() * (size // 4),
    "bad UTF-8": lambda size: b"\xff" * size,
    "durations": lambda size: b"1h" * (size // 2),
    "slashes": lambda size: b"*/" * (size // 2),
    "commas": lambda size: b"1," * (size // 2),
    "dashes": lambda size: b"1-" * (size // 2),
}
"""Texts of about `size` bytes, without quotes."""

ESCAPED_TEXTS: dict[str, Callable[[int], bytes]] = {
    "escapes": lambda size: rb"\u0041" * (size // 6),
    "NULs": lambda size: rb"\u0000" * (size // 6),
    "surrogates": lambda size: rb"\ud83d\ude00" * (size // 12),
}
"""Texts that JSON makes expensive."""

CONTAINERS: dict[str, Callable[[int], bytes]] = {
    "deep list": lambda size: b"[" * (size // 2) + b"]" * (size // 2),
    "deep object": lambda size: b'{"a":' * (size // 6) + b"1" + b"}" * (size // 6),
    "opening brackets": lambda size: b"[" * size,
    "opening objects": lambda size: b'{"a":' * (size // 5),
    "objects": lambda size: _repeated(b"{}", size),
    "nulls": lambda size: _repeated(b"null", size),
    "lists": lambda size: _repeated(b"[]", size),
    "numbers": lambda size: _repeated(b"1", size),
    "huge numbers": lambda size: _repeated(b"9223372036854775807", size),
    "numbers and a null": lambda size: b"[" + b"1," * (size // 2) + b"null]",
    "empty texts": lambda size: _repeated(b'""', size),
    "one text": lambda size: _repeated(b'"h.a"', size),
    "texts": lambda size: _listed((b'"h.%d"' % n for n in range(size)), size),
    "wildcards": lambda size: _listed((b'"h.*.%d.>"' % n for n in range(size)), size),
    "crossing wildcards": lambda size: _listed((_crossing(n) for n in range(size)), size),
    "literals beside a star": lambda size: _listed(_beside_star(size), size),
    "keys": lambda size: _object((b'"k%d":"v"' % n for n in range(size)), size),
    "null keys": lambda size: _object((b'"k%d":null' % n for n in range(size)), size),
    "number keys": lambda size: _object((b'"%d":%d' % (n, n) for n in range(size)), size),
    "repeated key": lambda size: b"{" + b'"k":"v",' * (size // 8) + b'"k":"v"}',
    "long key": lambda size: b'{"' + b"k" * size + b'":"v"}',
    "long value": lambda size: b'{"k":"' + b"v" * size + b'"}',
}
"""Lists and objects of about `size` bytes: deep, many, repeated."""


def quoted(text: bytes) -> bytes:
    return b'"' + text + b'"'


def sized(table: dict[str, Callable[[int], bytes]], size: int) -> Iterator[Hostile]:
    """Every entry of a table of large values, in one size."""
    for shape, make in table.items():
        yield Hostile(f"{shape} ({size})", partial(make, size))


def json_texts(size: int) -> Iterator[Hostile]:
    """Large texts as JSON."""
    for text in (*sized(LONG_TEXTS, size), *sized(ESCAPED_TEXTS, size)):
        yield text.within("", quoted)


def json_containers(size: int) -> Iterator[Hostile]:
    """Large lists and objects as JSON."""
    yield from sized(CONTAINERS, size)


def _repeated(item: bytes, size: int) -> bytes:
    return b"[" + (item + b",") * (size // (len(item) + 1)) + item + b"]"


def _crossing(n: int) -> bytes:
    """Filters of different lengths with stars at different places: nothing sorts them apart."""
    return b'"h.%s%d"' % (b"".join(b"*." if n >> bit & 1 else b"%d." % bit for bit in range(12)), n % 7)


def _beside_star(size: int) -> Iterator[bytes]:
    yield b'"h.*.x"'
    for n in range(size):
        yield b'"h.%d.y"' % n


def _listed(items: Iterable[bytes], size: int) -> bytes:
    return b"[" + b",".join(_fitting(items, size)) + b"]"


def _object(items: Iterable[bytes], size: int) -> bytes:
    return b"{" + b",".join(_fitting(items, size)) + b"}"


def _fitting(items: Iterable[bytes], size: int) -> Iterator[bytes]:
    for item in items:
        size -= len(item) + 1
        if size < 0:
            return
        yield item


def json_words() -> Iterator[Hostile]:
    """Values that are strange, not large."""
    for table in (NUMBERS, WORDS):
        for shape, data in table.items():
            yield plain(shape, data)
    for table in (SUBJECTS, TIMES):
        for shape, data in table.items():
            yield plain(shape, quoted(data))


def json_values(sizes: Iterable[int] = SIZES) -> Iterator[Hostile]:
    """Everything that may stand for one value."""
    yield from json_words()
    for size in sizes:
        yield from json_texts(size)
        yield from json_containers(size)


# -- structs

_MARK = "@hostile@"
Path = tuple[str | int, ...]


class Field(NamedTuple):
    """A field of a struct, at any depth. path: how to get there; 0 is the one item of a list."""

    path: Path
    type: msgspec.inspect.Type

    @property
    def name(self) -> str:
        return ".".join(str(part) for part in self.path)


def fields_of(struct: type[msgspec.Struct]) -> list[Field]:
    """Every field of a struct and of what is in it."""
    info = msgspec.inspect.type_info(struct)
    assert isinstance(info, msgspec.inspect.StructType)
    return list(_walk(info, (), frozenset()))


def _walk(info: msgspec.inspect.StructType, path: Path, above: frozenset[type]) -> Iterator[Field]:
    if info.cls in above:
        return
    for field in info.fields:
        here = (*path, field.encode_name)
        yield Field(here, field.type)
        for inner in _alternatives(field.type):
            if isinstance(inner, msgspec.inspect.StructType):
                yield from _walk(inner, here, above | {info.cls})
            elif isinstance(inner, (msgspec.inspect.ListType, msgspec.inspect.VarTupleType)):
                for item in _alternatives(inner.item_type):
                    if isinstance(item, msgspec.inspect.StructType):
                        yield from _walk(item, (*here, 0), above | {info.cls})


def _alternatives(kind: msgspec.inspect.Type) -> tuple[msgspec.inspect.Type, ...]:
    return kind.types if isinstance(kind, msgspec.inspect.UnionType) else (kind,)


def with_field(base: dict[str, Any], path: Path, value: bytes) -> bytes:
    """The JSON of `base` with this value at a path; what lacks on the way is made."""
    return with_fields(base, [(path, value)])


def with_fields(base: dict[str, Any], values: list[tuple[Path, bytes]]) -> bytes:
    """The same with several values."""
    tree: Any = json.loads(json.dumps(base))
    for number, (path, _) in enumerate(values):
        _put(tree, path, f"{_MARK}{number}")
    data = json.dumps(tree).encode()
    for number, (_, value) in enumerate(values):
        data = data.replace(f'"{_MARK}{number}"'.encode(), value)
    return data


def _put(tree: Any, path: Path, mark: str) -> None:
    for part, following in zip(path, [*path[1:], None], strict=True):
        if following is None:
            tree[part] = mark
            return
        inner = tree[part] if isinstance(part, int) else tree.get(part)
        if isinstance(following, int) and not (isinstance(inner, list) and inner):
            inner = [{}]
        elif not isinstance(following, int) and not isinstance(inner, dict):
            inner = {}
        tree[part] = inner
        tree = inner


def field_values(field: Field, sizes: Iterable[int] = SIZES) -> Iterator[Hostile]:
    """What a field of this type is attacked with: everything strange, and of large values those that get
    past its type in every size, others in the largest."""
    sizes = tuple(sizes)
    kinds = _alternatives(field.type)
    yield from json_words()
    is_text = any(isinstance(kind, (msgspec.inspect.StrType, msgspec.inspect.BytesType)) for kind in kinds)
    is_container = any(
        isinstance(
            kind,
            (msgspec.inspect.ListType, msgspec.inspect.VarTupleType, msgspec.inspect.DictType,
             msgspec.inspect.AnyType),
        )
        for kind in kinds
    )  # fmt: skip
    for size in sizes:
        if is_text or size == sizes[-1]:
            yield from json_texts(size)
        if is_container or size == sizes[-1]:
            yield from json_containers(size)
    for kind in kinds:
        item = getattr(kind, "item_type", None)
        if isinstance(item, msgspec.inspect.StructType):
            for size in sizes:
                yield from struct_lists(item, size)


def struct_lists(item: msgspec.inspect.StructType, size: int) -> Iterator[Hostile]:
    """Lists of many structs: with one text field counted up, with all of them, or all the same."""
    texts = [field.encode_name for field in item.fields if isinstance(field.type, msgspec.inspect.StrType)]
    for name in texts:
        yield Hostile(f"with many {name} ({size})", partial(_counted_structs, [name], size))
    yield Hostile(f"full structs ({size})", partial(_counted_structs, texts, size))
    same = b"{%s}" % b",".join(b'"%s":"h.a"' % name.encode() for name in texts)
    yield Hostile(f"one struct ({size})", partial(_repeated, same, size))


def _counted_structs(names: list[str], size: int) -> bytes:
    rows = (b"{%s}" % b",".join(b'"%s":"h%d"' % (name.encode(), n) for name in names) for n in range(size))
    return _listed(rows, size)


def broken_bodies(base: dict[str, Any], sizes: Iterable[int] = SIZES) -> Iterator[Hostile]:
    """Bodies that are wrong as a whole."""
    good = json.dumps(base).encode()
    yield plain("empty", b"")
    yield plain("cut off", good[:-1])
    yield plain("bytes behind", good + b"}")
    yield plain("byte order mark", b"\xef\xbb\xbf" + good)
    yield plain("UTF-16", good.decode().encode("utf-16"))

    def unknown(value: bytes) -> bytes:
        return with_field(base, ("unknown_field",), value)

    for value in json_values(sizes):
        yield value
        yield value.within("unknown field: ", unknown)
    for size in sizes:
        yield Hostile(f"blanks and it ({size})", partial(lambda size: b" " * size + good, size))
        for char in (b" ", b"\0", b"0", b"\xff", b"5"):
            yield Hostile(f"{char!r} alone ({size})", partial(operator.mul, char, size))
        for name, value in base.items():
            one = json.dumps({name: value}).encode()[1:-1] + b","
            yield Hostile(f"repeated {name} ({size})", partial(_repeated_field, one, good, size))


def _repeated_field(field: bytes, good: bytes, size: int) -> bytes:
    return b"{" + field * (size // len(field)) + good[1:]


# -- headers

HEADER_NAMES = sorted(
    value
    for name, value in vars(headers).items()
    if name.isupper() and isinstance(value, str) and ":" not in value and " " not in value
)


HEADER_WORDS = (
    b"", b"sub", b"all", b"never", b"eob", b"1", b"+1", b"-1", b"@every 1ns", b"@at 2024-01-01T00:00:00Z",
    b"* * * * * *", b"1-99999999999/1 * * * * *", b"trace disabled", b"a.b", b"1_000", b"\xff\xfe\xc3",
    "\u0661\u0662".encode(), "\u00b2".encode(), b'{"a":{"b":"1"}}',
)  # fmt: skip
HEADER_TEXTS: dict[str, Callable[[int], bytes]] = {
    **LONG_TEXTS,
    "deep object": CONTAINERS["deep object"],
    "keys": CONTAINERS["keys"],
    "cron list": lambda size: b"0" + b",1-2" * (size // 4) + b" * * * * *",
    "cron fields": lambda size: b"* " * (size // 2),
}


def header_values(sizes: Iterable[int] = SIZES) -> Iterator[Hostile]:
    """Values of a header, all without line breaks."""
    for table in (NUMBERS, SUBJECTS, TIMES):
        for shape, data in table.items():
            yield plain(shape, data)
    for word in HEADER_WORDS:
        yield plain(repr(word), word)
    for size in sizes:
        yield from sized(HEADER_TEXTS, size)


def block(*lines: bytes) -> bytes:
    """A header block of these lines."""
    return b"NATS/1.0\r\n" + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


def repeated_line(line: bytes, size: int) -> bytes:
    """A header block of one line many times."""
    return b"NATS/1.0\r\n" + (line + b"\r\n") * (size // (len(line) + 2)) + b"\r\n"


HEADER_BLOCKS: dict[str, Callable[[int], bytes]] = {
    "empty lines": lambda size: b"NATS/1.0" + b"\r\n" * (size // 2),
    "line feeds": lambda size: b"NATS/1.0" + b"\n" * size,
    "carriage returns": lambda size: b"NATS/1.0" + b"\r" * size + b"\r\n\r\n",
    "short lines": lambda size: repeated_line(b"a:", size),
    "colons": lambda size: block(b":" * size),
    "names": lambda size: block(*_fitting((b"k%d: v" % n for n in range(size)), size)),
    "blanks": lambda size: block(b"a:" + b" " * size + b"b"),
    **{f"repeated {name}": partial(repeated_line, name.encode() + b": 1") for name in HEADER_NAMES},
}
BROKEN_BLOCKS = {
    "no version": b"A: b\r\n\r\n",
    "no end": b"NATS/1.0\r\nA: b",
    "no colon": block(b"abc"),
    "bare line feeds": b"NATS/1.0\nNats-TTL: 1s\n\n",
    "NULs": block(b"\0: \0"),
    "status of 5,000 digits": b"NATS/1.0 " + b"9" * 5000 + b"\r\n\r\n",
}


def header_blocks(sizes: Iterable[int] = SIZES) -> Iterator[Hostile]:
    """Header blocks that are large or wrong as a whole."""
    for shape, data in BROKEN_BLOCKS.items():
        yield plain(shape, data)
    for size in sizes:
        yield from sized(HEADER_BLOCKS, size)


def with_header(name: str, value: bytes, *more: bytes) -> bytes:
    """A block with this header, and more lines."""
    return block(name.encode() + b": " + value, *more)


# -- CONNECT

CONNECT_FIELDS = (
    "verbose", "pedantic", "echo", "headers", "no_responders", "protocol", "name", "lang", "version", "user",
    "pass", "auth_token", "nkey", "sig", "proxy_sig", "jwt", "account", "tls_required", "unknown_field",
)  # fmt: skip


def connects(base: dict[str, Any], sizes: Iterable[int]) -> Iterator[Hostile]:
    """Bodies of CONNECT."""
    for name in CONNECT_FIELDS:
        for value in json_values(sizes):
            yield value.within(f"{name}: ", partial(with_field, base, (name,)))
    yield from broken_bodies(base, sizes)
