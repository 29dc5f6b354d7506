"""Object stores of an account: create, update, open, delete and list them (ADR-20). A part of `JetStream`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Unpack

from penstock.client.keyvalue.key_writes import bucket_not_found
from penstock.client.objectstore.object_config import (
    STREAM_PREFIX,
    ObjectStoreConfig,
    ObjectStoreSettings,
    ObjectStoreStatus,
    make_store_config,
    store_config_of,
    store_differences,
    store_status_of,
    store_stream_config,
    stream_of_store,
)
from penstock.client.objectstore.object_store import ObjectStore
from penstock.errors import AlreadyExistsError, BucketExistsError, BucketNotFoundError, StreamNotFoundError

if TYPE_CHECKING:
    from penstock.client.jetstream import JetStream


class ObjectStoreManager(ABC):
    """Management of object stores."""

    @abstractmethod
    def _context(self) -> JetStream:
        """The context that sends the requests."""

    async def create_object_store(
        self, config: ObjectStoreConfig | str, /, **settings: Unpack[ObjectStoreSettings]
    ) -> ObjectStore:
        """Create an object store, or return an existing one with the same configuration.

        config: a name or a configuration. settings: fields of ObjectStoreConfig.

        Raises BucketExistsError, which lists what differs, InvalidBucketError, MisuseError for an unknown
        setting, and JetStreamApiError.
        """
        js = self._context()
        made = make_store_config(config, dict(settings))
        wanted = store_stream_config(made)
        try:
            return ObjectStore(js, (await js.create_stream(wanted)).cached_info)
        except AlreadyExistsError as error:
            found = (await js.stream_info(wanted.name)).config
            differing = "; ".join(store_differences(found, wanted))
            text = f"object store {made.bucket!r} exists with another configuration ({differing})"
            advice = "open it by object_store(), or change it by update_object_store()"
            raise BucketExistsError(
                error.code, error.err_code, f"{text}: {advice}", bucket=made.bucket
            ) from error

    async def update_object_store(
        self, config: ObjectStoreConfig | str, /, **settings: Unpack[ObjectStoreSettings]
    ) -> ObjectStore:
        """Update an object store. With a name, settings change single fields; a configuration replaces all.

        Raises BucketNotFoundError, and what `create_object_store` raises for invalid settings.
        """
        js = self._context()
        bucket = config if isinstance(config, str) else config.bucket
        try:
            stored = (await js.stream_info(stream_of_store(bucket))).config
            made = make_store_config(config, dict(settings), store_config_of(stored))
            return ObjectStore(js, (await js.update_stream(store_stream_config(made, stored))).cached_info)
        except StreamNotFoundError as error:
            raise bucket_not_found(bucket) from error

    async def create_or_update_object_store(
        self, config: ObjectStoreConfig | str, /, **settings: Unpack[ObjectStoreSettings]
    ) -> ObjectStore:
        """Update the object store if it exists, else create it."""
        try:
            return await self.update_object_store(config, **settings)
        except BucketNotFoundError:
            return await self.create_object_store(config, **settings)

    async def object_store(self, bucket: str) -> ObjectStore:
        """Open an object store. Raises BucketNotFoundError, InvalidBucketError."""
        try:
            return ObjectStore(self._context(), await self._context().stream_info(stream_of_store(bucket)))
        except StreamNotFoundError as error:
            raise bucket_not_found(bucket) from error

    async def delete_object_store(self, bucket: str) -> None:
        """Delete an object store with its objects. Raises BucketNotFoundError, InvalidBucketError."""
        try:
            await self._context().delete_stream(stream_of_store(bucket))
        except StreamNotFoundError as error:
            raise bucket_not_found(bucket) from error

    async def object_store_names(self) -> list[str]:
        """Names of all object stores."""
        names = await self._context().stream_names()
        return [name.removeprefix(STREAM_PREFIX) for name in names if name.startswith(STREAM_PREFIX)]

    async def object_store_statuses(self) -> AsyncIterator[ObjectStoreStatus]:
        """Yield the status of every object store."""
        async for info in self._context().streams():
            if info.config.name.startswith(STREAM_PREFIX):
                yield store_status_of(info)
