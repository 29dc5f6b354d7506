"""Every exception penstock raises on purpose.

    PenstockError
     ├─ MisuseError                  our caller's fault: wrong argument or order of calls (a ValueError)
     │   └─ InvalidSubjectError      a subject, filter or asset name that the grammar refuses
     ├─ MissingExtraError            a part whose extra is not installed (an ImportError): it says which one
     ├─ ConfigError                  a configuration file or option says something it may not (file:line:col)
     ├─ StoreError                   the disk or what is on it
     │   ├─ StoreWriteError          a write or sync failed: the stream stops, what is stored stays
     │   ├─ StoreCorruptError        bytes on disk are not what was written (file and offset)
     │   ├─ StoreFormatError         files of a newer penstock, or of another server: nothing is touched
     │   └─ StoreLockedError         another process uses the store directory
     ├─ ProtocolError                the peer broke the protocol: the connection closes
     ├─ ServerError                  an embedded or served server could not do what was asked
     ├─ ClientError                  a client's connection or request
     │   ├─ ConnectionClosedError    the connection is closed, or closes while the call waits
     │   │   └─ ConnectionDrainingError  it is draining: no new publishes or subscriptions
     │   ├─ DisconnectedError        between two connections, and the call can not wait for the next one
     │   ├─ NoServersError           no server of the list could be reached
     │   ├─ StaleConnectionError     the server stopped answering PINGs
     │   ├─ AuthorizationError       credentials refused, expired or revoked
     │   │   └─ CredentialsError     own credentials can't be read or used: no server was asked
     │   ├─ PermissionsError         allowed to connect, not to publish or subscribe this subject
     │   ├─ ServerRefusedError       any other -ERR text (limits, payload, control line)
     │   ├─ MaxPayloadError          the message is larger than the server takes (found before it is sent)
     │   ├─ SlowConsumerError        a subscription's queue was full: messages were dropped
     │   ├─ RequestTimeoutError      no answer in time (also a TimeoutError)
     │   └─ NoRespondersError        nobody listens on the request's subject (status 503)
     └─ JetStreamError
         ├─ JetStreamApiError        the server refused a request: code, err_code, description
         │   ├─ NotFoundError        what was asked for does not exist (any 404)
         │   │   ├─ StreamNotFoundError
         │   │   ├─ ConsumerNotFoundError
         │   │   └─ MessageNotFoundError
         │   ├─ AlreadyExistsError   a name in use with another configuration
         │   ├─ WrongLastSequenceError   an expected-sequence header did not match
         │   ├─ JetStreamNotEnabledError
         │   ├─ DirectGetNotAllowedError the stream does not allow direct gets (allow_direct)
         │   ├─ BatchNotEnabledError     the stream takes no batches of this kind
         │   ├─ BatchUnknownError        the server knows no batch of this id (any more)
         │   └─ BatchIncompleteError     an atomic batch lost a message, or waited too long: nothing is stored
         ├─ BatchEndedError          a fast batch ended before its commit: what is stored, and why
         ├─ PublishNotAckedError     a publish whose ack did not come or could not be read
         ├─ PublishFailedError       some publishes of a windowed publisher failed
         ├─ NoStreamError            no stream takes the subject (503 on a JetStream publish)
         ├─ PullError                a pull request ended in an error status (status, description)
         └─ ConsumerGoneError        the consumer was deleted, or its heartbeats stopped

Invariants: the type says whose fault it is (style rule 5); a message says what was asked, what was found
and what to do. Rejected: one exception class per err_code (two hundred classes nobody would import; the
number is an attribute instead) and reusing ConnectionError (its errno arguments mean something else).
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing has it, which a server does not import before its port listens
if TYPE_CHECKING:
    from typing import Any


class PenstockError(Exception):
    """Base of everything penstock raises on purpose."""


class MisuseError(PenstockError, ValueError):
    """The caller passed something wrong or called in the wrong order; nothing was sent or changed."""


class InvalidSubjectError(MisuseError):
    """A subject, filter, queue group or asset name breaks the grammar."""


class MissingExtraError(PenstockError, ImportError):
    """A part of penstock needs packages that are not installed; the text names the extra which has them.

    An ImportError, because it is raised where the import of those packages would have failed.
    """


class ConfigError(PenstockError):
    """A configuration says something it may not.

    file, line and column (both from 1) say where; they are None for options given in code.
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
    """The disk, or what is on it. `path` is the file concerned, when one is."""

    def __init__(self, message: str, *, path: str | None = None) -> None:
        self.path = path
        super().__init__(f"{path}: {message}" if path else message)


class StoreWriteError(StoreError):
    """A write or sync failed. Nothing that waits for it may be acked."""


class StoreCorruptError(StoreError):
    """Bytes on disk are not what was written. `offset` is where in the file, when known."""

    def __init__(self, message: str, *, path: str | None = None, offset: int | None = None) -> None:
        self.offset = offset
        super().__init__(message if offset is None else f"at byte {offset}: {message}", path=path)


class StoreFormatError(StoreError):
    """The files are whole, and in a format that this version does not read: they stay as they are."""


class StoreLockedError(StoreError):
    """Another process holds the store directory's lock."""


# --- wire and server ---------------------------------------------------------------------------


class ProtocolError(PenstockError):
    """The peer broke the protocol; its connection closes."""


class ServerError(PenstockError):
    """A server could not start, stop or do what was asked of it."""


# --- client ------------------------------------------------------------------------------------


class ClientError(PenstockError):
    """A client's connection or request."""


