"""Refusals of servers as errors about object stores and objects."""

from __future__ import annotations

from penstock.client.keyvalue.key_writes import bucket_not_found
from penstock.errors import (
    BucketFullError,
    JetStreamApiError,
    JetStreamError,
    NoStreamError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectStoreSealedError,
)
from penstock.protocol.error_codes import STREAM_SEALED, STREAM_STORE_FAILED


def store_error(error: NoStreamError | JetStreamApiError, bucket: str, name: str) -> JetStreamError:
    """The refusal of a write as an error about its store; the error itself if it says nothing about it."""
    if isinstance(error, NoStreamError):
        return bucket_not_found(bucket)
    if error.err_code == STREAM_SEALED.err_code:
        text = f"object {name!r}: store {bucket!r} is sealed and takes no changes"
        return ObjectStoreSealedError(error.code, error.err_code, text)
    if error.err_code == STREAM_STORE_FAILED.err_code and "maximum bytes" in error.description:
        text = f"object {name!r}: store {bucket!r} is full; raise its max_bytes, or delete objects"
        return BucketFullError(error.code, error.err_code, text)
    return error


def object_not_found(bucket: str, name: str, *, is_deleted: bool) -> ObjectNotFoundError:
    why = "was deleted" if is_deleted else "does not exist"
    text = f"object {name!r} of store {bucket!r} {why}; list() has the names"
    return ObjectNotFoundError(404, 10037, text, bucket=bucket, name=name, is_deleted=is_deleted)


def object_exists(bucket: str, name: str) -> ObjectExistsError:
    text = f"store {bucket!r} has an object {name!r} already; delete it first, or use another name"
    return ObjectExistsError(400, 10058, text, bucket=bucket, name=name)


def object_changed(bucket: str, name: str) -> ObjectChangedError:
    text = f"object {name!r} of store {bucket!r} was replaced or deleted meanwhile; get it again"
    return ObjectChangedError(text, bucket=bucket, name=name)
