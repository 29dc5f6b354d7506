"""Atomic batches in an engine: the answer to each message, what is stored, the advisories."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.jetstream.engine import SharedState
from penstock.jetstream.inflight import Inflight
from penstock.kernels.wire.dispatch import publish
from penstock.protocol import headers
from tests.support.engine import EngineHarness

SECOND = 1_000_000_000


def block(batch_id: str, seq: int | str | None, commit: str = "", **more: str) -> bytes:
    """The header block of a batch's message; names of more with _ for -."""
    pairs = [("Nats-Batch-Id", batch_id)]
    if seq is not None:
        pairs.append(("Nats-Batch-Sequence", str(seq)))
    if commit:
        pairs.append(("Nats-Batch-Commit", commit))
    return headers.build(pairs + [(name.replace("_", "-"), value) for name, value in more.items()])


class Atomic(EngineHarness):
    """An engine with a stream S on s.> that takes atomic batches."""

    def __init__(self, config: dict[str, Any] | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self.create("S", "s.>", allow_atomic=True, storage="memory", **(config or {}))
        self.advisories = self.listen(b"$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.S")

    def put(
        self, batch_id: str, seq: int | str | None, commit: str = "", *, subject: str = "s.a", **more: str
    ) -> Any:
        """Answer to one message of a batch: None for the empty one."""
        payload = b"" if "Nats_Incr" in more else b"%s" % str(seq).encode()
        heard = self.messages(subject, payload, block(batch_id, seq, commit, **more))
        assert len(heard) == 1
        return json.loads(heard[0][2]) if heard[0][2] else None

    def reported(self) -> list[tuple[str, str]]:
        """(batch, reason) of the advisories so far."""
        found = [json.loads(payload) for _, _, payload in self.advisories]
        for one in found:
            assert one["type"] == "io.nats.jetstream.advisory.v1.batch_abandoned" and one["stream"] == "S"
        return [(one["batch"], one["reason"]) for one in found]

    def payloads(self) -> list[bytes]:
        log = self.engine.streams["S"].log
        found = [log.load(seq) for seq in range(log.first_seq, log.last_seq + 1)]
        return [message.payload for message in found if message is not None]

    @property
    def inflight(self) -> int:
        return self.engine.batches.inflight.atomic


def err_code(answer: Any) -> int:
    code: int = answer["error"]["err_code"]
    return code


@pytest.mark.feature("atomic.start", "atomic.append", "atomic.commit")
def test_a_batch_is_staged_with_empty_acks_and_stored_by_its_commit() -> None:
    engine = Atomic()
    assert engine.put("b", 1) is None
    assert engine.put("b", 2) is None
    assert engine.state("S")["messages"] == 0 and engine.inflight == 1
    assert engine.put("b", 3, "1") == {"stream": "S", "seq": 3, "batch": "b", "count": 3}
    assert engine.payloads() == [b"1", b"2", b"3"] and engine.inflight == 0
    stored = engine.engine.streams["S"].log.load(3)
    assert stored is not None and headers.value_of(stored.header, headers.BATCH_COMMIT) == b"1"
    assert engine.reported() == []


@pytest.mark.feature("atomic.commit")
def test_one_message_alone_is_a_batch() -> None:
    assert Atomic().put("b", 1, "1") == {"stream": "S", "seq": 1, "batch": "b", "count": 1}


@pytest.mark.feature("atomic.commit-eob")
def test_the_end_of_a_batch_is_not_stored_and_marks_the_last_message() -> None:
    engine = Atomic()
    engine.put("b", 1)
    engine.put("b", 2)
    assert engine.put("b", 3, "eob") == {"stream": "S", "seq": 2, "batch": "b", "count": 2}
    log = engine.engine.streams["S"].log
    marks = [headers.value_of(log.load(seq).header, headers.BATCH_COMMIT) for seq in (1, 2)]  # type: ignore[union-attr]
    assert marks == [None, b"1"]


@pytest.mark.feature("atomic.allow-atomic")
def test_without_the_setting_batches_are_refused() -> None:
    """An update that turns the setting off drops the staged messages."""
    engine = Atomic()
    engine.put("b", 1)
    config = {"name": "S", "subjects": ["s.>"], "storage": "memory"}
    assert "error" not in engine.api("STREAM.UPDATE.S", config)
    assert err_code(engine.put("b", 2)) == 10174
    assert engine.inflight == 0
    assert "error" not in engine.api("STREAM.UPDATE.S", {**config, "allow_atomic": True})
    assert err_code(engine.put("b", 2)) == 10176


@pytest.mark.feature(
    "atomic.id-length", "atomic.sequence", "atomic.gaps", "atomic.commit-value", "atomic.max-messages"
)
@pytest.mark.parametrize(
    ("batch_id", "seq", "commit", "expected"),
    [
        ("b" * 64, 1, "", None),
        ("b" * 65, 1, "", 10179),
        ("b", None, "", 10175),
        ("b", "x", "", 10175),
        ("b", 2, "", 10176),
        ("b", 1001, "", 10199),
        ("b", 1001, "eob", 10176),
        ("b", 1, "2", 10200),
        ("b", 1, "eob", 10176),
    ],
)
def test_what_can_not_begin_a_batch_is_refused(
    batch_id: str, seq: int | str | None, commit: str, expected: int | None
) -> None:
    engine = Atomic()
    answer = engine.put(batch_id, seq, commit)
    assert (answer and err_code(answer)) == expected
    assert engine.inflight == (expected is None)


@pytest.mark.feature("atomic.gaps", "atomic.advisory")
def test_a_gap_ends_the_batch_with_an_advisory() -> None:
    """An unknown batch has no advisory."""
    engine = Atomic()
    engine.put("b", 1)
    assert err_code(engine.put("b", 3)) == 10176
    assert engine.reported() == [("b", "incomplete")]
    assert err_code(engine.put("b", 4, "1")) == 10176
    assert engine.reported() == [("b", "incomplete")]
    assert engine.payloads() == []


@pytest.mark.feature("atomic.commit-value")
def test_an_invalid_commit_ends_the_batch() -> None:
    engine = Atomic()
    engine.put("b", 1)
    assert err_code(engine.put("b", 2, "yes")) == 10200
    assert err_code(engine.put("b", 2, "1")) == 10176 and engine.reported() == []


@pytest.mark.feature("atomic.max-messages")
def test_a_batch_has_a_largest_size_which_its_end_does_not_count_for() -> None:
    engine = Atomic(batch_messages_max=3)
    for batch_id in "bcd":
        for seq in (1, 2, 3):
            assert engine.put(batch_id, seq) is None
    answer = engine.put("b", 4, "1")
    assert answer["error"] == {
        "code": 400, "err_code": 10199, "description": "atomic publish batch is too large: 3",
    }  # fmt: skip
    assert engine.reported() == [("b", "large")]
    assert engine.put("c", 4, "eob")["count"] == 3
    assert err_code(engine.put("d", 4)) == 10199


@pytest.mark.feature("atomic.inflight")
def test_so_many_batches_may_be_open() -> None:
    engine = Atomic(batch_inflight_per_stream_max=2)
    assert [engine.put(batch_id, 1) for batch_id in "ab"] == [None, None]
    answer = engine.put("c", 1)
    assert (answer["error"]["code"], answer["error"]["err_code"]) == (429, 10210)
    engine.put("a", 2, "1")
    assert engine.put("c", 1) is None


@pytest.mark.feature("atomic.inflight")
def test_by_default_fifty_batches_of_a_stream_and_a_thousand_of_a_server() -> None:
    engine = Atomic()
    for n in range(50):
        assert engine.put(f"b{n}", 1) is None
    assert err_code(engine.put("more", 1)) == 10210
    of_other_accounts = Inflight(atomic=1000)
    engine = Atomic(shared=SharedState(inflight=of_other_accounts))
    assert err_code(engine.put("b", 1)) == 10210


@pytest.mark.feature("atomic.inflight")
def test_accounts_share_the_limit_of_the_server_and_give_back_what_they_had() -> None:
    shared = Inflight()
    one, other = (Atomic(shared=SharedState(inflight=shared), batch_inflight_total_max=1) for _ in range(2))
    assert one.put("b", 1) is None
    assert err_code(other.put("b", 1)) == 10210
    one.api("STREAM.DELETE.S")
    assert other.put("b", 1) is None
    other.engine.close()
    assert shared.atomic == 0


@pytest.mark.feature("atomic.timeout")
def test_a_batch_is_abandoned_ten_seconds_after_its_last_message() -> None:
    """Silently, but for the advisory."""
    engine = Atomic()
    engine.put("b", 1)
    engine.wait_until(engine.now + 9 * SECOND)
    engine.put("b", 2)
    engine.wait_until(engine.now + 10 * SECOND - 1)
    assert engine.reported() == []
    engine.wait_until(engine.now + 1)
    assert engine.reported() == [("b", "timeout")] and engine.inflight == 0
    assert err_code(engine.put("b", 3)) == 10176


@pytest.mark.feature("atomic.timeout")
def test_no_message_is_taken_after_the_time_even_before_the_timer() -> None:
    """The time is configured."""
    engine = Atomic(batch_timeout_ns=SECOND)
    engine.put("b", 1)
    engine.now += SECOND
    assert err_code(engine.put("b", 2)) == 10176
    assert engine.reported() == [("b", "timeout")]


@pytest.mark.feature("atomic.checks-at-commit")
def test_expected_sequences_are_those_before_the_batch() -> None:
    engine = Atomic()
    engine.request("s.a", b"before")
    engine.put("b", 1, Nats_Expected_Last_Sequence="1", Nats_Expected_Last_Subject_Sequence="1")
    engine.request("s.other", b"between")
    answer = engine.put("b", 2, "1", subject="s.b", Nats_Expected_Last_Subject_Sequence="0")
    assert (err_code(answer), answer["error"]["description"]) == (10071, "wrong last sequence: 2")
    assert engine.state("S")["messages"] == 2
    engine.put("c", 1, Nats_Expected_Last_Sequence="2", Nats_Expected_Last_Subject_Sequence="1")
    answer = engine.put("c", 2, "1", subject="s.b", Nats_Expected_Last_Subject_Sequence="0")
    assert (answer["seq"], answer["count"]) == (4, 2)


@pytest.mark.feature(
    "atomic.checks-at-commit",
    "atomic.expected-last-seq",
    "atomic.expected-subject-seq",
    "atomic.expected-msg-id",
    "atomic.deduplication",
)
@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({}, {"Nats_Expected_Last_Sequence": "5"}, 10071),
        ({}, {"Nats_Expected_Last_Sequence": "2"}, 10164),
        ({}, {"Nats_Expected_Last_Subject_Sequence": "0"}, 10164),
        (
            {},
            {
                "Nats_Expected_Last_Subject_Sequence": "0",
                "Nats_Expected_Last_Subject_Sequence_Subject": "s.a",
            },
            10164,
        ),
        ({}, {"Nats_Expected_Last_Subject_Sequence_Subject": "s.b"}, 10193),
        ({}, {"Nats_Expected_Last_Msg_Id": "x"}, 10177),
        ({"Nats_Msg_Id": "x"}, {"Nats_Msg_Id": "x"}, 10201),
        ({"Nats_Msg_Id": "x"}, {"Nats_Msg_Id": "known"}, 10201),
        ({"Nats_Msg_Id": "x"}, {"Nats_Msg_Id": "y"}, None),
        ({}, {"Nats_Rollup": "sub"}, 10111),
        ({}, {"Nats_Rollup": "all"}, 10111),
        ({"Nats_Rollup": "all"}, {}, None),
        ({}, {"Nats_TTL": "1"}, 10166),
        ({}, {"Nats_Incr": "1"}, 10168),
        ({}, {"Nats_Schedule": "@every 5s"}, 10188),
        ({}, {"Nats_Expected_Stream": "T"}, 10060),
    ],
)
def test_one_refused_message_refuses_the_batch(
    first: dict[str, str], second: dict[str, str], expected: int | None
) -> None:
    engine = Atomic({"allow_rollup_hdrs": True})
    engine.request("s.known", b"", headers.build([("Nats-Msg-Id", "known")]))
    engine.api("STREAM.PURGE.S")
    engine.put("b", 1, **first)
    answer = engine.put("b", 2, "1", **second)
    if expected is None:
        assert answer["count"] == 2
    else:
        assert err_code(answer) == expected and engine.payloads() == []
    assert engine.reported() == [] and engine.inflight == 0


