"""Which stream groups a server runs, and what those that it leads become."""

from __future__ import annotations

import pytest

from penstock.errors import MisuseError, ServerError, StoreError
from penstock.jetstream.meta import meta_commands as commands
from penstock.jetstream.meta.desired_state import StoredStream
from penstock.jetstream.meta.meta_commands import ConfirmRemoved, SettleMembers
from penstock.jetstream.meta.meta_effects import AssetAction
from penstock.jetstream.meta.meta_machine import MetaMachine
from penstock.jetstream.standalone import StandaloneStream
from penstock.raft.membership import ChangeKind
from penstock.server.replicated.stream_supervisor import (
    REVIEW_NS,
    STEP_NS,
    STEPS_REVIEW_NS,
)
from tests.support.engine import START_NS
from tests.support.meta_groups import MetaGroup, stream_config_of
from tests.support.supervised_groups import ACCOUNT, CLUSTER_ID, ListedGroup, Supervised, stored_as

pytestmark = pytest.mark.feature("cluster.administration")


# --- starting -------------------------------------------------------------------------------------


def test_nothing_happens_before_this_server_is_in_the_meta_group() -> None:
    it = Supervised()
    it.create("S")
    it.meta.group = None
    assert it.tick() == []
    assert (it.groups.ticks, it.supervisor.has_work) == (0, False), "there is nothing that it could do"
    it.meta.group = object()
    assert it.supervisor.has_work
    assert it.tick() == [("open", "S")]
    assert (it.groups.ticks, it.supervisor.has_work) == (1, False)


def test_nothing_happens_before_the_cluster_is_founded() -> None:
    it = Supervised(machine=MetaMachine())
    it.groups.unclaimed.append(
        StoredStream(account=ACCOUNT, name="S", cluster_id="", incarnation=1, group="")
    )
    assert it.tick() == []
    assert (it.groups.ticks, it.meta.reads, it.groups.ends) == (0, [], [])
    assert not it.supervisor.has_work, "it waits for the others"


def test_nothing_new_is_started_before_the_meta_state_was_current_once() -> None:
    it = Supervised()
    it.meta.was_current = False
    it.create("GONE")
    it.hear("GONE")
    it.groups.unclaimed.append(stored_as(it.create("KEPT"), group=""))
    assert it.tick() == [("open", "KEPT")]
    it.hear("GONE")
    assert it.tick(STEP_NS) == []
    it.delete("GONE")
    it.create("NEW")
    it.hear("NEW")
    assert it.tick() == []
    it.meta.answer_reads()
    assert it.groups.taken_calls() == [("open", "NEW")]
    it.create("NEWER")
    it.hear("NEWER")
    assert it.tick() == [("open", "NEWER")]


def test_a_created_stream_is_started_in_the_next_tick_and_the_others_are_not_looked_at() -> None:
    it = Supervised()
    it.tick()
    it.create("S")
    it.create("T")
    it.hear("T")
    assert it.supervisor.has_work
    assert it.tick() == [("open", "T")]
    assert not it.supervisor.has_work
    assert it.groups.members["T"] == ["a.d"]


def test_a_stream_whose_creation_was_missed_starts_at_the_next_review() -> None:
    it = Supervised()
    it.tick()
    it.create("S")
    assert it.tick(REVIEW_NS - 1) == []
    assert it.tick(1) == [("open", "S")]
    assert it.tick(REVIEW_NS) == []


def test_a_stream_of_other_servers_is_not_started() -> None:
    it = Supervised(2)
    it.tick()
    it.create("S", on="B")
    it.hear("S")
    assert it.tick() == []
    assert it.tick(REVIEW_NS) == []


def test_a_stream_that_is_gone_when_it_is_looked_at_is_not_started() -> None:
    it = Supervised()
    it.tick()
    it.create("S")
    it.hear("S")
    it.delete("S")
    assert it.tick() == []


