"""The system account: requests to the server below `$SYS.REQ.`, and events.

Requests return the monitoring pages in an envelope, `{server, data}` or `{server, error}`. Bodies are page
options as JSON. The system account may request everything; other accounts may request data about themselves:


    $SYS.REQ.SERVER.PING[.X]      all servers; the body may select them (`server_name`, `host`, ...)
    $SYS.REQ.SERVER.<id>.X        this server; RELOAD, KICK and LDM are commands
    $SYS.REQ.ACCOUNT.<account>.X  about one account
    $SYS.REQ.SERVER.PING.CONNZ, $SYS.REQ.ACCOUNT.PING.CONNZ|STATZ, $SYS.REQ.USER.INFO  from any account

Events are built only if their subject has subscribers; otherwise an event costs one index lookup. Long pages
are built in pieces by tasks that end with the server, at most TASKS_MAX at a time.

Rejected: one wildcard subscription for all requests. A request for something that does not exist should fail
    with "no responders" instead of timing out.
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
from penstock.protocol.json_names import decode_body
from penstock.server.auth.authenticator import GLOBAL_ACCOUNT
from penstock.server.links.remote_connections import RemoteConnections
from penstock.server.monitoring.server_counters import TrafficCounters
from penstock.server.server_identity import VERSION

if TYPE_CHECKING:
    from penstock.routing.account import Account
    from penstock.server.links.leaf_session import LeafSession
    from penstock.server.monitoring.monitored_server import MonitoredServer
    from penstock.server.monitoring.pages.page_options import Page, Steps
    from penstock.server.session import Session

USER_INFO = b"$SYS.REQ.USER.INFO"
STATSZ_INTERVAL_S = 10.0
STATSZ_FIRST_S = (0.25, 1.0, 2.0, 4.0, 8.0)  # more often after the start
CONNECTIONS_INTERVAL_S = 30.0
CONNECTIONS_SOON_S = 0.25
TASKS_MAX = 64
ADVISORY = "io.nats.server.advisory.v1."
SERVER_PAGES = (
    "IDZ", "STATSZ", "VARZ", "SUBSZ", "CONNZ", "JSZ", "HEALTHZ", "ACCOUNTZ", "ROUTEZ", "LEAFZ", "GATEWAYZ",
)  # fmt: skip
RUNTIME_PAGES = ("PROFILEZ", "EXPVARZ", "IPQUEUESZ", "RAFTZ")
CONTROLS = ("RELOAD", "KICK", "LDM")
ACCOUNT_PAGES = ("SUBSZ", "CONNZ", "LEAFZ", "JSZ", "INFO", "STATZ", "CONNS")
_HAS_JETSTREAM = 1  # bit of `flags`


class _Filter(msgspec.Struct, frozen=True):
    """Selects servers for a PING; empty fields match all."""

    server_name: str = ""
    host: str = ""
    cluster: str = ""
    domain: str = ""
    tags: list[str] = []
    exact_match: bool = False


class SystemService:
    """Serves requests and publishes events, from construction until `close`.

    Args:
        server: the server; it has no accounts yet.
    """

    def __init__(self, server: MonitoredServer) -> None:
        self._server = server
        self._context = context = server.context
        self._is_on = context.options.has_system_account
        self._sequence = 0
        self._delays = iter(STATSZ_FIRST_S)
        self._tasks: set[asyncio.Task[None]] = set()
        self.new_id = NuidGenerator(lambda n: int.from_bytes(os.urandom(16), "little") % n)
        self._timer: asyncio.TimerHandle | None = None
        self._connections_timer: asyncio.TimerHandle | None = None
        self.elsewhere = RemoteConnections(context.server_id)
        server.accounts.count_also(self.elsewhere.count)
        server.accounts.when_created(self._serve)

    @property
    def account_name(self) -> str:
        """Name of the system account."""
        return self._context.options.system_account

    def start(self) -> None:
        """Creates the system account and starts to publish statistics."""
        if not self._is_on:
            return
        self._server.accounts.open(self.account_name)
        self._tick()
        self._publish_connections()

    def close(self) -> None:
        """Cancels timers and tasks."""
        for timer in (self._timer, self._connections_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._connections_timer = None
        for task in tuple(self._tasks):
            task.cancel()

    # -- requests

    def _serve(self, account: Account) -> None:
        """Subscribes to the requests that clients of this account may send."""
        if not self._is_on:
            return
        subscribe = account.subscribe_service
        # Each server answers its own clients; the others need not know.
        subscribe(USER_INFO, self._answer(account, self._user_info), private=True)
        if account.name != self.account_name:
            for subject, name in (("SERVER.PING.CONNZ", "CONNZ"), ("ACCOUNT.PING.CONNZ", "CONNZ"),
                                  ("ACCOUNT.PING.STATZ", "STATZ")):  # fmt: skip
                subscribe(f"$SYS.REQ.{subject}".encode(), self._own(account, name), private=True)
            return
        ping, own = "$SYS.REQ.SERVER.PING", f"$SYS.REQ.SERVER.{self._context.server_id}"
        subscribe(ping.encode(), self._answer(account, self._pinged("STATSZ")))
        for name in (*SERVER_PAGES, *RUNTIME_PAGES):
            subscribe(f"{ping}.{name}".encode(), self._answer(account, self._pinged(name)))
            subscribe(f"{own}.{name}".encode(), self._answer(account, self._server_page(name)))
        for name in CONTROLS:
            subscribe(f"{own}.{name}".encode(), self._answer(account, self._control(name)))
        subscribe(b"$SYS.REQ.ACCOUNT.NSUBS", self._answer(account, self._num_subscribers))
        subscribe(b"$SYS.DEBUG.SUBSCRIBERS", self._answer(account, self._debug_subscribers), private=True)
        if self._server.accounts.operators is not None:
            from penstock.server.auth.claims_service import ClaimsService

            ClaimsService(self._context, self._server.accounts.operators, self.describe).serve(account)
        if self._context.options.cluster is not None:
            subscribe(b"$SYS.ACCOUNT.*.SERVER.CONNS", self._note_connections)
            subscribe(b"$SYS.SERVER.*.SHUTDOWN", self._note_shutdown)
        for name in ACCOUNT_PAGES:
            subscribe(f"$SYS.REQ.ACCOUNT.*.{name}".encode(), self._answer(account, self._account_page(name)))

    def _own(self, account: Account, name: str) -> Callable[..., None]:
        """A page about the requesting account, whatever the body says."""
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
            elif len(self._tasks) >= TASKS_MAX:
                busy = {"code": 503, "description": f"{TASKS_MAX} requests are in progress; retry later"}
                self._reply(account, reply, {"server": self.describe(), "error": busy})
            else:
                task = asyncio.get_running_loop().create_task(self._finish(account, reply, made))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

        return serve

    async def _finish(self, account: Account, reply: bytes, steps: Steps) -> None:
        from penstock.server.monitoring.pages.page_options import SkippedQuery, in_pieces

        try:
            page = await in_pieces(steps)
        except SkippedQuery:
            return
        except Exception as error:  # noqa: BLE001 -- like faults.contain(), for a task
            self._reply(account, reply, self._error(error))
            return
        self._reply(account, reply, {"server": self.describe()} | ({"data": page} if page else {}))

    def _reply(self, account: Account, reply: bytes, page: Page | int) -> None:
        body = msgspec.json.encode(page)
        self._trace(reply, body)
        account.publish(reply, body)

    def _trace(self, subject: bytes, payload: bytes) -> None:
        """Logs the server's messages in the system account, with `trace_verbose`."""
        if self._context.log.trace_on and self._context.options.trace_verbose:
            self._context.log.trace(f"SYSTEM - <<- [PUB {subject.decode('utf-8', 'replace')} {len(payload)}]")

    def _enveloped(self, made: Page | Steps) -> Page | Steps:
        return {"server": self.describe(), "data": made} if isinstance(made, dict) else made

    def _error(self, error: Exception) -> Page:
        """The error object of a reply: an invalid request, or a fault of the server."""
        code = 400 if isinstance(error, msgspec.DecodeError) else 500
        text = str(error)
        if not isinstance(error, (msgspec.DecodeError, MisuseError)):
            text = faults.describe(faults.note("request to the system account", error))
        return {"server": self.describe(), "error": {"code": code, "description": text}}

    def _user_info(self, subject: bytes, payload: bytes, origin: Sink | None) -> Page | None:
        session = getattr(origin, "owner", None)
        if session is None or session.identity is None:
            return None
        from penstock.server.monitoring.pages.users import user_info  # imported on use: costs start-up time

        return {"server": self.describe(), "data": user_info(self._server, session.identity)}

    def _pinged(self, name: str) -> Callable[[bytes, bytes, Sink | None], Page | Steps | None]:
        make = self._server_page(name)

        def answer(subject: bytes, payload: bytes, origin: Sink | None) -> Page | Steps | None:
            if name != "IDZ" and not self._is_meant(decode_body(payload, _Filter)):
                return None
            return make(subject, payload, origin)

        return answer

    def _is_meant(self, wanted: _Filter) -> bool:
        context = self._context
        pairs = ((wanted.server_name, context.server_name), (wanted.host, context.options.host))
        for asked, mine in pairs:
            if asked and (asked != mine if wanted.exact_match else asked not in mine):
                return False
        jetstream = context.options.jetstream
        domain = jetstream.domain if jetstream is not None else ""
        tags = context.options.server_tags
        if not all(tag.strip().lower() in tags for tag in wanted.tags):
            return False
        cluster = self._cluster()
        if wanted.cluster and (
            wanted.cluster != cluster if wanted.exact_match else wanted.cluster not in cluster
        ):
            return False
        return wanted.domain in ("", domain)

    def _cluster(self) -> str:
        """Name of the cluster; "" = this server has no cluster."""
        routes = self._server.links.routes
        gateway = self._context.options.gateway
        alone = gateway.name if gateway is not None else ""
        return routes.mesh.cluster_name if routes is not None else alone

    def _server_page(self, name: str) -> Callable[[bytes, bytes, Sink | None], Page | Steps]:
        def make(subject: bytes, payload: bytes, origin: Sink | None) -> Page | Steps:
            from penstock.server.monitoring.pages import table

            server, context = self._server, self._context
            if name == "IDZ":
                return {"name": context.server_name, "host": context.options.host, "id": context.server_id}
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
            return self._enveloped(entry.make(server, decode_body(payload, entry.options)))

        return make

    def _healthz(self, payload: bytes) -> Page:
        from penstock.server.monitoring.pages.healthz import HealthzOptions, healthz
        from penstock.server.monitoring.pages.page_options import RefusedQuery

        try:
            page, status = healthz(self._server, decode_body(payload, HealthzOptions)), 200
        except RefusedQuery as refused:
            page, status = refused.page or {}, refused.status
        return {"server": self.describe(), "data": {**page, "status_code": status}}

    def _account_page(self, name: str) -> Callable[[bytes, bytes, Sink | None], Page | Steps | None]:
        def make(subject: bytes, payload: bytes, origin: Sink | None) -> Page | Steps | None:
            account = subject.split(b".")[3].decode("utf-8", "replace")
            return self._about_account(name, account, payload)

        return make

    def _about_account(self, name: str, account: str, payload: bytes) -> Page | Steps | None:
        """None = no reply: another server may have connections of the account."""
        from penstock.server.monitoring.pages import accounts, connz, jsz, remote_servers, subsz

        server, replace = self._server, msgspec.structs.replace
        if name == "CONNZ":
            return connz.connz(server, replace(decode_body(payload, connz.ConnzOptions), acc=account))
        if name == "SUBSZ":
            asked = replace(decode_body(payload, subsz.SubszOptions), account=account, subscriptions=True)
            return subsz.subsz(server, asked)
        if name == "JSZ":
            return jsz.account_jsz(server, replace(decode_body(payload, jsz.JszOptions), account=account))
        if name == "LEAFZ":
            return self._enveloped(
                remote_servers.leafz(server, remote_servers.RemotesOptions(account=account))
            )
        if name == "INFO":
            return self._enveloped(accounts.account_info(server, account))
        if name == "CONNS":
            if account not in server.accounts or not accounts.num_connections(server, account):
                return None
            return self._advisory("account_connections", **accounts.account_stat(server, account))
        options = decode_body(payload, accounts.AccountStatzOptions)
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
        """A client sent CONNECT and was accepted."""
        if session.identity is None:
            return
        account = session.identity.account
        self._publish_num_connections(account)
        self._publish_event(
            f"$SYS.ACCOUNT.{account}.CONNECT",
            lambda: self._advisory("client_connect", client=describe_client(session)),
        )

    def disconnected(self, session: Session, reason: CloseReason) -> None:
        """A client disconnected, or was refused."""

        def made() -> Page:
            traffic = TrafficCounters.of(session.sink)
            client = describe_client(session) | {"stop": format_time(self._context.clock())}
            return self._advisory(
                "client_disconnect",
                client=client,
                sent={"msgs": traffic.out_msgs, "bytes": traffic.out_bytes},
                received={"msgs": traffic.in_msgs, "bytes": traffic.in_bytes},
                reason=str(reason),
            )

        if reason.is_refused_login:
            self._publish_event(f"$SYS.SERVER.{self._context.server_id}.CLIENT.AUTH.ERR", made)
        if session.identity is not None:
            self._publish_num_connections(session.identity.account)
        account = session.identity.account if session.identity is not None else GLOBAL_ACCOUNT
        self._publish_event(f"$SYS.ACCOUNT.{account}.DISCONNECT", made)

    def shutting_down(self) -> None:
        """Publishes SHUTDOWN, while connections are still open."""
        self._publish_event(f"$SYS.SERVER.{self._context.server_id}.SHUTDOWN", self.describe)

    def lame_duck(self) -> None:
        """Publishes LAMEDUCK."""
        self._publish_event(f"$SYS.SERVER.{self._context.server_id}.LAMEDUCK", self.describe)

    def leaf_changed(self, session: LeafSession, is_here: bool) -> None:
        """A leaf node link was registered or is gone. As on the official server, its events are those of a
        client, of the side that dialled."""
        account = session.link.account
        assert account is not None
        name = account.name
        if is_here and session.link.remote is None:
            self._publish_event(
                f"$SYS.ACCOUNT.{name}.LEAFNODE.CONNECT",
                lambda: {"server": self.describe(), "acc": name},
            )
        if is_here and session.link.remote is not None:
            self._publish_event(
                f"$SYS.ACCOUNT.{name}.CONNECT",
                lambda: self._advisory("client_connect", client=describe_leaf(session)),
            )
        self._publish_num_connections(name)

    def peer_changed(self, server_id: str, is_here: bool) -> None:
        """Another server of the cluster came or went."""
        if is_here:
            self._publish_connections_soon()
        else:
            self.elsewhere.forget(server_id)

    def gateways_changed(self, clusters: set[str]) -> None:
        """A link to another cluster came or went: servers there learn of this one. clusters: those with a
        link."""
        self.elsewhere.keep_clusters({self._cluster(), *clusters})
        self._publish_event(f"$SYS.SERVER.{self._context.server_id}.STATSZ", self.statsz)
        self._publish_connections_soon()

    def _publish_connections_soon(self) -> None:
        """Tells a new server the counts of all accounts, without waiting for the interval. Its interest
        arrives shortly after its first connection."""
        loop = asyncio.get_running_loop()
        if self._connections_timer is not None:
            self._connections_timer.cancel()
        self._connections_timer = loop.call_later(CONNECTIONS_SOON_S, self._publish_connections)

    def _tick(self) -> None:
        self._publish_event(f"$SYS.SERVER.{self._context.server_id}.STATSZ", self.statsz)
        self._schedule_tick()

    def _schedule_tick(self) -> None:
        delay_s = next(self._delays, STATSZ_INTERVAL_S)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(delay_s, faults.contain, self._tick, self._tick_failed)

    def _tick_failed(self, error: Exception) -> None:
        faults.note("the server's statistics", error)
        self._schedule_tick()

    def _publish_connections(self) -> None:
        """Publishes the counts of all accounts with connections, every CONNECTIONS_INTERVAL_S."""
        inhabited = {one.identity.account for one in self._server.sessions.values() if one.identity}
        for name in inhabited:
            self._publish_num_connections(name)
        self._schedule_connections()

    def _schedule_connections(self) -> None:
        self._connections_timer = asyncio.get_running_loop().call_later(
            CONNECTIONS_INTERVAL_S, faults.contain, self._publish_connections, self._connections_failed
        )

    def _connections_failed(self, error: Exception) -> None:
        faults.note("the counts of connections", error)
        self._schedule_connections()

    def _publish_num_connections(self, account: str) -> None:
        """Publishes an account's count, also on the subject of older tools."""

        def made() -> Page:
            from penstock.server.monitoring.pages.accounts import account_stat

            return self._advisory("account_connections", **account_stat(self._server, account))

        if self._is_on and account in self._server.accounts:
            self._publish_event(f"$SYS.ACCOUNT.{account}.SERVER.CONNS", made)
            self._publish_event(f"$SYS.SERVER.ACCOUNT.{account}.CONNS", made)

    def _publish_event(self, subject: str, make: Callable[[], Page]) -> None:
        if not self._is_on:
            return
        account = self._server.accounts.open(self.account_name)
        name = subject.encode()
        if account.index.has_interest(name):
            body = msgspec.json.encode(make())
            self._trace(name, body)
            account.publish(name, body)

    # -- other servers

    def _note_connections(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, _: object
    ) -> None:
        """Another server tells its number of connections in an account, which count towards the limit."""
        for account in self.elsewhere.note(payload):
            self._server.accounts.close_excess(account, self.elsewhere.count(account))

    def _note_shutdown(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, _: object) -> None:
        self.elsewhere.forget(subject.split(b".")[2].decode("utf-8", "replace"))

    # -- contents

    def describe(self) -> Page:
        """The `server` object of every reply and event."""
        context = self._context
        self._sequence += 1
        jetstream = self._server.jetstream is not None
        page: Page = {
            "name": context.server_name,
            "host": context.options.host,
            "id": context.server_id,
            "ver": VERSION,
            "jetstream": jetstream,
            "flags": _HAS_JETSTREAM if jetstream else 0,
            "seq": self._sequence,
            "time": format_time(context.clock()),
        }
        if context.options.jetstream is not None and context.options.jetstream.domain:
            page["domain"] = context.options.jetstream.domain
        if self._cluster():
            page["cluster"] = self._cluster()
        if context.options.server_tags:
            page["tags"] = context.options.server_tags
        if context.options.server_metadata:
            page["metadata"] = dict(context.options.server_metadata)
        return page

    def statsz(self) -> Page:
        """The STATSZ event."""
        from penstock.server.monitoring.pages import table

        return {"server": self.describe(), "statsz": table.statsz(self._server)}

    def _advisory(self, kind: str, **fields: Any) -> Page:
        now = format_time(self._context.clock())
        return {
            "type": ADVISORY + kind,
            "id": self.new_id(),
            "timestamp": now,
            "server": self.describe(),
            **fields,
        }


def describe_leaf(session: LeafSession) -> Page:
    """A leaf node link in events, without empty fields."""
    account = session.link.account
    about: Page = {
        "start": format_time(session.started_ns),
        "host": session.peer[0],
        "id": session.cid,
        "acc": account.name if account is not None else "",
        "user": session.identity.user if session.identity is not None else "",
        "name": session.link.name,
        "ver": session.options.version,
        "rtt": session.rtt_ns,
        "kind": "Leafnode",
    }
    return {key: value for key, value in about.items() if value not in ("", 0)}


def describe_client(session: Session) -> Page:
    """A client in events, without empty fields."""
    from penstock.server.monitoring.pages.users import token_of  # imported on use: costs start-up time

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
