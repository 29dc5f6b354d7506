"""One server of the simulation: the real mesh, links and kernels, with accounts and clients.

What the server's own code would add is left out: sockets, TLS, compression, pings. Connections that break are
noticed by both ends some time later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

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


@dataclass(eq=False)
class SimSubscription:
    """A client's subscription, and the messages that it got."""

    account: str
    subject: bytes
    queue: bytes
    member: int
    entry: SinkSubscription
    got: list[bytes] = field(default_factory=list)


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
    """

    def __init__(
        self,
        network: SimNetwork,
        number: int,
        incarnation: int,
        settings: SimSettings,
        find: Callable[[int], SimMember | None],
        cluster_name: str,
    ) -> None:
        self._network = network
        self.number = number
        self._find = find
        self.is_down = False
        self._server_id = f"ID-{number}-{incarnation}"
        self._next_cid = 1
        self._ends: dict[SimEnd, None] = {}
        self._outputs: dict[RouteSink, SimEnd] = {}
        self._dirty = DirtyList(self._wake)
        self.accounts = SimAccounts()
        self.subscriptions: dict[SinkSubscription, SimSubscription] = {}
        self._clients: dict[str, ClientSink] = {}
        self._by_sid: dict[bytes, SimSubscription] = {}
        self.peers_here = 0
        self.mesh = Mesh(
            settings,
            self,
            AccountInterests(self.accounts, counts_remote=False),
            network.clock_ns,
            server_id=self._server_id,
            server_name=f"server-{number}",
            cluster_name=cluster_name or f"generated-{network.random.randrange(1000):03}-{number}",
            is_dynamic=not cluster_name,
        )
        for account in self.accounts.values():
            account.index.random_state = network.random.getrandbits(63) or 1
            self.mesh.interest.watch(account)
            sink = self._clients[account.name] = ClientSink(self._dirty)
            sink.headers = True
        self.mesh.start()

    def crash(self) -> None:
        """Stops without a word."""
        self.is_down = True
        for end in tuple(self._ends):
            if end.pipe is not None:
                end.pipe.cut()

    # -- clients

    def subscribe(self, account: str, subject: bytes, queue: bytes, sid: bytes) -> SimSubscription:
        entry = SinkSubscription(self._clients[account], subject, queue, sid)
        made = SimSubscription(account, subject, queue, self.number, entry)
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

    def publish(self, account: str, subject: bytes, payload: bytes) -> None:
        found = self.accounts.look_up(account)
        assert found is not None
        publish(found.index, subject, b"", b"", payload)
        self._read_clients()

    def _read_clients(self) -> None:
        for sink in self._clients.values():
            parser = FrameParser()
            parser.feed(sink.take())
            while (frame := parser.next_frame()) is not None:
                self._by_sid[frame.sid or b""].got.append(frame.payload or b"")

    # -- ports of the mesh

    def dial(self, dial: Dial) -> None:
        self._network.call_later(self._network.random.uniform(*DIAL_S), lambda: self._connect(dial))

    def _connect(self, dial: Dial) -> None:
        number = int(dial.address.host.removeprefix("host-"))
        other = self._find(number)
        if self.is_down or number == self.number:
            return
        if other is None or self._network.are_apart(self.number, number):
            self.mesh.dial_failed(dial, "no answer")
            return
        mine = SimEnd(self._network, self.number, (f"host-{number}", 1))
        theirs = SimEnd(self._network, number, (f"host-{self.number}", 1))
        SimPipe(self._network, mine, theirs)
        other.attach(theirs, None)
        self.attach(mine, dial)

    def attach(self, end: SimEnd, dial: Dial | None) -> None:
        """Begins a link on this end of a connection."""
        sink = RouteSink(self._dirty)
        ingress = RouteIngress(sink, None, RouteParser())
        link = RouteLink(self.mesh, self._next_cid, SimWire(end), sink, ingress, dial)
        self._next_cid += 1
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
        self.mesh.opened(link)

    def _wake(self) -> None:
        self._network.call_later(0.0, self._flush)

    def _flush(self) -> None:
        for sink in self._dirty.take():
            if isinstance(sink, RouteSink):
                data = sink.take()
                end = self._outputs.get(sink)
                if end is not None and not self.is_down:
                    end.send(data)

    def call_later(self, delay_s: float, work: Callable[[], object]) -> object:
        return self._network.call_later(delay_s, lambda: None if self.is_down else work())

    def random(self) -> float:
        return self._network.random.random()

    def base_info(self) -> RouteInfo:
        return RouteInfo(
            server_id=self._server_id,
            server_name=f"server-{self.number}",
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
