"""Payloads that Arrow itself does not read: compressed, Avro, Protobuf, with a schema registry, CloudEvents.

    decompression.py        gzip, zstd, lz4, s2, before anything else
    cloud_events.py         attributes of CloudEvents, and the data of an event
    avro_records.py         Avro records, and their schema as columns
    protobuf_messages.py    Protobuf messages by a descriptor, and their fields as columns
    confluent_wire.py       payloads whose first bytes name a schema
    schema_registry.py      asks a schema registry over HTTP
    reader_schemas.py       on the driver: the schema that column `data` has
    json_inference.py       the fields of JSON payloads, from a sample

A payload passes decompression, then the extraction of an event's data, then its decoder (spark/decoders.py
has the base classes and the plain formats). Each step reports the rows that it could not read, and option
`mode` decides about them once.
"""
