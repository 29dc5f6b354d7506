"""Bodies that are JSON but no request: `null`, texts, numbers, arrays. Both servers answer alike.

Clients send them: what has no body is `null` in Rust's JSON. Silence is an answer too.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import nats
import nats.errors
import pytest

from tests.support.nats_servers import find_official_server

pytestmark = [
    pytest.mark.feature("stream.api-errors"),
    pytest.mark.official,
    pytest.mark.skipif(find_official_server() is None, reason="no official nats-server"),
]

BODIES = (b"null", b" null ", b'""', b"1", b"true", b"[]", b"{}", b" {} ", b"{ }", b"x")
ENDPOINTS = (
    "INFO", "STREAM.NAMES", "STREAM.LIST", "STREAM.INFO.S", "STREAM.PURGE.S",
    "STREAM.MSG.GET.S", "STREAM.MSG.DELETE.S",
    "STREAM.CREATE.T", "STREAM.UPDATE.S", "STREAM.SNAPSHOT.S", "STREAM.RESTORE.T",
    "STREAM.LEADER.STEPDOWN.S", "STREAM.PEER.REMOVE.S",
    "CONSUMER.NAMES.S", "CONSUMER.LIST.S", "CONSUMER.INFO.S.C", "CONSUMER.CREATE.S", "CONSUMER.CREATE.S.D",
    "CONSUMER.DURABLE.CREATE.S.D", "CONSUMER.PAUSE.S.C", "CONSUMER.RESET.S.C", "CONSUMER.UNPIN.S.C",
    "CONSUMER.LEADER.STEPDOWN.S.C", "CONSUMER.DELETE.S.NOPE",
    "STREAM.DELETE.NOPE", "DIRECT.GET.S", "DIRECT.GET.S.s", "CONSUMER.MSG.NEXT.S.C",
)  # fmt: skip
UNKNOWN = (
    "NOPE", "STREAM", "STREAM.NOPE.S", "STREAM.INFO", "STREAM.INFO.S.T", "STREAM.CREATE",
    "STREAM.CREATE.S.T", "STREAM.NAMES.S", "CONSUMER.INFO.S", "CONSUMER.INFO.S.C.D", "CONSUMER.NAMES",
    "CONSUMER.MSG.NEXT.S", "CONSUMER.MSG.NEXT.S.C.x", "DIRECT.GET", "STREAM.MSG.GET", "ACCOUNT.INFO.X",
    "META.LEADER.STEPDOWN", "SERVER.REMOVE", "ACCOUNT.PURGE.A", "CONSUMER.RESET.S.D", "CONSUMER.RESET.T.C",
)  # fmt: skip
# Names in another case, at every depth. What they ask for shows in the answer.
ANY_CASE = (
    ("STREAM.INFO.S", b'{"Deleted_Details":true}'), ("STREAM.INFO.S", b'{"Deleted_Detail":true}'),
    ("STREAM.NAMES", b'{"Subject":"zz"}'), ("STREAM.PURGE.S", b'{"KEEP":1,"Seq":4}'),
    ("STREAM.MSG.GET.S", b'{"SEQ":9}'), ("STREAM.MSG.GET.S", b'{"SEQ":1}'),
    ("DIRECT.GET.S", b'{"SEQ":9}'), ("DIRECT.GET.S", b'{"Last_By_Subj":"t"}'),
    ("STREAM.CREATE.T", b'{"NAME":"T","Subjects":["t"],"MIRROR":{"NAME":"S"}}'),
    ("STREAM.CREATE.T", b'{"NAME":"U","name":"U","Name":"T"}'),
    ("STREAM.CREATE.T", '{"name":"T","\N{LATIN SMALL LETTER LONG S}ubjects":["t","t"]}'.encode()),
    ("CONSUMER.CREATE.S.D", b'{"Stream_Name":"S","CONFIG":{"NAME":"D","ACK_POLICY":"explicit"}}'),
    ("CONSUMER.CREATE.S.D", b'{"stream_name":"S","config":{"name":"D","BackOff":[1],"Max_Deliver":1}}'),
    ("CONSUMER.RESET.S.C", b'{"SEQ":0}'), ("CONSUMER.RESET.S.C", b'{"Seq":"x"}'),
    ("CONSUMER.PAUSE.S.C", b'{"Pause_Until":"x"}'), ("CONSUMER.UNPIN.S.C", b'{"GROUP":"a"}'),
    ("CONSUMER.MSG.NEXT.S.C", b'{"Batch":-1,"Expires":-1}'),
)  # fmt: skip


async def outcome(nc: Any, subject: str, body: bytes) -> Any:
    """Status or error code of the answer, "ok", or None when there is none."""
    try:
        message = await nc.request("$JS.API." + subject, body, timeout=0.25)
    except nats.errors.TimeoutError:
        return None
    except nats.errors.NoRespondersError:
        return "503"
    if message.headers and "Status" in message.headers:
        return message.headers["Status"], message.headers.get("Description")
    try:
        answer = json.loads(message.data)
    except ValueError:
        return message.data[:40]
    if not isinstance(answer, dict):
        return message.data[:40]
    if "error" in answer:
        return answer["error"]["code"], answer["error"].get("err_code")
    return "ok"


async def outcomes(url: str, requests: list[tuple[str, bytes]]) -> list[Any]:
    nc = await nats.connect(url, max_reconnect_attempts=0)
    found = []
    try:
        for subject, body in requests:
            if subject.split(".")[0] != "INFO":
                await nc.request("$JS.API.STREAM.DELETE.S", timeout=5)
                await nc.request("$JS.API.STREAM.DELETE.T", timeout=5)
                config = {"name": "S", "subjects": ["s"], "storage": "memory", "allow_direct": True}
                await nc.request("$JS.API.STREAM.CREATE.S", json.dumps(config).encode(), timeout=5)
                await nc.request("s", b"x", timeout=5)
                made = {"stream_name": "S", "config": {"durable_name": "C", "ack_policy": "explicit"}}
                await nc.request("$JS.API.CONSUMER.DURABLE.CREATE.S.C", json.dumps(made).encode(), timeout=5)
            found.append(await outcome(nc, subject, body))
        return found
    finally:
        await nc.close()


async def differences(urls: dict[str, str], requests: list[tuple[str, bytes]]) -> dict[Any, Any]:
    official, ours = await asyncio.gather(
        *(outcomes(urls[kind], requests) for kind in ("official", "penstock"))
    )
    return {
        request: {"official": expected, "penstock": found}
        for request, expected, found in zip(requests, official, ours, strict=True)
        if expected != found
    }


@pytest.mark.parametrize("endpoint", ENDPOINTS)
async def test_a_body_that_is_no_request_is_answered_as_there(urls: dict[str, str], endpoint: str) -> None:
    left_out = {
        "STREAM.RESTORE.T": b" null ",  # a second restore of one name finds the first one at work
        "STREAM.PURGE.S": b"x",  # removes every message there, and is refused here
    }
    bodies = [body for body in BODIES if body != left_out.get(endpoint)]
    assert await differences(urls, [(endpoint, body) for body in bodies]) == {}


async def test_an_unknown_subject_of_the_api_is_met_with_the_same_silence(urls: dict[str, str]) -> None:
    assert await differences(urls, [(subject, b"") for subject in UNKNOWN]) == {}


@pytest.mark.parametrize("request_", ANY_CASE, ids=lambda one: f"{one[0]} {one[1].decode()}")
async def test_names_in_another_case_are_read_as_there(
    urls: dict[str, str], request_: tuple[str, bytes]
) -> None:
    assert await differences(urls, [request_]) == {}
