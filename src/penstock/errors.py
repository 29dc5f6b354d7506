"""All exceptions that penstock raises deliberately.

    PenstockError
     ├─ MisuseError                  the caller's fault: wrong argument or call order (a ValueError)
     │   └─ InvalidSubjectError      an invalid subject, filter or asset name
     ├─ MissingExtraError            an optional dependency is missing (an ImportError); names the extra
     ├─ ConfigError                  an invalid configuration file or option (file:line:col)
     ├─ StoreError                   an error of the disk or of stored data
     │   ├─ StoreWriteError          a write or sync failed: the stream stops, stored data stays
     │   ├─ StoreCorruptError        bytes on disk differ from what was written (file and offset)
     │   ├─ StoreFormatError         files of a newer penstock or of another server; not modified
     │   └─ StoreLockedError         another process uses the store directory
     ├─ ProtocolError                the peer broke the protocol: the connection closes
     ├─ ServerError                  a server could not start, stop or perform an operation
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
     │   ├─ RequestTimeoutError      no reply in time (also a TimeoutError)
     │   └─ NoRespondersError        no subscriber on the request's subject (status 503)
     └─ JetStreamError
         ├─ JetStreamApiError        the server refused a request: code, err_code, description
         │   ├─ NotFoundError        the object does not exist (any 404)
         │   │   ├─ StreamNotFoundError
         │   │   ├─ ConsumerNotFoundError
         │   │   └─ MessageNotFoundError
         │   ├─ AlreadyExistsError   the name is in use with another configuration
         │   ├─ WrongLastSequenceError   an expected-sequence header did not match
         │   ├─ JetStreamNotEnabledError
         │   ├─ DirectGetNotAllowedError the stream does not allow direct gets
         │   ├─ BatchNotEnabledError     the stream does not allow batches of this kind
         │   ├─ BatchUnknownError        the batch id is unknown or the batch has ended
         │   └─ BatchIncompleteError     an atomic batch lost a message or timed out; nothing is stored
         ├─ BatchEndedError          a fast batch ended before its commit
         ├─ PublishNotAckedError     a publish without a valid ack
         ├─ PublishFailedError       some publishes of a windowed publisher failed
         ├─ NoStreamError            no stream takes the subject (503 on a JetStream publish)
         ├─ PullError                a pull request ended in an error status (status, description)
         └─ ConsumerGoneError        the consumer was deleted, or its heartbeats stopped

Invariants: the type says whose fault it is; the text says what was requested, what was found and what to do.
Rejected: one class per err_code (two hundred classes; the number is an attribute instead), and subclassing
ConnectionError (its errno arguments have another meaning).
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in typing, which a server must not import before its port listens
if TYPE_CHECKING:
    from typing import Any


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


class ServerError(PenstockError):
    """A server could not start, stop or perform an operation."""


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

    def __init__(self, size: int, limit: int) -> None:
        self.size = size
        self.limit = limit
        super().__init__(f"a message of {size} bytes, where the server takes at most {limit} (max_payload)")


class SlowConsumerError(ClientError):
    """A subscription's queue was full and messages were dropped."""

    def __init__(self, subject: str, dropped: int) -> None:
        self.subject = subject
        self.dropped = dropped
        super().__init__(
            f"slow consumer: subscription {subject!r} has dropped {dropped} messages since it was made, its "
            "queue is full; read faster, or raise max_pending_messages and max_pending_bytes"
        )


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
        arguments = (self.code, self.err_code, self.description)
        return type(self), arguments, {"stream": self.stream, "request": self.request}

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
    """No stream stores messages of the subject."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        super().__init__(f"no stream takes subject {subject!r}: create one, or check its subjects")


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
    10071: WrongLastSequenceError,
    10076: JetStreamNotEnabledError,
    10105: AlreadyExistsError,
    10148: AlreadyExistsError,
    10164: WrongLastSequenceError,
    10174: BatchNotEnabledError,
    10176: BatchIncompleteError,
}
