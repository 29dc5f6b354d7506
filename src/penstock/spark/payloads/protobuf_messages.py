"""Protobuf messages by a descriptor: payloads are parsed by the protobuf package, columns are built by field.

Parsing is C (upb). Arrow arrays are made of one list of values per field, so that Python has no object per
row but the message itself.

Fields are those of Spark's from_protobuf, except that a field without presence has its default value, as in
every Protobuf library (from_protobuf: null), and wrappers (google.protobuf.Int64Value) are plain values. A
field that is unset and has presence is null. A message that contains itself is text, in Protobuf's JSON.

Rejected: Spark's from_protobuf (a jar); json_format and Arrow's JSON reader; a dict for each row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from operator import attrgetter
from typing import Any

import pyarrow as pa

from penstock.errors import ConfigError
from penstock.extras import need
from penstock.spark.decoders import StructDecoder
from penstock.spark.payload_options import PayloadOptions
from penstock.spark.payloads.avro_records import check_names

_WELL_KNOWN = ("any", "descriptor", "duration", "empty", "field_mask", "struct", "timestamp", "wrappers")
_WELL_KNOWN_PREFIX = "google/protobuf/"
_TIMESTAMP, _DURATION = "google.protobuf.Timestamp", "google.protobuf.Duration"
_WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Bool", "Bytes", "Double", "Float", "Int32", "Int64", "String", "UInt32", "UInt64")
)
# Types whose meaning is their JSON: they contain themselves.
_JSON_TYPES = frozenset(f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue"))

Values = Sequence[Any]
ToArray = Callable[[Values], pa.Array]


class MessageType:
    """A message type and its class.

    descriptor: a FileDescriptorSet. name: the full name of a message in it. Raises ConfigError if it is no
    such set, lacks a file that another one imports, or has no such message.
    """

    def __init__(self, descriptor: bytes, name: str) -> None:
        need("option 'payload' = protobuf", "protobuf")
        from google.protobuf import descriptor_pool, message_factory

        pool = descriptor_pool.DescriptorPool()
        files = parse_descriptor(descriptor)
        for file in files.values():
            _add(pool, file.name, files, set())
        try:
            self.descriptor = pool.FindMessageTypeByName(name)
        except KeyError:
            known = ", ".join(sorted(message_names(files.values()))) or "none"
            raise ConfigError(f"the Protobuf descriptor has no message {name!r}; there are {known}") from None
        self.name = name
        self.parse: Callable[[bytes], Any] = message_factory.GetMessageClass(self.descriptor).FromString

    def ddl(self) -> str:
        """The fields as DDL."""
        return _fields_of(self.descriptor, ())

    def fields(self) -> list[str]:
        """Names of the fields."""
        return [field.name for field in self.descriptor.fields]


class ProtobufDecoder(StructDecoder):
    """Messages of one type as structs. An empty payload is a message of default values."""

    def __init__(
        self, options: PayloadOptions, kind: pa.DataType, message: MessageType | None = None
    ) -> None:
        super().__init__(options, kind)
        if message is None:
            message = MessageType(options.descriptor or b"", options.message or "")
            check_names(self.values_kind, message.fields(), f"message {message.name}")
        from google.protobuf.message import DecodeError

        self._parse = message.parse
        self._unreadable = DecodeError
        self._columns = _struct_columns(message.descriptor, self.values_kind)

    def decode(self, raw: pa.BinaryArray) -> tuple[pa.Array, list[int]]:
        messages, at, bad = [], [], list[int]()
        for i, payload in enumerate(raw.to_pylist()):
            try:
                messages.append(self._parse(payload))
                at.append(i)
            except self._unreadable:
                bad.append(i)
        values = self.values(messages, at, bad)
        if bad:
            left_out, row = set(bad), iter(range(len(values)))
            places = [None if i in left_out else next(row) for i in range(len(raw))]
            values = values.take(pa.array(places, pa.int64()))
        return self.finish(values, raw, bad), sorted(bad)

    def values(self, messages: list[Any], at: list[int], bad: list[int]) -> pa.StructArray:
        """Structs of the messages that have a column's value in every field.

        at: their rows; those of the others are added to `bad`.
        """
        try:
            return self._columns(messages)
        except (ValueError, OverflowError, pa.ArrowException):
            fitting = []
            for i, message in zip(at, messages, strict=True):
                try:
                    self._columns([message])
                    fitting.append(message)
                except (ValueError, OverflowError, pa.ArrowException):
                    bad.append(i)
            return self._columns(fitting)


def parse_descriptor(content: bytes) -> dict[str, Any]:
    """The files of a FileDescriptorSet by name. Raises ConfigError."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.message import DecodeError

    try:
        files = {file.name: file for file in FileDescriptorSet.FromString(content).file}
    except DecodeError:
        files = {}
    if not files:
        raise ConfigError(
            "the Protobuf descriptor is no FileDescriptorSet: make it by protoc --include_imports "
            "--descriptor_set_out=FILE"
        )
    return files


