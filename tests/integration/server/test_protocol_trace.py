"""Protocol lines in the log, compared with the official server's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.server.auth.client_identity import SHOWN_MAX, quoted_text
from penstock.server.logging.protocol_trace import cut, quoted
from tests.support.nats_servers import KINDS
from tests.support.processes import served
from tests.support.rawnats import RawNats

pytestmark = pytest.mark.feature("operations.logging")

HEAD = b"NATS/1.0\r\nA: b\r\n\r\n"
PREFIX = re.compile(r"^127\.0\.0\.1:\d+ - [cw]id:\d+ - ")
PING_LINES = {"<<- [PING]", "->> [PONG]"}


def traced(kind: str, directory: Path, conf: str, *flags: str) -> list[str]:
    """What a session of one client leaves as trace lines, without its CONNECT and pings."""
    with served(kind, directory, conf, *flags) as server:
        client = RawNats(server.port)
        client.subscribe("foo", 1)
        client.send(b"SUB bar group 2\r\n")
        client.send(b"PUB foo 5\r\nhello\r\n")
        client.send(b'PUB foo _R 13\r\n\x00\xff\xc3\xa9"\\\r\nword\r\n\r\n'.replace(b"word\r\n", b"word!"))
        client.send(b"HPUB foo _R %d %d\r\n%shello\r\n" % (len(HEAD), len(HEAD) + 5, HEAD))
        client.send(b"PUB nobody 0\r\n\r\n")
        client.send(b"UNSUB 1\r\nUNSUB 9 3\r\n")
        client.flush()
        server.wait_for("[UNSUB 9 3]")
        lines = [PREFIX.sub("", line) for line in server.lines("TRC")]
        client.close()
    return [
        line for line in lines if line not in PING_LINES and "CONNECT" not in line and "DELSUB 2" not in line
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_messages_are_shown_with_their_payload(kind: str, tmp_path: Path) -> None:
    assert [line.replace("  ", " ") for line in traced(kind, tmp_path, "trace: true")] == [
        "<<- [SUB foo 1]",
        "<<- [SUB bar group 2]",
        "<<- [PUB foo 5]",
        '<<- MSG_PAYLOAD: ["hello"]',
        "->> [MSG foo 1 5]",
        '->> MSG_PAYLOAD: ["hello"]',
        "<<- [PUB foo _R 13]",
        '<<- MSG_PAYLOAD: ["\\x00\\xffé\\"\\\\\\r\\nword!"]',
        "->> [MSG foo 1 _R 13]",
        '->> MSG_PAYLOAD: ["\\x00\\xffé\\"\\\\\\r\\nword!"]',
        "<<- [HPUB foo _R 18 23]",
        '<<- MSG_PAYLOAD: ["NATS/1.0\\r\\nA: b\\r\\n\\r\\nhello"]',
        "->> [HMSG foo 1 _R 18 23]",
        '->> MSG_PAYLOAD: ["NATS/1.0\\r\\nA: b\\r\\n\\r\\nhello"]',
        "<<- [PUB nobody 0]",
        "<<- [UNSUB 1]",
        "<-> [DELSUB 1]",
        "<<- [UNSUB 9 3]",
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_payload_is_cut_at_the_length_that_is_allowed(kind: str, tmp_path: Path) -> None:
    lines = traced(kind, tmp_path, "", "-V", "--max_traced_msg_len", "7")
    assert [line for line in lines if line.startswith("<<- MSG_PAYLOAD")] == [
        '<<- MSG_PAYLOAD: ["hello"]',
        '<<- MSG_PAYLOAD: ["\\x00\\xffé\\"\\\\\\r..."]',
        '<<- MSG_PAYLOAD: ["NATS/1...."]',
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_headers_alone_may_be_shown(kind: str, tmp_path: Path) -> None:
    lines = traced(kind, tmp_path, "trace_headers: true")
    assert [line for line in lines if "MSG_PAYLOAD" in line] == [
        '<<- MSG_PAYLOAD: ["NATS/1.0\\r\\nA: b"]',
        '->> MSG_PAYLOAD: ["NATS/1.0\\r\\nA: b"]',
    ]
    assert "->> [HMSG foo 1 _R 18 23]" in lines


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("flag", "shown"), [("-V", False), ("-VV", True), ("-DVV", True)])
def test_what_the_server_says_in_the_system_account_is_shown_when_asked_for(
    kind: str, flag: str, shown: bool, tmp_path: Path
) -> None:
    conf = "accounts { SYS: { users: [ {user: s, password: s} ] } }\nsystem_account: SYS\n"
    with served(kind, tmp_path, conf, flag) as server:
        client = RawNats(server.port, user="s", **{"pass": "s"})
        client.request("$SYS.REQ.SERVER.PING.IDZ")
        client.flush()
        lines = server.lines("TRC")
        client.close()
    assert any("[PUB $SYS.REQ.SERVER.PING.IDZ" in line for line in lines)
    own = [line for line in lines if line.startswith("SYSTEM - ")]
    assert any("[PUB _R.test" in line for line in own) is shown


@pytest.mark.parametrize("kind", KINDS)
def test_lines_name_the_client_and_its_user(kind: str, tmp_path: Path) -> None:
    conf = "authorization { user: a, password: b }\n"
    with served(kind, tmp_path, conf, "-V") as server:
        client = RawNats(server.port, user="a", **{"pass": "b"}, name="n", lang="raw", version="1.2")
        client.subscribe("x", 1)
        client.flush()
        (line,) = [line for line in server.lines("TRC") if "SUB x" in line]
        client.close()
    assert PREFIX.sub("", line) == '"v1.2:raw:n" - "$G/user:a" - <<- [SUB x 1]'


def test_lines_show_the_beginning_of_long_client_text() -> None:
    assert quoted_text("a" * SHOWN_MAX) == "a" * SHOWN_MAX
    assert quoted_text("a" * SHOWN_MAX + "b") == "a" * SHOWN_MAX + "..."
    assert quoted_text("\0" * 700_000) == "\\x00" * SHOWN_MAX + "..."


def test_bytes_are_quoted_as_go_quotes_them() -> None:
    assert quoted(b"\a\b\f\n\r\t\v\\\"'") == "\\a\\b\\f\\n\\r\\t\\v\\\\\\\"'"
    assert quoted(b"\x01\x7f\x80") == "\\x01\\x7f\\x80"
    assert quoted("é\u00ad\u200b\U0001f600".encode()) == "é\\u00ad\\u200b\U0001f600"
    every = "".join(map(chr, range(0x10000, 0x30000)))  # more characters than are remembered
    assert [quoted(every.encode()) for _ in range(2)] == [every.translate(
        {ord(char): f"\\U{ord(char):08x}" for char in every if not char.isprintable()}
    )] * 2  # fmt: skip
    assert cut(b"abc", 0) == cut(b"abc", 3) == "abc"
    assert cut(b"abc", 2) == "ab..."
