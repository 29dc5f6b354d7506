"""Bugs planted in the meta state machine and in what follows from it: each with a seed that finds it, and
the rules of the simulation that may break."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest
from msgspec import structs

from penstock.jetstream.meta import (
    consumer_assigning,
    membership_steps,
    peer_assigning,
    placement,
    stream_assigning,
)
from penstock.jetstream.meta import meta_tables as tables
from penstock.jetstream.meta.assignments import StreamAssignment
from penstock.jetstream.meta.membership_steps import GroupView
from penstock.jetstream.meta.meta_tables import MetaChanges, MetaTables

Plant = Callable[[pytest.MonkeyPatch], None]


def placement_takes_equal_servers_as_the_dictionary_has_them(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(placement, "sorted", lambda offers, key=None: list(offers), raising=False)
    rank = placement._rank
    patch.setattr(placement, "_rank", lambda *arguments: rank(*arguments)[:-2])


def commands_read_the_wall_clock(patch: pytest.MonkeyPatch) -> None:
    begin = MetaTables.begin
    patch.setattr(MetaTables, "begin", lambda self, index, now: begin(self, index, time.time_ns() + 2**61))


def the_time_may_run_backwards_after_a_restart(patch: pytest.MonkeyPatch) -> None:
    fill = MetaTables._fill

    def forgets(self: MetaTables, snapshot: tables.MetaSnapshot) -> None:
        fill(self, structs.replace(snapshot, now=0))

    patch.setattr(MetaTables, "_fill", forgets)


def placement_draws_lots(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(placement, "tie_break", lambda salt, peer: random.getrandbits(32))


def subjects_are_compared_before_the_commit_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(stream_assigning, "_check_overlap", lambda *arguments: None)


def limits_are_compared_before_the_commit_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(stream_assigning, "check_limits", lambda *arguments: None)


def names_of_consumers_are_random(patch: pytest.MonkeyPatch) -> None:
    def drawn(*arguments: object) -> str:
        return f"{random.getrandbits(40):x}"

    patch.setattr(consumer_assigning, "_unused_name", drawn)


def claims_are_not_restored(patch: pytest.MonkeyPatch) -> None:
    fill = MetaTables._fill

    def forgets(self: MetaTables, snapshot: tables.MetaSnapshot) -> None:
        fill(self, snapshot)
        for assets in self.accounts.values():
            for name in assets.streams:
                assets.claims.release(name)

    patch.setattr(MetaTables, "_fill", forgets)


def deleted_streams_leave_no_tombstone(patch: pytest.MonkeyPatch) -> None:
    def forgets(known: MetaTables, stream: StreamAssignment) -> MetaChanges:
        return MetaChanges(dropped_streams=[(stream.account, stream.name)])

    patch.setattr(stream_assigning, "removal_of", forgets)
    patch.setattr(peer_assigning, "removal_of", forgets)


def members_leave_before_others_have_joined(patch: pytest.MonkeyPatch) -> None:
    joining, leaving = membership_steps._joining, membership_steps._leaving

    def hasty(view: GroupView, target: object) -> object:
        return leaving(view, target) or joining(view, target)  # type: ignore[arg-type]

    patch.setattr(membership_steps, "_joining", hasty)


PLANTED: list[tuple[Plant, int, set[str]]] = [
    (placement_takes_equal_servers_as_the_dictionary_has_them, 1, {"equal states"}),
    (commands_read_the_wall_clock, 1, {"equal states"}),
    (the_time_may_run_backwards_after_a_restart, 1, {"equal states", "equal effects"}),
    (placement_draws_lots, 1, {"equal states"}),
    (subjects_are_compared_before_the_commit_only, 1, {"subjects"}),
    (limits_are_compared_before_the_commit_only, 1, {"limits"}),
    (names_of_consumers_are_random, 1, {"equal states", "equal effects"}),
    (claims_are_not_restored, 1, {"equal states", "equal effects", "subjects"}),
    (deleted_streams_leave_no_tombstone, 1, {"quarantine"}),
    (members_leave_before_others_have_joined, 1, {"membership", "rest"}),
]