def message_names(files: Any) -> list[str]:
    """Full names of the messages of files, without those inside others."""
    return [f"{file.package}.{one.name}".lstrip(".") for file in files for one in file.message_type]


def _add(pool: Any, name: str, files: dict[str, Any], done: set[str]) -> None:
    """Adds a file to the pool, after what it imports."""
    if name in done:
        return
    done.add(name)
    file = files.get(name) or _well_known(name)
    if file is None:
        raise ConfigError(f"the Protobuf descriptor lacks {name}: make it with protoc --include_imports")
    for imported in file.dependency:
        _add(pool, imported, files, done)
    try:
        pool.Add(file)
    except TypeError as error:
        raise ConfigError(f"the Protobuf descriptor is not valid: {name}: {error}") from None


def _well_known(name: str) -> Any:
    """A file that comes with protobuf; None if `name` is none of these."""
    from importlib import import_module

    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    stem = name.removeprefix(_WELL_KNOWN_PREFIX).removesuffix(".proto")
    if not name.startswith(_WELL_KNOWN_PREFIX) or stem not in _WELL_KNOWN:
        return None
    module = import_module(f"google.protobuf.{stem}_pb2")
    return FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)


def _fields_of(message: Any, inside: tuple[str, ...]) -> str:
    inside = (*inside, message.full_name)
    return ", ".join(f"`{field.name}`: {_type_of_field(field, inside)}" for field in message.fields)


def _type_of_field(field: Any, inside: tuple[str, ...]) -> str:
    if _is_map(field):
        key, value = (
            _type_of_value(field.message_type.fields_by_name[name], inside) for name in ("key", "value")
        )
        return f"map<{key},{value}>"
    kind = _type_of_value(field, inside)
    return f"array<{kind}>" if field.is_repeated else kind


def _type_of_value(field: Any, inside: tuple[str, ...]) -> str:
    if field.message_type is None:
        return _SCALARS[field.type]
    name = field.message_type.full_name
    if name == _TIMESTAMP:
        return "timestamp"
    if name == _DURATION:
        return "interval day to second"
    if name in _WRAPPERS:
        return _type_of_value(field.message_type.fields_by_name["value"], inside)
    if name in _JSON_TYPES or name in inside or not field.message_type.fields:
        return "string"
    return f"struct<{_fields_of(field.message_type, inside)}>"


# By FieldDescriptor.TYPE_*, whose numbers are those of descriptor.proto.
_SCALARS = {
    1: "double",
    2: "float",
    3: "bigint",  # int64
    4: "decimal(20,0)",  # uint64
    5: "int",  # int32
    6: "decimal(20,0)",  # fixed64
    7: "bigint",  # fixed32
    8: "boolean",
    9: "string",
    12: "binary",
    13: "bigint",  # uint32
    14: "string",  # enum
    15: "int",  # sfixed32
    16: "bigint",  # sfixed64
    17: "int",  # sint32
    18: "bigint",  # sint64
}
_ENUM = 14


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _struct_columns(message: Any, kind: pa.StructType) -> ToArray:
    """Makes structs of type `kind` of messages; fields that the message does not have are null."""
    fields = list(kind)
    columns = [_field_column(message.fields_by_name.get(field.name), field.type) for field in fields]

    def convert(messages: Values) -> pa.Array:
        if not fields:
            return pa.array([{}] * len(messages), kind)
        return pa.StructArray.from_arrays([column(messages) for column in columns], fields=fields)

    return convert


