"""The API of a server in a cluster: which requests it serves, holds, refuses or leaves to others."""

from __future__ import annotations

import json

import pytest

from penstock.jetstream.meta.meta_commands import CreateStream, DeleteStream
from penstock.jetstream.meta.request_routing import ERROR_DELAY_NS, AssetView
from penstock.kernels.wire.dispatch import publish
from penstock.server.replicated.deferred_requests import ELECTION_NS, Confirmation
from penstock.server.replicated.request_tickets import PassedRequest, decode_ticket
from tests.support.cluster_views import (
    ELSEWHERE,
    FOLLOWS,
    LEADERLESS,
    LEADS,
    ApiUnderTest,
    error_in,
    errors,
    passed,
)

NOT_FOUND, NO_CONSUMER, UNAVAILABLE = 10059, 10014, 10008


def statuses(heard: list[tuple[bytes, bytes, bytes]]) -> list[bytes]:
    """The status codes of answers without a body."""
    return [header.split(b"\r\n")[0].split()[1] for _, header, _ in heard]


# --- what the meta leader answers


@pytest.mark.parametrize("subject", ["INFO", "STREAM.CREATE.S", "STREAM.NAMES", "CONSUMER.DELETE.S.c"])
def test_a_server_that_does_not_lead_the_meta_group_leaves_its_requests_alone(subject: str) -> None:
    server = ApiUnderTest()
    assert server.ask(subject) == []
    assert (server.cluster.reads, server.cluster.deferred, server.cluster.proposed) == ([], [], [])


def test_the_meta_leader_confirms_before_it_proposes_with_a_ticket() -> None:
    server = ApiUnderTest(leads_meta=True)
    body = {"name": "S", "subjects": ["s"]}
    command = server.proposes("STREAM.CREATE.S", body)
    assert isinstance(command, CreateStream)
    ticket = decode_ticket(command.ticket)
    assert ticket is not None
    assert (ticket.account, ticket.verbs, ticket.args) == ("$G", "STREAM.CREATE", ("S",))
    assert (ticket.reply, json.loads(ticket.payload)) == (b"_INBOX.1", body)


