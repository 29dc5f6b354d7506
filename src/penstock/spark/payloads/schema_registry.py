"""Asks a schema registry for schemas, by the HTTP protocol of Confluent's, which others have too.

Invariants: a schema id never changes its meaning, so what was found is kept for the life of the process,
which Spark uses for many tasks; what was not found is asked again. A registry that does not answer is asked
again for `retrySeconds`; one that refuses is not.

Source: the Schema Registry API of Confluent, /schemas/ids/{id} and /subjects/{subject}/versions/{version}.
Rejected: confluent-kafka (a C library for Kafka, and its client of the registry is a part of it).
"""

from __future__ import annotations

import base64
import binascii
import ssl
import urllib.error
import urllib.request
from functools import lru_cache
from http.client import HTTPException
from urllib.parse import quote

import msgspec

from penstock import errors
from penstock.spark.payload_options import RegistryOptions
from penstock.spark.reconnecting import RetryPolicy

ANSWER_BYTES_MAX = 16 * 1024 * 1024
REFERENCES_MAX = 1000
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"
_BUSY = (429, 500, 502, 503, 504)


class SchemaRegistryError(errors.PenstockError):
    """A schema registry refused a request, or gave an answer that is none of its protocol."""


class RegistryUnavailableError(SchemaRegistryError):
    """A schema registry did not answer within the time of option `retrySeconds`."""


class UnknownSchemaError(SchemaRegistryError):
    """The registry has no schema of this id, or no such subject or version."""


class SchemaReference(msgspec.Struct, frozen=True):
    """What a schema imports. name: by which it does."""

    name: str
    subject: str
    version: int


class RegisteredSchema(msgspec.Struct, frozen=True, rename="camel"):
    """schema: its text, of Protobuf a FileDescriptorProto in base64. schema_type: as the registry has it."""

    schema: str
    schema_type: str = "AVRO"
    references: tuple[SchemaReference, ...] = ()
    id: int = 0


class _RegistryRefusal(msgspec.Struct):
    error_code: int = 0
    message: str = ""