def _field_column(field: Any, kind: pa.DataType) -> ToArray:
    """Makes a column of one field of messages."""
    if field is None:
        return lambda messages: pa.nulls(len(messages), kind)
    name = field.name
    get: Callable[[Any], Any] = attrgetter(name)
    if not name.isidentifier():  # pragma: no cover - protoc refuses such names
        raise ConfigError(f"Protobuf field {name!r} is no name")
    if _is_map(field):
        return _map_column(field, kind, get)
    if field.is_repeated:
        return _list_column(field, kind, get)
    convert = _value_column(field, kind)
    if not field.has_presence:
        return lambda messages: convert(list(map(get, messages)))
    return lambda messages: convert([get(one) if one.HasField(name) else None for one in messages])


def _list_column(field: Any, kind: pa.DataType, get: Callable[[Any], Any]) -> ToArray:
    if not pa.types.is_list(kind):
        raise _misfit(field, kind)
    convert = _value_column(field, kind.value_type)

    def column(messages: Values) -> pa.Array:
        lists = list(map(get, messages))
        offsets = pa.array(accumulate(map(len, lists), initial=0), pa.int32())
        return pa.ListArray.from_arrays(offsets, convert(list(chain.from_iterable(lists))), type=kind)

    return column


def _map_column(field: Any, kind: pa.DataType, get: Callable[[Any], Any]) -> ToArray:
    if not pa.types.is_map(kind):
        raise _misfit(field, kind)
    entry = field.message_type.fields_by_name
    to_keys = _value_column(entry["key"], kind.key_type)
    to_items = _value_column(entry["value"], kind.item_type)

    def column(messages: Values) -> pa.Array:
        maps = list(map(get, messages))
        offsets = pa.array(accumulate(map(len, maps), initial=0), pa.int32())
        pairs = [pair for one in maps for pair in one.items()]
        keys, items = to_keys([key for key, _ in pairs]), to_items([item for _, item in pairs])
        return pa.MapArray.from_arrays(offsets, keys, items, type=kind)

    return column


def _value_column(field: Any, kind: pa.DataType) -> ToArray:
    """Makes an array of single values of a field, None for null."""
    if field.message_type is None:
        if field.type == _ENUM and pa.types.is_string(kind):
            names = {value.number: value.name for value in field.enum_type.values}
            # An enum that has grown since: its number, as Protobuf's JSON has it.
            return lambda values: pa.array(
                [None if v is None else names.get(v, str(v)) for v in values], kind
            )
        if pa.types.is_nested(kind) or pa.types.is_temporal(kind):
            raise _misfit(field, kind)
        return lambda values: pa.array(values, kind)
    name = field.message_type.full_name
    if pa.types.is_string(kind) and name != "google.protobuf.StringValue":
        return lambda values: pa.array([_json_text(v) for v in values], kind)
    if name == _TIMESTAMP and pa.types.is_timestamp(kind):
        return lambda values: pa.array([_microseconds(v) for v in values], pa.int64()).cast(kind)
    if name == _DURATION and pa.types.is_duration(kind):
        return lambda values: pa.array([_microseconds(v) for v in values], pa.int64()).cast(kind)
    if name in _WRAPPERS and not pa.types.is_struct(kind):
        inner = _value_column(field.message_type.fields_by_name["value"], kind)
        return lambda values: inner([None if v is None else v.value for v in values])
    if not pa.types.is_struct(kind):
        raise _misfit(field, kind)
    return _nullable_structs(field.message_type, kind)


def _nullable_structs(message: Any, kind: pa.StructType) -> ToArray:
    convert = _struct_columns(message, kind)

    def column(values: Values) -> pa.Array:
        present = [v for v in values if v is not None]
        structs = convert(present)
        if len(present) == len(values):
            return structs
        places = accumulate((v is not None for v in values), initial=0)
        at = [None if v is None else place for v, place in zip(values, places, strict=False)]
        return structs.take(pa.array(at, pa.int64()))

    return column


def _microseconds(value: Any) -> int | None:
    return None if value is None else value.seconds * 1_000_000 + value.nanos // 1000


def _json_text(value: Any) -> str | None:
    if value is None:
        return None
    from google.protobuf.json_format import MessageToDict

    return json.dumps(MessageToDict(value, preserving_proto_field_name=True), ensure_ascii=False)


def _misfit(field: Any, kind: pa.DataType) -> ConfigError:
    return ConfigError(f"the Protobuf field {field.full_name} can't be a column of type {kind}")
