"""All exceptions that penstock raises deliberately.

    PenstockError
     ├─ MisuseError                  the caller's fault: wrong argument or call order (a ValueError)
     │   ├─ HistoryTooLargeError     a key-value bucket keeps 1 to 64 entries per key
     │   └─ InvalidSubjectError      an invalid subject, filter or asset name
     │       ├─ InvalidBucketError   an invalid name of a bucket
     │       └─ InvalidKeyError      an invalid key, or filter of keys, of a bucket
     ├─ MissingExtraError            an optional dependency is missing (an ImportError); names the extra
     ├─ UnsupportedPythonError       this Python is too old for a part (an ImportError)
     ├─ ConfigError                  an invalid configuration file or option (file:line:col)
     ├─ StoreError                   an error of the disk or of stored data
     │   ├─ StoreWriteError          a write or sync failed: the stream stops, stored data stays
     │   ├─ StoreCorruptError        bytes on disk differ from what was written (file and offset)
     │   ├─ StoreFormatError         files of a newer penstock or of another server; not modified
     │   └─ StoreLockedError         another process uses the store directory
     ├─ ProtocolError                the peer broke the protocol: the connection closes
     │   └─ MalformedCommandError    a stream's command that no version of this server has written
     ├─ PayloadError                 a payload is not of the type it was decoded as (a ValueError)
     ├─ ServerError                  a server could not start, stop or perform an operation
     │   └─ LeadershipLostError      another server leads a stream: whether a change was made is unknown
     ├─ ClientError                  a client connection or request failed
     │   ├─ ConnectionClosedError    the connection is or was closed during the call
     │   │   └─ ConnectionDrainingError  draining: no new publishes or subscriptions
     │   ├─ DisconnectedError        disconnected, and the call cannot wait for a reconnect
     │   ├─ NoServersError           no server of the list is reachable
     │   ├─ StaleConnectionError     the server stopped answering PINGs
     │   ├─ AuthorizationError       credentials refused, expired or revoked
     │   │   └─ CredentialsError     credentials are unreadable or unusable; nothing was sent
     │   ├─ PermissionsError         no permission to publish or subscribe to a subject
     │   ├─ ServerRefusedError       any other -ERR (limits, payload, control line)
     │   ├─ MaxPayloadError          the message exceeds max_payload; not sent
     │   ├─ SlowConsumerError        a subscription's queue was full: messages were dropped
     │   ├─ ServiceError             a service answered a request with an error (code, description)
     │   ├─ RequestTimeoutError      no reply in time (also a TimeoutError)
     │   └─ NoRespondersError        no subscriber on the request's subject (status 503)
     └─ JetStreamError
         ├─ JetStreamApiError        the server refused a request: code, err_code, description
         │   ├─ NotFoundError        the object does not exist (any 404)
         │   │   ├─ StreamNotFoundError
         │   │   │   └─ BucketNotFoundError  the key-value bucket or object store does not exist
         │   │   ├─ ConsumerNotFoundError
         │   │   ├─ MessageNotFoundError
         │   │   ├─ KeyNotFoundError     the key has no value, or not at this revision
         │   │   │   └─ KeyDeletedError  the key's last entry is a delete or purge marker
         │   │   └─ ObjectNotFoundError  the object store has no such object, or it was deleted
         │   ├─ AlreadyExistsError   the name is in use with another configuration
         │   │   ├─ BucketExistsError
         │   │   └─ ObjectExistsError    the name of a link, or the new name of an object, is in use
         │   ├─ SubjectsOverlapError     the subjects are those of another stream (streams)
         │   ├─ WrongLastSequenceError   an expected-sequence header did not match
         │   │   └─ WrongRevisionError   the key's revision is not the expected one
         │   │       └─ KeyExistsError   the key to create has a value
         │   ├─ ValueTooLargeError   the value exceeds the bucket's max_value_size
         │   ├─ BucketFullError      the write would exceed the bucket's max_bytes
         │   ├─ KeyTtlNotEnabledError    the bucket does not allow TTLs of single keys
         │   ├─ ObjectStoreSealedError   a sealed object store takes no changes
         │   ├─ JetStreamNotEnabledError
         │   ├─ DirectGetNotAllowedError the stream does not allow direct gets
         │   ├─ BatchNotEnabledError     the stream does not allow batches of this kind
         │   ├─ BatchUnknownError        the batch id is unknown or the batch has ended
         │   └─ BatchIncompleteError     an atomic batch lost a message or timed out; nothing is stored
         ├─ BatchEndedError          a fast batch ended before its commit
         ├─ PublishNotAckedError     a publish without a valid ack
         ├─ PublishFailedError       some publishes of a windowed publisher failed
         ├─ NoStreamError            no stream takes the subject (503 on a JetStream publish)
         ├─ ObjectError              base of errors about one object of an object store
         │   ├─ ObjectCorruptError   its chunks do not have its size or digest
         │   ├─ ObjectChangedError   it was replaced or deleted while it was read
         │   └─ ObjectLinkError      a link does not lead to an object, where one is needed
         ├─ LockNotAcquiredError     the lock stayed with another holder (also a TimeoutError)
         ├─ LockLostError            a lock or lease expired, or another holder took it
         ├─ PullError                a pull request ended in an error status (status, description)
         └─ ConsumerGoneError        the consumer was deleted, or its heartbeats stopped

Invariants: the type says whose fault it is; the text says what was requested, what was found and what to do.
Rejected: one class per err_code (two hundred classes; the number is an attribute instead), and subclassing
ConnectionError (its errno arguments have another meaning).
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in typing, which a server must not import before its port listens
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

SERVICE_ERROR = "Nats-Service-Error"
SERVICE_ERROR_CODE = "Nats-Service-Error-Code"


class PenstockError(Exception):
    """Base class of penstock's exceptions."""


