"""Names of buckets and keys, and the subjects that keys are stored under (ADR-8).

A key is one or more tokens between dots, of letters, digits and `-`, `_`, `/`, `=`. In a filter `*` matches
one token, and `>` as the last token one or more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock.client.config import StreamConfig
from penstock.errors import InvalidBucketError, InvalidKeyError

STREAM_PREFIX = "KV_"
DEFAULT_API_PREFIX = "$JS.API"
ALL_KEYS = ">"
_BUCKET = re.compile(r"[a-zA-Z0-9_-]+")
_TOKEN = r"[-/_=a-zA-Z0-9]+"
_KEY = re.compile(rf"{_TOKEN}(?:\.{_TOKEN})*")
_FILTER = re.compile(rf"(?:(?:{_TOKEN}|\*)\.)*(?:{_TOKEN}|[*>])")


def check_bucket(bucket: str) -> str:
    """Returns the name if it is valid. Raises InvalidBucketError."""
    if not isinstance(bucket, str) or _BUCKET.fullmatch(bucket) is None:
        raise InvalidBucketError(
            f"{bucket!r} can not name a bucket: a name is one or more ASCII letters, digits, - and _"
        )
    return bucket


def is_valid_key(key: str) -> bool:
    """Whether it can be written."""
    return _KEY.fullmatch(key) is not None


def check_key(key: str, bucket: str) -> str:
    """Returns the key if it is valid. Raises InvalidKeyError."""
    if not isinstance(key, str) or not is_valid_key(key):
        raise InvalidKeyError(
            f"{key!r} can not be a key of bucket {bucket!r}: a key is ASCII letters, digits, - _ / = and "
            "single dots between them"
        )
    return key


def check_key_filter(pattern: str, bucket: str) -> str:
    """Returns the filter if it is valid: a key, or one with `*` and a final `>`. Raises InvalidKeyError.

    `a*` is refused, which the official clients send: it matches only itself, and no key holds a `*`.
    """
    if not isinstance(pattern, str) or _FILTER.fullmatch(pattern) is None:
        raise InvalidKeyError(
            f"{pattern!r} can not filter the keys of bucket {bucket!r}: a filter is a key in which tokens "
            "may be *, and the last one >"
        )
    return pattern


def stream_of(bucket: str) -> str:
    """Name of a bucket's stream. Raises InvalidBucketError."""
    return STREAM_PREFIX + check_bucket(bucket)


@dataclass(frozen=True, slots=True)
class KeySubjects:
    """Prefixes of a bucket's subjects, for reading and for writing.

    They differ for a mirror, which stores entries under its origin's subjects and takes no writes: its
    writes go to the origin, with the API prefix of an external one. With an API prefix other than the
    default, writes are published below it, so that they pass an account's import or reach another domain.
    """

    read: str
    write: str

    @classmethod
    def of(cls, config: StreamConfig, api_prefix: str) -> KeySubjects:
        bucket = config.name.removeprefix(STREAM_PREFIX)
        prefix = "" if api_prefix == DEFAULT_API_PREFIX else f"{api_prefix}."
        if config.mirror is None:
            return cls(f"$KV.{bucket}.", f"{prefix}$KV.{bucket}.")
        origin = config.mirror.name.removeprefix(STREAM_PREFIX)
        external = config.mirror.external
        if external is not None and external.api:
            prefix = f"{external.api.rstrip('.')}."
        return cls(f"$KV.{origin}.", f"{prefix}$KV.{origin}.")