class ConnectionClosedError(ClientError):
    """The connection is closed, or was closed while the call waited."""


class ConnectionDrainingError(ConnectionClosedError):
    """The connection is draining: it delivers what it has and takes nothing new."""


class DisconnectedError(ClientError):
    """There is no connection just now and the call can not wait for the next one."""


class NoServersError(ClientError):
    """No server could be reached. `attempts` holds (server, error text) of the last round."""

    def __init__(self, message: str, *, attempts: list[tuple[str, str]] | None = None) -> None:
        self.attempts = attempts or []
        tried = "; ".join(f"{server}: {text}" for server, text in self.attempts)
        super().__init__(f"{message} ({tried})" if tried else message)


class StaleConnectionError(ClientError):
    """The server stopped answering PINGs."""


class AuthorizationError(ClientError):
    """The server refused the credentials, or they expired or were revoked."""


class CredentialsError(AuthorizationError):
    """Credentials that no server was asked about: a file can't be read, holds no seed, or has expired."""


class PermissionsError(ClientError):
    """The server refused one publish or subscription. `subject` is the one, `operation` says which."""

    def __init__(self, message: str, *, operation: str = "", subject: str = "") -> None:
        self.operation = operation
        self.subject = subject
        super().__init__(message)


class ServerRefusedError(ClientError):
    """The server sent -ERR with a text that has no exception of its own; `text` is that text."""

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
    """No answer came in time."""

    def __init__(self, message: str, *, subject: str = "", timeout_s: float | None = None) -> None:
        self.subject = subject
        self.timeout_s = timeout_s
        super().__init__(message)


class NoRespondersError(ClientError):
    """Nobody listens on the request's subject."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        super().__init__(f"no responders on {subject!r}: nobody subscribes to this subject")


# --- JetStream ---------------------------------------------------------------------------------


class JetStreamError(PenstockError):
    """Anything about streams and consumers."""


class JetStreamApiError(JetStreamError):
    """The server refused a request.

    code is HTTP-like (400, 404, 503), err_code the specific number (10059), description the server's text.
    stream and request (the subject asked) are filled in where they are known. The same exception is raised
    inside the server to refuse a request, and by the client which receives the refusal.
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
        # Spark carries exceptions between processes; without this the keyword arguments would be lost.
        arguments = (self.code, self.err_code, self.description)
        return type(self), arguments, {"stream": self.stream, "request": self.request}

    @staticmethod
    def of(
        code: int, err_code: int, description: str, *, stream: str | None = None, request: str | None = None
    ) -> JetStreamApiError:
        """The exception of the fitting subclass."""
        kind = _BY_ERR_CODE.get(err_code)
        if kind is None:
            kind = NotFoundError if code == 404 else JetStreamApiError
        return kind(code, err_code, description, stream=stream, request=request)


class NotFoundError(JetStreamApiError):
    """What was asked for does not exist."""


class StreamNotFoundError(NotFoundError):
    """err_code 10059."""


class ConsumerNotFoundError(NotFoundError):
    """err_code 10014."""


class MessageNotFoundError(NotFoundError):
    """err_code 10037 or 10043."""


class AlreadyExistsError(JetStreamApiError):
    """err_code 10058, 10013, 10105 or 10148: the name is in use with another configuration."""


class WrongLastSequenceError(JetStreamApiError):
    """err_code 10071 or 10164: an expected sequence was not the last one."""


class JetStreamNotEnabledError(JetStreamApiError):
    """err_code 10076 or 10039: the server or the account has no JetStream."""


class DirectGetNotAllowedError(JetStreamApiError):
    """The stream exists, and its configuration does not have `allow_direct`."""


class BatchNotEnabledError(JetStreamApiError):
    """The stream does not allow atomic (allow_atomic) or fast (allow_batched) batches."""


class BatchUnknownError(JetStreamApiError):
    """The server knows no batch of this id: it ended, timed out, or the server was restarted."""


class BatchIncompleteError(JetStreamApiError):
    """A message of an atomic batch got lost, or the batch waited too long; nothing of it is stored."""


class BatchEndedError(JetStreamError):
    """A fast batch ended before its commit.

    acked: batch sequence up to which the server has confirmed messages. ack: the server's last word, with
    `count` messages taken and the stream sequence of the last; None when it said none.
    """

    def __init__(self, message: str, *, acked: int, ack: Any = None) -> None:
        self.acked = acked
        self.ack = ack
        super().__init__(message)


class PublishNotAckedError(JetStreamError):
    """A publish whose ack did not come or could not be read. It may or may not be stored."""


class PublishFailedError(JetStreamError):
    """Publishes of a windowed publisher failed: `failed` of them, while `acked` were stored.

    `failures` holds (subject, reason) of the first ones.
    """

    def __init__(self, failed: int, acked: int, failures: list[tuple[str, str]]) -> None:
        self.failed = failed
        self.acked = acked
        self.failures = failures
        first = f"; the first, on {failures[0][0]!r}: {failures[0][1]}" if failures else ""
        super().__init__(f"{failed} publishes failed, {acked} were stored{first}")


class NoStreamError(JetStreamError):
    """No stream takes the subject."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        super().__init__(f"no stream takes subject {subject!r}: create one, or check its subjects")


class PullError(JetStreamError):
    """A pull request ended in an error status. `status` is its number, `description` its text."""

    def __init__(self, status: int, description: str) -> None:
        self.status = status
        self.description = description
        super().__init__(f"pull request ended with {status} {description}")


class ConsumerGoneError(JetStreamError):
    """The consumer was deleted, or its heartbeats stopped coming."""


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