@pytest.mark.feature("atomic.expected-last-seq")
def test_the_error_of_a_later_expectation_has_the_sequence_it_should_have_expected() -> None:
    engine = Atomic()
    engine.put("b", 1)
    answer = engine.put("b", 2, "1", Nats_Expected_Last_Sequence="7")
    assert answer["error"]["description"] == "wrong last sequence: 1"


@pytest.mark.feature("atomic.expected-msg-id")
def test_an_unsupported_header_is_named() -> None:
    answer = Atomic().put("b", 1, "1", Nats_Expected_Last_Msg_Id="x")
    assert (
        answer["error"]["description"] == "atomic publish unsupported header used: Nats-Expected-Last-Msg-Id"
    )


@pytest.mark.feature("atomic.deduplication")
def test_message_ids_of_a_batch_are_remembered() -> None:
    engine = Atomic()
    engine.put("b", 1, Nats_Msg_Id="x")
    engine.put("b", 2, "1", Nats_Msg_Id="y")
    again = engine.request("s.a", b"", headers.build([("Nats-Msg-Id", "x")]))
    assert again == {"stream": "S", "seq": 1, "duplicate": True}


@pytest.mark.feature("atomic.api-level")
def test_each_message_may_require_an_api_level() -> None:
    engine = Atomic()
    assert engine.put("b", 1, Nats_Required_Api_Level="2") is None
    assert err_code(engine.put("b", 2, Nats_Required_Api_Level="999")) == 10185
    assert engine.reported() == [("b", "unsupported")]
    assert err_code(engine.put("b", 3, "1")) == 10176
    assert err_code(engine.put("c", 1, Nats_Required_Api_Level="x")) == 10185
    engine.put("d", 1, "1", Nats_Required_Api_Level="2")
    stored = engine.engine.streams["S"].log.load(1)
    assert stored is not None and headers.value_of(stored.header, headers.REQUIRED_API_LEVEL) is None


