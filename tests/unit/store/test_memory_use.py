"""Reading a large stream does not load it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from penstock.store.file import FileStore

MIB = 1 << 20
STREAM_BYTES = 300 * MIB
GROWTH_MAX = 80 * MIB
"""Four blocks of 8 MiB that were loaded again, two that were closed last, the open one, and what the entries
of the messages take; the rest is the allocator's."""

READ_ALL = """
import json, sys
from penstock.store.file import FileStore

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

store = FileStore(sys.argv[1])
log = store.account("$G").open_stream("S").log
before, most, seq, read = resident(), 0, log.next_seq(1), 0
while seq:
    read += len(log.load(seq).payload)
    if seq % 500 == 0:
        most = max(most, resident())
    seq = log.next_seq(seq + 1)
log.release_idle()
print(json.dumps({"read": read, "growth": most - before, "rest": resident() - before}))
store.close()
"""


def test_a_stream_of_300_mib_is_read_through_in_80_mib(tmp_path: Path) -> None:
    for compress in (False, True):
        root = tmp_path / f"{compress}"
        store = FileStore(root)
        stream = store.account("$G").create_stream("S", b"", "file")
        stream.set_compression(compress)
        payload = bytes(range(256)) * 64
        for i in range(STREAM_BYTES // len(payload)):
            stream.log.append(b"big.%d" % (i % 7), b"", payload, i)
            if i % 100 == 0:
                stream.write()
        store.close()
        answer = subprocess.run(
            [sys.executable, "-c", READ_ALL, str(root)], capture_output=True, text=True, check=True
        )
        found = json.loads(answer.stdout)
        assert found["read"] >= STREAM_BYTES - len(payload)
        assert found["growth"] < GROWTH_MAX, found
        assert found["rest"] < GROWTH_MAX // 2, found
