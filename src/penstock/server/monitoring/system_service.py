"""The system account: requests to the server below `$SYS.REQ.`, and events about it.

Requests are the monitoring pages with another envelope, `{server, data}` or `{server, error}`; their
bodies are the pages' options as JSON. The system account may ask about everything; any other account about
itself:

    $SYS.REQ.SERVER.PING[.X]      every server answers; the body may name which (`server_name`, `host`, ...)
    $SYS.REQ.SERVER.<id>.X        this server; RELOAD, KICK and LDM make it do something
    $SYS.REQ.ACCOUNT.<account>.X  about one account
    $SYS.REQ.SERVER.PING.CONNZ, $SYS.REQ.ACCOUNT.PING.CONNZ|STATZ, $SYS.REQ.USER.INFO  from any account

Events are made only when somebody listens to their subject: a server without listeners spends one look into
the index a connection. Long pages are made in pieces, by tasks that end with the server; there are at most
UNDER_WAY_MAX of them.

Rejected: one wildcard subscription for all requests. Who asks for what doesn't exist should hear that nobody
responds, not wait.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import msgspec

from penstock import faults
from penstock.errors import MisuseError
from penstock.kernels.wire.sinks import Sink
from penstock.net.reasons import CloseReason
from penstock.protocol.durations import format_time
from penstock.protocol.ids import NuidGenerator
from penstock.server.auth.authenticator import GLOBAL_ACCOUNT
from penstock.server.monitoring.server_counters import TrafficCounters
from penstock.server.server_identity import VERSION

if TYPE_CHECKING:
    from penstock.routing.account import Account
    from penstock.server.monitoring.pages.page_options import Page, Steps
    from penstock.server.server import Server
    from penstock.server.session import Session

USER_INFO = b"$SYS.REQ.USER.INFO"
STATSZ_INTERVAL_S = 10.0
STATSZ_FIRST_S = (0.25, 1.0, 2.0, 4.0, 8.0)  # a server that is new is told of more often
CONNECTIONS_INTERVAL_S = 30.0
UNDER_WAY_MAX = 64
ADVISORY = "io.nats.server.advisory.v1."
SERVER_PAGES = (
    "IDZ", "STATSZ", "VARZ", "SUBSZ", "CONNZ", "JSZ", "HEALTHZ", "ACCOUNTZ", "ROUTEZ", "LEAFZ", "GATEWAYZ",
)  # fmt: skip
RUNTIME_PAGES = ("PROFILEZ", "EXPVARZ", "IPQUEUESZ", "RAFTZ")
CONTROLS = ("RELOAD", "KICK", "LDM")
ACCOUNT_PAGES = ("SUBSZ", "CONNZ", "LEAFZ", "JSZ", "INFO", "STATZ", "CONNS")
_HAS_JETSTREAM = 1  # a bit of `flags`


class _Filter(msgspec.Struct, frozen=True):
    """Which servers a PING is for; what is empty is any."""

    server_name: str = ""
    host: str = ""
    cluster: str = ""
    domain: str = ""
    tags: list[str] = []
    exact_match: bool = False


class SystemService:
    """Answers and tells in the name of a server, from its making until `close`.

    Args:
        server: whose affairs these are; it has no accounts yet.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._is_on = server.options.has_system_account
        self._sequence = 0
        self._delays = iter(STATSZ_FIRST_S)
        self._under_way: set[asyncio.Task[None]] = set()
        self.new_id = NuidGenerator(lambda n: int.from_bytes(os.urandom(16), "little") % n)
        self._timer: asyncio.TimerHandle | None = None
        self._connections_timer: asyncio.TimerHandle | None = None

    @property
    def account_name(self) -> str:
        """Which account is the system account."""
        return self._server.options.system_account

    def start(self) -> None:
        """Makes the system account and begins to tell statistics."""
        if not self._is_on:
            return
        self._server.account(self.account_name)
        self._tick()
        self._tell_connections()

    def close(self) -> None:
        """Ends what is under way."""
        for timer in (self._timer, self._connections_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._connections_timer = None
        for task in tuple(self._under_way):
            task.cancel()

    # -- requests

    def serve(self, account: Account) -> None:
        """Answers what clients of this account may ask."""
        if not self._is_on:
            return
        subscribe = account.subscribe_service
        subscribe(USER_INFO, self._answer(account, self._user_info))
        if account.name != self.account_name:
            for subject, name in (("SERVER.PING.CONNZ", "CONNZ"), ("ACCOUNT.PING.CONNZ", "CONNZ"),
                                  ("ACCOUNT.PING.STATZ", "STATZ")):  # fmt: skip
                subscribe(f"$SYS.REQ.{subject}".encode(), self._own(account, name))
            return
        ping, own = "$SYS.REQ.SERVER.PING", f"$SYS.REQ.SERVER.{self._server.server_id}"
        subscribe(ping.encode(), self._answer(account, self._pinged("STATSZ")))
        for name in (*SERVER_PAGES, *RUNTIME_PAGES):
            subscribe(f"{ping}.{name}".encode(), self._answer(account, self._pinged(name)))
            subscribe(f"{own}.{name}".encode(), self._answer(account, self._server_page(name)))
        for name in CONTROLS:
            subscribe(f"{own}.{name}".encode(), self._answer(account, self._control(name)))
        subscribe(b"$SYS.REQ.ACCOUNT.NSUBS", self._answer(account, self._num_subscribers))
        subscribe(b"$SYS.DEBUG.SUBSCRIBERS", self._answer(account, self._debug_subscribers))
        if self._server.operators is not None:
            from penstock.server.auth.claims_service import ClaimsService

            ClaimsService(self._server, self._server.operators).serve(account)
        for name in ACCOUNT_PAGES:
            subscribe(f"$SYS.REQ.ACCOUNT.*.{name}".encode(), self._answer(account, self._account_page(name)))

    def _own(self, account: Account, name: str) -> Callable[..., None]:
        """A page about the asking account itself, whatever the body says."""
        return self._answer(
            account, lambda subject, payload, origin: self._about_account(name, account.name, payload)
        )

    def _answer(
        self, account: Account, make: Callable[[bytes, bytes, Sink | None], Page | Steps | int | None]
    ) -> Callable[..., None]:
        def failed(error: Exception, *request: object) -> None:
            self._reply(account, cast(bytes, request[1]), self._error(error))

        def serve(subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None) -> None:
            if reply:
                faults.contain(answer, failed, subject, reply, payload, origin)

        def answer(subject: bytes, reply: bytes, payload: bytes, origin: Sink | None) -> None:
            made = make(subject, payload, origin)
            if made is None:
                return
            if isinstance(made, (dict, int)):
                self._reply(account, reply, made)
            elif len(self._under_way) >= UNDER_WAY_MAX:
                busy = {"code": 503, "description": f"{UNDER_WAY_MAX} requests are under way; ask again"}
                self._reply(account, reply, {"server": self.describe(), "error": busy})
            else:
                task = asyncio.get_running_loop().create_task(self._finish(account, reply, made))
                self._under_way.add(task)
                task.add_done_callback(self._under_way.discard)

        return serve

    async def _finish(self, account: Account, reply: bytes, steps: Steps) -> None:
        from penstock.server.monitoring.pages.page_options import in_pieces

        try:
            page = await in_pieces(steps)
        except Exception as error:  # noqa: BLE001 -- like faults.contain(), of what waits
            self._reply(account, reply, self._error(error))
            return
        self._reply(account, reply, {"server": self.describe()} | ({"data": page} if page else {}))

    def _reply(self, account: Account, reply: bytes, page: Page | int) -> None:
        body = msgspec.json.encode(page)
        self._trace(reply, body)
        account.publish(reply, body)

    def _trace(self, subject: bytes, payload: bytes) -> None:
        """What the server says in the system account, for a log that shows it."""
        if self._server.log.trace_on and self._server.options.trace_verbose:
            self._server.log.trace(f"SYSTEM - <<- [PUB {subject.decode('utf-8', 'replace')} {len(payload)}]")

    def _enveloped(self, made: Page | Steps) -> Page | Steps:
        return {"server": self.describe(), "data": made} if isinstance(made, dict) else made

    def _error(self, error: Exception) -> Page:
        """Why a request can not be answered: by its own fault, or by one of ours."""
        code = 400 if isinstance(error, msgspec.DecodeError) else 500
        text = str(error)
        if not isinstance(error, (msgspec.DecodeError, MisuseError)):
            text = faults.describe(faults.note("request to the system account", error))
        return {"server": self.describe(), "error": {"code": code, "description": text}}

    def _user_info(self, subject: bytes, payload: bytes, origin: Sink | None) -> Page | None:
        session = getattr(origin, "owner", None)
        if session is None or session.identity is None:
            return None
        from penstock.server.monitoring.pages.users import user_info  # costs start-up time

        return {"server": self.describe(), "data": user_info(self._server, session.identity)}

    def _pinged(self, name: str) -> Callable[[bytes, bytes, Sink | None], Page | Steps | None]:
        make = self._server_page(name)

        def answer(subject: bytes, payload: bytes, origin: Sink | None) -> Page | Steps | None:
            if name != "IDZ" and not self._is_meant(decoded(payload, _Filter)):
                return None
            return make(subject, payload, origin)

        return answer

    def _is_meant(self, wanted: _Filter) -> bool:
        server = self._server
        pairs = ((wanted.server_name, server.server_name), (wanted.host, server.options.host))
        for asked, mine in pairs:
            if asked and (asked != mine if wanted.exact_match else asked not in mine):
                return False
        jetstream = server.options.jetstream
        domain = jetstream.domain if jetstream is not None else ""
        tags = server.options.server_tags
        if not all(tag.strip().lower() in tags for tag in wanted.tags):
            return False
        return not wanted.cluster and wanted.domain in ("", domain)

    def _server_page(self, name: str) -> Callable[[bytes, bytes, Sink | None], Page | Steps]:
        def make(subject: bytes, payload: bytes, origin: Sink | None) -> Page | Steps:
            from penstock.server.monitoring.pages import table

            server = self._server
            if name == "IDZ":
                return {"name": server.server_name, "host": server.options.host, "id": server.server_id}
            if name == "STATSZ":
                return self.statsz()
            if name == "HEALTHZ":
                return self._healthz(payload)
            if name in RUNTIME_PAGES:
                from penstock.server.monitoring import system_control

                return self._enveloped(system_control.PAGES[name](server))
            if name == "VARZ":
                requests = server.monitor.requests if server.monitor is not None else {}
                return self._enveloped(table.varz(server, requests))
            entry = table.PAGES[name.lower()]
            return self._enveloped(entry.make(server, decoded(payload, entry.options)))

        return make

    def _healthz(self, payload: bytes) -> Page:
        from penstock.server.monitoring.pages.healthz import HealthzOptions, healthz
        from penstock.server.monitoring.pages.page_options import RefusedQuery

        try:
            page, status = healthz(self._server, decoded(payload, HealthzOptions)), 200
        except RefusedQuery as refused:
            page, status = refused.page or {}, refused.status
        return {"server": self.describe(), "data": {**page, "status_code": status}}

    def _account_page(self, name: str) -> Callable[[bytes, bytes, Sink | None], Page | Steps | None]:
        def make(subject: bytes, payload: bytes, origin: Sink | None) -> Page | Steps | None:
            account = subject.split(b".")[3].decode("utf-8", "replace")
            return self._about_account(name, account, payload)

        return make

    def _about_account(self, name: str, account: str, payload: bytes) -> Page | Steps | None:
        """None is silence: of accounts without connections another server may have some to tell of."""
        from penstock.server.monitoring.pages import accounts, connz, jsz, remote_servers, subsz

        server, replace = self._server, msgspec.structs.replace
        if name == "CONNZ":
            return connz.connz(server, replace(decoded(payload, connz.ConnzOptions), acc=account))
        if name == "SUBSZ":
            asked = replace(decoded(payload, subsz.SubszOptions), account=account, subscriptions=True)
            return subsz.subsz(server, asked)
        if name == "JSZ":
            return jsz.account_jsz(server, replace(decoded(payload, jsz.JszOptions), account=account))
        if name == "LEAFZ":
            return self._enveloped(remote_servers.leafz(server, remote_servers.RemotesOptions()))
        if name == "INFO":
            return self._enveloped(accounts.account_info(server, account))
        if name == "CONNS":
            if account not in server.accounts or not accounts.num_connections(server, account):
                return None
            return self._advisory("account_connections", **accounts.account_stat(server, account))
        options = decoded(payload, accounts.AccountStatzOptions)
        if account != "PING":
            options = replace(options, accounts=[account])
        page = accounts.accstatz(server, options)
        return self._enveloped(page) if page["account_statz"] or options.include_unused else None

    def _control(self, name: str) -> Callable[[bytes, bytes, Sink | None], Page | Steps]:
        def make(subject: bytes, payload: bytes, origin: Sink | None) -> Page | Steps:
            from penstock.server.monitoring import system_control

            made = system_control.CONTROLS[name](self._server, payload)
            return {"server": self.describe()} if made == {} else made

        return make

    def _num_subscribers(self, subject: bytes, payload: bytes, origin: Sink | None) -> int | None:
        from penstock.server.monitoring import system_control

        return system_control.num_subscribers(self._server, payload)

    def _debug_subscribers(self, subject: bytes, payload: bytes, origin: Sink | None) -> int:
        from penstock.server.monitoring import system_control

        return system_control.debug_subscribers(self._server, payload)

    # -- events

    def connected(self, session: Session) -> None:
        """A client gave its CONNECT and was let in."""
        if session.identity is None:
            return
        account = session.identity.account
        self._tell_num_connections(account)
        self._tell(
            f"$SYS.ACCOUNT.{account}.CONNECT",
            lambda: self._advisory("client_connect", client=describe_client(session)),
        )

    def disconnected(self, session: Session, reason: CloseReason) -> None:
        """A client is gone, or was never let in."""

        def made() -> Page:
            traffic = TrafficCounters.of(session.sink)
            client = describe_client(session) | {"stop": format_time(self._server.clock())}
            return self._advisory(
                "client_disconnect",
                client=client,
                sent={"msgs": traffic.out_msgs, "bytes": traffic.out_bytes},
                received={"msgs": traffic.in_msgs, "bytes": traffic.in_bytes},
                reason=str(reason),
            )

        if reason.is_refused_login:
            self._tell(f"$SYS.SERVER.{self._server.server_id}.CLIENT.AUTH.ERR", made)
        if session.identity is not None:
            self._tell_num_connections(session.identity.account)
        account = session.identity.account if session.identity is not None else GLOBAL_ACCOUNT
        self._tell(f"$SYS.ACCOUNT.{account}.DISCONNECT", made)

    def shutting_down(self) -> None:
        """Tells SHUTDOWN; connections are still open."""
        self._tell(f"$SYS.SERVER.{self._server.server_id}.SHUTDOWN", self.describe)

    def lame_duck(self) -> None:
        """Tells LAMEDUCK."""
        self._tell(f"$SYS.SERVER.{self._server.server_id}.LAMEDUCK", self.describe)

    def _tick(self) -> None:
        self._tell(f"$SYS.SERVER.{self._server.server_id}.STATSZ", self.statsz)
        delay_s = next(self._delays, STATSZ_INTERVAL_S)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tell_connections(self) -> None:
        """Every account that has connections, every CONNECTIONS_INTERVAL_S."""
        inhabited = {one.identity.account for one in self._server.sessions.values() if one.identity}
        for name in inhabited:
            self._tell_num_connections(name)
        loop = asyncio.get_running_loop()
        self._connections_timer = loop.call_later(CONNECTIONS_INTERVAL_S, self._tell_connections)

    def _tell_num_connections(self, account: str) -> None:
        """Also under the subject that older tools listen to."""

        def made() -> Page:
            from penstock.server.monitoring.pages.accounts import account_stat

            return self._advisory("account_connections", **account_stat(self._server, account))

        if account in self._server.accounts:
            self._tell(f"$SYS.ACCOUNT.{account}.SERVER.CONNS", made)
            self._tell(f"$SYS.SERVER.ACCOUNT.{account}.CONNS", made)

    def _tell(self, subject: str, make: Callable[[], Page]) -> None:
        if not self._is_on:
            return
        account = self._server.account(self.account_name)
        name = subject.encode()
        if account.index.has_interest(name):
            body = msgspec.json.encode(make())
            self._trace(name, body)
            account.publish(name, body)

    # -- what they say

    def describe(self) -> Page:
        """The `server` that every answer and event begins with."""
        server = self._server
        self._sequence += 1
        jetstream = server.jetstream is not None
        page: Page = {
            "name": server.server_name,
            "host": server.options.host,
            "id": server.server_id,
            "ver": VERSION,
            "jetstream": jetstream,
            "flags": _HAS_JETSTREAM if jetstream else 0,
            "seq": self._sequence,
            "time": format_time(server.clock()),
        }
        if server.options.jetstream is not None and server.options.jetstream.domain:
            page["domain"] = server.options.jetstream.domain
        if server.options.server_tags:
            page["tags"] = server.options.server_tags
        if server.options.server_metadata:
            page["metadata"] = dict(server.options.server_metadata)
        return page

    def statsz(self) -> Page:
        """The server in numbers."""
        from penstock.server.monitoring.pages import table

        return {"server": self.describe(), "statsz": table.statsz(self._server)}

    def _advisory(self, kind: str, **fields: Any) -> Page:
        now = format_time(self._server.clock())
        return {
            "type": ADVISORY + kind,
            "id": self.new_id(),
            "timestamp": now,
            "server": self.describe(),
            **fields,
        }


def describe_client(session: Session) -> Page:
    """A client, as events show it; what is empty or not known is left out."""
    from penstock.server.monitoring.pages.users import token_of  # costs start-up time

    identity, options = session.identity, session.options
    account = identity.account if identity is not None else GLOBAL_ACCOUNT
    about: Page = {
        "start": format_time(session.started_ns),
        "host": session.connection.peer[0],
        "id": session.cid,
        "acc": account,
        "user": identity.user if identity is not None else options.user,
        "name": options.name,
        "lang": options.lang,
        "ver": options.version,
        "rtt": session.rtt_ns,
        **token_of(session, for_strangers=False),
        "kind": "Client",
        "client_type": "nats",
    }
    return {key: value for key, value in about.items() if value not in ("", 0, [])}


def decoded(payload: bytes, kind: type[Any]) -> Any:
    """Options in a body; no body = the defaults. Raises msgspec.DecodeError (ValidationError is one)."""
    try:
        return msgspec.json.decode(payload, type=kind) if payload.strip() else kind()
    except RecursionError:
        raise msgspec.DecodeError("exceeded max depth") from None
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"invalid UTF-8: {error.reason}") from None
