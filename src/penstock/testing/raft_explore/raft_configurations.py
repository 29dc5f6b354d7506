"""The named configurations. All states of all of them take less than two minutes."""

from __future__ import annotations

from penstock.raft.membership import ChangeKind, Membership
from penstock.testing.raft_explore.exploration import ExploredGroup

AB = Membership(("a", "b"))
ABC = Membership(("a", "b", "c"))
ABCD = Membership(("a", "b", "c", "d"))

GROW = ((ChangeKind.ADD_LEARNER, "c"), (ChangeKind.PROMOTE, "c"))
REMOVE_EACH_OTHER = ((ChangeKind.REMOVE, "b"), (ChangeKind.REMOVE, "a"))
SHRINK = ((ChangeKind.REMOVE, "b"), (ChangeKind.REMOVE, "c"))

CONFIGURATIONS = {
    one.name: one
    for one in (
        ExploredGroup("two members", AB, terms=3, proposals=2),
        ExploredGroup("slow disks and power loss", AB, crashes=1, has_instant_sync=False),
        ExploredGroup(
            "slow votes", ABC, terms=1, proposals=0, crashes=1, has_instant_sync=False, campaigners="ab"
        ),
        ExploredGroup("three members", ABC, campaigners="ab"),
        ExploredGroup("three terms", ABC, terms=3, proposals=0, campaigners="ab"),
        # Figure 8 of the Raft paper, and its next two elections.
        ExploredGroup(
            "older terms",
            ABC,
            terms=4,
            proposals=0,
            campaigners="ab",
            logs=("1", "2", ""),
            has_small_appends=True,
        ),
        ExploredGroup("three members, crash", ABC, proposals=0, crashes=1, campaigners="ab"),
        ExploredGroup("damaged log", AB, damages=1),
        ExploredGroup(
            "damaged log, lost vote", ABC, proposals=0, damages=1, knows_vote=False, campaigners="ab"
        ),
        ExploredGroup("late messages", ABC, campaigners="b", is_settled=True, removes_dead_messages=False),
        ExploredGroup("early reads", AB, proposals=0, reads=1, with_heartbeats=True),
        ExploredGroup(
            "reads", ABC, proposals=0, reads=1, with_heartbeats=True, campaigners="b", is_settled=True
        ),
        ExploredGroup("pre-votes", ABC, proposals=0, timeouts=1, campaigners="a"),
        ExploredGroup("snapshots", AB, proposals=1, compactions=1),
        ExploredGroup(
            "snapshots over other entries",
            ABC,
            terms=3,
            compactions=1,
            campaigners="a",
            logs=("1", "222", ""),
        ),
        # Entries leave with the promise that they are committed where they are written.
        ExploredGroup("written first", ABC, campaigners="ab", writes_first=True),
        ExploredGroup("written first, power loss", AB, crashes=1, has_instant_sync=False, writes_first=True),
        ExploredGroup("written first, reads", AB, reads=1, with_heartbeats=True, writes_first=True),
        ExploredGroup("growing", AB, ("c",), proposals=0, changes=GROW, is_settled=True),
        ExploredGroup("shrinking", ABC, proposals=0, changes=SHRINK, campaigners="ab", is_settled=True),
    )
}

LARGE = {
    one.name: one
    for one in (
        # The erratum of Ongaro's thesis. It has more states than a search can visit in a minute.
        ExploredGroup(
            "shrinking from four",
            ABCD,
            terms=3,
            proposals=0,
            changes=REMOVE_EACH_OTHER,
            campaigners="ab",
            is_settled=True,
        ),
        ExploredGroup(
            "written first, damaged log",
            ABC,
            proposals=2,
            damages=1,
            campaigners="c",
            is_settled=True,
            writes_first=True,
        ),
    )
}
LARGE_STATES = 100_000
"""So many states of a large configuration are visited, those nearest to the start."""
