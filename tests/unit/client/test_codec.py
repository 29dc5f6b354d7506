"""Typed payloads."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest

from penstock.client import Codec, Headers, JsMsg, KeyOperation, KeyValueEntry, Msg, StoredMessage
from penstock.errors import PayloadError
from penstock.sync import Msg as SyncMsg

pytestmark = pytest.mark.feature("client.types")


class Struct(msgspec.Struct):
    fruit: str
    count: int


@dataclass
class Data:
    fruit: str
    count: int


class Tuple(NamedTuple):
    fruit: str
    count: int


class Model(pydantic.BaseModel):
    fruit: str
    count: int


class Dict(TypedDict):
    fruit: str
    count: int


def message(data: bytes, kind: type[Msg] = Msg) -> Msg:
    session: Any = SimpleNamespace()
    return kind(session, (1, b"orders.new", None, None, data))


@pytest.mark.parametrize("kind", [Struct, Data, Model, Dict])
def test_a_value_is_written_as_json_and_read_again(kind: Any) -> None:
    codec = Codec(kind)
    value = kind(fruit="pear", count=3)
    assert codec.encode(value) == b'{"fruit":"pear","count":3}'
    assert codec.decode(message(codec.encode(value))) == value


def test_tuples_builtins_and_lists_have_codecs_too() -> None:
    assert Codec(Tuple).decode(Codec(Tuple).encode(Tuple("pear", 3))) == Tuple("pear", 3)
    assert Codec(list[int]).decode(b"[1,2]") == [1, 2]
    assert Codec(datetime).decode(b'"2026-01-01T00:00:00Z"') == datetime(2026, 1, 1, tzinfo=UTC)


def test_every_kind_of_message_is_decoded() -> None:
    codec, data, value = Codec(Struct), b'{"fruit":"pear","count":3}', Struct("pear", 3)
    entry = KeyValueEntry("B", "key", data, 5, 0, KeyOperation.PUT, 0)
    stored = StoredMessage("S", "orders.new", 7, 0, Headers(), data)
    portal: Any = None
    for one in (data, message(data), message(data, JsMsg), entry, stored, SyncMsg(message(data), portal)):
        assert codec.decode(one) == value


@pytest.mark.parametrize("kind", [Struct, Data, Model])
def test_the_error_says_which_message_it_was_and_what_is_wrong(kind: type) -> None:
    codec = Codec(kind)
    entry = KeyValueEntry("B", "key", b"{", 5, 0, KeyOperation.PUT, 0)
    stored = StoredMessage("S", "orders.new", 7, 0, Headers(), b'{"fruit":"pear"}')
    with pytest.raises(PayloadError, match=r"the message on 'orders.new' is not a Codec\(\w+\) payload: "):
        codec.decode(message(b'{"fruit":"pear"}'))
    with pytest.raises(PayloadError, match="revision 5 of key 'key' in bucket 'B'"):
        codec.decode(entry)
    with pytest.raises(PayloadError, match=r"message 7 of stream 'S' on 'orders.new' (.|\n)*count"):
        codec.decode(stored)
    with pytest.raises(ValueError, match="a payload of 0 bytes"):
        codec.decode(b"")


def test_another_format_comes_with_its_functions() -> None:
    packed = Codec(Struct, encode=msgspec.msgpack.encode, decode=msgspec.msgpack.Decoder(Struct).decode)
    value = Struct("pear", 3)
    assert packed.decode(packed.encode(value)) == value
    assert packed.encode(value) == msgspec.msgpack.encode(value)
    with pytest.raises(PayloadError):
        packed.decode(b"{}")
