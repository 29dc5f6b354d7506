"""One client session: interprets control frames.

PUB and HPUB never come here: the ingress dispatches them in compiled code. The session handles CONNECT, PING,
PONG and protocol errors; `client_subscriptions` handles SUB and UNSUB, `keep_alive` sends pings.

States: GREETED (INFO sent, no CONNECT yet) -> OPEN -> CLOSED. If authentication is required, GREETED accepts
    only CONNECT. Otherwise a client may continue without CONNECT, with the defaults of `ConnectMessage`.

-ERR texts, and which of them close the connection, match the official server: clients compare them.
Violations by known verbs are only logged, because the official server closes those connections without -ERR.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from msgspec import structs

from penstock import faults
from penstock.errors import ProtocolError
from penstock.kernels.wire.dispatch import ClientSink
from penstock.kernels.wire.frames import OP_ERROR, OP_NEED_MORE, FrameParser, Op, ParseError, PyFrame
from penstock.kernels.wire.ingress import Ingress
from penstock.kernels.wire.sinks import DirtyList, SinkSubscription
from penstock.net.backlog import BacklogWatch
from penstock.net.reasons import CloseReason
from penstock.net.server_connection import ServerConnection
from penstock.server.auth.authenticator import Identity
from penstock.server.auth.client_identity import log_name, new_nonce, quoted_text
from penstock.server.auth.client_login import ClientLogin
from penstock.server.client_subscriptions import ClientSubscriptions
from penstock.server.connect_message import ConnectMessage, parse_connect
from penstock.server.keep_alive import KeepAlive

if TYPE_CHECKING:
    from penstock.routing.permissions import Permissions
    from penstock.server.accounts.account_registry import AccountRegistry
    from penstock.server.auth.logins import Logins
    from penstock.server.auth.session_permissions import SessionPermissions
    from penstock.server.jetstream_service import JetStreamService
    from penstock.server.monitoring.system_service import SystemService
    from penstock.server.server_context import ServerContext
    from penstock.server.session_registry import SessionRegistry

PONG = b"PONG\r\n"
PING = b"PING\r\n"
OK = b"+OK\r\n"
NO_FIELDS = ConnectMessage()


class SessionState(Enum):
    GREETED = "greeted"
    OPEN = "open"
    CLOSED = "closed"


class InfoLine(Protocol):
    """Makes INFO for one client."""

    def __call__(self, session: Session, *, connect_info: bool = False, leaving: bool = False) -> bytes:
        """connect_info: add the account, after CONNECT. leaving: add `ldm`, so that the client reconnects
        elsewhere."""


class SessionPorts(NamedTuple):
    """What a session uses of its server.

    info_line: returns INFO for a session. jetstream: returns JetStream of the server, None without it.
    """

    context: ServerContext
    sessions: SessionRegistry
    accounts: AccountRegistry
    logins: Logins
    events: SystemService
    info_line: InfoLine
    jetstream: Callable[[], JetStreamService | None]


class Session:
    """A client of the server.

    Args:
        ports: what it uses of its server.
        cid: connection number, unique while the server runs.
        dirty_sinks: the sinks with output for the end of the tick.
        watch: observes connections whose receivers are slow.
        kind: "nats" or "websocket".
        forwarded_for: client address claimed by the HTTP request, for log lines only; "" = none.
        given: fields of CONNECT that apply until the client sends them.
        awaits_proxy: whether a PROXY header with the client's address comes first.
        is_local: whether the client is in the server's process (`local_clients`).
    """

    __slots__ = (  # there are tens of thousands of sessions
        "_accounts",
        "_events",
        "_expiry_timer",
        "_name",
        "_pong_sent",
        "_sessions",
        "cid",
        "connection",
        "context",
        "flush",
        "identity",
        "ingress",
        "is_local",
        "is_peer_known",
        "keep_alive",
        "login",
        "nonce",
        "options",
        "ports",
        "proxy_key",
        "session_permissions",
        "sink",
        "started_ns",
        "state",
        "subscriptions",
        "traced",
    )

    def __init__(
        self,
        ports: SessionPorts,
        cid: int,
        dirty_sinks: DirtyList,
        watch: BacklogWatch,
        *,
        kind: str = "nats",
        forwarded_for: str = "",
        given: Mapping[str, str] | None = None,
        awaits_proxy: bool = False,
        is_local: bool = False,
    ) -> None:
        self.ports = ports
        self.context = ports.context
        self._sessions = ports.sessions
        self._accounts = ports.accounts
        self._events = ports.events
        self.cid = cid
        options = ports.context.options
        self.sink = ClientSink(dirty_sinks, self)
        self.ingress = Ingress(self.sink, parser=FrameParser(options.max_control_line, options.max_payload))
        self.connection = ServerConnection(self.ingress, watch, self, kind=kind, forwarded_for=forwarded_for)
        self.state = SessionState.GREETED
        self.options = structs.replace(NO_FIELDS, **given) if given else NO_FIELDS
        self.identity: Identity | None = None
        self.nonce = ""  # for the client to sign, if authentication may need a signature
        self.is_local = is_local
        self.is_peer_known = not awaits_proxy  # False until the PROXY header has arrived
        self.proxy_key: str | None = None  # key of the client's proxy; "" = an untrusted proxy
        self.session_permissions: SessionPermissions | None = None
        self.login = ClientLogin(self, ports.logins)
        self.subscriptions = ClientSubscriptions(self)
        self.started_ns = self.context.clock()
        self.keep_alive = KeepAlive(
            self.context, self.connection, ping=self._send_ping, stale=self._on_stale, failed=self.fail
        )
        self._pong_sent = False
        self._expiry_timer: asyncio.TimerHandle | None = None
        self._name = ""
        self.traced = self.context.log.trace_on
        self.flush = self.connection.flush  # called at the end of a tick with output
        self._apply(self.options)

    @property
    def name(self) -> str:
        """Prefix of log lines. Made when the first line needs it: most connections have none."""
        if not self._name:
            self._name = log_name(self)
        return self._name

    # -- from the connection

    def connected(self) -> None:
        faults.contain(self._connected, self.fail)

    def _connected(self) -> None:
        options, log = self.context.options, self.context.log
        if log.debug_on:
            log.debug(f"{self.name} - Client connection created")
        if self.login.authenticator.needs_nonce or options.trusted_proxies:
            self.nonce = new_nonce()
        self.send(self.ports.info_line(self))
        if 0 < options.max_connections <= len(self._sessions):
            log.error("maximum connections exceeded")
            self.refuse("maximum connections exceeded", CloseReason.MAX_CONNECTIONS)
            return
        self._sessions.add(self)
        if self.login.authenticator.required:
            self.ingress.parser.lock()  # until the client is authenticated
            timeout_ns = options.auth_timeout_ns_of(self.connection.kind)
            if options.tls is not None:
                timeout_ns += options.tls.timeout_ns  # the handshake has its own time limit
            self.login.limit(timeout_ns / 1e9)
        else:
            # Cookies are in `options` already and count as CONNECT fields, as in the official server.
            self.login.check(NO_FIELDS, self._welcome)
        # A client that has not sent CONNECT may not be ready for a PING, so the early PING waits for it.
        self.keep_alive.start()

    def _welcome(self, identity: Identity | None) -> None:
        """Opens a session that needs no CONNECT, unless the client must prove that it uses a proxy."""
        if identity is None or identity.proxy_required:
            self.ingress.parser.lock()
        else:
            self._identify(identity)

    def on_proxy_header(self, source: tuple[str, int] | None) -> None:
        """The PROXY header has arrived, with the client's address if it has one."""
        self.is_peer_known = True
        if source is not None:
            before = self.name
            self.connection.set_peer(source)
            self._name = ""
            self.context.log.debug(f"{before} - Client is {self.name}")

    def control(self, op: int) -> None:
        """Processes input from a control frame on."""
        # A `try`, because it runs for each read with a control frame: `contain` would be a call more.
        try:
            process = self.ingress.process
            while op != OP_NEED_MORE and self.connection.close_reason is None:
                if op == OP_ERROR:
                    self._on_broken_protocol()
                    return
                handler = _HANDLERS.get(op)
                if handler is None:
                    self._on_unexpected(op)
                else:
                    handler(self, self.ingress.control())
                if self.login.is_pending:
                    return
                op = process()
        except Exception as error:  # noqa: BLE001 -- a boundary: see faults.py
            self.fail(error)

    def fell_behind(self) -> None:
        self._sessions.totals.count_slow(self)
        waiting = self.connection.pending_bytes()
        self.context.log.info(f"{self.name} - Slow Consumer: write deadline exceeded, {waiting} bytes wait")

    def closed(self, reason: CloseReason) -> None:
        for end in (self._shut, partial(self._notify_closed, reason), self.subscriptions.drop_all):
            faults.contain(end, self._end_failed)

    def _notify_closed(self, reason: CloseReason) -> None:
        context = self.context
        if context.log.debug_on:
            context.log.debug(f"{self.name} - Client connection closed: {reason}")
        if not self._sessions.remove(self, reason, context.clock()):
            return
        self._events.disconnected(self, reason)
        if reason.is_slow_consumer:
            context.log.info(f"{self.name} - {reason}")

    def fail(self, error: Exception, *_: object) -> None:
        """Contains an exception caused by this client's input: closes this connection only."""
        fault = faults.note(f"connection {self.name or self.cid}", error)
        faults.contain(self.error, self._end_failed, f"Internal Error, fault {fault}")
        faults.contain(self.close, self._end_failed, CloseReason.INTERNAL_ERROR)
        self.connection.abort(CloseReason.INTERNAL_ERROR)  # unless it is closing already

    def _end_failed(self, error: Exception, *_: object) -> None:
        faults.note(f"end of connection {self.name or self.cid}", error)

    # -- from the kernels

    def on_auto_unsubscribe(self, subscription: SinkSubscription) -> None:
        """The subscription has received its maximum (UNSUB max)."""
        self.subscriptions.completed(subscription)

    # -- output

    def send(self, data: bytes) -> None:
        """Appends protocol bytes to the out buffer, which is flushed at the end of the tick."""
        self.sink.write(data)

    def ok(self) -> None:
        """Sends +OK if the client is verbose."""
        if self.ingress.verbose:
            if self.traced:
                self.trace("->> [OK]")
            self.send(OK)

    def trace(self, text: str) -> None:
        """Logs a protocol line if tracing is on."""
        if self.traced:
            self.context.log.trace(f"{self.name} - {text}")

    def trace_messages(self) -> None:
        """Starts or stops message tracing, according to log and options."""
        self.traced, tracer = self.context.log.trace_on, None
        if self.traced:
            from penstock.server.logging.protocol_trace import message_tracer

            tracer = message_tracer(self)
        self.sink.trace(tracer)

    def error(self, text: str) -> None:
        """Sends -ERR; the connection stays open."""
        self.trace(f"->> [-ERR {text}]")
        self.send(f"-ERR '{text}'\r\n".encode())

    def refuse(self, text: str, reason: CloseReason) -> None:
        """Sends -ERR and closes the connection."""
        self.error(text)
        self.close(reason)

    def violation(self, text: str, reason: CloseReason = CloseReason.PROTOCOL_VIOLATION) -> None:
        """Closes without -ERR; logs the text."""
        self.context.log.error(f"{self.name} - {text}")
        self.close(reason)

    def authenticate_again(self) -> None:
        """Authenticates again after a reload: closes a client that could not log in now, or not into its
        account."""
        # A pending login is checked again when its hash is there.
        if self.state is not SessionState.CLOSED and not self.login.is_pending:
            self.login.check(self.options, self._authenticated_again)

    def _authenticated_again(self, identity: Identity | None) -> None:
        identity = self.login.let_in(identity)
        if self._refuses_proxy(self.options.user, identity if self.identity is not None else None):
            return
        if self.identity is None:
            if not self.login.authenticator.required:
                self._welcome(identity)
        elif identity is None or identity.account != self.identity.account:
            self._refuse_login(self.options.user)
        elif identity != self.identity:
            self._identify(identity)

    def close(self, reason: CloseReason) -> None:
        """Flushes the out buffer and closes."""
        self._shut()
        self.connection.close(reason)

    # -- control frames

    def _on_connect(self, frame: PyFrame) -> None:
        payload = frame.payload or b""
        if self.traced:
            from penstock.server.logging.protocol_trace import redacted

            self.trace(f"<<- [CONNECT {redacted(payload)}]")
        try:
            options = parse_connect(payload, self.options)
        except ProtocolError as error:
            self.violation(str(error))
            return
        if options.protocol not in (0, 1):
            self.refuse("invalid client protocol", CloseReason.BAD_CLIENT_PROTOCOL)
            return
        if not self.context.options.header_support:
            options = structs.replace(options, headers=False)  # both sides must support them
        if options.no_responders and not options.headers:
            self.refuse("no responders requires headers support", CloseReason.NO_RESPONDERS_REQUIRES_HEADERS)
            return
        if options.account:
            self._refuse_login(options.user)
            return
        if options.proxy_sig or self.proxy_key is not None:
            from penstock.server.auth.trusted_proxies import proven_key  # few clients come through proxies

            self.proxy_key = proven_key(self.context.options, options, self.nonce)
            if self._refuses_proxy(options.user, None):
                return
        self.keep_alive.connect_arrived()
        self.login.check_with_service(options, lambda identity: self._decide(options, identity))

    def _refuses_proxy(self, user: str, identity: Identity | None) -> bool:
        """Closes a client that uses an untrusted proxy, or that must use a proxy and does not."""
        if self.proxy_key is None and (identity is None or not identity.proxy_required):
            return False
        from penstock.server.auth.trusted_proxies import refusal

        reason = refusal(self, identity)
        if reason is not None:
            self._refuse_login(user, reason)
        return reason is not None

    def _decide(self, options: ConnectMessage, identity: Identity | None) -> None:
        """Accepts the client with this identity, or refuses it."""
        if identity is None:
            self._refuse_login(options.user)
            return
        if self._refuses_proxy(options.user, identity):
            return
        if not self._accounts.has_room(identity.account, self):
            self.context.log.error(f"{self.name} - maximum account active connections exceeded")
            self.refuse("maximum account active connections exceeded", CloseReason.MAX_ACCOUNT_CONNECTIONS)
            return
        self._apply(options)
        if self._is_open_with(identity):
            self.sink.forget_client_info()  # which has the client's name
        else:
            self._identify(identity)
        self._name = ""
        self._events.connected(self)
        self.ok()

    def _apply(self, options: ConnectMessage) -> None:
        """Passes CONNECT options to the compiled parts."""
        self.options = options
        self.ingress.configure(
            verbose=options.verbose,
            pedantic=options.pedantic,
            no_responders=options.no_responders,
            echo=options.echo,
            headers=options.headers,
        )

    def _is_open_with(self, identity: Identity) -> bool:
        """Whether the session is open with this identity, and CONNECT need not begin anything again: mostly
        where clients need no login, because their sessions are open before CONNECT."""
        return (
            self.state is SessionState.OPEN
            and identity.permissions is None  # whose one-time permissions to reply end with a second CONNECT
            and not identity.expires_ns
            and identity == self.identity
            and not self.context.log.trace_on
        )

    def _identify(self, identity: Identity | None) -> None:
        """Opens the session with this identity and lets it publish and subscribe in its account."""
        if identity is None:
            return
        self.login.end()
        if self.identity is None or self.identity.account != identity.account:
            self.subscriptions.drop_all()  # of the previous account
        self._sessions.move(self, identity.account)
        self.identity = identity
        self.ingress.parser.unlock()
        self.sink.forget_client_info()
        self.update_account()
        self._restrict(identity.permissions)
        self.update_limits()
        self._expire_at(identity.expires_ns)
        self.state = SessionState.OPEN
        if self.context.log.trace_on:
            self.trace_messages()

    def update_account(self) -> None:
        """Routes publishes in the account of the identity, with the account's current mappings and its
        setting for traces requested by `traceparent`."""
        if self.identity is None:
            return
        name = self.identity.account
        account, own = self._accounts.open(name), self._accounts.options_of(name)
        traces_parents = own is not None and own.trace is not None
        self.ingress.join(account.index, account.mapper, self._publish_traced, traces_parents)

    def update_limits(self) -> None:
        """Applies the current limits to frames that are not parsed yet."""
        self.ingress.parser.set_limits(self.context.options.max_control_line, self.payload_limit())

    def _publish_traced(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> int:
        from penstock.server.monitoring.message_trace import publish_traced  # rarely needed

        return publish_traced(self, subject, reply, header, payload)

    def update_identity(self, identity: Identity) -> None:
        """Changes permissions and limits within the same account."""
        self._identify(identity)

    def payload_limit(self) -> int:
        """The lowest payload limit of server, account and user."""
        identity, limits = self.identity, [self.context.options.max_payload]
        if identity is not None:
            own = self._accounts.options_of(identity.account)
            limits += [identity.max_payload, own.max_payload if own is not None else -1]
        return min(limit for limit in limits if limit >= 0)

    @property
    def is_websocket(self) -> bool:
        """Whether the client came by WebSocket."""
        return self.connection.kind == "websocket"

    @property
    def max_payload(self) -> int:
        """Maximum bytes of a message that this client may publish."""
        return self.ingress.parser.max_payload

    def _expire_at(self, expires_ns: int) -> None:
        """Closes the session when its user's token expires; 0 = never."""
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
            self._expiry_timer = None
        if expires_ns:
            delay_s = max(0.0, (expires_ns - self.context.clock()) / 1e9)
            self._expiry_timer = self._call_later(delay_s, self._on_expired)

    def _on_expired(self) -> None:
        self._expiry_timer = None
        self.refuse("User Authentication Expired", CloseReason.AUTHENTICATION_EXPIRED)

    def _restrict(self, permissions: Permissions | None) -> None:
        """Enforces a user's permissions; None = no restrictions."""
        if self.session_permissions is not None:
            self.session_permissions.release()
            self.session_permissions = None
        if permissions is not None:
            from penstock.server.auth.session_permissions import SessionPermissions

            self.session_permissions = SessionPermissions(self, permissions)
            for subscription in tuple(self.subscriptions.values()):
                if not self.session_permissions.keeps(subscription):
                    self.subscriptions.remove(subscription)

    @property
    def rtt_ns(self) -> int:
        """Round trip time of the last ping, ns; an estimate before the first one, 0 before CONNECT."""
        return self.keep_alive.rtt_ns

    @property
    def last_activity_ns(self) -> int:
        """When it last had a message or changed a subscription, ns since 1970."""
        return self.keep_alive.last_activity_ns

    @property
    def takes_info(self) -> bool:
        """Whether the client accepts INFO at any time. Not before its first PONG, which brings it one
        anyway."""
        return self.options.protocol >= 1 and self._pong_sent

    @property
    def user(self) -> str:
        """Name of the user; "" when there is none."""
        return self.identity.user if self.identity is not None else ""

    def _on_sub(self, frame: PyFrame) -> None:
        self.sink.note_active()
        self.subscriptions.on_sub(frame.subject or b"", frame.queue or b"", frame.sid or b"")

    def _on_unsub(self, frame: PyFrame) -> None:
        self.sink.note_active()
        self.subscriptions.on_unsub(frame.sid or b"", frame.max_msgs)

    def _on_ping(self, frame: PyFrame) -> None:
        if self.traced:
            self.trace("<<- [PING]")
            self.trace("->> [PONG]")
        self.send(PONG)
        if not self._pong_sent:
            # Clients of protocol 1 get their account and the API level with the first PONG.
            self._pong_sent = True
            if self.options.protocol >= 1:
                self.send(self.ports.info_line(self, connect_info=True))

    def _on_pong(self, frame: PyFrame) -> None:
        self.trace("<<- [PONG]")
        if self.keep_alive.pong_arrived():
            self.sink.forget_client_info()  # which has the round trip time

    def _on_client_error(self, frame: PyFrame) -> None:
        text = (frame.payload or b"").decode("utf-8", "replace")
        self.violation(f"Client Error '{text}'", CloseReason.PARSE_ERROR)

    def _on_ignored(self, frame: PyFrame) -> None:
        """Ignores INFO and +OK from a client."""

    # -- errors

    def _on_broken_protocol(self) -> None:
        if self.identity is None:
            self._refuse_login("")
            return
        error = self.ingress.parser.error
        if error == ParseError.ERROR_CONTROL_LINE:
            self.context.log.error(f"{self.name} - maximum control line exceeded")
            self.refuse("maximum control line exceeded", CloseReason.MAX_CONTROL_LINE)
        elif error == ParseError.ERROR_PAYLOAD:
            limit = self.max_payload
            self.context.log.error(f"{self.name} - maximum payload exceeded: more than {limit} bytes")
            self.refuse("Maximum Payload Violation", CloseReason.MAX_PAYLOAD)
        elif error == ParseError.ERROR_MALFORMED:
            self.violation("malformed arguments of a protocol line")
        else:
            self._on_unexpected(Op.OP_ERROR)

    def _on_unexpected(self, op: int) -> None:
        """Unknown verb, or one that only servers send."""
        name = Op(op).name.removeprefix("OP_")
        self.context.log.error(f"{self.name} - Client parser ERROR: {name}")
        self.refuse("Unknown Protocol Operation", CloseReason.PROTOCOL_VIOLATION)

    def _refuse_login(self, user: str, reason: CloseReason = CloseReason.AUTHENTICATION_FAILURE) -> None:
        if user and self.identity is None:
            self.options = structs.replace(self.options, user=user)  # for the AUTH.ERR event
        who = f' - User "{quoted_text(user)}"' if user else ""
        self.context.log.error(f"{self.name} - authentication error{who}")
        self.refuse("Authorization Violation", reason)

    # -- timers

    def _send_ping(self) -> None:
        self.trace("->> [PING]")
        self.send(PING)

    def _on_stale(self) -> None:
        self._sessions.totals.count_stale()
        self.refuse("Stale Connection", CloseReason.STALE_CONNECTION)

    def _call_later(self, delay_s: float, work: Callable[[], object]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(delay_s, faults.contain, work, self.fail)

    def _shut(self) -> None:
        self.state = SessionState.CLOSED
        self.keep_alive.stop()
        self.login.end()
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
            self._expiry_timer = None


_HANDLERS: dict[int, Callable[[Session, PyFrame], None]] = {
    Op.OP_CONNECT: Session._on_connect,
    Op.OP_SUB: Session._on_sub,
    Op.OP_UNSUB: Session._on_unsub,
    Op.OP_PING: Session._on_ping,
    Op.OP_PONG: Session._on_pong,
    Op.OP_ERR: Session._on_client_error,
    Op.OP_OK: Session._on_ignored,
    Op.OP_INFO: Session._on_ignored,
}
