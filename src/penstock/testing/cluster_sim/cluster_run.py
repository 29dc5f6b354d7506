"""Runs one seed of the cluster simulation, and checks it. See the package's docstring for the promises."""

from __future__ import annotations

from collections import Counter
from random import Random

from penstock.cluster.peer_link import Address
from penstock.kernels.wire.route_links import RouteSink
from penstock.protocol.subjects import matches
from penstock.testing.cluster_sim.link_run import DRAIN_S, Broken, LinkRun, RunOutcome
from penstock.testing.cluster_sim.sim_member import SimMember, SimSettings


class ClusterRun(LinkRun[SimMember]):
    """One run."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.size = self.random.randrange(2, 6)
        self.cluster_name = self.random.choice(("", "named"))
        self._names = [self.cluster_name] * self.size
        if not self.cluster_name and self.random.random() < 0.5:
            self._names[self.random.randrange(self.size)] = "given"
        self._settings = [self._settings_of(number) for number in range(self.size)]
        # In half of the runs all links end as beside official servers; in others those of some members.
        ids = Random(f"ids of {seed}")
        self._compares_ids = [seed % 2 == 1 and ids.random() < 0.8 for _ in range(self.size)]

    def _settings_of(self, number: int) -> SimSettings:
        """Routes that connect all servers: each but the first has a route to an earlier one, and some
        others."""
        others = [self.random.randrange(number)] if number else []
        others += [other for other in range(self.size) if self.random.random() < 0.2]
        if number == 0 and self.size > 1:
            others.append(1)  # so that the first server finds the others again after a restart
        return SimSettings(
            routes=tuple(Address(f"host-{other}", 1) for other in dict.fromkeys(others)),
            pool_size=self.random.choice((3, 3, 3, 1, 2, 5, -1)),
        )

    def _start(self, number: int) -> None:
        self._incarnations[number] += 1
        self.members[number] = SimMember(
            self.network,
            number,
            self._incarnations[number],
            self._settings[number],
            self.members.get,
            self._names[number],
            compares_ids=self._compares_ids[number],
        )

    def _check_healed(self) -> None:
        self._check_mesh()
        self._check_interest()
        self._check_exactly_once()

    def _check_mesh(self) -> None:
        for member in self.members.values():
            wanted = {other.mesh.server_id for other in self.members.values()} - {member.mesh.server_id}
            if set(member.mesh.peers) != wanted:
                raise Broken(
                    "mesh", f"server {member.number} knows {sorted(member.mesh.peers)}, not {sorted(wanted)}"
                )
            if member.peers_here != len(wanted):
                raise Broken("mesh", f"server {member.number} counts {member.peers_here} peers")
            for other in self.members.values():
                self._check_pool(member, other)
        names = {member.mesh.cluster_name for member in self.members.values()}
        if len(names) != 1:
            raise Broken("name", f"the servers are in clusters {sorted(names)}")

    def _check_pool(self, member: SimMember, other: SimMember) -> None:
        if member is other:
            return
        links = [link for link in member.mesh.links if link.remote_id == other.mesh.server_id]
        sizes = [one.mesh.settings.pool_size for one in (member, other)]
        wanted = 1 if min(sizes) < 0 else max(sizes) + 1
        if len(links) != wanted:
            raise Broken(
                "pool", f"server {member.number} has {len(links)} links to {other.number}, not {wanted}"
            )
        if member.mesh.client_urls().count(f"client-{other.number}:1") != 1:
            raise Broken("urls", f"server {member.number} advertises {member.mesh.client_urls()}")

    def _check_interest(self) -> None:
        for member in self.members.values():
            for other in self.members.values():
                if other is member:
                    continue
                known: Counter[tuple[str, bytes, bytes]] = Counter()
                for link in member.mesh.links:
                    assert isinstance(link.sink, RouteSink)
                    if link.remote_id == other.mesh.server_id:
                        for account, subject, queue, weight, _ in link.sink.interest():
                            known[account.decode(), subject, queue] += weight
                wanted: Counter[tuple[str, bytes, bytes]] = Counter()
                for one in other.subscriptions.values():
                    key = (one.account, one.subject, one.queue)
                    wanted[key] = wanted[key] + 1 if one.queue else 1
                if known != wanted:
                    raise Broken(
                        "interest", f"server {member.number} knows of {other.number}: {known}, not {wanted}"
                    )

    def _check_exactly_once(self) -> None:
        """With all links up: every subscription gets every message it matches, every group one member."""
        first = len(self.messages)
        for _ in range(20):
            self.publish()
        self.network.run_for(DRAIN_S)
        self._check_copies()
        for message in self.messages[first:]:
            groups: dict[bytes, int] = {}
            for one in self.present:
                if one.account != message.account or not matches(one.subject.decode(), message.subject):
                    if message.name in one.got:
                        raise Broken("unwanted", f"{message} reached a subscription to {one.subject!r}")
                    continue
                got = one.got.count(message.name)
                if one.queue:
                    groups[one.queue] = groups.get(one.queue, 0) + got
                elif got != 1:
                    raise Broken("lost", f"{message} did not reach a subscription on server {one.member}")
            for queue, got in groups.items():
                if got != 1:
                    raise Broken(
                        "group lost", f"{message} reached {got} members of the queue group {queue!r}"
                    )


def run_cluster_seed(seed: int) -> RunOutcome:
    """Runs one seed."""
    return ClusterRun(seed).go()
