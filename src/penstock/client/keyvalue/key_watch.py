"""Watches of keys: entries as they are written, after the current ones (ADR-8).

async with kv.watch("config.>") as watch:
    async for entry in watch:
        if entry is None: ...       # once: the current entries were delivered
        else: ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.client.jsmsg import JsMsg
from penstock.client.keyvalue.key_entry import KeyValueEntry, operation_of
from penstock.client.keyvalue.key_writes import bucket_not_found
from penstock.client.marked import Watch
from penstock.errors import BucketNotFoundError, MisuseError
from penstock.protocol.api import DeliverPolicy

if TYPE_CHECKING:
    from penstock.client.stream import Stream


def deliver_settings(
    *, include_history: bool, updates_only: bool, resume_from_revision: int | None
) -> dict[str, Any]:
    """Where a watch starts, as settings of its consumer. Raises MisuseError for a contradiction."""
    if updates_only and (include_history or resume_from_revision is not None):
        other = "include_history" if include_history else "resume_from_revision"
        raise MisuseError(f"a watch with updates_only has no entries from before, which {other} asks for")
    if resume_from_revision is not None:
        if resume_from_revision < 1:
            raise MisuseError(f"resume_from_revision is {resume_from_revision}; revisions start at 1")
        return {"deliver_policy": DeliverPolicy.BY_START_SEQUENCE, "opt_start_seq": resume_from_revision}
    if updates_only:
        return {"deliver_policy": DeliverPolicy.NEW}
    return {"deliver_policy": DeliverPolicy.ALL if include_history else DeliverPolicy.LAST_PER_SUBJECT}


class KeyWatcher(Watch[KeyValueEntry]):
    """Created by `KeyValue.watch`. Iterate it, or use it in `async with`, which ends it.

    It yields entries, and once None: the current entries were delivered (not with updates_only).
    """

    def __init__(
        self, stream: Stream, bucket: str, prefix: str, settings: dict[str, Any], *, ignore_deletes: bool
    ) -> None:
        super().__init__(stream, settings)
        self._bucket = bucket
        self._prefix = prefix.encode()
        self._ignore_deletes = ignore_deletes

    def __repr__(self) -> str:
        return f"<KeyWatcher of bucket {self._bucket!r}>"

    def _not_found(self) -> BucketNotFoundError:
        return bucket_not_found(self._bucket)

    def _decode(self, msg: JsMsg) -> KeyValueEntry | None:
        _, subject, _, block, data = msg.raw
        delivery = msg.metadata
        entry = KeyValueEntry(
            self._bucket,
            subject.removeprefix(self._prefix).decode(),
            data,
            delivery.stream_seq,
            delivery.timestamp_ns,
            operation_of(block),
            delivery.pending,
        )
        return None if self._ignore_deletes and entry.is_deleted else entry
