"""Compiled code (Cython): everything that runs once per message.

Python handles ticks, batches, requests and messages whose headers change behaviour; these modules handle the
bytes of each message without a Python object.

    base/       memory and containers that the others share
    wire/       frames from bytes and bytes from frames: parsers, `Ingress`, sinks, out buffers, end of tick;
                messages and interest between servers
    routing/    subscription index, subject grammar and matching, imports between accounts
    log/        a stream's log: records, blocks, per-subject state, cursors, direct gets, archives
    ingest/     publishes to records: checks, dedupe, batches, pub acks, copies of other streams
    consumer/   ack state, redelivery queue, the pump from a log to receivers
    spark/      messages as Arrow columns, rows as frames

Read first `wire/ingress.pyx` (a publish enters), then `ingest/ingest.pyx` (it is stored),
`log/log_core.pyx` (the log, with `log/stream_log.pyx` for Python) and `consumer/pump.pyx` (it is delivered).

Invariants:
- Kernels do no IO, except that `wire/ingress` receives from plain sockets, `wire/dispatch` sends on them, and
  `log/record_reads` reads block files in a POSIX thread.
- Memory of a message belongs to the caller and is invalid after the call; a callee that keeps it copies it.
- Nothing may change a log or an index while a kernel sends from its memory: the engine defers such requests.
- Indices are checked in debug builds and never negative. Every allocation is checked, and an error leaves the
  object as it was.

Every module has type stubs (`.pyi`), a simple Python model in `tests/reference/`, and property tests that
compare the two. Tests also verify that the compiled module is the one that was imported: there is no Python
fallback.
"""
