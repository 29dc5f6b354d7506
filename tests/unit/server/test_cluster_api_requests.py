"""The API of a server in a cluster: what the meta leader proposes or answers for each request, and how
tickets are answered."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.jetstream.api.api_table import ApiRequest
from penstock.jetstream.limits import LIST_PAGE, NAMES_PAGE
from penstock.jetstream.meta.meta_commands import (
    CancelMove,
    CreateConsumer,
    CreateStream,
    DeleteConsumer,
    DeleteStream,
    PauseConsumer,
    RemoveFromStream,
    UpdateStream,
)
from penstock.protocol import error_codes as codes
from penstock.server.replicated.request_tickets import RequestTicket, decode_ticket, ticket_of
from tests.support.cluster_views import LEADS, ApiUnderTest, ScriptedStreamGroup, error_in, errors


def meta_leader(*streams: str) -> ApiUnderTest:
    """It leads the meta group of A, B and C, which has these streams on all of them, with a consumer c."""
    server = ApiUnderTest(leads_meta=True)
    for name in streams:
        server.cluster.meta.create(name, subjects=[f"{name}.>"])
        server.cluster.meta.consume(name, "c", durable_name="c")
    return server


def ticket_in(command: Any) -> RequestTicket:
    ticket = decode_ticket(command.ticket)
    assert ticket is not None
    return ticket


# --- streams


def test_a_creation_has_the_complete_configuration() -> None:
    command = meta_leader().proposes("STREAM.CREATE.S", {"name": "S", "num_replicas": 3})
    assert isinstance(command, CreateStream)
    assert (command.account, command.config.name, command.config.num_replicas) == ("$G", "S", 3)
    assert (command.config.subjects, command.config.max_msgs) == (["S"], -1)
    assert not command.is_restore


@pytest.mark.parametrize(
    ("subject", "body", "code"),
    [
        ("STREAM.CREATE.S", b"{", 10025),
        ("STREAM.CREATE.S", {"name": "T"}, 10056),
        ("STREAM.CREATE.S", {"name": "S", "num_replicas": 9}, 10052),
        ("STREAM.UPDATE.S", {"name": "T"}, 10056),
        ("STREAM.UPDATE.X", {"name": "X"}, 10059),
        ("STREAM.DELETE.S", {"a": 1}, 10038),
        ("STREAM.RESTORE.S", b"", 10003),
        ("STREAM.PEER.REMOVE.S", {}, 10003),
        ("STREAM.PEER.EVACUATE.S", b"x", 10025),
        ("CONSUMER.CREATE.X", {"stream_name": "X", "config": {}}, 10059),
        ("CONSUMER.CREATE.S", {"stream_name": "T", "config": {}}, 10056),
        ("CONSUMER.DELETE.S.c", {"a": 1}, 10038),
        ("CONSUMER.NAMES.X", b"", 10059),
        ("CONSUMER.LIST.X", b"", 10059),
        ("CONSUMER.PAUSE.S.x", b"", 10014),
        ("CONSUMER.PAUSE.X.c", b"", 10059),
        ("CONSUMER.PEER.REMOVE.S.c", {}, 10003),
        ("CONSUMER.PEER.REMOVE.S.c", {"peer": "x"}, 10040),
        ("CONSUMER.PEER.EVACUATE.S.c", {"peer": "a"}, 10075),
        ("CONSUMER.PEER.EVACUATE.S.x", {"peer": "a"}, 10014),
    ],
)
def test_what_cannot_be_is_refused_without_a_command(subject: str, body: Any, code: int) -> None:
    server = meta_leader("S")
    answer = server.answer(subject, body)
    assert error_in(answer)[0] == code
    assert answer["type"].startswith("io.nats.jetstream.api.v1.")
    assert server.cluster.proposed == []


def test_an_update_keeps_what_the_state_has() -> None:
    server = meta_leader("S")
    created = server.cluster.meta.stream("S").config
    command = server.proposes("STREAM.UPDATE.S", {"name": "S", "subjects": ["S.>"], "num_replicas": 1})
    assert isinstance(command, UpdateStream)
    assert (command.config.num_replicas, command.config.storage) == (1, created.storage)
    assert ticket_in(command).verbs == "STREAM.UPDATE"


def test_deletions_and_cancelled_moves_name_their_asset_and_carry_the_ticket() -> None:
    server = meta_leader("S")
    deleted = server.proposes("STREAM.DELETE.S")
    assert (type(deleted), deleted.account, deleted.stream) == (DeleteStream, "$G", "S")
    cancelled = server.proposes("STREAM.CANCEL_MOVE.S")
    assert (type(cancelled), cancelled.account, cancelled.stream) == (CancelMove, "$G", "S")
    consumer = server.proposes("CONSUMER.DELETE.S.c", b"{}")
    assert (type(consumer), consumer.stream, consumer.name) == (DeleteConsumer, "S", "c")
    verbs = [ticket_in(one).verbs for one in (deleted, cancelled, consumer)]
    assert verbs == ["STREAM.DELETE", "STREAM.CANCEL_MOVE", "CONSUMER.DELETE"]


@pytest.mark.parametrize("verbs", ["STREAM.PEER.REMOVE", "STREAM.PEER.EVACUATE"])
def test_a_removed_peer_is_answered_as_what_was_asked(verbs: str) -> None:
    command = meta_leader("S").proposes(f"{verbs}.S", {"peer": "b"})
    assert isinstance(command, RemoveFromStream)
    assert ticket_in(command).verbs == verbs


def test_a_restore_is_taken_in_by_the_server_that_leads_the_meta_group() -> None:
    server = meta_leader()
    asked: list[tuple[str, str]] = []

    def begin(engine: Any, origin: Any, request: Any) -> Any:
        ticket = decode_ticket(origin.ticket)
        assert ticket is not None
        asked.append((request.name, ticket.verbs))
        return lambda store, done: None

    server.cluster.restore = begin
    answer = server.answer("STREAM.RESTORE.S", {"config": {"name": "S"}})
    assert answer["deliver_subject"].startswith("$JS.SNAPSHOT.RESTORE.S.")
    assert asked == [("S", "STREAM.RESTORE")]


def test_a_restore_that_the_cluster_refuses_is_refused() -> None:
    server = meta_leader()

    def refuse(*given: Any) -> Any:
        raise codes.STREAM_NAME_EXIST_RESTORE_FAILED.exception()

    server.cluster.restore = refuse
    assert server.error("STREAM.RESTORE.S", {"config": {"name": "S"}})[0] == 10130


# --- consumers


@pytest.mark.parametrize(
    ("subject", "config", "verbs", "name"),
    [
        ("CONSUMER.CREATE.S", {}, "CONSUMER.CREATE", ""),
        ("CONSUMER.CREATE.S.d", {"name": "d"}, "CONSUMER.CREATE", "d"),
        ("CONSUMER.DURABLE.CREATE.S.d", {"durable_name": "d"}, "CONSUMER.DURABLE.CREATE", "d"),
    ],
)
def test_a_consumer_is_created_under_the_name_that_was_asked_for(
    subject: str, config: dict[str, str], verbs: str, name: str
) -> None:
    body = {"stream_name": "S", "config": {"ack_policy": "explicit", **config}}
    command = meta_leader("S").proposes(subject, body)
    assert isinstance(command, CreateConsumer)
    assert (command.stream, command.name) == ("S", name)
    assert ticket_in(command).verbs == verbs


def test_a_pause_goes_to_the_group_and_an_empty_one_ends_it() -> None:
    server = meta_leader("S")
    paused = server.proposes("CONSUMER.PAUSE.S.c", {"pause_until": "2030-01-01T00:00:00Z"})
    assert isinstance(paused, PauseConsumer)
    assert (paused.stream, paused.name) == ("S", "c")
    assert paused.pause_until
    resumed = server.proposes("CONSUMER.PAUSE.S.c")
    assert resumed.pause_until != paused.pause_until
    assert not resumed.pause_until or resumed.pause_until.startswith("0001")


def test_a_refused_consumer_is_answered_behind_what_its_stream_leader_did() -> None:
    server = meta_leader("S")
    group = server.open("S")
    heard = server.ask("CONSUMER.CREATE.S", {"stream_name": "T", "config": {}})
    server.cluster.confirm_reads()
    assert heard == [], "the group of the stream confirms it"
    server.engines.settle()
    assert errors(heard) == [10056]
    group.is_serving = False
    heard = server.ask("CONSUMER.CREATE.S", {"stream_name": "T", "config": {}})
    server.cluster.confirm_reads()
    assert errors(heard) == [10056]


# --- infos and lists


def test_the_account_info_counts_the_cluster_and_not_this_server() -> None:
    server = meta_leader("S", "T")
    server.cluster.used = (5, 7)
    answer = server.answer("INFO")
    shown = {name: answer[name] for name in ("streams", "consumers", "memory", "storage")}
    assert shown == {"streams": 2, "consumers": 2, "memory": 5, "storage": 7}


def test_names_come_in_order_and_by_subject() -> None:
    server = meta_leader("b", "a", "c")
    assert server.answer("STREAM.NAMES")["streams"] == ["a", "b", "c"]
    answer = server.answer("STREAM.NAMES", {"subject": "b.x"})
    assert (answer["total"], answer["streams"]) == (1, ["b"])
    assert server.answer("STREAM.NAMES", {"subject": "x"}).get("streams") in (None, [])


@pytest.mark.parametrize(
    ("asked", "offset", "shown"), [(0, 0, "abc"), (2, 2, "c"), (9, 3, ""), (-1, 0, "abc")]
)
def test_a_page_begins_at_its_offset_within_what_there_is(asked: int, offset: int, shown: str) -> None:
    server = meta_leader("c", "b", "a")
    answer = server.answer("STREAM.NAMES", {"offset": asked})
    assert (answer["total"], answer["offset"]) == (3, offset)
    assert "".join(answer.get("streams") or ()) == shown


def test_consumers_come_in_order_with_the_length_of_a_page() -> None:
    server = meta_leader("S")
    server.cluster.meta.consume("S", "a", durable_name="a")
    answer = server.answer("CONSUMER.NAMES.S", {"offset": 1})
    assert (answer["total"], answer["offset"], answer["limit"]) == (2, 1, NAMES_PAGE)
    assert answer["consumers"] == ["c"]
    assert server.answer("CONSUMER.NAMES.S", {"offset": 7})["offset"] == 2


def test_a_list_of_streams_names_those_whose_leader_did_not_answer() -> None:
    server = meta_leader("b", "a", "c")
    server.cluster.infos = {"c": {"n": 3}, "a": {"n": 1}, "elsewhere": {"n": 4}}
    answer = server.answer("STREAM.LIST")
    assert server.cluster.gathered == [("", ["a", "b", "c"])]
    assert (answer["streams"], answer["missing"]) == ([{"n": 1}, {"n": 3}], ["b"])
    assert (answer["total"], answer["offset"]) == (3, 0)


def test_a_list_of_consumers_names_those_whose_leader_did_not_answer() -> None:
    server = meta_leader("S")
    server.cluster.meta.consume("S", "a", durable_name="a")
    server.cluster.infos = {"c": {"n": 3}}
    answer = server.answer("CONSUMER.LIST.S")
    assert server.cluster.gathered == [("S", ["a", "c"])]
    assert (answer["consumers"], answer["missing"]) == ([{"n": 3}], ["a"])
    assert (answer["total"], answer["offset"], answer["limit"]) == (2, 0, LIST_PAGE)


# --- step-downs


def stream_leader(*voters: str) -> tuple[ApiUnderTest, ScriptedStreamGroup]:
    server = meta_leader("S")
    server.cluster.streams["S"] = server.cluster.consumers["S", "c"] = LEADS
    group = server.cluster.groups["S"] = ScriptedStreamGroup(*voters)
    return server, group


@pytest.mark.parametrize("asset", ["STREAM", "CONSUMER"])
def test_a_leader_hands_over_and_says_so_at_once(asset: str) -> None:
    server, group = stream_leader("a.", "b.", "c.")
    heard = server.ask(f"{asset}.LEADER.STEPDOWN.S" + (".c" if asset == "CONSUMER" else ""))
    kind = f"io.nats.jetstream.api.v1.{asset.lower()}_leader_stepdown_response"
    assert [json.loads(one[2]) for one in heard] == [{"type": kind, "success": True}]
    assert group.stepped_down == [None]


def test_a_leader_hands_over_to_the_server_that_was_asked_for() -> None:
    server, group = stream_leader("a.", "b.", "c.")
    heard = server.ask("STREAM.LEADER.STEPDOWN.S", {"placement": {"preferred": "c"}})
    assert errors(heard) == [0]
    assert group.stepped_down == [server.cluster.tables.peers["C"].member]
    [(_, _, refusal)] = server.ask("STREAM.LEADER.STEPDOWN.S", {"placement": {"preferred": "x"}})
    assert error_in(json.loads(refusal))[0] == 10005
    assert len(group.stepped_down) == 1


def test_a_group_of_one_keeps_its_leader() -> None:
    server, group = stream_leader("a.")
    assert errors(server.ask("STREAM.LEADER.STEPDOWN.S")) == [0]
    assert group.stepped_down == []


def test_a_step_down_without_a_group_here_is_unavailable() -> None:
    server, _ = stream_leader("a.", "b.", "c.")
    server.cluster.groups.clear()
    assert errors(server.ask("STREAM.LEADER.STEPDOWN.S")) == [10008]


# --- answers of tickets


def ticket(server: ApiUnderTest, verbs: str, reply: bytes = b"R") -> RequestTicket:
    request = ApiRequest(f"$JS.API.{verbs}.S", ["S"], reply, b"", b"{}", None)
    made = decode_ticket(ticket_of("$G", verbs, request))
    assert made is not None
    return made


def test_a_ticket_is_answered_in_the_form_of_its_request() -> None:
    server = ApiUnderTest()
    heard = server.js.listen(b"R")
    server.api.confirm_success(ticket(server, "STREAM.DELETE"))
    server.api.answer(ticket(server, "STREAM.UPDATE"), codes.STREAM_NOT_FOUND)
    success, error = (json.loads(one[2]) for one in heard)
    assert success == {"type": "io.nats.jetstream.api.v1.stream_delete_response", "success": True}
    assert error["type"] == "io.nats.jetstream.api.v1.stream_update_response"
    assert error_in(error) == (10059, "stream not found")
    stats = server.js.engine.api_stats
    assert (stats.total, stats.errors) == (2, 1)


def test_a_ticket_without_a_reply_subject_is_counted_and_audited_only() -> None:
    server = ApiUnderTest()
    audits = server.js.listen(b"$JS.EVENT.ADVISORY.API")
    server.api.confirm_success(ticket(server, "STREAM.DELETE", b""))
    server.js.tick()
    [audit] = (json.loads(one[2]) for one in audits)
    assert (audit["subject"], audit["request"]) == ("$JS.API.STREAM.DELETE.S", "{}")
    assert json.loads(audit["response"])["success"] is True