def test_a_command_that_the_group_does_not_take_is_refused() -> None:
    server = ApiUnderTest(leads_meta=True)
    server.cluster.takes = False
    expected = (UNAVAILABLE, "JetStream system temporarily unavailable")
    assert server.error("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]}) == expected
    assert server.error("STREAM.DELETE.S") == expected


def test_a_request_whose_leadership_ended_before_it_was_served_goes_to_the_next_leader() -> None:
    server = ApiUnderTest(leads_meta=True)
    heard = server.ask("STREAM.DELETE.S")
    server.cluster.lose_reads()
    assert server.cluster.deferred == ["STREAM.DELETE.S"]
    assert (heard, server.cluster.proposed) == ([], [])


def test_a_leadership_that_ended_without_notice_is_seen_after_the_confirmation() -> None:
    server = ApiUnderTest(leads_meta=True)
    heard = server.ask("STREAM.DELETE.S")
    server.cluster.is_meta_leader = False
    server.cluster.confirm_reads()
    assert (heard, server.cluster.proposed) == ([], [])


@pytest.mark.parametrize(
    ("subject", "code"),
    [
        ("STREAM.INFO.S", NOT_FOUND),
        ("STREAM.PURGE.S", NOT_FOUND),
        ("CONSUMER.INFO.S.c", NOT_FOUND),
        ("STREAM.INFO.T", 0),
        ("CONSUMER.INFO.T.c", NO_CONSUMER),
    ],
)
def test_not_found_is_said_by_the_meta_leader_when_its_state_is_confirmed(subject: str, code: int) -> None:
    server = ApiUnderTest(leads_meta=True)
    server.cluster.streams["T"] = ELSEWHERE
    heard = server.ask(subject)
    assert heard == []
    assert server.cluster.confirm_reads() == (1 if code else 0)
    assert errors(heard) == ([code] if code else [])


def test_a_stream_that_the_confirmed_state_has_is_left_to_its_leader() -> None:
    server = ApiUnderTest(leads_meta=True)
    heard = server.ask("STREAM.INFO.S")
    server.cluster.streams["S"] = ELSEWHERE
    server.cluster.confirm_reads()
    assert heard == []


def test_a_stream_without_an_online_member_is_reported_after_its_leader_had_time_to_answer() -> None:
    server = ApiUnderTest(leads_meta=True)
    server.cluster.streams["S"] = AssetView(is_offline=True)
    heard = server.ask("STREAM.INFO.S")
    server.cluster.confirm_reads()
    [(delay, call)] = server.cluster.calls
    assert (heard, delay) == ([], ERROR_DELAY_NS)
    call()
    assert [error_in(json.loads(one[2])) for one in heard] == [(10118, "stream is offline")]
    heard = server.ask("STREAM.INFO.S")
    server.cluster.confirm_reads()
    server.cluster.streams["S"] = ELSEWHERE
    server.cluster.calls[1][1]()
    assert heard == [], "its leader is back, and answers"


def test_an_exception_in_a_request_costs_this_request_only(noted_faults: list[BaseException]) -> None:
    server = ApiUnderTest(leads_meta=True)
    server.cluster.used = None
    code, text = server.error("INFO")
    assert code == 10051
    assert text.startswith("internal error, the server's log has it as fault ")
    assert [str(one) for one in noted_faults] == ["no figures"]
    noted_faults.clear()
    server.cluster.used = (1, 2)
    assert server.answer("INFO")["memory"] == 1


# --- without a meta leader


@pytest.mark.parametrize(
    ("subject", "is_held"),
    [
        ("STREAM.CREATE.X", True),
        ("CONSUMER.NAMES.T", True),
        ("STREAM.INFO.X", True),
        ("CONSUMER.INFO.T.x", True),
        ("STREAM.PURGE.X", True),
        ("STREAM.INFO.T", False),
        ("CONSUMER.INFO.T.c", False),
        ("STREAM.SNAPSHOT.X", False),
    ],
)
def test_what_only_the_meta_leader_can_answer_is_held_for_the_next_one(subject: str, is_held: bool) -> None:
    server = ApiUnderTest()
    server.cluster.streams["T"] = server.cluster.consumers["T", "c"] = ELSEWHERE
    server.cluster.awaits_meta_leader = True
    assert server.ask(subject) == []
    assert server.cluster.deferred == ([subject] if is_held else [])


def test_a_consumer_of_a_mirror_is_not_held_for_the_meta_leader() -> None:
    server = ApiUnderTest()
    server.cluster.streams["T"] = ELSEWHERE
    server.cluster.awaits_meta_leader = True
    server.ask("CONSUMER.CREATE.T", {"stream_name": "T", "config": {"direct": True, "ack_policy": "none"}})
    assert server.cluster.deferred == []


def test_a_cluster_that_is_long_without_a_leader_is_unavailable() -> None:
    server = ApiUnderTest()
    server.cluster.awaits_meta_leader = server.cluster.leaderless = True
    assert errors(server.ask("STREAM.CREATE.X")) == [UNAVAILABLE]
    assert server.cluster.reads == [] == server.cluster.deferred
    heard = server.ask("STREAM.INFO.X")
    assert heard == []
    server.cluster.calls[0][1]()
    assert errors(heard) == [UNAVAILABLE]


def test_a_held_request_is_served_once_however_many_servers_held_it() -> None:
    server = ApiUnderTest(leads_meta=True)
    server.cluster.is_new_meta_leader = True
    heard = server.js.listen(b"R")
    for _ in range(2):
        server.api.serve_passed(passed("STREAM.DELETE.S", b"R"))
    assert server.cluster.confirm_reads() == 1
    [command] = server.cluster.proposed
    assert isinstance(command, DeleteStream)
    assert heard == []


def test_a_request_that_a_new_leader_got_itself_is_not_served_again_when_it_is_passed_on() -> None:
    server = ApiUnderTest(leads_meta=True)
    server.cluster.is_new_meta_leader = True
    server.ask("STREAM.DELETE.S")
    server.api.serve_passed(passed("STREAM.DELETE.S", b"_INBOX.1"))
    assert server.cluster.confirm_reads() == 1
    server.api.serve_passed(passed("STREAM.DELETE.S", b"_INBOX.2"))
    assert server.cluster.confirm_reads() == 1, "another request"


def test_requests_without_a_reply_subject_are_all_served() -> None:
    server = ApiUnderTest(leads_meta=True)
    server.cluster.is_new_meta_leader = True
    for _ in range(2):
        server.api.serve_passed(passed("STREAM.DELETE.S", b""))
        assert server.cluster.confirm_reads() == 1
    assert len(server.cluster.proposed) == 2


def test_a_leader_whose_leadership_ended_serves_the_request_when_it_leads_again() -> None:
    server = ApiUnderTest(leads_meta=True)
    server.cluster.is_new_meta_leader = True
    server.ask("STREAM.DELETE.S")
    server.cluster.lose_reads()
    server.api.serve_passed(passed("STREAM.DELETE.S", b"_INBOX.1"))
    assert server.cluster.confirm_reads() == 1


def test_a_leader_of_long_standing_forgets_what_it_served() -> None:
    server = ApiUnderTest(leads_meta=True)
    server.cluster.is_new_meta_leader = True
    server.ask("STREAM.DELETE.S")
    server.cluster.is_new_meta_leader = False
    server.ask("STREAM.DELETE.T")
    server.api.serve_passed(passed("STREAM.DELETE.S", b"_INBOX.1"))
    while server.cluster.confirm_reads():
        pass
    assert len(server.cluster.proposed) == 3


# --- requests without a responder


@pytest.mark.parametrize("leads_meta", [True, False])
def test_an_unknown_request_gets_silence(leads_meta: bool) -> None:
    server = ApiUnderTest(leads_meta=leads_meta)
    for subject in ("FOO", "STREAM", "STREAM.CREATE", "STREAM.INFO.S.x"):
        assert server.ask(subject) == []
    assert server.cluster.reads == []


def test_an_unknown_pull_has_no_responders_and_the_meta_leader_says_so() -> None:
    assert statuses(ApiUnderTest(leads_meta=True).ask("CONSUMER.MSG.NEXT.S")) == [b"503"]
    assert ApiUnderTest().ask("CONSUMER.MSG.NEXT.S") == []


def test_a_direct_get_of_no_stream_has_no_responders_when_the_meta_leader_has_confirmed_it() -> None:
    server = ApiUnderTest(leads_meta=True)
    heard = server.ask("DIRECT.GET.S")
    assert heard == []
    server.cluster.confirm_reads()
    assert statuses(heard) == [b"503"]
    heard = server.ask("DIRECT.GET.S")
    server.cluster.streams["S"] = ELSEWHERE
    server.cluster.confirm_reads()
    assert heard == [], "there is such a stream now"
    assert server.ask("DIRECT.GET.S") == []
    assert server.cluster.reads == []
    assert ApiUnderTest().ask("DIRECT.GET.S") == []


# --- pulls


def test_a_pull_of_no_consumer_has_no_responders_when_the_meta_leader_has_confirmed_it() -> None:
    server = ApiUnderTest(leads_meta=True)
    heard = server.ask("CONSUMER.MSG.NEXT.S.c", b"1")
    assert heard == []
    server.cluster.confirm_reads()
    assert statuses(heard) == [b"503"]
    assert server.cluster.reads == []


def test_a_pull_of_a_consumer_without_a_leader_has_no_responders() -> None:
    server = ApiUnderTest()
    server.cluster.streams["S"] = server.cluster.consumers["S", "c"] = LEADERLESS
    assert statuses(server.ask("CONSUMER.MSG.NEXT.S.c", b"1")) == [b"503"]


@pytest.mark.parametrize("view", [FOLLOWS, ELSEWHERE])
def test_a_pull_is_left_to_the_leader_of_the_consumer(view: AssetView) -> None:
    server = ApiUnderTest(leads_meta=True)
    server.cluster.streams["S"] = server.cluster.consumers["S", "c"] = view
    assert server.ask("CONSUMER.MSG.NEXT.S.c", b"1") == []
    assert server.cluster.reads == []


def test_the_leader_of_a_stream_answers_pulls_of_consumers_that_are_no_assets_of_the_cluster() -> None:
    server = ApiUnderTest()
    server.open()
    assert statuses(server.ask("CONSUMER.MSG.NEXT.S.c", b"1")) == [b"503"]
    server.cluster.consumers["S", "c"] = LEADS
    assert statuses(server.ask("CONSUMER.MSG.NEXT.S.c", b"1")) == [b"503"]


# --- the leader of a stream


def test_an_answer_of_the_stream_leader_waits_for_the_confirmation_of_its_group() -> None:
    server = ApiUnderTest()
    server.open()
    heard = server.ask("STREAM.INFO.S")
    assert heard == []
    server.engines.settle()
    assert [json.loads(one[2])["config"]["name"] for one in heard] == ["S"]
    assert server.cluster.reads == [], "the meta leader has no part in it"


def test_a_read_that_cannot_be_confirmed_any_more_is_read_again_at_the_next_leader() -> None:
    server = ApiUnderTest()
    group = server.open()
    heard = server.ask("STREAM.INFO.S")
    [read] = server.engines.groups["S"].reads
    assert isinstance(read, Confirmation)
    read.lost()
    assert heard == []
    assert group.deferred == [passed("STREAM.INFO.S", b"_INBOX.1")]


def test_a_change_that_is_committed_is_answered_although_it_cannot_be_confirmed() -> None:
    server = ApiUnderTest()
    group = server.open()
    publish(server.js.index, b"S.a", b"", b"", b"one")
    server.engines.settle()
    heard = server.ask("STREAM.MSG.DELETE.S", {"seq": 1})
    server.engines.commit("S")
    server.engines.tick()
    [read] = server.engines.groups["S"].reads
    assert isinstance(read, Confirmation)
    assert heard == []
    read.lost()
    assert [json.loads(one[2])["success"] for one in heard] == [True]
    assert group.deferred == []


def test_an_answer_that_is_ready_while_the_leader_hands_over_is_not_left_without_an_end() -> None:
    server = ApiUnderTest()
    group = server.open()
    group.defers_requests = True
    assert server.ask("STREAM.INFO.S") == []
    assert group.deferred == [passed("STREAM.INFO.S", b"_INBOX.1")]
    heard = server.ask("STREAM.MSG.DELETE.S", {"seq": 7})
    server.engines.commit("S")
    server.engines.tick()
    assert errors(heard) == [10043]
    assert server.engines.groups["S"].reads == []


@pytest.mark.parametrize("subject", ["STREAM.INFO.S", "STREAM.PURGE.S", "STREAM.SNAPSHOT.S"])
@pytest.mark.parametrize("why", ["defers_requests", "takes_late_requests"])
def test_a_request_that_comes_while_the_leader_changes_waits_at_the_group(subject: str, why: str) -> None:
    server = ApiUnderTest()
    group = server.open()
    group.is_changing = True
    setattr(group, why, True)
    assert server.ask(subject, {}) == []
    assert group.deferred == [passed(subject, b"_INBOX.1", {})]
    assert server.engines.groups["S"].reads == []
    assert group.noted == []


@pytest.mark.parametrize(
    ("subject", "is_read"),
    [
        ("STREAM.INFO.S", True),
        ("STREAM.MSG.GET.S", True),
        ("CONSUMER.INFO.S.c", True),
        ("STREAM.MSG.DELETE.S", False),
        ("STREAM.PURGE.S", False),
        ("STREAM.LEADER.STEPDOWN.S", False),
    ],
)
def test_during_an_election_reads_wait_for_the_next_leader_and_changes_for_the_one_that_hands_over(
    subject: str, is_read: bool
) -> None:
    server = ApiUnderTest()
    group = server.open()
    server.cluster.streams["S"] = server.cluster.consumers["S", "c"] = LEADERLESS
    group.is_serving = False
    group.is_changing = group.is_electing = True
    heard = server.ask(subject, {})
    assert group.deferred == ([passed(subject, b"_INBOX.1", {})] if is_read else [])
    assert heard == []
    if is_read:
        return
    [(delay, call)] = server.cluster.calls
    assert delay == ELECTION_NS
    server.cluster.streams["S"] = FOLLOWS
    call()
    assert heard == [], "the leader before had it, and answers"
    server.cluster.streams["S"] = LEADERLESS
    call()
    assert errors(heard) == [UNAVAILABLE]


def test_a_new_leader_notes_what_it_serves() -> None:
    server = ApiUnderTest()
    group = server.open()
    group.is_changing = True
    heard = server.ask("STREAM.INFO.S")
    server.engines.settle()
    assert errors(heard) == [0]
    assert group.noted == [(passed("STREAM.INFO.S", b"_INBOX.1"), False)]
    group.is_serving = False
    server.ask("STREAM.INFO.S")
    assert len(group.noted) == 1, "it does not serve yet"


def test_a_request_to_hand_over_does_not_wait_for_a_hand_over() -> None:
    server = ApiUnderTest()
    group = server.open()
    server.cluster.meta.create("S")
    group.is_changing = group.defers_requests = True
    assert errors(server.ask("STREAM.LEADER.STEPDOWN.S")) == [0]
    assert group.deferred == []


def test_pulls_wait_at_a_leader_that_does_not_serve_yet_and_not_at_one_that_hands_over() -> None:
    server = ApiUnderTest()
    group = server.open()
    server.cluster.consumers["S", "c"] = LEADS
    group.is_changing = group.defers_requests = True
    server.ask("CONSUMER.MSG.NEXT.S.c", b"1")
    assert group.deferred == []
    group.is_serving = False
    server.ask("CONSUMER.MSG.NEXT.S.c", b"1")
    assert group.deferred == [passed("CONSUMER.MSG.NEXT.S.c", b"_INBOX.2", b"1")]


def test_a_request_that_waited_is_served_unless_it_was_before() -> None:
    server = ApiUnderTest()
    group = server.open()
    heard = server.js.listen(b"R")
    request = passed("STREAM.INFO.S", b"R")
    served: object = group
    server.api.serve_deferred(served, request)  # type: ignore[arg-type]
    server.engines.settle()
    assert errors(heard) == [0]
    assert group.noted == [(request, True)]
    group.served.add(b"R")
    server.api.serve_deferred(served, request)  # type: ignore[arg-type]
    server.engines.settle()
    assert len(heard) == 1


def test_an_ack_that_waited_is_taken_each_time() -> None:
    server = ApiUnderTest()
    group: object = server.open()
    heard = server.js.listen(b"$JS.ACK.S.c.1.1.1.1.0")
    ack = PassedRequest("$G", b"$JS.ACK.S.c.1.1.1.1.0", b"R", b"", b"+ACK")
    for _ in range(2):
        server.api.serve_deferred(group, ack)  # type: ignore[arg-type]
    assert [payload for _, _, payload in heard] == [b"+ACK"] * 2


def test_a_request_that_waited_behind_another_one_goes_on_when_the_leadership_ended() -> None:
    server = ApiUnderTest()
    group = server.open()
    server.engines.replicas["S"][0].role_changed(leads=False, term=1)
    assert server.ask("STREAM.INFO.S") == []
    assert group.deferred == [passed("STREAM.INFO.S", b"_INBOX.1")]


@pytest.mark.parametrize(
    ("subject", "body", "applied_all", "is_repeated"),
    [
        ("STREAM.PURGE.S", b"", False, True),
        ("STREAM.MSG.DELETE.S", b'{"seq": 1}', True, True),
        ("STREAM.MSG.DELETE.S", b'{"seq": 1}', False, False),
    ],
)
def test_a_change_that_was_cut_off_is_made_again_unless_it_may_be_made(
    subject: str, body: bytes, *, applied_all: bool, is_repeated: bool
) -> None:
    server = ApiUnderTest()
    group = server.open()
    group.applied_all = applied_all
    publish(server.js.index, b"S.a", b"", b"", b"one")
    server.engines.settle()
    heard = server.ask(subject, body)
    server.engines.replicas["S"][0].role_changed(leads=False, term=1)
    server.engines.tick()
    assert heard == []
    assert group.deferred == ([passed(subject, b"_INBOX.1", body)] if is_repeated else [])


def test_members_of_a_group_without_a_leader_show_what_they_have_at_once() -> None:
    server = ApiUnderTest()
    server.open()
    server.cluster.streams["S"] = LEADERLESS
    heard = server.ask("STREAM.INFO.S")
    assert [json.loads(one[2])["state"]["messages"] for one in heard] == [0]
    server.cluster.streams["X"] = LEADERLESS
    assert errors(server.ask("STREAM.INFO.X")) == [NOT_FOUND]
    assert errors(server.ask("STREAM.PURGE.S")) == [UNAVAILABLE], "a change needs a leader"


def test_a_stream_that_cannot_run_here_is_refused_with_the_reason_after_a_moment() -> None:
    server = ApiUnderTest()
    server.cluster.streams["S"] = AssetView(is_member=True, unsupported="manifest is damaged")
    heard = server.ask("STREAM.INFO.S")
    [(_, call)] = server.cluster.calls
    assert heard == []
    call()
    code, text = error_in(json.loads(heard[0][2]))
    assert (code, "manifest is damaged" in text) == (10194, True)


# --- consumers of mirrors and sources


def test_a_consumer_of_a_mirror_is_made_by_the_leader_of_the_stream_and_not_by_the_meta_leader() -> None:
    body = {"stream_name": "S", "config": {"direct": True, "ack_policy": "none", "deliver_subject": "d"}}
    server = ApiUnderTest(leads_meta=True)
    server.cluster.streams["S"] = ELSEWHERE
    assert server.ask("CONSUMER.CREATE.S", body) == []
    assert server.cluster.reads == []
    leader = ApiUnderTest()
    leader.open()
    heard = leader.ask("CONSUMER.CREATE.S", body)
    leader.engines.settle()
    assert errors(heard) == [0]
    assert leader.cluster.proposed == []


def test_a_body_that_only_mentions_direct_is_for_the_meta_leader() -> None:
    server = ApiUnderTest(leads_meta=True)
    server.cluster.streams["S"] = ELSEWHERE
    assert server.error("CONSUMER.CREATE.S", b'{"direct"')[0] == 10025


# --- direct gets


def test_a_replica_takes_direct_gets_from_when_it_is_current_until_it_has_no_state() -> None:
    server = ApiUnderTest()
    server.open()
    publish(server.js.index, b"S.a", b"", b"", b"one")
    server.engines.settle()
    assert server.ask("DIRECT.GET.S.S.a") == []
    for _ in range(2):
        server.api.serve_direct_gets("S")
    assert [one[2] for one in server.ask("DIRECT.GET.S.S.a")] == [b"one"]
    assert [one[2] for one in server.ask("DIRECT.GET.S", {"seq": 1})] == [b"one"]
    assert server.api.serves_direct_gets("S") and server.api.direct_streams == ["S"]
    for _ in range(2):
        server.api.stop_direct_gets("S")
    assert not server.api.serves_direct_gets("S") and server.api.direct_streams == []
    assert server.ask("DIRECT.GET.S.S.a") == []
    server.api.serve_direct_gets("S")
    assert len(server.ask("DIRECT.GET.S.S.a")) == 1
    server.api.stop()
    assert server.ask("DIRECT.GET.S.S.a") == []
    assert server.ask("STREAM.INFO.S") == []


def test_a_replica_answers_single_and_batched_direct_gets_without_a_confirmation() -> None:
    server = ApiUnderTest(leads_meta=True)
    server.open()
    server.engines.publish(b"S.1", b"one")
    server.engines.settle()
    server.api.serve_direct_gets("S")
    for subject, body in (
        ("DIRECT.GET.S", {"seq": 1}), ("DIRECT.GET.S", {"last_by_subj": "S.1"}), ("DIRECT.GET.S.S.1", b""),
    ):  # fmt: skip
        [(_, _, payload)] = server.ask(subject, body)
        assert payload == b"one"
    assert statuses(server.ask("DIRECT.GET.S", {"seq": 9})) == [b"404"]
    [message, end] = server.ask("DIRECT.GET.S", {"seq": 1, "batch": 5})
    assert (message[2], statuses([end])) == (b"one", [b"204"])
    assert server.cluster.reads == [], "no read of the meta state is requested"


def test_a_direct_get_of_a_stream_that_has_just_left_is_passed_on() -> None:
    server = ApiUnderTest()
    server.open()
    server.api.serve_direct_gets("S")
    del server.cluster.groups["S"]
    server.js.engine.replicated.close("S", ended=False)
    elsewhere = server.js.listen(b"$JS.API.DIRECT.GET.S")
    assert server.ask("DIRECT.GET.S", {"seq": 1}) == []
    assert [payload for _, _, payload in elsewhere] == [b'{"seq": 1}'] * 2  # from the client, and passed on
    server.ask("DIRECT.GET.S", {"seq": 2})
    assert [payload for _, _, payload in elsewhere[2:]] == [b'{"seq": 2}']