class MisuseError(PenstockError, ValueError):
    """Wrong argument, or a call in the wrong order. Nothing was sent or changed."""


class InvalidSubjectError(MisuseError):
    """A subject, filter, queue group or asset name is invalid."""


class MissingExtraError(PenstockError, ImportError):
    """Packages of an extra are not installed. The text names the extra.

    An ImportError, because it replaces the failed import of those packages.
    """


class UnsupportedPythonError(PenstockError, ImportError):
    """A part needs a later version of Python than this one. The text says which.

    An ImportError, because it replaces the failed import of what this Python lacks.
    """


class ConfigError(PenstockError):
    """An invalid configuration.

    `file`, `line` and `column` (from 1) are its location; None for options set in code.
    """

    def __init__(
        self, message: str, *, file: str | None = None, line: int | None = None, column: int | None = None
    ) -> None:
        self.message = message
        self.file = file
        self.line = line
        self.column = column
        where = [str(part) for part in (file, line, column) if part is not None]
        super().__init__(f"{':'.join(where)}: {message}" if where else message)


# --- store -------------------------------------------------------------------------------------


class StoreError(PenstockError):
    """An error of the disk or of stored data. `path` is the file, or None."""

    def __init__(self, message: str, *, path: str | None = None) -> None:
        self.path = path
        super().__init__(f"{path}: {message}" if path else message)


class StoreWriteError(StoreError):
    """A write or sync failed. Messages that depend on it must not be acked."""


class StoreCorruptError(StoreError):
    """Bytes on disk differ from what was written. `offset` in the file, or None."""

    def __init__(self, message: str, *, path: str | None = None, offset: int | None = None) -> None:
        self.offset = offset
        super().__init__(message if offset is None else f"at byte {offset}: {message}", path=path)


class StoreFormatError(StoreError):
    """Intact files in a format that this version does not read. They are not modified."""


class StoreLockedError(StoreError):
    """Another process holds the store directory's lock."""


# --- wire and server ---------------------------------------------------------------------------


class ProtocolError(PenstockError):
    """The peer violated the protocol; its connection is closed."""


class MalformedCommandError(ProtocolError):
    """A command of a stream that cannot be decoded: a damaged one, or one of a newer server."""


class PayloadError(PenstockError, ValueError):
    """A payload is not of the type it was decoded as. `__cause__` is the decoder's error."""


class ServerError(PenstockError):
    """A server could not start, stop or perform an operation."""


class LeadershipLostError(ServerError):
    """This server leads a replicated stream no more: whether a change was made is unknown, so that a request
    for it gets no answer, and its client asks the next leader."""


# --- client ------------------------------------------------------------------------------------


class ClientError(PenstockError):
    """A client connection or request failed."""


class ConnectionClosedError(ClientError):
    """The connection is closed, or was closed while the call waited."""


class ConnectionDrainingError(ConnectionClosedError):
    """The connection is draining: it delivers received messages and accepts nothing new."""


class DisconnectedError(ClientError):
    """The client is disconnected, and the call cannot wait for a reconnect."""


class NoServersError(ClientError):
    """No server could be reached. `attempts` lists (server, error text) of the last round."""

    def __init__(self, message: str, *, attempts: list[tuple[str, str]] | None = None) -> None:
        self.attempts = attempts or []
        tried = "; ".join(f"{server}: {text}" for server, text in self.attempts)
        super().__init__(f"{message} ({tried})" if tried else message)


