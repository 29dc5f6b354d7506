"""The core protocol, byte for byte: what a client sends and what it gets back.

The same transcripts run against the official server where there is one, so that this file can't come to
describe a server of our own invention. They run three times: sent at once, byte by byte, in two halves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from penstock.testing import server as penstock_server
from tests.support.nats_servers import running_server
from tests.support.wire import Wire, send_slowly

pytestmark = pytest.mark.feature("core.protocol")

CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\n'
VERBOSE = CONNECT.replace(b'"verbose":false', b'"verbose":true')
PEDANTIC = CONNECT.replace(b'"pedantic":false', b'"pedantic":true')
NO_ECHO = CONNECT.replace(b"}", b',"echo":false}')
NO_HEADERS = b'CONNECT {"verbose":false,"pedantic":false}\r\n'
OTHER_CASE = CONNECT.replace(b"}", b',"Echo":false,"VERBOSE":true,"verbo\xc5\xbfe":false}')
NO_CONNECT = b""


class Transcript(NamedTuple):
    """what -- a sentence about it. sent -- after `connect`. received -- up to the close, or all there is."""

    what: str
    sent: bytes
    received: bytes
    closes: bool = False
    connect: bytes = CONNECT
    any_order: bool = False

    def is_answered_by(self, answer: bytes) -> bool:
        if self.any_order:
            return sorted(answer.split(b"MSG ")) == sorted(self.received.split(b"MSG "))
        return answer == self.received


def refusal(text: str) -> bytes:
    return f"-ERR '{text}'\r\n".encode()


UNKNOWN = refusal("Unknown Protocol Operation")
HEADER = b"NATS/1.0\r\nA: b\r\n\r\n"  # 18 bytes

STAYS = [
    Transcript("a message reaches its subscription", b"SUB a 1\r\nPUB a 2\r\nhi\r\n", b"MSG a 1 2\r\nhi\r\n"),
    Transcript("an empty payload is a message", b"SUB a 1\r\nPUB a 0\r\n\r\n", b"MSG a 1 0\r\n\r\n"),
    Transcript("a reply is handed on", b"SUB a 1\r\nPUB a r 1\r\nx\r\n", b"MSG a 1 r 1\r\nx\r\n"),
    Transcript(
        "a payload may hold line ends", b"SUB a 1\r\nPUB a 4\r\n\r\n\r\n\r\n", b"MSG a 1 4\r\n\r\n\r\n\r\n"
    ),
    Transcript(
        "headers are handed on",
        b"SUB a 1\r\nHPUB a 18 20\r\n" + HEADER + b"hi\r\n",
        b"HMSG a 1 18 20\r\n" + HEADER + b"hi\r\n",
    ),
    Transcript(
        "verbs and fields may be spaced and cased freely",
        b"sub\ta\t1\r\nPub  a  0\r\n\r\n",
        b"MSG a 1 0\r\n\r\n",
    ),
    Transcript("a line may end without CR", b"SUB a 1\nPUB a 0\r\n\r\n", b"MSG a 1 0\r\n\r\n"),
    Transcript(
        "a star is one token",
        b"SUB a.*.c 1\r\nPUB a.b.c 0\r\n\r\nPUB a.b.b.c 0\r\n\r\n",
        b"MSG a.b.c 1 0\r\n\r\n",
    ),
    Transcript(
        "an arrow is one token or more",
        b"SUB a.> 1\r\nPUB a 0\r\n\r\nPUB a.b.c 0\r\n\r\n",
        b"MSG a.b.c 1 0\r\n\r\n",
    ),
    Transcript(
        "a star inside a token is a letter",
        b"SUB fo* 1\r\nPUB fo* 0\r\n\r\nPUB foo 0\r\n\r\n",
        b"MSG fo* 1 0\r\n\r\n",
    ),
    Transcript("subjects are case sensitive", b"SUB a.B 1\r\nPUB a.b 0\r\n\r\n", b""),
    Transcript(
        "one connection may hold a subject twice",
        b"SUB a 1\r\nSUB a 2\r\nPUB a 0\r\n\r\nUNSUB 1\r\nPUB a 0\r\n\r\n",
        b"MSG a 1 0\r\n\r\nMSG a 2 0\r\n\r\nMSG a 2 0\r\n\r\n",
        any_order=True,
    ),
    Transcript("UNSUB ends a subscription", b"SUB a 1\r\nUNSUB 1\r\nPUB a 0\r\n\r\n", b""),
    Transcript("UNSUB of an unknown sid is no error", b"UNSUB 7\r\n", b""),
    Transcript(
        "UNSUB with a maximum ends it after so many messages",
        b"SUB a 1\r\nUNSUB 1 2\r\n" + b"PUB a 0\r\n\r\n" * 3,
        b"MSG a 1 0\r\n\r\n" * 2,
    ),
    Transcript(
        "UNSUB with a maximum that is reached ends it at once",
        b"SUB a 1\r\n" + b"PUB a 0\r\n\r\n" * 2 + b"UNSUB 1 2\r\nPUB a 0\r\n\r\n",
        b"MSG a 1 0\r\n\r\n" * 2,
    ),
    Transcript(
        "a sid is free again after its maximum",
        b"SUB a 1\r\nUNSUB 1 1\r\nPUB a 0\r\n\r\nSUB b 1\r\nPUB b 0\r\n\r\n",
        b"MSG a 1 0\r\n\r\nMSG b 1 0\r\n\r\n",
    ),
    Transcript(
        "the first subscription of a sid stays",
        b"SUB a 1\r\nSUB b 1\r\nPUB a 0\r\n\r\nPUB b 0\r\n\r\n",
        b"MSG a 1 0\r\n\r\n",
    ),
    Transcript(
        "a queue group of one gets everything",
        b"SUB a q 1\r\n" + b"PUB a 0\r\n\r\n" * 2,
        b"MSG a 1 0\r\n\r\n" * 2,
    ),
    Transcript(
        "two queue groups get one message each",
        b"SUB a q 1\r\nSUB a p 2\r\nUNSUB 2 1\r\nUNSUB 1 1\r\nPUB a 0\r\n\r\nPUB a 0\r\n\r\n",
        b"MSG a 1 0\r\n\r\nMSG a 2 0\r\n\r\n",
        any_order=True,  # the official server picks the group it serves first by chance
    ),
    Transcript("without echo nothing comes back", b"SUB a 1\r\nPUB a 0\r\n\r\n", b"", connect=NO_ECHO),
    Transcript(
        "names in CONNECT match in any case, and the last of several wins",
        b"SUB a 1\r\nPUB a 0\r\n\r\n",
        b"",
        connect=OTHER_CASE,
    ),
    Transcript(
        "a request without subscribers is answered with 503",
        b"SUB r.* 1\r\nPUB nobody r.1 1\r\nx\r\n",
        b"HMSG r.1 1 38 38\r\nNATS/1.0 503\r\nNats-Subject: nobody\r\n\r\n\r\n",
    ),
    Transcript(
        "without no_responders it is not answered",
        b"SUB r 1\r\nPUB nobody r 0\r\n\r\n",
        b"",
        connect=NO_HEADERS,
    ),
    Transcript(
        "verbose answers what was accepted",
        b"SUB a 1\r\nPUB a 0\r\n\r\nUNSUB 1\r\n",
        b"+OK\r\n+OK\r\nMSG a 1 0\r\n\r\n+OK\r\n",
        connect=VERBOSE,
    ),
    Transcript(
        "without CONNECT a client is verbose and pedantic", b"SUB a 1\r\n", b"+OK\r\n", connect=NO_CONNECT
    ),
    Transcript(
        "a later CONNECT changes only what it names",
        b'SUB a 1\r\nCONNECT {"verbose":true,"echo":false}\r\nPUB a 0\r\n\r\n',
        b"+OK\r\n+OK\r\n",
    ),
    Transcript("null fields of CONNECT are absent", b'CONNECT {"user":null,"verbose":null}\r\n', b""),
    Transcript(
        "an invalid filter is refused", b"SUB a..b 1\r\nSUB a.>.b 1\r\n", refusal("Invalid Subject") * 2
    ),
    Transcript("an invalid publish subject is not delivered", b"SUB > 1\r\nPUB a..b 0\r\n\r\n", b""),
    Transcript(
        "pedantic says so, and routes all the same",
        b"SUB > 1\r\nPUB foo.* 0\r\n\r\n",
        refusal("Invalid Publish Subject") + b"MSG foo.* 1 0\r\n\r\n",
        connect=PEDANTIC,
    ),
    Transcript(
        "subjects between servers are closed to clients",
        b"PUB $NRG.a 0\r\n\r\n",
        refusal('Permissions Violation for Publish to "$NRG.a"'),
    ),
    Transcript("INFO and +OK from a client mean nothing", b"INFO {}\r\n+OK\r\n", b""),
]

CLOSES = [
    Transcript("an unknown verb", b"FOO\r\n", UNKNOWN, True),
    Transcript("an unknown verb shows in its first letters", b"PUX", UNKNOWN, True),
    Transcript("an empty line", b"\r\n", UNKNOWN, True),
    Transcript("a payload without its CRLF", b"PUB a 2\r\nabXY", UNKNOWN, True),
    Transcript("a server's verb", b"MSG a 1 1\r\nx\r\n", UNKNOWN, True),
    Transcript("PUB without arguments", b"PUB\r\n", UNKNOWN, True),
    Transcript("PUB without a size", b"PUB a\r\n", b"", True),
    Transcript("PUB with too many arguments", b"PUB a b c 1\r\n", b"", True),
    Transcript("PUB with a negative size", b"PUB a -1\r\n", b"", True),
    Transcript("PUB with a size that is no number", b"PUB a 1x\r\n", b"", True),
    Transcript("PUB with a size beyond all bounds", b"PUB a 99999999999999999999\r\n", b"", True),
    Transcript("a payload longer than its size", b"PUB a 1\r\nxyz\r\n", UNKNOWN, True),
    Transcript(
        "a payload above max_payload", b"PUB a 1048577\r\n", refusal("Maximum Payload Violation"), True
    ),
    Transcript(
        "headers and payload above max_payload",
        b"HPUB a 18 1048577\r\n",
        refusal("Maximum Payload Violation"),
        True,
    ),
    Transcript("headers longer than the whole", b"HPUB a 20 18\r\n", b"", True),
    Transcript(
        "HPUB on a connection without headers", b"HPUB a 18 18\r\n" + HEADER + b"\r\n", b"", True, NO_HEADERS
    ),
    Transcript("SUB without a sid", b"SUB a\r\n", b"", True),
    Transcript("SUB with too many arguments", b"SUB a b c d\r\n", b"", True),
    Transcript(
        "a control line above its limit",
        b"SUB " + b"a" * 5000,
        refusal("maximum control line exceeded"),
        True,
    ),
    Transcript("CONNECT with broken JSON", b'CONNECT {"verbose":\r\n', b"", True, NO_CONNECT),
    Transcript("CONNECT with no object", b"CONNECT []\r\n", b"", True, NO_CONNECT),
    Transcript("CONNECT without JSON", b"CONNECT\r\n", b"", True, NO_CONNECT),
    Transcript("CONNECT with a field of another type", b'CONNECT {"verbose":"x"}\r\n', b"", True, NO_CONNECT),
    Transcript(
        "an unknown protocol",
        b'CONNECT {"protocol":2}\r\n',
        refusal("invalid client protocol"),
        True,
        NO_CONNECT,
    ),
    Transcript(
        "no_responders without headers",
        b'CONNECT {"no_responders":true}\r\n',
        refusal("no responders requires headers support"),
        True,
        NO_CONNECT,
    ),
    Transcript(
        "an account by name",
        b'CONNECT {"account":"A"}\r\n',
        refusal("Authorization Violation"),
        True,
        NO_CONNECT,
    ),
    Transcript("a client that sends -ERR", b"-ERR 'x'\r\n", b"", True),
]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with penstock_server() as server:
        yield server.port


@pytest.fixture(scope="module")
def official_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with running_server("official", tmp_path_factory.mktemp("official")) as server:
        yield server.port


def whole(data: bytes) -> list[bytes]:
    return [data]


def each_byte(data: bytes) -> list[bytes]:
    return [data[i : i + 1] for i in range(len(data))]


def halves(data: bytes) -> list[bytes]:
    return [data[: len(data) // 2], data[len(data) // 2 :]]


def answered(port: int, transcript: Transcript, split: object) -> bytes:
    """Runs a transcript and returns what came back."""
    with Wire(port) as wire:
        wire.send(transcript.connect)
        if transcript.connect == VERBOSE:
            wire.until(b"+OK\r\n")
        if transcript.closes:
            send_slowly(wire, split(transcript.sent))  # type: ignore[operator]
            return wire.rest()
        send_slowly(wire, split(transcript.sent + b"PING\r\n"))  # type: ignore[operator]
        return wire.until(b"PONG\r\n").removesuffix(b"PONG\r\n")


@pytest.mark.parametrize("split", [whole, each_byte, halves])
@pytest.mark.parametrize("transcript", STAYS + CLOSES, ids=lambda transcript: transcript.what)
def test_transcript(port: int, transcript: Transcript, split: object) -> None:
    answer = answered(port, transcript, split)
    assert transcript.is_answered_by(answer), answer


@pytest.mark.official
@pytest.mark.parametrize("transcript", STAYS + CLOSES, ids=lambda transcript: transcript.what)
def test_transcript_is_that_of_the_official_server(official_port: int, transcript: Transcript) -> None:
    answer = answered(official_port, transcript, whole)
    assert transcript.is_answered_by(answer), answer


@pytest.mark.parametrize("transcript", CLOSES, ids=lambda transcript: transcript.what)
def test_a_client_that_is_closed_leaves_others_alone(port: int, transcript: Transcript) -> None:
    with Wire(port) as other:
        other.connect()
        other.ask(b"SUB still.here 9\r\n")
        answered(port, transcript, whole)
        assert other.ask(b"PUB still.here 0\r\n\r\n") == b"MSG still.here 9 0\r\n\r\n"
