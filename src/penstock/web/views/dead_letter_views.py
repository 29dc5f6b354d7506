"""Dead letters: the streams that hold them, a list, and replay.

A consumer with the metadata `penstock.dead_letter` moves messages it gives up to that subject, with headers
that say where they came from. Replay publishes a letter's payload and own headers to its original subject,
and expects its original stream there. The message id `redrive:<stream>:<sequence>`, which `penstock pipeline
dead-letters` uses as well, keeps a letter from being replayed twice within the duplicate window.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec

from penstock.client.config import ConsumerInfo
from penstock.client.direct import StoredMessage
from penstock.client.stream import Stream
from penstock.errors import MisuseError, NotFoundError, PenstockError
from penstock.web.problems import text_of
from penstock.web.request_checks import checked_name, checked_subject, natural_number
from penstock.web.views.message_reading import MessageFilter, read_newest
from penstock.web.views.message_views import PREVIEW_BYTES, ROWS, ROWS_MAX, SEQ_MAX, message_row
from penstock.web.views.stream_views import infos
from penstock.web.visitor import Visitor
from penstock.web.web_ports import Slice

METADATA = "penstock.dead_letter"
PREFIX = "Penstock-Dead-Letter-"
FACTS = ("Stream", "Consumer", "Subject", "Sequence", "Time", "Deliveries", "Reason")
STREAMS_ASKED_MAX = 1000
CONSUMERS_ASKED_MAX = 100
FRESH_S = 30.0
REPLAYS_MAX = 100


class ReplayRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Letters of a stream by sequence. remove: delete each letter that was published."""

    stream: str
    sequences: list[int]
    remove: bool = False


async def dead_letters(visitor: Visitor, query: Mapping[str, str]) -> Slice:
    """The streams with dead letters, and the newest letters of one of them (`stream`)."""
    streams, complete = await _streams_with_letters(visitor)
    name = query.get("stream", "") or next(iter(sorted(streams)), "")
    answer: Slice = {
        "streams": [{"name": one, "sources": streams[one]} for one in sorted(streams)],
        "complete": complete,
        "stream": name,
        "rows": [],
        "more": 0,
    }
    if not name:
        return answer
    stream = await visitor.js.stream(checked_name(name, "stream"))
    seq = natural_number(query, "seq", 0, SEQ_MAX)
    wanted = MessageFilter(
        header=f"{PREFIX}Stream", value=query.get("origin", ""), last=seq - 1 if seq else 2**63
    )
    limit = max(1, natural_number(query, "limit", ROWS, ROWS_MAX))
    found = await read_newest(stream, wanted, limit)
    rows = [_letter_row(one) for one in reversed(found.messages)]
    return answer | {"rows": rows, "more": found.more, "messages": stream.cached_info.state.messages}


async def replay(visitor: Visitor, request: ReplayRequest) -> Slice:
    """Publishes letters to their original subjects; returns what became of each."""
    if not 0 < len(request.sequences) <= REPLAYS_MAX:
        raise MisuseError(f"replay takes 1 to {REPLAYS_MAX} letters at once")
    stream = await visitor.js.stream(checked_name(request.stream, "stream"))
    results = []
    for seq in request.sequences:  # in order, as they were written
        try:
            results.append({"seq": seq, **await _replay_one(visitor, stream, seq, request.remove)})
        except PenstockError as error:
            results.append({"seq": seq, "error": text_of(error)})
    return {"results": results}


async def _replay_one(visitor: Visitor, stream: Stream, seq: int, remove: bool) -> Slice:
    letter = await stream.get_message(seq)
    subject, origin = letter.headers.get(f"{PREFIX}Subject"), letter.headers.get(f"{PREFIX}Stream")
    if not subject or not origin:
        raise MisuseError(f"message {seq} of stream {stream.name} is no dead letter")
    own: dict[str, list[str]] = {}
    for name, value in letter.headers.pairs():
        if not name.startswith(PREFIX) and not name.lower().startswith("nats-"):
            own.setdefault(name, []).append(value)
    ack = await visitor.js.publish(
        checked_subject(subject, wildcards=False),
        letter.data,
        headers=own or None,
        msg_id=f"redrive:{stream.name}:{seq}",
        expected_stream=origin,
    )
    done: Slice = {"stream": ack.stream, "at": ack.seq, "duplicate": ack.duplicate}
    if remove:
        try:
            await stream.delete_message(seq)
        except PenstockError as error:
            done["kept"] = text_of(error)
    return done


def _letter_row(letter: StoredMessage) -> Slice:
    row = message_row(letter, PREVIEW_BYTES)
    return row | {name.lower(): letter.headers.get(f"{PREFIX}{name}", "") for name in FACTS} | {
        "time": row["time"],
        "first_time": letter.headers.get(f"{PREFIX}Time", ""),
        "own_subject": row["subject"],
    }  # fmt: skip


async def _streams_with_letters(visitor: Visitor) -> tuple[dict[str, list[str]], bool]:
    """Streams that receive dead letters, with the consumers that send them; whether all consumers were asked.

    Remembered for FRESH_S: it takes a request for each stream with consumers.
    """
    now = asyncio.get_running_loop().time()
    known = visitor.notes.get("dead letters")
    if known is not None and now - known[0] < FRESH_S:
        return known[1], known[2]
    js = visitor.js
    asked: list[str] = []
    complete = True
    async for info in js.streams():
        if info.state.consumer_count:
            if len(asked) >= STREAMS_ASKED_MAX:
                complete = False
                break
            asked.append(info.config.name)
    subjects: dict[str, list[str]] = {}
    for consumers in await infos(lambda name: _consumers(js.stream, name), asked):
        complete = complete and len(consumers) < CONSUMERS_ASKED_MAX
        for consumer in consumers:
            subject = (consumer.config.metadata or {}).get(METADATA)
            if subject:
                subjects.setdefault(subject, []).append(f"{consumer.stream_name} > {consumer.name}")
    found: dict[str, list[str]] = {}
    for subject, sources in subjects.items():
        for name in await js.stream_names(subject):
            found.setdefault(name, []).extend(sources)
    visitor.notes["dead letters"] = (now, found, complete)
    return found, complete


async def _consumers(open_stream: object, name: str) -> list[ConsumerInfo]:
    assert callable(open_stream)
    stream: Stream = await open_stream(name)
    found: list[ConsumerInfo] = []
    try:
        async for info in stream.consumers():
            found.append(info)
            if len(found) >= CONSUMERS_ASKED_MAX:
                break
    except NotFoundError:
        pass
    return found
