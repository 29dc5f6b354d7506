"""All Raft groups of a server: one frame per tick to each other server, with the messages of every group.

A frame without messages is the heartbeat of the server: idle groups send nothing, and one frame per interval
shows that the leader of a thousand idle groups is alive. A server whose frames stop for an election timeout
counts as down, and every group is notified. A server that has restarted leads nothing, so its groups are
notified as if it had been down. Frames of its earlier starts are dropped: what they acknowledge may be lost.

A group is *active* while it has a deadline, and *touched* while it may have something to do: after a
message, a proposal, the end of a sync, a change of a server, or a tick. Only touched groups are asked: among
many active ones that do nothing, those that work do not wait for the others to say so.

Invariant: frames are accepted only from the newest known start of a server. One with an older number has an
old copy of its disk (see disk_identity.py) and gets a refusal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from penstock.raft.raft_messages import Message, ReplicaId
from penstock.raft.raft_options import RaftOptions
from penstock.raft.raft_replica import RaftReplica, Ready

GroupName: TypeAlias = str


class Frame(NamedTuple):
    """What a server sends to another one at a time. refused_boot: not 0 = the receiver's start is older than
    this one, which the sender has seen of it; the receiver's disk is an old copy."""

    sender: ReplicaId
    to: ReplicaId
    boot: int
    messages: tuple[tuple[GroupName, Message], ...] = ()
    refused_boot: int = 0


class GroupReady(NamedTuple):
    """What a group has to do. Its messages are already in the frames."""

    group: GroupName
    ready: Ready


class RaftPeer:
    """Another server. heard: when its last frame came; boot: the newest start that was seen; sent: when the
    last frame left for it."""

    __slots__ = ("boot", "heard", "is_down", "sent")

    def __init__(self, now: int) -> None:
        self.heard = now
        self.boot = 0
        self.is_down = False
        self.sent = now

    def note_heard(self, now: int, boot: int) -> None:
        self.heard, self.boot, self.is_down = now, boot, False

    def note_down(self) -> None:
        self.is_down = True

    def note_sent(self, now: int) -> None:
        self.sent = now