@pytest.mark.parametrize("action", [AssetAction.UPDATED, AssetAction.MOVED, AssetAction.REMOVED])
def test_a_change_has_everything_compared(action: AssetAction) -> None:
    it = Supervised()
    it.tick()
    it.create("S")
    it.hear("other", action)
    assert it.supervisor.has_work
    assert it.tick() == [("open", "S")]


def test_a_stream_that_is_there_as_requested_needs_no_review() -> None:
    it = Supervised()
    it.tick()
    it.create("S")
    it.hear("S", AssetAction.PRESENT)
    assert not it.supervisor.has_work
    assert it.tick() == []


def test_a_stream_that_is_created_again_starts_when_the_earlier_one_is_removed() -> None:
    it = Supervised()
    it.create("S")
    assert it.tick() == [("open", "S")]
    it.delete("S")
    it.create("S")
    it.hear("S")
    assert it.tick() == [("close and remove", "S"), ("open", "S")]
    assert it.groups.groups[ACCOUNT, "S"].assignment == it.cluster.stream("S")


def test_a_stream_on_disk_with_the_name_of_a_new_one_is_removed_before_that_one_starts() -> None:
    it = Supervised()
    it.tick()
    it.groups.unclaimed.append(stored_as(it.create("S"), group=""))
    it.delete("S")
    it.create("S")
    it.hear("S")
    assert it.tick() == [("remove", "S"), ("open", "S")]


# --- failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [StoreError("a"), MisuseError("b"), OSError("c"), ServerError("d")])
def test_a_stream_that_cannot_be_started_says_why_once_and_is_tried_again(error: Exception) -> None:
    it = Supervised()
    it.create("S")
    it.create("T")
    it.groups.errors["S"] = error
    for _ in range(3):
        assert ("open", "S") in it.tick(REVIEW_NS)
    assert it.supervisor.failures == {(ACCOUNT, "S"): str(error)}
    assert it.errors() == [f"stream 'S' cannot be started on this server: {error}"]
    assert list(it.groups.groups) == [(ACCOUNT, "T")]
    it.groups.errors["S"] = StoreError("another reason")
    it.tick(REVIEW_NS)
    assert it.errors() == ["stream 'S' cannot be started on this server: another reason"]
    it.groups.errors.clear()
    it.tick(REVIEW_NS)
    assert (it.supervisor.failures, (ACCOUNT, "S") in it.groups.groups) == ({}, True)


def test_an_internal_error_at_the_start_of_a_new_stream_stops_no_other(
    noted_faults: list[BaseException],
) -> None:
    it = Supervised()
    it.tick()
    for name in ("S", "T"):
        it.create(name)
        it.hear(name)
    it.groups.errors["S"] = ZeroDivisionError()
    assert ("open", "T") in it.tick()
    assert list(it.groups.groups) == [(ACCOUNT, "T")]
    assert "the server's log has it as fault" in it.supervisor.failures[ACCOUNT, "S"]
    assert noted_faults == [it.groups.errors["S"]]
    noted_faults.clear()
    it.groups.errors.clear()
    it.tick(REVIEW_NS)
    assert (it.supervisor.failures, (ACCOUNT, "S") in it.groups.groups) == ({}, True)


def test_an_unexpected_exception_at_one_stream_does_not_keep_the_others_from_starting(
    noted_faults: list[BaseException],
) -> None:
    it = Supervised()
    it.create("S")
    it.create("T")
    error = it.groups.errors["S"] = ValueError("unforeseen")
    assert it.tick() == [("open", "S"), ("open", "T")]
    assert list(it.groups.groups) == [(ACCOUNT, "T")]
    assert noted_faults == [error]
    noted_faults.clear()


# --- removing -------------------------------------------------------------------------------------


def test_a_deleted_stream_is_removed_at_once_without_a_current_meta_state() -> None:
    it = Supervised()
    it.create("S")
    it.tick()
    it.delete("S")
    it.hear("S", AssetAction.REMOVED)
    it.meta.takes = False
    assert it.tick() == [("close and remove", "S")]
    assert ("INF", "removing stream 'S': the stream was deleted") in it.lines


