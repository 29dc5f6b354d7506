"""Clusters whose servers have a host each: network namespaces, joined by a bridge, with packet filters.

Between the proxies of `penstock.testing.cluster` a partition is a connection that is slow: bytes wait and no
end is lost. Here packets are dropped, as a network does it. TCP sends them again after ever longer pauses,
the others get no end of the connections of a server that is killed during a partition, and a dialler gets no
answer instead of a refusal. Packets can also get lost at a rate.

    with namespaces(3) as network, SyncProcessCluster(NamespaceCluster(3, network, ...)) as made:
        ...

Needs root, `ip` (iproute2) and `nft` (nftables). Clients are in the main namespace and reach every server;
the filters know the hosts of servers only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from penstock.testing.clusters.process_cluster import ProcessCluster
from penstock.testing.clusters.server_process import ServerProcess

PROGRAMS = ("ip", "nft")
PORTS = (4222, 6222, 8222)
LOSS_MAX = 100


class NamespaceNetwork:
    """The hosts of a cluster, and what passes between them (`ClusterNetwork`).

    number: of the network, for names and addresses; two that exist at the same time have different ones.
    """

    def __init__(self, size: int, number: int) -> None:
        self._number = number
        self._size = size
        self._bridge = f"psbr{number}"
        self._blocked: set[tuple[int, int]] = set()
        self._loss: dict[int, int] = {}  # percent of a server's packets, in and out

    @property
    def _names(self) -> list[str]:
        return [f"ps{self._number}-{index}" for index in range(self._size)]

    def host(self, index: int) -> str:
        """The address of a server."""
        return f"10.213.{self._number}.{index + 1}"

    def command(self, index: int, command: Sequence[str]) -> tuple[str, ...]:
        """Runs a command on a server's host. `ip` becomes the command: the process id is its."""
        return ("ip", "netns", "exec", self._names[index], *command)

    # -- hosts

    def make(self) -> None:
        """Makes the hosts."""
        _run("ip", "link", "add", self._bridge, "type", "bridge")
        _run("ip", "address", "add", f"10.213.{self._number}.254/24", "dev", self._bridge)
        _run("ip", "link", "set", self._bridge, "up")
        for index, name in enumerate(self._names):
            _run("ip", "netns", "add", name)
            _run("ip", "link", "add", f"{name}v", "type", "veth", "peer", "name", "eth0", "netns", name)
            _run("ip", "link", "set", f"{name}v", "master", self._bridge, "up")
            _run("ip", "-n", name, "address", "add", f"{self.host(index)}/24", "dev", "eth0")
            _run("ip", "-n", name, "link", "set", "eth0", "up")
            _run("ip", "-n", name, "link", "set", "lo", "up")
            self._filter(index)

    def remove(self) -> None:
        """Removes what there is of the hosts."""
        for name in self._names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
            subprocess.run(["ip", "link", "delete", f"{name}v"], capture_output=True, check=False)
        subprocess.run(["ip", "link", "delete", self._bridge], capture_output=True, check=False)

    # -- as ClusterNetwork

    def route(self, dialler: int, target: int) -> str:
        return self.advertised(target)

    def advertised(self, target: int) -> str:
        return f"{self.host(target)}:{PORTS[1]}"

    def learn(self, server_id: str, index: int) -> None:
        """Addresses say which server it is."""

    def block(self, links: Iterable[tuple[int, int]]) -> None:
        """Drops what the first server of each pair sends to the second."""
        added = set(links)
        self._blocked |= added
        for receiver in {receiver for _, receiver in added}:
            self._filter(receiver)

    def unblock(self) -> None:
        """Lets everything pass, at no loss."""
        self._blocked.clear()
        self._loss.clear()
        for index in range(self._size):
            self._filter(index)

    def close(self) -> None:
        self.unblock()

    # -- more than partitions

    def lose(self, server: int, percent: int) -> None:
        """Drops so many packets of what other servers send to this one and it sends to them. 0 ends it."""
        assert 0 <= percent < LOSS_MAX, percent
        self._loss[server] = percent
        for index in range(self._size):
            self._filter(index)

    def _filter(self, receiver: int) -> None:
        """Replaces the packet filter of a host, as a whole."""
        rules = []
        for sender in range(self._size):
            source = f"ip saddr {self.host(sender)}"
            if (sender, receiver) in self._blocked:
                rules.append(f"{source} drop")
            elif lost := self._loss.get(sender, 0) or self._loss.get(receiver, 0):
                rules.append(f"{source} numgen random mod {LOSS_MAX} < {lost} drop")
        chain = "\n".join(["type filter hook input priority 0; policy accept;", *rules])
        replaced = "add table ip faults\ndelete table ip faults\n"
        text = f"{replaced}table ip faults {{\nchain input {{\n{chain}\n}}\n}}\n"
        _run("ip", "netns", "exec", self._names[receiver], "nft", "-f", "-", text=text)


def _run(*command: str, text: str = "") -> None:
    ended = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"{' '.join(command)}: {ended.stderr}"


@contextlib.contextmanager
def namespaces(size: int) -> Iterator[NamespaceNetwork]:
    """Hosts for so many servers. Skips the test where they can't be made."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if os.geteuid() != 0 or missing:
        pytest.skip(f"network namespaces need root, ip and nft; missing: {', '.join(missing) or 'root'}")
    network = NamespaceNetwork(size, os.getpid() % 254)
    network.remove()
    try:
        network.make()
        yield network
    finally:
        network.remove()


class NamespaceCluster(ProcessCluster):
    """A cluster on the hosts of a network."""

    def __init__(
        self,
        size: int,
        network: NamespaceNetwork,
        *,
        command: Sequence[str],
        jetstream: bool | str,
        config: str | Callable[[int], str],
        names: Sequence[str],
        directory: Path,
    ) -> None:
        self._hosts = network
        settings = {"jetstream": jetstream, "config": config, "names": names, "directory": directory}
        super().__init__(size, command=command, name="n", **settings)

    def _make_server(self, index: int, name: str) -> ServerProcess:
        command = self._hosts.command(index, self._command)
        return ServerProcess(name, self.directory, command, self._hosts.host(index), PORTS)

    def _make_network(self) -> NamespaceNetwork:
        return self._hosts
