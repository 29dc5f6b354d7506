"""The node and the write-ahead log of a real server, on a simulated disk and with a clock of its own.

A write takes some time, as in the thread of a real server: a killed process has done it, a part of it, or
nothing, and a power failure takes of it what the simulated disk decides. What the groups' owners do is the
subclasses' part.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

from penstock.errors import StoreError
from penstock.raft.raft_host import Frame
from penstock.replication.group_storage import DiskWrite, GroupStorage
from penstock.replication.replication_node import Mail, ReplicationNode, ReplicationOptions
from penstock.testing.sim.sim_disk import Killed, SimDisk
from penstock.wal.wal_mark import read_mark
from penstock.wal.wal_reading import proven_end, read_pieces

DIRECTORY = Path("/replication")
PAUSED_NS = 20_000_000  # between two looks whether a server goes on


class NodeServer:
    """See the module.

    Args:
        number: its place in the run.
        disk_number: its replicas' name changes with its disk.
        options: of its node.
        segment_bytes: of the log.
        send: takes frames for other servers. send_mail: takes the sender's name and its mail.
        call_later: calls after some virtual time.
        clock: virtual time, ns.
    """

    def __init__(
        self,
        number: int,
        disk_number: int,
        options: ReplicationOptions,
        segment_bytes: int,
        random: Random,
        send: Callable[[Frame], None],
        send_mail: Callable[[str, Mail], None],
        call_later: Callable[[int, Callable[[], None]], None],
        clock: Callable[[], int],
    ) -> None:
        self.number = number
        self.name = f"s{number}.{disk_number}"
        self.boot = 0
        self.is_up = self.is_paused = False
        self._disk_id = str(disk_number)
        self._options = options
        self._segment_bytes = segment_bytes
        self._random = random
        self._disk = SimDisk(random)
        self._send = send
        self._send_mail = send_mail
        self._call_later = call_later
        self.clock = clock
        self._sync_ns_max = 2_000_000
        self._write: DiskWrite | None = None  # in flight
        self._storage: GroupStorage
        self.node: ReplicationNode

    # --- life

    def start(self, peers: list[str], now: int) -> None:
        """Starts with what is on disk."""
        self.boot += 1
        self.is_up = True
        self._write = None
        self._storage, findings = GroupStorage.open(
            self._disk, DIRECTORY, cluster_name="sim", server_name=f"s{self.number}",
            new_disk_id=self._disk_id, segment_bytes=self._segment_bytes,
        )  # fmt: skip
        assert findings.replica_id == self.name
        self.node = ReplicationNode(
            findings, self._options, self._random.random, self.clock, wake=lambda: None
        )
        for name in peers:
            if name != self.name:
                self.node.peer_linked(name)
        self._open_groups()
        self.node.set_groups_known()

    def _open_groups(self) -> None:
        """Opens or creates the groups of this server."""
        raise NotImplementedError

    def _later(self, delay_ns: int, work: Callable[[], None]) -> None:
        """Calls after some time, if this start of the server still runs, and pumps then."""
        boot = self.boot

        def run() -> None:
            if self.is_up and self.boot == boot:
                if self.is_paused:
                    self._call_later(PAUSED_NS, run)
                    return
                work()
                self.pump(self.clock())

        self._call_later(delay_ns, run)

    def stop(self, *, loses_power: bool = False) -> None:
        """The process ends, perhaps in a write."""
        if self._write is not None and self._random.random() < 0.8:
            if self._random.random() < 0.5:
                self._disk.kill_at = self._disk.ops + self._random.randrange(1, 4)
            with suppress(Killed, StoreError):
                self._storage.write(self._write)
        self.is_up = False
        if loses_power:
            self._disk.lose_power()
        else:
            self._disk.restart()

    def damage(self) -> None:
        """A part of the log that was synced becomes unreadable. The start notices it."""
        assert not self.is_up
        mark = read_mark(self._disk, DIRECTORY)
        segments = [(path, file) for path, file in self._disk.files() if path.endswith(".wal")]
        path, file = self._random.choice(segments)
        number = int(Path(path).stem)
        is_marked = mark is not None and mark.segment == number
        pieces = read_pieces(bytes(file.data), number)
        proven = proven_end(pieces, mark.offset if mark is not None and is_marked else 0)
        if not proven:
            return
        begin = self._random.randrange(proven)
        end = min(proven, begin + self._random.choice((1, 30, 300, 3000)))
        file.data[begin:end] = bytes(end - begin)
        file.sync_all()

    def pause(self) -> None:
        """It does nothing until resume()."""
        self.is_paused = True

    def resume(self) -> None:
        """It goes on."""
        self.is_paused = False

    def set_sync_time(self, duration_ns: int) -> None:
        """The longest time that a write takes from now on."""
        self._sync_ns_max = duration_ns

    def set_fail_rate(self, rate: float) -> None:
        """The probability that an operation of its disk fails from now on."""
        self._disk.fail_rate = rate

    # --- input

    def receive(self, frame: Frame, now: int) -> None:
        """A frame of another server."""
        self.node.receive(frame)
        self.pump(now)

    def tick(self, now: int) -> None:
        """Time has passed."""
        self.node.tick()
        self.pump(now)

    # --- what the node wants

    def pump(self, now: int) -> None:
        """Does what the node has to do until nothing is left."""
        has_more = True
        while has_more:
            output = self.node.pump()
            has_more = output.has_more
            for frame in output.frames:
                self._send(frame)
            for mail in output.mails:
                self._send_mail(self.name, mail)
            if output.write is not None:
                self._begin_write(output.write)

    def _begin_write(self, write: DiskWrite) -> None:
        assert self._write is None, "one write at a time"
        self._write = write
        self._later(self._random.randrange(self._sync_ns_max), self._end_write)

    def _end_write(self) -> None:
        write, self._write = self._write, None
        assert write is not None
        try:
            status = self._storage.write(write)
        except StoreError as error:
            self.node.disk_done(None, error)
        else:
            self.node.disk_done(status, None)

    def state(self) -> str:
        """The roles of its replicas, for a failure's message."""
        roles = [
            f"{group}: {one.role.value} {one.term}, {one.log.commit_index}/{one.log.last_index} committed, "
            f"{one.log.membership.voters}"
            for group, one in ((name, group.replica) for name, group in self.node.groups.items())
        ]
        return f"{self.name} {'is up' if self.is_up else 'is down'}: {'; '.join(roles)}"
