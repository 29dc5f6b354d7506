"""Typed payloads: values of a type as the payloads of messages, and back.

    orders = Codec(Order)
    await js.publish("orders.new", orders.encode(Order("pear", 3)))
    async for msg in consumer.messages():
        order = orders.decode(msg)      # an Order, for type checkers too

A codec belongs to the program and not to a subscription or bucket: the same one is used for messages,
requests, entries of buckets and stored messages, with and without async, and a message that is not of the
type can still be acked or terminated. Rejected: generic subscriptions and messages (`Subscription[Order]`),
whose iteration would raise for the first message of another program, and lose it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import msgspec

from penstock.client.direct import StoredMessage
from penstock.client.keyvalue.key_entry import KeyValueEntry
from penstock.client.message import Msg
from penstock.errors import PayloadError

T = TypeVar("T")


class Codec(Generic[T]):
    """Encodes and decodes values of one type.

    kind: a msgspec Struct, dataclass, TypedDict, NamedTuple, builtin or other type that msgspec knows, or a
    pydantic model. They are written as JSON.
    encode, decode: functions for another format, such as `msgspec.msgpack.encode` and
    `msgspec.msgpack.Decoder(Order).decode`; one may be given without the other.
    """

    def __init__(
        self,
        kind: type[T],
        *,
        encode: Callable[[T], bytes] | None = None,
        decode: Callable[[bytes], T] | None = None,
    ) -> None:
        self._kind = kind
        self._encode = encode or _encoder(kind)
        self._decode = decode or _decoder(kind)

    def __repr__(self) -> str:
        return f"Codec({getattr(self._kind, '__name__', self._kind)})"

    def encode(self, value: T) -> bytes:
        """The payload for a value. Raises what the encoder raises for another type's value."""
        return self._encode(value)

    def decode(self, message: Msg | KeyValueEntry | StoredMessage | bytes | Any) -> T:
        """The value in a message, an entry of a bucket or a payload; messages of `penstock.sync` too.

        Raises PayloadError, which says where the payload came from and what is wrong with it.
        """
        data = message if isinstance(message, bytes) else _payload_of(message)
        try:
            return self._decode(data)
        except ValueError as error:  # of msgspec, pydantic and json
            raise PayloadError(f"{_origin(message)} is not a {self!r} payload: {error}") from error


def _payload_of(message: Any) -> bytes:
    found = message.value if hasattr(message, "value") else message.data
    return cast("bytes", found)


def _origin(message: Any) -> str:
    """The message, for an error."""
    if isinstance(message, bytes):
        return f"a payload of {len(message)} bytes"
    if hasattr(message, "key"):
        return f"revision {message.revision} of key {message.key!r} in bucket {message.bucket!r}"
    if isinstance(message, StoredMessage):
        return f"message {message.seq} of stream {message.stream!r} on {message.subject!r}"
    return f"the message on {message.subject!r}"


def _encoder(kind: type[T]) -> Callable[[T], bytes]:
    if hasattr(kind, "model_validate_json"):

        def encode(value: T) -> bytes:
            return cast("bytes", cast("Any", value).model_dump_json().encode())

        return encode
    return msgspec.json.Encoder().encode


def _decoder(kind: type[T]) -> Callable[[bytes], T]:
    validate = getattr(kind, "model_validate_json", None)  # pydantic's models, without importing pydantic
    return cast("Callable[[bytes], T]", validate or msgspec.json.Decoder(kind).decode)