def test_increments_of_a_batch_add_up() -> None:
    engine = Atomic({"allow_msg_counter": True})
    engine.request("s.a", b"", headers.build([("Nats-Incr", "5")]))
    engine.put("b", 1, Nats_Incr="1")
    engine.put("b", 2, subject="s.b", Nats_Incr="7")
    assert engine.put("b", 3, "1", Nats_Incr="2")["count"] == 3
    assert engine.payloads() == [b'{"val":"5"}', b'{"val":"6"}', b'{"val":"7"}', b'{"val":"8"}']


def test_a_stream_that_discards_new_messages_takes_a_batch_that_fits_as_a_whole() -> None:
    engine = Atomic({"discard": "new", "max_msgs": 3})
    engine.put("b", 1)
    engine.put("b", 2)
    assert engine.put("b", 3, "1")["count"] == 3
    answer = engine.put("c", 1, "1")
    assert answer["error"]["description"] == "maximum messages exceeded"
    engine = Atomic({"discard": "new", "max_msgs_per_subject": 1, "discard_new_per_subject": True})
    engine.put("b", 1)
    answer = engine.put("b", 2, "1")
    assert answer["error"]["description"] == "maximum messages per subject exceeded"


def test_messages_of_a_batch_live_as_long_as_they_say() -> None:
    engine = Atomic({"allow_msg_ttl": True})
    engine.put("b", 1, Nats_TTL="5")
    engine.put("b", 2, "1")
    engine.wait_until(engine.now + 6 * SECOND)
    assert engine.payloads() == [b"2"]


