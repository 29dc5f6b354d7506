"""Buckets of an account: create, update, open, delete and list them (ADR-8). A part of `JetStream`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Unpack

from penstock.client.config import StreamConfig
from penstock.client.keyvalue.bucket_config import (
    KeyValueConfig,
    KeyValueSettings,
    KeyValueStatus,
    config_of,
    differences,
    make_key_value_config,
    status_of,
    stream_config_of,
)
from penstock.client.keyvalue.key_subjects import STREAM_PREFIX, stream_of
from penstock.client.keyvalue.key_value import KeyValue
from penstock.client.keyvalue.key_writes import bucket_not_found
from penstock.errors import AlreadyExistsError, BucketExistsError, BucketNotFoundError, StreamNotFoundError

if TYPE_CHECKING:
    from penstock.client.jetstream import JetStream


class KeyValueManager(ABC):
    """Management of buckets."""

    @abstractmethod
    def _context(self) -> JetStream:
        """The context that sends the requests."""

    async def create_key_value(
        self, config: KeyValueConfig | str, /, **settings: Unpack[KeyValueSettings]
    ) -> KeyValue:
        """Create a bucket, or return an existing one with the same configuration.

        config: a name or a configuration. settings: fields of KeyValueConfig.

        Raises BucketExistsError, which lists what differs, InvalidBucketError, HistoryTooLargeError,
        MisuseError for an unknown setting, and JetStreamApiError.
        """
        js = self._context()
        made = make_key_value_config(config, dict(settings))
        wanted = stream_config_of(made)
        try:
            return KeyValue(js, (await js.create_stream(wanted)).cached_info)
        except AlreadyExistsError as error:
            raise await self._exists(made.bucket, wanted, error) from error

    async def _exists(
        self, bucket: str, wanted: StreamConfig, error: AlreadyExistsError
    ) -> BucketExistsError:
        found = (await self._context().stream_info(stream_of(bucket))).config
        text = (
            f"bucket {bucket!r} exists with another configuration ({'; '.join(differences(found, wanted))})"
        )
        advice = "open it by key_value(), or change it by update_key_value()"
        return BucketExistsError(error.code, error.err_code, f"{text}: {advice}", bucket=bucket)

    async def update_key_value(
        self, config: KeyValueConfig | str, /, **settings: Unpack[KeyValueSettings]
    ) -> KeyValue:
        """Update a bucket. With a name, settings change single fields; a KeyValueConfig replaces all of them.

        Raises BucketNotFoundError, what `create_key_value` raises for invalid settings, and JetStreamApiError
        for fields that cannot be changed.
        """
        js = self._context()
        bucket = config if isinstance(config, str) else config.bucket
        try:
            stored = (await js.stream_info(stream_of(bucket))).config
            made = make_key_value_config(config, dict(settings), config_of(stored))
            return KeyValue(js, (await js.update_stream(stream_config_of(made, stored))).cached_info)
        except StreamNotFoundError as error:
            raise bucket_not_found(bucket) from error

    async def create_or_update_key_value(
        self, config: KeyValueConfig | str, /, **settings: Unpack[KeyValueSettings]
    ) -> KeyValue:
        """Update the bucket if it exists, else create it."""
        try:
            return await self.update_key_value(config, **settings)
        except BucketNotFoundError:
            return await self.create_key_value(config, **settings)

    async def key_value(self, bucket: str) -> KeyValue:
        """Open a bucket. Raises BucketNotFoundError, InvalidBucketError."""
        try:
            return KeyValue(self._context(), await self._context().stream_info(stream_of(bucket)))
        except StreamNotFoundError as error:
            raise bucket_not_found(bucket) from error

    async def delete_key_value(self, bucket: str) -> None:
        """Delete a bucket with its entries. Raises BucketNotFoundError, InvalidBucketError."""
        try:
            await self._context().delete_stream(stream_of(bucket))
        except StreamNotFoundError as error:
            raise bucket_not_found(bucket) from error

    async def key_value_names(self) -> list[str]:
        """Names of all buckets.

        It lists all streams: a filter of subjects, which the official clients send, leaves out mirrors.
        """
        names = await self._context().stream_names()
        return [name.removeprefix(STREAM_PREFIX) for name in names if name.startswith(STREAM_PREFIX)]

    async def key_value_statuses(self) -> AsyncIterator[KeyValueStatus]:
        """Yield the status of every bucket."""
        async for info in self._context().streams():
            if info.config.name.startswith(STREAM_PREFIX):
                yield status_of(info)
