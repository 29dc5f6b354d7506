"""Writes of a bucket: one publish each, with the refusals of servers as errors about buckets and keys."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from penstock.client.keyvalue.key_entry import KeyOperation
from penstock.client.message import Payload
from penstock.client.publishing import PublishOptions
from penstock.errors import (
    BatchNotEnabledError,
    BucketFullError,
    BucketNotFoundError,
    JetStreamApiError,
    JetStreamError,
    KeyExistsError,
    KeyTtlNotEnabledError,
    MisuseError,
    NoStreamError,
    ValueTooLargeError,
    WrongLastSequenceError,
    WrongRevisionError,
)
from penstock.protocol import headers as names
from penstock.protocol.error_codes import (
    MESSAGE_TTL_DISABLED,
    STREAM_MESSAGE_EXCEEDS_MAXIMUM,
    STREAM_NOT_FOUND,
    STREAM_STORE_FAILED,
)

if TYPE_CHECKING:
    from penstock.client.jetstream import JetStream

# Attempts to write a key without value. Each further one means that another client was faster.
CREATE_ATTEMPTS = 3
_LAST_SEQUENCE = re.compile(r"wrong last sequence: (\d+)$")


def options_of(operation: KeyOperation, expected: int | None, ttl_s: int | None) -> PublishOptions:
    """Options of the publish that stores an entry. expected: the key's last revision, 0 for none."""
    options: PublishOptions = {}
    if operation is KeyOperation.DELETE:
        options["headers"] = {names.KV_OPERATION: "DEL"}
    elif operation is KeyOperation.PURGE:
        options["headers"] = {names.KV_OPERATION: "PURGE", names.ROLLUP: "sub"}
    if expected is not None:
        options["expected_last_subject_sequence"] = expected
    if ttl_s is not None:
        options["ttl"] = ttl_s
    return options


async def write(
    js: JetStream,
    bucket: str,
    subject: str,
    key: str,
    value: Payload = b"",
    operation: KeyOperation = KeyOperation.PUT,
    *,
    expected: int | None = None,
    ttl_s: int | None = None,
) -> int:
    """Store an entry and return its revision.

    Raises WrongRevisionError if the key's last revision is not `expected`, BucketNotFoundError,
    ValueTooLargeError, BucketFullError, KeyTtlNotEnabledError, and what `JetStream.publish` raises.
    """
    try:
        return (await js.publish(subject, value, **options_of(operation, expected, ttl_s))).seq
    except (NoStreamError, JetStreamApiError) as error:
        raise write_error(error, bucket, key, expected or 0) from error


def check_revision(revision: int | None) -> int | None:
    """Returns a revision to expect if it is valid. Raises MisuseError."""
    if revision is not None and revision < 0:
        raise MisuseError(f"last_revision is {revision}; it is a revision, or 0 for a key without entries")
    return revision


def bucket_not_found(bucket: str) -> BucketNotFoundError:
    text = f"there is no bucket {bucket!r}: create it, or check the name, the account and the domain"
    return BucketNotFoundError(STREAM_NOT_FOUND.code, STREAM_NOT_FOUND.err_code, text, bucket=bucket)


def write_error(
    error: NoStreamError | JetStreamApiError, bucket: str, key: str, expected: int
) -> JetStreamError:
    """The refusal of a write as an error about its bucket and key; the error itself if it says nothing about
    them."""
    if isinstance(error, NoStreamError):
        return bucket_not_found(bucket)
    code, err_code = error.code, error.err_code
    if isinstance(error, WrongLastSequenceError):
        found = _LAST_SEQUENCE.search(error.description)
        return wrong_revision(bucket, key, expected, int(found[1]) if found else None, error)
    if err_code == STREAM_MESSAGE_EXCEEDS_MAXIMUM.err_code:
        text = (
            f"key {key!r} of bucket {bucket!r}: the value and its headers are larger than the bucket's "
            "max_value_size; raise it, or use an object store"
        )
        return ValueTooLargeError(code, err_code, text)
    if err_code == STREAM_STORE_FAILED.err_code and "maximum bytes" in error.description:
        text = f"key {key!r}: bucket {bucket!r} is full; raise its max_bytes, or purge keys"
        return BucketFullError(code, err_code, text)
    if err_code == MESSAGE_TTL_DISABLED.err_code:
        text = (
            f"key {key!r}: bucket {bucket!r} does not allow TTLs of single keys; update it with "
            "limit_marker_ttl, for example 60"
        )
        return KeyTtlNotEnabledError(code, err_code, text)
    if isinstance(error, BatchNotEnabledError):
        text = f"bucket {bucket!r} does not allow writes of several keys; update it with allow_atomic=True"
        return BatchNotEnabledError(code, err_code, text)
    return error


def wrong_revision(
    bucket: str, key: str, expected: int, found: int | None, error: WrongLastSequenceError
) -> WrongRevisionError:
    """The error for a key whose last revision is not `expected`."""
    is_ = "is not known" if found is None else f"is {found}" if found else "does not exist"
    text = (
        f"key {key!r} of bucket {bucket!r}: the write expects revision {expected}, the last one {is_}; "
        "get the key and decide again"
    )
    return WrongRevisionError(
        error.code, error.err_code, text, bucket=bucket, key=key, expected=expected, found=found
    )


def key_exists(bucket: str, key: str, found: int | None, error: WrongLastSequenceError) -> KeyExistsError:
    """The error for a key to create that has a value of revision `found`."""
    at = f" at revision {found}" if found else ""
    text = (
        f"key {key!r} of bucket {bucket!r} exists{at}: update it by its revision, or put without a condition"
    )
    return KeyExistsError(error.code, error.err_code, text, bucket=bucket, key=key, expected=0, found=found)