def test_a_schedule_of_a_batch_is_stored_and_produces() -> None:
    engine = Atomic({"allow_msg_schedules": True})
    engine.put("b", 1, Nats_Schedule="@every 2s", Nats_Schedule_Target="s.out")
    engine.put("b", 2, "1", subject="s.b")
    engine.wait_until(engine.now + 3 * SECOND)
    assert engine.payloads() == [b"1", b"2", b"1"]
    # In one batch, a message may send away the schedule that another one makes.
    engine.put("c", 1, subject="s.later", Nats_Schedule="@every 2s", Nats_Schedule_Target="s.out")
    cancel = {"Nats_Schedule_Next": "purge", "Nats_Scheduler": "s.later"}
    assert engine.put("c", 2, "1", subject="s.c", **cancel)["count"] == 2
    engine.put("d", 1, subject="s.plain")
    answer = engine.put("d", 2, "1", subject="s.d", Nats_Schedule_Next="purge", Nats_Scheduler="s.plain")
    assert err_code(answer) == 10212


def test_a_batch_is_renamed_and_published_again_like_other_messages() -> None:
    engine = Atomic(
        {
            "subject_transform": {"src": "s.>", "dest": "t.>"},
            "republish": {"src": "t.>", "dest": "again.>"},
        }
    )
    heard = engine.listen(b"again.>")
    engine.put("b", 1)
    assert heard == []
    engine.put("b", 2, "1", subject="s.b")
    assert [subject for subject, _, _ in heard] == [b"again.a", b"again.b"]


def test_a_stream_without_acks_answers_no_batch() -> None:
    engine = Atomic({"no_ack": True})
    assert engine.messages("s.a", b"1", block("b", 1)) == []
    assert engine.messages("s.a", b"2", block("b", 2, "1")) == []
    assert engine.payloads() == [b"1", b"2"]


