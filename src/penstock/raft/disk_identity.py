"""Which disk a server has, and how peers notice that it is another one, or an old copy.

Consensus counts on what a member once acknowledged. A server with a wiped disk does not have that any more,
so it must not answer in the name of the one that had. The id of a replica therefore contains a random id of
the disk, made when the store was created: after a wipe the server is a new member, which joins as a learner,
and the old id is removed. A disk restored from a backup has the old id; it shows by the number of starts,
which each start increments on disk before the server sends anything. A peer that has seen a larger number
refuses the server, which must then make itself a new disk id.

Rejected: an empty log as the sign of a wiped disk (a truncated one is not empty).
"""

from __future__ import annotations

import json
from enum import Enum
from typing import NamedTuple

from penstock.raft.raft_messages import ReplicaId


class DiskIdentity(NamedTuple):
    """boot: the number of starts with this disk."""

    cluster_name: str
    server_name: str
    disk_id: str
    boot: int

    @property
    def replica_id(self) -> ReplicaId:
        """The member that this server with this disk is, in every group."""
        return f"{self.server_name}.{self.disk_id}"

    def encode(self) -> bytes:
        return json.dumps(self._asdict()).encode()

    @classmethod
    def decode(cls, data: bytes) -> DiskIdentity:
        """Raises ValueError."""
        fields = json.loads(data)
        if not isinstance(fields, dict) or {name: type(value) for name, value in fields.items()} != {
            "cluster_name": str, "server_name": str, "disk_id": str, "boot": int,
        }:  # fmt: skip
            raise ValueError(f"no disk identity: {data[:80]!r}")
        return cls(**fields)


class IdentityProblem(Enum):
    """Why a server must not use a disk as a member."""

    OTHER_CLUSTER = "the disk belongs to another cluster"
    OTHER_SERVER = "the disk belongs to another server"


def start_with(
    stored: DiskIdentity | None, cluster_name: str, server_name: str, new_disk_id: str
) -> DiskIdentity | IdentityProblem:
    """The identity of this start. It must be on disk before the server sends anything. `stored`: what the
    disk has, None when it is empty; `new_disk_id`: random."""
    if stored is None:
        return DiskIdentity(cluster_name, server_name, new_disk_id, 1)
    if stored.cluster_name != cluster_name:
        return IdentityProblem.OTHER_CLUSTER
    if stored.server_name != server_name:
        return IdentityProblem.OTHER_SERVER
    return stored._replace(boot=stored.boot + 1)
