"""What seeds of the simulation found about encrypted stores, in small."""

from __future__ import annotations

from random import Random

import pytest

from penstock.errors import StoreWriteError
from penstock.store.file import FileStore
from penstock.store.interface import ConsumerStore
from penstock.store.keys import StoreKey
from penstock.testing.sim.disk import SimDisk


def opened(disk: SimDisk) -> FileStore:
    return FileStore("/store", disk=disk, key=StoreKey("chacha", "secret"))


def consumer_of(store: FileStore) -> ConsumerStore:
    return store.account("$G").open_stream("S").open_consumer("c")


@pytest.mark.parametrize("room", [0, 5, 8, 30, 32, 40])
def test_a_journal_whose_first_bytes_did_not_fit_on_the_disk_is_begun_anew_by_the_next_start(
    room: int,
) -> None:
    disk = SimDisk(Random(1))
    stream = opened(disk).account("$G").create_stream("S", b"{}", "file")
    journal = stream.create_consumer("c", b"{}")
    journal.append(b"one")
    disk.room = room
    with pytest.raises(StoreWriteError):
        journal.write()
    disk.restart()  # the process was killed
    journal = consumer_of(opened(disk))
    assert journal.load() == (None, [])
    journal.append(b"two")
    journal.write()
    disk.restart()
    assert consumer_of(opened(disk)).load() == (None, [b"two"])
