"""One server of the simulation: the real mesh, links and kernels, with accounts and clients.

What the server's own code would add is left out: sockets, TLS, compression, pings. Connections that break are
noticed by both ends some time later.

A server takes connections on one port for each kind of link: routes here, others in its `Doors`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from penstock.cluster.interests import AccountInterests
from penstock.cluster.mesh import Mesh
from penstock.cluster.peer_link import Address
from penstock.cluster.route_info import RouteInfo
from penstock.cluster.route_link import Dial, RouteLink
from penstock.kernels.wire.dispatch import ClientSink, publish
from penstock.kernels.wire.frames import OP_NEED_MORE, FrameParser
from penstock.kernels.wire.route_frames import RouteParser
from penstock.kernels.wire.route_links import RouteIngress, RouteSink
from penstock.kernels.wire.sinks import DirtyList, SinkSubscription
from penstock.net.reasons import CloseReason
from penstock.routing.account import Account
from penstock.testing.cluster_sim.sim_network import SimEnd, SimNetwork, SimPipe

ACCOUNTS = ("A", "B", "SYS")
DIAL_S = (0.0005, 0.05)
ROUTE_PORT = 1


@dataclass(frozen=True)
class SimSettings:
    """See `penstock.cluster.mesh_ports.MeshSettings`."""

    routes: tuple[Address, ...] = ()
    user: str = ""
    password: str = ""
    pool_size: int = 3
    pinned_accounts: tuple[str, ...] = ("SYS",)
    no_advertise: bool = False
    connect_retries: int = 2
    connect_backoff: bool = False
    compression: str = "off"
    rtt_thresholds_ns: tuple[int, ...] = ()
    headers: bool = True
    permissions_shown: tuple[Any, Any] = (None, None)


class SimAccounts:
    """The accounts of a server, which do not change."""

    def __init__(self) -> None:
        self._by_name = {name: Account(name) for name in ACCOUNTS}

    def get(self, name: str) -> Account | None:
        return self._by_name.get(name)

    def values(self) -> list[Account]:
        return list(self._by_name.values())

    def look_up(self, name: str) -> Account | None:
        return self._by_name.get(name)

    def expect(self, name: str) -> Account | None:
        return None


@dataclass(eq=False)
class SimSubscription:
    """A client's subscription, and the messages that it got."""

    account: str
    subject: bytes
    queue: bytes
    member: int
    entry: SinkSubscription
    forwards_to: bytes = b""
    """The client sends what it gets to this subject, with the reply that it came with."""
    answers: bool = False
    """The client answers what has a reply."""
    got: list[bytes] = field(default_factory=list)

    def publish_of(self, payload: bytes, reply: bytes, sid: bytes) -> tuple[bytes, bytes, bytes] | None:
        """What the client publishes when it gets this: (subject, reply, payload), or None."""
        if reply and self.answers:
            return reply, b"", payload + b" by " + sid
        if reply and self.forwards_to:
            return self.forwards_to, reply, payload + b" via " + sid
        return None


class Door(Protocol):
    """What takes connections on a port, and tells routes about its links."""

    def accept(self, end: SimEnd) -> None:
        """Another server has connected."""


class CarriedLink(Protocol):
    """A link, as its connection uses it."""

    def control(self, op: int) -> None: ...
    def closed(self, reason: CloseReason) -> None: ...


class SimWire:
    """The connection of one link."""

    def __init__(self, end: SimEnd) -> None:
        self._end = end

    @property
    def peer(self) -> tuple[str, int]:
        return self._end.peer

    def close(self, reason: CloseReason) -> None:
        self._end.end()

    def compress(self, mode: str) -> None:
        raise AssertionError("the simulation does not compress")

    def change_level(self, mode: str) -> None:
        raise AssertionError("the simulation does not compress")

    def hand_over(self) -> bool:
        return False

    def registered(self) -> None:
        """Nothing to do: there are no pings."""

    def ponged(self) -> None:
        """Nothing to do."""


