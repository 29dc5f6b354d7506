"""The last message of one subject, from the stream's leader."""

from __future__ import annotations

from penstock import errors
from penstock.protocol import api
from penstock.spark.wire import BlockingConnection


def last_message(connection: BlockingConnection, stream: str, subject: str) -> api.StoredMessageBody | None:
    """None when there is none. Raises StreamNotFoundError and what `BlockingConnection.api` raises."""
    request = api.MsgGetRequest(last_by_subj=subject)
    try:
        return connection.api(api.MsgGetResponse, f"STREAM.MSG.GET.{stream}", request).message
    except errors.MessageNotFoundError:
        return None