def test_the_cluster_learns_that_the_files_are_gone_when_the_meta_state_is_current() -> None:
    it = Supervised()
    incarnation = it.create("S").incarnation
    it.tick()
    it.delete("S")
    it.hear("S", AssetAction.REMOVED)
    it.tick()
    it.groups.end()
    assert it.supervisor.has_work, "files that are gone have everything compared"
    it.meta.answer_reads()
    assert it.meta.submitted == [ConfirmRemoved("A", (incarnation,), it.cluster.machine.tables.applied)]


def test_a_stream_that_moved_away_stops_first_and_its_files_go_after_another_look() -> None:
    it = Supervised(2)
    it.create("S", on="A")
    it.tick()
    it.move_away("S")
    it.hear("S", AssetAction.MOVED)
    assert it.tick() == [], "an old meta state decides nothing"
    assert it.meta.answer_reads() == 1
    assert it.groups.taken_calls() == [("close", "S")]
    it.groups.end()
    assert it.tick(STEP_NS) == []
    it.meta.answer_reads()
    assert it.groups.taken_calls() == [("remove", "S")]
    assert ("INF", "removing stream 'S': the stream has moved to other servers") in it.lines
    assert it.meta.submitted == []
    it.groups.end()
    it.tick(STEP_NS)
    it.meta.answer_reads()
    [confirmed] = it.meta.submitted
    assert isinstance(confirmed, ConfirmRemoved)


def test_a_stream_that_comes_back_while_it_stops_loses_nothing() -> None:
    it = Supervised(2)
    it.create("S", on="A")
    it.tick()
    it.move_away("S")
    it.tick(REVIEW_NS)
    it.meta.answer_reads()
    assert it.groups.taken_calls() == [("close", "S")]
    it.cluster.apply(commands.RemoveFromStream(ACCOUNT, "S", "b"))
    assert "A" in it.cluster.stream("S").hosts
    it.groups.end()
    assert it.tick(STEP_NS) == [("open", "S")]
    it.meta.answer_reads()
    assert it.groups.taken_calls() == []


def test_files_of_a_stream_that_never_started_here_go_at_the_second_look() -> None:
    it = Supervised(2)
    it.create("S", on="A")
    it.move_away("S")
    it.groups.unclaimed.append(stored_as(it.cluster.stream("S"), group=""))
    it.tick()
    it.meta.answer_reads()
    assert it.groups.taken_calls() == []
    assert it.supervisor.has_work
    it.tick(STEP_NS)
    it.meta.answer_reads()
    assert it.groups.taken_calls() == [("remove", "S")]


def test_the_meta_group_is_asked_again_soon_when_it_does_not_take_the_question() -> None:
    it = Supervised(2)
    it.create("S", on="A")
    it.tick()
    it.move_away("S")
    it.meta.takes = False
    it.tick(REVIEW_NS)
    it.meta.takes = True
    it.tick(STEP_NS - 1)
    assert it.meta.reads == []
    it.tick(1)
    assert len(it.meta.reads) == 1


