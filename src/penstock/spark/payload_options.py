"""Options of payloads: how bytes become column `data`. docs/spark-payloads.md describes them.

Descriptor files are read here, on the driver: readers are pickled with their content, so executors need no
files.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from penstock.errors import ConfigError
from penstock.spark.connection_options import OptionParser

PAYLOADS = ("raw", "string", "json", "avro", "protobuf", "arrow")
MODES = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")
COMPRESSIONS = ("none", "gzip", "zstd", "lz4", "s2", "auto")
PLAIN_BYTES_MAX = 1 << 30

# The error for an unknown option lists the names in this order.
PAYLOAD_OPTIONS = (
    "payload",
    "payloadSchema",
    "avroSchema",
    "avroReaderSchema",
    "protobufDescriptor",
    "protobufDescriptorBase64",
    "protobufMessage",
    "compression",
    "decompressedBytesMax",
    "schemaRegistry",
    "schemaRegistryUser",
    "schemaRegistryPassword",
    "schemaRegistryToken",
    "schemaRegistryCa",
    "schemaSubject",
    "schemaVersion",
    "mode",
    "columnNameOfCorruptRecord",
)
_AVRO = ("avroSchema", "avroReaderSchema")
_DESCRIPTORS = ("protobufDescriptor", "protobufDescriptorBase64")
_PROTOBUF = (*_DESCRIPTORS, "protobufMessage")
_REGISTRY = tuple(name for name in PAYLOAD_OPTIONS if name.startswith("schema"))
# What each kind of payload takes; others are refused, so that none is ignored silently.
_TAKEN = {
    "raw": (),
    "string": (),
    "json": ("payloadSchema", *_REGISTRY),
    "avro": ("payloadSchema", *_AVRO, *_REGISTRY),
    "protobuf": ("payloadSchema", *_PROTOBUF, *_REGISTRY),
    "arrow": ("payloadSchema",),
}


@dataclass(frozen=True)
class RegistryOptions:
    """Where the schemas of payloads in Confluent's wire format are."""

    url: str
    """Option `schemaRegistry`: http:// or https://, with a path if the registry has one."""
    user: str | None = None
    """Option `schemaRegistryUser`, with `schemaRegistryPassword`: HTTP basic authentication."""
    password: str | None = field(default=None, repr=False)
    """Option `schemaRegistryPassword`."""
    token: str | None = field(default=None, repr=False)
    """Option `schemaRegistryToken`: a bearer token, instead of user and password."""
    ca: str | None = None
    """Option `schemaRegistryCa`: PEM file of trusted CAs, on driver and executors. Default: the system's."""
    subject: str | None = None
    """Option `schemaSubject`: the subject whose schema is the reader's schema, which column `data` has.
    Default: none, then `payloadSchema` or a reader's schema has the fields."""
    version: int | None = None
    """Option `schemaVersion`: the version of `schemaSubject`. Default: the latest when the query starts."""
    timeout_s: float = 10.0
    """Option `requestTimeoutSeconds`: for one answer of the registry. Default 10."""
    retry_s: float = 60.0
    """Option `retrySeconds`: how long a task asks a registry that does not answer. Default 60."""


@dataclass(frozen=True)
class PayloadOptions:
    """How payloads are decoded."""

    kind: str = "raw"
    """Option `payload`: `raw` (binary, the default), `string`, `json`, `avro`, `protobuf` or `arrow`."""
    schema: str | None = None
    """Option `payloadSchema`: the fields of `json`, `avro`, `protobuf` and `arrow`, as DDL ("id bigint, name
    string") or as Spark's JSON of a schema. Not needed where `.schema(…)` gives column `data` its type, or an
    Avro schema or a descriptor does."""
    mode: str = "PERMISSIVE"
    """Option `mode`, as of Spark's JSON reader: handling of malformed payloads. PERMISSIVE: null fields;
    DROPMALFORMED: no row; FAILFAST: the query fails. Default PERMISSIVE."""
    corrupt_column: str = "_corrupt_record"
    """Option `columnNameOfCorruptRecord`: a string field of the payload's schema that receives the text of a
    malformed payload, if the schema has it. Default _corrupt_record."""
    avro_schema: str | None = None
    """Option `avroSchema`: the schema the payloads were written with, as JSON."""
    avro_reader_schema: str | None = None
    """Option `avroReaderSchema`: the schema to read as; Avro's rules of schema resolution apply."""
    avro_reader_references: tuple[str, ...] = ()
    """The schemas that the reader's schema names, from a registry."""
    descriptor: bytes | None = field(default=None, repr=False)
    """Option `protobufDescriptor` (a file on the driver) or `protobufDescriptorBase64`: a FileDescriptorSet,
    as `protoc --include_imports --descriptor_set_out` writes it."""
    message: str | None = None
    """Option `protobufMessage`: the full name of the message type, such as shop.Order."""
    compression: str = "none"
    """Option `compression`: `none`, `gzip`, `zstd`, `lz4` (frames), `s2` (streams of S2 or Snappy) or `auto`
    (by each payload's first bytes). Default none."""
    plain_bytes_max: int = 64 * 1024 * 1024
    """Option `decompressedBytesMax`: a payload of more bytes is malformed. Default 64 MiB."""
    registry: RegistryOptions | None = None
    """Options `schemaRegistry…` and `schema…`: payloads are in Confluent's wire format."""