@pytest.mark.feature("atomic.persist-mode", "atomic.mirrors-sources", "atomic.level")
def test_settings_that_do_not_go_together_are_refused() -> None:
    engine = EngineHarness()
    base = {"name": "S", "subjects": ["s"], "allow_atomic": True}
    answer = engine.api("STREAM.CREATE.S", {**base, "persist_mode": "async"})
    assert answer["error"]["err_code"] == 10052
    assert answer["error"]["description"] == "async persist mode is not supported with atomic batch publish"
    answer = engine.api("STREAM.CREATE.S", {"name": "S", "mirror": {"name": "T"}, "allow_atomic": True})
    assert answer["error"]["err_code"] == 10198
    answer = engine.api("STREAM.CREATE.S", base)
    assert answer["config"]["metadata"]["_nats.req.level"] == "2"


@pytest.mark.feature("atomic.crash")
def test_a_restart_abandons_what_is_staged() -> None:
    """None of it is visible."""
    engine = Atomic()
    engine.put("b", 1)
    after = engine.restart()
    heard = after.messages("s.a", b"2", block("b", 2, "1"))
    assert err_code(json.loads(heard[0][2])) == 10176
    assert after.state("S")["messages"] == 0


@pytest.mark.feature("atomic.inflight")
def test_what_all_open_batches_hold_has_a_limit() -> None:
    """Beyond it a batch is refused like one too many, and leaves nothing behind."""
    engine = Atomic(batch_bytes_max=1000)
    for seq in range(1, 4):
        assert engine.put("b", seq, subject="s." + "x" * 150) is None
    assert engine.put("c", 1) is None
    assert err_code(engine.put("c", 2, subject="s." + "x" * 150)) == 10210
    assert engine.reported() == [("c", "large")]
    assert err_code(engine.put("d", 1, subject="s." + "x" * 250)) == 10210
    assert engine.reported() == [("c", "large")] and engine.inflight == 1
    assert engine.put("b", 4, "1")["count"] == 4
    assert engine.engine.batches.inflight.staged.bytes == 0
    assert engine.put("c", 1, "1", subject="s." + "x" * 250)["count"] == 1


@pytest.mark.feature("atomic.commit-eob")
@pytest.mark.parametrize("end", [b"", b"\r\n", b"\r\n\r\n"])
def test_a_header_block_without_its_end_does_no_harm(end: bytes) -> None:
    """The mark of the last message goes where the block should have ended."""
    engine = Atomic()
    header = b"NATS/1.0\r\nNats-Batch-Id: b\r\nNats-Batch-Sequence: 1" + end
    assert engine.messages("s.a", b"1", header)[0][2] == b""
    assert engine.put("b", 2, "eob") == {"stream": "S", "seq": 1, "batch": "b", "count": 1}
    stored = engine.engine.streams["S"].log.load(1)
    assert stored is not None and headers.value_of(stored.header, headers.BATCH_COMMIT) == b"1"


extra_headers = st.sampled_from(
    [{}, {}, {}, {"Nats_Msg_Id": "m1"}, {"Nats_Msg_Id": "m2"}, {"Nats_Expected_Last_Sequence": "1"},
     {"Nats_Expected_Last_Subject_Sequence": "0"}, {"Nats_Expected_Last_Subject_Sequence": "1"},
     {"Nats_Expected_Stream": "S"}, {"Nats_Expected_Stream": "T"}, {"Nats_Expected_Last_Msg_Id": "m1"},
     {"Nats_TTL": "5"}, {"Nats_Rollup": "sub"}, {"Nats_Required_Api_Level": "1"}]
)  # fmt: skip


