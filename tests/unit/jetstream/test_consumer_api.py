"""`$JS.API.CONSUMER.>`: the forms of creating, and the requests about consumers that exist."""

from __future__ import annotations

import pytest

from tests.support.consumers import SECOND, ConsumerHarness

pytestmark = pytest.mark.feature("consumer.api", "consumer.create-update")

TYPE = "io.nats.jetstream.api.v1."


def test_the_same_configuration_again_is_no_error() -> None:
    bench = ConsumerHarness()
    first = bench.define("x", ack_policy="explicit", durable_name="x")
    again = bench.define("x", ack_policy="explicit", durable_name="x", action="create")
    assert first["type"] == again["type"] == TYPE + "consumer_create_response"
    assert first["config"] == again["config"]
    assert first["created"] == again["created"]


def test_the_action_says_whether_it_may_exist() -> None:
    bench = ConsumerHarness()
    assert bench.define("x", action="update")["error"]["err_code"] == 10149
    bench.define("x", action="create")
    assert bench.define("x", action="create", description="other")["error"]["err_code"] == 10148
    assert bench.define("x", action="update", description="other")["config"]["description"] == "other"


@pytest.mark.parametrize(
    ("subject", "config", "err_code"),
    [
        ("CREATE.S.x.s.1", {"filter_subject": "s.2"}, 10131),
        ("CREATE.S.x.s.1", {"filter_subjects": ["s.1"]}, 10137),
        ("CREATE.S", {"durable_name": "q"}, 10020),
        ("DURABLE.CREATE.S.x", {}, 10018),
        ("DURABLE.CREATE.S.x", {"durable_name": "y"}, 10017),
    ],
)
def test_subject_and_body_must_agree(subject: str, config: dict[str, object], err_code: int) -> None:
    answer = ConsumerHarness().api(f"CONSUMER.{subject}", {"stream_name": "S", "config": config})
    assert answer["error"]["err_code"] == err_code
    assert answer["type"] == TYPE + "consumer_create_response"


def test_all_three_forms_make_a_consumer() -> None:
    bench = ConsumerHarness()
    made = [
        bench.api(f"CONSUMER.{subject}", {"stream_name": "S", "config": config})
        for subject, config in [
            ("CREATE.S", {}),
            ("CREATE.S.named", {}),
            ("CREATE.S.filtered.s.1", {"filter_subject": "s.1"}),
            ("DURABLE.CREATE.S.old", {"durable_name": "old"}),
        ]
    ]
    names = [one["name"] for one in made]
    assert names[1:] == ["named", "filtered", "old"]
    assert len(names[0]) == 8
    assert bench.api("CONSUMER.NAMES.S")["consumers"] == sorted(names)


def test_a_request_for_another_stream_is_refused() -> None:
    bench = ConsumerHarness()
    body = {"stream_name": "T", "config": {"name": "x"}}
    assert bench.api("CONSUMER.CREATE.S.x", body)["error"]["err_code"] == 10056
    assert bench.api("CONSUMER.CREATE.T.x", body)["error"]["err_code"] == 10059
    assert bench.api("CONSUMER.CREATE.S.x", b"{nope")["error"]["err_code"] == 10025


def test_names_and_lists_come_in_pages() -> None:
    bench = ConsumerHarness()
    for i in range(300):
        bench.define(f"c{i:03d}", durable_name=f"c{i:03d}")
    page = bench.api("CONSUMER.LIST.S", {"offset": 250})
    assert (page["total"], page["offset"], page["limit"]) == (300, 250, 256)
    assert [one["name"] for one in page["consumers"]] == [f"c{i:03d}" for i in range(250, 300)]
    assert len(bench.api("CONSUMER.LIST.S")["consumers"]) == 256
    assert bench.api("CONSUMER.NAMES.S", {"offset": 299})["consumers"] == ["c299"]


