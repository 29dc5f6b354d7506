"""Administration of a cluster: bodies of step-down, removal, evacuation and move requests, and the cluster
section of `/jsz`.
"""

from __future__ import annotations

import msgspec

from penstock.protocol.api.base import TYPE_PREFIX, DurationNs, Rfc3339, always
from penstock.protocol.api.streams import ApiStreamInfo, PeerInfo, Placement


class LeaderStepDownRequest(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Optional body of META, STREAM and CONSUMER.LEADER.STEPDOWN."""

    placement: Placement | None = None


class PeerRemoveRequest(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Body of PEER.REMOVE and PEER.EVACUATE of streams and consumers. peer: a server name or a peer id."""

    peer: str = ""


class ServerRemoveRequest(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Body of SERVER.REMOVE and SERVER.EVACUATE. peer: a server name; peer_id takes precedence."""

    peer: str = ""
    peer_id: str = ""


class StreamMoveRequest(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Body of ACCOUNT.STREAM.MOVE. server: the member to move away from."""

    server: str = ""
    cluster: str = ""
    domain: str = ""
    tags: list[str] = []


class StreamCancelMoveResponse(ApiStreamInfo, omit_defaults=True, kw_only=True):
    type: str = always(TYPE_PREFIX + "stream_cancel_move_response")


class AccountPurgeResponse(msgspec.Struct, omit_defaults=True, kw_only=True):
    type: str = always(TYPE_PREFIX + "account_purge_response")
    initiated: bool = False


class MetaSnapshotInfo(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The log of the meta group: what is not yet in a snapshot, and the last one."""

    pending_entries: int = always(0)
    pending_size: int = always(0)
    last_time: Rfc3339 | None = None
    last_duration: DurationNs = 0


class MetaClusterInfo(msgspec.Struct, omit_defaults=True, kw_only=True):
    """`meta_cluster` of `/jsz`. peer: the id of the leader. replicas: all members but the server that
    answers."""

    name: str = ""
    leader: str = ""
    peer: str = ""
    replicas: list[PeerInfo] = []
    cluster_size: int = always(0)
    quorum_needed: int = always(0)
    rescue: bool = False
    pending: int = always(0)
    pending_requests: int = always(0)
    pending_infos: int = always(0)
    snapshot: MetaSnapshotInfo = always(MetaSnapshotInfo())
