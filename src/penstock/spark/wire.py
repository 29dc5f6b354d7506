"""A blocking NATS connection for Spark's driver and executor processes.

Spark's Python workers are synchronous processes that run one task after another, so a socket with timeouts
fits better than an event loop. Frames are parsed by the kernel that the client and the server use.

Invariants: every wait has a deadline; PINGs are answered whenever the connection is read; errors name the
server and the request. A connection that raised DisconnectedError is closed and must not be used again; its
owner opens a new one.

Rejected: the asyncio client on a private loop (three thread hops and a Python object per message).
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import ssl
import time
from collections.abc import Collection
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from penstock import errors
from penstock.kernels.wire.frames import FrameParser, Op, PyFrame
from penstock.protocol import api, error_codes, subjects
from penstock.protocol.hosts import host_checked
from penstock.spark.connection_options import ConnectionOptions, ServerAddress

if TYPE_CHECKING:
    from penstock.protocol.api import StoredMessageBody, StreamInfoResponse
    from penstock.protocol.proofs import Proof

T = TypeVar("T")

READ_BYTES = 512 * 1024
SOCKET_BUFFER_BYTES = 4 * 1024 * 1024
FRAME_BYTES_MAX = 1 << 29  # a server's max_payload is at most 64 MiB; this only bounds a broken peer
INFO_BYTES_MAX = 1 << 20  # INFO lists the cluster's URLs
REQUEST_SID = b"1"

# Errors after which the next server is tried.
_CONNECT_FAILURES = (OSError, errors.DisconnectedError, errors.RequestTimeoutError, errors.ProtocolError)

_AUTHORIZATION_ERRORS = ("authorization", "authentication", "account authentication", "user authentication")


class HandshakeInfo(msgspec.Struct, kw_only=True):
    """The fields of a server's INFO that Spark's side needs."""

    server_name: str = ""
    version: str = ""
    headers: bool = False
    auth_required: bool = False
    tls_required: bool = False
    tls_available: bool = False
    max_payload: int = 1024 * 1024
    jetstream: bool = False
    nonce: str = ""
    connect_urls: list[str] = []


class BlockingConnection:
    """A connection to one server, created by `BlockingConnection.open`. Close it, or use it in `with`."""

    def __init__(self, address: ServerAddress, sock: socket.socket, options: ConnectionOptions) -> None:
        self.address = address
        self.options = options
        self.info = HandshakeInfo()
        self.parser = FrameParser(INFO_BYTES_MAX, FRAME_BYTES_MAX)
        self._sock = sock
        self._pongs = 0
        self._requests = 0
        self._inbox = f"_INBOX.{secrets.token_hex(11)}"

    @classmethod
    def open(cls, options: ConnectionOptions, replicas: Collection[str] = ()) -> BlockingConnection:
        """Connect to the first server that can be reached, in the order of `options.in_order()`.

        replicas: names of servers to prefer; another one is taken when none of them can be reached.

        Raises AuthorizationError if a server rejects the credentials, NoServersError (with the error of each
        server) if none is reachable.
        """
        attempts: list[tuple[str, str]] = []
        other: BlockingConnection | None = None
        for address in options.in_order():
            try:
                connection = cls._connect(address, options)
            except _CONNECT_FAILURES as error:
                attempts.append((str(address), str(error) or type(error).__name__))
                continue
            if not replicas or connection.info.server_name in replicas:
                if other is not None:
                    other.close()
                return connection
            if other is None:
                other = connection
            else:
                connection.close()
        if other is not None:
            return other
        raise errors.NoServersError("no NATS server could be reached", attempts=attempts)

    @property
    def known(self) -> ConnectionOptions:
        """The options with the servers of the cluster that this one has named."""
        return self.options.knowing(self.info.connect_urls, self.address)

    @classmethod
    def _connect(cls, address: ServerAddress, options: ConnectionOptions) -> BlockingConnection:
        deadline = time.monotonic() + options.connect_timeout_s
        with host_checked(address.host):
            sock = socket.create_connection((address.host, address.port), timeout=options.connect_timeout_s)
        connection = cls(address, sock, options)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
            connection._handshake(deadline)
        except BaseException:
            connection.close()
            raise
        return connection

    def _handshake(self, deadline: float) -> None:
        greeting = self._next_frame(deadline)
        if greeting.op != Op.OP_INFO:
            raise errors.ProtocolError(f"{self.address} greeted with something else than INFO")
        self.handle_control(greeting.op, greeting.payload or b"")
        if self.options.tls or self.address.tls or self.info.tls_required:
            self._start_tls()
        self.send(b"CONNECT " + self._connect_body() + b"\r\nPING\r\n")
        while self._pongs == 0:
            frame = self._next_frame(deadline)
            self.handle_control(frame.op, frame.payload or b"")
        self.send(b"SUB %s.* %s\r\n" % (self._inbox.encode(), REQUEST_SID))

    def _start_tls(self) -> None:
        if not (self.info.tls_required or self.info.tls_available):
            raise errors.DisconnectedError("TLS is asked for, but the server offers none")
        self._sock = self.options.tls_context().wrap_socket(self._sock, server_hostname=self.address.host)

    def _connect_body(self) -> bytes:
        body: dict[str, Any] = {
            "verbose": False,
            "pedantic": False,
            "echo": False,
            "headers": True,
            "no_responders": True,
            "protocol": 1,
            "lang": "python",
            "name": "penstock-spark",
            "version": "0.1.0",
            "tls_required": isinstance(self._sock, ssl.SSLSocket),
        }
        address, options = self.address, self.options
        token = address.token if address.token is not None else options.token
        if address.user is not None:
            body |= {"user": address.user, "pass": address.password or ""}
        elif options.user is not None:
            body |= {"user": options.user, "pass": options.password or ""}
        elif token is not None:
            body["auth_token"] = token
        proof = options.proof()
        if proof is not None:
            body |= self._proven(proof)
        return msgspec.json.encode(body)

    def _proven(self, proof: Proof) -> dict[str, str]:
        try:
            return proof.fields(self.info.nonce)
        except errors.MisuseError as error:
            raise errors.CredentialsError(f"{self.address}: {error}") from error

    def _read_info(self, body: bytes) -> None:
        try:
            self.info = msgspec.json.decode(body, type=HandshakeInfo)
        except msgspec.DecodeError as error:
            raise errors.ProtocolError(f"the INFO of {self.address} can't be read: {error}") from None

    # --- frames -------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Write all of `data`. Raises DisconnectedError."""
        try:
            self._sock.settimeout(self.options.request_timeout_s)
            self._sock.sendall(data)
        except OSError as error:
            raise self._lost(f"could not write: {error}") from error

    def receive(self, timeout_s: float) -> bool:
        """Read available bytes into the parser; False if none arrived within `timeout_s`.

        Raises DisconnectedError if the connection is lost.
        """
        if timeout_s <= 0:
            return False
        try:
            self._sock.settimeout(timeout_s)
            with self.parser.get_buffer(READ_BYTES) as buffer:
                size = self._sock.recv_into(buffer)
        except TimeoutError:
            return False
        except OSError as error:
            raise self._lost(f"could not read: {error}") from error
        if size == 0:
            raise self._lost("the server closed the connection")
        self.parser.buffer_updated(size)
        return True

    def handle_control(self, op: int, body: bytes) -> None:
        """Handle PING, PONG, INFO, +OK and -ERR. Raises the exception for an -ERR."""
        if op == Op.OP_PING:
            self.send(b"PONG\r\n")
        elif op == Op.OP_PONG:
            self._pongs += 1
        elif op == Op.OP_INFO:
            self._read_info(body)
        elif op == Op.OP_ERR:
            raise self._refusal(body.decode(errors="replace").strip().strip("'"))

    def broken(self) -> errors.ProtocolError:
        """Close the connection after a parse error and return the exception to raise."""
        self.close()
        return errors.ProtocolError(f"{self.address} sent no NATS frame (parse error {self.parser.error})")

    def next_frame(self, timeout_s: float) -> PyFrame:
        """The next frame of any kind, for those who read a subscription of their own.

        Raises RequestTimeoutError, ProtocolError and DisconnectedError.
        """
        return self._next_frame(time.monotonic() + timeout_s)

    def _next_frame(self, deadline: float) -> PyFrame:
        """The next frame. Raises RequestTimeoutError at the deadline, ProtocolError, DisconnectedError."""
        while True:
            frame = self.parser.next_frame()
            if frame is not None:
                if frame.op == Op.OP_ERROR:
                    raise self.broken()
                return frame
            if not self.receive(deadline - time.monotonic()):
                raise errors.RequestTimeoutError(f"{self.address} did not answer in time")

    def _lost(self, why: str) -> errors.DisconnectedError:
        self.close()
        return errors.DisconnectedError(f"connection to {self.address}: {why}")

    def _refusal(self, text: str) -> errors.ClientError:
        lowered = text.lower()
        if lowered.startswith("permissions violation"):
            subject = text.partition('"')[2].partition('"')[0]
            return errors.PermissionsError(
                f"{self.address}: {text}; grant the user of this connection that right, or connect as "
                "another "
                "(docs/spark.md lists the rights that reading takes)",
                operation=text,
                subject=subject,
            )
        self.close()
        if lowered.startswith(_AUTHORIZATION_ERRORS):
            return errors.AuthorizationError(
                f"{self.address}: {text}; check the options user, password and token, or the server's address"
            )
        if lowered.startswith(("stale connection", "server shutdown")):
            return errors.DisconnectedError(f"connection to {self.address}: {text}")
        return errors.ServerRefusedError(text)

    # --- requests -----------------------------------------------------------------------------

    def request(
        self, subject: str, payload: bytes, timeout_s: float | None = None, *, header: bytes = b""
    ) -> bytes:
        """Send a request and return the payload of the first answer.

        header: a complete header block, including version line and end. Messages of other subscriptions that
        arrive meanwhile are dropped, so do not call this while a subscription is being read.

        Raises NoRespondersError, RequestTimeoutError, DisconnectedError, PermissionsError.
        """
        timeout = self.options.request_timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + timeout
        self._requests += 1
        reply = f"{self._inbox}.{self._requests}".encode()
        self.send(_publish(subject.encode(), reply, header, payload))
        try:
            while True:
                frame = self._next_frame(deadline)
                if frame.op not in (Op.OP_MSG, Op.OP_HMSG):
                    self.handle_control(frame.op, frame.payload or b"")
                elif frame.subject == reply:
                    break
        except errors.RequestTimeoutError:
            raise errors.RequestTimeoutError(
                f"{self.address} did not answer on {subject!r} within {timeout:g} s",
                subject=subject,
                timeout_s=timeout,
            ) from None
        if frame.header is not None and frame.header.startswith(b"NATS/1.0 503"):
            raise errors.NoRespondersError(subject)
        return frame.payload or b""

    def api(self, kind: type[T], endpoint: str, body: Any = None) -> T:
        """Send a JetStream API request and return the answer decoded as `kind`.

        endpoint: such as STREAM.INFO.ORDERS, below the API prefix. Raises JetStreamApiError (or a subclass)
        if the server reports an error, JetStreamNotEnabledError, and what `request` raises.
        """
        subject = f"{self.options.api_prefix}.{endpoint}"
        try:
            answer = self.request(subject, b"" if body is None else api.encode(body))
        except errors.NoRespondersError as error:
            why = f"no JetStream answers at {self.address} under {self.options.api_prefix!r}"
            raise errors.JetStreamNotEnabledError(503, 10076, why, request=subject) from error
        return api.decode_response(kind, answer, request=subject)

    def stream_info(self, stream: str) -> StreamInfoResponse:
        """The info of a stream, as its leader has it.

        Without a leader the members of a cluster answer with what each of them has. One that lags would make
        messages look missing. Raises a transient JetStreamApiError then, StreamNotFoundError, and what `api`
        raises.
        """
        info = self.api(api.StreamInfoResponse, f"STREAM.INFO.{stream}")
        if info.cluster is not None and not info.cluster.leader:
            raise self._leaderless(stream)
        return info

    def publish(self, stream: str, subject: str, payload: bytes, header: bytes) -> bytes:
        """Publish to a stream and return its answer, as `request` does. Raises the error of `unanswered` if
        there are no responders."""
        try:
            return self.request(subject, payload, header=header)
        except errors.NoRespondersError:
            raise self.unanswered(stream, subject) from None

    def unanswered(self, stream: str, subject: str) -> errors.PenstockError:
        """The error for a publish without responders: NoStreamError, or a transient one if the stream has the
        subject, and only lacks a leader. Raises what `api` raises."""
        info = self.api(api.StreamInfoResponse, f"STREAM.INFO.{stream}")
        if any(subjects.matches(one, subject) for one in info.config.subjects):
            return self._leaderless(stream, request=subject)
        return errors.NoStreamError(subject, stream=stream)

    @staticmethod
    def _leaderless(stream: str, request: str | None = None) -> errors.JetStreamApiError:
        error = error_codes.CLUSTER_NOT_AVAIL
        text = f"stream {stream!r} has no leader now"
        return errors.JetStreamApiError(error.code, error.err_code, text, stream=stream, request=request)

    def last_message(self, stream: str, subject: str) -> StoredMessageBody | None:
        """The last message of `subject`, read from the stream's leader; None if there is none.

        Raises StreamNotFoundError and what `api` raises.
        """
        request = api.MsgGetRequest(last_by_subj=subject)
        try:
            return self.api(api.MsgGetResponse, f"STREAM.MSG.GET.{stream}", request).message
        except errors.MessageNotFoundError:
            return None

    def close(self) -> None:
        """Close the socket. Idempotent."""
        with contextlib.suppress(OSError):
            self._sock.close()

    def __enter__(self) -> BlockingConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _publish(subject: bytes, reply: bytes, header: bytes, payload: bytes) -> bytes:
    if not header:
        return b"PUB %s %s %d\r\n%s\r\n" % (subject, reply, len(payload), payload)
    total = len(header) + len(payload)
    return b"HPUB %s %s %d %d\r\n%s%s\r\n" % (subject, reply, len(header), total, header, payload)