class StaleConnectionError(ClientError):
    """The server stopped answering PINGs."""


class AuthorizationError(ClientError):
    """The server refused the credentials, or they expired or were revoked."""


class CredentialsError(AuthorizationError):
    """Unusable credentials: an unreadable file, no seed, or an expired token. Nothing was sent."""


class PermissionsError(ClientError):
    """The server refused one publish or subscription. `operation` and `subject` identify it."""

    def __init__(self, message: str, *, operation: str = "", subject: str = "") -> None:
        self.operation = operation
        self.subject = subject
        super().__init__(message)


class ServerRefusedError(ClientError):
    """The server sent -ERR with a `text` that has no exception of its own."""

    def __init__(self, text: str) -> None:
        self.text = text
        super().__init__(f"the server says: {text}")


class MaxPayloadError(ClientError):
    """The message is larger than the server's max_payload; it was not sent."""

    def __init__(self, size: int, limit: int, *, subject: str = "") -> None:
        self.size = size
        self.limit = limit
        self.subject = subject
        where = f" for subject {subject!r}" if subject else ""
        super().__init__(
            f"a message of {size} bytes{where}, where the server takes at most {limit} (max_payload)"
        )


class SlowConsumerError(ClientError):
    """A subscription's queue was full and messages were dropped."""

    def __init__(self, subject: str, dropped: int) -> None:
        self.subject = subject
        self.dropped = dropped
        super().__init__(
            f"slow consumer: subscription {subject!r} has dropped {dropped} messages since it was made, its "
            "queue is full; read faster, or raise max_pending_messages and max_pending_bytes"
        )


class ServiceError(ClientError):
    """A service answered a request with an error, or its handler raises this to answer with one (ADR-32).

    `code` is a number the service chooses, as in HTTP or its own; `description` is text for the user, one
    line; `data` is the payload of the answer.
    """

    def __init__(self, code: int, description: str, *, data: bytes = b"") -> None:
        self.code = int(code)
        self.description = " ".join(description.split())
        self.data = data
        super().__init__(f"{self.description} [{self.code}]")

    def headers(self) -> dict[str, str]:
        """The headers of an answer with this error."""
        return {SERVICE_ERROR: self.description, SERVICE_ERROR_CODE: str(self.code)}

    @staticmethod
    def of(headers: Mapping[str, str], data: bytes) -> ServiceError | None:
        """The error in an answer, None if it has none. A code that is not a number becomes 500."""
        description, code = headers.get(SERVICE_ERROR), headers.get(SERVICE_ERROR_CODE)
        if description is None and code is None:
            return None
        number = int(code) if code is not None and code.isascii() and code.isdigit() else 500
        return ServiceError(number, description or "", data=data)

    def __reduce__(self) -> tuple[Any, ...]:
        return _service_error, (self.code, self.description, self.data)


def _service_error(code: int, description: str, data: bytes) -> ServiceError:
    return ServiceError(code, description, data=data)


class RequestTimeoutError(ClientError, TimeoutError):
    """No reply arrived in time."""

    def __init__(self, message: str, *, subject: str = "", timeout_s: float | None = None) -> None:
        self.subject = subject
        self.timeout_s = timeout_s
        super().__init__(message)


