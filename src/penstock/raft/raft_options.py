"""Options of consensus, the same for all groups of a server."""

from __future__ import annotations

from dataclasses import dataclass

MILLISECOND_NS = 1_000_000


@dataclass(frozen=True)
class RaftOptions:
    """Times in ns, sizes in bytes.

    election_timeout_ns: without a leader for so long, plus a random part of election_jitter_ns, a voter
    stands for election. For so long after it heard of a leader, it grants no vote.
    heartbeat_interval_ns: how often a leader with an active group sends heartbeats.
    append_bytes_max: entries in one message. inflight_bytes_max: entries sent to one member and not
    acknowledged. uncommitted_bytes_max: proposals above it are refused.
    committed_bytes_max: committed entries in one Ready.
    quiesce_after_ns: a group without proposals for so long stops its heartbeats; 0: never.
    write_first_bytes_max: entries that together have at most so many bytes leave after the leader's own disk
    has them, and no message about their commit follows (leadership.py); 0: they leave at once. For disks
    that take microseconds.
    """

    election_timeout_ns: int = 1000 * MILLISECOND_NS
    election_jitter_ns: int = 500 * MILLISECOND_NS
    heartbeat_interval_ns: int = 200 * MILLISECOND_NS
    append_bytes_max: int = 1 << 20
    inflight_bytes_max: int = 16 << 20
    uncommitted_bytes_max: int = 64 << 20
    committed_bytes_max: int = 1 << 20
    quiesce_after_ns: int = 2000 * MILLISECOND_NS
    write_first_bytes_max: int = 0

    def __post_init__(self) -> None:
        assert 0 < self.heartbeat_interval_ns < self.election_timeout_ns
        assert self.append_bytes_max <= self.inflight_bytes_max
