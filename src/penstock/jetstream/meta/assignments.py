"""The values of the meta state: peers, and the assignments of streams and consumers to them.

All are frozen: a change makes another value. They are MessagePack arrays in commands and snapshots; a field
is added at the end, with a default.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from penstock.protocol.api import (
    ApiConsumerConfig,
    ApiStreamConfig,
    Placement,
    RetentionPolicy,
    StorageType,
)


class PeerStatus(StrEnum):
    """MEMBER takes streams. EVACUATED serves, gets no new streams, and its streams move away, until its next
    start. REMOVING: its streams move away and it leaves the meta group."""

    MEMBER = "member"
    EVACUATED = "evacuated"
    REMOVING = "removing"


class PeerRecord(Struct, frozen=True, array_like=True):
    """A server of the cluster.

    peer: its id, the hash of its name. disk: the random id of its disk; boot: the number of its start. With
    another disk it is another member of its groups. max_memory, max_storage: bytes that it offers; -1: no
    limit. online, current, used_*: as the meta leader saw them last; current: it has applied what is
    committed.
    """

    peer: str
    name: str
    cluster: str
    tags: tuple[str, ...] = ()
    domain: str = ""
    disk: str = ""
    boot: int = 0
    max_memory: int = -1
    max_storage: int = -1
    status: PeerStatus = PeerStatus.MEMBER
    online: bool = True
    current: bool = True
    used_memory: int = 0
    used_storage: int = 0

    @property
    def member(self) -> str:
        """Its name as a member of consensus groups, as `raft.disk_identity` makes it."""
        return f"{self.name}.{self.disk}"


class GroupAssignment(Struct, frozen=True, array_like=True):
    """Which servers replicate a stream. preferred: who stands for election first in a new group, or "".
    founders: the
    members (PeerRecord.member) that begin it: a server that has lost its disk since is none of them."""

    name: str
    cluster: str
    peers: tuple[str, ...]
    preferred: str = ""
    founders: tuple[str, ...] = ()


class GroupOrigin(Struct, frozen=True, array_like=True):
    """What a cancelled change restores."""

    replicas: int
    placement: Placement | None
    peers: tuple[str, ...]
    cluster: str


class DesiredGroup(Struct, frozen=True, array_like=True):
    """The servers that a group is to have.

    created: ns, when it was wanted first. peers: the target; while `shrink_to` is not 0, the members of which
    the group's leader chooses so many (ChoosePeers). origin: what a cancellation restores, None when there is
    nothing to cancel, as after a server was removed. is_move: it changes the placement; then no other change
    may begin. also: servers that were wanted before, and that the group may have added.
    """

    created: int
    cluster: str
    peers: tuple[str, ...]
    origin: GroupOrigin | None = None
    is_move: bool = False
    shrink_to: int = 0
    is_cancelled: bool = False
    also: tuple[str, ...] = ()


class StreamAssignment(Struct, frozen=True, array_like=True):
    """A stream of the cluster.

    created: ns. incarnation: index of the command that created it. group: its members, as its leader reported
    them last. desired: the change that is in progress. leaving: servers that had it and have not confirmed
    that their files are gone. version: index of the last command that changed it. adopted:
    cluster id and incarnation under which its only server stored it before, for a stream that was adopted.
    """

    account: str
    name: str
    config: ApiStreamConfig
    created: int
    incarnation: int
    group: GroupAssignment
    desired: DesiredGroup | None = None
    leaving: tuple[str, ...] = ()
    version: int = 0
    adopted: tuple[str, int] | None = None

    @property
    def hosts(self) -> tuple[str, ...]:
        """The servers that run it: its members, then those that are or were to become members."""
        if self.desired is None:
            return self.group.peers
        return merged(self.group.peers, self.desired.peers, self.desired.also)

    @property
    def target(self) -> tuple[str, ...]:
        """The servers that are to have it when no change is in progress any more."""
        return self.group.peers if self.desired is None else self.desired.peers

    @property
    def is_short(self) -> bool:
        """Whether it will have fewer servers than replicas: some were removed and there was no other."""
        return len(self.target) < self.config.num_replicas


class ConsumerAssignment(Struct, frozen=True, array_like=True):
    """A consumer of an assigned stream. It lives in the stream's group; raft_group is the name in infos."""

    account: str
    stream: str
    name: str
    config: ApiConsumerConfig
    created: int
    incarnation: int
    raft_group: str
    version: int = 0


class Tombstone(Struct, frozen=True, array_like=True):
    """A stream that was deleted on request, by the command with index `version`. peers: servers whose files
    of it are not confirmed gone. Without it, a server that was down could not distinguish a deleted stream
    from one that the cluster has lost."""

    account: str
    name: str
    incarnation: int
    peers: tuple[str, ...]
    version: int


def consumer_replicas(config: ApiConsumerConfig, stream: ApiStreamConfig) -> int:
    """The replicas of a consumer as infos and limits count them: as configured, those of its stream, or one
    for an ephemeral of a stream with limits retention."""
    if stream.retention is not RetentionPolicy.LIMITS:
        return stream.num_replicas
    if config.num_replicas > 0:
        return config.num_replicas
    return stream.num_replicas if config.durable_name else 1


def group_name(prefix: str, replicas: int, storage: StorageType, tail: str) -> str:
    """`S-R3F-abcdefgh` for streams, `C-R1M-abcdefgh` for consumers."""
    letter = "M" if storage is StorageType.MEMORY else "F"
    return f"{prefix}-R{replicas}{letter}-{tail}"


def merged(*groups: tuple[str, ...]) -> tuple[str, ...]:
    """The peers of all groups, each once, in order."""
    return tuple(dict.fromkeys(peer for group in groups for peer in group))
