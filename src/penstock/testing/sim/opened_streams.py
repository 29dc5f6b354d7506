"""The last sequences that a start found on disk, before it changed anything."""

from __future__ import annotations

from penstock.store.interface import AccountStore, StorageType, StreamStore


class OpenedStreams:
    """An account's store that records the last sequence of each stream it opens.

    Recovery appends to streams (markers of expired messages, messages of schedules) and may remove what it
    appended, so the streams alone do not show afterwards what was on disk.

    last_seqs: by stream name. Of several starts after a crash the one counts that found least: when the first
    one is killed, the next one also finds what the first one wrote, and power loss may still take that.
    """

    def __init__(self, account: AccountStore, last_seqs: dict[str, int]) -> None:
        self._account = account
        self._last_seqs = last_seqs

    @property
    def name(self) -> str:
        return self._account.name

    def stream_names(self) -> list[str]:
        return self._account.stream_names()

    def has_stream(self, name: str) -> bool:
        return self._account.has_stream(name)

    def open_stream(self, name: str) -> StreamStore:
        stream = self._account.open_stream(name)
        last_seq = stream.log.last_seq
        self._last_seqs[stream.name] = min(last_seq, self._last_seqs.get(stream.name, last_seq))
        return stream

    def create_stream(self, name: str, meta: bytes, storage: StorageType) -> StreamStore:
        return self._account.create_stream(name, meta, storage)

    def create_replica(self, name: str, meta: bytes, storage: StorageType) -> StreamStore:
        return self._account.create_replica(name, meta, storage)

    def delete_stream(self, name: str) -> None:
        self._account.delete_stream(name)

    def close(self) -> None:
        self._account.close()
