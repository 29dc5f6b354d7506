"""Requests for stored messages, and pub acks."""

from __future__ import annotations

from typing import Annotated

import msgspec

from penstock.protocol.api.base import TYPE_PREFIX, ZERO_TIME, ApiError, Rfc3339, always


class PubAck(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The reply to a publish. On error, `error` is set and `seq` is 0."""

    error: ApiError | None = None
    stream: str = always("")
    seq: int = always(0)
    domain: str = ""
    duplicate: bool = False
    val: str = ""  # counters: the value after the publish
    batch: str = ""
    count: int = 0


class StoredMessageBody(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A stored message. `hdrs` and `data` are bytes here, base64 in JSON."""

    subject: str = always("")
    seq: int = always(0)
    hdrs: bytes = b""
    data: bytes = b""
    time: Rfc3339 = always(ZERO_TIME)


class MsgGetRequest(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Body of STREAM.MSG.GET and of DIRECT.GET; the second group of fields is for direct gets only."""

    seq: Annotated[int, msgspec.Meta(ge=0)] = 0
    last_by_subj: str = ""
    next_by_subj: str = ""
    start_time: Rfc3339 | None = None
    no_hdr: bool = False

    batch: int = 0
    max_bytes: int = 0
    multi_last: list[str] = []
    up_to_seq: Annotated[int, msgspec.Meta(ge=0)] = 0
    up_to_time: Rfc3339 | None = None


class MsgGetResponse(msgspec.Struct, omit_defaults=True, kw_only=True):
    type: str = always(TYPE_PREFIX + "stream_msg_get_response")
    message: StoredMessageBody | None = None


class MsgDeleteRequest(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    seq: Annotated[int, msgspec.Meta(ge=0)] = always(0)
    no_erase: bool = False
