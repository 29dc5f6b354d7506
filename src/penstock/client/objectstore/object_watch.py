"""Watches of an object store: objects as they are put, changed and deleted (ADR-20)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.client.jsmsg import JsMsg
from penstock.client.keyvalue.key_writes import bucket_not_found
from penstock.client.marked import Watch
from penstock.client.objectstore.object_info import ObjectInfo, decode_info
from penstock.errors import BucketNotFoundError

if TYPE_CHECKING:
    from penstock.client.stream import Stream


class ObjectWatcher(Watch[ObjectInfo]):
    """Created by `ObjectStore.watch`. Iterate it, or use it in `async with`, which ends it.

    It yields objects, and once None: the current ones were delivered (not with updates_only).
    """

    def __init__(
        self, stream: Stream, bucket: str, settings: dict[str, Any], *, ignore_deletes: bool
    ) -> None:
        super().__init__(stream, settings)
        self._bucket = bucket
        self._ignore_deletes = ignore_deletes

    def __repr__(self) -> str:
        return f"<ObjectWatcher of store {self._bucket!r}>"

    def _not_found(self) -> BucketNotFoundError:
        return bucket_not_found(self._bucket)

    def _decode(self, msg: JsMsg) -> ObjectInfo | None:
        delivery = msg.metadata
        info = decode_info(msg.data, self._bucket, delivery.stream_seq, delivery.timestamp_ns)
        return None if self._ignore_deletes and info.deleted else info