def test_changes_in_a_row_ask_the_meta_group_once_within_a_step() -> None:
    it = Supervised(2)
    it.create("S", on="A")
    it.tick()
    it.move_away("S")
    for _ in range(5):
        it.supervisor.review()
        it.tick(STEP_NS // 10)
    assert len(it.meta.reads) == 1
    it.tick(STEP_NS)
    assert len(it.meta.reads) == 2


# --- what the meta state does not know --------------------------------------------------------------


@pytest.mark.parametrize(
    ("cluster_id", "reason"),
    [
        ("", "the stream was stored without a cluster: adopt or remove it"),
        ("other", "the stream belongs to cluster other: adopt or remove it"),
        (CLUSTER_ID, "the cluster does not know the stream and did not delete it: adopt or remove it"),
    ],
)
def test_a_stream_that_the_cluster_does_not_know_is_set_aside_with_its_files(
    cluster_id: str, reason: str
) -> None:
    it = Supervised()
    stored = StoredStream(account=ACCOUNT, name="S", cluster_id=cluster_id, incarnation=99, group="")
    it.groups.unclaimed.append(stored)
    it.tick()
    assert it.supervisor.quarantined == {}, "the meta state may be old"
    it.meta.answer_reads()
    assert it.supervisor.quarantined == {stored: reason}
    assert it.errors() == [f"stream 'S' of account '$G' is set aside: {reason}"]
    assert (it.groups.taken_calls(), it.groups.unclaimed) == ([], [stored])


def test_an_open_stream_that_the_cluster_does_not_know_stops_and_keeps_its_files() -> None:
    it, other = Supervised(), MetaGroup(1)
    other.create("X", 1)
    other.create("S", 1)
    it.groups.add(ListedGroup(other.stream("S")))
    it.tick()
    it.meta.answer_reads()
    assert it.groups.taken_calls() == [("close", "S")]
    assert [one.name for one in it.supervisor.quarantined] == ["S"]


def test_a_stream_that_stays_set_aside_is_logged_once() -> None:
    it = Supervised()
    stored = StoredStream(account=ACCOUNT, name="S", cluster_id="other", incarnation=99, group="")
    it.groups.unclaimed.append(stored)
    for _ in range(3):
        it.tick(REVIEW_NS)
        it.meta.answer_reads()
    assert len(it.errors()) == 1


def test_a_stream_is_set_aside_no_more_when_its_files_are_gone() -> None:
    it = Supervised()
    known = StoredStream(account=ACCOUNT, name="S", cluster_id="other", incarnation=99, group="")
    another = StoredStream(account=ACCOUNT, name="T", cluster_id="other", incarnation=98, group="")
    it.groups.unclaimed += [known, another]
    it.tick()
    it.meta.answer_reads()
    assert set(it.supervisor.quarantined) == {known, another}
    it.groups.unclaimed.remove(known)
    it.tick(REVIEW_NS)
    it.meta.answer_reads()
    assert set(it.supervisor.quarantined) == {another}


# --- adoption -------------------------------------------------------------------------------------


def with_standalone(created: int = START_NS) -> Supervised:
    """A stream that was stored here without a cluster, and that the cluster has adopted."""
    it = Supervised()
    config = stream_config_of("S", 1)
    it.engine.offline["S"] = "stored without a cluster"
    it.engine.standalone["S"] = StandaloneStream(config, created, ())
    it.cluster.apply(commands.AdoptStream(ACCOUNT, config, START_NS, "A", "", START_NS))
    return it


def test_an_adopted_stream_starts_when_its_first_state_is_on_disk() -> None:
    it = with_standalone()
    assert it.tick() == [("adopt", "S")]
    assert it.tick(REVIEW_NS) == [("adopt", "S")]  # the groups know that they are at it
    it.groups.prepared.add("S")
    it.groups.adopting[0][0]()
    assert it.supervisor.has_work
    assert it.tick() == [("open", "S")]
    assert (it.supervisor.failures, it.errors()) == ({}, [])


def test_another_stream_of_the_name_that_was_stored_without_a_cluster_is_not_overwritten() -> None:
    it = with_standalone(START_NS + 1)
    assert it.tick() == []
    assert it.supervisor.failures == {(ACCOUNT, "S"): "stored without a cluster"}
    assert it.errors() == ["stream 'S' cannot be started on this server: stored without a cluster"]


@pytest.mark.parametrize(
    ("error", "text"),
    [(StoreError("no space"), "no space"), (OSError("gone"), "gone"), (ValueError("x"), "ValueError('x')")],
)
def test_an_adoption_that_fails_says_why_once_and_is_tried_again(error: Exception, text: str) -> None:
    it = with_standalone()
    for _ in range(3):
        assert it.tick(REVIEW_NS) == [("adopt", "S")]
        it.groups.adopting[-1][1](error)
    assert it.supervisor.failures == {(ACCOUNT, "S"): text}
    assert it.errors() == [f"stream 'S' of account '$G' cannot be adopted now: {text}"]


# --- members of the groups that this server leads ---------------------------------------------------


def test_a_group_with_the_wanted_members_asks_nothing() -> None:
    it = Supervised(3)
    it.create("S", 3)
    it.led("S", "a.d", "b.d", "c.d")
    it.tick()
    assert (it.meta.reads, it.meta.submitted, it.supervisor.status) == ([], [], {})


def test_a_leader_adds_a_missing_member_when_the_meta_state_is_current() -> None:
    it = Supervised(3)
    it.create("S", 3)
    group = it.led("S", "a.d", "b.d")
    it.tick()
    assert group.port.changes == []
    it.meta.answer_reads()
    assert group.port.changes == [(ChangeKind.ADD_LEARNER, "c.d")]
    assert ("DBG", "stream 'S': add a learner c.d: proposed") in it.lines


def test_steps_follow_each_other_while_the_members_are_not_as_wanted() -> None:
    it = Supervised(3)
    it.create("S", 3)
    group = it.led("S", "a.d", "b.d")
    it.tick()
    it.meta.answer_reads()
    it.tick(STEP_NS - 1)
    assert it.meta.reads == []
    it.tick(1)
    it.meta.answer_reads()
    assert group.port.changes == [(ChangeKind.ADD_LEARNER, "c.d")] * 2


def test_a_committed_change_of_members_brings_the_next_step_at_once() -> None:
    it = Supervised(3)
    it.create("S", 3)
    it.led("S", "a.d", "b.d")
    it.tick()
    it.meta.answer_reads()
    group = it.led("S", "a.d", "b.d", learners=("c.d",), b=0, c=0)
    it.tick()
    it.meta.answer_reads()
    assert group.port.changes == [(ChangeKind.PROMOTE, "c.d")]


@pytest.mark.parametrize("lags", [{}, {"c": 5}])
def test_a_learner_that_is_behind_or_unheard_of_is_waited_for(lags: dict[str, int]) -> None:
    it = Supervised(3)
    it.create("S", 3)
    group = it.led("S", "a.d", "b.d", learners=("c.d",), **lags)
    it.tick()
    it.meta.answer_reads()
    status = it.supervisor.status[ACCOUNT, "S"]
    assert (status.type, status.description) == ("catchup", "waiting for c.d to catch up")
    assert group.port.changes == []


def test_a_member_that_does_not_answer_is_waited_for_and_shown_until_it_is_there() -> None:
    it = Supervised(3)
    it.create("S", 3)
    it.online = {"b.d"}
    it.led("S", "a.d", "b.d")
    it.tick()
    it.meta.answer_reads()
    assert it.supervisor.status[ACCOUNT, "S"].type == "blocked"
    it.led("S", "a.d", "b.d", "c.d")
    it.tick()
    assert it.supervisor.status == {}


def test_what_a_group_waits_for_is_shown_no_more_when_another_server_leads() -> None:
    it = Supervised(3)
    it.create("S", 3)
    it.online = {"b.d"}
    group = it.led("S", "a.d", "b.d")
    it.tick()
    it.meta.answer_reads()
    group.follow("b.d")
    it.change(group)
    it.tick()
    assert it.supervisor.status == {}


def test_a_leader_that_is_not_wanted_hands_over() -> None:
    it = Supervised(2)
    it.create("S", on="A")
    it.cluster.apply(commands.RemoveFromStream(ACCOUNT, "S", "a"))
    group = it.led("S", "a.d", "b.d", b=0)
    it.tick()
    it.meta.answer_reads()
    assert group.port.heirs == ["b.d"]
    assert group.port.changes == []


def test_members_as_wanted_are_reported_until_the_cluster_has_it() -> None:
    it = Supervised(2)
    it.create("S", on="B")
    it.cluster.apply(commands.RemoveFromStream(ACCOUNT, "S", "b"))
    it.led("S", "a.d")
    it.tick()
    for number in range(1, 3):
        it.meta.answer_reads()
        assert len(it.meta.submitted) == number
        it.tick(STEP_NS)
    [command, _] = it.meta.submitted
    assert isinstance(command, SettleMembers)
    assert (command.stream, command.peers) == ("S", ("A",))
    it.cluster.apply(command)
    it.meta.answer_reads()
    it.tick(STEP_NS)
    assert (len(it.meta.submitted), it.meta.reads) == (2, [])


def test_a_question_that_is_not_taken_is_asked_again_after_a_step() -> None:
    it = Supervised(3)
    it.create("S", 3)
    it.led("S", "a.d", "b.d")
    it.meta.takes = False
    it.tick()
    it.meta.takes = True
    it.tick(STEP_NS - 1)
    assert it.meta.reads == []
    it.tick(1)
    assert len(it.meta.reads) == 1


def test_a_learner_that_is_left_over_is_removed() -> None:
    it = Supervised(4)
    it.create("S", 3)
    wanted = [f"{one.lower()}.d" for one in it.cluster.peers("S")]
    [other] = {"a.d", "b.d", "c.d", "d.d"} - set(wanted)
    group = it.led("S", *wanted, learners=(other,))
    it.tick()
    it.meta.answer_reads()
    assert group.port.changes == [(ChangeKind.REMOVE, other)]


def test_the_leader_counts_itself_as_online() -> None:
    it = Supervised(3)
    it.create("S", 3)
    it.online = {"c.d"}
    group = it.led("S", "a.d", "b.d", learners=("c.d",), c=0)
    it.tick()
    it.meta.answer_reads()
    assert group.port.changes == [(ChangeKind.PROMOTE, "c.d")]


def test_what_a_group_waited_for_is_shown_no_more_when_the_next_step_is_done() -> None:
    it = Supervised(3)
    it.create("S", 3)
    it.online = {"b.d"}
    group = it.led("S", "a.d", "b.d")
    it.tick()
    it.meta.answer_reads()
    assert it.supervisor.status[ACCOUNT, "S"].description == "waiting for c.d to come online"
    it.online = {"b.d", "c.d"}
    it.tick(STEP_NS)
    it.meta.answer_reads()
    assert (group.port.changes, it.supervisor.status) == ([(ChangeKind.ADD_LEARNER, "c.d")], {})


def test_a_question_whose_answer_is_lost_is_asked_again() -> None:
    it = Supervised(3)
    it.create("S", 3)
    group = it.led("S", "a.d", "b.d")
    it.tick()
    it.meta.reads.clear()
    it.tick(STEPS_REVIEW_NS)
    it.meta.answer_reads()
    assert group.port.changes == [(ChangeKind.ADD_LEARNER, "c.d")]


def test_a_leader_is_looked_at_from_time_to_time_when_nothing_is_heard() -> None:
    it = Supervised(3)
    it.create("S", 3)
    group = it.led("S", "a.d", "b.d", "c.d")
    it.tick()
    group.serve("a.d", "b.d")
    it.tick(STEPS_REVIEW_NS - 1)
    assert it.meta.reads == []
    it.tick(1)
    assert len(it.meta.reads) == 1


def test_a_follower_changes_no_members() -> None:
    it = Supervised(3)
    it.create("S", 3)
    it.led("S", "a.d", "b.d").follow("b.d")
    it.tick()
    assert it.meta.reads == []


@pytest.mark.parametrize("what", ["another leads", "deleted", "created again"])
def test_a_leader_changes_nothing_when_it_is_another_matter_by_the_time_of_the_answer(what: str) -> None:
    it = Supervised(3)
    it.create("S", 3)
    group = it.led("S", "a.d", "b.d")
    it.tick()
    if what == "another leads":
        group.follow("b.d")
    else:
        it.delete("S")
        if what == "created again":
            it.create("S", 3)
    assert it.meta.answer_reads() == 1
    assert (group.port.changes, it.supervisor.status) == ([], {})


def test_a_leader_asks_nothing_about_the_group_of_a_stream_that_was_created_again() -> None:
    it = Supervised(3)
    it.create("S", 3)
    it.tick()
    it.led("S", "a.d", "b.d")
    it.delete("S")
    it.create("S", 3)
    it.tick()
    assert it.meta.reads == []