@pytest.mark.feature(
    "atomic.append",
    "atomic.gaps",
    "atomic.commit",
    "atomic.commit-eob",
    "atomic.commit-value",
    "atomic.max-messages",
    "atomic.inflight",
    "atomic.timeout",
    "atomic.checks-at-commit",
    "atomic.expected-last-seq",
    "atomic.expected-subject-seq",
    "atomic.expected-msg-id",
    "atomic.deduplication",
    "atomic.api-level",
)
@given(
    st.lists(
        st.lists(
            st.tuples(st.sampled_from("ab"), st.sampled_from(["s.a", "s.b"]), extra_headers,
                      st.sampled_from(["", "", "", "1", "eob"])),
            max_size=12,
        ),
        max_size=5,
    ),
    st.sampled_from(
        [{}, {"max_msgs": 3}, {"max_msgs": 3, "discard": "new"}, {"max_bytes": 500, "discard": "new"},
         {"max_msgs_per_subject": 1}, {"allow_rollup_hdrs": True}, {"allow_msg_ttl": True},
         {"republish": {"src": "s.a", "dest": "again"}}, {"retention": "interest"}]
    ),
)  # fmt: skip
def test_batches_in_compiled_code_and_message_by_message_are_the_same(
    ticks: list[list[tuple[str, str, dict[str, str], str]]], config: dict[str, Any]
) -> None:
    """Answers, stored messages and advisories are the same, whichever code checks the commit."""
    outcomes = []
    for is_compiled in (True, False):
        engine = Atomic(config)
        stream = engine.engine.streams["S"]
        if not is_compiled:
            stream.may_store_staged = lambda batch, now: False  # type: ignore[method-assign]
        heard, again = engine.listen(b"_INBOX.x"), engine.listen(b"again")
        seqs = {"a": 0, "b": 0}
        for publishes in ticks:
            for batch_id, subject, more, commit in publishes:
                seqs[batch_id] += 1
                header = block(batch_id, seqs[batch_id], commit, **more)
                publish(engine.index, subject.encode(), b"_INBOX.x", header, b"%d" % len(heard))
                if commit:
                    seqs[batch_id] = 0
            engine.tick()
        log = stream.log
        stored = [log.load(seq) for seq in range(log.first_seq, log.last_seq + 1)]
        content = [(m.seq, m.subject, m.header, m.payload, m.ts) for m in stored if m is not None]
        counts = (log.last_seq, log.bytes, stream.ids.last_id, engine.inflight)
        outcomes.append((heard, again, engine.reported(), content, counts))
    assert outcomes[0] == outcomes[1]


Step = tuple[str, int, str]


@pytest.mark.feature("atomic.commit", "atomic.crash")
@given(st.data())
def test_of_any_batch_all_is_stored_in_order_or_nothing(data: st.DataObject) -> None:
    """With losses, duplicates and messages out of order, several batches at a time."""
    engine = Atomic()
    expected: list[bytes] = []
    wire: list[list[Step]] = []
    for batch_id in "abc":
        size = data.draw(st.integers(1, 4))
        steps = [(batch_id, seq, "") for seq in range(1, size + 1)]
        steps[-1] = (batch_id, size, data.draw(st.sampled_from(["1", "eob"])))
        if data.draw(st.booleans()):
            at = data.draw(st.integers(0, len(steps) - 1))
            match data.draw(st.sampled_from(["lose", "repeat", "swap"])):
                case "lose":
                    del steps[at]
                case "repeat":
                    steps.insert(at, steps[at])
                case "swap":
                    other = data.draw(st.integers(0, len(steps) - 1))
                    steps[at], steps[other] = steps[other], steps[at]
        wire.append(steps)
    while any(wire):
        steps = data.draw(st.sampled_from([steps for steps in wire if steps]))
        batch_id, seq, commit = steps.pop(0)
        answer = json.loads(
            engine.messages(
                f"s.{batch_id}", b"%s%d" % (batch_id.encode(), seq), block(batch_id, seq, commit)
            )[0][2]
            or b"null"
        )
        if answer and "error" not in answer:
            count = seq - (commit == "eob")
            assert commit and answer["count"] == count and answer["seq"] == len(expected) + count
            expected += [b"%s%d" % (batch_id.encode(), n) for n in range(1, count + 1)]
        assert engine.payloads() == expected
    assert engine.inflight == engine.engine.streams["S"].atomic.staged.count


def test_the_header_that_an_end_of_batch_adds_to_the_last_message_counts_for_the_stream_s_limit() -> None:
    size = 30 + len("s.a") + 4 + len(block("x", 1)) + len(b"1")
    bench = Atomic({"discard": "new", "max_bytes": size})
    assert bench.put("x", 1) is None
    assert bench.put("x", 2, "eob")["error"]["err_code"] == 10077
    assert bench.put("y", 1) is None  # as long; without the end's header there is room
    assert bench.engine.streams["S"].log.bytes == 0
    roomy = Atomic({"discard": "new", "max_bytes": size + len("Nats-Batch-Commit: 1\r\n")})
    assert roomy.put("x", 1) is None
    assert roomy.put("x", 2, "eob")["count"] == 1
