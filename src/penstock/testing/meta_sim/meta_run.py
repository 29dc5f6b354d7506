"""A simulated cluster around the meta state: servers that lag, restart, lose disks, come and go.

`MetaRun(seed).run()` draws everything from the seed. Clients' requests are checked against the state of one
server and proposed together with others, so that they meet in the log. Each server applies the log at its
own pace, starts and removes what `desired_state` says, and continues from snapshots; the leaders of groups
make the steps of `membership_steps` on real memberships.

Checked: after each entry the state of every server is, byte for byte, that of the others at the same index,
and its effects are theirs; subjects, names and limits hold; no stream has two replicas on a server; no
server removes files while it is a voter; nothing is quarantined. At the end all servers are online, and
every stream gets the servers it should have.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from itertools import combinations
from typing import Any

from msgspec import structs

from penstock.errors import JetStreamApiError
from penstock.jetstream import stream_config
from penstock.jetstream.consumer import consumer_config
from penstock.jetstream.limits import EngineConfig
from penstock.jetstream.meta import meta_commands as commands
from penstock.jetstream.meta.assignments import PeerStatus, StreamAssignment
from penstock.jetstream.meta.desired_state import (
    ConfirmMissing,
    QuarantineStored,
    RelabelStored,
    RemoveStored,
    StartStream,
    StoredStream,
    differences,
)
from penstock.jetstream.meta.membership_steps import (
    AwaitProgress,
    ChangeMember,
    GroupView,
    TransferLeadership,
    next_step,
)
from penstock.jetstream.meta.meta_commands import AccountRules, MetaCommand, PlacementRules, encode_command
from penstock.jetstream.meta.meta_effects import MetaEffect, PeerAction, PeerEffect, WorkLeft
from penstock.jetstream.meta.meta_machine import MetaMachine
from penstock.jetstream.meta.meta_tables import MetaTables
from penstock.protocol import subjects
from penstock.protocol.api import AccountLimits, ApiConsumerConfig, Placement, StreamConfigRequest
from penstock.raft.membership import Membership
from penstock.testing.sim import Violation

ENGINE = EngineConfig(is_clustered=True)
STREAMS_MAX = 12  # of an account
RULES = AccountRules({"": AccountLimits(max_streams=STREAMS_MAX)})
START_NS = 1_800_000_000 * 10**9
SERVERS_MAX = 7
CALM_ROUNDS = 400

GroupKey = tuple[str, str, int]
"""Account, name and incarnation of a stream."""


class MetaServer:
    """A server: its copy of the meta state, its disk, and the streams on it."""

    def __init__(self, name: str, tags: tuple[str, ...], disk: int = 1) -> None:
        self.peer, self.name, self.tags = name.upper(), name, tags
        self.machine = MetaMachine()
        self.disk, self.boot = disk, 1
        self.is_online = True
        self.stored: dict[GroupKey, StoredStream] = {}

    @property
    def member(self) -> str:
        return f"{self.name}.{self.disk}"

    def set_peer(self) -> commands.SetPeer:
        """The command by which it joins, or comes back."""
        return commands.SetPeer(self.peer, self.name, "c", self.tags, disk=str(self.disk), boot=self.boot)

    def wipe(self) -> None:
        """Its disk is replaced by an empty one; it gets the meta state from the others."""
        self.disk += 1
        self.stored.clear()
        self.machine = MetaMachine()

    def restart(self) -> None:
        """Continues from a snapshot of its own state."""
        self.boot += 1
        self.machine = MetaMachine.restore(self.machine.snapshot())

    def catch_up_from(self, other: MetaServer) -> None:
        """Gets the state of another server."""
        self.machine = MetaMachine.restore(other.machine.snapshot())


class MetaStreamGroup:
    """The consensus group of a stream, reduced to its membership: who votes, who leads."""

    def __init__(self, founders: tuple[str, ...]) -> None:
        self.membership = Membership(tuple(sorted(founders)))
        self.leader = ""
        self.proposed: tuple[str, ChangeMember] | None = None  # by whom

    def elect(self, online: set[str]) -> None:
        """Keeps the leader, or finds another one, if a majority is online."""
        if not self.membership.is_quorum(online):
            self.leader = ""
        elif self.leader not in online or self.leader not in self.membership.voters:
            self.leader = min(one for one in self.membership.voters if one in online)

    def change(self, step: ChangeMember) -> None:
        changed = self.membership.changed(step.kind, step.member)
        if changed is None or step.member == self.leader:
            raise Violation(
                "membership", f"impossible change: {step} of {self.membership}, led by {self.leader}"
            )
        self.membership = changed

    def propose(self, step: ChangeMember) -> None:
        """A change that is committed later, if the leader still leads."""
        self.proposed = self.leader, step

    def commit(self) -> bool:
        """Commits what the leader has proposed."""
        proposed, self.proposed = self.proposed, None
        if proposed is None or proposed[0] != self.leader:
            return False
        self.change(proposed[1])
        return True

    def transfer(self, member: str) -> None:
        self.leader = member


class MetaRun:
    """One simulation. counts: what happened, by name."""

    def __init__(self, seed: int, steps: int = 250) -> None:
        self._chance = random.Random(seed)
        self._steps = steps
        self._log: list[bytes] = []
        self._states: list[bytes] = [MetaMachine().snapshot()]
        self._effects: list[list[MetaEffect]] = [[]]
        self._now = START_NS
        self._servers: dict[str, MetaServer] = {}
        self._removed: dict[str, MetaServer] = {}
        self._returned: set[str] = set()
        self._groups: dict[GroupKey, MetaStreamGroup] = {}
        self.counts: Counter[str] = Counter()

    # --- the run ---------------------------------------------------------------------------------

    def run(self) -> Counter[str]:
        """Raises Violation."""
        self._propose(commands.FoundCluster("id"))
        for name in self._chance.sample("abc", 3):
            self._join(name)
        actions = (
            (30, self._request_together),
            (20, self._advance),
            (30, self._lead_groups),
            (6, self._stop_or_start),
            (3, self._wipe),
            (3, self._join_another),
            (3, self._retire),
            (5, self._observe),
        )
        choices = [action for weight, action in actions for _ in range(weight)]
        for _ in range(self._steps):
            self._chance.choice(choices)()
        self._calm_down()
        return self.counts

    def _calm_down(self) -> None:
        """All servers come back; every change in progress must end."""
        for _ in range(CALM_ROUNDS):
            before = self._progress()
            for server in self._servers.values():
                self._start(server)
            self._observe(is_calm=True)
            self._advance_all()
            for key in sorted(self._groups):
                self._lead_group(key)
            self._advance_all()
            if self._progress() == before:
                break
        else:
            raise Violation("rest", "the cluster does not come to rest")
        self._check_rest()

    def _progress(self) -> list[object]:
        """Changes as long as something goes on."""
        groups = [
            (key, group.membership, group.leader, group.proposed)
            for key, group in sorted(self._groups.items())
        ]
        return [len(self._log), *groups]

    def _check_rest(self) -> None:
        tables = self._newest.machine.tables
        members = {peer for peer, one in tables.peers.items() if one.status is PeerStatus.MEMBER}
        for assets in tables.accounts.values():
            for stream in assets.streams.values():
                group = self._groups.get((stream.account, stream.name, stream.incarnation))
                if group is None or not group.leader:
                    self.counts["lost groups"] += 1  # a majority of its disks was wiped
                    continue
                if stream.desired is not None:
                    raise Violation("rest", f"{stream.name}: a change is still in progress: {stream.desired}")
                voters = {self._server_of(member).peer for member in group.membership.voters}
                if voters != set(stream.group.peers) or group.membership.learners:
                    raise Violation(
                        "rest", f"{stream.name}: {group.membership}, but assigned {stream.group.peers}"
                    )
                if stream.is_short and len(members) >= stream.config.num_replicas and not _is_tagged(stream):
                    self.counts["short streams"] += 1
        for tombstone in tables.tombstones.values():
            if any(peer in self._servers and peer in tables.peers for peer in tombstone.peers):
                raise Violation("confirmation", f"{tombstone} is not confirmed")

    # --- the log ---------------------------------------------------------------------------------

    @property
    def _newest(self) -> MetaServer:
        return max(self._servers.values(), key=lambda server: server.machine.tables.applied)

    def _propose(self, command: MetaCommand) -> None:
        """Appends a command. Sometimes the leader that stamps it has an older clock."""
        self._now += self._chance.randrange(-(10**8), 10**9)
        self._log.append(encode_command(command, self._now))
        self.counts[type(command).__name__] += 1

    def _apply_next(self, server: MetaServer) -> None:
        """Applies one entry, and compares the result with that of the first server that applied it."""
        index = server.machine.tables.applied + 1
        effects = server.machine.apply_entry(self._log[index - 1], index)
        state = server.machine.snapshot()
        if index == len(self._states):
            self._states.append(state)
            self._effects.append(effects)
            self._check_state(server.machine.tables)
            self._react(effects)
        elif state != self._states[index]:
            raise Violation("equal states", f"server {server.name} differs from another one at index {index}")
        elif effects != self._effects[index]:
            raise Violation("equal effects", f"server {server.name} has other effects at index {index}")

    def _react(self, effects: list[MetaEffect]) -> None:
        """What the meta leader does."""
        for effect in effects:
            match effect:
                case WorkLeft(command):
                    self._propose(command)
                case PeerEffect(PeerAction.LEAVES, peer, _):
                    self._propose(commands.PeerGone(peer))
                case PeerEffect(PeerAction.GONE, peer, _):
                    self._removed[peer] = self._servers.pop(peer)
                case PeerEffect(PeerAction.JOINED, peer, _) if peer not in self._servers:
                    # It proposed to join before it was removed, and comes back by that.
                    self._servers[peer] = self._removed.pop(peer)
                    self._returned.add(peer)

    def _check_state(self, tables: MetaTables) -> None:
        for account, assets in tables.accounts.items():
            if len(assets.streams) > STREAMS_MAX:
                raise Violation("limits", f"account {account} has {len(assets.streams)} streams")
            for one, other in combinations(assets.streams.values(), 2):
                if any(subjects.overlaps(a, b) for a in one.config.subjects for b in other.config.subjects):
                    raise Violation(
                        "subjects", f"streams {one.name} and {other.name} have a subject in common"
                    )
            for stream in assets.streams.values():
                self._check_stream(stream)

    def _check_stream(self, stream: StreamAssignment) -> None:
        for peers in (stream.hosts, stream.target, stream.leaving, stream.group.peers):
            if len(set(peers)) != len(peers):
                raise Violation("placement", f"{stream.name}: a server twice in {peers}")
        if not stream.target or set(stream.leaving) & set(stream.hosts):
            raise Violation("placement", f"{stream.name}: hosts {stream.hosts}, leaving {stream.leaving}")

    # --- servers ---------------------------------------------------------------------------------

    def _join(self, name: str) -> None:
        server = MetaServer(name, (self._chance.choice(("x", "y")),))
        former = self._removed.get(server.peer)
        if former is not None:  # another disk than that of the server that had the name
            server = MetaServer(name, server.tags, former.disk + 1)
            self._returned.add(server.peer)
        self._servers[server.peer] = server
        self._propose(server.set_peer())

    def _join_another(self) -> None:
        free = [name for name in "abcdefghij" if name.upper() not in self._servers]
        if len(self._servers) < SERVERS_MAX and free:
            known = self._newest
            name = self._chance.choice(free)
            self._join(name)
            self._servers[name.upper()].catch_up_from(known)
            self.counts["joins"] += 1

    def _retire(self) -> None:
        peers = sorted(self._servers)
        if len(peers) > 4:
            kind: Callable[..., MetaCommand] = self._chance.choice(
                (commands.RemoveServer, commands.EvacuateServer)
            )
            self._propose(kind(self._chance.choice(peers)))

    def _pick(self) -> MetaServer:
        return self._servers[self._chance.choice(sorted(self._servers))]

    def _stop_or_start(self) -> None:
        server = self._pick()
        if not server.is_online:
            self._start(server)
        elif sum(one.is_online for one in self._servers.values()) > 2:
            server.is_online = False
            self.counts["stops"] += 1

    def _start(self, server: MetaServer) -> None:
        if not server.is_online:
            server.is_online = True
            server.restart()
            self._propose(server.set_peer())

    def _wipe(self) -> None:
        """One disk at a time: another one is wiped when the groups have recovered from the last."""
        server = self._pick()
        whole = all(
            {self._server_of(one).member for one in group.membership.voters} == set(group.membership.voters)
            for group in self._groups.values()
        )
        if server.is_online and whole and len(self._servers) > 3:
            known = max(
                (one for one in self._servers.values() if one is not server),
                key=lambda one: one.machine.tables.applied,
            )
            server.wipe()
            server.catch_up_from(known)
            server.restart()
            self._propose(server.set_peer())
            self.counts["wiped disks"] += 1

    def _observe(self, *, is_calm: bool = False) -> None:
        """Proposes what the meta leader sees of servers where the state says otherwise."""
        records = self._newest.machine.tables.peers
        sights = []
        for peer, server in self._servers.items():
            sight = commands.PeerSight(peer, server.is_online, is_calm or self._chance.random() < 0.8)
            record = records.get(peer)
            if record is not None and (record.online, record.current) != (sight.online, sight.current):
                sights.append(sight)
        if sights:
            self._propose(commands.ObservePeers(tuple(sights)))

    def _advance(self) -> None:
        server = self._pick()
        if server.is_online:
            for _ in range(
                min(self._chance.randrange(1, 12), len(self._log) - server.machine.tables.applied)
            ):
                self._apply_next(server)
            self._follow(server)

    def _advance_all(self) -> None:
        for peer in sorted(self._servers):
            server = self._servers.get(peer)
            while server is not None and server.machine.tables.applied < len(self._log):
                self._apply_next(server)
        for peer in sorted(self._servers):
            self._follow(self._servers[peer])

    def _follow(self, server: MetaServer) -> None:
        """Starts and removes what the server's meta state says."""
        tables = server.machine.tables
        is_current = tables.applied == len(self._log)
        record = tables.peers.get(server.peer)
        if (
            is_current
            and record is not None
            and (record.disk, record.boot) != (str(server.disk), server.boot)
        ):
            self._propose(server.set_peer())  # an older one came late
        for difference in differences(tables, server.peer, server.stored.values(), is_current=is_current):
            match difference:
                case StartStream(stream, founders):
                    key = (stream.account, stream.name, stream.incarnation)
                    if founders and key not in self._groups:
                        self._groups[key] = MetaStreamGroup(founders)
                    server.stored[key] = StoredStream(
                        account=stream.account,
                        name=stream.name,
                        cluster_id=tables.cluster_id,
                        incarnation=stream.incarnation,
                        group=stream.group.name,
                    )
                case RemoveStored(stored, reason):
                    self._remove(server, stored, reason)
                case RelabelStored(stored, stream):
                    key = (stored.account, stored.name, stored.incarnation)
                    server.stored[key] = structs.replace(stored, group=stream.group.name)
                case ConfirmMissing(incarnations):
                    self._propose(commands.ConfirmRemoved(server.peer, incarnations, tables.applied))
                case QuarantineStored(stored, _) if server.peer in self._returned:
                    # Deleted meanwhile: the cluster did not wait for a server that was removed.
                    del server.stored[stored.account, stored.name, stored.incarnation]
                case QuarantineStored(stored, reason):
                    raise Violation("quarantine", f"{server.name} quarantines {stored}: {reason}")

    def _remove(self, server: MetaServer, stored: StoredStream, reason: str) -> None:
        key = (stored.account, stored.name, stored.incarnation)
        group = self._groups.get(key)
        known = max((server, self._newest), key=lambda one: one.machine.tables.applied)
        newest = known.machine.tables.find_stream(stored.account, stored.name)
        is_assigned = newest is not None and newest.incarnation == stored.incarnation
        if group is not None and is_assigned and server.member in group.membership.voters:
            raise Violation(
                "removal", f"{server.name} removes {stored}, of whose group it is a voter: {reason}"
            )
        del server.stored[key]
        self.counts["removals"] += 1

    # --- groups ----------------------------------------------------------------------------------

    def _server_of(self, member: str) -> MetaServer:
        peer = member.partition(".")[0].upper()
        return self._servers.get(peer) or MetaServer(peer.lower(), ())

    def _lead_groups(self) -> None:
        for key in sorted(self._groups):
            if self._chance.random() < 0.4:
                self._lead_group(key)

    def _lead_group(self, key: GroupKey) -> None:
        group = self._groups[key]
        online = {one.member for one in self._servers.values() if one.is_online}
        having = {one.member for one in self._servers.values() if one.is_online and key in one.stored}
        group.elect(online & having)
        if not group.leader:
            return
        if group.commit():
            self.counts["membership changes"] += 1
            return
        leader = self._server_of(group.leader)
        if self._chance.random() < 0.5:
            while leader.machine.tables.applied < len(self._log):
                self._apply_next(leader)
        tables = leader.machine.tables
        stream = tables.find_stream(key[0], key[1])
        if stream is None or stream.incarnation != key[2]:
            return
        view = GroupView(
            leader=group.leader,
            voters=group.membership.voters,
            learners=group.membership.learners,
            caught_up=having,
            online=online,
            lags={member: self._chance.randrange(3) for member in group.membership.voters},
        )
        is_current = tables.applied == len(self._log)
        match next_step(tables, stream, view, is_current=is_current):
            case ChangeMember() as step:
                group.propose(step)
            case TransferLeadership(member):
                group.transfer(member)
            case AwaitProgress() | None:
                pass
            case command:
                self._propose(command)

    # --- requests --------------------------------------------------------------------------------

    def _request_together(self) -> None:
        """Requests that are checked against one state and meet in the log."""
        tables = self._newest.machine.tables
        for _ in range(self._chance.randrange(1, 4)):
            kind = self._chance.choice(
                (self._create, self._create, self._update, self._delete, self._consume, self._administer)
            )
            try:
                command = kind(tables)
            except JetStreamApiError:
                continue
            if command is not None:
                self._propose(command)

    def _placement(self) -> PlacementRules:
        return PlacementRules(("c",))

    def _create(self, tables: MetaTables) -> MetaCommand | None:
        chance = self._chance
        name = chance.choice("ABCDEFGHIJKLMNOP")
        request = StreamConfigRequest(
            name=name,
            subjects=[chance.choice((f"{name}.>", f"{name}.>", "shared.*", f"shared.{name}"))],
            num_replicas=chance.choice((1, 1, 2, 3, 3, 5)),
            max_bytes=chance.choice((-1, 1000)),
            placement=chance.choice((None, None, Placement(tags=["x"]))),
        )
        if tables.assets("$G").claims.collide(name, request.subjects):
            return None
        config = stream_config.checked(request, ENGINE)
        on = chance.choice(("", "", chance.choice(sorted(self._servers))))
        return commands.CreateStream("$G", config, RULES, self._placement(), on=on, ticket=b"t")

    def _any_stream(self, tables: MetaTables) -> StreamAssignment | None:
        streams = tables.assets("$G").streams
        return streams[self._chance.choice(sorted(streams))] if streams else None

    def _update(self, tables: MetaTables) -> MetaCommand | None:
        present = self._any_stream(tables)
        if present is None:
            return None
        fields: list[dict[str, Any]] = [
            {"num_replicas": self._chance.choice((1, 2, 3, 5))},
            {"num_replicas": self._chance.choice((1, 3))},
            {"placement": Placement(tags=[self._chance.choice("xy")])},
            {"max_msgs": self._chance.randrange(1, 100)},
            {"subjects": [f"{present.name}.>", "shared.*"]},
        ]
        config = structs.replace(present.config, **self._chance.choice(fields))
        if tables.assets("$G").claims.collide(present.name, config.subjects):
            return None
        return commands.UpdateStream("$G", config, RULES, self._placement(), ticket=b"t")

    def _delete(self, tables: MetaTables) -> MetaCommand | None:
        present = self._any_stream(tables)
        return commands.DeleteStream("$G", present.name, ticket=b"t") if present is not None else None

    def _consume(self, tables: MetaTables) -> MetaCommand | None:
        present = self._any_stream(tables)
        if present is None:
            return None
        name = self._chance.choice(("", "c", "d"))
        if name and self._chance.random() < 0.3:
            return commands.DeleteConsumer("$G", present.name, name, ticket=b"t")
        asked = ApiConsumerConfig(durable_name=name, max_ack_pending=self._chance.choice((5, 6)))
        config = consumer_config.checked(asked, present.config, ENGINE)
        return commands.CreateConsumer("$G", present.name, name, config, RULES, ticket=b"t")

    def _administer(self, tables: MetaTables) -> MetaCommand | None:
        present = self._any_stream(tables)
        if present is None:
            return None
        peer = self._chance.choice(sorted(self._servers))
        return self._chance.choice(
            (
                commands.MoveStream("$G", present.name, self._placement(), peer, ticket=b"t"),
                commands.CancelMove("$G", present.name, b"t"),
                commands.RemoveFromStream("$G", present.name, peer, ticket=b"t"),
                commands.PauseConsumer("$G", present.name, "c", None, b"t"),
            )
        )


def _is_tagged(stream: StreamAssignment) -> bool:
    return stream.config.placement is not None