class SchemaRegistry:
    """One registry, with what it has answered. Not for several threads at once."""

    def __init__(self, options: RegistryOptions) -> None:
        self.options = options
        self._by_id: dict[tuple[int, str], RegisteredSchema] = {}
        self._by_version: dict[tuple[str, int, str], RegisteredSchema] = {}
        context = ssl.create_default_context(cafile=options.ca) if options.url.startswith("https") else None
        handler = urllib.request.HTTPSHandler(context=context)
        self._opener = urllib.request.build_opener(handler)

    def by_id(self, schema_id: int, kind: str) -> RegisteredSchema:
        """The schema of a payload. kind: avro, json or protobuf.

        Raises UnknownSchemaError, RegistryUnavailableError, and SchemaRegistryError, also if the schema is of
        another kind.
        """
        found = self._by_id.get((schema_id, kind))
        if found is None:
            found = self._get(f"/schemas/ids/{schema_id}", kind, f"schema id {schema_id}")
            self._by_id[schema_id, kind] = found
        return found

    def by_version(self, subject: str, version: int | None, kind: str) -> RegisteredSchema:
        """The schema of a subject's version; None: the latest one. Raises as `by_id`."""
        if version is not None and (subject, version, kind) in self._by_version:
            return self._by_version[subject, version, kind]
        path = f"/subjects/{quote(subject, safe='')}/versions/{version or 'latest'}"
        found = self._get(path, kind, f"subject {subject!r}, version {version or 'latest'}")
        if version is not None:
            self._by_version[subject, version, kind] = found
        return found

    def with_references(self, schema: RegisteredSchema, kind: str) -> list[tuple[str, RegisteredSchema]]:
        """(name, schema) of what a schema references, each after those that it references itself."""
        found: dict[str, RegisteredSchema] = {}

        def collect(one: RegisteredSchema) -> None:
            for reference in one.references:
                if reference.name in found:
                    continue
                if len(found) >= REFERENCES_MAX:
                    raise SchemaRegistryError(
                        f"a schema of {self.options.url} references more than {REFERENCES_MAX}"
                    )
                schema = self.by_version(reference.subject, reference.version, kind)
                collect(schema)
                found[reference.name] = schema

        collect(schema)
        return list(found.items())

    def _get(self, path: str, kind: str, what: str) -> RegisteredSchema:
        if kind == "protobuf":
            path += "?format=serialized"
        policy = RetryPolicy(self.options.retry_s, 0)
        while True:
            try:
                content = self._fetch(path, what)
                break
            except RegistryUnavailableError as error:
                policy.backoff(error, 0)
        try:
            found = msgspec.json.decode(content, type=RegisteredSchema)
        except msgspec.DecodeError as error:
            raise SchemaRegistryError(f"{self.options.url}{path} is no schema: {error}") from None
        if found.schema_type.lower() != kind:
            raise SchemaRegistryError(
                f"{what} of the registry {self.options.url} is {found.schema_type}, and option "
                f"'payload' is {kind}"
            )
        return found

    def _fetch(self, path: str, what: str) -> bytes:
        url = self.options.url + path
        request = urllib.request.Request(url, headers={"Accept": _ACCEPT})
        credentials = self._credentials()
        if credentials is not None:
            request.add_unredirected_header("Authorization", credentials)
        try:
            with self._opener.open(request, timeout=self.options.timeout_s) as answer:
                content: bytes = answer.read(ANSWER_BYTES_MAX + 1)
        except urllib.error.HTTPError as error:
            raise self._refused(error, what) from None
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise RegistryUnavailableError(
                f"the schema registry {self.options.url} does not answer ({reason}); options "
                "'schemaRegistry' and 'retrySeconds'"
            ) from None
        if len(content) > ANSWER_BYTES_MAX:
            raise SchemaRegistryError(f"{url}: more than {ANSWER_BYTES_MAX} bytes")
        return content

    def _credentials(self) -> str | None:
        options = self.options
        if options.token is not None:
            return f"Bearer {options.token}"
        if options.user is None:
            return None
        return "Basic " + base64.b64encode(f"{options.user}:{options.password}".encode()).decode()

    def _refused(self, error: urllib.error.HTTPError, what: str) -> SchemaRegistryError:
        with error:
            content = error.read(ANSWER_BYTES_MAX)
        try:
            refusal = msgspec.json.decode(content, type=_RegistryRefusal)
        except msgspec.DecodeError:
            refusal = _RegistryRefusal()
        said = refusal.message or error.reason
        where = f"the schema registry {self.options.url}"
        if error.code == 404:
            return UnknownSchemaError(f"{where} has no {what}: {said}")
        if error.code in (401, 403):
            return SchemaRegistryError(
                f"{where} refused {what} ({error.code} {said}); options 'schemaRegistryUser', "
                "'schemaRegistryPassword', 'schemaRegistryToken'"
            )
        if error.code in _BUSY:
            return RegistryUnavailableError(f"{where} can't answer for {what} ({error.code} {said})")
        return SchemaRegistryError(f"{where} refused {what} ({error.code} {said})")


@lru_cache(maxsize=16)
def registry_of(options: RegistryOptions) -> SchemaRegistry:
    """The registry of this process for these options."""
    return SchemaRegistry(options)


def file_descriptors(registry: SchemaRegistry, schema: RegisteredSchema) -> bytes:
    """A FileDescriptorSet of a Protobuf schema and what it imports; the schema's own file is the last.

    Raises SchemaRegistryError if the registry gives no descriptors, as old ones do.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
    from google.protobuf.message import DecodeError

    found = FileDescriptorSet()
    for name, one in [*registry.with_references(schema, "protobuf"), ("", schema)]:
        try:
            file = FileDescriptorProto.FromString(base64.b64decode(one.schema, validate=True))
        except (binascii.Error, DecodeError):
            raise SchemaRegistryError(
                f"the schema registry {registry.options.url} gives no serialized Protobuf descriptor "
                "(?format=serialized): give options 'protobufDescriptor' and 'protobufMessage'"
            ) from None
        file.name = name or file.name or "schema.proto"
        found.file.append(file)
    return bytes(found.SerializeToString())