def test_unknown_consumers_are_not_found() -> None:
    bench = ConsumerHarness()
    for request in ("INFO", "DELETE"):
        answer = bench.api(f"CONSUMER.{request}.S.nope")
        assert answer["error"]["err_code"] == 10014
        assert answer["type"] == f"{TYPE}consumer_{request.lower()}_response"


def test_a_stream_takes_as_many_consumers_as_it_says() -> None:
    bench = ConsumerHarness(stream={"max_consumers": 1})
    bench.define("a")
    assert bench.define("b")["error"]["err_code"] == 10026
    bench.api("CONSUMER.DELETE.S.a")
    assert "error" not in bench.define("b")


def test_deleting_tells_waiting_pulls_and_forgets_the_consumer() -> None:
    bench = ConsumerHarness()
    bench.consumer("x", durable_name="x")
    inbox = bench.pull("x", {"batch": 1, "expires": SECOND})
    assert bench.api("CONSUMER.DELETE.S.x") == {"type": TYPE + "consumer_delete_response", "success": True}
    assert inbox.statuses() == ["409 Consumer Deleted"]
    assert bench.restarted().api("CONSUMER.NAMES.S")["consumers"] == []


def test_creating_and_deleting_are_announced_where_a_client_listens() -> None:
    bench = ConsumerHarness()
    heard = bench.listen(b"$JS.EVENT.ADVISORY.CONSUMER.>")
    bench.define("x")
    bench.api("CONSUMER.DELETE.S.x")
    assert [subject for subject, _, _ in heard] == [
        b"$JS.EVENT.ADVISORY.CONSUMER.CREATED.S.x",
        b"$JS.EVENT.ADVISORY.CONSUMER.DELETED.S.x",
    ]


def test_an_unused_ephemeral_goes_after_its_threshold_and_a_durable_stays() -> None:
    bench = ConsumerHarness()
    bench.define("e", ack_policy="explicit")
    bench.define("d", ack_policy="explicit", durable_name="d")
    bench.pass_time(4 * SECOND)
    bench.pull("e", {"batch": 1, "expires": 3 * SECOND})
    bench.pass_time(7 * SECOND)
    assert bench.api("CONSUMER.NAMES.S")["consumers"] == ["d", "e"]
    bench.pass_time(2 * SECOND)
    assert bench.api("CONSUMER.NAMES.S")["consumers"] == ["d"]


def test_messages_that_may_still_be_acked_keep_an_unused_consumer() -> None:
    """Its user may work on them until their ack waits end."""
    bench = ConsumerHarness()
    bench.define("e", ack_policy="explicit", ack_wait=10 * SECOND)
    bench.store_messages("s.1", "s.2")
    bench.pull("e", {"batch": 2})
    bench.pass_time(15 * SECOND - 1)
    assert bench.api("CONSUMER.NAMES.S")["consumers"] == ["e"]
    bench.pass_time(1)
    assert bench.api("CONSUMER.NAMES.S")["consumers"] == []


@pytest.mark.parametrize("body", [b"", b"-NAK", b"+WPI", b"no ack"])
def test_what_comes_to_its_ack_subjects_starts_a_consumers_threshold_again(body: bytes) -> None:
    bench = ConsumerHarness()
    bench.define("e", ack_policy="explicit", ack_wait=SECOND)
    bench.store_messages("s.1")
    (message,) = bench.pull("e", {"batch": 1}).take()
    bench.pass_time(4 * SECOND)
    bench.ack(message, body)
    bench.tick()
    bench.pass_time(5 * SECOND - 1)
    assert bench.api("CONSUMER.NAMES.S")["consumers"] == ["e"]
    bench.pass_time(1 + SECOND)  # +WPI begins another ack wait
    assert bench.api("CONSUMER.NAMES.S")["consumers"] == []


def test_a_durable_with_a_threshold_goes_as_well() -> None:
    bench = ConsumerHarness()
    bench.define("d", ack_policy="explicit", durable_name="d", inactive_threshold=SECOND)
    bench.pass_time(SECOND)
    assert bench.api("CONSUMER.NAMES.S")["consumers"] == []