class NoRespondersError(ClientError):
    """The request's subject has no subscriber."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        super().__init__(f"no responders on {subject!r}: this subject has no subscriber")


# --- JetStream ---------------------------------------------------------------------------------


class JetStreamError(PenstockError):
    """Base class of stream and consumer errors."""


class JetStreamApiError(JetStreamError):
    """The server refused a request.

    `code` is HTTP-like (400, 404, 503), `err_code` specific (10059), `description` the server's text.
    `stream` and `request` (the request's subject) are set when known. The server raises the same exception
    internally to refuse a request; the client raises it for a received refusal.
    """

    def __init__(
        self,
        code: int,
        err_code: int,
        description: str,
        *,
        stream: str | None = None,
        request: str | None = None,
    ) -> None:
        self.code = code
        self.err_code = err_code
        self.description = description
        self.stream = stream
        self.request = request
        asked = f" (request {request})" if request else ""
        super().__init__(f"{description} [{code}, err_code {err_code}]{asked}")

    def __reduce__(self) -> tuple[Any, ...]:
        # Spark pickles exceptions; without this the keyword arguments would be lost.
        return type(self), (self.code, self.err_code, self.description), self.__dict__

    @staticmethod
    def of(
        code: int, err_code: int, description: str, *, stream: str | None = None, request: str | None = None
    ) -> JetStreamApiError:
        """The exception, of the subclass for `err_code`."""
        kind = _BY_ERR_CODE.get(err_code)
        if kind is None:
            kind = NotFoundError if code == 404 else JetStreamApiError
        return kind(code, err_code, description, stream=stream, request=request)


class NotFoundError(JetStreamApiError):
    """The requested object does not exist."""


class StreamNotFoundError(NotFoundError):
    """err_code 10059."""


class ConsumerNotFoundError(NotFoundError):
    """err_code 10014."""


class MessageNotFoundError(NotFoundError):
    """err_code 10037 or 10043."""


class AlreadyExistsError(JetStreamApiError):
    """err_code 10058, 10013, 10105 or 10148: the name is in use with another configuration."""


class SubjectsOverlapError(JetStreamApiError):
    """err_code 10065: other streams store some of the subjects. `streams` names them, [] if not known."""

    def __init__(
        self, code: int, err_code: int, description: str, *, streams: list[str] | None = None, **known: Any
    ) -> None:
        self.streams = streams or []
        super().__init__(code, err_code, description, **known)


class WrongLastSequenceError(JetStreamApiError):
    """err_code 10071 or 10164: the expected sequence is not the last one."""


class JetStreamNotEnabledError(JetStreamApiError):
    """err_code 10076 or 10039: the server or the account has no JetStream."""


class DirectGetNotAllowedError(JetStreamApiError):
    """The stream exists, and its configuration does not have `allow_direct`."""


class BatchNotEnabledError(JetStreamApiError):
    """The stream does not allow atomic (allow_atomic) or fast (allow_batched) batches."""


class BatchUnknownError(JetStreamApiError):
    """Unknown batch id: the batch ended or timed out, or the server was restarted."""


class BatchIncompleteError(JetStreamApiError):
    """A message of an atomic batch was lost, or the batch timed out; nothing is stored."""


# --- key-value buckets -------------------------------------------------------------------------


class InvalidBucketError(InvalidSubjectError):
    """The name cannot name a bucket."""


class InvalidKeyError(InvalidSubjectError):
    """The text is not a key of a bucket, or not a filter of keys."""


class HistoryTooLargeError(MisuseError):
    """A bucket keeps 1 to 64 entries per key."""


class BucketNotFoundError(StreamNotFoundError):
    """The bucket does not exist. `bucket` is its name."""

    def __init__(self, code: int, err_code: int, description: str, *, bucket: str = "", **known: Any) -> None:
        self.bucket = bucket
        super().__init__(code, err_code, description, **known)


class BucketExistsError(AlreadyExistsError):
    """The bucket exists with another configuration. `bucket` is its name; the text lists what differs."""

    def __init__(self, code: int, err_code: int, description: str, *, bucket: str = "", **known: Any) -> None:
        self.bucket = bucket
        super().__init__(code, err_code, description, **known)


class KeyNotFoundError(NotFoundError):
    """The key has no value. `bucket` and `key` identify it. `revision`: the requested one, 0 for the last."""

    def __init__(
        self,
        code: int,
        err_code: int,
        description: str,
        *,
        bucket: str = "",
        key: str = "",
        revision: int = 0,
        **known: Any,
    ) -> None:
        self.bucket = bucket
        self.key = key
        self.revision = revision
        super().__init__(code, err_code, description, **known)


class KeyDeletedError(KeyNotFoundError):
    """The key was deleted or purged, or its value expired. `revision` is that of the marker."""


class WrongRevisionError(WrongLastSequenceError):
    """The key's last revision is not the expected one; nothing was written.

    `bucket` and `key` identify it. `expected` is the requested revision (0: no value), `found` the key's last
    one when it was read after the refusal; None if it could not be read.
    """

    def __init__(
        self,
        code: int,
        err_code: int,
        description: str,
        *,
        bucket: str = "",
        key: str = "",
        expected: int = 0,
        found: int | None = None,
        **known: Any,
    ) -> None:
        self.bucket = bucket
        self.key = key
        self.expected = expected
        self.found = found
        super().__init__(code, err_code, description, **known)


class KeyExistsError(WrongRevisionError):
    """The key to create has a value, of revision `found`."""


class ValueTooLargeError(JetStreamApiError):
    """err_code 10054: the value is larger than the bucket's max_value_size."""


class BucketFullError(JetStreamApiError):
    """The write would exceed the bucket's max_bytes."""


class KeyTtlNotEnabledError(JetStreamApiError):
    """err_code 10166: the bucket does not allow TTLs of single keys."""


class LockNotAcquiredError(JetStreamError, TimeoutError):
    """Another holder kept the lock for the whole time. `bucket`, `key` and `holder` identify it."""

    def __init__(self, message: str, *, bucket: str = "", key: str = "", holder: str = "") -> None:
        self.bucket = bucket
        self.key = key
        self.holder = holder
        super().__init__(message)


class LockLostError(JetStreamError):
    """The lock expired before its renewal, or another holder has it. `bucket` and `key` identify it."""

    def __init__(self, message: str, *, bucket: str = "", key: str = "") -> None:
        self.bucket = bucket
        self.key = key
        super().__init__(message)


# --- object stores -----------------------------------------------------------------------------


class ObjectNotFoundError(NotFoundError):
    """The object does not exist. `bucket` and `name` identify it; `is_deleted` whether there was one."""

    def __init__(
        self,
        code: int,
        err_code: int,
        description: str,
        *,
        bucket: str = "",
        name: str = "",
        is_deleted: bool = False,
        **known: Any,
    ) -> None:
        self.bucket = bucket
        self.name = name
        self.is_deleted = is_deleted
        super().__init__(code, err_code, description, **known)


class ObjectExistsError(AlreadyExistsError):
    """The name is in use by another object. `bucket` and `name` identify it."""

    def __init__(
        self, code: int, err_code: int, description: str, *, bucket: str = "", name: str = "", **known: Any
    ) -> None:
        self.bucket = bucket
        self.name = name
        super().__init__(code, err_code, description, **known)


class ObjectStoreSealedError(JetStreamApiError):
    """err_code 10109: the object store is sealed, and takes no changes."""


class ObjectError(JetStreamError):
    """Base of errors about one object: `bucket` and `name` identify it."""

    def __init__(self, message: str, *, bucket: str = "", name: str = "") -> None:
        self.bucket = bucket
        self.name = name
        super().__init__(message)


class ObjectCorruptError(ObjectError):
    """The stored chunks do not have the size or the digest that the object should have."""


class ObjectChangedError(ObjectError):
    """The object was replaced or deleted while it was read; get it again."""


class ObjectLinkError(ObjectError):
    """A link leads to a whole store, to another link or nowhere, where an object is needed."""


# --- batches and publishes ---------------------------------------------------------------------


class BatchEndedError(JetStreamError):
    """A fast batch ended before its commit.

    `acked`: batch sequence up to which the server has confirmed messages. `ack`: the server's final pub ack,
    with the `count` of stored messages and the last stream sequence; None when there is none.
    """

    def __init__(self, message: str, *, acked: int, ack: Any = None) -> None:
        self.acked = acked
        self.ack = ack
        super().__init__(message)


class PublishNotAckedError(JetStreamError):
    """No valid ack for a publish arrived. The message may or may not be stored."""


class PublishFailedError(JetStreamError):
    """`failed` publishes of a windowed publisher failed, and `acked` were stored.

    `failures` lists (subject, reason) of the first failures.
    """

    def __init__(self, failed: int, acked: int, failures: list[tuple[str, str]]) -> None:
        self.failed = failed
        self.acked = acked
        self.failures = failures
        first = f"; the first, on {failures[0][0]!r}: {failures[0][1]}" if failures else ""
        super().__init__(f"{failed} publishes failed, {acked} were stored{first}")


class NoStreamError(JetStreamError):
    """No stream stores messages of the subject. `stream`: the one that was to store it, "" if any."""

    def __init__(self, subject: str, *, stream: str = "") -> None:
        self.subject = subject
        self.stream = stream
        meant = f", which is meant for stream {stream!r}" if stream else ""
        super().__init__(f"no stream takes subject {subject!r}{meant}: create one, or check its subjects")


class PullError(JetStreamError):
    """A pull request ended in an error status. `status` is its code, `description` its text."""

    def __init__(self, status: int, description: str) -> None:
        self.status = status
        self.description = description
        super().__init__(f"pull request ended with {status} {description}")


class ConsumerGoneError(JetStreamError):
    """The consumer was deleted, or its heartbeats stopped."""


_BY_ERR_CODE: dict[int, type[JetStreamApiError]] = {
    10013: AlreadyExistsError,
    10014: ConsumerNotFoundError,
    10037: MessageNotFoundError,
    10039: JetStreamNotEnabledError,
    10043: MessageNotFoundError,
    10058: AlreadyExistsError,
    10059: StreamNotFoundError,
    10065: SubjectsOverlapError,
    10071: WrongLastSequenceError,
    10076: JetStreamNotEnabledError,
    10105: AlreadyExistsError,
    10148: AlreadyExistsError,
    10164: WrongLastSequenceError,
    10174: BatchNotEnabledError,
    10176: BatchIncompleteError,
}
