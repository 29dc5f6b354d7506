"""A server with a replicated key-value store, as a process: python -m tests.support.replicated_kv CONF
DIRECTORY SERVERS [join].

The store is a state machine of the tests; all below it is the product. Each server answers on subjects of its
own: KV.<server>.put (payload: key, a blank, value), .get (key), .state, .members (change, a blank, member),
.power, which ends the process like a power failure: what was not synced is gone.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from penstock.raft.membership import ChangeKind, Membership
from penstock.raft.raft_messages import ReplicaId
from penstock.raft.raft_replica import Role
from penstock.replication.group_port import GroupPort, ProposalId
from penstock.replication.raftz import raft_status
from penstock.replication.replication_node import ReplicationOptions
from penstock.server.config.directives import load
from penstock.server.links.replication_service import ReplicationService, ReplicationSetup
from penstock.server.logging import logs
from penstock.server.server import Server
from penstock.store.disk import LocalDisk

if TYPE_CHECKING:
    from penstock.kernels.wire.sinks import Sink

GROUP = "kv"
Answer = Callable[[str], None]


class UnsyncedDisk(LocalDisk):
    """Remembers what is not synced, so that power_off() can take it back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._before: dict[int, list[tuple[int, bytes, int]]] = {}

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        with self._lock:
            old = os.pread(fd, len(data), offset)
            self._before.setdefault(fd, []).append((offset, old, os.fstat(fd).st_size))
            return super().write(fd, data, offset)

    def sync(self, fd: int) -> None:
        with self._lock:
            covered = len(self._before.get(fd, ()))
        super().sync(fd)
        with self._lock:
            del self._before.get(fd, [])[:covered]

    def close(self, fd: int) -> None:
        with self._lock:
            self._before.pop(fd, None)
        super().close(fd)

    def power_off(self) -> None:
        with self._lock:
            for fd, writes in self._before.items():
                for offset, old, size in reversed(writes):
                    os.pwrite(fd, old, offset)
                    os.ftruncate(fd, size)
            os._exit(9)


class KeyValues:
    """The state machine."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.index = 0
        self.role = ""
        self.port: GroupPort | None = None
        self.writes: dict[ProposalId, Answer] = {}
        self.reads: dict[int, tuple[str, Answer]] = {}
        self.contexts = 0

    def restored(self, index: int, term: int, data: bytes) -> None:
        self.values = json.loads(data) if data else {}
        self.index = index

    def committed(self, index: int, term: int, payload: bytes) -> None:
        key, _, value = payload.decode().partition(" ")
        self.values[key] = value
        self.index = index
        answer = self.writes.pop(ProposalId(index, term), None)
        if answer is not None:
            answer(f"+{index}")

    def handing_over(self) -> None:
        """Everything is proposed already."""

    def proposal_lost(self, proposal: ProposalId, *, is_certain: bool) -> None:
        self.writes.pop(proposal)("-lost" if is_certain else "-unknown")

    def role_changed(self, role: Role, term: int, leader: ReplicaId | None) -> None:
        self.role = role.value

    def membership_changed(self, membership: Membership) -> None:
        pass

    def read_ready(self, context: int, index: int) -> None:
        key, answer = self.reads.pop(context)
        answer("+" + self.values.get(key, ""))

    def read_lost(self, context: int) -> None:
        self.reads.pop(context)[1]("-not leading any more")

    def take_snapshot(self, done: Callable[[bytes | None], None]) -> None:
        done(json.dumps(self.values).encode())

    def install_snapshot(
        self, index: int, term: int, data: bytes, leader: ReplicaId, done: Callable[[bool], None]
    ) -> None:
        self.restored(index, term, data)
        done(True)

    def received(self, sender: ReplicaId, payload: bytes) -> None:
        pass

    def failed(self, error: Exception) -> None:
        self.role = f"failed: {error}"

    # --- requests

    def put(self, payload: str, answer: Answer) -> None:
        proposal = self.port.propose(payload.encode()) if self.port is not None else None
        if proposal is None:
            answer("-not leading")
        else:
            self.writes[proposal] = answer

    def get(self, key: str, answer: Answer) -> None:
        self.contexts += 1
        self.reads[self.contexts] = (key, answer)
        if self.role != "leader" or self.port is None or not self.port.read_index(self.contexts):
            del self.reads[self.contexts]
            answer("-not leading")

    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.values, sort_keys=True).encode()).hexdigest()


def _note(label: str, text: str) -> None:
    print(f"[{label}] {text}", file=sys.stderr, flush=True)


class KeyValueServer:
    """The process."""

    def __init__(self, conf: str, directory: str, servers: int, *, joins: bool, syncs: bool) -> None:
        self._servers = servers
        self._joins = joins
        self._machine = KeyValues()
        self._disk = UnsyncedDisk()
        options = ReplicationOptions(sync_always=syncs)
        setup = ReplicationSetup(Path(directory), self._opened, options, self._disk)
        self._server = Server(options=load(conf), log=logs.Log(_note, debug=True), replication=setup)
        self._service: ReplicationService

    def _opened(self, service: ReplicationService) -> None:
        self._service = service
        if GROUP in service.node.unopened_groups:
            self._machine.port = service.node.open_group(GROUP, self._machine)
        service.node.set_groups_known()

    async def run(self) -> None:
        await self._server.start()
        account = self._server.accounts.open("$G")
        for name in ("put", "get", "state", "members", "power"):
            account.subscribe_service(f"KV.{self._server.server_name}.{name}".encode(), self._request)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(
                number, lambda: asyncio.get_running_loop().create_task(self._server.stop())
            )
        while self._machine.port is None:  # all members are known when all are connected
            node = self._service.node
            if self._joins:
                self._machine.port = node.create_group(GROUP, Membership(()), self._machine)
            elif len(self._service.linked) == self._servers - 1:
                members = Membership(tuple(sorted((node.name, *self._service.linked))))
                self._machine.port = node.create_group(GROUP, members, self._machine)
            await asyncio.sleep(0.05)
        await self._server.wait_stopped()

    def _request(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None
    ) -> None:
        def answer(text: str) -> None:
            self._server.accounts.open("$G").publish(reply, text.encode())

        machine, text = self._machine, payload.decode()
        match subject.decode().rpartition(".")[2]:
            case "put":
                machine.put(text, answer)
            case "get":
                machine.get(text, answer)
            case "members":
                kind, _, member = text.partition(" ")
                assert machine.port is not None
                answer(machine.port.change_members(ChangeKind[kind], member).value)
            case "power":
                self._disk.power_off()
            case "state":
                answer(self._state())

    def _state(self) -> str:
        node, machine = self._service.node, self._machine
        state = {
            "id": node.name, "linked": self._service.linked, "role": machine.role, "index": machine.index,
            "keys": len(machine.values), "digest": machine.digest(),
            "raftz": raft_status(node, time.monotonic_ns(), time.time_ns()),
        }  # fmt: skip
        return json.dumps(state)


if __name__ == "__main__":
    flags = {"joins": "join" in sys.argv, "syncs": "unsynced" not in sys.argv}
    uvloop.run(KeyValueServer(sys.argv[1], sys.argv[2], int(sys.argv[3]), **flags).run())
