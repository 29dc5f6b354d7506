"""An object store: values of any size under names, in chunks (ADR-20).

    store = await js.create_object_store("FILES")
    await store.put("report.pdf", Path("report.pdf"))
    data = await store.get("report.pdf")
    async with store.open("report.pdf", offset=1000) as reader:
        async for chunk in reader: ...

Invariant: an info is stored after its chunks, and the chunks that it replaces are removed after it, so that a
reader always finds an object whole: the old one or the new one. Infos are written by compare and set on what
they replace: of two clients that put the same name, each removes exactly the chunks that its info replaced.
Where it is not known whether an info was stored, its chunks stay.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress
from typing import IO, TYPE_CHECKING

from msgspec.structs import replace

from penstock.client.config import StreamInfo
from penstock.client.keyvalue.key_subjects import check_bucket
from penstock.client.keyvalue.key_watch import deliver_settings
from penstock.client.keyvalue.key_writes import bucket_not_found
from penstock.client.message import HeadersLike
from penstock.client.objectstore.block_hash import BlockHash
from penstock.client.objectstore.chunk_source import BLOCK_BYTES, ObjectData, blocks_of, size_of
from penstock.client.objectstore.chunk_upload import ChunkUpload, FastUpload, PlainUpload
from penstock.client.objectstore.object_config import (
    ObjectStoreConfig,
    ObjectStoreStatus,
    store_config_of,
    store_status_of,
)
from penstock.client.objectstore.object_info import (
    CHUNK_BYTES,
    ObjectInfo,
    ObjectLink,
    decode_info,
    deleted_info,
    digest_of,
    encode_info,
    encode_name,
    headers_of,
)
from penstock.client.objectstore.object_reader import ObjectReader, Progress
from penstock.client.objectstore.object_watch import ObjectWatcher
from penstock.client.objectstore.store_errors import (
    object_changed,
    object_exists,
    object_not_found,
    store_error,
)
from penstock.client.requests import new_nuid
from penstock.client.stream import Stream
from penstock.errors import (
    ClientError,
    JetStreamApiError,
    JetStreamError,
    MessageNotFoundError,
    MisuseError,
    NoStreamError,
    NotFoundError,
    ObjectChangedError,
    ObjectLinkError,
    PublishNotAckedError,
    StreamNotFoundError,
    WrongLastSequenceError,
)
from penstock.protocol import headers as names

if TYPE_CHECKING:
    from penstock.client.jetstream import JetStream

# Attempts to store an info. Each further one means that another client was faster, or an ack was lost.
INFO_ATTEMPTS = 10
LINKS_MAX = 8
# Bytes of a chunk's message beside the chunk: its headers.
HEADER_BYTES = 256


class ObjectStore:
    """An object store, returned by `JetStream.object_store`, `create_object_store` and similar methods.

    bucket: its name. stream: the handle of its stream. js: the context it was opened in.
    """

    def __init__(self, js: JetStream, info: StreamInfo) -> None:
        self.js = js
        self.stream = Stream(js, info)
        self._config = store_config_of(info.config)
        self.bucket = self._config.bucket

    def __repr__(self) -> str:
        return f"<ObjectStore {self.bucket!r}>"

    @property
    def config(self) -> ObjectStoreConfig:
        """The configuration as of this handle's creation; `status` requests the current one."""
        return self._config

    def chunk_subject(self, nuid: str) -> str:
        """The subject of an object's chunks; internal."""
        return f"$O.{self.bucket}.C.{nuid}"

    def _info_subject(self, name: str) -> str:
        return f"$O.{self.bucket}.M.{encode_name(name)}"

    async def status(self) -> ObjectStoreStatus:
        """Request configuration and size. Raises BucketNotFoundError."""
        try:
            return store_status_of(await self.stream.info())
        except StreamNotFoundError as error:
            raise bucket_not_found(self.bucket) from error

    async def seal(self) -> None:
        """Refuse all changes from now on; it can not be undone. Raises BucketNotFoundError."""
        try:
            await self.js.update_stream(self.stream.name, sealed=True)
        except StreamNotFoundError as error:
            raise bucket_not_found(self.bucket) from error

    # --- putting -------------------------------------------------------------------------------

    async def put(
        self,
        name: str,
        data: ObjectData,
        *,
        description: str = "",
        headers: HeadersLike | None = None,
        metadata: dict[str, str] | None = None,
        chunk_size: int = CHUNK_BYTES,
        progress: Progress | None = None,
    ) -> ObjectInfo:
        """Store an object in place of an earlier one of the name. Returns its info.

        data: bytes, text, a path (os.PathLike), a file opened for reading bytes, or an iterable or async
        iterable of bytes. progress: called with the number of bytes sent and the total, None if unknown.

        It goes on after a lost connection. If it fails or is cancelled, stored chunks are removed and an
        earlier object stays. Raises BucketNotFoundError, BucketFullError, ObjectStoreSealedError,
        PublishNotAckedError if it is not known whether the object was stored, and what reading `data` raises.
        """
        encode_name(name)
        limit = self.js.session.max_payload - HEADER_BYTES
        if not 1 <= chunk_size <= max(limit, 1):
            raise MisuseError(f"chunk_size is {chunk_size}; it may be 1 to {limit} bytes (max_payload)")
        nuid = new_nuid()
        subject = self.chunk_subject(nuid)
        kind = FastUpload if self.stream.config.allow_batched else PlainUpload
        upload = kind(self.js, subject, nuid, chunk_size)
        info = ObjectInfo(
            bucket=self.bucket,
            name=name,
            nuid=nuid,
            description=description,
            headers=headers_of(headers),
            metadata=metadata or {},
            max_chunk_size=chunk_size,
        )
        try:
            info = await self._upload(upload, info, data, progress)
        except BaseException as error:
            await self._discard(upload, subject)
            if isinstance(error, NoStreamError | JetStreamApiError):
                raise store_error(error, self.bucket, name) from error
            raise
        return await self._store(info)

    async def _upload(
        self, upload: ChunkUpload, info: ObjectInfo, data: ObjectData, progress: Progress | None
    ) -> ObjectInfo:
        """Store the chunks. Returns the info with their size, number and digest."""
        total = size_of(data)
        digest = BlockHash(self.js.session.loop)
        sent, yielded, size = 0, 0, info.max_chunk_size
        try:
            async with aclosing(blocks_of(data, size)) as blocks:
                async for block in blocks:
                    await digest.add(block)
                    for start in range(0, len(block), size):
                        chunk = block[start : start + size]
                        await upload.add(chunk)
                        sent += len(chunk)
                        if progress is not None:
                            progress(sent, total)
                        if sent - yielded >= BLOCK_BYTES:
                            yielded = sent
                            await asyncio.sleep(0)  # the loop reads acks, and serves others
        finally:
            await digest.finish()
        await upload.finish()
        return replace(info, size=sent, chunks=upload.count, digest=digest_of(digest.digest))

    async def _discard(self, upload: ChunkUpload, subject: str) -> None:
        """Remove the chunks of a put that failed or was cancelled; a cancelled task does not wait for it."""

        async def remove() -> None:
            await upload.abandon()
            with suppress(ClientError, JetStreamError):
                await self.js.session.until_connected()
                await self.stream.purge(subject)

        removing = self.js.session.spawn(remove(), f"removal of {subject}")
        with suppress(TimeoutError):
            async with asyncio.timeout(self.js.timeout):
                await asyncio.shield(removing)

    async def _store(self, info: ObjectInfo) -> ObjectInfo:
        """Store an info with new chunks, and remove those of the one that it replaces."""
        try:
            stored, replaced = await self._replace(info.name, lambda _: info)
        except (NoStreamError, JetStreamApiError):
            with suppress(ClientError, JetStreamError):
                await self.stream.purge(self.chunk_subject(info.nuid))
            raise
        if replaced is not None and not replaced.deleted and replaced.link is None:
            await self._purge_chunks(replaced.nuid)
        return stored

    async def _purge_chunks(self, nuid: str) -> None:
        """Remove chunks that no info names any more. A failure leaves them: the info itself is stored."""
        try:
            await self.stream.purge(self.chunk_subject(nuid))
        except (ClientError, JetStreamError) as error:
            self.js.session.report(error)

    async def _replace(
        self, name: str, make: Callable[[ObjectInfo | None], ObjectInfo]
    ) -> tuple[ObjectInfo, ObjectInfo | None]:
        """Store the info that `make` returns for the last one. Returns both.

        It reads and tries again if another client was faster, or the ack was lost. Raises what `make` raises,
        JetStreamApiError if the server refuses, PublishNotAckedError if it is not known what is stored.
        """
        subject = self._info_subject(name)
        body: bytes | None = None
        before: ObjectInfo | None = None
        for _ in range(INFO_ATTEMPTS):
            last = await self._last_info_after(name, body)
            if last is not None and encode_info(last) == body:
                return last, before  # an earlier attempt, whose ack was lost
            info, before = make(last), last
            body = encode_info(info)
            expected = last.revision if last is not None else 0
            try:
                ack = await self.js.publish(
                    subject, body, headers={names.ROLLUP: "sub"}, expected_last_subject_sequence=expected
                )
                return replace(info, revision=ack.seq), last
            except WrongLastSequenceError:
                continue
            except PublishNotAckedError:
                await self.js.session.until_connected()
            except (NoStreamError, JetStreamApiError) as error:
                raise store_error(error, self.bucket, name) from error
        text = f"object {name!r} of store {self.bucket!r}: no ack in {INFO_ATTEMPTS} attempts"
        raise PublishNotAckedError(f"{text}; it may be stored nevertheless")

    async def _last_info_after(self, name: str, body: bytes | None) -> ObjectInfo | None:
        """The last info; after an attempt to store `body`, a failure to read means that nothing is known."""
        try:
            return await self._last_info(name)
        except (ClientError, JetStreamError) as error:
            if body is None:
                raise
            text = f"object {name!r} of store {self.bucket!r}: {error}; it may be stored nevertheless"
            raise PublishNotAckedError(text) from error

    # --- reading -------------------------------------------------------------------------------

    async def get(
        self, name: str, *, offset: int = 0, length: int | None = None, progress: Progress | None = None
    ) -> bytes:
        """An object's content, or `length` bytes of it from `offset` on.

        progress: called with the bytes received and their total. Links are followed.

        Raises ObjectNotFoundError, ObjectLinkError, BucketNotFoundError, ObjectCorruptError if the content
        does not have its digest (not checked for a part), ObjectChangedError, RequestTimeoutError.
        """
        async with self.open(name, offset=offset, length=length, progress=progress) as reader:
            return await reader.read()

    async def get_to_file(
        self,
        name: str,
        target: os.PathLike[str] | IO[bytes],
        *,
        offset: int = 0,
        length: int | None = None,
        progress: Progress | None = None,
    ) -> ObjectInfo:
        """Write an object's content to a path or a file opened for bytes. Returns its info.

        A path gets the content only once it is complete. Otherwise as `get`.
        """
        async with self.open(name, offset=offset, length=length, progress=progress) as reader:
            await reader.write_to(target)
            return reader.info

    def open(
        self, name: str, *, offset: int = 0, length: int | None = None, progress: Progress | None = None
    ) -> ObjectReader:
        """A reader of an object's content as a stream of chunks: `async with store.open(name) as reader`.

        Arguments and errors as for `get`.
        """
        return ObjectReader(self, name, offset, length, progress)

    async def info(self, name: str, *, show_deleted: bool = False) -> ObjectInfo:
        """What the store records about an object, or about a link itself.

        show_deleted: return the marker of a deleted object instead of raising. Raises ObjectNotFoundError,
        BucketNotFoundError.
        """
        found = await self._last_info(name)
        if found is None or (found.deleted and not show_deleted):
            raise object_not_found(self.bucket, name, is_deleted=found is not None)
        return found

    async def _last_info(self, name: str) -> ObjectInfo | None:
        """The last info of a name from the leader, markers included; None if there is none."""
        try:
            message = await self.stream.get_last_message(self._info_subject(name), direct=False)
        except MessageNotFoundError:
            return None
        except StreamNotFoundError as error:
            raise bucket_not_found(self.bucket) from error
        return decode_info(message.data, self.bucket, message.seq, message.time_ns)

    async def resolve(self, name: str) -> tuple[ObjectStore, ObjectInfo]:
        """The store and info of an object, where links lead; internal."""
        store: ObjectStore = self
        info = await self.info(name)
        for _ in range(LINKS_MAX):
            link = info.link
            if link is None:
                return store, info
            if not link.name:
                raise self._link_error(name, f"leads to the whole store {link.bucket!r}: open that one")
            try:
                store = store if link.bucket == store.bucket else await self.js.object_store(link.bucket)
                info = await store.info(link.name)
            except NotFoundError as error:
                text = f"leads to object {link.name!r} of store {link.bucket!r}, which does not exist"
                raise self._link_error(name, text) from error
        raise self._link_error(name, f"leads to more than {LINKS_MAX} further links")

    def _link_error(self, name: str, why: str) -> ObjectLinkError:
        return ObjectLinkError(f"link {name!r} of store {self.bucket!r} {why}", bucket=self.bucket, name=name)

    async def list(self, *, show_deleted: bool = False) -> AsyncIterator[ObjectInfo]:
        """Yield the info of every object and link. show_deleted: of deleted ones too."""
        async with self.watch(ignore_deletes=not show_deleted) as watch:
            seen: set[str] = set()  # an object that is replaced meanwhile comes again
            async for info in watch:
                if info is None:
                    return
                if info.name not in seen:
                    seen.add(info.name)
                    yield info

    def watch(
        self, *, include_history: bool = False, updates_only: bool = False, ignore_deletes: bool = False
    ) -> ObjectWatcher:
        """Watch the store: the current objects, then None once, then changes as they are made.

        updates_only: start with the next change. ignore_deletes: leave out deleted objects. Iterating raises
        BucketNotFoundError if the store does not exist or is deleted. Raises MisuseError.
        """
        settings = deliver_settings(
            include_history=include_history, updates_only=updates_only, resume_from_revision=None
        )
        settings["filter_subject"] = f"$O.{self.bucket}.M.>"
        return ObjectWatcher(self.stream, self.bucket, settings, ignore_deletes=ignore_deletes)

    # --- changing ------------------------------------------------------------------------------

    async def delete(self, name: str) -> None:
        """Delete an object or a link.

        Raises ObjectNotFoundError, BucketNotFoundError, ObjectStoreSealedError.
        """

        def marker(last: ObjectInfo | None) -> ObjectInfo:
            return deleted_info(self._present(name, last))

        _, deleted = await self._replace(name, marker)
        if deleted is not None and deleted.link is None:
            await self._purge_chunks(deleted.nuid)

    def _present(self, name: str, last: ObjectInfo | None) -> ObjectInfo:
        if last is None or last.deleted:
            raise object_not_found(self.bucket, name, is_deleted=last is not None)
        return last

    async def update(
        self,
        name: str,
        *,
        description: str | None = None,
        headers: HeadersLike | None = None,
        metadata: dict[str, str] | None = None,
    ) -> ObjectInfo:
        """Change what is recorded about an object; None leaves it. Its content stays. Returns the new info.

        Raises ObjectNotFoundError, BucketNotFoundError, ObjectStoreSealedError.
        """

        def changed(last: ObjectInfo | None) -> ObjectInfo:
            found = self._present(name, last)
            return replace(
                found,
                description=found.description if description is None else description,
                headers=found.headers if headers is None else headers_of(headers),
                metadata=found.metadata if metadata is None else metadata,
            )

        return (await self._replace(name, changed))[0]

    async def rename(self, name: str, new_name: str) -> ObjectInfo:
        """Give an object another name. Returns the new info.

        Raises ObjectExistsError if the name is in use, ObjectChangedError if another client replaced or
        deleted the object meanwhile, and what `update` raises.
        """
        found = await self.info(name)
        if new_name == name:
            return found

        def renamed(last: ObjectInfo | None) -> ObjectInfo:
            if last is not None and not last.deleted and last.nuid != found.nuid:
                raise object_exists(self.bucket, new_name)
            return replace(found, name=new_name)

        def vacated(last: ObjectInfo | None) -> ObjectInfo:
            if last is None or last.revision != found.revision:
                raise object_changed(self.bucket, name)
            return deleted_info(found)

        stored, _ = await self._replace(new_name, renamed)
        # The marker decides between this rename and a put of the old name, which removes the chunks that it
        # replaces: only one of the two finds the old info. Then the marker goes as well.
        try:
            marker, _ = await self._replace(name, vacated)
        except ObjectChangedError:
            await self._replace(new_name, lambda last: deleted_info(last or stored))
            raise
        await self.stream.purge(self._info_subject(name), seq=marker.revision + 1)
        return stored

    async def add_link(self, name: str, target: ObjectInfo) -> ObjectInfo:
        """Add a link to an object of this or another store, or replace a link. Returns its info.

        target: of `info`, `put` or `list`. Raises ObjectLinkError if it is deleted or a link itself,
        ObjectExistsError if the name is that of an object, and what `update` raises.
        """
        if target.deleted or target.link is not None:
            what = "was deleted" if target.deleted else "is a link itself"
            raise self._link_error(name, f"may not lead to {target.name!r}, which {what}")
        return await self._link(name, ObjectLink(target.bucket, target.name))

    async def add_bucket_link(self, name: str, bucket: str | ObjectStore) -> ObjectInfo:
        """Add a link to a whole store, or replace a link. Returns its info. Raises what `add_link` raises."""
        target = bucket.bucket if isinstance(bucket, ObjectStore) else check_bucket(bucket)
        return await self._link(name, ObjectLink(target))

    async def _link(self, name: str, link: ObjectLink) -> ObjectInfo:
        def linked(last: ObjectInfo | None) -> ObjectInfo:
            if last is not None and not last.deleted and last.link is None:
                raise object_exists(self.bucket, name)
            return ObjectInfo(bucket=self.bucket, name=name, nuid=new_nuid(), link=link)

        return (await self._replace(name, linked))[0]
