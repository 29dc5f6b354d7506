"""On the driver: the schema that payloads are read as, and the fields that column `data` has by it."""

from __future__ import annotations

from dataclasses import replace

from penstock.errors import ConfigError
from penstock.spark.payload_options import PayloadOptions


def with_reader_schema(payload: PayloadOptions) -> PayloadOptions:
    """The options with the schema of `schemaSubject` in them, so that tasks don't look for it.

    Asks the registry once, without retries: the driver says at once that it does not answer. Raises
    SchemaRegistryError and its subclasses, ConfigError.
    """
    registry = payload.registry
    if registry is None or registry.subject is None or payload.kind not in ("avro", "protobuf"):
        return payload
    from penstock.spark.payloads.schema_registry import SchemaRegistry, file_descriptors

    asked = SchemaRegistry(replace(registry, retry_s=0.0))
    schema = asked.by_version(registry.subject, registry.version, payload.kind)
    if payload.kind == "avro":
        references = tuple(one.schema for _, one in asked.with_references(schema, "avro"))
        return replace(payload, avro_reader_schema=schema.schema, avro_reader_references=references)
    if payload.descriptor is not None:
        return payload
    from penstock.spark.payloads.protobuf_messages import message_names, parse_descriptor

    files = file_descriptors(asked, schema)
    names = message_names(list(parse_descriptor(files).values())[-1:])
    if payload.message is None and len(names) != 1:
        raise ConfigError(
            f"subject {registry.subject!r} has several messages: name one by 'protobufMessage' "
            f"({', '.join(names)})"
        )
    return replace(payload, descriptor=files, message=payload.message or names[0])


def fields_of(payload: PayloadOptions) -> str | None:
    """DDL of the fields that a schema among the options says; None without one. Raises ConfigError."""
    if payload.kind == "avro":
        from penstock.spark.payloads.avro_records import AvroSchema

        if payload.avro_reader_schema is not None:
            references = payload.avro_reader_references
            return AvroSchema("option 'avroReaderSchema'", payload.avro_reader_schema, references).ddl()
        if payload.avro_schema is not None:
            return AvroSchema("option 'avroSchema'", payload.avro_schema).ddl()
    if payload.kind == "protobuf" and payload.descriptor is not None:
        from penstock.spark.payloads.protobuf_messages import MessageType

        return MessageType(payload.descriptor, payload.message or "").ddl()
    return None
