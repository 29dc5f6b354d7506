"""What the leader of a group does next, so that the group gets the members that its assignment wants.

One change at a time, and each only when the one before is committed. Servers join as learners, get the
data, and are promoted; when all that are wanted are voters, the others are removed: first those that are
offline, the leader last, after it has handed its office to a wanted member. The plan is made again after
each change, from what there is: a leader that fails leaves nothing behind that its successor needs.

Invariants: no step takes the majority of its voters from a group; the group never has fewer voters than the
smaller one of its present and its wanted membership.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum

from msgspec import Struct

from penstock.jetstream.meta.assignments import StreamAssignment
from penstock.jetstream.meta.meta_commands import ChoosePeers, SettleMembers
from penstock.jetstream.meta.meta_tables import MetaTables
from penstock.jetstream.meta.placement import peers_to_keep
from penstock.protocol.api import DesiredClusterStatus
from penstock.raft.membership import ChangeKind


class GroupView(Struct, frozen=True, kw_only=True):
    """A group as its leader sees it. Names are those of members (PeerRecord.member).

    caught_up: learners that have the log. online: members and other servers that answer, the leader among
    them. is_changing: a change of the membership is not committed yet. lags: operations that members are
    behind.
    """

    leader: str
    voters: Sequence[str]
    learners: Sequence[str] = ()
    caught_up: Collection[str] = ()
    online: Collection[str] = ()
    is_changing: bool = False
    lags: dict[str, int] = {}


class StatusType(StrEnum):
    """What must happen for a group to come closer to what is wanted, as infos show it."""

    META = "meta"
    MEMBERSHIP = "membership"
    CATCHUP = "catchup"
    QUORUM = "quorum"
    BLOCKED = "blocked"


class ChangeMember(Struct, frozen=True):
    """Propose this change of the group's membership."""

    kind: ChangeKind
    member: str


class TransferLeadership(Struct, frozen=True):
    """Hand the leadership to this member: the present leader is to be removed."""

    member: str


class AwaitProgress(Struct, frozen=True):
    """Nothing to do now."""

    status: DesiredClusterStatus


Step = ChangeMember | TransferLeadership | AwaitProgress | SettleMembers | ChoosePeers


def next_step(
    tables: MetaTables, stream: StreamAssignment, view: GroupView, *, is_current: bool
) -> Step | None:
    """What the leader of a stream's group does next; None when the group is as wanted.

    is_current: whether the meta state has everything that was committed when the leader asked, after it was
    elected. Otherwise it could add a server that the cluster does not want any more, after its predecessor
    has reported that the group is as wanted.

    Call it after each committed change, after changes of the meta state, and when members come, go or catch
    up.
    """
    if not is_current:
        return _wait(StatusType.META, "waiting for the meta group")
    desired = stream.desired
    if desired is not None and desired.shrink_to:
        return _choice(tables, stream, view)
    target = tuple(record.member for peer in stream.target if (record := tables.peers.get(peer)) is not None)
    if len(target) < len(stream.target):
        return _wait(StatusType.META, "a wanted server is not known yet")
    step = next_change(view, target)
    if step is not None:
        return step
    if desired is not None:
        return SettleMembers(stream.account, stream.name, stream.incarnation, stream.target, tables.applied)
    return None


def next_change(
    view: GroupView, target: Sequence[str]
) -> ChangeMember | TransferLeadership | AwaitProgress | None:
    """The next change towards exactly these voters and no learners; None when they are reached."""
    if view.is_changing:
        return _wait(StatusType.MEMBERSHIP, "waiting for a membership change to commit")
    return _joining(view, target) or _leaving(view, target)


def _joining(view: GroupView, target: Sequence[str]) -> ChangeMember | AwaitProgress | None:
    """Makes the wanted members voters; None when all are."""
    learning = [one for one in target if one in view.learners]
    for one in learning:
        if one in view.caught_up and one in view.online:
            if not _has_quorum(view, [*view.voters, one]):
                return _wait(StatusType.QUORUM, f"waiting for a majority to promote {one}")
            return ChangeMember(ChangeKind.PROMOTE, one)
    for one in learning:
        if one in view.online:
            return _wait(StatusType.CATCHUP, f"waiting for {one} to catch up")
    missing = [one for one in target if one not in view.voters and one not in view.learners]
    for one in missing:
        if one in view.online:
            return ChangeMember(ChangeKind.ADD_LEARNER, one)
    if missing or learning:
        return _wait(StatusType.BLOCKED, f"waiting for {(missing or learning)[0]} to come online")
    return None


def _leaving(
    view: GroupView, target: Sequence[str]
) -> ChangeMember | TransferLeadership | AwaitProgress | None:
    """Removes the members that are not wanted; None when there are none. All wanted ones are voters."""
    for one in view.learners:
        return ChangeMember(ChangeKind.REMOVE, one)
    unwanted = [one for one in view.voters if one not in target]
    unwanted.sort(key=lambda one: (one == view.leader, one in view.online, one))
    if not unwanted:
        return None
    one = unwanted[0]
    left = [voter for voter in view.voters if voter != one]
    if not _has_quorum(view, left):
        return _wait(StatusType.QUORUM, f"waiting for a majority of the members without {one}")
    if one != view.leader:
        return ChangeMember(ChangeKind.REMOVE, one)
    heirs = [voter for voter in left if voter in view.online]
    heirs.sort(key=lambda voter: (view.lags.get(voter, 0), voter))
    return TransferLeadership(heirs[0])


def _has_quorum(view: GroupView, voters: Sequence[str]) -> bool:
    return 2 * sum(one in view.online for one in voters) > len(voters)


def _choice(tables: MetaTables, stream: StreamAssignment, view: GroupView) -> ChoosePeers:
    """Which servers stay when a stream is scaled down: voters, whose lag is known, before others."""
    desired = stream.desired
    assert desired is not None
    by_member = {
        record.member: peer for peer in desired.peers if (record := tables.peers.get(peer)) is not None
    }
    lags = {member: view.lags.get(member, 0) for member in view.voters}
    chosen = peers_to_keep(view.leader, by_member, lags, view.online, desired.shrink_to)
    peers = tuple(by_member[member] for member in chosen)
    return ChoosePeers(stream.account, stream.name, stream.incarnation, peers)


def _wait(kind: StatusType, description: str) -> AwaitProgress:
    return AwaitProgress(DesiredClusterStatus(description=description, type=kind.value))
