"""Message schedules: those waiting in a stream, and their cancellation."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping

import msgspec

from penstock.errors import MessageNotFoundError, MisuseError
from penstock.protocol.headers import SCHEDULE, SCHEDULE_TARGET
from penstock.web.request_checks import checked_name, checked_subject
from penstock.web.views.message_views import PREVIEW_BYTES
from penstock.web.views.stream_views import infos
from penstock.web.visitor import Visitor
from penstock.web.web_ports import Slice

STREAMS_MAX = 5000
SHOWN_MAX = 200


class CancelRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A schedule: its stream, subject and sequence."""

    stream: str
    subject: str
    seq: int


async def schedules(visitor: Visitor, query: Mapping[str, str]) -> Slice:
    """The streams that take schedules, and the schedules in one of them (`stream`) below `subject`."""
    streams, asked = [], 0
    async for info in visitor.js.streams():
        asked += 1
        if info.config.allow_msg_schedules:
            streams.append(info.config.name)
        if asked >= STREAMS_MAX:
            break
    name = query.get("stream", "") or next(iter(sorted(streams)), "")
    answer: Slice = {"streams": sorted(streams), "stream": name, "rows": [], "total": 0}
    if not name:
        return answer
    stream = await visitor.js.stream(checked_name(name, "stream"))
    wanted = query.get("subject", "").strip()
    filters = [checked_subject(wanted, wildcards=True)] if wanted else [">"]
    rows, total = [], 0
    for one in filters:
        subjects = sorted((await stream.info(subjects_filter=one)).state.subjects)
        total += len(subjects)

        async def last(subject: str) -> Slice | None:
            message = await stream.get_last_message(subject)
            pattern = message.headers.get(SCHEDULE)
            if not pattern:
                return None
            return {
                "subject": message.subject,
                "seq": message.seq,
                "pattern": pattern,
                "target": message.headers.get(SCHEDULE_TARGET, ""),
                "size": len(message.data),
                "data": b64encode(message.data[:PREVIEW_BYTES]).decode(),
            }

        found = await infos(last, subjects[: SHOWN_MAX * 5])
        rows += [row for row in found if row is not None]
    return answer | {"rows": rows[:SHOWN_MAX], "total": len(rows), "complete": total <= SHOWN_MAX * 5}


async def cancel(visitor: Visitor, request: CancelRequest) -> Slice:
    """Deletes a schedule that has not fired. The message must still be one."""
    stream = await visitor.js.stream(checked_name(request.stream, "stream"))
    try:
        message = await stream.get_message(request.seq)
    except MessageNotFoundError:
        return {"cancelled": False}
    if message.subject != request.subject or not message.headers.get(SCHEDULE):
        raise MisuseError(f"message {request.seq} of stream {stream.name} is not this schedule")
    await stream.delete_message(request.seq)
    return {"cancelled": True}