class SimMember:
    """A server. Restarting makes a new one with the same number and name.

    Args:
        network: clock and connections.
        number: of the server, from 0; its address is `host-<number>`.
        incarnation: how often it was restarted.
        settings: options of the mesh.
        find: callable(number) -> the running server, or None.
        cluster_name: "" = a generated one.
        has_other_links: whether there may be leaf nodes or gateways.
        compares_ids: see `penstock.cluster.mesh.Mesh`.
    """

    def __init__(
        self,
        network: SimNetwork,
        number: int,
        incarnation: int,
        settings: SimSettings,
        find: Callable[[int], SimMember | None],
        cluster_name: str,
        *,
        has_other_links: bool = False,
        compares_ids: bool = True,
    ) -> None:
        self._network = network
        self.number = number
        self._find = find
        self.is_down = False
        self.server_id = f"ID-{number}-{incarnation}"
        self.server_name = f"server-{number}"
        self._next_cid = 1
        self._ends: dict[SimEnd, None] = {}
        self._outputs: dict[RouteSink, SimEnd] = {}
        self._dirty = DirtyList(self._wake)
        self.accounts = SimAccounts()
        self.subscriptions: dict[SinkSubscription, SimSubscription] = {}
        self._clients: dict[str, ClientSink] = {}
        self._by_sid: dict[bytes, SimSubscription] = {}
        self.peers_here = 0
        self.interests = AccountInterests(self.accounts, counts_remote=has_other_links)
        self.mesh = Mesh(
            settings,
            self,
            self.interests,
            network.clock_ns,
            server_id=self.server_id,
            server_name=self.server_name,
            cluster_name=cluster_name or f"generated-{network.random.randrange(1000):03}-{number}",
            is_dynamic=not cluster_name,
            compares_ids=compares_ids,
        )
        for account in self.accounts.values():
            account.index.random_state = network.random.getrandbits(63) or 1
            self.mesh.interest.watch(account)
            sink = self._clients[account.name] = ClientSink(self._dirty)
            sink.headers = True
        self._open()
        self.mesh.start()

    def _open(self) -> None:
        """Opens links of other kinds, before routes are dialled."""

    def crash(self) -> None:
        """Stops without a word."""
        self.is_down = True
        for end in tuple(self._ends):
            if end.pipe is not None:
                end.pipe.cut()

    # -- clients

    def subscribe(
        self,
        account: str,
        subject: bytes,
        queue: bytes,
        sid: bytes,
        *,
        answers: bool = False,
        forwards_to: bytes = b"",
    ) -> SimSubscription:
        entry = SinkSubscription(self._clients[account], subject, queue, sid)
        made = SimSubscription(account, subject, queue, self.number, entry, forwards_to, answers)
        self._by_sid[sid] = made
        self.subscriptions[entry] = made
        found = self.accounts.look_up(account)
        assert found is not None
        found.index.insert(entry)
        return made

    def unsubscribe(self, one: SimSubscription) -> None:
        account = self.accounts.look_up(one.account)
        assert account is not None
        account.unsubscribe(one.entry)
        del self.subscriptions[one.entry]

    def publish(self, account: str, subject: bytes, payload: bytes, reply: bytes = b"") -> None:
        found = self.accounts.look_up(account)
        assert found is not None
        publish(found.index, subject, reply, b"", payload)
        self._read_clients()

    def _read_clients(self) -> None:
        published: list[tuple[str, tuple[bytes, bytes, bytes]]] = []
        for account, sink in self._clients.items():
            parser = FrameParser()
            parser.feed(sink.take())
            while (frame := parser.next_frame()) is not None:
                sid, payload = frame.sid or b"", frame.payload or b""
                one = self._by_sid[sid]
                one.got.append(payload)
                if (next_ := one.publish_of(payload, frame.reply or b"", sid)) is not None:
                    published.append((account, next_))
        for account, (subject, reply, payload) in published:
            self.publish(account, subject, payload, reply)

    # -- connections

    def connect(
        self,
        number: int,
        port: int,
        opened: Callable[[SimEnd], object],
        failed: Callable[[str], object],
    ) -> None:
        """Connects to a port of another server: opened(end) or failed(error) follows, or nothing when it is
        this server."""
        delay_s = self._network.random.uniform(*DIAL_S)
        self._network.call_later(delay_s, lambda: self._connect(number, port, opened, failed))

    def _connect(
        self,
        number: int,
        port: int,
        opened: Callable[[SimEnd], object],
        failed: Callable[[str], object],
    ) -> None:
        other = self._find(number)
        if self.is_down or number == self.number:
            return
        if other is None or self._network.are_apart(self.number, number):
            failed("no answer")
            return
        mine = SimEnd(self._network, self.number, (f"host-{number}", port))
        theirs = SimEnd(self._network, number, (f"host-{self.number}", port))
        SimPipe(self._network, mine, theirs)
        other.door(port).accept(theirs)
        opened(mine)

    def door(self, port: int) -> Door:
        """What takes connections on this port."""
        return self

    def accept(self, end: SimEnd) -> None:
        """Another server of the cluster has connected."""
        self._attach(end, None)

    def _attach(self, end: SimEnd, dial: Dial | None) -> None:
        """Begins a route on this end of a connection."""
        sink = RouteSink(self._dirty)
        ingress = RouteIngress(sink, None, RouteParser())
        self._route_made(ingress)
        link = RouteLink(self.mesh, self.take_cid(), SimWire(end), sink, ingress, dial)
        self.carry(end, link, sink, ingress)
        self.mesh.opened(link)

    def _route_made(self, ingress: RouteIngress) -> None:
        """A route begins with this input half."""

    def take_cid(self) -> int:
        """The number of a new connection."""
        self._next_cid += 1
        return self._next_cid - 1

    @property
    def dirty(self) -> DirtyList:
        """The sinks with output."""
        return self._dirty

    def carry(self, end: SimEnd, link: CarriedLink, sink: RouteSink, ingress: RouteIngress) -> None:
        """Carries a link over this end of a connection from now on."""
        self._ends[end] = None

        def closed() -> None:
            self._ends.pop(end, None)
            self._outputs.pop(sink, None)
            sink.closed = True
            if not self.is_down:
                link.closed(CloseReason.CLIENT_CLOSED)

        def received(data: bytes) -> None:
            if self.is_down:
                return
            ingress.parser.feed(data)
            op = ingress.process()
            if op != OP_NEED_MORE:
                link.control(op)
            self._read_clients()

        end.on_bytes, end.on_closed = received, closed
        self._outputs[sink] = end

    def _wake(self) -> None:
        self._network.call_later(0.0, self._flush)

    def _flush(self) -> None:
        for sink in self._dirty.take():
            if isinstance(sink, RouteSink):
                data = sink.take()
                end = self._outputs.get(sink)
                if end is not None and not self.is_down:
                    end.send(data)

    # -- ports of the mesh

    def dial(self, dial: Dial) -> None:
        number = int(dial.address.host.removeprefix("host-"))
        self.connect(
            number,
            ROUTE_PORT,
            lambda end: self._attach(end, dial),
            lambda error: self.mesh.dial_failed(dial, error),
        )

    def call_later(self, delay_s: float, work: Callable[[], object]) -> object:
        return self._network.call_later(delay_s, lambda: None if self.is_down else work())

    def random(self) -> float:
        return self._network.random.random()

    def base_info(self) -> RouteInfo:
        return RouteInfo(
            server_id=self.server_id,
            server_name=self.server_name,
            host=f"host-{self.number}",
            port=1,
            connect_urls=[f"client-{self.number}:1"],
        )

    def rules(self) -> None:
        return None

    def urls_changed(self) -> None:
        """Clients' URLs are read when the run is over."""

    def gateway_lines(self) -> list[bytes]:
        return []

    def heard_of_gateway(self, info: RouteInfo) -> bool:
        return False

    def peer_changed(self, server_id: str, *, is_here: bool) -> None:
        self.peers_here += 1 if is_here else -1

    def log_notice(self, text: str) -> None:
        """No log."""

    def log_error(self, text: str) -> None:
        """No log."""

    def log_debug(self, text: str) -> None:
        """No log."""
