"""The transcripts of the specification, with `penstock` in place of `nats`, against both servers."""

from __future__ import annotations

import shlex
import time
from typing import Any

import pytest

from tests.support.command_line import CommandLine, Ran

pytestmark = pytest.mark.feature("cli.commands", "consumer.counters")

ORDERS = """stream add ORDERS --storage file --subjects "ORDERS.*" --ack --retention limits --discard old
    --max-msgs=-1 --max-bytes=-1 --max-age=1y --max-msg-size=-1"""


def say(run: CommandLine, line: str) -> Ran:
    """Run a line as a shell would."""
    return run(*shlex.split(line))


@pytest.fixture(autouse=True)
def orders(run: CommandLine) -> None:
    say(run, ORDERS)


def test_duplicates_are_stored_once(run: CommandLine) -> None:
    for number in range(1, 5):
        assert '"stream":"ORDERS"' in say(run, f"req -H Nats-Msg-Id:1 ORDERS.new hello{number}").out
    rows = say(run, "stream info ORDERS").rows
    # 67 B in the documents: their message was shorter. Both servers count what their storage section says.
    assert (rows["Messages"], rows["Bytes"]) == ("1", f"{4 + 8 + 8 + 2 + 10 + 4 + 28 + 6 + 8} B")


def test_acks_and_redeliveries_are_counted(run: CommandLine) -> None:
    """Servers of the documents showed the sequence to deliver next; those of today the last one."""
    say(
        run,
        "consumer add ORDERS DISPATCH --filter ORDERS.processed --ack explicit --pull --deliver all "
        "--max-deliver=-1 --sample 100 --wait 200ms",
    )
    assert say(run, "str info ORDERS").rows["Messages"] == "0"

    def state() -> list[int]:
        info: dict[str, Any] = say(run, "con info ORDERS DISPATCH --json").json
        pairs = [
            info[name][key] for name in ("delivered", "ack_floor") for key in ("consumer_seq", "stream_seq")
        ]
        return [*pairs, info["num_ack_pending"], info["num_redelivered"]]

    assert state() == [0, 0, 0, 0, 0, 0]
    assert 'Published 7 bytes to "ORDERS.processed"' in say(run, 'pub ORDERS.processed "order 4"').out
    rows = say(run, "str info ORDERS").rows
    assert (rows["Messages"], rows["Bytes"], rows["Active Consumers"]) == ("1", "53 B", "1")
    got = say(run, "con next ORDERS DISPATCH").out
    assert "order 4" in got and "Acknowledged message" in got
    assert state() == [1, 1, 1, 1, 0, 0]
    say(run, 'pub ORDERS.processed "order 5"')
    got = say(run, "consumer next ORDERS DISPATCH --no-ack").out
    assert "order 5" in got and "Acknowledged" not in got
    assert state() == [2, 2, 1, 1, 1, 0]
    say(run, "consumer next ORDERS DISPATCH --no-ack")  # waits until the ack of the first delivery is overdue
    assert state() == [3, 2, 1, 1, 1, 1]
    assert "Acknowledged message" in say(run, "consumer next ORDERS DISPATCH").out
    assert state() == [4, 2, 4, 2, 0, 0]
    page = say(run, "consumer info ORDERS DISPATCH").out
    assert "Last Delivered Message: Consumer sequence: 4 Stream sequence: 2" in page
    assert "Sampling Rate: 100" in page


def test_consumers_begin_where_they_should(run: CommandLine) -> None:
    say(run, 'pub ORDERS.processed "order {{Count}}" --count 100')
    common = "--pull --filter ORDERS.processed --ack none --replay instant"
    for name, deliver, order in (
        ("ALL", "all", 1),
        ("LAST", "last", 100),
        ("TEN", "10", 10),
        ("2MIN", "2m", 1),
    ):
        say(run, f"consumer add ORDERS {name} {common} --deliver {deliver}")
        assert say(run, f"consumer next ORDERS {name} --raw").out == f"order {order}\n"
    say(run, "stream purge ORDERS -f")
    assert say(run, "stream info ORDERS").rows["Messages"] == "0"


def test_an_ephemeral_push_consumer_needs_no_name(run: CommandLine) -> None:
    say(run, "consumer add ORDERS --filter '' --ack none --target my.monitor --deliver last --replay instant "
        "--ephemeral")  # fmt: skip
    say(run, "consumer add ORDERS MONITOR --filter '' --ack none --target monitor.ORDERS --deliver last "
        "--replay instant")  # fmt: skip
    assert "MONITOR" in say(run, "consumer ls ORDERS --names").out


def test_messages_are_replayed_at_their_pace(run: CommandLine) -> None:
    for number in range(1, 3):
        say(run, f'pub ORDERS.processed "order {number}"')
    times = [say(run, f"stream get ORDERS {seq} --json").json["time"] for seq in (1, 2)]
    line = "consumer add ORDERS REPLAY --filter ORDERS.processed --ack none --deliver all --sample 100"
    page = say(run, f"{line} --replay original --target out.original").out
    assert "Replay Policy: Original" in page
    from datetime import datetime

    apart_s = (datetime.fromisoformat(times[1]) - datetime.fromisoformat(times[0])).total_seconds()
    started = time.monotonic()
    assert say(run, "consumer sub ORDERS REPLAY --raw --count 2").out == "order 1\norder 2\n"
    assert time.monotonic() - started >= apart_s * 0.9


def test_a_stream_places_its_replicas_by_tag(run: CommandLine) -> None:
    """One server can't hold three replicas; it refuses the placement, and not the command line."""
    ran = run.run(*shlex.split("stream add R3 --subjects r3 --replicas 3 --tag sync:always"))
    assert ran.status == 1
    assert "replicas" in ran.err or "peers" in ran.err or "placement" in ran.err
