"""Payloads in Confluent's wire format: a zero byte, the schema's id in four bytes, and the payload proper.

    Avro, JSON    00 | id u32 | payload
    Protobuf      00 | id u32 | path of the message type | payload

The path is a list of zigzag varints: how many there are, then the number of the message in its file, then of
the message inside it, and so on. A list of one zero is written as a zero only.

A schema that the registry does not have fails the task, in every mode: a wrong registry would otherwise make
nulls of all rows. A payload that is not in this format is malformed, and option `mode` decides about it.

Columns are filled by the names of fields: Avro resolves what was written to the reader's schema if there is
one. Protobuf reads with the reader's descriptor if there is one, by the numbers of fields. Without either, a
field that a payload's schema does not have is null, and one that the column does not have is left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa

from penstock.spark.decoders import JsonDecoder, StructDecoder, merge
from penstock.spark.payload_options import PayloadOptions
from penstock.spark.payloads.schema_registry import (
    RegisteredSchema,
    SchemaRegistry,
    SchemaRegistryError,
    file_descriptors,
    registry_of,
)

PREFIX_BYTES = 5
PATH_MAX = 64
_VARINT_BYTES_MAX = 5

# Schema id and path of the message type; the path is empty but for Protobuf.
SchemaKey = tuple[int, tuple[int, ...]]


class NotInWireFormatError(ValueError):
    """A payload has no schema id before it."""


class ConfluentDecoder(StructDecoder):
    """Groups payloads by their schemas, and decodes each group with its own decoder."""

    def __init__(self, options: PayloadOptions, kind: pa.DataType) -> None:
        super().__init__(options, kind)
        assert options.registry is not None
        self._registry = registry_of(options.registry)
        self._decoders: dict[SchemaKey, StructDecoder] = {}
        self._make = _MAKERS.get(options.kind, _avro)
        self._shared: StructDecoder | None = None
        if options.kind == "json":  # the schema says nothing that columns need
            self._shared = JsonDecoder(options, kind)

    def decode(self, raw: pa.BinaryArray) -> tuple[pa.Array, list[int]]:
        groups: dict[SchemaKey, tuple[list[int], list[bytes]]] = defaultdict(lambda: ([], []))
        empty, bad = [], list[int]()
        for i, payload in enumerate(raw.to_pylist()):
            if not payload:
                empty.append(i)
                continue
            try:
                key, body = split(payload, is_protobuf=self.options.kind == "protobuf")
            except NotInWireFormatError:
                bad.append(i)
                continue
            indices, bodies = groups[key]
            indices.append(i)
            bodies.append(body)
        spoiled = pa.array([raw[i].as_py() for i in bad], pa.binary())
        parts = [(empty, pa.nulls(len(empty), self.kind)), (list(bad), self.malformed(spoiled))]
        for key, (indices, bodies) in groups.items():
            column, unread = self._decoder(key).decode(pa.array(bodies, pa.binary()))
            parts.append((indices, column))
            bad += [indices[i] for i in unread]
        return merge(parts, self.kind), sorted(bad)

    def _decoder(self, key: SchemaKey) -> StructDecoder:
        if self._shared is not None:
            return self._shared
        found = self._decoders.get(key)
        if found is None:
            schema = self._registry.by_id(key[0], self.options.kind)
            found = self._decoders[key] = self._make(self._registry, schema, key, self.options, self.kind)
        return found


def split(payload: bytes, *, is_protobuf: bool) -> tuple[SchemaKey, bytes]:
    """The schema of a payload, and the payload after it. Raises NotInWireFormatError."""
    if len(payload) < PREFIX_BYTES or payload[0]:
        raise NotInWireFormatError
    schema_id = int.from_bytes(payload[1:PREFIX_BYTES], "big")
    if not is_protobuf:
        return (schema_id, ()), payload[PREFIX_BYTES:]
    count, at = _varint(payload, PREFIX_BYTES)
    if not 0 <= count <= PATH_MAX:
        raise NotInWireFormatError
    path = []
    for _ in range(count):
        index, at = _varint(payload, at)
        path.append(index)
    return (schema_id, tuple(path) or (0,)), payload[at:]


def _varint(payload: bytes, at: int) -> tuple[int, int]:
    """A zigzag varint and the offset after it. Raises NotInWireFormatError."""
    value = 0
    for n, byte in enumerate(payload[at : at + _VARINT_BYTES_MAX]):
        value |= (byte & 0x7F) << (7 * n)
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at + n + 1
    raise NotInWireFormatError


def message_at(file: Any, path: tuple[int, ...]) -> str | None:
    """Full name of the message of a path in a FileDescriptorProto; None if there is none."""
    names, messages = [file.package] if file.package else [], file.message_type
    for index in path:
        if not 0 <= index < len(messages):
            return None
        names.append(messages[index].name)
        messages = messages[index].nested_type
    return ".".join(names)


def _avro(
    registry: SchemaRegistry,
    schema: RegisteredSchema,
    key: SchemaKey,
    options: PayloadOptions,
    kind: pa.DataType,
) -> StructDecoder:
    from penstock.spark.payloads.avro_records import AvroDecoder, AvroSchema

    references = [one.schema for _, one in registry.with_references(schema, "avro")]
    writer = AvroSchema(f"schema id {key[0]} of {registry.options.url}", schema.schema, references)
    return AvroDecoder(options, kind, writer)


def _protobuf(
    registry: SchemaRegistry,
    schema: RegisteredSchema,
    key: SchemaKey,
    options: PayloadOptions,
    kind: pa.DataType,
) -> StructDecoder:
    from penstock.spark.payloads.protobuf_messages import MessageType, ProtobufDecoder, parse_descriptor

    files = file_descriptors(registry, schema)
    name = message_at(list(parse_descriptor(files).values())[-1], key[1])
    if name is None:
        raise SchemaRegistryError(
            f"schema id {key[0]} of the registry {registry.options.url} has no message of path {key[1]}"
        )
    if options.descriptor is None:
        return ProtobufDecoder(options, kind, MessageType(files, name))
    if name != options.message:
        # Payloads of another type of this subject: the reader's descriptor does not describe them.
        return _NoMessageDecoder(options, kind)
    return ProtobufDecoder(replace(options, registry=None), kind)


class _NoMessageDecoder(StructDecoder):
    """For payloads that are another message than the column has: all are malformed."""

    def decode(self, raw: pa.BinaryArray) -> tuple[pa.Array, list[int]]:
        return self.malformed(raw), list(range(len(raw)))


Maker = Callable[[SchemaRegistry, RegisteredSchema, SchemaKey, PayloadOptions, pa.DataType], StructDecoder]
_MAKERS: dict[str, Maker] = {"avro": _avro, "protobuf": _protobuf}