class PayloadOptionParser(OptionParser):
    """Parses the options of payloads."""

    def payload(self) -> PayloadOptions:
        """Raises ConfigError for options that the kind of payload does not take, or that contradict."""
        kind = self.choice("payload", PAYLOADS, "raw")
        for name in PAYLOAD_OPTIONS:
            is_of_a_kind = name in (*_AVRO, *_PROTOBUF, *_REGISTRY, "payloadSchema")
            if name in self.values and is_of_a_kind and name not in _TAKEN[kind]:
                raise ConfigError(f"option {name!r} is given, but 'payload' is {kind}")
        registry = self.registry()
        if kind == "avro" and "avroSchema" not in self.values and registry is None:
            raise ConfigError(
                "option 'payload' is avro: give 'avroSchema', the schema of the payloads, or 'schemaRegistry'"
            )
        if registry is not None and "avroSchema" in self.values:
            raise ConfigError(
                "options 'avroSchema' and 'schemaRegistry' contradict each other: the registry has the "
                "schemas of the payloads; the one to read as is 'avroReaderSchema'"
            )
        if registry is not None and registry.subject is not None and "avroReaderSchema" in self.values:
            raise ConfigError(
                "options 'avroReaderSchema' and 'schemaSubject' contradict each other: give one of them"
            )
        descriptor = self.descriptor()
        if (
            kind == "protobuf"
            and registry is None
            and (descriptor is None or not self.values.get("protobufMessage"))
        ):
            raise ConfigError(
                "option 'payload' is protobuf: give 'protobufDescriptor' (protoc --include_imports "
                "--descriptor_set_out=FILE) and 'protobufMessage', or 'schemaRegistry'"
            )
        if descriptor is not None and not self.values.get("protobufMessage"):
            raise ConfigError("option 'protobufMessage' is missing: the full name of a message")
        return PayloadOptions(
            kind=kind,
            schema=self.values.get("payloadSchema"),
            mode=self.choice("mode", MODES, "PERMISSIVE"),
            corrupt_column=self.values.get("columnNameOfCorruptRecord", "_corrupt_record"),
            avro_schema=self.values.get("avroSchema"),
            avro_reader_schema=self.values.get("avroReaderSchema"),
            descriptor=descriptor,
            message=self.values.get("protobufMessage"),
            compression=self.choice("compression", COMPRESSIONS, "none"),
            plain_bytes_max=self.integer("decompressedBytesMax", 64 * 1024 * 1024, 1, PLAIN_BYTES_MAX),
            registry=registry,
        )

    def descriptor(self) -> bytes | None:
        """The content of the descriptor. Raises ConfigError if it can't be read."""
        path, text = (self.values.get(name) for name in _DESCRIPTORS)
        if path is not None and text is not None:
            raise ConfigError(f"options {_DESCRIPTORS[0]!r} and {_DESCRIPTORS[1]!r}: give one of them")
        if path is not None:
            try:
                return Path(path).read_bytes()
            except OSError as error:
                raise ConfigError(f"option 'protobufDescriptor': {path}: {error.strerror}") from None
        if text is None:
            return None
        try:
            return base64.b64decode(text, validate=True)
        except binascii.Error as error:
            raise ConfigError(f"option 'protobufDescriptorBase64' is no base64: {error}") from None

    def registry(self) -> RegistryOptions | None:
        """Raises ConfigError for an address that is none, or options of a registry without one."""
        url = self.values.get("schemaRegistry")
        if url is None:
            for name in _REGISTRY:
                if name in self.values:
                    raise ConfigError(f"option {name!r} is given without 'schemaRegistry'")
            return None
        parts = urlsplit(url.strip())
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise ConfigError(
                "option 'schemaRegistry': write http[s]://host[:port][/path]; user and password have options "
                "of their own"
            )
        user, password, token = (
            self.values.get(f"schemaRegistry{name}") for name in ("User", "Password", "Token")
        )
        if (user is None) != (password is None):
            raise ConfigError("options 'schemaRegistryUser' and 'schemaRegistryPassword': give both of them")
        if user is not None and token is not None:
            raise ConfigError(
                "options 'schemaRegistryUser' and 'schemaRegistryToken' contradict each other: give one"
            )
        version = self.values.get("schemaVersion", "latest").strip().lower()
        if version != "latest" and "schemaSubject" not in self.values:
            raise ConfigError("option 'schemaVersion' is given without 'schemaSubject'")
        return RegistryOptions(
            url=url.strip().rstrip("/"),
            user=user,
            password=password,
            token=token,
            ca=self.values.get("schemaRegistryCa"),
            subject=self.values.get("schemaSubject"),
            version=None if version == "latest" else self.integer("schemaVersion", None, 1, (1 << 31) - 1),
            timeout_s=self.seconds("requestTimeoutSeconds", 10.0),
            retry_s=self.seconds("retrySeconds", 60.0),
        )

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        """The option's value among `choices`, compared without case. Raises ConfigError."""
        given = self.values.get(name, default).strip()
        for choice in choices:
            if choice.lower() == given.lower():
                return choice
        raise ConfigError(f"option {name!r} is {given!r}: {', '.join(choices[:-1])} or {choices[-1]}")
