"""Runs one seed of the simulation of sites, and checks it. See the package's docstring for the promises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from penstock.cluster.leaf_ports import LeafAddress
from penstock.cluster.peer_link import Address
from penstock.kernels.wire.route_links import RouteSink
from penstock.protocol.subjects import matches
from penstock.testing.cluster_sim.link_run import DRAIN_S, Broken, LinkRun, Message, RunOutcome
from penstock.testing.cluster_sim.sim_member import ACCOUNTS, SimSettings, SimSubscription
from penstock.testing.site_sim.site_map import SiteMap
from penstock.testing.site_sim.site_server import (
    GATEWAY_PORT,
    LEAF_PORT,
    SimGatewayRemote,
    SimGatewaySettings,
    SimLeafRemote,
    SimLeafSettings,
    SiteServer,
)

SERVICE, FORWARDED = b"svc.do", b"svc.pass"
SERVICE_QUEUES = (b"", b"w")
INBOX_S = 3.0
OWN_SUBJECTS = (b"$LDS.", b"_GR_.")
Interest = Counter[tuple[str, bytes, bytes]]


class Request(NamedTuple):
    """A request: its payload is its name, and begins those of its answers."""

    name: bytes
    account: str
    subject: bytes
    server: int
    inbox: SimSubscription


class SiteRun(LinkRun[SiteServer]):
    """One run."""

    actions = (
        (4, "subscribe"), (2, "unsubscribe"), (6, "publish"), (1, "serve"), (2, "request"), (1.2, "cut"),
        (0.4, "separate"), (0.3, "restart"),
    )  # fmt: skip

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.map = SiteMap(self.random)
        self.size = self.map.size
        self.requests: list[Request] = []
        self._publishers: dict[bytes, int] = {}
        self._routes = {number: self._routes_of(number) for number in range(self.size)}
        self._gateways = {index: self._gateway_of(index) for index in self.map.clusters}
        self._leafs = {number: self._leafs_of(number) for number in range(self.size)}

    # -- configurations

    def _routes_of(self, number: int) -> SimSettings:
        servers = self.map.sites[self.map.index_of(number)].servers
        others = [self.random.choice([one for one in servers if one < number])] if number > servers[0] else []
        if number == servers[0] and len(servers) > 1:
            others.append(servers[1])
        routes = tuple(Address(f"host-{one}", 1) for one in others)
        return SimSettings(routes=routes, pool_size=self.random.choice((3, 3, 1, -1)))

    def _some(self, servers: tuple[int, ...]) -> list[str]:
        return [f"host-{one}" for one in self.random.sample(servers, self.random.randint(1, len(servers)))]

    def _gateway_of(self, index: int) -> SimGatewaySettings | None:
        sites = self.map.sites
        if not self.map.has_gateways:
            return None
        remotes = []
        for other in sites[index].named:
            addresses = tuple(Address(host, GATEWAY_PORT) for host in self._some(sites[other].servers))
            remotes.append(SimGatewayRemote(sites[other].name, addresses))
        return SimGatewaySettings(sites[index].name, tuple(remotes))

    def _leafs_of(self, number: int) -> SimLeafSettings:
        site = self.map.sites[self.map.index_of(number)]
        if site.hub is None:
            return SimLeafSettings()
        hosts = self._some(self.map.sites[site.hub].servers)
        return SimLeafSettings(
            tuple(
                SimLeafRemote(
                    tuple(LeafAddress("nats-leaf", host, LEAF_PORT, account, "x") for host in hosts), account
                )
                for account in site.accounts
            )
        )

    def _start(self, number: int) -> None:
        self._incarnations[number] += 1
        index = self.map.index_of(number)
        self.members[number] = SiteServer(
            self.network,
            number,
            self._incarnations[number],
            self._routes[number],
            self.members.get,
            self.map.sites[index].name,
            gateway=self._gateways.get(index),
            leafs=self._leafs[number],
            compares_ids=self.seed % 2 == 1,  # in half of the runs routes end as beside official servers
        )

    # -- actions

    def publish(self) -> None:
        account = self.random.choice(ACCOUNTS)
        message = Message(
            b"m%d" % len(self.messages), account, self.random.choice(("a", "a.b", "a.c", "b.c"))
        )
        self.messages.append(message)
        member = self.random.choice(list(self.members.values()))
        self._publishers[message.name] = member.number
        member.publish(account, message.subject.encode(), message.name)

    def serve(self) -> None:
        """A client begins to answer requests, or to pass those to another subject on."""
        member = self.random.choice(list(self.members.values()))
        sid = b"%d" % self._next_sid
        self._next_sid += 1
        account, queue = self.random.choice(ACCOUNTS), self.random.choice(SERVICE_QUEUES)
        if self.random.random() < 0.7:
            one = member.subscribe(account, SERVICE, queue, sid, answers=True)
        else:
            one = member.subscribe(account, FORWARDED, queue, sid, forwards_to=SERVICE)
        self.present.append(one)

    def request(self) -> Request:
        """A client subscribes to a new inbox, and sends a request at once."""
        member = self.random.choice(list(self.members.values()))
        name = b"q%d" % len(self.requests)
        account, subject = self.random.choice(ACCOUNTS), self.random.choice((SERVICE, FORWARDED))
        sid = b"%d" % self._next_sid
        self._next_sid += 1
        inbox = member.subscribe(account, b"_INBOX." + name, b"", sid)
        self.present.append(inbox)
        made = Request(name, account, subject, member.number, inbox)
        self.requests.append(made)
        member.publish(account, subject, name, b"_INBOX." + name)
        self.network.call_later(INBOX_S, lambda: self._forget(inbox))
        return made

    def _forget(self, one: SimSubscription) -> None:
        if one in self.present:
            self.present.remove(one)
            self.members[one.member].unsubscribe(one)
            self.past.append(one)

    # -- checks

    def _check_healed(self) -> None:
        self._check_links()
        self._check_interest()
        self._check_exactly_once()
        self._check_answers()

    def _check_links(self) -> None:
        for number, member in self.members.items():
            site = self.map.sites[self.map.index_of(number)]
            peers = {self.members[one].server_id for one in site.servers if one != number}
            if set(member.mesh.peers) != peers:
                raise Broken(
                    "mesh", f"server {number} knows {sorted(member.mesh.peers)}, not {sorted(peers)}"
                )
            if member.gateways is not None:
                found = sorted(link.cluster for link in member.gateways.registry.outbound)
                wanted = sorted(
                    self.map.sites[one].name
                    for one in self.map.clusters
                    if number not in self.map.sites[one].servers
                )
                if found != wanted:
                    raise Broken("gateways", f"server {number} has links to {found}, not to {wanted}")
            bound = sorted(
                link.account.name
                for link in member.leafs.registry.links
                if link.remote is not None and link.account is not None
            )
            if site.hub is not None and bound != sorted(site.accounts):
                raise Broken("leaf nodes", f"server {number} has links for {bound}, not {site.accounts}")

    def _clients(self, sites: Iterable[int], account: str) -> Interest:
        """The interest of all clients of these sites."""
        servers = {number for index in sites for number in self.map.sites[index].servers}
        return combined(
            (one.account, one.subject, one.queue)
            for one in self.present
            if one.account == account and one.member in servers
        )

    def _check_interest(self) -> None:
        for number, member in self.members.items():
            self._check_gateway_interest(number, member)
            self._check_leaf_interest(number, member)

    def _check_gateway_interest(self, number: int, member: SiteServer) -> None:
        if member.gateways is None:
            return
        for link in member.gateways.registry.outbound:
            index = next(one for one in self.map.clusters if self.map.sites[one].name == link.cluster)
            known = known_by(link.sink)
            for account in ACCOUNTS:
                wanted = self._clients(self.map.below(index, account), account)
                self._compare(number, link.cluster, of_account(known, account), wanted)

    def _check_leaf_interest(self, number: int, member: SiteServer) -> None:
        own = self.map.index_of(number)
        for link in member.leafs.registry.links:
            assert link.account is not None
            account = link.account.name
            known = {key: weight for key, weight in known_by(link.sink, account).items() if weight}
            if link.is_spoke:
                others = self.map.reached(own, account) - self.map.below(own, account)
                self._compare(number, "its hub", Counter(known), self._clients(others, account))
            else:
                spoke = next(one for one in self.members.values() if one.server_name == link.name)
                wanted = combined(
                    (one.account, one.subject, one.queue)
                    for one in spoke.subscriptions.values()
                    if one.account == account
                )
                for below in spoke.leafs.registry.links_of(account):
                    if not below.is_spoke:
                        wanted = together(wanted, known_by(below.sink, account))
                self._compare(number, link.name, Counter(known), wanted)

    def _compare(self, number: int, other: str, known: Interest, wanted: Interest) -> None:
        if known != wanted:
            raise Broken(
                "interest",
                f"server {number} knows of {other}: {dict(known - wanted)} too much, "
                f"{dict(wanted - known)} too little",
            )

    def _check_exactly_once(self) -> None:
        """With all links up: every subscription gets every message it matches, every group one member."""
        first = len(self.messages)
        for _ in range(20):
            self.publish()
        self.network.run_for(DRAIN_S)
        self._check_copies()
        for message in self.messages[first:]:
            own = self.map.index_of(self._publishers[message.name])
            reached = self.map.reached(own, message.account)
            groups: dict[bytes, list[SimSubscription]] = {}
            for one in self.present:
                wants = one.account == message.account and matches(one.subject.decode(), message.subject)
                if not wants or self.map.index_of(one.member) not in reached:
                    if message.name in one.got:
                        raise Broken("unwanted", f"{message} reached a subscription to {one.subject!r}")
                elif one.queue:
                    groups.setdefault(one.queue, []).append(one)
                elif one.got.count(message.name) != 1:
                    raise Broken("lost", f"{message} did not reach a subscription on server {one.member}")
            for queue, members in groups.items():
                self._check_group(message, own, queue, members)

    def _check_group(self, message: Message, own: int, queue: bytes, members: list[SimSubscription]) -> None:
        got = [one for one in members if message.name in one.got]
        if len(got) != 1:
            raise Broken("group lost", f"{message} reached {len(got)} members of the queue group {queue!r}")
        at = self.map.index_of(got[0].member)
        nearest = [{own}]
        if self.map.sites[own].hub is None:
            nearest.append(self.map.below(own, message.account))
        for sites in nearest:
            if at not in sites and any(self.map.index_of(one.member) in sites for one in members):
                raise Broken(
                    "far",
                    f"{message} of site {own} reached a member of the queue group {queue!r} in site {at}",
                )

    def _check_answers(self) -> None:
        """With all links up: every request gets all its answers, and none twice."""
        made = [self.request() for _ in range(12)]
        self.network.run_for(DRAIN_S)
        self._check_copies()
        for one in made:
            site = self.map.index_of(one.server)
            if one.subject == SERVICE:
                wanted = sum(self._services(one.account, site))
                if len(one.inbox.got) != wanted:
                    raise Broken("answers", f"{one[:4]} got {one.inbox.got}, not {wanted} answers")
                continue
            for passing in self.present:
                at = self.map.index_of(passing.member)
                # Within a cluster, a message may come before the interest in its reply by another way.
                is_alone = self.map.sites[at].hub is None or len(self.map.sites[at].servers) == 1
                is_apart = is_alone and self.map.top(at) != self.map.top(site)
                if one.name in passing.got and passing.forwards_to and is_apart:
                    self._check_passed(one, passing, self._services(one.account, at, site))

    def _check_passed(self, request: Request, by: SimSubscription, wanted: tuple[int, int]) -> None:
        """A service in another cluster has passed the request on."""
        prefix = request.name + b" via " + by.entry.sid + b" by "
        got = [answer for answer in request.inbox.got if answer.startswith(prefix)]
        if not wanted[0] <= len(got) <= sum(wanted):
            raise Broken("passed on", f"{request[:4]} got {got} by way of {by.member}, not {wanted} answers")

    def _services(self, account: str, site: int, home: int | None = None) -> tuple[int, int]:
        """How many answers a request from a site gets, and how many more it may get.

        home: of the requester, when a service passes the request on from another cluster. An answer that is
        routed by name to a hub does not go back to those leaf nodes that it came by.
        """
        reached = self.map.reached(site, account)
        sure: set[bytes] = set()
        unsure: set[bytes] = set()
        for one in self.present:
            at = self.map.index_of(one.member)
            if one.account == account and one.answers and at in reached:
                is_back = home is not None and self.map.sites[at].hub is not None
                is_back = is_back and self.map.top(at) == self.map.top(home or 0)
                (unsure if is_back else sure).add(one.queue or b"sid " + one.entry.sid)
        return len(sure - unsure), len(unsure)


def combined(keys: Iterable[tuple[str, bytes, bytes]]) -> Interest:
    """Interest as one server tells it: of queue groups the number of members, of others 1."""
    found: Interest = Counter()
    for key in keys:
        found[key] = found[key] + 1 if key[2] else 1
    return found


def together(one: Interest, other: Interest) -> Interest:
    """The interest of two sides as one."""
    found = Counter(one)
    for key, weight in other.items():
        found[key] = found[key] + weight if key[2] else 1
    return found


def known_by(sink: RouteSink, account: str = "") -> Interest:
    """What a link knows of the other side's interest, without that of the servers themselves. account: of a
    link that has one, and does not name it."""
    found: Interest = Counter()
    for name, subject, queue, weight, _ in sink.interest():
        if not subject.startswith(OWN_SUBJECTS):
            found[account or name.decode(), subject, queue] += weight if queue else 1
    return found


def of_account(interest: Interest, account: str) -> Interest:
    """That of one account."""
    return Counter({key: weight for key, weight in interest.items() if key[0] == account})


def run_site_seed(seed: int) -> RunOutcome:
    """Runs one seed."""
    return SiteRun(seed).go()
