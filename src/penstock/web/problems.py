"""Errors of views as HTTP statuses and texts for people."""

from __future__ import annotations

from penstock.errors import (
    ConnectionClosedError,
    DisconnectedError,
    JetStreamApiError,
    JetStreamNotEnabledError,
    MaxPayloadError,
    MisuseError,
    NoStreamError,
    PenstockError,
    PermissionsError,
    RequestTimeoutError,
)

STATUS: tuple[tuple[type[PenstockError], int], ...] = (
    (MisuseError, 400),
    (MaxPayloadError, 413),
    (PermissionsError, 403),
    (ConnectionClosedError, 401),
    (DisconnectedError, 401),
    (RequestTimeoutError, 504),
    (NoStreamError, 404),
)


def status_of(error: PenstockError) -> int:
    """The HTTP status for an error. That of the JetStream API is one already."""
    if isinstance(error, JetStreamApiError):
        return error.code if 400 <= error.code < 600 else 502
    return next((status for kind, status in STATUS if isinstance(error, kind)), 502)


def text_of(error: PenstockError) -> str:
    if isinstance(error, PermissionsError):
        return f"your user may not {error.operation or 'use'} {error.subject or 'this subject'}"
    if isinstance(error, JetStreamNotEnabledError):
        return "JetStream is off, here or for this account"
    if isinstance(error, JetStreamApiError):
        return error.description
    return str(error)
