"""Checks that a message deleted with erasing leaves its bytes in no block file, also after a crash.

The answer promises it once a sync has completed. A power failure may revoke the promise of a stream whose
answers do not wait for the disk: it loses the tombstone, and the message is back, or the list of what is to
be overwritten.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from penstock.kernels.log.records import Corrupt
from penstock.protocol.api import PersistMode
from penstock.store.envelope import is_enveloped
from penstock.store.erasures import RECORD_BYTES_MIN, read_records
from penstock.testing.sim import require

if TYPE_CHECKING:
    from penstock.testing.sim.simulator import Simulator
    from penstock.testing.sim.stream_checks import StreamRecord

_MESSAGE, _REMOVED = 0, 1  # kinds of records


class Erased:
    """The erased messages of one run: sequences by name and identity of their stream."""

    def __init__(self) -> None:
        self._promised: dict[tuple[str, str], set[int]] = {}

    def promise(self, record: StreamRecord, seq: int) -> None:
        """A client was told that a message is erased."""
        if not record.memory:
            self._promised.setdefault((record.name, record.identity), set()).add(seq)

    def lost_power(self, sim: Simulator) -> None:
        """Forgets what was not promised to be on the disk."""
        for name, identity in list(self._promised):
            record = sim.streams.get(name)
            is_async = record is None or record.config.persist_mode is PersistMode.ASYNC
            if is_async or not sim.always:
                del self._promised[name, identity]

    def check(self, sim: Simulator) -> None:
        """Completes the background work, and looks for records in the files."""
        if sim.damaged or sim.flipped or sim.faulty():
            return
        for stream in sim.engine.streams.values():
            stream.store.write()
        sim.background.drain()
        for (name, identity), seqs in self._promised.items():
            present = sim.engine.streams.get(name)
            if present is None or present.identity != identity:
                continue
            for path in sim.disk.names(_messages_of(name)):
                left = seqs & _sequences(sim, _messages_of(name) / path)
                require(not left, "erased", f"{name}: {sorted(left)} are still in {path}")


def _messages_of(stream: str) -> Path:
    return Path(f"/sim/jetstream/%24G/streams/{stream}/msgs")


def _sequences(sim: Simulator, path: Path) -> set[int]:
    """The sequences of the messages in a block file, and of records that are half overwritten."""
    if path.suffix != ".blk":
        return set()
    data = sim.disk.map(path)
    if is_enveloped(data):
        data = memoryview(sim.store._files.file_cipher.decode(data, path).data)
    found = set()
    for at, record in read_records(data):
        if isinstance(record, Corrupt):
            # Only a tombstone as long as a message: the sequence of a message that was lost is used again.
            size, tagged = (int.from_bytes(data[a:b], "little") for a, b in ((at, at + 4), (at + 4, at + 12)))
            if tagged >> 48 == _REMOVED and size & 0x7FFFFFFF > RECORD_BYTES_MIN:
                found.add(tagged & (1 << 48) - 1)
        elif record[0] == _MESSAGE:
            found.add(record[1])
    return found
