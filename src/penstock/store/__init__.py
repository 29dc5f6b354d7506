"""Storage of streams and consumers, in files or in memory.

Read first `interface.py`: the contracts of a store, which `jetstream` depends on. Then `file.py` and
`blocks.py`.

    interface.py         StreamStore, ConsumerStore: what is durable after which call
    memory.py            stores in memory
    file.py, streamfiles.py, files.py
                         stores in a directory: creating, opening, removing; atomic writes of small files
    blocks.py            the files of a stream's messages: what write() and sync() promise
    block_reading.py     reads them
    block_writing.py     appends to them
    block_syncs.py       syncs them: what is not on disk yet, and the syncs in flight
    block_jobs.py        finalises, removes, erases and compacts closed blocks in the background
    block_erasing.py     overwrites securely removed records in one file
    recovery.py          opens blocks and indexes after a crash
    journal.py           a consumer's state: a snapshot with a journal
    envelope.py, keys.py encryption and compression of files; the store's key
    erasures.py          the list of securely removed records, overwritten once their removal is synced
    executor.py          syncs and other slow disk work, inline or in threads
    disk.py              all system calls on files; the simulation replaces it
    measured_disk.py     the same, with the durations of syncs for metrics
    overlay.py           a disk whose changes stay in memory, to try a recovery
    store_check.py, repair.py
                         `penstock store check` and `repair`

Invariants:
- Every record has a checksum, which is verified when it is read.
- Appended data is written in order. The death of the process leaves a prefix of it; a power failure can leave
  holes. Recovery skips a bad record that good ones follow, and reports it as lost. Where nothing good
  follows, the newest block is cut off, and an older one ends: what is missing up to the next block is lost.
- Small files are replaced atomically: written under another name, synced, renamed.
- A failed write raises StoreWriteError and is retried; the data stays in memory until then. A failed sync is
  never repeated on the same pages: they are written again first.
- Files that cannot be understood are kept, never deleted.
"""