class RaftHost:
    """See the module. is_refused: another server has seen a newer start of this server: it must take a new
    disk id and join again."""

    def __init__(self, name: ReplicaId, boot: int, options: RaftOptions) -> None:
        self.name = name
        self.boot = boot
        self.is_refused = False
        self._options = options
        self._groups: dict[GroupName, RaftReplica] = {}
        self._peers: dict[ReplicaId, RaftPeer] = {}
        self._active: dict[GroupName, RaftReplica] = {}
        self._touched: dict[GroupName, RaftReplica] = {}  # a part of the active ones
        self._outbox: dict[ReplicaId, list[tuple[GroupName, Message]]] = defaultdict(list)
        self._refusals: list[Frame] = []

    def add(self, group: GroupName, replica: RaftReplica) -> None:
        """Adds a replica."""
        assert group not in self._groups
        self._groups[group] = self._active[group] = self._touched[group] = replica

    def remove(self, group: GroupName) -> None:
        """Removes a replica."""
        self._groups.pop(group, None)
        self._active.pop(group, None)
        self._touched.pop(group, None)

    def set_peers(self, names: Iterable[ReplicaId], now: int) -> None:
        """Sets the other servers of the cluster. New ones count as heard from now on. Groups are notified
        that the removed ones are down: otherwise the followers of an idle group would wait for a leader that
        was removed."""
        wanted = set(names) - {self.name}
        for name in sorted(self._peers.keys() - wanted):
            self._set_down(name, self._peers.pop(name), now)
        for name in sorted(wanted - self._peers.keys()):  # frames leave in this order in every process
            self._peers[name] = RaftPeer(now)
            for group in self._groups:
                self.touch(group).peer_up(name, now)

    def is_down(self, name: ReplicaId) -> bool:
        """Whether a server is known not to answer."""
        return name in self._peers and self._peers[name].is_down

    def touch(self, group: GroupName) -> RaftReplica:
        """The replica of a group, to be changed: the next ready() looks at it."""
        replica = self._active[group] = self._touched[group] = self._groups[group]
        return replica

    @property
    def touched(self) -> tuple[GroupName, ...]:
        """The groups that may have something to do now."""
        return tuple(self._touched)

    @property
    def active(self) -> tuple[GroupName, ...]:
        """The groups that are not idle."""
        return tuple(self._active)

    def heard(self, name: ReplicaId) -> int | None:
        """When the last frame of a server came; None for one that is not known."""
        return self._peers[name].heard if name in self._peers else None

    # --- input

    def receive(self, frame: Frame, now: int) -> None:
        """Processes a frame of another server."""
        if self.accept(frame, now):
            for group, message in frame.messages:
                self.step(group, message, now)

    def accept(self, frame: Frame, now: int) -> bool:
        """Processes the head of a frame. Returns whether its messages are accepted: pass them to step()."""
        assert frame.to == self.name
        peer = self._peers.get(frame.sender)
        if peer is None:
            return False  # no longer, or not yet, a server of the cluster; it sends again
        if frame.refused_boot > self.boot:
            self.is_refused = True
        if frame.boot < peer.boot:
            self._refusals.append(Frame(self.name, frame.sender, self.boot, (), peer.boot))
            return False
        if frame.boot > peer.boot > 0:
            self._set_down(frame.sender, peer, now)
        was_down = peer.is_down
        peer.note_heard(now, frame.boot)
        if was_down:
            for group in self._groups:
                self.touch(group).peer_up(frame.sender, now)
        return True

    def step(self, group: GroupName, message: Message, now: int) -> None:
        """Processes a message of an accepted frame. Drops one for an unknown group."""
        if group in self._groups and message.to == self.name:
            self.touch(group).step(message, now)

    def link_lost(self, name: ReplicaId, now: int) -> None:
        """Handles a lost connection to a server. If the server is alive, its next frame arrives before an
        election ends."""
        peer = self._peers.get(name)
        if peer is not None and not peer.is_down:
            self._set_down(name, peer, now)

    def _set_down(self, name: ReplicaId, peer: RaftPeer, now: int) -> None:
        peer.note_down()
        for group in self._groups:
            self.touch(group).peer_down(name, now)

    def tick(self, now: int) -> None:
        """Does what is due in all groups that are not idle. Call it every heartbeat interval or more
        often."""
        self.tick_peers(now)
        for group in self.active:
            self.tick_group(group, now)

    def tick_peers(self, now: int) -> None:
        """Detects servers whose last frame is an election timeout old."""
        for name, peer in self._peers.items():
            if not peer.is_down and now >= peer.heard + self._options.election_timeout_ns:
                self._set_down(name, peer, now)

    def tick_group(self, group: GroupName, now: int) -> None:
        """Does what is due in an active group."""
        if group in self._active:
            self.touch(group).tick(now)

    # --- output

    def ready(self, now: int) -> list[GroupReady]:
        """What the groups have to do. Messages that wait for the disk leave after synced()."""
        found = [(group, self.ready_of(group, now)) for group in self.touched]
        return [GroupReady(group, ready) for group, ready in found if ready is not None]

    def ready_of(self, group: GroupName, now: int) -> Ready | None:
        """What one group has to do; its messages for now are in the frames."""
        replica = self._touched.get(group)
        ready = replica.ready(now) if replica is not None else None
        if ready is not None:
            self._collect(group, ready.messages)
        if replica is not None and (ready is None or not replica.log.has_committed):
            # There is nothing more, until a message, a proposal, the end of a sync, or a change of a peer.
            del self._touched[group]
            if replica.deadline is None:
                del self._active[group]
        return ready

    def synced(self, done: Iterable[GroupReady], now: int) -> None:
        """Releases the messages that waited for the disk, which now has what these Readys contain."""
        for group, ready in done:
            if group in self._groups:
                replica = self.touch(group) if ready.needs_sync else self._groups[group]
                replica.synced(ready, now)
                self._collect(group, ready.after_sync)

    def _collect(self, group: GroupName, messages: Iterable[Message]) -> None:
        for message in messages:
            self._outbox[message.to].append((group, message))

    def take_frames(self, now: int) -> list[Frame]:
        """A frame for each server that has messages, or has not had a frame for a heartbeat interval."""
        frames, self._refusals = self._refusals, []
        for name, peer in self._peers.items():
            messages = self._outbox.pop(name, [])
            if messages or now >= peer.sent + self._options.heartbeat_interval_ns:
                peer.note_sent(now)
                frames.append(Frame(self.name, name, self.boot, tuple(messages)))
        self._outbox.clear()  # what is left is for servers that left the cluster
        return frames
