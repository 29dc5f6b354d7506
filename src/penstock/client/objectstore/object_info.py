"""What an object store records about an object: a JSON message per name (ADR-20)."""

from __future__ import annotations

import base64
import hashlib
from datetime import UTC, datetime, timedelta

import msgspec

from penstock.client.message import HeadersLike
from penstock.errors import MisuseError, ObjectError
from penstock.protocol.durations import NS_PER_S, ZERO_TIME
from penstock.protocol.headers import Headers

CHUNK_BYTES = 128 * 1024
DIGEST_PREFIX = "SHA-256="


class ObjectLink(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a link leads: to an object of a store, or with an empty name to the whole store."""

    bucket: str
    name: str = ""


class ObjectInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An object, a link or the marker of a deleted object.

    nuid: names its chunks. size: bytes. chunks: their number. digest: `SHA-256=` and base64, "" for links.
    max_chunk_size: of its put, 0 if not recorded. modified_ns: when this was stored, nanoseconds since 1970
    UTC. revision: its sequence in the store's stream.
    """

    bucket: str
    name: str
    nuid: str
    description: str = ""
    headers: dict[str, list[str]] = {}
    metadata: dict[str, str] = {}
    size: int = 0
    chunks: int = 0
    digest: str = ""
    deleted: bool = False
    link: ObjectLink | None = None
    max_chunk_size: int = 0
    modified_ns: int = 0
    revision: int = 0

    @property
    def modified(self) -> datetime:
        """When it was stored, in UTC, with microseconds."""
        seconds, rest = divmod(self.modified_ns, NS_PER_S)
        return datetime.fromtimestamp(seconds, tz=UTC) + timedelta(microseconds=rest // 1000)


class _StoredOptions(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    link: ObjectLink | None = None
    max_chunk_size: int | None = 0


class _StoredInfo(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The JSON. Clients write null, or nothing, for what they leave out."""

    name: str
    description: str | None = ""
    headers: dict[str, list[str] | str] | None = None
    metadata: dict[str, str] | None = None
    options: _StoredOptions | None = None
    bucket: str = ""
    nuid: str = ""
    size: int | None = 0
    mtime: str | None = ""
    chunks: int | None = 0
    digest: str | None = ""
    deleted: bool | None = False


class _WrittenInfo(_StoredInfo, frozen=True, omit_defaults=True, kw_only=True):
    """The same with the fields that other clients expect always."""

    bucket: str
    nuid: str
    size: int
    mtime: str
    chunks: int


_decoder = msgspec.json.Decoder(_StoredInfo)


def encode_info(info: ObjectInfo) -> bytes:
    """The JSON of an object. Its time is zero, as with the official clients: the message's time counts."""
    options = None
    if info.link is not None or info.max_chunk_size:
        options = _StoredOptions(link=info.link, max_chunk_size=info.max_chunk_size)
    written = _WrittenInfo(
        name=info.name,
        description=info.description,
        headers={name: list(values) for name, values in info.headers.items()} or None,
        metadata=info.metadata or None,
        options=options,
        bucket=info.bucket,
        nuid=info.nuid,
        size=info.size,
        mtime=ZERO_TIME,
        chunks=info.chunks,
        digest=info.digest,
        deleted=info.deleted,
    )
    return msgspec.json.encode(written)


def decode_info(data: bytes, bucket: str, revision: int, time_ns: int) -> ObjectInfo:
    """The object that a message describes. Raises ObjectError if it can not be read."""
    try:
        found = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        text = f"store {bucket!r}: message {revision} does not describe an object ({error})"
        raise ObjectError(text, bucket=bucket) from error
    options = found.options or _StoredOptions()
    headers = found.headers or {}
    return ObjectInfo(
        bucket=found.bucket or bucket,
        name=found.name,
        nuid=found.nuid,
        description=found.description or "",
        headers={name: [value] if isinstance(value, str) else value for name, value in headers.items()},
        metadata=found.metadata or {},
        size=found.size or 0,
        chunks=found.chunks or 0,
        digest=found.digest or "",
        deleted=found.deleted or False,
        link=options.link,
        max_chunk_size=options.max_chunk_size or 0,
        modified_ns=time_ns,
        revision=revision,
    )


def deleted_info(info: ObjectInfo) -> ObjectInfo:
    """The marker that takes the place of a deleted object's info."""
    return msgspec.structs.replace(info, deleted=True, size=0, chunks=0, digest="")


def headers_of(headers: HeadersLike | None) -> dict[str, list[str]]:
    """Headers as an object's info holds them. Raises MisuseError for an invalid one."""
    made = headers if isinstance(headers, Headers) else Headers(headers or ())
    return {name: made.get_all(name) for name in made}


def encode_name(name: str) -> str:
    """An object's name as the token of a subject. Raises MisuseError for an empty one."""
    if not isinstance(name, str) or not name:
        raise MisuseError(f"{name!r} can not name an object: a name is text, and not empty")
    return base64.urlsafe_b64encode(name.encode("utf-8", "surrogateescape")).decode()


def digest_of(digest: hashlib._Hash) -> str:
    """A SHA-256 digest as an object's info holds it."""
    return DIGEST_PREFIX + base64.urlsafe_b64encode(digest.digest()).decode()


def is_digest(text: str, digest: hashlib._Hash) -> bool:
    """Whether an info's digest is this one. Clients differ in padding and in the case of the prefix."""
    kind, _, value = text.partition("=")
    return kind.upper() == "SHA-256" and value.rstrip("=") == digest_of(digest).partition("=")[2].rstrip("=")
