"""Streams whose group is not on this server's disk any more: the log of groups is gone, the files are not.

The server joins its cluster as a new member then, and a replica that starts empty replaces the files of its
stream. Where it was the only replica, or the others are lost, these files are all that is left of the
messages. So they are moved away first, and nothing removes them.

Rejected: to begin with what they hold. They may be ahead of what was committed, and behind it.
"""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

import msgspec

from penstock.errors import StoreError
from penstock.jetstream.stream.stream_replica import StreamMeta
from penstock.server.logging.logs import Log
from penstock.store.disk import Disk
from penstock.store.files import (
    MESSAGES,
    SPILLED,
    make_directory,
    names_in,
    quote_name,
    sync_directory,
)
from penstock.store.interface import AccountStore, Store

LOG_SUFFIX = ".wal"
ASIDE = "_set_aside"


def has_log(disk: Disk, directory: Path) -> bool:
    """Whether there is a log of groups. Raises StoreError."""
    return any(name.endswith(LOG_SUFFIX) for name in names_in(disk, directory))


def set_aside(
    store: Store, disk: Disk, directory: Path, own: Container[tuple[str, str]], log: Log
) -> list[Path]:
    """Moves the files of streams that had a group to `_set_aside/N/ACCOUNT/STREAM`. Returns where they are.

    Args:
        store: in which no stream with a group is open.
        directory: of the store's accounts.
        own: account and name of those that were stored without a cluster, which need no look.

    Raises:
        StoreError: they cannot be moved. Nothing may be opened then, because that would replace them.
        OSError: likewise.
    """
    found: list[Path] = []
    present = names_in(disk, directory / ASIDE)
    target = directory / ASIDE / str(1 + max((int(one) for one in present if one.isdecimal()), default=0))
    for account in store.account_names():
        streams = store.account(account)
        for name in streams.stream_names():
            path = directory / quote_name(account) / "streams" / quote_name(name)
            if (account, name) in own or not disk.exists(path) or not _had_group(streams, name):
                continue
            if disk.exists(path / SPILLED) and not names_in(disk, path / MESSAGES):
                continue  # one of several replicas, which has no copy of its messages here
            parent = target / quote_name(account)
            make_directory(disk, parent)
            disk.rename(path, parent / path.name)
            sync_directory(disk, parent)
            sync_directory(disk, path.parent)
            found.append(parent / path.name)
            log.error(
                f"stream {name!r} of account {account!r} has files and no group on this server: its log is"
                f" lost. They are kept in {parent / path.name}; the stream starts empty with what other"
                " servers have"
            )
    return found


def _had_group(streams: AccountStore, name: str) -> bool:
    """Whether the stream was one of a cluster. One that cannot be read stays where it is, offline."""
    try:
        stored = streams.open_stream(name)
    except StoreError:
        return False
    try:
        return msgspec.json.decode(stored.meta, type=StreamMeta).replicated
    except msgspec.DecodeError:
        return False
    finally:
        stored.abandon()
